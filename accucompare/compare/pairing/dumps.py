"""What only one side has because the other is a tool's dump, which records it otherwise or not.

That is no difference. Each rule goes by what the tool can record, or by what its dump proves: that
a call handed its input on, that two names are of one parameter. Anything unexplained stays missing,
or extra."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from accucompare.bundle.format import Imported, Layout, Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.pairing.align import OF_INPUTS, Pair
from accucompare.compare.remarks import BareRemark, DumpGap, NotInDump, PairRemark, SameParameter
from accucompare.numbers import Statistics

#: Paths of a single output in a dump that does not tell a tensor from a tuple of one.
_ALONE, _FIRST = "", "0"
_OF_OUTPUTS = (Role.OUTPUT, Role.GRAD_OUTPUT)

_Call = tuple[int, int, str, int]
_Values = tuple[str, tuple[int, ...], str | Statistics]


def with_paths_of(records: list[Record], others: Iterable[Record]) -> list[Record]:
    """An imported bundle's records; a lone one without a path gets the other side's path.

    A dump may not tell a tensor from a tuple of one, which has it at ``0``, nor the position or
    name of a call's only input."""
    paths: dict[tuple[_Call, Role], set[str]] = {}
    for record in others:
        if record.role in (*_OF_OUTPUTS, *OF_INPUTS) and record.layout is not Layout.OPAQUE:
            paths.setdefault((record.key[:4], record.role), set()).add(record.path)

    def path_of(record: Record) -> str:
        found = paths.get((record.key[:4], record.role), set())
        if (
            record.path != _ALONE
            or len(found) != 1
            or (record.role in _OF_OUTPUTS and found != {_FIRST})
        ):
            return record.path
        return next(iter(found))

    return [
        replace(record, path=path) if (path := path_of(record)) != record.path else record
        for record in records
    ]


def of_dumps(golden: Bundle, candidate: Bundle, pairs: Sequence[Pair]) -> dict[int, PairRemark]:
    """Why records have no partner, if the other side's tool explains it: by the pair's place."""
    sides = golden.manifest.options.imported, candidate.manifest.options.imported
    if sides == (None, None):
        return {}
    modules = _Modules.of(golden), _Modules.of(candidate)
    explained = [_not_recorded(pair, sides, modules) for pair in pairs]
    if sides[0] is not None:
        explained = _otherwise([pair.golden for pair in pairs], explained, pairs, candidate)
    if sides[1] is not None:
        explained = _otherwise([pair.candidate for pair in pairs], explained, pairs, golden)
    return {place: why for place, why in enumerate(explained) if why}


@dataclass(frozen=True)
class _Modules:
    """The names of a model's modules, and those with children."""

    names: frozenset[str]
    with_children: frozenset[str]

    @classmethod
    def of(cls, bundle: Bundle) -> _Modules:
        names = frozenset(bundle.manifest.model.get("modules") or ()) - {""}
        above = {
            ".".join(parts[:depth])
            for name in names
            for parts in [name.split(".")]
            for depth in range(len(parts))
        }
        return cls(names, frozenset(above))


def _not_recorded(
    pair: Pair, sides: tuple[Imported | None, Imported | None], modules: tuple[_Modules, _Modules]
) -> PairRemark | None:
    """Why the other side's tool has no counterpart of a record; ``None`` if it should, or does."""
    record = pair.record
    theirs, ours = sides if pair.golden is None else sides[::-1]
    if None not in (pair.golden, pair.candidate):
        return None
    if ours is not None and ours.partial:
        return NotInDump(DumpGap.NAME_ALONE, ours.format)
    if theirs is None:
        return None
    if theirs.hashes and (kind := record.path.rpartition(".")[2]) not in theirs.hashes:
        return NotInDump(DumpGap.HASH_KIND, theirs.format, kind)
    if record.role.value not in theirs.roles:
        return NotInDump(DumpGap.ROLE, theirs.format)
    if not theirs.root and not record.name:
        return NotInDump(DumpGap.ROOT, theirs.format)
    if record.layout is Layout.OPAQUE:
        return NotInDump(DumpGap.OPAQUE, theirs.format)
    if theirs.partial:
        return NotInDump(DumpGap.NAME, theirs.format)
    if (
        record.role is Role.GRAD_INPUT
        and not theirs.named_gradients
        and not record.path.partition(".")[0].isdecimal()
    ):
        return NotInDump(DumpGap.NAMED_GRADIENT, theirs.format)
    own, other = modules if pair.candidate is None else modules[::-1]
    if record.role is Role.OUTPUT and theirs.innermost_outputs and record.name in own.with_children:
        return NotInDump(DumpGap.HAS_CHILDREN, theirs.format)
    if record.name not in other.names and any(
        record.name.startswith(f"{name}.") for name in theirs.pruned
    ):
        return NotInDump(DumpGap.PRUNED, theirs.format)
    return None


def _otherwise(
    imported: Sequence[Record | None],
    explained: list[PairRemark | None],
    pairs: Sequence[Pair],
    other: Bundle,
) -> list[PairRemark | None]:
    """Why the other side, a capture, has no counterpart of an imported record.

    Args:
        imported: the imported side's record of each pair.
        explained: what is explained already.
        other: the capture.
    """
    arrived: dict[_Call, set[_Values]] = {}
    shared: dict[tuple[int, int, _Values], str] = {}
    for record, pair in zip(imported, pairs, strict=True):
        values = None if record is None else _values(record)
        if record is None or values is None:
            continue
        if record.role is Role.GRAD_OUTPUT:
            arrived.setdefault(record.key[:4], set()).add(values)
        elif record.role is Role.PARAM_GRAD and None not in (pair.golden, pair.candidate):
            shared[(record.rank, record.step, values)] = _parameter(record)
    parameters = other.manifest.model.get("parameters") or {}

    def why(record: Record | None) -> PairRemark | None:
        values = None if record is None else _values(record)
        if record is None or values is None or other.manifest.options.imported is not None:
            return None
        if record.role is Role.GRAD_INPUT and values in arrived.get(record.key[:4], ()):
            return BareRemark.HANDED_ON
        first = shared.get((record.rank, record.step, values))
        if (
            record.role is Role.PARAM_GRAD
            and first
            and parameters.get(_parameter(record), parameters.get(first)) == parameters.get(first)
        ):
            return SameParameter(first)
        return None

    return [
        before or (why(record) if None in (pair.golden, pair.candidate) else None)
        for record, before, pair in zip(imported, explained, pairs, strict=True)
    ]


def _parameter(record: Record) -> str:
    return f"{record.name}.{record.path}" if record.name else record.path


def _values(record: Record) -> _Values | None:
    """What identifies a record's values: their digest, or else their statistics."""
    content = record.digest or record.statistics
    return None if content is None else (record.dtype, record.shape, content)
