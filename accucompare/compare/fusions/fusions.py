"""The records and the model of one side, as the other side has them, where either has fused
layers."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from accucompare.bundle.format import (
    UNKNOWN_CONTENT,
    UPDATE_ROLES,
    Box,
    GlobalRecord,
    Key,
    Layout,
    LayoutEvidence,
    Manifest,
    Record,
    Role,
)
from accucompare.bundle.reading import Bundle
from accucompare.compare.fusions.flat_tokens import as_batches, plain_terms, with_own_form
from accucompare.compare.fusions.fused_weights import FusedWeight, WeightPart, find_fused
from accucompare.compare.pairing import Model, Pair, Renaming, argument_path
from accucompare.compare.preflight_facts import (
    CallsInParts,
    CarriedApart,
    FusedNames,
    PreflightFinding,
)
from accucompare.compare.remarks import OtherFunction, PairRemark, ShareOfSum

_OUTPUTS = (Role.OUTPUT, Role.GRAD_OUTPUT)
_INPUTS = (Role.INPUT, Role.GRAD_INPUT)
#: Paths of a layer's only output: alone, or first in a tuple.
_FIRST = ("", "0")

#: Golden's, and the candidate's.
_Models = tuple[Model, Model]

#: A record's place but for the name: step, call, role, path.
_Place = tuple[int, int, Role, str]


@dataclass(frozen=True)
class _Layer:
    """A fused module and its parts, each with where its outputs lie in the whole's last axis."""

    whole: str
    of_golden: bool
    weights: tuple[FusedWeight, ...]
    parts: Mapping[str, WeightPart]  # by module, of the matrix; empty if outputs are not in parts
    rows: int


