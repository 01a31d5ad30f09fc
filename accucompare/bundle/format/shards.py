"""Where a rank's part of a tensor lies in the whole one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import msgspec
import numpy as np

from accucompare.numbers import DTYPES, Array, Count, Float64, Statistics, sketch_of

#: A run of indices along one dimension: the first, and how many.
_Run = tuple[Count, Count]


class Shard(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The layout of a rank's part of a tensor: where it lies in the whole tensor, and what it lacks
    to be that part."""

    shape: tuple[Count, ...]  # of the whole
    # the index in the whole of the part's first element; of a flat part its position
    start: tuple[Count, ...]
    # ``""`` for values of the whole; ``"sum"``, ``"avg"``, ``"max"``, ``"min"`` or ``"product"``
    # for this rank's term of such a reduction; another word for one that no reader knows
    partial: str = ""
    over: tuple[str, ...] = ()  # the mesh's dimensions over which it is partial
    # all dimensions of the tensor's own mesh; over those that neither cut it nor make it partial,
    # ranks hold replicas
    mesh: tuple[str, ...] = ()
    # of a part that is not one box: for each dimension the runs of the whole's indices that follow
    # each other in the part
    runs: tuple[tuple[_Run, ...], ...] = ()
    # whether the part is a run, or ``runs``, of the whole's elements in row-major order, as FSDP1
    # and ZeRO cut: there is one dimension then, whatever the whole's
    flat: bool = False

    def holds(self, part: tuple[int, ...]) -> bool:
        """Whether a part of this shape lies in the whole."""
        if self.flat:
            size = math.prod(part)
            own = self.runs[0] if self.runs else ((*self.start[:1], size),)
            return (
                len(self.start) == 1
                and sum(count for *_, count in own) == size
                and all(sum(run) <= math.prod(self.shape) for run in own)
            )
        if self.runs and not (
            len(self.runs) == len(part)
            and all(
                sum(count for _, count in runs) == length and all(count for _, count in runs)
                for runs, length in zip(self.runs, part, strict=True)
            )
        ):
            return False
        runs = self.runs or tuple(((first, n),) for first, n in zip(self.start, part, strict=False))
        return len(part) == len(self.shape) == len(self.start) and all(
            first + count <= whole
            for each, whole in zip(runs, self.shape, strict=True)
            for first, count in each
        )

    def is_whole(self, part: tuple[int, ...]) -> bool:
        """Whether a part of this shape holds all values of the whole."""
        return not self.partial and math.prod(part) == math.prod(self.shape)

    def offset(self, part: tuple[int, ...]) -> int | None:
        """The position in the whole of a part whose elements follow each other there, in row-major
        order; ``None`` for other parts."""
        if self.flat and not self.runs:
            return self.start[0]
        if self.runs or self.shape[1:] != part[1:]:
            return None
        return self.start[0] * math.prod(part[1:]) if part else 0

    def boxes(self, part: tuple[int, ...]) -> Iterator[tuple[tuple[slice, ...], tuple[int, ...]]]:
        """The boxes that a part of this shape consists of: each one's place in the part, and the
        index of its first element in the whole. Those of a flat part are of the flattened whole."""
        if self.flat:
            part = (math.prod(part),)
        runs = self.runs or tuple(
            ((first, count),) for first, count in zip(self.start, part, strict=True)
        )
        placed = (
            [
                (slice(end - count, end), first)
                for (first, count), end in zip(
                    each, itertools.accumulate(count for _, count in each), strict=True
                )
            ]
            for each in runs
        )
        for box in itertools.product(*placed):
            yield tuple(where for where, _ in box), tuple(first for _, first in box)


def sketch_of_part(
    array: Array, dtype: str, statistics: Statistics, size: int, shard: Shard | None
) -> Float64 | None:
    """The sketch of a whole tensor, or of a part by its place in the whole: those of parts that
    make up the whole add up to its own. ``None`` if its numbers would exceed float64."""
    if shard is None:
        return sketch_of(array, DTYPES[dtype], statistics, size)
    shape = (math.prod(shard.shape),) if shard.flat else shard.shape
    given = array.reshape(-1) if shard.flat else array
    found = np.zeros(size)
    for where, start in shard.boxes(array.shape):
        box = np.ascontiguousarray(given[where])
        sketch = sketch_of(box, DTYPES[dtype], statistics, size, shape, start)
        if sketch is None:
            return None
        found += sketch
    return found
