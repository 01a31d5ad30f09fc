"""Masks: very low numbers where nothing is to be attended to. Two devices or types may use different ones.

A value is **masked** if it is -Inf, or at most 0.99 times its type's lowest finite number (adding scores to that number changes it
a little), or exactly the lowest finite number of another type, as where a mask made for bfloat16 is used in float32. Positions masked on
both sides are equal. A tensor holds masks only if its smallest value is one, so its statistics tell whether to look.

A boolean mask says the same as a floating one if it is true where that is 0, and false where that is masked.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from accucompare.bundle.records import Record
from accucompare.numbers.dtypes import DTYPES, Array, DType, Kind, round_to, widen
from accucompare.numbers.statistics import Statistics

#: The types whose lowest number is used as a mask. An fp8 type's lowest number is an ordinary value in other types.
_USED = ("float64", "float32", "bfloat16", "float16")
_NEAR = 0.99


def is_masked(values: Array, dtype: DType) -> NDArray[np.bool_]:
    """Where values are masked.

    Args:
        values: of any shape, widened.
        dtype: their true type.
    """
    lowest, others = _lowest(dtype.name)
    masked: NDArray[np.bool_] = values <= np.float64(lowest)  # a plain float would be rounded to the values' type
    for other in others:
        masked |= values == np.float64(other)
    return masked


@cache
def _lowest(name: str) -> tuple[float, tuple[float, ...]]:
    """The number at and below which a type's values are masked, and the higher numbers that are another type's masks."""
    if name not in _USED:
        return -math.inf, ()
    dtype = DTYPES[name]
    lowest = -_NEAR * dtype.largest
    numbers = np.array([-DTYPES[name].largest for name in _USED])
    with np.errstate(over="ignore"):
        held = widen(round_to(numbers, dtype), dtype) if dtype.ml_dtype else numbers.astype(dtype.storage)
    return lowest, tuple(float(number) for number in held if number > lowest)


def may_hold_masks(dtype: DType, statistics: Statistics | None) -> bool:
    """Whether a tensor may hold masks. Statistics do not tell the sign of an infinity, so any infinity counts."""
    if dtype.kind is not Kind.FLOAT:
        return False
    return statistics is None or statistics.inf > 0 or _smallest_is_mask(dtype, statistics)


def masks_may_explain(golden: Record, candidate: Record) -> bool:
    """Whether two tensors known only by their statistics may hold different mask numbers in the same places.

    If the only masks are -Inf on both sides, they are counted as values that are not finite, and explain no difference.
    """
    ours, theirs = DTYPES[golden.dtype], DTYPES[candidate.dtype]
    left, right = golden.statistics, candidate.statistics
    if not ((left is not None and _smallest_is_mask(ours, left)) or (right is not None and _smallest_is_mask(theirs, right))):
        return False
    return may_hold_masks(ours, left) and may_hold_masks(theirs, right)


def _smallest_is_mask(dtype: DType, statistics: Statistics) -> bool:
    lowest, others = _lowest(dtype.name)
    return dtype.kind is Kind.FLOAT and statistics.min is not None and (statistics.min <= lowest or statistics.min in others)


def may_say_the_same(golden: Record, candidate: Record) -> bool:
    """Whether two records are a boolean and a floating tensor of one shape, which may be masks that say the same."""
    sides = (golden, candidate)
    if golden.shape != candidate.shape or not golden.shape or any(record.member is None for record in sides):
        return False
    return {DTYPES[record.dtype].kind for record in sides} == {Kind.BOOL, Kind.FLOAT}


def same_masks(golden: Array, candidate: Array, golden_dtype: DType, candidate_dtype: DType) -> int | None:
    """How many positions a boolean and a floating mask both mask; ``None`` if they do not say the same, or one is no mask.

    Args:
        golden, candidate: stored bits of one shape.
        golden_dtype, candidate_dtype: their true types, one of them bool, the other floating.
    """
    attended, numbers, dtype = (golden, candidate, candidate_dtype) if golden_dtype.kind is Kind.BOOL else (candidate, golden, golden_dtype)
    values = widen(numbers, dtype)
    masked = is_masked(values, dtype)
    same = np.array_equal(attended, ~masked) and not values[~masked].any()
    return int(np.count_nonzero(masked)) if same else None
