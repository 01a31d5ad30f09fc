"""Many pairs of small tensors measured at once, each as ``measure_pair`` does, bit for bit.

A small tensor has a single chunk, so the kernel's sums are the totals. A pair that needs more
(masks, scaled values, another pass) is left to ``measure_pair``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


#: A pair whose tensors begin at some bytes of two buffers.
PlacedPair = tuple[int, int, kernel.PairForm]


@dataclass(frozen=True, eq=False)
class SmallMetrics:
    """The metrics of many small pairs, as columns."""

    forms: Sequence[kernel.PairForm]  # what pairs share
    form_of: NDArray[np.intp]  # the number of each pair's form
    known: NDArray[np.bool_]  # whether the pair is measured; ``measure_pair`` must look at others
    columns: tuple[NDArray[Any], ...]  # of numbers, in the order in which ``_metrics`` takes them

    @property
    def rel_l2(self) -> Float64:
        return self.column("rel_l2")

    def column(self, name: str) -> NDArray[Any]:
        return self.columns[_COLUMNS.index(name)]

    def those(self, places: NDArray[Any]) -> SmallMetrics:
        """Some of the pairs. A number that is the same for all takes no memory."""
        columns = [column[places] for column in self.columns]
        kept = (
            np.broadcast_to(each[:1].copy(), each.shape)
            if len(each) and (each == each[0]).all()
            else each
            for each in columns
        )
        return SmallMetrics(self.forms, self.form_of[places], self.known[places], tuple(kept))

    def each(self, some: slice = slice(None)) -> Iterator[Metrics | None]:
        """The metrics of one pair after the other; ``None`` if it is not measured."""
        numbers = zip(*(column[some].tolist() for column in self.columns), strict=True)
        for number, known, own in zip(
            self.form_of[some].tolist(), self.known[some].tolist(), numbers, strict=True
        ):
            yield _metrics(self.forms[number], own) if known else None


_COLUMNS = (
    "compared", "rel_l2", "one_minus_cosine", "max_abs", "max_abs_index", "golden_at_max",
    "candidate_at_max", "max_rel", "mean_abs", "rmse", "bias", "max_ulp", "over_tolerance",
    "tolerance_used", "needed_atol", "over_1e3", "over_5e3", "golden_nan", "candidate_nan",
    "golden_inf", "candidate_inf", "nonfinite_mismatch", "nonfinite_index", "saturated",
)  # fmt: skip


def measure_small(
    golden: bytes, candidate: bytes, pairs: Sequence[PlacedPair]
) -> list[Metrics | None]:
    """Measure pairs that have a ``small_form``; ``None`` where ``measure_pair`` must look.

    Args:
        golden, candidate: buffers of stored bits.
        pairs: places in them, and forms.
    """
    *starts, forms = zip(*pairs, strict=True)
    number_of = {form: number for number, form in enumerate(dict.fromkeys(forms))}
    numbers = np.array([number_of[form] for form in forms])
    return list(
        measure_columns(golden, candidate, np.array(starts).T, list(number_of), numbers).each()
    )


@np.errstate(all="ignore")
def measure_columns(
    golden: bytes,
    candidate: bytes,
    starts: NDArray[np.int64],
    forms: Sequence[kernel.PairForm],
    form_of: NDArray[np.intp],
) -> SmallMetrics:
    """The same as columns. Arguments as for ``kernel.measure_pairs``."""
    found, sums = kernel.measure_pairs(golden, candidate, starts, forms, form_of)
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
    made = {
        "rel_l2": rel_l2,
        "one_minus_cosine": angle,
        "mean_abs": sums[:, 4] / count,
        "rmse": norms[:, 2] / np.sqrt(count),
        "bias": (sums[:, 5] + 0.0) / count,
        **{name: found[name] / count for name in ("over_tolerance", "over_1e3", "over_5e3")},
    }
    columns = tuple(made[name] if name in made else found[name] for name in _COLUMNS)
    known: NDArray[np.bool_] = unscaled.all(axis=0) & ~np.isnan(angle)
    return SmallMetrics(forms, form_of, known, columns)


def _metrics(form: kernel.PairForm, numbers: Iterable[Any]) -> Metrics:
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
