"""Values of two shapes that agree once the smaller is broadcast.

A refactoring may leave it to an addition to repeat a bias for each sample. The smaller one's
gradient is then the larger one's sum. Only values between modules are compared so: what the whole
model takes and returns must have golden's shape."""

from __future__ import annotations

import math

import numpy as np

from accucompare.bundle.format import Layout, Record, Role
from accucompare.compare.measuring.blocks import Blocks
from accucompare.compare.measuring.masks import MOST_BROADCAST, may_hold_masks
from accucompare.compare.measuring.measure import Metrics, measure_pair
from accucompare.numbers import DTYPES, Array, Kind, widen

_GRADIENTS = (Role.GRAD_INPUT, Role.GRAD_OUTPUT)


def is_broadcast(golden: Record, candidate: Record) -> bool:
    """Whether two modules exchange a value that one side broadcasts."""
    if golden.role not in (Role.INPUT, Role.OUTPUT, *_GRADIENTS) or None in (
        golden.parent,
        candidate.parent,
    ):
        return False
    sides = (golden, candidate)
    if any(
        each.layout is not Layout.STRIDED or each.member is None or each.shard is not None
        for each in sides
    ):
        return False
    kinds = {DTYPES[each.dtype].kind for each in sides}
    shapes = golden.shape, candidate.shape
    larger, smaller = sorted(shapes, key=math.prod, reverse=True)
    if (
        len(kinds) > 1
        or kinds == {Kind.COMPLEX}
        or not smaller
        or math.prod(larger) > MOST_BROADCAST
    ):
        return False
    try:
        return shapes[0] != shapes[1] and np.broadcast_shapes(*shapes) == larger
    except ValueError:
        return False


def measure_broadcast(
    golden: Blocks,
    candidate: Blocks,
    records: tuple[Record, Record],
    atol: float | None,
    rtol: float | None,
) -> Metrics:
    """Measure records with ``is_broadcast`` in the larger shape; gradients as sums, in the smaller.

    Args:
        golden, candidate: the two tensors' stored bits.
        atol, rtol: as for ``measure_pair``.
    """
    stored = [
        np.concatenate(list(side(0, math.prod(record.shape)))).reshape(record.shape)
        for side, record in zip((golden, candidate), records, strict=True)
    ]
    dtypes = [DTYPES[record.dtype] for record in records]
    if records[0].role in _GRADIENTS:
        smaller = min((record.shape for record in records), key=math.prod)
        stored = [
            _summed(np.asarray(widen(raw, dtype), np.float64), smaller)
            for raw, dtype in zip(stored, dtypes, strict=True)
        ]
        dtypes = [DTYPES["float64"]] * 2
    shape = np.broadcast_shapes(*(raw.shape for raw in stored))
    masks = all(
        may_hold_masks(dtype, record.statistics)
        for dtype, record in zip(dtypes, records, strict=True)
    )
    sides = [_blocks(np.broadcast_to(raw, shape).reshape(-1)) for raw in stored]
    return measure_pair(
        sides[0], sides[1], (dtypes[0], dtypes[1]), shape, atol=atol, rtol=rtol, masks=masks
    )


def _summed(values: Array, shape: tuple[int, ...]) -> Array:
    """Values summed over the axes along which ``shape`` is broadcast."""
    padded = (1,) * (values.ndim - len(shape)) + shape
    axes = tuple(axis for axis, size in enumerate(padded) if size != values.shape[axis])
    summed: Array = values.sum(axes, keepdims=True).reshape(shape)
    return summed


def _blocks(values: Array) -> Blocks:
    contiguous = np.ascontiguousarray(values)
    return lambda first, last: iter([contiguous[first:last]])
