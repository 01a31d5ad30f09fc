"""Calls that one side makes in parts, such as a feed-forward in chunks of the sequence: as golden
makes them.

The shapes tell: one call's tensors are filled by those of several calls, side by side. The calls
that they make inside are then in parts too, one for one."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from accucompare.bundle.format import OPERATOR_ROLES, Layout, Manifest, Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.constants import TELLS_LAYOUT
from accucompare.compare.fusions.flat_tokens import is_as_captured
from accucompare.compare.fusions.parts_of_calls import (
    added_up,
    box_of_part,
    made_of_calls,
    one_by_one,
    side_by_side,
    starts_of,
)
from accucompare.compare.pairing import Renaming, rename
from accucompare.numbers import DTYPES

_Shape = tuple[int, ...]
#: (name, call index).
_Call = tuple[str, int]
#: What a call takes and gives: shapes by role and path.
_Shapes = dict[tuple[Role, str], _Shape]

_VALUES = (Role.INPUT, Role.OUTPUT)
_SUMS = (Role.GRAD_INPUT, Role.CALL_GRAD)
#: What is put together, or cut.
_OF_CALLS = (*_VALUES, *_SUMS, Role.GRAD_OUTPUT, Role.ARGUMENT_UPDATE)


class _Unit(NamedTuple):
    """Calls of one module that make up the same: one of golden's, or one of the candidate's."""

    ours: tuple[int, ...]
    theirs: tuple[int, ...]

    @property
    def many(self) -> tuple[int, int]:
        return len(self.ours), len(self.theirs)


class _Side:
    """A side's calls of a step, under the candidate's names."""

    def __init__(self, records: Iterable[Record], names: Mapping[str, str]) -> None:
        # the tensors, by call, role and path
        self.held: dict[_Call, dict[tuple[Role, str], Record]] = defaultdict(dict)
        self.parents: dict[_Call, _Call | None] = {}  # of each call
        self._inside: dict[_Call | None, dict[str, list[int]]] = {}
        for record in records:
            if record.role not in _OF_CALLS:
                continue
            call = names.get(record.name, record.name), record.call
            parent = record.parent
            self.parents[call] = parent and (names.get(parent[0], parent[0]), parent[1])
            if record.layout is Layout.STRIDED:
                self.held[call][record.role, record.path] = record

    def of(self, name: str, calls: Sequence[int], record: Record) -> list[Record]:
        """What calls have of a value; nothing if one lacks it."""
        held = [self.held[name, call].get((record.role, record.path)) for call in calls]
        found = [each for each in held if each is not None]
        return found if len(found) == len(calls) else []

    def nest(self, common: Collection[str]) -> None:
        """Note which calls each call makes, of modules that both sides have."""
        for call, parent in self.parents.items():
            if call[0] not in common:
                continue
            while parent is not None and (parent[0] not in common or parent not in self.parents):
                parent = self.parents.get(parent)
            self._inside.setdefault(parent, {}).setdefault(call[0], []).append(call[1])

    def inside(self, call: _Call | None) -> dict[str, list[int]]:
        """The calls that a call makes, by name."""
        return self._inside.get(call, {})

    def values(self, name: str, calls: Iterable[int]) -> list[_Shapes]:
        """What each call takes and gives."""
        return [
            {key: each.shape for key, each in self.held[name, call].items() if key[0] in _VALUES}
            for call in calls
        ]


def _units(ours: _Side, theirs: _Side) -> dict[str, list[_Unit]]:
    """Which calls of the two sides are the same, from the outermost to the innermost."""
    common = {name for name, _ in ours.parents} & {name for name, _ in theirs.parents}
    ours.nest(common)
    theirs.nest(common)
    found: dict[str, list[_Unit]] = defaultdict(list)
    left: list[tuple[list[_Call | None], list[_Call | None]]] = [([None], [None])]
    while left:
        inside = [
            [side.inside(parent) for parent in parents]
            for side, parents in zip((ours, theirs), left.pop(0), strict=True)
        ]
        for name in inside[0][0]:
            if name not in inside[1][0]:
                continue
            calls = [[each.get(name, []) for each in side] for side in inside]
            for unit in _paired_calls(name, calls[0], calls[1], ours, theirs):
                found[name].append(unit)
                left.append(([(name, at) for at in unit.ours], [(name, at) for at in unit.theirs]))
    return found


def _paired_calls(
    name: str,
    ours: Sequence[Sequence[int]],
    theirs: Sequence[Sequence[int]],
    golden: _Side,
    candidate: _Side,
) -> list[_Unit]:
    """The units of the calls that are made in one part of a call, or one for one in several."""
    if {*map(len, ours)} == {*map(len, theirs)} == {len(ours[0])} and len(ours) + len(theirs) > 2:
        return [
            _Unit(*both)
            for both in zip(zip(*ours, strict=True), zip(*theirs, strict=True), strict=True)
        ]
    if len(ours) + len(theirs) > 2:
        return []
    own, other = ours[0], theirs[0]
    many = _grouped(golden.values(name, own), candidate.values(name, other))
    if many is None:
        many = [(1, 1)] * len(own) if len(own) == len(other) else []
    left = iter(own), iter(other)
    return [
        _Unit(*(tuple(itertools.islice(*each)) for each in zip(left, both, strict=True)))
        for both in many
    ]


def _grouped(ours: Sequence[_Shapes], theirs: Sequence[_Shapes]) -> list[tuple[int, int]] | None:
    """How many calls of each side make up the same, in order; ``None`` if some are left."""
    found, at = [], [0, 0]
    while at[0] < len(ours) and at[1] < len(theirs):
        own, other = ours[at[0]], theirs[at[1]]
        key = next((each for each, shape in own.items() if other.get(each, shape) != shape), None)
        many = 1, 1
        if key is not None:
            is_whole = math.prod(own[key]) > math.prod(other[key])
            parts = theirs[at[1] :] if is_whole else ours[at[0] :]
            starts = starts_of((own if is_whole else other)[key], (each.get(key) for each in parts))
            if starts is None:
                return None
            many = (1, len(starts)) if is_whole else (len(starts), 1)
        found.append(many)
        at = [one + more for one, more in zip(at, many, strict=True)]
    return found if at == [len(ours), len(theirs)] else None


class InParts(NamedTuple):
    """Both sides' records, the candidate's as golden's calls would have them, and golden's of what
    calls add up to as one."""

    golden: list[Record]
    candidate: list[Record]
    # how many calls of golden's and of the candidate's make up the same, by the candidate's names
    many: dict[str, tuple[int, int]]
    batches: list[int]  # the steps in which the model itself is called in parts


def as_golden_calls(
    golden: list[Record], candidate: list[Record], renamings: Sequence[Renaming] = ()
) -> InParts:
    """The records, those of calls in parts put together or cut."""
    counts = _counts(golden), _counts(candidate)
    names = {name: rename(name, renamings) or name for _, name in counts[0]}
    odd = {
        step
        for (step, name), calls in counts[0].items()
        if counts[1].get((step, names[name]), calls) != calls
    }
    found = InParts(golden, candidate, {}, [])
    for step in sorted(odd):
        found = _of_step(step, found, names)
    return found


def _of_step(step: int, found: InParts, names: Mapping[str, str]) -> InParts:
    """The records with those of one step changed."""
    own, other = ([each for each in side if each.step == step] for side in found[:2])
    sides = _Side(own, names), _Side(other, {})
    units = _units(*sides)
    many = {
        name: unit.many
        for name, held in units.items()
        for unit in reversed(held)
        if unit.many != (1, 1)
    }
    if not many:
        return found
    made = _Translator(units, *sides, names)
    changed = [*made.candidate(other)]  # first, see ``golden``
    return InParts(
        [*(each for each in found.golden if each.step != step), *made.golden(own)],
        [*(each for each in found.candidate if each.step != step), *changed],
        {**many, **found.many},
        [*found.batches, *([step] if "" in many else [])],
    )


def given_as_golden(bundle: Bundle, golden: Manifest, steps: Collection[int]) -> Bundle:
    """The bundle as if its model was called as golden's in these steps: rows compare what it was
    given, part by part."""
    manifest = bundle.manifest
    inputs = {str(step): golden.inputs.get(str(step), {}) for step in steps}
    batches = {entry.step: entry.batch for entry in golden.series if entry.step in steps}
    series = [
        replace(each, batch=batches[each.step]) if each.step in batches else each
        for each in manifest.series
    ]
    described = dataclasses.replace(manifest, inputs={**manifest.inputs, **inputs}, series=series)
    one = copy.copy(bundle)
    one.manifest, one.manifests = described, {**bundle.manifests, 0: described}
    return one


def _counts(records: Iterable[Record]) -> dict[tuple[int, str], int]:
    """How often each module is called, by step and name."""
    found: dict[tuple[int, str], int] = defaultdict(int)
    for record in records:
        if record.role in _VALUES:
            place = record.step, record.name
            found[place] = max(found[place], record.call + 1)
    return found


class _Translator:
    """Makes one step's records those of golden's calls."""

    def __init__(
        self,
        units: Mapping[str, Sequence[_Unit]],
        ours: _Side,
        theirs: _Side,
        names: Mapping[str, str],
    ) -> None:
        self._ours, self._theirs, self._names = ours, theirs, names
        pairs = [(name, unit) for name, held in units.items() for unit in held]
        self._one_by_one: set[tuple[str, int, Role, str]] = set()
        self._by_golden = {(name, at): unit for name, unit in pairs for at in unit.ours}
        self._by_candidate = {(name, at): unit for name, unit in pairs for at in unit.theirs}

    def golden(self, records: Iterable[Record]) -> Iterator[Record]:
        """Golden's records, after ``candidate``: what its calls add up to, where the candidate has
        one call, as one; and those that the candidate's calls have one by one."""
        for record in records:
            name = self._names.get(record.name, record.name)
            unit = self._by_golden.get((name, record.call))
            if unit is None or unit.many == (1, 1) or record.role not in _OF_CALLS:
                yield record
            elif (name, record.call, record.role, record.path) in self._one_by_one:
                yield one_by_one([record] * len(unit.theirs))
            elif len(unit.ours) == 1:
                yield record
            else:
                parts = self._ours.of(name, unit.ours, record)
                one = self._theirs.of(name, unit.theirs, record)
                added = _added_up(parts, one[0]) if one and parts else None
                if added is None:
                    yield record
                elif record is parts[-1]:
                    yield added

    def candidate(self, records: Iterable[Record]) -> Iterator[Record]:
        held: dict[tuple[str, _Unit, Role, str], dict[int, Record]] = defaultdict(dict)
        for record in records:
            unit = self._by_candidate.get((record.name, record.call))
            if unit is None or record.role not in _OF_CALLS:
                yield self._renumbered(record, unit)
            elif len(unit.theirs) == 1:
                yield from self._cut(record, unit)
            else:
                parts = held[record.name, unit, record.role, record.path]
                parts[record.call] = record
                if len(parts) == len(unit.theirs):
                    yield from self._joined([parts[at] for at in unit.theirs], unit)
        for (_, unit, *_), parts in held.items():
            if len(parts) < len(unit.theirs):
                yield from parts.values()

    def _renumbered(self, record: Record, unit: _Unit | None) -> Record:
        """A record that is of no call, or of one that golden has not."""
        if unit is not None and unit.many == (1, 1) and record.role in OPERATOR_ROLES:
            return self._placed(record, unit.ours[0])
        around = self._by_candidate.get(record.parent) if record.parent else None
        if record.parent is None or around is None or len(around.ours) > 1:
            return record
        return replace(record, parent=(record.parent[0], around.ours[0]))

    def _placed(self, record: Record, call: int) -> Record:
        """The record as one of golden's call."""
        return replace(record, call=call, parent=self._parent(record, call))

    def _parent(self, record: Record, call: int) -> _Call | None:
        own, parent = record.parent, self._ours.parents.get((record.name, call))
        if own is None or (parent is not None and parent[0] == own[0]):
            return own and parent
        around = self._by_candidate.get(own)
        return own if around is None else (own[0], around.ours[0])

    def _joined(self, parts: Sequence[Record], unit: _Unit) -> Iterator[Record]:
        """What several calls have of one of golden's; each as it is if that does not fit."""
        (first, *_), call = parts, unit.ours[0]
        golden = self._ours.of(first.name, [call], first)
        made: Record | None = None
        if golden and all(map(_is_one_tensor, (whole := golden[0], *parts))):
            made = _added_up(parts, whole) or side_by_side(parts, whole.shape)
            if made is None and {each.shape for each in parts} == {whole.shape}:
                if first.digest is not None and len({each.digest for each in parts}) == 1:
                    made = first
                else:
                    made = one_by_one(parts)
                    self._one_by_one.add((first.name, call, first.role, first.path))
        if made is None:
            yield from parts
        else:
            yield self._placed(made, call)

    def _cut(self, record: Record, unit: _Unit) -> Iterator[Record]:
        """What a call has of each of golden's; as it is if that does not fit."""
        parts = self._ours.of(record.name, unit.ours, record)
        if len(parts) < 2 or not _is_one_tensor(record):
            yield self._placed(record, unit.ours[0])
            return
        if (added := _added_up(parts, record)) is not None:
            yield self._placed(record, added.call)
            return
        if {each.shape for each in parts} == {record.shape}:
            yield from (self._placed(record, at) for at in unit.ours)
            return
        starts = starts_of(record.shape, [each.shape for each in parts])
        if starts is None or len(starts) < len(parts):
            yield self._placed(record, unit.ours[0])
            return
        for start, part in zip(starts, parts, strict=True):
            if (box := box_of_part(record, start, part, False)) is not None:
                made = made_of_calls(record, [box], shape=part.shape)
                yield self._placed(made, part.call)


def _added_up(parts: Sequence[Record], whole: Record) -> Record | None:
    """What calls add up to; of what they write one after the other, the last one's. ``None`` if
    they are no terms of the whole.

    Of the loss of some tokens, sum or mean is what is nearer."""
    if {each.shape for each in parts} != {whole.shape}:
        return None
    if whole.role is Role.ARGUMENT_UPDATE:
        return parts[-1]
    if whole.role in _SUMS:
        return added_up(parts)
    known = [number for each in (whole, *parts) if (number := _number(each)) is not None]
    if whole.role is Role.INPUT or len(known) <= len(parts):
        return None
    total = sum(known[1:])
    off = {times: abs(times * total - known[0]) for times in (1.0, 1.0 / len(parts))}
    nearest = min(off, key=off.__getitem__)
    return added_up(parts, nearest) if off[nearest] <= TELLS_LAYOUT * abs(known[0]) else None


def _number(record: Record) -> float | None:
    """A floating-point number; ``None`` for anything else."""
    known = record.statistics
    if record.shape or known is None or known.min is None or not DTYPES[record.dtype].digits:
        return None
    return float(known.min)


def _is_one_tensor(record: Record) -> bool:
    return record.layout is Layout.STRIDED and record.shard is None and is_as_captured(record)
