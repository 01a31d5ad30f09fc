"""A tensor's sketch, statistics and digest, computed on its device: only some KiB go to the host.

The sketch is that of ``numbers.sketch``, so it can be compared with sketches made on the host. Sums
are in float64. A device that cannot do that, or does it slowly, sums in float32 and sketches half
types only; mean, norm and sketch are then wrong by up to ROUNDING.

**The digest** is two sums, modulo 2^64, of the tensor's words of 16 or 32 bits times fixed odd
random numbers of 64 bits. Equal tensors have equal digests on every device. Tensors that differ in
one word have different digests; of other pairs at most one in 2^64 has equal ones (one in 2^32 for
each sum, where words differ in their highest bit only; J. L. Carter & M. N. Wegman, "Universal
classes of hash functions", J. Comput. Syst. Sci. 18, 1979). It begins with ``device:``, and cannot
be compared with digests of bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch

from accucompare.bundle.format import DEVICE_DIGEST
from accucompare.bundle.writing import Sketched
from accucompare.numbers import (
    GROUPS,
    ROWS,
    SKETCH_BLOCK,
    TABLES,
    Array,
    Statistics,
    block_places,
    random_numbers,
    sign_tables,
)

#: What a device can sketch, by the type in which it sums (``devices.cpu.Cpu.SKETCHES_IN``).
_SUMMED = {
    "float64": (torch.float64, torch.float32, torch.bfloat16, torch.float16),
    "float32": (torch.bfloat16, torch.float16),
}
#: Error of float32 sums relative to magnitudes: some 100 values in sequence, then all runs' sums.
_ROUNDING = 2.0 * ROWS * 2.0**-24
#: Values processed at a time: some 70 MB of the device's memory in float64.
_RUN = 4 * TABLES * SKETCH_BLOCK
#: Magnitudes whose squares neither overflow nor vanish in a type; others are scaled.
_PLAIN = {torch.float64: 2.0**480, torch.float32: 2.0**40}
_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int32}


def can_sketch(tensor: torch.Tensor, summed_in: str | None) -> bool:
    """Whether a device that sums in this type (``None``: in none) sketches this dtype."""
    return summed_in is not None and tensor.dtype in _SUMMED[summed_in]


@torch.no_grad()
def begin_sketch(
    tensor: torch.Tensor, size: int, summed_in: str, run: int = _RUN
) -> tuple[torch.Tensor, Callable[[Array], Sketched]]:
    """Start the device's computation. Returns bytes on the device, of shape (n,), and a function
    that reads their copy on the host.

    Args:
        tensor: not empty, of any shape, that it ``can_sketch``.
        size: of the sketch.
        summed_in: the type in which the device sums.
        run: how many values at a time, a multiple of SKETCH_BLOCK.
    """
    wide, values = getattr(torch, summed_in), tensor.detach().reshape(-1)
    parts = [values[start : start + run] for start in range(0, len(values), run)]
    ends, counts = zip(*map(_ends, parts), strict=True)
    low, high = (torch.stack([each[end] for each in ends]).to(wide) for end in (0, 1))
    low, high = low.amin(), high.amax()
    largest = torch.maximum(low.abs(), high.abs())
    plain = torch.logical_and(largest > 1 / _PLAIN[wide], largest < _PLAIN[wide])
    one = torch.ones_like(largest)
    # beyond these, the inverse overflows or is subnormal, which some devices flush to zero
    known = torch.finfo(wide)
    scale = torch.where(
        plain | (largest == 0) | ~largest.isfinite(),
        one,
        one / largest.clamp(known.tiny * 16, known.max / 16),
    )
    sketches, sums, digests = [], [], []
    for number, part in enumerate(parts):
        first = number * run // SKETCH_BLOCK
        sketch, own = _sums(part, scale, first, size)
        sketches.append(sketch)
        sums.append(own)
        digests.append(_digest(part, first))
    numbers = torch.cat(
        [torch.stack(sketches).sum(0), torch.stack(sums).sum(0), torch.stack([scale, low, high])]
    )
    integers = torch.cat([torch.stack(counts).sum(0), torch.stack(digests).sum(0)])

    def made(packed: Array) -> Sketched:
        return _made(packed, size, summed_in, values.numel())

    return torch.cat([numbers.view(torch.uint8), integers.view(torch.uint8)]), made


def _ends(part: torch.Tensor) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The extrema of the finite values (inf, -inf if there are none), and counts of NaN and Inf."""
    finite = part.isfinite()
    nothing = torch.full((), math.inf, dtype=part.dtype, device=part.device)
    low = torch.where(finite, part, nothing).amin()
    high = torch.where(finite, part, -nothing).amax()
    return (low, high), torch.stack([part.isnan().sum(), part.isinf().sum()])