class Fusions:
    """What one side has fused and the other in parts, proved by the rows of the weights."""

    def __init__(self, golden: Model, own: Model, renamings: Sequence[Renaming] = ()) -> None:
        # every parameter that is made up of others
        self.weights = find_fused(golden, own, renamings)
        # the candidate's inputs that got their arguments' names: the new keys by their own
        self.renamed: dict[Key, Key] = {}
        self._classes = golden.get("modules") or {}, own.get("modules") or {}
        by_module: dict[tuple[str, bool], list[FusedWeight]] = defaultdict(list)
        for each in self.weights:
            by_module[each.module, each.of_golden].append(each)
        self._layers = [
            _layer(name, of_golden, held, (golden, own))
            for (name, of_golden), held in by_module.items()
        ]

    def __bool__(self) -> bool:
        return bool(self.weights)

    def under_golden_names(
        self, bundle: Bundle, records: list[Record], golden: Manifest
    ) -> tuple[Bundle, list[Record]]:
        """The candidate with golden's layers in place of its own."""
        manifest = bundle.manifest
        # the digest of all weights is of others now; they are compared one by one
        series = [msgspec.structs.replace(each, weights=None) for each in manifest.series]
        model = self.described(manifest.model, golden.model, False)
        described = replace(manifest, model=model, series=series)
        one = copy.copy(bundle)
        one.manifest, one.manifests = described, {**bundle.manifests, 0: described}
        by_name = [*map(_by_arguments(manifest.model, golden.model), records)]
        self.renamed = {
            own.key: new.key for own, new in zip(records, by_name, strict=True) if own is not new
        }
        return one, self.translated(as_batches(golden, manifest, by_name), of_golden=False)

    def golden_like(self, golden: Bundle, own: Model) -> Bundle:
        """Golden, described with the layers of the model that it feeds."""
        manifest = golden.manifest
        described = replace(manifest, model=self.described(manifest.model, own, True))
        one = copy.copy(golden)
        one.manifest, one.manifests = described, {**golden.manifests, 0: described}
        return one

    def golden_records(self, records: list[Record], golden: Model, own: Model) -> list[Record]:
        """Golden's records as the model that it feeds has them; without what its modules of other
        functions give."""
        others, named = self.other_functions(records), _by_arguments(golden, own)
        kept = (
            named(each) for each in records if each.name not in others or each.role in UPDATE_ROLES
        )
        return self.translated(kept, of_golden=True)

    def described(self, model: Model, other: Model, of_golden: bool) -> dict[str, Any]:
        """A side's model with the other's layers in place of its own.

        Their fingerprints are the other side's, since the rows proved them equal. It is marked
        ``rewritten``."""
        found: dict[str, Any] = {**model, "rewritten": True}
        for kind in ("modules", "parameters", "configuration"):
            found[kind] = dict(found.get(kind) or {})
        for weight in self.weights:
            wholes, parts = [weight.whole], [part.name for part in weight.parts]
            old, new = (wholes, parts) if weight.of_golden is of_golden else (parts, wholes)
            dtype = (model.get("parameters") or {})[old[0]]["dtype"]
            for name in old:
                found["parameters"].pop(name, None)
            for name in new:
                entry = (other.get("parameters") or {}).get(name, {})
                known = {**entry.get("digests", {})}
                found["parameters"][name] = {
                    "dtype": dtype,
                    "shape": entry["shape"],
                    "digests": known,
                }
                module = name.rpartition(".")[0]
                for kind in ("modules", "configuration"):
                    if module in (other.get(kind) or {}):
                        found[kind].setdefault(module, other[kind][module])
        for layer in self._layers:
            for name in [layer.whole] if layer.of_golden is of_golden else layer.parts:
                if layer.parts and name not in (other.get("modules") or {}):
                    found["modules"].pop(name, None)
                    found["configuration"].pop(name, None)
        return found

    def translated(self, records: Iterable[Record], of_golden: bool) -> list[Record]:
        """A side's records as the other side would have them; those of no fused layer as they are.
        ``of_golden``: whose they are."""
        translator = _Translator(self._layers, of_golden)
        found: list[Record] = []
        for record in records:
            found += translator.take(record)
        return found

    def settled(self, pairs: Sequence[Pair]) -> tuple[list[Pair], dict[int, PairRemark]]:
        """The pairs, those of other functions with the part that golden's takes; and why some
        cannot be compared, by their place: shares of a sum, and what other functions give."""
        split = [layer for layer in self._layers if not layer.of_golden and layer.parts]
        parts = {name: layer for layer in split for name in layer.parts}
        shares = {*parts, *(layer.whole for layer in split)}
        others = self.other_functions([pair.golden for pair in pairs if pair.golden is not None])
        found, unknown = [*map(with_own_form, pairs)], dict[int, PairRemark]()
        for place, pair in enumerate(found if self._layers else ()):
            record, theirs = pair.record, pair.candidate
            if record.role is Role.GRAD_INPUT and record.name in shares:
                unknown[place] = ShareOfSum(record.name not in parts)
            elif record.name in others and record.role not in UPDATE_ROLES:
                taken = others[record.name]
                layer = parts.get(taken)
                sliced = record.role is Role.INPUT and layer is not None
                if not sliced:
                    unknown[place] = OtherFunction(taken)
                elif theirs is not None and layer and theirs.shape[-1:] == (layer.rows,):
                    own = _columns(theirs, record.name, theirs.path, layer.parts[taken])
                    found[place] = msgspec.structs.replace(pair, candidate=own)
        return found, unknown

    def other_functions(self, golden: Sequence[Record]) -> dict[str, str]:
        """Modules of golden's that take one part's output where the candidate's, of another class
        and the same name, takes the fused one, or the other way round: SiLU, and SiluAndMul. With
        the module whose output golden's takes."""
        makers = {layer.whole for layer in self._layers if layer.of_golden and layer.parts}
        makers |= {name for layer in self._layers if not layer.of_golden for name in layer.parts}
        made = {
            (record.step, record.digest): record.name
            for record in golden
            if record.role is Role.OUTPUT and record.name in makers
        }
        ours, theirs = self._classes
        return {
            record.name: made[record.step, record.digest]
            for record in golden
            if record.role is Role.INPUT
            and record.digest is not None
            and (record.step, record.digest) in made
            and record.name in theirs
            and ours.get(record.name) != theirs[record.name]
            and record.name not in makers
        }


def _by_arguments(model: Model, other: Model) -> Callable[[Record], Record]:
    """Gives inputs their arguments' names where the other side's class takes them in another
    order."""
    own, theirs = (each.get("signatures") or {} for each in (model, other))
    classes = other.get("modules") or {}

    def named(record: Record) -> Record:
        if record.role not in (*_INPUTS, Role.ARGUMENT_UPDATE):
            return record
        mine = list(own.get(record.type) or ())
        given = list(theirs.get(classes.get(record.name, "")) or ())
        both = [name for name in mine if name in given]
        if all(mine.index(name) == given.index(name) for name in both):
            return record
        return msgspec.structs.replace(record, path=argument_path(record.path, mine))

    return named


