"""The metrics of a pair of tensors, block by block, in float64.

Sums are taken as ``accucompare.bundle.sums`` describes, so no result depends on the block size. Values are widened to float64
first, which is exact for every type but 64-bit integers, whose differences are taken in integers. Complex tensors are
compared as pairs of reals. Positions that are not finite on both sides are counted, judged, and left out of every sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from accucompare.bundle.dtypes import Array, DType, Kind, widen
from accucompare.bundle.sums import Float64, as_reals, chunk_dots, chunk_sums, power_of_two_near

#: Yields a tensor's stored bits as 1-d blocks of ``BLOCK`` elements (the last one shorter); may be called again.
Blocks = Callable[[], Iterator[Array]]


@dataclass(frozen=True, slots=True)
class Metrics:
    """What was measured of a pair; d = candidate - golden, n = positions finite on both sides.

    Attributes:
        elements: positions in the tensor (twice the elements of a complex one).
        compared: n.
        rel_l2: sqrt(sum d^2) / sqrt(sum golden^2); 0 for 0/0, inf for x/0.
        one_minus_cosine: 1 - cosine similarity, right down to 1e-15; 0 if both are zero, 1 if one is.
        max_abs: max |d|.
        max_abs_index: where, as an index into the tensor (complex: a last 0 or 1 for the real or imaginary part);
            ``None`` where there is no difference.
        golden_at_max, candidate_at_max: both values there.
        max_rel: max |d| / |golden|; 0 for 0/0, inf for x/0.
        mean_abs: mean |d|.
        rmse: sqrt(mean d^2).
        bias: mean d.
        max_ulp: largest distance in units in the last place; ``None`` unless both are of one floating type.
        over_tolerance: share of n with |d| > atol + rtol * |golden|; ``None`` where neither was asked for.
        tolerance_used: max |d| / (atol + rtol * |golden|); 0 for 0/0; ``None`` likewise.
        needed_atol: the smallest atol that would pass, given rtol; ``None`` likewise.
        over_1e3, over_5e3: shares of n with |d| > 1e-3 and 5e-3 times |golden|.
        golden_nan, candidate_nan, golden_inf, candidate_inf: how many values are NaN, and +Inf or -Inf.
        nonfinite_mismatch: positions not finite on a side where the other holds something else.
        saturated: positions where the candidate sits at its type's largest value and golden is beyond it.
    """

    elements: int = 0
    compared: int = 0
    rel_l2: float = 0.0
    one_minus_cosine: float = 0.0
    max_abs: float = 0.0
    max_abs_index: tuple[int, ...] | None = None
    golden_at_max: float | None = None
    candidate_at_max: float | None = None
    max_rel: float = 0.0
    mean_abs: float = 0.0
    rmse: float = 0.0
    bias: float = 0.0
    max_ulp: int | None = None
    over_tolerance: float | None = None
    tolerance_used: float | None = None
    needed_atol: float | None = None
    over_1e3: float = 0.0
    over_5e3: float = 0.0
    golden_nan: int = 0
    candidate_nan: int = 0
    golden_inf: int = 0
    candidate_inf: int = 0
    nonfinite_mismatch: int = 0
    saturated: int = 0


def measure(
    golden: Blocks,
    candidate: Blocks,
    golden_dtype: DType,
    candidate_dtype: DType,
    shape: tuple[int, ...],
    *,
    atol: float | None = None,
    rtol: float | None = None,
) -> Metrics:
    """Measure a pair of tensors of one shape and kind.

    Args:
        golden, candidate: the two tensors' stored bits.
        golden_dtype, candidate_dtype: their true types, both of one kind.
        shape: of both.
        atol, rtol: for ``over_tolerance`` and ``needed_atol``; one given alone takes the other as 0.

    Raises:
        ValueError: if the two kinds differ.
    """
    if golden_dtype.kind is not candidate_dtype.kind:
        raise ValueError(f"{golden_dtype.name} and {candidate_dtype.name} are numbers of different kinds")
    pair = _Pair(golden, candidate, golden_dtype, candidate_dtype)
    scan = _Scan(atol, rtol)
    sums = _Sums()
    with np.errstate(all="ignore"):
        for block in pair.blocks():
            scan.add(block, pair)
            sums.add(block, pair)
        scale, diff_scale = _scale(scan)
        if (scale, diff_scale) != (1.0, 1.0):
            sums = _Sums(scale, diff_scale)
            for block in pair.blocks():
                sums.add(block, pair)
        total = sums.total()
        one_minus_cosine = _one_minus_cosine(total, pair)
    return _metrics(scan, total, one_minus_cosine, (*shape, 2) if golden_dtype.kind is Kind.COMPLEX else shape)


@dataclass(slots=True)
class _Block:
    """A stretch of both tensors: stored bits, and float64 values with what is not finite set to 0."""

    start: int
    golden_raw: Array
    candidate_raw: Array
    golden: Float64
    candidate: Float64
    diff: Float64
    finite: NDArray[np.bool_] | None = None  # None: everything is


class _Pair:
    """Walks two tensors in step, widening into scratch memory that is used again for every block."""

    def __init__(self, golden: Blocks, candidate: Blocks, golden_dtype: DType, candidate_dtype: DType) -> None:
        self._golden = golden
        self._candidate = candidate
        self.golden_dtype = golden_dtype
        self.candidate_dtype = candidate_dtype
        self._scratch = [np.empty(0), np.empty(0), np.empty(0), np.empty(0), np.empty(0)]

    def scratch(self, which: int, length: int) -> Float64:
        """The first ``length`` elements of one of five float64 arrays: 0 to 2 are the block's, 3 and 4 free."""
        if len(self._scratch[which]) < length:
            self._scratch[which] = np.empty(length)
        return self._scratch[which][:length]

    def blocks(self) -> Iterator[_Block]:
        """Every block, ``diff`` computed, values that are not finite on both sides set to 0 in all three."""
        start = 0
        for golden_raw, candidate_raw in zip(self._golden(), self._candidate(), strict=True):
            golden_values = as_reals(widen(golden_raw, self.golden_dtype))
            candidate_values = as_reals(widen(candidate_raw, self.candidate_dtype))
            length = len(golden_values)
            scratch = (self.scratch(0, length), self.scratch(1, length), self.scratch(2, length))
            block = _Block(start, golden_raw, candidate_raw, *scratch)
            np.copyto(block.golden, golden_values)
            np.copyto(block.candidate, candidate_values)
            if golden_values.dtype.kind in "iu" and max(golden_values.dtype.itemsize, candidate_values.dtype.itemsize) == 8:
                block.diff[:] = _integer_difference(golden_values, candidate_values)
            else:
                np.subtract(block.candidate, block.golden, out=block.diff)
                if golden_values.dtype.kind == "f" and not math.isfinite(float(np.add.reduce(block.diff))):
                    self._set_aside_nonfinite(block)
            yield block
            start += length

    def _set_aside_nonfinite(self, block: _Block) -> None:
        finite = np.isfinite(block.golden) & np.isfinite(block.candidate)
        if not finite.all():
            block.finite = finite
            block.golden[~finite] = 0.0
            block.candidate[~finite] = 0.0
            np.subtract(block.candidate, block.golden, out=block.diff)


