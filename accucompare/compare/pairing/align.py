"""Pairs golden's records with the candidate's. Never raises: unpaired ones get the nearest name."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from accucompare.bundle.format import UPDATE_ROLES, Key, Record, Role
from accucompare.errors import UsageError

#: Seconds that a pattern may take for one name; backtracking could take years.
PATTERN_PATIENCE = 1.0
#: The most unmatched names for which the nearest name is searched.
_NEAREST_FOR = 500

#: ``forward``'s positional parameters by class: a manifest's ``model["signatures"]``.
Signatures = Mapping[str, Sequence[str]]


class Pair(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A record of golden and its partner; one of the two may be ``None``."""

    golden: Record | None
    candidate: Record | None
    nearest: str = ""

    @property
    def record(self) -> Record:
        """Golden's record, or else the candidate's."""
        record = self.golden or self.candidate
        assert record is not None
        return record


@dataclass(frozen=True)
class Renaming:
    """One ``--map OLD=NEW``: golden's names that match OLD have NEW's names in the candidate.

    Attributes:
        itself: whether ``a.*=b.*`` was given, which renames ``a`` too.
    """

    text: str
    pattern: Any  # regex.Pattern, which has no types
    template: str
    itself: bool = False

    @classmethod
    def parse(cls, text: str) -> Renaming:
        """Read ``OLD=NEW``.

        OLD and NEW are globs; the n-th ``*`` of NEW stands for what the n-th ``*`` of OLD matched
        (``encoder.layers.*=blocks.*``, which renames ``encoder.layers`` too). With ``re:`` in
        front, OLD is a regular expression for the whole name and NEW its replacement
        (``re:h\\.(\\d+)\\.(.*)=layers.\\1.\\2``). No glob renames the root.

        Raises:
            UsageError: if it is neither.
        """
        import regex  # here, since few need it; it accepts all that re does, and has a time limit

        old, equals, new = text.partition("=")
        if not equals or not old:
            raise UsageError(
                f"map {text!r} (--map): must be OLD=NEW, such as 'encoder.layers.*=blocks.*'"
            )
        try:
            if old.startswith("re:"):
                re.compile(old.removeprefix("re:")).sub(new, "")  # a bad group reference shows here
                return cls(text, regex.compile(old.removeprefix("re:")), new)
            parts = [re.escape(part) for part in old.split("*")]
            if new.count("*") > len(parts) - 1:
                raise UsageError(f"map {text!r} (--map): {new!r} has more * than {old!r}")
            template = "".join(
                part.replace("\\", "\\\\") + (f"\\g<{number}>" if number <= new.count("*") else "")
                for number, part in enumerate(new.split("*"), 1)
            )
            itself = old.endswith(".*") and new.endswith(".*") and old.count("*") == new.count("*")
            # the root's name is empty
            pattern = regex.compile("(?=.)" + "(.*)".join(parts), regex.DOTALL)
            return cls(text, pattern, template, itself)
        except (re.error, regex.error, IndexError, OverflowError, RecursionError) as error:
            raise UsageError(
                f"map {text!r} (--map): not a valid regular expression ({error})"
            ) from None

    def apply(self, name: str) -> str | None:
        """The new name, or ``None`` if the old pattern does not match."""
        import regex

        try:
            match = self.pattern.fullmatch(name, timeout=PATTERN_PATIENCE)
            alone = match is None and self.itself and name != ""
            if alone:
                match = self.pattern.fullmatch(f"{name}.", timeout=PATTERN_PATIENCE)
            new: str | None = match.expand(self.template) if match else None
            return new.removesuffix(".") if new is not None and alone else new
        except TimeoutError:
            raise UsageError(
                f"map {self.text!r} (--map): takes more than {PATTERN_PATIENCE:g} s for"
                f" {name!r}; write"
                " it without repetitions in one another"
            ) from None
        except (regex.error, IndexError) as error:
            raise UsageError(
                f"map {self.text!r} (--map): cannot be applied to {name!r} ({error})"
            ) from None


