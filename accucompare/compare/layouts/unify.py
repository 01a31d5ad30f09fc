"""Pairs of records of the global model in place of the ranks' own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from accucompare.bundle.format import UPDATE_ROLES, GlobalRecord, Key, LayoutEvidence, Record, Role
from accucompare.compare.layouts.arrange import (
    Arrangement,
    IncompleteError,
    arrangements,
    box_of,
    given_arrangement,
    whole_shapes,
)
from accucompare.compare.layouts.batch_rows import GivenRows
from accucompare.compare.layouts.given_layouts import GivenLayout
from accucompare.compare.layouts.mesh import Mesh
from accucompare.compare.layouts.padding import (
    is_zero_in_padding,
    padded_shape,
    paddings,
    with_padding,
    without_padding,
)
from accucompare.compare.layouts.put_together import (
    global_record,
    global_tensors,
    interleaved,
    with_sums,
)
from accucompare.compare.layouts.rank_records import RankRecords
from accucompare.compare.layouts.sequence_parts import Holder
from accucompare.compare.pairing import Pair
from accucompare.compare.remarks import (
    CalledInParts,
    NotRecordedOn,
    PairRemark,
    PartsMissing,
    UnknownLayout,
)

#: What a gradient is of.
_VALUES = {Role.GRAD_INPUT: Role.INPUT, Role.GRAD_OUTPUT: Role.OUTPUT}


class Unified(NamedTuple):
    """Pairs of records of the global model."""

    pairs: list[Pair]  # as given, with ``GlobalRecord`` where a side has several ranks
    # further arrangements of the candidate's ranks, by the pair's place
    others: dict[int, tuple[GlobalRecord, ...]]
    unknown: dict[int, PairRemark]  # why a pair cannot be put together, by its place
    means: tuple[float, ...] = ()  # what a mean over the ranks' batches may divide by


def unify(
    pairs: Sequence[Pair],
    golden: RankRecords | None,
    candidate: RankRecords | None,
    given: Sequence[GivenLayout] = (),
) -> Unified:
    """Put the ranks' records of each pair together. Raises UsageError if a given layout names
    dimensions that the mesh lacks.

    Args:
        pairs: of the records that ``RankRecords.first`` gives.
        golden, candidate: the sides' ranks; ``None`` for a side of one rank.
        given: layouts of the candidate's tensors that the user gave.
    """
    unified = Unified([], {}, {})
    for each in given:
        each.check(() if candidate is None else candidate.mesh.sizes)
    if golden is None and candidate is None:
        return unified._replace(pairs=list(pairs))
    padding = set() if candidate is None else paddings(pairs, candidate.groups)
    in_parts = _called_in_parts(pairs, golden, candidate)
    in_parts |= {} if candidate is None else _given_several_calls(pairs, candidate)
    shapes: dict[Key, tuple[int, ...]] = {}
    outside: dict[tuple[int, str, int], bool] = {}  # of calls: whether tokens are outside of rows
    for place, pair in enumerate(pairs):
        of_step = pair.record.step, pair.record.name
        if of_step in in_parts and pair.record.role not in UPDATE_ROLES:
            unified.unknown[place] = in_parts[of_step]
            unified.pairs.append(pair)
            continue
        if candidate is not None and (short := candidate.short_of_ranks(pair)):
            unified.unknown[place] = short
            unified.pairs.append(pair)
            continue
        if pair.golden is None or pair.candidate is None:
            held = (
                None
                if pair.golden is None or candidate is None
                else candidate.holders.of(pair.golden)
            )
            if held is not None:
                unified.unknown[place] = NotRecordedOn(tuple(sorted(held)))
            unified.pairs.append(
                replace(
                    pair,
                    golden=_alone(pair.golden, golden),
                    candidate=_alone(pair.candidate, candidate),
                )
            )
            continue
        if candidate is not None and (lacking := candidate.lacking(pair.candidate)):
            unified.unknown[place] = lacking
            unified.pairs.append(pair)
            continue
        rule = next((own for own in given if own.applies_to(pair.candidate)), None)
        found = (
            _both_sides(pair.golden, pair.candidate, golden, candidate, shapes)
            if rule is None or candidate is None
            else _as_given(pair.golden, pair.candidate, candidate, rule)
        )
        if isinstance(found, PairRemark) and golden is None and candidate is not None:
            found = _padded(pair.golden, pair.candidate, candidate, padding) or found
        if isinstance(found, PairRemark):
            unified.unknown[place] = found
            unified.pairs.append(pair)
            continue
        ours, theirs, others = found
        if candidate is not None and isinstance(theirs, GlobalRecord):
            call = theirs.step, pair.golden.name, pair.golden.call
            names = _cut_by(pair.candidate, candidate)
            if pair.golden.role is Role.INPUT and call not in outside:
                outside.update((call, known) for known in _has_tokens_outside(theirs, names))
            elif call in outside and others:
                theirs, others = _in_order_of(outside[call], theirs, others, names)
        shapes[pair.golden.key] = ours.shape
        unified.pairs.append(replace(pair, golden=ours, candidate=theirs))
        if others:
            unified.others[place] = others
    means = [_divisors(unified.pairs, *side) for side in ((golden, True), (candidate, False))]
    divisors = {theirs / ours for ours in means[0] for theirs in means[1]} - {1.0}
    return unified._replace(means=tuple(sorted(divisors, reverse=True)))


def _given_several_calls(
    pairs: Iterable[Pair], ranks: RankRecords
) -> dict[tuple[int, str], PairRemark]:
    """The experts, by step and name, that are given at once what golden gives them call by call:
    ranks that share them out had rows of several of golden's calls."""
    mixed = {
        step
        for step, held in ranks.rows.items()
        for number in {call for _, call in held}
        if len({rows.call for (_, call), rows in held.items() if call == number}) > 1
    }
    found: dict[tuple[int, str], list[int]] = {}
    for pair in pairs:
        record = pair.record
        if record.step in mixed and ranks.holders.share_experts(record):
            most = found.setdefault((record.step, record.name), [0, 0])
            most[0] = max(most[0], record.call + 1)
            held = () if pair.candidate is None else ranks.groups[pair.candidate.key].values()
            most[1] = max(most[1], *(each.call + 1 for each in held), 0)
    return {
        place: CalledInParts(ours, theirs, of_experts=True)
        for place, (ours, theirs) in found.items()
    }


