"""The ways in which the ranks' records of one value can make up a tensor of the global model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from msgspec.structs import replace

from accucompare.bundle.format import Box, Evidence, Manifest, Record, Shard, Terms

#: The name of the only dimension of a mesh that no manifest describes.
UNKNOWN = "rank"


@dataclass(frozen=True)
class Mesh:
    """The ranks' places along the dimensions of parallelism.

    Attributes:
        sizes: by the dimension's name, the outermost first.
        places: of each rank, in that order.
    """

    sizes: Mapping[str, int]
    places: Mapping[int, tuple[int, ...]]

    @classmethod
    def of(cls, manifests: Mapping[int, Manifest], ranks: int) -> Mesh:
        """The mesh of a bundle; one dimension of all ranks if its manifests tell no other."""
        meshes = {rank: manifest.mesh for rank, manifest in manifests.items()}
        first = next(iter(meshes.values()), {})
        names = list(first)
        sizes = {name: size for name, (_, size) in first.items()}
        if math.prod(sizes.values()) != ranks or any(
            list(mesh) != names for mesh in meshes.values()
        ):
            return cls({UNKNOWN: ranks}, {rank: (rank,) for rank in range(ranks)})
        return cls(
            sizes, {rank: tuple(mesh[name][0] for name in names) for rank, mesh in meshes.items()}
        )

    def along(self, rank: int, dimensions: Iterable[str]) -> tuple[int, ...]:
        """A rank's place along some dimensions."""
        place = dict(zip(self.sizes, self.places[rank], strict=True))
        return tuple(place[name] for name in dimensions)

    def without(self, dimensions: Iterable[str]) -> tuple[str, ...]:
        """The other dimensions."""
        return tuple(name for name in self.sizes if name not in set(dimensions))

    def count(self, dimensions: Iterable[str]) -> int:
        """How many ranks there are along some dimensions."""
        return math.prod(self.sizes[name] for name in dimensions)


@dataclass(frozen=True)
class Arrangement:
    """One way to put a global tensor together; attributes as those of ``GlobalRecord``."""

    boxes: tuple[Box, ...]
    evidence: Evidence
    axes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


class IncompleteError(Exception):
    """Ranks that hold a part are missing, or parts overlap."""


@dataclass(frozen=True)
class _Unit:
    """What the ranks of one place along the dimensions that are not recorded make up."""

    place: tuple[int, ...]
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]

    @property
    def content(self) -> list[str | None]:
        return [record.digest for box in self.boxes for record in box.terms]


def arrangements(
    records: Mapping[int, Record], mesh: Mesh, shape: tuple[int, ...]
) -> list[Arrangement]:
    """The ways to fill a tensor of a shape with ranks' records, the likeliest first; maybe none.

    Args:
        records: of one value, by rank.
        mesh: of all ranks.
        shape: of the global tensor.

    Raises:
        IncompleteError: if a recorded layout leaves a hole or overlaps, or a rank is missing.
    """
    units, left = _units(records, mesh)
    if all(unit.shape == shape for unit in units):
        numbers = range(len(units[0].boxes))
        boxes = tuple(_with_replicas(units, number) for number in numbers)
        return [Arrangement(boxes, Evidence.INFERRED if left else Evidence.RECORDED)]
    found = [
        _side_by_side(units, left, axes, shape)
        for axes in _assignments(units[0].shape, shape, mesh, left)
    ]
    if len(units) < mesh.count(left) and not any(found):
        raise IncompleteError
    return sorted(
        (one for one in found if one is not None),
        key=lambda one: not all(box.same for box in one.boxes),
    )


def _units(records: Mapping[int, Record], mesh: Mesh) -> tuple[list[_Unit], tuple[str, ...]]:
    """What the recorded layouts make up, and the dimensions that they do not know."""
    shards = [record.shard for record in records.values()]
    first = shards[0]
    known = [name for name in mesh.sizes if first is not None and name in first.mesh]
    if not known or None in shards:
        return (
            [
                _Unit(mesh.places[rank], record.shape, (Box((0,) * len(record.shape), (record,)),))
                for rank, record in records.items()
            ],
            tuple(mesh.sizes),
        )
    left = mesh.without(known)
    groups: dict[tuple[int, ...], list[Record]] = {}
    for rank, record in records.items():
        groups.setdefault(mesh.along(rank, left), []).append(record)
    return [_recorded(place, group, mesh) for place, group in groups.items()], left


def _recorded(place: tuple[int, ...], records: Iterable[Record], mesh: Mesh) -> _Unit:
    """The tensor that records with shards make up."""
    sums: dict[Shard, dict[tuple[int, ...], list[Record]]] = {}
    shape: tuple[int, ...] = ()
    for record in records:
        shard = record.shard
        assert shard is not None
        shape = shard.shape
        if math.prod(record.shape) or not math.prod(shape):
            aside = mesh.along(record.rank, mesh.without(shard.over))
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
    replicas: list[Terms] = [*own.replicas]
    for box in others:
        replicas += (box.terms, *box.replicas)
    return replace(own, replicas=tuple(replicas))


def _assignments(
    local: tuple[int, ...], shape: tuple[int, ...], mesh: Mesh, left: tuple[str, ...]
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
) -> Arrangement | None:
    """Units put side by side along the sharded axes; ``None`` if they do not fill the whole."""
    lengths: dict[int, dict[tuple[int, ...], int]] = {axis: {} for axis in axes}
    alike: dict[tuple[tuple[int, ...], ...], list[_Unit]] = {}
    for unit in sorted(units, key=lambda each: each.place):
        place = dict(zip(left, unit.place, strict=True))
        along = {axis: tuple(place[name] for name in names) for axis, names in axes.items()}
        for axis, whole in enumerate(shape):
            own = unit.shape[axis]
            if own != (lengths[axis].setdefault(along[axis], own) if axis in axes else whole):
                return None
        alike.setdefault(tuple(along.values()), []).append(unit)
    if any(sum(found.values()) != shape[axis] for axis, found in lengths.items()):
        return None
    starts = {}
    for axis, found in lengths.items():
        ends = itertools.accumulate((found[each] for each in sorted(found)), initial=0)
        starts[axis] = dict(zip(sorted(found), ends, strict=False))
    boxes = []
    for places, same in alike.items():
        offset = [0] * len(shape)
        for axis, at in zip(axes, places, strict=True):
            offset[axis] = starts[axis][at]
        for number in range(len(same[0].boxes)):
            box = _with_replicas(same, number)
            start = tuple(a + b for a, b in zip(offset, box.start, strict=True))
            boxes.append(replace(box, start=start))
    if sum(math.prod(box.shape) for box in boxes) != math.prod(shape):
        return None
    return Arrangement(tuple(boxes), Evidence.INFERRED, axes)
