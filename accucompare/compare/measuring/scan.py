"""What one pass over two tensors measures beside their norms: extrema, and counts of values."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from accucompare.compare.measuring.blocks import Block, PairOfTensors, Segment, scratch
from accucompare.compare.measuring.norms import Scales
from accucompare.numbers import Array, DType, Float64, Kind, as_reals, kernel, widen

#: The Python types of numbers that are no floats.
EXACT_TYPES: dict[Kind, type] = {Kind.INT: int, Kind.BOOL: bool}


class Scan(msgspec.Struct, gc=False):
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
    largest_golden: float = 0.0  # |golden|; this and the next are measured in float64 tensors only
    largest_candidate: float = 0.0
    masked: int = 0  # the compiled kernel does not look for masks

    @classmethod
    def of(
        cls,
        measured: kernel.Measured,
        segment: Segment,
        pair: PairOfTensors,
        atol: float | None,
        rtol: float | None,
    ) -> Scan:
        """What the compiled kernel measured in a segment."""
        scan = cls(atol, rtol, *measured)
        start = segment.start * pair.reals
        if scan.max_abs_index is not None:
            scan.max_abs_index += start
            if pair.golden_dtype.kind in EXACT_TYPES:
                exact = EXACT_TYPES[pair.golden_dtype.kind]
                scan.golden_at_max, scan.candidate_at_max = (
                    exact(measured.golden_at_max),
                    exact(measured.candidate_at_max),
                )
        else:
            scan.golden_at_max = scan.candidate_at_max = None
        if scan.nonfinite_index is not None:
            scan.nonfinite_index += start
        if (
            pair.golden_dtype is not pair.candidate_dtype
            or not pair.golden_dtype.digits
            or segment.stop == segment.start
        ):
            scan.max_ulp = None
        return scan

    def scales(self) -> Scales:
        """The scales that make squares fit float64. Only float64 tensors need any."""
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
            self.largest_candidate = max(
                self.largest_candidate, float(np.abs(block.candidate, out=scratch(5, length)).max())
            )
        if pair.candidate_dtype.largest < pair.golden_dtype.largest and block.finite is None:
            self._count_saturated(golden, block.candidate, pair)
        most = float(magnitude.max())
        if most > self.max_abs:
            place = int(magnitude.argmax())
            self.max_abs, self.max_abs_index = most, block.start + place
            # integers stay integers: a float64 cannot tell 2**53 from 2**53 + 1
            integers = pair.golden_dtype.kind in (Kind.INT, Kind.BOOL)
            ours, theirs = (
                (block.golden_raw, block.candidate_raw)
                if integers
                else (block.golden, block.candidate)
            )
            self.golden_at_max, self.candidate_at_max = ours[place].item(), theirs[place].item()
        if most > 0.0:
            self._compare_with_golden(block, magnitude, golden)
        if pair.golden_dtype is pair.candidate_dtype and pair.golden_dtype.digits:
            distance = (
                _ulps(block.golden_raw, block.candidate_raw, pair.golden_dtype, block.finite)
                if most > 0.0
                else 0
            )
            self.max_ulp = max(self.max_ulp or 0, distance)

    def join(self, later: Scan) -> None:
        """Add what was measured in the blocks that follow."""
        if later.max_abs > self.max_abs:
            self.max_abs, self.max_abs_index = later.max_abs, later.max_abs_index
            self.golden_at_max, self.candidate_at_max = later.golden_at_max, later.candidate_at_max
        if self.nonfinite_index is None:
            self.nonfinite_index = later.nonfinite_index
        if later.max_ulp is not None:
            self.max_ulp = max(self.max_ulp or 0, later.max_ulp)
        self.masked += later.masked
        self.max_rel = max(self.max_rel, later.max_rel)
        self.tolerance_used = max(self.tolerance_used, later.tolerance_used)
        self.needed_atol = max(self.needed_atol, later.needed_atol)
        self.largest_golden = max(self.largest_golden, later.largest_golden)
        self.largest_candidate = max(self.largest_candidate, later.largest_candidate)
        self.compared += later.compared
        self.over_tolerance += later.over_tolerance
        self.over_1e3 += later.over_1e3
        self.over_5e3 += later.over_5e3
        self.golden_nan += later.golden_nan
        self.candidate_nan += later.candidate_nan
        self.golden_inf += later.golden_inf
        self.candidate_inf += later.candidate_inf
        self.nonfinite_mismatch += later.nonfinite_mismatch
        self.saturated += later.saturated

    def _compare_with_golden(self, block: Block, magnitude: Float64, golden: Float64) -> None:
        size: float | Float64 = 1.0
        if math.isinf(self.max_abs):  # a difference beyond float64 is compared in halves
            size = np.where(np.isinf(magnitude), 0.5, 1.0)
            magnitude, golden = np.abs(block.candidate * size - block.golden * size), golden * size
        if (self.atol, self.rtol) != (None, None):
            rtol = self.rtol or 0.0
            allowed = (self.atol or 0.0) * size + rtol * golden
            self.over_tolerance += int(np.count_nonzero(magnitude > allowed))
            self.needed_atol = max(
                self.needed_atol, float(((magnitude - rtol * golden) / size).max())
            )
            self.tolerance_used = max(
                self.tolerance_used, _largest(np.divide(magnitude, allowed, out=allowed))
            )
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
        if self.nonfinite_index is None and mismatch.any():
            self.nonfinite_index = block.start + int(mismatch.argmax())
        self.nonfinite_mismatch += int(np.count_nonzero(mismatch))
        self._count_saturated(np.abs(golden), candidate, pair, block.masked)

    def _count_saturated(
        self, golden: Array, candidate: Array, pair: PairOfTensors, masked: Array | None = None
    ) -> None:
        # a plain float would be rounded to golden's type
        limit = np.float64(pair.candidate_dtype.largest)
        beyond = golden > limit if masked is None else (golden > limit) & ~masked
        if beyond.any():
            self.saturated += int(np.count_nonzero(beyond & (np.abs(candidate) == limit)))


def _mismatch(golden: Array, candidate: Array) -> Array:
    """Where a side is not finite and the other holds something else; NaN agrees with NaN."""
    finite = np.isfinite(golden) & np.isfinite(candidate)
    mismatch: Array = ~finite & (golden != candidate) & ~(np.isnan(golden) & np.isnan(candidate))
    return mismatch


def _largest(ratios: Float64) -> float:
    """The maximum of ratios of nonnegative numbers; 0/0 is set to 0 in place."""
    most = float(ratios.max())
    if math.isnan(most):
        ratios[np.isnan(ratios)] = 0.0
        most = float(ratios.max())
    return most


def _ulps(golden: Array, candidate: Array, dtype: DType, finite: NDArray[np.bool_] | None) -> int:
    """The largest distance in units in the last place between finite values of one floating type.

    The bits of IEEE numbers of one sign are ordered as the numbers are, so the distance is a
    difference of integers (B. Dawson, "Comparing floating point numbers", 2012); -0 equals +0."""
    width = {53: 8, 24: 4, 11: 2}.get(dtype.digits, golden.dtype.itemsize)
    golden_bits, candidate_bits = golden.view(f"i{width}"), candidate.view(f"i{width}")
    if finite is not None:
        golden_bits, candidate_bits = golden_bits[finite], candidate_bits[finite]
        if not golden_bits.size:
            return 0
    if not dtype.signed:
        return int(
            np.abs(golden_bits.view("u1").astype(np.int64) - candidate_bits.view("u1")).max()
        )
    apart = np.bitwise_xor(golden_bits, candidate_bits)
    if apart.min() >= 0:  # every pair has one sign
        difference = np.subtract(golden_bits, candidate_bits, out=apart)
        return max(int(difference.max()), -int(difference.min()))
    across = apart < 0
    magnitude = ~np.array(-1 << (8 * width - 1), golden_bits.dtype)
    golden_bits, candidate_bits = golden_bits & magnitude, candidate_bits & magnitude
    beside = np.subtract(golden_bits, candidate_bits)[~across]
    # at most 2**64 - 2
    distance = golden_bits[across].astype(np.uint64) + candidate_bits[across].astype(np.uint64)
    return max(int(distance.max()), int(beside.max(initial=0)), -int(beside.min(initial=0)))