def _cut_by(record: Record, ranks: RankRecords) -> tuple[str, str]:
    """The dimensions along which ranks have rows, and tokens, of their own."""
    mesh = ranks.mesh_of(record)
    return mesh.batch, mesh.sequence


def _has_tokens_outside(record: GlobalRecord, names: tuple[str, str]) -> Iterator[bool]:
    """Whether the axis of tokens comes before that of rows, as the axes tell that are cut."""
    for axis, cut in record.axes:
        if axis < 2 < len(record.shape) and len(cut) == 1 and cut[0] and cut[0] in names:
            yield (axis == 0) is (cut[0] == names[1])
            return


def _in_order_of(
    outside: bool, record: GlobalRecord, others: tuple[GlobalRecord, ...], names: tuple[str, str]
) -> tuple[GlobalRecord, tuple[GlobalRecord, ...]]:
    """The arrangements, with the one first whose rows and tokens are one axis in this order.

    What is cut by the rows, with the tokens outside, has more parts than with them inside."""
    alike = [each for each in (record, *others) if each.axes == record.axes and each.same]
    cut = {name for _, each in record.axes for name in each}
    if len(alike) < 2 or len(cut) != 1 or not cut & {*names}:
        return record, others
    choose = max if outside is (names[0] in cut) else min
    first = choose(alike, key=lambda each: len(each.boxes))
    return first, tuple(each for each in (record, *others) if each is not first)


