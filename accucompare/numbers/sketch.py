"""A linear sketch of a tensor: 256 numbers. Two sketches give an estimate of the norm of their
tensors' difference.

A tensor's values, in order and as float64, are cut into blocks of ROWS x GROUPS. In each block, ::

    group[g]  = sum over rows r of  SIGNS[r, g] * value[block, r, g]
    bucket    = (BUCKETS[t, g] + rotation[block]) mod k,        t = block mod TABLES
    sketch[bucket] += GROUP_SIGNS[t, g] * sign[block] * group[g]

All signs are random and fixed. So the square of each bucket's number has the expectation of the sum
of squares of its elements, and S(a) - S(b) = S(a - b): a sum over ranks, a mean over micro-batches
and a factor can be computed on sketches. The norm of a sketch is the tensor's, to a relative
standard deviation of 1 / sqrt(2 k), 4.4 % for k = 256 (M. Charikar, K. Chen & M. Farach-Colton,
"Finding frequent items in data streams", Theor. Comput. Sci. 312, 2004; N. Alon, Y. Matias & M.
Szegedy, JCSS 58, 1999; the sum over rows before the buckets makes it cheap). GROUPS is prime, so
that no channel, stride or row of a usual length falls into one group.

**What a sketch can lose.** Two wrong elements of the same size cancel if they fall into one bucket
with opposite signs, once in 2 k times. An error at exactly every 1021st element is estimated to
60 % only. A record also holds extrema, norm and digest.

NaN and Inf count as 0 here: a record's statistics count them. Complex values are pairs of reals.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from accucompare.numbers import kernel
from accucompare.numbers.dtypes import Array, DType, Kind, widen
from accucompare.numbers.statistics import Statistics
from accucompare.numbers.sums import Float64, as_reals, power_of_two_near

#: Sketches of two versions of the construction cannot be compared.
SKETCH_VERSION = 1
ROWS, GROUPS, TABLES = 64, 1021, 8
#: Values per block.
SKETCH_BLOCK = ROWS * GROUPS
#: Values per run of a shard, which is mostly zeros if a shard has few of each row.
_RUN = 1 << 21


def sketch_values(
    blocks: Iterable[Array], dtype: DType, size: int, scale: float = 1.0, offset: int = 0
) -> Float64:
    """The sketch of one tensor, or of a run of its values. Returns float64, of shape ``(size,)``;
    the same bits however the values are cut, with the compiled kernel and without.

    Args:
        blocks: its values in order: contiguous arrays of ``dtype.storage`` and any shape, each used
            before the next is taken.
        dtype: its true type.
        size: how many numbers the sketch has.
        scale: a power of two to multiply values by, for tensors whose sums would exceed float64.
        offset: the position of a run's first value in the tensor. The sketches of all runs add up
            to the tensor's.
    """
    found = np.zeros(size)
    each = SKETCH_BLOCK // 2 if dtype.kind is Kind.COMPLEX else SKETCH_BLOCK
    first, before = divmod(offset, each)
    signs, buckets, group_signs = sign_tables(size)
    tables = signs, np.roll(buckets, -first, 0), np.roll(group_signs, -first, 0)
    for part in _cut(
        itertools.chain([_nothing((before,), dtype)] if before else [], blocks), each * TABLES
    ):
        count = -(-part.size // each)
        places = block_places(first, count, size)
        if kernel.can_summarize(dtype):
            kernel.sketch_blocks(part, dtype, scale, tables, places, found)
        else:
            _sketch_blocks(
                as_reals(widen(part, dtype)).astype(np.float64) * scale, *tables, *places, found
            )
        first += count
    return found


def sketch_of(
    raw: Array,
    dtype: DType,
    statistics: Statistics,
    size: int,
    shape: Sequence[int] | None = None,
    start: Sequence[int] = (),
) -> Float64 | None:
    """The sketch of a tensor of any magnitude, or of a shard of one. Returns as ``sketch_values``;
    ``None`` if its numbers would exceed float64. Raises ValueError if the shard does not lie in the
    whole.

    Args:
        raw: contiguous array of ``dtype.storage``, any shape.
        dtype, size: as for ``sketch_values``.
        statistics: of the tensor.
        shape, start: of a shard: the whole tensor's shape, and where the shard begins, per
            dimension. The sketches of shards that make up the whole add up to its own.
    """
    scale = power_near(statistics)
    if shape is None:
        found = sketch_values([raw], dtype, size, scale)
    else:
        found = np.zeros(size)
        for offset, run in runs(raw, dtype, shape, start):
            found += sketch_values([run], dtype, size, scale, offset)
    if scale != 1.0:
        with np.errstate(over="ignore"):
            found = found / scale
    return found if np.isfinite(found).all() else None


def power_near(statistics: Statistics) -> float:
    """The scale for a tensor of these extrema."""
    return power_of_two_near(
        max(abs(float(end or 0.0)) for end in (statistics.min, statistics.max))
    )


def runs(
    raw: Array, dtype: DType, shape: Sequence[int], start: Sequence[int]
) -> Iterator[tuple[int, Array]]:
    """A shard as runs of the whole tensor's values, each with its first position, and zeros between
    the shard's values. Raises ValueError if it does not lie in the whole.

    Args:
        raw: contiguous array; each run is a part of it, or a copy with zeros around it.
        dtype: its true type.
        shape: of the whole.
        start: where in it the shard begins, per dimension.
    """
    inside = all(
        first >= 0 and first + count <= whole
        for first, count, whole in zip(start, raw.shape, shape, strict=False)
    )
    if not (len(raw.shape) == len(shape) == len(start) and inside):
        raise ValueError(
            f"a shard of shape {list(raw.shape)} that begins at {list(start)} does not lie in a"
            f" tensor of {list(shape)}"
        )
    if raw.size:
        yield from _runs(raw, dtype, tuple(shape), tuple(start))


def _runs(
    raw: Array, dtype: DType, shape: tuple[int, ...], start: tuple[int, ...]
) -> Iterator[tuple[int, Array]]:
    row = math.prod(shape[1:])
    offset = start[0] * row if shape else 0
    if raw.shape[1:] == shape[1:]:
        yield offset, raw
    elif row > _RUN:
        for index, each in enumerate(raw):
            yield from (
                (offset + index * row + further, run)
                for further, run in _runs(each, dtype, shape[1:], start[1:])
            )
    else:
        place = tuple(
            slice(first, first + count)
            for first, count in zip(start[1:], raw.shape[1:], strict=True)
        )
        for index in range(0, len(raw), _RUN // row):
            each = raw[index : index + _RUN // row]
            run = _nothing((len(each), *shape[1:]), dtype)
            run[(slice(None), *place)] = each
            yield offset + index * row, run


def _nothing(shape: tuple[int, ...], dtype: DType) -> Array:
    """Values that count as 0: NaN for the one type without a zero."""
    return np.full(shape, 0xFF if dtype.name == "float8_e8m0fnu" else 0, dtype.storage)


def _cut(blocks: Iterable[Array], elements: int) -> Iterator[Array]:
    """The values in 1-d arrays of so many elements; whole arrays are not copied."""
    held, filled = np.empty(0), 0
    for block in blocks:
        flat, at = block.reshape(-1), 0
        while at < flat.size:
            if not filled and flat.size - at >= elements:
                yield flat[at : at + elements]
                at += elements
                continue
            if not held.size:
                held = np.empty(elements, flat.dtype)
            count = min(elements - filled, flat.size - at)
            held[filled : filled + count] = flat[at : at + count]
            filled, at = (filled + count) % elements, at + count
            if not filled:
                yield held
    if filled:
        yield held[:filled]


def distance(one: Float64, other: Float64) -> float:
    """An estimate of the norm of two tensors' difference, from sketches of one size."""
    with np.errstate(over="ignore", invalid="ignore"):
        difference = one - other
    largest = float(np.abs(difference).max(initial=0.0))
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    difference /= largest
    return math.sqrt(float(np.add.reduce(difference * difference))) * largest


