"""The metrics of a pair of tensors, block by block, in float64.

Sums are taken as ``accucompare.numbers.sums`` describes, so no result depends on the block size. Values are widened to float64
first, which is exact for every type but 64-bit integers, whose differences are taken in integers. Complex tensors are
compared as pairs of reals. Positions that are not finite on both sides are counted, judged, and left out of every sum; so are those
that are masked on both sides (see ``compare.masks``), which are equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from accucompare.compare.blocks import Block, Blocks, PairOfTensors, Segment, scratch
from accucompare.compare.masks import same_masks
from accucompare.compare.norms import Run, Scales, Sums, Totals, one_minus_cosine
from accucompare.numbers import kernel
from accucompare.numbers.dtypes import Array, DType, Kind, widen
from accucompare.numbers.statistics import Statistics
from accucompare.numbers.sums import Float64, as_reals


class Metrics(msgspec.Struct, frozen=True, gc=False):
    """What was measured of a pair; d = candidate - golden, n = positions finite on both sides and not masked on both.

    What ``compare.bounds`` concludes from statistics has lower bounds in place of most, and ``None`` for what they do not tell.

    Attributes:
        elements: positions in the tensor (twice the elements of a complex one).
        compared: n.
        rel_l2: sqrt(sum d^2) / sqrt(sum golden^2); 0 for 0/0, inf for x/0.
        one_minus_cosine: 1 - cosine similarity, right down to 1e-15; 0 if both are zero, 1 if one is.
        max_abs: max |d|.
        max_abs_index: where, as an index into the tensor (complex: a last 0 or 1 for the real or imaginary part);
            ``None`` where there is no difference.
        golden_at_max, candidate_at_max: both values there (integers as ``int``).
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
        nonfinite_index: the first of those; ``None`` where there is none.
        saturated: positions where the candidate sits at its type's largest value and golden is beyond it.
        masked: positions that are masked on both sides; 0 between tensors of the same bits, whose masks are not looked for.
    """

    elements: int = 0
    compared: int = 0
    rel_l2: float = 0.0
    one_minus_cosine: float = 0.0
    max_abs: float = 0.0
    max_abs_index: tuple[int, ...] | None = None
    golden_at_max: float | None = None
    candidate_at_max: float | None = None
    max_rel: float | None = 0.0
    mean_abs: float = 0.0
    rmse: float = 0.0
    bias: float = 0.0
    max_ulp: int | None = None
    over_tolerance: float | None = None
    tolerance_used: float | None = None
    needed_atol: float | None = None
    over_1e3: float | None = 0.0
    over_5e3: float | None = 0.0
    golden_nan: int = 0
    candidate_nan: int = 0
    golden_inf: int = 0
    candidate_inf: int = 0
    nonfinite_mismatch: int = 0
    nonfinite_index: tuple[int, ...] | None = None
    saturated: int | None = 0
    masked: int | None = 0

    @property
    def nothing_finite(self) -> bool:
        """Whether there was no position to measure a difference at, although the two differ: every difference here is 0 only for that."""
        return self.compared == 0 and self.nonfinite_mismatch > 0


def measure(
    golden: Blocks,
    candidate: Blocks,
    golden_dtype: DType,
    candidate_dtype: DType,
    shape: tuple[int, ...],
    *,
    atol: float | None = None,
    rtol: float | None = None,
    masks: bool = False,
    run: Run = map,
) -> Metrics:
    """Measure a pair of tensors of one shape and kind.

    Args:
        golden, candidate: the two tensors' stored bits.
        golden_dtype, candidate_dtype: their true types, both of one kind.
        shape: of both.
        atol, rtol: for ``over_tolerance`` and ``needed_atol``; one given alone takes the other as 0.
        masks: whether to look for masks; only where both tensors may hold some (``compare.masks``), since it takes NumPy's slower pass.
        run: a ``map`` over the tensors' segments, which may work in parallel; it changes no result.

    Raises:
        ValueError: if the two kinds differ.
    """
    if golden_dtype.kind is not candidate_dtype.kind:
        raise ValueError(f"{golden_dtype.name} and {candidate_dtype.name} are numbers of different kinds")
    pair = PairOfTensors(golden, candidate, golden_dtype, candidate_dtype, math.prod(shape), masks)
    parts = iter(run(lambda segment: _measure_segment(pair, segment, atol, rtol), pair.segments()))
    scan, sums = next(parts)
    for later_scan, later_sums in parts:
        scan.join(later_scan)
        sums.extend(later_sums.chunks)
    scales = scan.scales()
    if scales != sums.scales:
        sums = Sums(scales)
        for part in run(lambda segment: _scaled_sums(pair, segment, scales), pair.segments()):
            sums.extend(part.chunks)
    total = sums.total()
    angle = one_minus_cosine(sums, total, pair, run)
    return _metrics(scan, total, angle, (*shape, 2) if golden_dtype.kind is Kind.COMPLEX else shape)


def measure_identical(dtype: DType, shape: tuple[int, ...], statistics: Statistics, asked: bool) -> Metrics:
    """What ``measure`` would find of a pair whose bits are the same, without reading them.

    Args:
        dtype, shape: of both.
        statistics: of either.
        asked: whether there is an absolute or relative tolerance.
    """
    elements = math.prod(shape) * (2 if dtype.kind is Kind.COMPLEX else 1)
    return Metrics(
        elements=elements,
        compared=elements - statistics.nan - statistics.inf,
        max_ulp=0 if dtype.digits and elements else None,
        over_tolerance=0.0 if asked else None,
        tolerance_used=0.0 if asked else None,
        needed_atol=0.0 if asked else None,
        golden_nan=statistics.nan,
        candidate_nan=statistics.nan,
        golden_inf=statistics.inf,
        candidate_inf=statistics.inf,
    )


def measure_masks(golden: Blocks, candidate: Blocks, golden_dtype: DType, candidate_dtype: DType, shape: tuple[int, ...]) -> Metrics | None:
    """Measure a boolean and a floating mask that say the same; ``None`` if they do not, or one is no mask.

    Args:
        golden, candidate, shape: as for ``measure``.
        golden_dtype, candidate_dtype: their true types, one of them bool, the other floating.
    """
    pair = PairOfTensors(golden, candidate, golden_dtype, candidate_dtype, math.prod(shape))
    masked = 0
    for segment in pair.segments():
        for raw in pair.raw_blocks(segment):
            found = same_masks(*raw, golden_dtype, candidate_dtype)
            if found is None:
                return None
            masked += found
    return Metrics(elements=pair.elements, compared=pair.elements - masked, masked=masked)


@np.errstate(all="ignore")  # it holds for one thread only
def _measure_segment(pair: PairOfTensors, segment: Segment, atol: float | None, rtol: float | None) -> tuple[_Scan, Sums]:
    if pair.compiled:
        measurement = kernel.Measurement(pair.golden_dtype, pair.candidate_dtype, atol, rtol, segment.stop - segment.start)
        for golden, candidate in pair.raw_blocks(segment):
            measurement.add(golden, candidate)
        found = measurement.found()
        if not math.isinf(found.max_abs):  # a difference beyond float64 is one that only NumPy's pass can compare
            scan, sums = _Scan(atol, rtol), Sums()
            scan.take(found, segment, pair)
            sums.extend(measurement.chunk_sums())
            return scan, sums
    scan, sums = _Scan(atol, rtol), Sums()
    for block in pair.blocks(segment):
        scan.add(block, pair)
        sums.add(block)
    return scan, sums


@np.errstate(all="ignore")
def _scaled_sums(pair: PairOfTensors, segment: Segment, scales: Scales) -> Sums:
    sums = Sums(scales)
    for block in pair.blocks(segment):
        sums.add(block)
    return sums


@dataclass(slots=True)
class _Scan:
    """Extrema and counts over some blocks."""

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
    nonfinite_index: int | None = None
    saturated: int = 0
    masked: int = 0
    largest_golden: float = 0.0  # |golden|; this and the next are looked for in float64 tensors only
    largest_candidate: float = 0.0

    def scales(self) -> Scales:
        """What values must be scaled by for their squares to fit float64. Those of every type but float64 do."""
        return Scales.of(self.largest_golden, self.largest_candidate, self.max_abs)

    def add(self, block: Block, pair: PairOfTensors) -> None:
        length = len(block.diff)
        self.compared += length if block.finite is None else int(np.count_nonzero(block.finite))
        if block.finite is not None:
            self._count_nonfinite(block, pair)
        magnitude = np.abs(block.diff, out=scratch(3, length))
        golden = np.abs(block.golden, out=scratch(4, length))
        if pair.golden_dtype.digits == 53 or pair.candidate_dtype.digits == 53:
            self.largest_golden = max(self.largest_golden, float(golden.max()))
            self.largest_candidate = max(self.largest_candidate, float(np.abs(block.candidate, out=scratch(5, length)).max()))
        if pair.candidate_dtype.largest < pair.golden_dtype.largest and block.finite is None:
            self._count_saturated(golden, block.candidate, pair)
        most = float(magnitude.max())
        if most > self.max_abs:
            place = int(magnitude.argmax())
            self.max_abs, self.max_abs_index = most, block.start + place
            integers = pair.golden_dtype.kind in (Kind.INT, Kind.BOOL)  # kept as such: a float64 cannot tell 2**53 from 2**53 + 1
            ours, theirs = (block.golden_raw, block.candidate_raw) if integers else (block.golden, block.candidate)
            self.golden_at_max, self.candidate_at_max = ours[place].item(), theirs[place].item()
        if most > 0.0:
            self._compare_with_golden(block, magnitude, golden)
        if pair.golden_dtype is pair.candidate_dtype and pair.golden_dtype.digits:
            distance = _ulps(block.golden_raw, block.candidate_raw, pair.golden_dtype, block.finite) if most > 0.0 else 0
            self.max_ulp = max(self.max_ulp or 0, distance)

    def take(self, found: kernel.Measured, segment: Segment, pair: PairOfTensors) -> None:
        """Take what the compiled kernel has found in a segment."""
        start = segment.start * pair.reals
        if found.max_abs > 0.0:
            exact = {Kind.INT: int, Kind.BOOL: bool}.get(pair.golden_dtype.kind, float)
            self.max_abs, self.max_abs_index = found.max_abs, start + found.place
            self.golden_at_max, self.candidate_at_max = exact(found.golden_at_max), exact(found.candidate_at_max)
        if found.nonfinite_mismatch:
            self.nonfinite_index = start + found.mismatch_place
        if pair.golden_dtype is pair.candidate_dtype and pair.golden_dtype.digits and segment.stop > segment.start:
            self.max_ulp = found.max_ulp
        self._add_up(found)

    def join(self, later: _Scan) -> None:
        """Take in what was found in the blocks that follow."""
        if later.max_abs > self.max_abs:
            self.max_abs, self.max_abs_index = later.max_abs, later.max_abs_index
            self.golden_at_max, self.candidate_at_max = later.golden_at_max, later.candidate_at_max
        if self.nonfinite_index is None:
            self.nonfinite_index = later.nonfinite_index
        if later.max_ulp is not None:
            self.max_ulp = max(self.max_ulp or 0, later.max_ulp)
        self.masked += later.masked
        self._add_up(later)

    def _add_up(self, found: kernel.Measured | _Scan) -> None:
        self.max_rel = max(self.max_rel, found.max_rel)
        self.tolerance_used = max(self.tolerance_used, found.tolerance_used)
        self.needed_atol = max(self.needed_atol, found.needed_atol)
        self.largest_golden = max(self.largest_golden, found.largest_golden)
        self.largest_candidate = max(self.largest_candidate, found.largest_candidate)
        self.compared += found.compared
        self.over_tolerance += found.over_tolerance
        self.over_1e3 += found.over_1e3
        self.over_5e3 += found.over_5e3
        self.golden_nan += found.golden_nan
        self.candidate_nan += found.candidate_nan
        self.golden_inf += found.golden_inf
        self.candidate_inf += found.candidate_inf
        self.nonfinite_mismatch += found.nonfinite_mismatch
        self.saturated += found.saturated

    def _compare_with_golden(self, block: Block, magnitude: Float64, golden: Float64) -> None:
        size: float | Float64 = 1.0
        if math.isinf(self.max_abs):  # where a difference is beyond float64, halves are compared
            size = np.where(np.isinf(magnitude), 0.5, 1.0)
            magnitude, golden = np.abs(block.candidate * size - block.golden * size), golden * size
        if (self.atol, self.rtol) != (None, None):
            rtol = self.rtol or 0.0
            allowed = (self.atol or 0.0) * size + rtol * golden
            self.over_tolerance += int(np.count_nonzero(magnitude > allowed))
            self.needed_atol = max(self.needed_atol, float(((magnitude - rtol * golden) / size).max()))
            self.tolerance_used = max(self.tolerance_used, _largest(np.divide(magnitude, allowed, out=allowed)))
        most = _largest(np.divide(magnitude, golden, out=scratch(5, len(golden))))
        self.max_rel = max(self.max_rel, most)
        if most > 0.999e-3:  # else there is nothing to count
            self.over_1e3 += int(np.count_nonzero(magnitude > 1e-3 * golden))
            self.over_5e3 += int(np.count_nonzero(magnitude > 5e-3 * golden))

    def _count_nonfinite(self, block: Block, pair: PairOfTensors) -> None:
        golden = as_reals(widen(block.golden_raw, pair.golden_dtype))
        candidate = as_reals(widen(block.candidate_raw, pair.candidate_dtype))
        golden_nan, candidate_nan = np.isnan(golden), np.isnan(candidate)
        self.golden_nan += int(np.count_nonzero(golden_nan))
        self.candidate_nan += int(np.count_nonzero(candidate_nan))
        self.golden_inf += int(np.count_nonzero(np.isinf(golden)))
        self.candidate_inf += int(np.count_nonzero(np.isinf(candidate)))
        mismatch = _mismatch(golden, candidate)
        if block.masked is not None:
            self.masked += int(np.count_nonzero(block.masked))
            mismatch &= ~block.masked
        self._find_mismatch(mismatch, block.start)
        self.nonfinite_mismatch += int(np.count_nonzero(mismatch))
        self._count_saturated(np.abs(golden), candidate, pair, block.masked)

    def _find_mismatch(self, mismatch: Array, start: int) -> None:
        if self.nonfinite_index is None:
            places = np.flatnonzero(mismatch)
            self.nonfinite_index = start + int(places[0]) if places.size else None

    def _count_saturated(self, golden: Array, candidate: Array, pair: PairOfTensors, masked: Array | None = None) -> None:
        limit = np.float64(pair.candidate_dtype.largest)  # a plain float would be rounded to golden's type
        beyond = golden > limit if masked is None else (golden > limit) & ~masked
        if beyond.any():
            self.saturated += int(np.count_nonzero(beyond & (np.abs(candidate) == limit)))


def _mismatch(golden: Array, candidate: Array) -> Array:
    """Where one side is not finite and the other holds something else; NaN agrees with NaN."""
    finite = np.isfinite(golden) & np.isfinite(candidate)
    mismatch: Array = ~finite & (golden != candidate) & ~(np.isnan(golden) & np.isnan(candidate))
    return mismatch


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


def _metrics(scan: _Scan, total: Totals, angle: float, shape: tuple[int, ...]) -> Metrics:
    """``shape``: with a last 2 for complex tensors."""
    count = max(scan.compared, 1)
    asked = (scan.atol, scan.rtol) != (None, None)
    return Metrics(
        elements=math.prod(shape),
        compared=scan.compared,
        rel_l2=total.rel_l2,
        one_minus_cosine=angle,
        max_abs=scan.max_abs,
        max_abs_index=_index(scan.max_abs_index, shape),
        golden_at_max=scan.golden_at_max,
        candidate_at_max=scan.candidate_at_max,
        max_rel=scan.max_rel,
        mean_abs=total.absolute / count / total.scales.diff,
        rmse=total.diff / math.sqrt(count) / total.scales.diff,
        bias=total.signed / count / total.scales.diff,
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
        nonfinite_index=_index(scan.nonfinite_index, shape),
        saturated=scan.saturated,
        masked=scan.masked,
    )


def _index(place: int | None, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if place is None else tuple(int(index) for index in np.unravel_index(place, shape))