def _integer_difference(golden: Array, candidate: Array) -> Float64:
    """candidate - golden of 64-bit integers, rounded once: subtracted as integers, never as rounded float64 values."""
    if golden.dtype.kind != candidate.dtype.kind:  # int64 against uint64: split off the negative values
        signed, unsigned, sign = (golden, candidate, 1.0) if golden.dtype.kind == "i" else (candidate, golden, -1.0)
        negative = signed < 0
        plain = _integer_difference(np.where(negative, 0, signed).astype(np.uint64), unsigned.astype(np.uint64))
        return sign * np.where(negative, unsigned.astype(np.float64) - signed.astype(np.float64), plain)
    wide = np.int64 if golden.dtype.kind == "i" else np.uint64
    golden, candidate = golden.astype(wide), candidate.astype(wide)
    larger = candidate >= golden  # modulo 2**64 the larger minus the smaller is always right
    up = (candidate.view(np.uint64) - golden.view(np.uint64)).astype(np.float64)
    down = (golden.view(np.uint64) - candidate.view(np.uint64)).astype(np.float64)
    return np.where(larger, up, -down)


@dataclass(frozen=True)
class _Totals:
    """What the sums come to. Norms are of values times ``scale``, so that they are never subnormal and never overflow."""

    scale: float
    golden: float  # scaled L2 norm
    candidate: float  # scaled L2 norm
    diff: float  # scaled L2 norm of d
    radial: float  # scaled candidate norm - golden norm, without cancellation
    absolute: float  # sum |d|, true size
    signed: float  # sum d, true size


