"""Masks: very low numbers where nothing is to be attended to. Two devices or types may use different ones.

A value is **masked** if it is -Inf, or at most 0.99 times its type's lowest finite number (adding scores to that number changes it
a little), or exactly the lowest finite number of another type, as where a mask made for bfloat16 is used in float32. Positions masked on
both sides are equal. A tensor holds masks only if its smallest value is one, so its statistics tell whether to look.

Masks of two kinds are compared by what they let through. One that is added to scores lets through where it is 0 and not where it is
masked; one of booleans, or of zeros and ones, where it is true.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cache

import numpy as np
from numpy.typing import NDArray

from accucompare.bundle.records import Record
from accucompare.numbers.dtypes import DTYPES, Array, DType, Kind, round_to, widen
from accucompare.numbers.statistics import Statistics

#: The types whose lowest number is used as a mask. An fp8 type's lowest number is an ordinary value in other types.
_USED = ("float64", "float32", "bfloat16", "float16")
_NEAR = 0.99

#: Masks of different shapes are broadcast, and read whole, up to so many elements.
MOST_BROADCAST = 16 << 20


class Form(str, Enum):
    """How a mask says what is attended to."""

    TRUE = "true where something is let through"
    ADDED = "0 where something is let through, and very low elsewhere"


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


def are_masks_of_two_kinds(golden: Record, candidate: Record) -> bool:
    """Whether two records are masks of two kinds, such as a boolean and a floating one, whose shapes are those of one mask."""
    sides = (golden, candidate)
    if any(record.dtype not in DTYPES or not record.shape or record.member is None for record in sides):
        return False
    kinds = {DTYPES[record.dtype].kind for record in sides}
    return len(kinds) == 2 and all(_form(record) is not None for record in sides) and _common_shape(golden, candidate) is not None


def _form(record: Record) -> Form | None:
    """How a mask of this record would say what is attended to; ``None`` if it is none."""
    dtype, found = DTYPES[record.dtype], record.statistics
    if dtype.kind is Kind.BOOL:
        return Form.TRUE
    if found is None or dtype.kind not in (Kind.FLOAT, Kind.INT):
        return None
    if may_hold_masks(dtype, found) or (dtype.kind is Kind.FLOAT and (found.min, found.max) == (0, 0)):
        return Form.ADDED
    return Form.TRUE if (found.min, found.max) in ((0, 1), (1, 1)) else None


def _common_shape(golden: Record, candidate: Record) -> tuple[int, ...] | None:
    """The shape that both fill when they are broadcast; ``None`` if there is none, or it is too large to be a mask."""
    if golden.shape == candidate.shape:
        return golden.shape
    try:
        shape = np.broadcast_shapes(golden.shape, candidate.shape)
    except ValueError:
        return None
    return shape if math.prod(shape) <= MOST_BROADCAST else None


@dataclass(frozen=True)
class MaskDifference:
    """What two masks of two kinds let through.

    Attributes:
        elements: the positions of both, broadcast to one shape.
        masked: those that neither lets through.
        different: those that one alone lets through, or to which a floating mask adds a number of its own.
    """

    elements: int
    masked: int
    different: int


def compare_masks(golden: Record, candidate: Record, blocks: Iterable[tuple[Array, Array]]) -> MaskDifference | None:
    """Compare what two masks of two kinds let through; ``None`` if one of them turns out to be no mask.

    Args:
        golden, candidate: of which ``are_masks_of_two_kinds`` holds.
        blocks: of the stored bits of both; of masks of different shapes one block, in these shapes.
    """
    elements = masked = different = 0
    forms = _form(golden), _form(candidate)
    dtypes = DTYPES[golden.dtype], DTYPES[candidate.dtype]
    for raw in blocks:
        sides = [_let_through(each, dtype, form) for each, dtype, form in zip(raw, dtypes, forms, strict=True)]
        if sides[0] is None or sides[1] is None:
            return None
        through, added = zip(*sides, strict=True)
        apart = np.logical_xor(*through) | (through[0] & through[1] & np.logical_or(*added))
        elements += apart.size
        masked += int(np.count_nonzero(~(through[0] | through[1])))
        different += int(np.count_nonzero(apart))
    return MaskDifference(elements, masked, different)


def _let_through(raw: Array, dtype: DType, form: Form | None) -> tuple[NDArray[np.bool_], NDArray[np.bool_]] | None:
    """Where a mask lets something through, and where it adds a number to it; ``None`` if it is no mask."""
    values = widen(raw, dtype)
    if form is Form.ADDED:
        through = ~is_masked(values, dtype)
        return through, through & (values != 0)
    if dtype.kind is not Kind.BOOL and not ((values == 0) | (values == 1)).all():
        return None
    return values != 0, np.zeros(values.shape, np.bool_)
