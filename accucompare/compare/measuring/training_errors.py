"""What an error in a gradient or an update tells beyond its size, for the pairs that need it.

**Few values.** The limit on a ratio of two errors allows for chance by the number of elements. If
golden's norm lies in few of them, the errors do too, and count as (sum g^2)^2 / sum g^4 elements: n
if all are equally large, 1 if one has all.

**A common factor.** Rounding errors of single elements average out in s = <candidate, golden> /
<golden, golden>. Its standard error is at most |e| / |g| * max|g| / |g|, where e is the difference
of candidate and baseline at right angles to golden. So s shows a factor on all elements that the
relative L2 error drowns. Allowed without a fault are two roundings (a scalar that is rounded,
results truncated instead of rounded), or twice the baseline's factor.

**The last place.** An update of a half-type parameter is hardly more than the parameter's rounding,
so its relative L2 error tells little. But rounding moves an element of the parameter by no more
than its last place, and the update by a few roundings of the tensor's largest.

A baseline without tensors keeps its factor and its number of such elements. Its distance from the
candidate is then unknown; the sum of both distances from golden, at right angles to it, takes its
place and allows for more."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from accucompare.bundle.format import Record
from accucompare.bundle.reading import Bundle, GlobalTensor, StoredTensor
from accucompare.compare.constants import COMMON_ROUNDINGS, OF_BASELINE, ROUNDINGS_OF_UPDATE
from accucompare.numbers import DTYPES, DType, Float64, Statistics, as_reals, sums, widen


@dataclass(frozen=True, slots=True)
class Values:
    """A tensor's data on disk, with its true type and number of elements."""

    stored: StoredTensor | GlobalTensor
    dtype: DType
    elements: int

    @classmethod
    def of(cls, bundle: Bundle, record: Record) -> Values:
        """Of a record with data."""
        return cls(bundle.stored(record), DTYPES[record.dtype], math.prod(record.shape))

    def blocks(self) -> Iterator[Float64]:
        """Its values as float64 blocks, verified at the end. Errors as ``StoredTensor.verify``."""
        for start in range(0, self.elements or 1, sums.SEGMENT):
            for raw in self.stored.blocks(start, min(start + sums.SEGMENT, self.elements)):
                # a copy, for the stored bits are overwritten
                yield as_reals(widen(raw, self.dtype)).astype(np.float64)
        self.stored.verify()


def carriers(golden: Values) -> float:
    """The number of elements that carry a norm: (sum g^2)^2 / sum g^4; 0 if all are 0."""
    largest = max(
        (float(np.max(np.abs(block), initial=0.0)) for block in golden.blocks()), default=0.0
    )
    if not largest or not math.isfinite(largest):
        return 0.0
    squares, fourths = [], []
    for block in golden.blocks():
        block = np.square(block / largest)
        squares.append(float(np.sum(block)))
        fourths.append(float(np.dot(block, block)))
    return math.fsum(squares) ** 2 / math.fsum(fourths)


def common_factor(
    one_minus_cosine: float | None, golden: Statistics | None, other: Statistics | None
) -> float | None:
    """The least-squares factor on golden for another tensor, less 1; ``None`` if unknown."""
    if (
        one_minus_cosine is None
        or golden is None
        or other is None
        or not golden.l2
        or other.l2 is None
    ):
        return None
    if golden.nan or golden.inf or other.nan or other.inf:
        return None
    return (1.0 - one_minus_cosine) * (other.l2 / golden.l2) - 1.0


def at_right_angles(rel_l2: float, factor: float) -> float:
    """The part of a relative L2 error at right angles to golden, given golden's factor less 1."""
    return math.sqrt(max(rel_l2 * rel_l2 - factor * factor, 0.0))


def common_limit(rounding: float, baseline: float) -> float:
    """How far all elements may be off in common, before chance is allowed for.

    Args:
        rounding: the unit roundoff.
        baseline: the baseline's factor on golden, less 1.
    """
    return max(COMMON_ROUNDINGS * rounding, OF_BASELINE * abs(baseline))


def standard_error(apart: float, across: float, largest: float, norm: float) -> float:
    """An upper bound of the standard error of the difference of two factors on golden.

    Args:
        apart: L2 distance of candidate and baseline.
        across: its part along golden: the difference of the factors times golden's norm.
        largest, norm: golden's largest magnitude and its L2 norm.
    """
    return math.sqrt(max(apart * apart - across * across, 0.0)) / norm * (largest / norm)


def beyond_last_place(golden: Values, candidate: Values, before: Values, digits: int) -> int:
    """How many elements of an update are off by more than rounding.

    Args:
        golden, candidate: the updates.
        before: golden's parameter before it; the candidate got it rounded to its own type.
        digits: of the candidate's parameter type.
    """
    largest = max(
        (float(np.max(np.abs(block), initial=0.0)) for block in golden.blocks()), default=0.0
    )
    room, count = ROUNDINGS_OF_UPDATE * 2.0**-digits * largest, 0
    for ours, theirs, parameter in zip(
        golden.blocks(), candidate.blocks(), before.blocks(), strict=True
    ):
        magnitude = np.maximum(np.abs(parameter), np.abs(parameter + ours))
        last_place = np.ldexp(1.0, np.frexp(magnitude)[1] - digits)
        count += int(np.count_nonzero(np.abs(theirs - ours) > last_place + room))
    return count