@dataclass
class _Sums:
    """Chunk sums of golden^2, candidate^2, d^2, d * (golden + candidate), |d| and d, with values scaled by powers of two."""

    scale: float = 1.0  # of golden and candidate
    diff_scale: float = 1.0  # of d, on top of that
    chunks: tuple[list[float], ...] = field(default_factory=lambda: ([], [], [], [], [], []))

    def add(self, block: _Block, pair: _Pair) -> None:
        golden, candidate, diff = block.golden, block.candidate, block.diff
        if self.scale != 1.0 or self.diff_scale != 1.0:
            golden, candidate = golden * self.scale, candidate * self.scale
            diff = (candidate - golden) * self.diff_scale
        free = pair.scratch(3, len(diff))
        self.chunks[0].extend(chunk_dots(golden, golden))
        self.chunks[1].extend(chunk_dots(candidate, candidate))
        self.chunks[2].extend(chunk_dots(diff, diff))
        self.chunks[3].extend(chunk_dots(diff, np.add(golden, candidate, out=free)))
        self.chunks[4].extend(chunk_sums(np.abs(diff, out=free)))
        self.chunks[5].extend(chunk_sums(diff))

    def total(self) -> _Totals:
        golden, candidate, diff, cross, absolute, signed = (_exact_sum(chunks) for chunks in self.chunks)
        golden, candidate, diff = math.sqrt(golden), math.sqrt(candidate), math.sqrt(diff) / self.diff_scale
        both = golden + candidate
        radial = cross / self.diff_scale / both if both else 0.0  # d * (golden + candidate) = candidate^2 - golden^2
        true = self.scale * self.diff_scale
        return _Totals(self.scale, golden, candidate, diff, radial, absolute / true, signed / true)


def _exact_sum(chunks: list[float]) -> float:
    try:
        return math.fsum(chunks)
    except (OverflowError, ValueError):  # beyond float64; a scaled pass follows
        return math.inf