def _sums(
    part: torch.Tensor, scale: torch.Tensor, first: int, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sketch, sum and sum of squares of a run, whose first block has the number ``first``."""
    blocks = -(-len(part) // SKETCH_BLOCK)
    values = torch.zeros(blocks * SKETCH_BLOCK, dtype=scale.dtype, device=part.device)
    values[: len(part)] = (
        torch.where(part.isfinite(), part, torch.zeros_like(part)).to(scale.dtype) * scale
    )
    values = values.view(blocks, ROWS, GROUPS)
    sums = torch.stack([values.sum(1).sum(), (values * values).sum(1).sum()])
    signs, buckets, group_signs = _tables(size, str(part.device), scale.dtype)
    rotations, block_signs = _places(first, blocks, size, str(part.device), scale.dtype)
    table = torch.arange(first, first + blocks, device=part.device) % TABLES
    groups = (values * signs).sum(1) * group_signs[table] * block_signs[:, None]
    sketch = torch.zeros(size, dtype=scale.dtype, device=part.device)
    sketch.index_add_(0, ((buckets[table] + rotations[:, None]) % size).view(-1), groups.view(-1))
    return sketch, sums


def _digest(part: torch.Tensor, first: int) -> torch.Tensor:
    """The two sums of a run, of shape (2,)."""
    words = part.contiguous().view(_WORDS[part.element_size()]).to(torch.int64)
    each = SKETCH_BLOCK * (len(words) // len(part))
    blocks = -(-len(part) // SKETCH_BLOCK)
    padded = torch.zeros(blocks * each, dtype=torch.int64, device=part.device)
    padded[: len(words)] = words
    keys, factors = _keys(each, str(part.device)), _factors(first, blocks, str(part.device))
    return torch.stack(
        [((padded.view(blocks, each) * keys[lane]).sum(1) * factors[lane]).sum() for lane in (0, 1)]
    )


def _made(packed: Array, size: int, summed_in: str, count: int) -> Sketched:
    """Read the bytes of ``begin_sketch``, for a tensor of ``count`` values."""
    end = (size + 5) * np.dtype(summed_in).itemsize
    numbers = packed[:end].view(summed_in).astype(np.float64)
    nan, inf, *sums = packed[end:].view(np.int64).tolist()
    total, squares, scale, low, high = numbers[size:].tolist()
    digest = DEVICE_DIGEST + "".join(f"{each % 2**64:016x}" for each in sums)
    rounding = _ROUNDING if summed_in == "float32" else 0.0
    if low > high:
        return Sketched(digest, Statistics(None, None, None, 0.0, nan, inf), np.zeros(size))
    l2 = math.sqrt(squares) / scale
    with np.errstate(over="ignore"):
        sketch = numbers[:size] / scale
    statistics = Statistics(
        low,
        high,
        total / (count - nan - inf) / scale,
        l2 if math.isfinite(l2) else None,
        nan,
        inf,
        rounding,
    )
    return Sketched(digest, statistics, sketch if np.isfinite(sketch).all() else None)


@lru_cache(maxsize=8)
def _tables(
    size: int, device: str, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """SIGNS, BUCKETS and GROUP_SIGNS of ``numbers.sketch``, on the device."""
    signs, buckets, group_signs = sign_tables(size)
    return (
        _on(signs, device, dtype),
        _on(buckets, device, torch.int64),
        _on(group_signs, device, dtype),
    )


@lru_cache(maxsize=64)
def _places(
    first: int, blocks: int, size: int, device: str, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rotations and signs of some blocks, on the device."""
    rotations, signs = block_places(first, blocks, size)
    return _on(rotations, device, torch.int64), _on(signs, device, dtype)


@lru_cache(maxsize=8)
def _keys(words: int, device: str) -> torch.Tensor:
    """The random number of each word of a block, for both sums: of shape (2, words)."""
    return _on(
        random_numbers(6, 0, 2 * words).view(np.int64).reshape(2, words) | 1, device, torch.int64
    )


@lru_cache(maxsize=64)
def _factors(first: int, blocks: int, device: str) -> torch.Tensor:
    """The factors of each block's random numbers, for both sums: of shape (2, blocks)."""
    found = [random_numbers(stream, first, blocks).view(np.int64) | 1 for stream in (7, 8)]
    return _on(np.stack(found), device, torch.int64)


def _on(array: Array, device: str, dtype: torch.dtype) -> torch.Tensor:
    with torch.inference_mode(False):  # it is cached, and used outside of that mode, too
        return torch.from_numpy(array.copy()).to(dtype).to(device)