def pair_records(
    golden: Iterable[Record],
    candidate: Iterable[Record],
    renamings: Iterable[Renaming] = (),
    signatures: tuple[Signatures, Signatures] = ({}, {}),
    parameters: Mapping[str, str] | None = None,
) -> list[Pair]:
    """Pair the records of two bundles by rank, step, name, call, role and path.

    An input passed by position on one side and by name on the other is paired by its name in the
    signature. A tensor is also paired with the first of a returned tuple.

    Args:
        golden, candidate: their records, in execution order.
        renamings: of golden's layers.
        signatures: golden's and the candidate's.
        parameters: golden's names to the candidate's other first names.

    Returns:
        One pair per record of either side, in golden's order; the candidate's unpaired records
        follow the one before them.
    """
    by_key = {record.key: record for record in golden}
    candidate = list(candidate)
    renamings = list(renamings)
    unmatched = {record.key: record for record in candidate}
    partners: dict[Key, Record] = {}
    renamed = {key: _renamed(key, renamings) for key in by_key} if renamings else {}
    if parameters:
        renamed |= {
            key: new
            for key in by_key
            if (new := with_parameter(key, parameters, renamed.get(key))) is not None
        }
    # renamed records choose first
    for key, new in [*renamed.items(), *zip(by_key, by_key, strict=True)]:
        if new in unmatched and key not in partners:
            partners[key] = unmatched.pop(new)
    left = (
        [record for key, record in by_key.items() if key not in partners]
        if len(partners) < len(by_key)
        else []
    )
    for key, argument in by_argument(left, unmatched.values(), renamings, signatures).items():
        partners[key] = unmatched.pop(argument.key)
    for key, first in _in_a_tuple(
        (record for record in left if record.key not in partners), unmatched, renamings
    ).items():
        partners[key] = unmatched.pop(first.key)
    extras = _extras_by_predecessor(candidate, unmatched) if unmatched else {}
    nearest = _nearest_names(
        {record.name for record in left if record.key not in partners},
        {key.name for key in unmatched},
    )
    pairs = [Pair(None, record, nearest.get(record.name, "")) for record in extras.get(None, ())]
    for key, record in by_key.items():
        partner = partners.get(key)
        pairs.append(Pair(record, partner, "" if partner else nearest.get(record.name, "")))
        if partner is not None and extras:
            pairs += [
                Pair(None, extra, nearest.get(extra.name, ""))
                for extra in extras.get(partner.key, ())
            ]
    return pairs


def by_argument(
    golden: Iterable[Record],
    candidate: Iterable[Record],
    renamings: Sequence[Renaming],
    signatures: tuple[Signatures, Signatures],
) -> dict[Key, Record]:
    """The candidate's inputs, by golden's keys, that are the same argument of one call.

    One side has it at ``0``, the other at ``hidden_states``.

    Args:
        golden, candidate: the records that have no partner of the same path.
        renamings, signatures: as for ``pair_records``.
    """
    theirs = {
        _by_name(record, signatures[1], signatures[0]): record
        for record in candidate
        if record.role is Role.INPUT
    }
    partners: dict[Key, Record] = {}
    for record in golden:
        if not theirs or record.role is not Role.INPUT:
            continue
        key = _by_name(record, *signatures)
        for place in (_renamed(key, renamings), key):
            if place in theirs:
                partners[record.key] = theirs.pop(place)
                break
    return partners


#: The path of an output in a tuple of its own, and of one that is returned as it is.
_TUPLED = {"": "0", "0": ""}


def tupled(role: Role, path: str) -> str | None:
    """An output's other path: ``x`` may be ``(x,)`` after a refactoring. ``None`` for others."""
    return _TUPLED.get(path) if role in (Role.OUTPUT, Role.GRAD_OUTPUT) else None


def _in_a_tuple(
    golden: Iterable[Record], candidate: Mapping[Key, Record], renamings: Sequence[Renaming]
) -> dict[Key, Record]:
    """The candidate's record by golden's key, for outputs that only one side returns in a tuple."""
    partners: dict[Key, Record] = {}
    for record in golden:
        if not candidate or (path := tupled(record.role, record.path)) is None:
            continue
        key = record.key._replace(path=path)
        other = candidate.get(_renamed(key, renamings) or key) or candidate.get(key)
        if other is not None and other.shape == record.shape:
            partners[record.key] = other
    return partners


def _by_name(record: Record, own: Signatures, other: Signatures) -> Key:
    """An input's key with the argument's name in its path, by either side's signature."""
    return record.key._replace(
        path=argument_path(record.path, own.get(record.type) or other.get(record.type) or ())
    )


