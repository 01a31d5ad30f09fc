"""The metrics of a pair of tensors, block by block, in float64.

Sums follow ``accucompare.numbers.sums``, so no result depends on the block size. Values are widened
to float64, exactly except for 64-bit integers, which are subtracted as integers. Complex tensors
are pairs of reals. Positions not finite on both sides are counted, judged, and left out of every
sum. Positions masked on both sides (``compare.measuring.masks``) are equal, and left out too."""

from __future__ import annotations

import math
from functools import lru_cache

import msgspec
import numpy as np

from accucompare.bundle.format import Record
from accucompare.compare.measuring.blocks import Blocks, PairOfTensors, Segment
from accucompare.compare.measuring.masks import compare_masks
from accucompare.compare.measuring.norms import Run, Scales, Sums, Totals, one_minus_cosine
from accucompare.compare.measuring.scan import Scan
from accucompare.numbers import DTYPES, AnyNumber, DType, Statistics, kernel


class Metrics(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The metrics of a pair; d = candidate - golden, n = positions finite and unmasked on both.

    Metrics from statistics alone (``compare.judging.bounds``) hold lower bounds for most values,
    and ``None`` where nothing is known.

    Attributes:
        elements: positions in the tensor (twice the elements of a complex one).
        compared: n.
        rel_l2: sqrt(sum d^2) / sqrt(sum golden^2); 0 for 0/0, inf for x/0.
        one_minus_cosine: right down to 1e-15; 0 if both are zero, 1 if one is.
        max_abs: max |d|.
        max_abs_index: its index in the tensor (complex: a last 0 or 1 for the real or imaginary
            part); ``None`` without a difference.
        golden_at_max, candidate_at_max: both values there (integers as ``int``).
        max_rel: max |d| / |golden|; 0 for 0/0, inf for x/0.
        mean_abs: mean |d|.
        rmse: sqrt(mean d^2).
        bias: mean d.
        max_ulp: most units in the last place apart; ``None`` unless both have one floating type.
        over_tolerance: share of n with |d| > atol + rtol * |golden|; ``None`` if neither was given.
        tolerance_used: max |d| / (atol + rtol * |golden|); 0 for 0/0; ``None`` likewise.
        needed_atol: the smallest atol that would pass, given rtol; ``None`` likewise.
        over_1e3, over_5e3: shares of n with |d| > 1e-3 and 5e-3 times |golden|.
        golden_nan, candidate_nan, golden_inf, candidate_inf: how many are NaN, and +Inf or -Inf.
        nonfinite_mismatch: positions not finite on a side where the other holds something else.
        nonfinite_index: the first of those.
        saturated: positions where the candidate is at its type's largest value, golden beyond.
        deviation: relative standard deviation of estimated ``rel_l2`` and ``rmse``; else 0.
        in_part: as ``rel_l2``, of the worst of many parts (``norms.Sums.worst_chunk``); 0 of one.
        masked: positions masked on both sides; 0 for identical bits, which are not searched.
    """

    elements: int = 0
    compared: int = 0
    rel_l2: float = 0.0
    one_minus_cosine: float = 0.0
    max_abs: float = 0.0
    max_abs_index: tuple[int, ...] | None = None
    golden_at_max: AnyNumber | None = None
    candidate_at_max: AnyNumber | None = None
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
    deviation: float = 0.0
    in_part: float = 0.0

    @property
    def nothing_finite(self) -> bool:
        """Whether the two differ where nothing could be measured, so that differences are 0."""
        return self.compared == 0 and self.nonfinite_mismatch > 0


def measure_pair(
    golden: Blocks,
    candidate: Blocks,
    dtypes: tuple[DType, DType],
    shape: tuple[int, ...],
    *,
    atol: float | None = None,
    rtol: float | None = None,
    masks: bool = False,
    run: Run = map,
) -> Metrics:
    """Measure a pair of tensors of one shape and kind. Raises ValueError if the two kinds differ.

    Args:
        golden, candidate: the two tensors' stored bits.
        dtypes: golden's and the candidate's true type, of one kind.
        atol, rtol: for ``over_tolerance`` and ``needed_atol``; if one is given, the other is 0.
        masks: whether to look for masks, in NumPy's slower pass: only if both tensors may hold some
            (``compare.measuring.masks``).
        run: a ``map`` over the tensors' segments, maybe parallel; it changes no result.
    """
    golden_dtype, candidate_dtype = dtypes
    if golden_dtype.kind is not candidate_dtype.kind:
        raise ValueError(
            f"{golden_dtype.name} and {candidate_dtype.name} are numbers of different kinds"
        )
    pair = PairOfTensors(golden, candidate, golden_dtype, candidate_dtype, math.prod(shape), masks)
    segments = pair.segments(run is not map)
    if len(segments) == 1:
        scan, sums = _measure_segment(pair, segments[0], atol, rtol)
    else:
        parts = iter(run(lambda segment: _measure_segment(pair, segment, atol, rtol), segments))
        scan, sums = next(parts)
        for later_scan, later_sums in parts:
            scan.join(later_scan)
            sums.extend(later_sums.chunks)
    scales = scan.scales()
    if scales != sums.scales:
        sums = Sums(scales)
        for part in run(lambda segment: _scaled_sums(pair, segment, scales), segments):
            sums.extend(part.chunks)
    total = sums.total()
    angle = one_minus_cosine(sums, total, pair, run)
    return _metrics(scan, total, angle, golden_dtype.reals(shape), sums.worst_chunk())


def measure_identical(
    dtype: DType, shape: tuple[int, ...], statistics: Statistics, asked: bool
) -> Metrics:
    """What ``measure_pair`` would return for a pair of the same bits, without reading them.

    Args:
        statistics: of either.
        asked: whether there is an absolute or relative tolerance.
    """
    elements = math.prod(dtype.reals(shape))
    ulps = 0 if dtype.digits and elements else None
    return _identical(elements, statistics.nan, statistics.inf, ulps, 0.0 if asked else None)


@lru_cache(maxsize=1 << 12)
def _identical(
    elements: int, nan: int, inf: int, ulps: int | None, tolerance: float | None
) -> Metrics:
    """The metrics of equal tensors, one object for all alike."""
    return Metrics(
        elements=elements,
        compared=elements - nan - inf,
        max_ulp=ulps,
        over_tolerance=tolerance,
        tolerance_used=tolerance,
        needed_atol=tolerance,
        golden_nan=nan,
        candidate_nan=nan,
        golden_inf=inf,
        candidate_inf=inf,
    )


def measure_masks(golden: Blocks, candidate: Blocks, records: tuple[Record, Record]) -> Metrics:
    """Measure a boolean and a floating mask by what they let through.

    Only counts of positions and ``over_tolerance``, the share that differs, are set.

    Args:
        golden, candidate: the two tensors' stored bits.
        records: both, with ``are_masks_of_two_kinds``.
    """
    dtypes = (DTYPES[records[0].dtype], DTYPES[records[1].dtype])
    sizes = [math.prod(record.shape) for record in records]
    if records[0].shape == records[1].shape:
        pair = PairOfTensors(golden, candidate, dtypes[0], dtypes[1], sizes[0])
        found = compare_masks(
            *dtypes,
            (raw for segment in pair.segments(split=False) for raw in pair.raw_blocks(segment)),
        )
    else:
        ours, theirs = (
            np.concatenate(list(side(0, size))).reshape(record.shape)
            for side, size, record in zip((golden, candidate), sizes, records, strict=True)
        )
        found = compare_masks(*dtypes, [(ours, theirs)])
    compared = found.elements - found.masked
    share = found.different / compared if found.different else 0.0
    return Metrics(
        elements=found.elements,
        compared=compared,
        masked=found.masked,
        over_tolerance=share,
        max_abs=float(bool(share)),
    )


def _measure_segment(
    pair: PairOfTensors, segment: Segment, atol: float | None, rtol: float | None
) -> tuple[Scan, Sums]:
    if pair.compiled:
        measured, chunks = _measure_compiled(pair, segment, atol, rtol)
        # only NumPy's pass can compare a difference beyond float64
        if not math.isinf(measured.max_abs):
            return Scan.of(measured, segment, pair, atol, rtol), Sums(chunks=chunks)
    return _measure_by_numpy(pair, segment, atol, rtol)


def _measure_compiled(
    pair: PairOfTensors, segment: Segment, atol: float | None, rtol: float | None
) -> tuple[kernel.Measured, list[list[float]]]:
    types, elements = (pair.golden_dtype, pair.candidate_dtype), segment.stop - segment.start
    whole = measurement = None
    for golden, candidate in pair.raw_blocks(segment):
        if len(golden) == elements:
            whole = kernel.measure_whole(golden, candidate, *types, atol, rtol)
            continue  # until the blocks are exhausted, since only then they are verified
        measurement = measurement or kernel.Measurement(*types, atol, rtol, elements)
        measurement.add(golden, candidate)
    if whole is not None:
        return whole
    measurement = measurement or kernel.Measurement(*types, atol, rtol, elements)
    return measurement.result(), measurement.chunk_sums()


@np.errstate(all="ignore")  # it holds for one thread only
def _measure_by_numpy(
    pair: PairOfTensors, segment: Segment, atol: float | None, rtol: float | None
) -> tuple[Scan, Sums]:
    scan, sums = Scan(atol, rtol), Sums()
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


def _metrics(
    scan: Scan, total: Totals, angle: float, shape: tuple[int, ...], in_part: float
) -> Metrics:
    """``shape``: with a last 2 for complex tensors."""
    count = max(scan.compared, 1)
    asked = (scan.atol, scan.rtol) != (None, None)
    return Metrics(
        elements=math.prod(shape),
        compared=scan.compared,
        rel_l2=total.rel_l2,
        one_minus_cosine=angle,
        max_abs=scan.max_abs,
        max_abs_index=index_in(shape, scan.max_abs_index),
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
        nonfinite_index=index_in(shape, scan.nonfinite_index),
        saturated=scan.saturated,
        masked=scan.masked,
        in_part=in_part,
    )


@lru_cache(maxsize=1 << 14)
def index_in(shape: tuple[int, ...], place: int | None) -> tuple[int, ...] | None:
    """The index of an element by its place; ``None`` for no place (-1 or ``None``)."""
    if place is None or place < 0:
        return None
    index = []
    for length in reversed(shape):
        place, own = divmod(place, length)
        index.append(own)
    return tuple(reversed(index))