@dataclass
class _Scan:
    """Extrema and counts over all blocks."""

    atol: float | None
    rtol: float | None
    compared: int = 0
    max_abs: float = 0.0
    max_abs_index: int | None = None
    golden_at_max: float | None = None
    candidate_at_max: float | None = None
    max_rel: float = 0.0
    max_ulp: int | None = None
    over_tolerance: int = 0
    tolerance_used: float = 0.0
    needed_atol: float = 0.0
    over_1e3: int = 0
    over_5e3: int = 0
    golden_nan: int = 0
    candidate_nan: int = 0
    golden_inf: int = 0
    candidate_inf: int = 0
    nonfinite_mismatch: int = 0
    saturated: int = 0
    elements: int = 0
    largest: float = 0.0  # |golden| or |candidate|; looked for in float64 tensors only

    def add(self, block: _Block, pair: _Pair) -> None:
        length = len(block.diff)
        self.elements += length
        self.compared += length if block.finite is None else int(np.count_nonzero(block.finite))
        if block.finite is not None:
            self._count_nonfinite(block, pair)
        magnitude = np.abs(block.diff, out=pair.scratch(3, length))
        golden = np.abs(block.golden, out=pair.scratch(4, length))
        if pair.golden_dtype.digits == 53 or pair.candidate_dtype.digits == 53:
            self.largest = max(self.largest, float(golden.max()), float(np.abs(block.candidate).max()))
        if pair.candidate_dtype.largest < pair.golden_dtype.largest and block.finite is None:
            self._count_saturated(golden, block.candidate, pair)
        most = float(magnitude.max())
        if most > self.max_abs:
            place = int(magnitude.argmax())
            self.max_abs, self.max_abs_index = most, block.start + place
            self.golden_at_max, self.candidate_at_max = float(block.golden[place]), float(block.candidate[place])
        if most > 0.0:
            self._compare_with_golden(magnitude, golden)
        if pair.golden_dtype is pair.candidate_dtype and pair.golden_dtype.digits:
            distance = _ulps(block.golden_raw, block.candidate_raw, pair.golden_dtype, block.finite) if most > 0.0 else 0
            self.max_ulp = max(self.max_ulp or 0, distance)

    def _compare_with_golden(self, magnitude: Float64, golden: Float64) -> None:
        if (self.atol, self.rtol) != (None, None):
            rtol = self.rtol or 0.0
            allowed = (self.atol or 0.0) + rtol * golden
            self.over_tolerance += int(np.count_nonzero(magnitude > allowed))
            self.needed_atol = max(self.needed_atol, float((magnitude - rtol * golden).max()))
            self.tolerance_used = max(self.tolerance_used, _largest(np.divide(magnitude, allowed, out=allowed)))
        relative = np.divide(magnitude, golden, out=magnitude)
        self.max_rel = max(self.max_rel, _largest(relative))
        self.over_1e3 += int(np.count_nonzero(relative > 1e-3))
        self.over_5e3 += int(np.count_nonzero(relative > 5e-3))

    def _count_nonfinite(self, block: _Block, pair: _Pair) -> None:
        golden = as_reals(widen(block.golden_raw, pair.golden_dtype))
        candidate = as_reals(widen(block.candidate_raw, pair.candidate_dtype))
        golden_nan, candidate_nan = np.isnan(golden), np.isnan(candidate)
        self.golden_nan += int(np.count_nonzero(golden_nan))
        self.candidate_nan += int(np.count_nonzero(candidate_nan))
        self.golden_inf += int(np.count_nonzero(np.isinf(golden)))
        self.candidate_inf += int(np.count_nonzero(np.isinf(candidate)))
        agree = (golden_nan & candidate_nan) | (golden == candidate)
        self.nonfinite_mismatch += int(np.count_nonzero(~agree & ~block.finite))  # type: ignore[operator]
        if pair.candidate_dtype.largest < pair.golden_dtype.largest:
            self._count_saturated(np.abs(golden), candidate, pair)

    def _count_saturated(self, golden: Array, candidate: Array, pair: _Pair) -> None:
        limit = pair.candidate_dtype.largest
        beyond = golden > limit
        if beyond.any():
            self.saturated += int(np.count_nonzero(beyond & (np.abs(candidate) == limit)))


def _largest(ratios: Float64) -> float:
    """The maximum of ratios of numbers that are not negative; 0/0 is set to 0 in place."""
    most = float(ratios.max())
    if math.isnan(most):
        ratios[np.isnan(ratios)] = 0.0
        most = float(ratios.max())
    return most