def argument_path(path: str, names: Sequence[str]) -> str:
    """An input's path by its argument's name: ``0.1`` becomes ``hidden_states.1``."""
    position, dot, rest = path.partition(".")
    if not position.isdecimal() or int(position) >= len(names):
        return path
    return f"{names[int(position)]}{dot}{rest}"


def rename(name: str, renamings: Iterable[Renaming]) -> str | None:
    """A layer's new name by the first renaming that matches; ``None`` if none does."""
    return next((new for renaming in renamings if (new := renaming.apply(name)) is not None), None)


def rename_parameter(name: str, renamings: Iterable[Renaming]) -> str | None:
    """A parameter's or buffer's new name, by its layer's renaming or its own."""
    layer, _, own = name.rpartition(".")
    for renaming in renamings:
        if (new := renaming.apply(layer)) is not None:
            return f"{new}.{own}" if new else own
        if (new := renaming.apply(name)) is not None:
            return new
    return None


#: What is known by a parameter's name.
_OF_PARAMETERS = (Role.CALL_GRAD, *UPDATE_ROLES)


def with_parameter(
    key: Key, parameters: Mapping[str, str], renamed: Key | None = None
) -> Key | None:
    """The key of a parameter's record under its other first name; ``None`` if it has none.

    Args:
        key: golden's.
        parameters: other first names, by golden's.
        renamed: the key with another name of the module call.
    """
    state = key.role in (Role.STATE_BEFORE, Role.STATE_AFTER)
    own, dot, rest = key.path.partition("." if state else "#")
    name = own[1:] if own.startswith("/") else f"{key.name}.{own}" if key.name else own
    new = parameters.get(name) if key.role in _OF_PARAMETERS else None
    if new is None:
        return None
    module, _, leaf = new.rpartition(".")
    if key.role is not Role.CALL_GRAD:
        return key._replace(name=module, path=f"{leaf}{dot}{rest}")
    call = renamed or key
    return call._replace(path=leaf if module == call.name else f"/{new}")


#: ``rename`` of layers, ``rename_parameter`` of parameters and buffers.
Rename = Callable[[str, Iterable[Renaming]], str | None]


def claims(
    names: Iterable[str],
    own: Collection[str],
    renamings: Sequence[Renaming],
    new_name: Rename = rename,
) -> dict[str, list[str]]:
    """Golden's names by each name of a model: those renamed to it first, then the equal one.

    Several are a clash; the first wins.

    Args:
        own: the model's names. A renaming that leads to none of these is not applied.
        new_name: how the renamings apply.
    """
    claimants: dict[str, list[str]] = {}
    kept = []
    for name in names:
        new = new_name(name, renamings) if renamings else None
        if new is not None and new in own:
            claimants.setdefault(new, []).append(name)
        else:
            kept.append(name)
    for name in kept:
        # a layer mapped to the root takes its place
        if name in own and not (name == "" and name in claimants):
            claimants.setdefault(name, []).append(name)
    return claimants


def counterparts(
    names: Iterable[str],
    own: Collection[str],
    renamings: Sequence[Renaming],
    new_name: Rename = rename,
) -> dict[str, str]:
    """The model's name for each of golden's that it has. Arguments as for ``claims``."""
    return {
        claimants[0]: name for name, claimants in claims(names, own, renamings, new_name).items()
    }


def _renamed(key: Key, renamings: Iterable[Renaming]) -> Key | None:
    name = rename(key.name, renamings)
    return None if name is None else key._replace(name=name)


def _extras_by_predecessor(
    candidate: list[Record], unmatched: dict[Key, Record]
) -> dict[Key | None, list[Record]]:
    extras: dict[Key | None, list[Record]] = {}
    predecessor: Key | None = None
    for record in candidate:
        if record.key in unmatched:
            extras.setdefault(predecessor, []).append(record)
        else:
            predecessor = record.key
    return extras


def _nearest_names(golden: set[str], candidate: set[str]) -> dict[str, str]:
    if not golden or not candidate:
        return {}
    from rapidfuzz import fuzz, process

    nearest: dict[str, str] = {}
    for names, others in ((sorted(golden), sorted(candidate)), (sorted(candidate), sorted(golden))):
        for name in names[:_NEAREST_FOR]:
            best = process.extractOne(name, others, scorer=fuzz.ratio, score_cutoff=50)
            if best is not None:
                nearest.setdefault(name, best[0])
    return nearest
