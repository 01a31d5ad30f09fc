"""The ways in which the ranks' records of one value can make up a tensor of the global model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace

from accucompare.bundle.format import (
    UPDATE_ROLES,
    Addends,
    Box,
    LayoutEvidence,
    Record,
    Role,
    Shard,
)
from accucompare.compare.layouts.axis_runs import runs_of_places
from accucompare.compare.layouts.mesh import Mesh
from accucompare.compare.layouts.sequence_parts import Holder, Runs


@dataclass(frozen=True)
class Arrangement:
    """One way to put a global tensor together; attributes as those of ``GlobalRecord``."""

    boxes: tuple[Box, ...]
    evidence: LayoutEvidence
    axes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


#: A box's first index and the one behind its last, in each dimension of its terms.
Edges = tuple[tuple[int, int], ...]


class IncompleteError(Exception):
    """RankRecords that hold a part are missing, or parts overlap."""


class _Unit(NamedTuple):
    """What the ranks of one place along the dimensions that are not recorded make up."""

    place: tuple[int, ...]
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]


def arrangements(
    records: Mapping[Holder, Record], mesh: Mesh, shape: tuple[int, ...]
) -> list[Arrangement]:
    """The ways to fill a tensor of a shape with ranks' records, the likeliest first; maybe none.
    Raises IncompleteError if a recorded layout leaves a hole or overlaps, or a rank is missing.

    Args:
        records: of one value, by rank and call of the model.
        mesh: of all of these.
        shape: of the global tensor.
    """
    units, left = _units(records, mesh)
    if all(unit.shape == shape for unit in units):
        # an optimizer may step some parameters on one rank only
        if len(units) < mesh.count(left) and not _is_of_update(records):
            raise IncompleteError
        numbers = range(len(units[0].boxes))
        boxes = tuple(_with_replicas(units, number) for number in numbers)
        evidence = LayoutEvidence.INFERRED if left else LayoutEvidence.RECORDED
        return [
            Arrangement(boxes, evidence),
            *(Arrangement(each, evidence) for each in _in_natural_order(boxes, shape, mesh)),
        ]
    several = tuple(name for name in left if mesh.sizes[name] > 1)
    found = [
        each
        for axes in _assignments(units[0].shape, shape, several)
        for each in _side_by_side(units, left, axes, shape, mesh)
    ]
    if len(units) < mesh.count(left) and not found:
        raise IncompleteError
    found = found or _shared(units, left, shape, mesh)
    return sorted(found, key=lambda one: _unlikely(one, shape, mesh))


def _shared(
    units: Sequence[_Unit], left: tuple[str, ...], shape: tuple[int, ...], mesh: Mesh
) -> list[Arrangement]:
    """As arrangements, of fewer parts than there are ranks along a dimension: neighbouring ranks
    have the same one, such as the keys of a group of heads; or ranks that are so many apart have,
    such as experts."""
    local = units[0].shape
    found: list[Arrangement] = []
    axes = [axis for axis, whole in enumerate(shape) if local[axis : axis + 1] != (whole,)]
    if len(axes) != 1 or len(local) != len(shape) or not (shape[axes[0]] and local[axes[0]]):
        return []
    parts, rest = divmod(shape[axes[0]], local[axes[0]])
    if rest or not parts:
        return []
    for number, name in enumerate(left):
        each, rest = divmod(mesh.sizes[name], parts)
        if rest or each < 2:
            continue
        names = (*left[: number + 1], "", *left[number + 1 :])
        for neighbours in (True, False):
            split = [
                unit._replace(
                    place=(
                        *unit.place[:number],
                        *(divmod(own, each) if neighbours else divmod(own, parts)[::-1]),
                        *unit.place[number + 1 :],
                    )
                )
                for unit in units
                for own in [unit.place[number]]
            ]
            found += _side_by_side(split, names, {axes[0]: (name,)}, shape, mesh)
    return found


def _unlikely(one: Arrangement, shape: tuple[int, ...], mesh: Mesh) -> tuple[bool, bool, int]:
    """What sorts arrangements: replicas are equal; the sequence's dimension cuts the axes of so
    many tokens and no others, or else the first of these."""
    cut = [axis for axis, names in one.axes.items() if mesh.sequence in names]
    odd = mesh.tokens > 0 and any(
        (shape[axis] % mesh.tokens == 0) is not (axis in cut) for axis in one.axes
    )
    return not all(box.same for box in one.boxes), odd, min(cut, default=0)


def _is_of_update(records: Mapping[Holder, Record]) -> bool:
    return next(iter(records.values())).role in UPDATE_ROLES


def given_arrangement(
    records: Mapping[Holder, Record],
    mesh: Mesh,
    shape: tuple[int, ...],
    axes: Mapping[int, tuple[str, ...]],
) -> Arrangement | None:
    """The records side by side along the axes that the user names; ``None`` if they do not fit."""
    if not records.keys() <= mesh.places.keys():
        return None
    units = [
        _Unit(mesh.places[holder], record.shape, (box_of(record),))
        for holder, record in records.items()
    ]
    own = {axis: tuple(map(mesh.named, names)) for axis, names in axes.items()}
    found = next(_side_by_side(units, tuple(mesh.sizes), own, shape, mesh), None)
    return None if found is None else Arrangement(found.boxes, LayoutEvidence.GIVEN, found.axes)


def whole_shapes(records: Mapping[Holder, Record], mesh: Mesh) -> list[tuple[int, ...]]:
    """The shapes that the whole may have, by the records alone; the smallest first."""
    try:
        units, left = _units(records, mesh)
    except IncompleteError:
        shards = [record.shard for record in records.values()]
        return [shard.shape for shard in shards if shard is not None][:1]
    first = units[0].shape
    of_weight = next(iter(records.values())).role is Role.CALL_GRAD
    # of other rows and tokens come terms of a sum; an axis of all tokens is not cut
    cuts = [
        (None,)
        if of_weight and name in (mesh.batch, mesh.sequence)
        else (
            None,
            *(
                axis
                for axis, length in enumerate(first)
                if name != mesh.sequence or length != mesh.tokens or len(first) < 3
            ),
        )
        for name in left
    ]
    found: dict[tuple[int, ...], bool] = {}
    for axes in itertools.product(*cuts):
        whole = list(first)
        for axis in {each for each in axes if each is not None}:
            names = [name for name, own in zip(left, axes, strict=True) if own == axis]
            lengths = {
                tuple(unit.place[left.index(name)] for name in names): unit.shape[axis]
                for unit in units
                if len(unit.shape) == len(first)
            }
            whole[axis] = sum(lengths.values())
        # a batch is the first axis, and rarely cut by what is not the batch's
        odd = any(
            (axis == 0 and name != mesh.batch)
            or (name == mesh.sequence and axis is not None and whole[axis] % mesh.tokens > 0)
            for name, axis in zip(left, axes, strict=True)
        )
        found[tuple(whole)] = found.get(tuple(whole), True) and odd
    return sorted(found, key=lambda shape: (math.prod(shape), found[shape]))


def _units(records: Mapping[Holder, Record], mesh: Mesh) -> tuple[list[_Unit], tuple[str, ...]]:
    """What the recorded layouts make up, and the dimensions that they do not know."""
    if not records.keys() <= mesh.places.keys():
        raise IncompleteError  # such as a call whose rows are not known
    shards = [record.shard for record in records.values()]
    first = shards[0]
    known = [name for name in mesh.sizes if first is not None and name in first.mesh]
    if not known or None in shards:
        return [
            _Unit(mesh.places[holder], record.shape, (box_of(record),))
            for holder, record in records.items()
        ], tuple(mesh.sizes)
    left = mesh.without(known)
    if len(records) % mesh.count(known) and not _is_of_update(records):
        raise IncompleteError
    groups: dict[tuple[int, ...], dict[Holder, Record]] = {}
    for holder, record in records.items():
        groups.setdefault(mesh.along(holder, left), {})[holder] = record
    return [_recorded(place, group, mesh) for place, group in groups.items()], left


def box_of(record: Record) -> Box:
    """A whole record as a box."""
    edges = tuple((0, length) for length in record.shape)
    return Box((0,) * len(record.shape), (record,), where=edges)


def _recorded(place: tuple[int, ...], records: Mapping[Holder, Record], mesh: Mesh) -> _Unit:
    """The tensor that records with shards make up."""
    sums: dict[Shard, dict[tuple[int, ...], list[Record]]] = {}
    shape: tuple[int, ...] = ()
    for holder, record in records.items():
        shard = record.shard
        assert shard is not None
        shape = shard.shape
        if math.prod(record.shape) or not math.prod(shape):
            aside = mesh.along(holder, mesh.without(shard.over))
            sums.setdefault(shard, {}).setdefault(aside, []).append(record)
    boxes = []
    for shard, terms in sums.items():
        own, *others = map(tuple, terms.values())
        if any(len(each) != mesh.count(shard.over) for each in (own, *others)):
            raise IncompleteError
        factor = 1.0 / len(own) if shard.partial == "avg" else 1.0
        for where, start in shard.boxes(own[0].shape):
            edges = tuple((each.start, each.stop) for each in where)
            boxes.append(Box(start, own, factor, tuple(others), edges, shard.flat))
    if not _fill(boxes, shape):
        raise IncompleteError
    return _Unit(place, shape, tuple(boxes))


def _fill(boxes: Sequence[Box], shape: tuple[int, ...]) -> bool:
    """Whether boxes hold each element of a tensor once."""
    places = tuple((box.start, box.shape) for box in boxes)
    return _places_fill(places, math.prod(shape))


@lru_cache(maxsize=1 << 12)
def _places_fill(
    places: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], elements: int
) -> bool:
    """Whether boxes, each with its first index and its shape, are disjoint and hold so many."""
    return sum(math.prod(shape) for _, shape in places) == elements and not any(
        all(max(a, b) < min(a + m, b + n) for a, m, b, n in zip(*one, *other, strict=False))
        for one, other in itertools.combinations(places, 2)
    )


def _with_replicas(units: Sequence[_Unit], number: int) -> Box:
    """The first unit's box of a number; the others' are replicas."""
    own, *others = (unit.boxes[number] for unit in units)
    if not others:
        return own
    replicas: list[Addends] = [*own.replicas]
    for box in others:
        replicas += (box.terms, *box.replicas)
    return replace(own, replicas=tuple(replicas))


def _assignments(
    local: tuple[int, ...], shape: tuple[int, ...], left: tuple[str, ...]
) -> Iterator[dict[int, tuple[str, ...]]]:
    """The ways to shard the axes that are not the whole's over dimensions of the mesh."""
    if len(local) != len(shape):
        return
    axes = [axis for axis, whole in enumerate(shape) if local[axis] != whole]
    subsets = [
        subset for size in range(1, len(left) + 1) for subset in itertools.combinations(left, size)
    ]
    for chosen in itertools.product(subsets, repeat=len(axes)):
        names = [name for subset in chosen for name in subset]
        if len(names) == len(set(names)):
            yield dict(zip(axes, chosen, strict=True))