def _called_in_parts(
    pairs: Iterable[Pair], golden: RankRecords | None, candidate: RankRecords | None
) -> dict[tuple[int, str], PairRemark]:
    """The modules, by step and name, that ranks with a part of the sequence call more often, or
    less, in a call of the model: a ring of keys and values calls them for each part."""
    meshes = (mesh for side in (golden, candidate) if side for mesh in side.batches.values())
    if not any(mesh.sequence for mesh in meshes):
        return {}
    calls: dict[tuple[int, str], list[int]] = {}
    for pair in pairs:
        if pair.record.role not in UPDATE_ROLES:
            most = calls.setdefault((pair.record.step, pair.record.name), [0, 0])
            for side, record in enumerate((pair.golden, pair.candidate)):
                most[side] = max(most[side], 0 if record is None else record.call + 1)
    return {
        place: CalledInParts(ours, theirs)
        for place, (ours, theirs) in calls.items()
        if ours != theirs and len({*calls.get((place[0], ""), ())}) < 2
    }


def _alone(record: Record | None, ranks: RankRecords | None) -> Record | None:
    """The record without partner of a side: a global tensor, or else what its first rank holds."""
    if record is None or ranks is None:
        return record
    group = ranks.groups[record.key]
    first = group[min(group)]
    shape = first.shape if first.shard is None else first.shard.shape
    with contextlib.suppress(IncompleteError):
        if found := arrangements(group, ranks.mesh_of(record), shape):
            return global_record(record, shape, found[0])
    return global_record(
        record, first.shape, Arrangement((box_of(first),), LayoutEvidence.RECORDED)
    )


def _as_given(
    ours: Record, theirs: Record, candidate: RankRecords, rule: GivenLayout
) -> tuple[Record, Record, tuple[GlobalRecord, ...]] | PairRemark:
    """The pair with the candidate's tensor put together as the user says."""
    group, mesh = candidate.groups[theirs.key], candidate.mesh_of(theirs)
    found = given_arrangement(group, mesh, ours.shape, rule.axes())
    if found is None:
        return UnknownLayout(tuple(dict.fromkeys(record.shape for record in group.values())))
    record = global_record(theirs, ours.shape, found)
    if rule.fused:
        record = next((each for _, each in interleaved(record, [rule.fused])), record)
    if rule.sum:
        record = next(with_sums(record, ()))
    return ours, record, ()


def _both_sides(
    ours: Record,
    theirs: Record,
    golden: RankRecords | None,
    candidate: RankRecords | None,
    known: Mapping[Key, tuple[int, ...]],
) -> tuple[Record, Record, tuple[GlobalRecord, ...]] | PairRemark:
    """Both sides' global tensors and the candidate's further ones, or why there are none.

    Golden of several ranks is trusted: its replicas are equal, or terms of a mean. ``known``: the
    global tensors' shapes; a gradient has that of its value."""
    groups = [
        None if ranks is None else (ranks.groups[record.key], ranks.mesh_of(record))
        for record, ranks in ((ours, golden), (theirs, candidate))
    ]
    found: list[tuple[list[Record], list[Record]]] = []
    missing: PairRemark | None = None
    role = _VALUES.get(ours.role, ours.role)
    of_value = known.get(ours.key._replace(role=role))
    for shape in _shapes((ours, theirs), groups):
        if of_value is not None and golden and candidate and shape != of_value:
            continue
        sides: list[list[Record]] = []
        for record, group in zip((ours, theirs), groups, strict=True):
            try:
                sides.append([record] if group is None else [*global_tensors(*group, shape)])
            except IncompleteError:
                assert group is not None
                missing = PartsMissing(tuple(sorted({rank for rank, _ in group[0]})))
                sides.append([])
        if all(sides):
            found.append((sides[0], sides[1]))
    if not found:
        held = groups[1] or groups[0]
        assert held is not None
        return missing or UnknownLayout(tuple(dict.fromkeys(r.shape for r in held[0].values())))
    best = min(found, key=lambda sides: (not _same(sides[0][0]), not _same(sides[1][0])))
    first, (second, *others) = best[0][0], best[1]
    if not isinstance(second, GlobalRecord):
        second = global_record(
            second, second.shape, Arrangement((box_of(second),), LayoutEvidence.RECORDED)
        )
    if isinstance(first, GlobalRecord) and not first.same:
        *_, first = with_sums(first, ())
    return first, second, tuple(each for each in others if isinstance(each, GlobalRecord))


