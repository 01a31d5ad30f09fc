"""Masks: very low numbers where nothing is to be attended to; they differ by device and type.

A value is **masked** if it is -Inf, or at most 0.99 times its type's lowest finite number (added
scores change it a little), or exactly another type's lowest finite number (a bfloat16 mask used in
float32). Positions masked on both sides are equal. A tensor holds masks only if its smallest value
is one, so statistics tell whether to look.

Masks of two kinds are compared by what they let through: a boolean one where it is true, a floating
one, which is added to scores, where it is not masked."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from accucompare.bundle.format import Record
from accucompare.compare.constants import NEAR_LOWEST
from accucompare.numbers import DTYPES, Array, DType, Kind, Statistics, round_to, widen

#: Types with a lowest number used as a mask; fp8's are ordinary values in other types.
_USED = ("float64", "float32", "bfloat16", "float16")

#: Masks of different shapes are broadcast, and read whole, up to so many elements.
MOST_BROADCAST = 16 << 20


def is_masked(values: Array, dtype: DType) -> NDArray[np.bool_]:
    """Where ``values``, widened from ``dtype``, are masked."""
    lowest, others = _lowest(dtype.name)
    # a plain float would be rounded to the values' type
    masked: NDArray[np.bool_] = values <= np.float64(lowest)
    for other in others:
        masked |= values == np.float64(other)
    return masked


@cache
def _lowest(name: str) -> tuple[float, tuple[float, ...]]:
    """A type's highest masked value, and the higher numbers that are other types' masks."""
    if name not in _USED:
        return -math.inf, ()
    dtype = DTYPES[name]
    lowest = -NEAR_LOWEST * dtype.largest
    numbers = np.array([-DTYPES[name].largest for name in _USED])
    with np.errstate(over="ignore"):
        held = (
            widen(round_to(numbers, dtype), dtype)
            if dtype.ml_dtype
            else numbers.astype(dtype.storage)
        )
    return lowest, tuple(float(number) for number in held if number > lowest)


def may_hold_masks(dtype: DType, statistics: Statistics | None) -> bool:
    """Whether a tensor may hold masks. Any infinity counts: statistics do not tell its sign."""
    if dtype.kind is not Kind.FLOAT:
        return False
    return statistics is None or statistics.inf > 0 or _smallest_is_mask(dtype, statistics)


def masks_may_explain(golden: Record, candidate: Record) -> bool:
    """Whether two tensors with statistics only may hold different mask numbers in the same places.

    Masks that are -Inf on both sides count as not finite, and explain no difference."""
    ours, theirs = DTYPES[golden.dtype], DTYPES[candidate.dtype]
    left, right = golden.statistics, candidate.statistics
    if not (
        (left is not None and _smallest_is_mask(ours, left))
        or (right is not None and _smallest_is_mask(theirs, right))
    ):
        return False
    return may_hold_masks(ours, left) and may_hold_masks(theirs, right)


def _smallest_is_mask(dtype: DType, statistics: Statistics) -> bool:
    lowest, others = _lowest(dtype.name)
    return (
        dtype.kind is Kind.FLOAT
        and statistics.min is not None
        and (statistics.min <= lowest or statistics.min in others)
    )


def are_masks_of_two_kinds(golden: Record, candidate: Record) -> bool:
    """Whether two records are a boolean and a floating mask of one mask's shapes."""
    sides = (golden, candidate)
    if any(
        record.dtype not in DTYPES or not record.shape or record.member is None for record in sides
    ):
        return False
    kinds = {DTYPES[record.dtype].kind: record for record in sides}
    return (
        kinds.keys() == {Kind.BOOL, Kind.FLOAT}
        and _is_added(kinds[Kind.FLOAT])
        and _common_shape(golden, candidate) is not None
    )


def _is_added(record: Record) -> bool:
    """Whether a floating tensor may be an added mask: very low somewhere, or zero everywhere."""
    found = record.statistics
    return may_hold_masks(DTYPES[record.dtype], found) or (
        found is not None and not found.nan and (found.min, found.max) == (0, 0)
    )


def _common_shape(golden: Record, candidate: Record) -> tuple[int, ...] | None:
    """The shape both broadcast to; ``None`` if there is none, or it is too large for a mask."""
    if golden.shape == candidate.shape:
        return golden.shape
    try:
        shape = np.broadcast_shapes(golden.shape, candidate.shape)
    except ValueError:
        return None
    return shape if math.prod(shape) <= MOST_BROADCAST else None


@dataclass(frozen=True)
class MaskDifference:
    """What two masks of two kinds let through."""

    elements: int  # the positions of both, broadcast to one shape
    masked: int  # those that neither lets through
    different: int  # those that only one lets through, or where the floating one adds a number


def compare_masks(
    golden_dtype: DType, candidate_dtype: DType, blocks: Iterable[tuple[Array, Array]]
) -> MaskDifference:
    """Compare what a boolean and a floating mask let through.

    Args:
        golden_dtype, candidate_dtype: their true types.
        blocks: both masks' stored bits; one block, in their own shapes, if these differ.
    """
    elements = masked = different = 0
    for golden, candidate in blocks:
        of_booleans, numbers, dtype = (
            (golden, candidate, candidate_dtype)
            if golden_dtype.kind is Kind.BOOL
            else (candidate, golden, golden_dtype)
        )
        values = widen(numbers, dtype)
        through = ~is_masked(values, dtype)
        # a number added to what passes is a difference, too
        apart = (of_booleans != through) | (through & (values != 0))
        elements += apart.size
        masked += int(np.count_nonzero(~(of_booleans | through)))
        different += int(np.count_nonzero(apart))
    return MaskDifference(elements, masked, different)
