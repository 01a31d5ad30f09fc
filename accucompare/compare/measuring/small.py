"""Many pairs of small tensors measured at once, each as ``measure_pair`` does, bit for bit.

A small tensor has a single chunk, so the kernel's sums are the totals. A pair that needs more
(masks, scaled values, another pass) is left to ``measure_pair``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from accucompare.compare.measuring.measure import Metrics, index_in
from accucompare.compare.measuring.norms import LEAST_LEFT, NEAR_LENGTHS
from accucompare.compare.measuring.scan import EXACT_TYPES
from accucompare.numbers import CHUNK, DTYPES, Float64, kernel
from accucompare.numbers import sums as chunked


@lru_cache(maxsize=1 << 12)
def small_form(
    golden: str, candidate: str, shape: tuple[int, ...], atol: float | None, rtol: float | None
) -> kernel.PairForm | None:
    """What ``measure_small`` must know of a pair; ``None`` if it is not small, or of two kinds.

    Args:
        golden, candidate: the names of their types.
        shape, atol, rtol: as for ``measure_pair``.
    """
    ours, theirs = DTYPES[golden], DTYPES[candidate]
    if ours.kind is not theirs.kind or not kernel.can_take(ours, theirs):
        return None
    small = 0 < math.prod(ours.reals(shape)) <= CHUNK
    return kernel.PairForm(ours, theirs, shape, atol, rtol) if small else None


@np.errstate(all="ignore")
def measure_small(
    golden: bytes, candidate: bytes, pairs: Sequence[kernel.PlacedPair]
) -> list[Metrics | None]:
    """Measure pairs that have a ``small_form``; ``None`` where ``measure_pair`` must look.

    Args:
        golden, candidate: buffers of stored bits.
        pairs: places in them, and forms.
    """
    found, sums = kernel.measure_pairs(golden, candidate, pairs)
    norms = np.sqrt(sums[:, :3])
    rel_l2 = norms[:, 2] / norms[:, 0]
    rel_l2[norms[:, 2] == 0.0] = 0.0
    angle = _one_minus_cosine(sums, norms)
    magnitudes = np.stack(
        [found[name] for name in ("largest_golden", "largest_candidate", "max_abs")]
    )
    unscaled = (magnitudes == 0) | (
        (magnitudes > chunked.SQUARES_FIT[0]) & (magnitudes < chunked.SQUARES_FIT[1])
    )
    count = np.maximum(found["compared"], 1)
    columns = (
        unscaled.all(axis=0) & ~np.isnan(angle),
        found["compared"],
        rel_l2,
        angle,
        found["max_abs"],
        found["max_abs_index"],
        found["golden_at_max"],
        found["candidate_at_max"],
        found["max_rel"],
        sums[:, 4] / count,
        norms[:, 2] / np.sqrt(count),
        (sums[:, 5] + 0.0) / count,
        found["max_ulp"],
        found["over_tolerance"] / count,
        found["tolerance_used"],
        found["needed_atol"],
        found["over_1e3"] / count,
        found["over_5e3"] / count,
        found["golden_nan"],
        found["candidate_nan"],
        found["golden_inf"],
        found["candidate_inf"],
        found["nonfinite_mismatch"],
        found["nonfinite_index"],
        found["saturated"],
    )
    return [
        _metrics(form, numbers) if known else None
        for (_, _, form), known, *numbers in zip(
            pairs, *(column.tolist() for column in columns), strict=True
        )
    ]


def _metrics(form: kernel.PairForm, numbers: list[Any]) -> Metrics:
    """``numbers``: the columns' values, in order."""
    (
        compared, rel_l2, angle, max_abs, place, golden_at_max, candidate_at_max, max_rel, mean_abs,
        rmse, bias, max_ulp, over_tolerance, used, needed, over_1e3, over_5e3, golden_nan,
        candidate_nan, golden_inf, candidate_inf, mismatch, mismatch_place, saturated,
    ) = numbers  # fmt: skip
    asked, exact = form.asks_elements, EXACT_TYPES.get(form.golden.kind)
    if place < 0:
        golden_at_max = candidate_at_max = None
    elif exact is not None:
        golden_at_max, candidate_at_max = exact(golden_at_max), exact(candidate_at_max)
    return Metrics(
        form.reals,
        compared,
        rel_l2,
        angle,
        max_abs,
        index_in(form.of_reals, place),
        golden_at_max,
        candidate_at_max,
        max_rel,
        mean_abs,
        rmse,
        bias,
        max_ulp if form.has_ulps else None,
        over_tolerance if asked else None,
        used if asked else None,
        needed if asked else None,
        over_1e3,
        over_5e3,
        golden_nan,
        candidate_nan,
        golden_inf,
        candidate_inf,
        mismatch,
        index_in(form.of_reals, mismatch_place),
        saturated,
    )


def _one_minus_cosine(sums: Float64, norms: Float64) -> Float64:
    """``norms.one_minus_cosine`` of each pair; NaN where another pass is needed."""
    golden, candidate, across = norms.T
    along = np.abs(sums[:, 3]) / (golden + candidate)
    left = (across - along) * (across + along)
    by_difference = 0.5 * ((across - along) / golden) * ((across + along) / candidate)
    squares, excess, rest = sums[:, 0], sums[:, 6], sums[:, 7]
    whole = excess * squares / squares
    rest = rest + (excess - whole) * (excess - whole) * squares
    cosine = (1 + whole) * golden / candidate
    sine = np.sqrt(np.maximum(rest, 0.0)) / candidate
    by_sine = np.where(cosine > 0, sine * sine / (1 + cosine), 1 - cosine)
    ratio = candidate / golden
    by_sine[~((ratio >= NEAR_LENGTHS[0]) & (ratio <= NEAR_LENGTHS[1]))] = np.nan
    angle: Float64 = np.where(left > LEAST_LEFT * across * across, by_difference, by_sine)
    angle[across == 0.0] = 0.0
    angle[(golden == 0.0) | (candidate == 0.0)] = 1.0
    angle[(golden == 0.0) & (candidate == 0.0)] = 0.0
    return angle