def _ulps(golden: Array, candidate: Array, dtype: DType, finite: NDArray[np.bool_] | None) -> int:
    """The largest distance in units in the last place between finite values of one floating type.

    The bits of IEEE numbers of one sign are ordered as the numbers are, so the distance is a difference of integers (B. Dawson,
    "Comparing floating point numbers", 2012); -0 and +0 are the same number.
    """
    width = {53: 8, 24: 4, 11: 2}.get(dtype.digits, golden.dtype.itemsize)
    golden_bits, candidate_bits = golden.view(f"i{width}"), candidate.view(f"i{width}")
    if finite is not None:
        golden_bits, candidate_bits = golden_bits[finite], candidate_bits[finite]
        if not golden_bits.size:
            return 0
    if not dtype.signed:
        return int(np.abs(golden_bits.view("u1").astype(np.int64) - candidate_bits.view("u1")).max())
    apart = np.bitwise_xor(golden_bits, candidate_bits)
    if apart.min() >= 0:  # every pair has one sign
        difference = np.subtract(golden_bits, candidate_bits, out=apart)
        return max(int(difference.max()), -int(difference.min()))
    across = apart < 0
    magnitude = ~np.array(-1 << (8 * width - 1), golden_bits.dtype)
    golden_bits, candidate_bits = golden_bits & magnitude, candidate_bits & magnitude
    beside = np.subtract(golden_bits, candidate_bits)[~across]
    distance = golden_bits[across].astype(np.uint64) + candidate_bits[across].astype(np.uint64)  # at most 2**64 - 2
    return max(int(distance.max()), int(beside.max(initial=0)), -int(beside.min(initial=0)))


def _scale(scan: _Scan) -> tuple[float, float]:
    """The powers of two that values and differences must be scaled by for their squares to fit float64; (1, 1) almost always."""
    values = power_of_two_near(scan.largest)
    if values == 1.0 and (scan.max_abs > 1e-120 or scan.largest == 0.0 or scan.max_abs == 0.0):
        return 1.0, 1.0
    return values, power_of_two_near(scan.max_abs * values if math.isfinite(scan.max_abs) else 1.0)


def _one_minus_cosine(total: _Totals, pair: _Pair) -> float:
    """1 - cosine similarity, from the difference of the normalised vectors: |u - v|^2 / 2 with u, v of length 1.

    In terms of the sums at hand that is (|d|^2 - (|candidate| - |golden|)^2) / (2 |golden| |candidate|). Where the difference is
    mostly one of length, that subtraction cancels, and the tensors are read once more to sum |u - v|^2 itself.
    """
    if not total.golden or not total.candidate:
        return 0.0 if total.golden == total.candidate else 1.0
    across, along = total.diff, abs(total.radial)
    if (across - along) * (across + along) > 1e-3 * across * across:
        return 0.5 * ((across - along) / total.golden) * ((across + along) / total.candidate)
    if not across:
        return 0.0
    squares: list[float] = []
    for block in pair.blocks():
        apart = block.candidate * total.scale / total.candidate - block.golden * total.scale / total.golden
        squares += chunk_dots(apart, apart)
    return 0.5 * _exact_sum(squares)


def _metrics(scan: _Scan, total: _Totals, one_minus_cosine: float, shape: tuple[int, ...]) -> Metrics:
    count = max(scan.compared, 1)
    index = None
    if scan.max_abs_index is not None:
        index = tuple(int(place) for place in np.unravel_index(scan.max_abs_index, shape))
    asked = (scan.atol, scan.rtol) != (None, None)
    return Metrics(
        elements=scan.elements,
        compared=scan.compared,
        rel_l2=total.diff / total.golden if total.golden else (math.inf if total.diff else 0.0),
        one_minus_cosine=one_minus_cosine,
        max_abs=scan.max_abs,
        max_abs_index=index,
        golden_at_max=scan.golden_at_max,
        candidate_at_max=scan.candidate_at_max,
        max_rel=scan.max_rel,
        mean_abs=total.absolute / count,
        rmse=total.diff / total.scale / math.sqrt(count),
        bias=total.signed / count,
        max_ulp=scan.max_ulp,
        over_tolerance=scan.over_tolerance / count if asked else None,
        tolerance_used=scan.tolerance_used if asked else None,
        needed_atol=scan.needed_atol if asked else None,
        over_1e3=scan.over_1e3 / count,
        over_5e3=scan.over_5e3 / count,
        golden_nan=scan.golden_nan,
        candidate_nan=scan.candidate_nan,
        golden_inf=scan.golden_inf,
        candidate_inf=scan.candidate_inf,
        nonfinite_mismatch=scan.nonfinite_mismatch,
        saturated=scan.saturated,
    )