def _layer(name: str, of_golden: bool, weights: list[FusedWeight], models: _Models) -> _Layer:
    tables = [model.get("parameters") or {} for model in models]
    mine, others = tables if of_golden else tables[::-1]
    first, *more = [each for each in weights if len(mine[each.whole]["shape"]) > 1]
    modules = [part.name.rpartition(".")[0] for part in first.parts]
    shapes = [mine[first.whole]["shape"], *(others[each.name]["shape"] for each in first.parts)]
    plain = not more and len({*modules}) == len(modules) and all(len(each) == 2 for each in shapes)
    # one layer that holds its weight transposed computes the same
    several = len(modules) > 1 or len(first.parts[0].runs) > 1
    parts = dict(zip(modules, first.parts, strict=True)) if plain and several else {}
    return _Layer(name, of_golden, tuple(weights), parts, first.rows)


class _Translator:
    """Turns one side's records into the other's, one after the other."""

    def __init__(self, layers: Sequence[_Layer], of_golden: bool) -> None:
        self._wholes = {each.whole: each for each in layers if each.of_golden is of_golden}
        own = [each for each in layers if each.of_golden is not of_golden]
        self._parts = {name: each for each in own for name in each.parts}
        self._weights = {
            each.whole: each for layer in self._wholes.values() for each in layer.weights
        }
        self._weight_parts = {
            part.name: (each, part)
            for layer in own
            for each in layer.weights
            for part in each.parts
        }
        self._held: dict[tuple[str, _Place], dict[str, Record]] = defaultdict(dict)

    def take(self, record: Record) -> Iterator[Record]:
        """What a record becomes: several, none until its last sibling has come, or itself."""
        if record.role in (Role.CALL_GRAD, *UPDATE_ROLES) and not record.is_of_group:
            leaf, dot, rest = record.path.partition(".")
            if "#" in leaf:
                leaf, dot, rest = leaf.partition("#")
            name = f"{record.name}.{leaf}"
            if name in self._weights:
                yield from _split_weight(record, self._weights[name], f"{dot}{rest}")
                return
            if name in self._weight_parts:
                yield from self._joined_weight(record, *self._weight_parts[name], f"{dot}{rest}")
                return
        elif (layer := self._wholes.get(record.name)) is not None and layer.parts:
            if found := [*_split(record, layer)]:
                yield from found
                return
        elif (
            (layer := self._parts.get(record.name)) is not None
            and record.layout is Layout.STRIDED
            and record.role in (*_OUTPUTS, *_INPUTS)
        ):
            yield from self._joined(record, layer)
            return
        yield record

    def _joined(self, record: Record, layer: _Layer) -> Iterator[Record]:
        """The whole's record, when all of its parts' have come."""
        place = record.step, record.call, record.role, record.path
        held = self._held[layer.whole, place]
        held[record.name] = record
        if len(held) < len(layer.parts):
            return
        # of another call or shape: as they are
        first = held[next(iter(layer.parts))]
        if record.role is Role.INPUT:
            if len({each.digest for each in held.values()}) == 1:
                yield msgspec.structs.replace(first, name=layer.whole)
        elif record.role is Role.GRAD_INPUT:
            terms, form = plain_terms(*held.values())
            box = Box((0,) * len(first.shape), terms, where=_whole(first.shape), form=form)
            yield _made(first, layer.whole, first.path, first.shape, [box])
        else:
            shape = (*first.shape[:-1], layer.rows)
            boxes = [
                _along_last(held[name], run.own, run.at, run.rows)
                for name, part in layer.parts.items()
                for run in part.runs
            ]
            yield _made(first, layer.whole, first.path, shape, boxes)

    def _joined_weight(
        self, record: Record, weight: FusedWeight, part: WeightPart, rest: str
    ) -> Iterator[Record]:
        module, _, leaf = weight.whole.rpartition(".")
        place = record.step, record.call, record.role, f"{leaf}{rest}"
        held = self._held[weight.whole, place]
        held[part.name] = record
        if len(held) < len(weight.parts):
            return
        first = next(iter(held.values()))
        if not first.shape:
            yield msgspec.structs.replace(first, name=module, path=f"{leaf}{rest}")
            return
        boxes = [
            _weight_box(held[each.name], run.own, run.at, run.rows, (each.turned, weight.turned))
            for each in weight.parts
            for run in each.runs
        ]
        shape = _weight_shape(first, weight.rows, (part.turned, weight.turned))
        yield _made(first, module, f"{leaf}{rest}", shape, boxes)


def _split(record: Record, layer: _Layer) -> Iterator[Record]:
    """A fused layer's record as each of its parts has it."""
    if record.layout is not Layout.STRIDED:
        return
    if record.role is Role.INPUT:
        for name in layer.parts:
            yield msgspec.structs.replace(record, name=name)
    elif record.role in _OUTPUTS and record.path in _FIRST and record.shape[-1:] == (layer.rows,):
        for name, part in layer.parts.items():
            yield _columns(record, name, record.path, part)


