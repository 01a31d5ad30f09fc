"""Records' sketches as values: sums over ranks, means over micro-batches, multiples, distances."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from accucompare.bundle.format import GlobalRecord, Record, sketch_of_part
from accucompare.bundle.reading.reader import Bundle
from accucompare.errors import RecordError, UsageError
from accucompare.numbers import (
    BLOCK,
    DTYPES,
    Float64,
    deviation,
    distance,
    power_near,
    sketch_values,
    sums,
)
from accucompare.selection import SKETCH_SIZE


class Estimate(NamedTuple):
    """A number and its standard deviation; an exact number has 0."""

    value: float
    deviation: float


@dataclass(frozen=True, eq=False)
class Sketch:
    """The sketch of a tensor, or of a sum of tensors. Sums, differences and multiples are those of
    the tensors.

    Attributes:
        numbers: float64, of shape (size,).
        shape: of the whole tensor; a part that a rank holds is sketched by its place in the whole,
            so that parts add up to it.
        l2: the tensor's L2 norm, where it is known exactly; a sum's is not.
        nonfinite: how many values are NaN or Inf. They count as 0.

    Example:
        >>> with open_bundle("golden") as golden, open_bundle("npu") as candidate:
        ...     ours, theirs = (Sketch.of(each, each.find("fc")) for each in (golden, candidate))
        >>> 0.0 < theirs.error(ours).value < 0.02
        True
    """

    numbers: Float64
    shape: tuple[int, ...]
    l2: float | None = None
    nonfinite: int = 0

    @classmethod
    def of(cls, bundle: Bundle, record: Record, size: int | None = None) -> Sketch:
        """The sketch of one record.

        Args:
            bundle, record: a record with a sketch, or with values to make one from.
            size: how many numbers it has; by default as many as the bundle's, or 256.

        Raises:
            RecordError: if the record has neither, is damaged, or its sketch is of another size.
        """
        facts = bundle.manifests[record.rank].options.sketch
        size = size or (facts.size if facts is not None else SKETCH_SIZE)
        if not record.has_values or record.statistics is None:
            raise RecordError(
                f"{bundle.path}: {record.key} has neither values nor a sketch; capture it with"
                " --mode sketch or tensors"
            )
        known = record.statistics
        shape = record.shape if record.shard is None else record.shard.shape
        return cls(numbers_of(bundle, record, size), shape, known.l2, known.nan + known.inf)

    def __add__(self, other: Sketch) -> Sketch:
        if isinstance(other, int) and other == 0:  # sum() begins with 0
            return self
        if not isinstance(other, Sketch):
            return NotImplemented
        self._check(other)
        return Sketch(
            self.numbers + other.numbers, self.shape, None, self.nonfinite + other.nonfinite
        )

    __radd__ = __add__

    def __sub__(self, other: Sketch) -> Sketch:
        return self + -other if isinstance(other, Sketch) else NotImplemented

    def __mul__(self, factor: float) -> Sketch:
        if not isinstance(factor, (int, float, np.floating, np.integer)):
            return NotImplemented
        return replace(
            self,
            numbers=self.numbers * factor,
            l2=None if self.l2 is None else self.l2 * abs(factor),
        )

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Sketch:
        return self * (1.0 / divisor)

    def __neg__(self) -> Sketch:
        return self * -1.0

    def norm(self) -> Estimate:
        """The L2 norm."""
        if self.l2 is not None:
            return Estimate(self.l2, 0.0)
        found = distance(self.numbers, np.zeros_like(self.numbers))
        return Estimate(found, found * deviation(len(self.numbers)))

    def error(self, golden: Sketch) -> Estimate:
        """The L2 norm of the difference from golden, relative to golden's.

        It is infinite if NaN or Inf are known to be on one side only: two tensors hold different
        numbers of them, or (for sums, whose terms may hold them in the same places) one side holds
        none. Raises UsageError if the tensors have two shapes, or the sketches two sizes."""
        self._check(golden)
        counts = self.nonfinite, golden.nonfinite
        if counts[0] != counts[1] and (0 in counts or None not in (self.l2, golden.l2)):
            return Estimate(math.inf, 0.0)
        apart, norm = distance(self.numbers, golden.numbers), golden.norm()
        if not (math.isfinite(apart) and math.isfinite(norm.value)):  # sums may exceed float64
            return Estimate(math.inf, 0.0)
        if not norm.value:
            return Estimate(math.inf if apart else 0.0, 0.0)
        spread = math.hypot(deviation(len(self.numbers)), norm.deviation / norm.value)
        return Estimate(apart / norm.value, apart / norm.value * spread)

    def _check(self, other: Sketch) -> None:
        if self.shape != other.shape:
            raise UsageError(
                f"sketches of tensors of two shapes, {list(self.shape)} and {list(other.shape)},"
                " cannot be put together"
            )
        if len(self.numbers) != len(other.numbers):
            sizes = len(self.numbers), len(other.numbers)
            raise UsageError(
                f"sketches of {sizes[0]} and {sizes[1]} numbers cannot be put together; capture"
                " with one --sketch-size"
            )


def numbers_of(bundle: Bundle, record: Record, size: int) -> Float64:
    """The numbers of a record's sketch, made from its values if it has those. Raises RecordError if
    it is damaged, or has a sketch of another size. ``bundle``, ``record``: a record with
    statistics, and a sketch or values."""
    if isinstance(record, GlobalRecord) and record.sketch is not None:
        held = {(id(e), box.factor): (e, box.factor) for box in record.boxes for e in box.terms}
        parts = [numbers_of(bundle, term, size) * factor for term, factor in held.values()]
        return np.asarray(sum(parts[1:], parts[0]))
    if record.sketch is not None:
        found = bundle.sketch(record)
        if len(found) != size:
            raise RecordError(
                f"{bundle.path}: {record.key} has a sketch of {len(found)} numbers, not of {size};"
                " capture with one --sketch-size"
            )
        return found
    assert record.statistics is not None
    shard, dtype = record.shard, DTYPES[record.dtype]
    offset = 0 if shard is None else shard.offset(record.shape)
    if offset is None:
        placed = sketch_of_part(bundle.raw(record), record.dtype, record.statistics, size, shard)
        return np.full(size, math.inf) if placed is None else placed
    stored, elements = bundle.stored(record), math.prod(record.shape)
    starts = range(0, elements, sums.SEGMENT)
    blocks = (
        block
        for start in starts
        for block in stored.blocks(start, min(start + sums.SEGMENT, elements), BLOCK)
    )
    scale = power_near(record.statistics)
    numbers = sketch_values(blocks, dtype, size, scale, offset) / scale
    stored.verify()
    return np.asarray(numbers)