def _side_by_side(
    units: Sequence[_Unit],
    left: tuple[str, ...],
    axes: dict[int, tuple[str, ...]],
    shape: tuple[int, ...],
    mesh: Mesh,
) -> Iterator[Arrangement]:
    """The ways to put units side by side along the sharded axes; none if they do not fill the
    whole."""
    lengths: dict[int, dict[tuple[int, ...], int]] = {axis: {} for axis in axes}
    alike: dict[tuple[tuple[int, ...], ...], list[_Unit]] = {}
    for unit in sorted(units, key=lambda each: each.place):
        if len(unit.shape) != len(shape):
            return
        place = dict(zip(left, unit.place, strict=True))
        along = {axis: tuple(place[name] for name in names) for axis, names in axes.items()}
        for axis, whole in enumerate(shape):
            own = unit.shape[axis]
            if own != (lengths[axis].setdefault(along[axis], own) if axis in axes else whole):
                return
        alike.setdefault(tuple(along.values()), []).append(unit)
    if any(sum(found.values()) != shape[axis] for axis, found in lengths.items()):
        return
    left_whole = [length for axis, length in enumerate(shape) if axis not in axes]
    ways = (runs_of_places(each, axes[axis], mesh, left_whole) for axis, each in lengths.items())
    for chosen in itertools.product(*ways):
        runs = dict(zip(lengths, chosen, strict=True))
        boxes: list[Box] = []
        for places, same in alike.items():
            along = dict(zip(axes, places, strict=True))
            for number in range(len(same[0].boxes)):
                box = _with_replicas(same, number)
                boxes += _moved(box, {axis: runs[axis][place] for axis, place in along.items()})
        if sum(math.prod(box.shape) for box in boxes) == math.prod(shape):
            yield Arrangement(tuple(boxes), LayoutEvidence.INFERRED, axes)