def _columns(record: Record, name: str, path: str, part: WeightPart) -> GlobalRecord:
    """What of a fused layer's output is a part's."""
    rows = sum(run.rows for run in part.runs)
    boxes = [_along_last(record, run.at, run.own, run.rows) for run in part.runs]
    return _made(record, name, path, (*record.shape[:-1], rows), boxes)


def _split_weight(record: Record, weight: FusedWeight, rest: str) -> Iterator[Record]:
    """What is of a fused parameter, as it is of each of its parts."""
    for part in weight.parts:
        module, _, leaf = part.name.rpartition(".")
        path, rows = f"{leaf}{rest}", sum(run.rows for run in part.runs)
        if not record.shape:
            yield msgspec.structs.replace(record, name=module, path=path)
            continue
        turned = weight.turned, part.turned
        boxes = [_weight_box(record, run.at, run.own, run.rows, turned) for run in part.runs]
        yield _made(record, module, path, _weight_shape(record, rows, turned), boxes)


def _whole(shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple((0, length) for length in shape)


def _along_last(record: Record, own: int, at: int, count: int) -> Box:
    """So many columns of a record, and where they lie."""
    edges = (*_whole(record.shape[:-1]), (own, own + count))
    (term,), form = plain_terms(record)
    return Box((*(0 for _ in record.shape[:-1]), at), (term,), where=edges, form=form)


def _weight_shape(record: Record, rows: int, turned: tuple[bool, bool]) -> tuple[int, ...]:
    """The shape of so many rows like a record's. ``turned``: the record, and what is made."""
    if len(record.shape) == 1:
        return (rows,)
    width = record.shape[-2] if turned[0] else record.shape[-1]
    return (width, rows) if turned[1] else (rows, width)


def _weight_box(record: Record, own: int, at: int, rows: int, turned: tuple[bool, bool]) -> Box:
    """So many neighbouring rows of a record, and where they lie. ``turned``: as above."""
    if not any(turned):  # of any number of dimensions
        width = record.shape[-1] if len(record.shape) > 1 else 1
        edges = ((own * width, (own + rows) * width),)
        return Box((at * width,), (record,), where=edges, flat=True)
    width = record.shape[-2] if turned[0] else record.shape[-1]
    across, along = (0, width), (own, own + rows)
    return Box(
        (0, at) if turned[1] else (at, 0),
        (record,),
        where=(across, along) if turned[1] else (along, across),
        turned=turned[0] is not turned[1],
    )


def _made(
    first: Record, name: str, path: str, shape: tuple[int, ...], boxes: Sequence[Box]
) -> GlobalRecord:
    held = all(term.member is not None for box in boxes for term in box.terms)
    return GlobalRecord.of(
        first,
        boxes,
        name=name,
        path=path,
        shape=shape,
        member=first.member if held else None,
        evidence=LayoutEvidence.WEIGHTS,
        **UNKNOWN_CONTENT,
    )


def on_fusions(
    fusions: Fusions, carried: Sequence[tuple[bool, str]], in_parts: Mapping[str, tuple[int, int]]
) -> Iterator[PreflightFinding]:
    """Findings about fused layers, values carried as two terms of a sum, and calls in parts."""
    for of_golden in (True, False):
        held = [each for each in fusions.weights if each.of_golden is of_golden]
        alike: dict[tuple[str, ...], list[FusedWeight]] = defaultdict(list)
        for each in held:
            alike[_form(each)].append(each)
        for first, *more in alike.values():
            parts = tuple(
                (part.name, tuple((run.at, run.rows) for run in part.runs)) for part in first.parts
            )
            fact = FusedNames(of_golden, first.whole, parts, first.turned, len(more))
            yield PreflightFinding(fact, serious=False)
    for of_golden in (True, False):
        if classes := tuple(name for golden, name in carried if golden is of_golden):
            yield PreflightFinding(CarriedApart(of_golden, classes), serious=False)
    outermost = [each for each in in_parts if not any(map(in_parts.__contains__, _around(each)))]
    for many in dict.fromkeys(in_parts[each] for each in outermost):
        names = tuple(each for each in outermost if in_parts[each] == many)
        yield PreflightFinding(CallsInParts(names, *many), serious=False)


def _around(name: str) -> Iterator[str]:
    """The names of the modules around one."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _form(weight: FusedWeight) -> tuple[str, ...]:
    """What a fused parameter and those of other layers have in common: all but the numbers."""
    names = (weight.whole, *(part.name for part in weight.parts))
    return tuple(
        ".".join(each for each in name.split(".") if not each.isdecimal()) for name in names
    )