def _padded(
    ours: Record, theirs: Record, candidate: RankRecords, known: Iterable[tuple[int, int]]
) -> tuple[Record, Record, tuple[GlobalRecord, ...]] | None:
    """The pair without what a vocabulary was padded with; ``None`` if that is not what differs."""
    group, mesh = candidate.groups[theirs.key], candidate.mesh_of(theirs)
    found = padded_shape(ours, group, mesh, known)
    if found is None:
        return None
    axis, shape = found
    with contextlib.suppress(IncompleteError):
        own = global_tensors(group, mesh, shape)
        first: Record = ours
        if shape[axis] > ours.shape[axis]:
            if is_zero_in_padding(ours):
                first = with_padding(ours, shape, global_record)
            else:
                own = [without_padding(each, ours.shape, axis, global_record) for each in own]
        elif is_zero_in_padding(ours):
            own = [with_padding(each, ours.shape, global_record) for each in own]
        else:
            first = without_padding(ours, shape, axis, global_record)
            own = [replace(each, padding=(axis, shape[axis] - ours.shape[axis])) for each in own]
        return first, own[0], tuple(own[1:])
    return None


_Group = tuple[Mapping[Holder, Record], Mesh]


def _shapes(
    records: tuple[Record, Record], groups: Sequence[_Group | None]
) -> list[tuple[int, ...]]:
    """The shapes that the whole may have: of the side of one rank, or by what both tell."""
    for record, group in zip(records, groups, strict=True):
        if group is None:
            return [record.shape]
    ours, theirs = (whole_shapes(*group) for group in groups if group is not None)
    return [shape for shape in ours if shape in theirs]


def _same(record: Record) -> bool:
    return not isinstance(record, GlobalRecord) or record.same


def _batches_of_ranks(ranks: RankRecords) -> int:
    """How many batches the ranks have in a step, where each call of golden's may be on one rank."""
    held: dict[int, set[tuple[int, GivenRows]]] = {}
    step = next(step for step, _ in ranks.batches)
    for (rank, call), rows in ranks.rows[step].items():
        held.setdefault(rank, set()).add((call, rows))
    return len({frozenset(each) for each in held.values()})


def _divisors(pairs: Iterable[Pair], ranks: RankRecords | None, golden: bool) -> set[int]:
    """What a mean over a side's batches may divide by: 1, its ranks, its calls, or both."""
    if ranks is None:
        return {1}
    if ranks.batches:
        rows = next(iter(ranks.batches.values()))
        calls = len({call for _, call in rows.places})
        several = len({rank for rank, _ in rows.places})
        many = {several, calls, several * calls}
        if ranks.holders.modules:  # a schedule may run several times before an update
            many |= {number for number in range(1, calls) if calls % number == 0}
        parts = rows.sizes.get(rows.sequence, 1)
        own = {rows.sizes[rows.batch], parts, rows.sizes[rows.batch] * parts}
        return {1, *many, *own, _batches_of_ranks(ranks)}
    sides = (pair.golden if golden else pair.candidate for pair in pairs)
    inputs = (
        record
        for record in sides
        if isinstance(record, GlobalRecord) and not record.name and record.role is Role.INPUT
    )
    names = ({name for _, names in record.axes for name in names} for record in inputs)
    return {1, *(ranks.mesh.count(each) for each in names)}