class Products(NamedTuple):
    """Estimates for pairs of tensors, from their sketches a and b, with d = b - a."""

    apart: Float64  # squared norm of d
    along: Float64  # inner product of a and d
    length: Float64  # squared norm of a


@np.errstate(all="ignore")
def products(a: Float64, b: Float64) -> Products:
    """The products of pairs of sketches, one per row of both arrays, of shape (n, size)."""
    d = b - a
    return Products(*(np.add.reduce(product, axis=1) for product in (d * d, a * d, a * a)))


@lru_cache
def deviation(size: int) -> float:
    """The relative standard deviation of ``distance``, for sketches of this size."""
    return 1.0 / math.sqrt(2.0 * size)


@np.errstate(all="ignore")
def _sketch_blocks(
    values: Float64,
    signs: NDArray[np.int8],
    buckets: NDArray[np.int32],
    group_signs: NDArray[np.int8],
    rotations: NDArray[np.int32],
    block_signs: NDArray[np.int8],
    found: Float64,
) -> None:
    """``kernel.sketch_blocks`` with NumPy; ``values`` are up to TABLES blocks."""
    if not np.isfinite(values).all():
        values = np.where(np.isfinite(values), values, 0.0)
    for block in range(len(rotations)):
        part = values[block * SKETCH_BLOCK : (block + 1) * SKETCH_BLOCK]
        rows = np.zeros((-(-part.size // GROUPS), GROUPS))
        rows.reshape(-1)[: part.size] = part
        groups = np.zeros(GROUPS)
        # one after the other, as the kernel adds
        for row, row_signs in zip(rows, signs, strict=False):
            groups += row * row_signs
        places = (buckets[block] + rotations[block]) % len(found)
        found += np.bincount(places, groups * group_signs[block] * block_signs[block], len(found))


@lru_cache(maxsize=4)
def sign_tables(size: int) -> tuple[NDArray[np.int8], NDArray[np.int32], NDArray[np.int8]]:
    """SIGNS of shape (ROWS, GROUPS), BUCKETS and GROUP_SIGNS of shape (TABLES, GROUPS)."""
    signs = _sign(random_numbers(1, 0, ROWS * GROUPS)).reshape(ROWS, GROUPS)
    buckets = (
        (random_numbers(2, 0, TABLES * GROUPS) % np.uint64(size))
        .astype(np.int32)
        .reshape(TABLES, GROUPS)
    )
    return signs, buckets, _sign(random_numbers(3, 0, TABLES * GROUPS)).reshape(TABLES, GROUPS)


def block_places(first: int, blocks: int, size: int) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
    """Each block's rotation and sign."""
    return (random_numbers(4, first, blocks) % np.uint64(size)).astype(np.int32), _sign(
        random_numbers(5, first, blocks)
    )


def _sign(random: NDArray[np.uint64]) -> NDArray[np.int8]:
    return (1 - 2 * (random >> np.uint64(63)).astype(np.int8)).astype(np.int8)


def random_numbers(stream: int, first: int, count: int) -> NDArray[np.uint64]:
    """Numbers ``first`` to ``first + count`` of a stream: SplitMix64 (G. L. Steele, D. Lea & C. H.
    Flood, OOPSLA 2014), by counter."""
    state = (
        np.arange(first, first + count, dtype=np.uint64)
        + (np.uint64(stream) << np.uint64(48))
        + np.uint64(1)
    )
    state = state * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