def _in_natural_order(
    boxes: tuple[Box, ...], shape: tuple[int, ...], mesh: Mesh
) -> Iterator[tuple[Box, ...]]:
    """A tensor whose parts of a sequence were gathered in the ranks' order, in golden's."""
    gathered = tuple(run for columns in mesh.columns for run in columns)
    in_order = all(sum(one) == at for one, (at, _) in itertools.pairwise(gathered))
    if len(boxes) > 1 or in_order:  # contiguous chunks, or none
        return
    for axis, length in enumerate(shape):
        if length == mesh.tokens:
            yield tuple(_moved(boxes[0], {axis: gathered}))


def _moved(box: Box, runs: Mapping[int, Runs]) -> Iterator[Box]:
    """A unit's box where its sharded axes' runs lie in the whole: one box for each run."""
    for start, where in _moved_places(box.start, box.where, tuple(runs.items())):
        yield replace(box, start=start, where=where)


@lru_cache(maxsize=1 << 12)
def _moved_places(
    start: tuple[int, ...], where: Edges, runs: tuple[tuple[int, Runs], ...]
) -> list[tuple[tuple[int, ...], Edges]]:
    """The first index in the whole of each run, and its edges in the box's terms."""
    cut = [
        [
            (axis, at, max(end - count, first), min(end, first + length), end - count)
            for (at, count), end in zip(
                own, itertools.accumulate(count for _, count in own), strict=True
            )
            if max(end - count, first) < min(end, first + length)
        ]
        for axis, own in runs
        for first, length in [(start[axis], where[axis][1] - where[axis][0])]
    ]
    found = []
    for pieces in itertools.product(*cut):
        moved, edges = list(start), list(where)
        for axis, at, first, last, begins in pieces:
            moved[axis] = at + first - begins
            edge = where[axis][0] + first - start[axis]
            edges[axis] = edge, edge + last - first
        found.append((tuple(moved), tuple(edges)))
    return found
