"""What sketches estimate about a pair if one side, or both, kept no values.

A bundle captured with ``--mode sketch`` keeps each tensor's digest, statistics and a linear sketch
(``numbers.sketch``). The difference of two sketches of k numbers has the norm of the tensors'
difference, to a relative standard deviation of 1 / sqrt(2 k). Norms, means, extrema and counts are
exact. So ::

    rel_l2      ~  ‖S(c) - S(g)‖ / ‖g‖
    1 - cosine  ~  ‖S(c) / ‖c‖ - S(g) / ‖g‖‖² / 2,
                   or 2 - ‖S(c) / ‖c‖ + S(g) / ‖g‖‖² / 2 where that is more exact
    bias        =  mean(c) - mean(g)

Where the lower bounds of ``compare.judging.bounds`` are larger, they replace the estimate: an error
in one element, or in two that a sketch can lose, moves an extreme or a norm. The place of the
largest difference is unknown.

**Uncertainty.** An estimate fails only if it exceeds what an estimate of a value at the limit
exceeds once in a thousand: sqrt(chi2.999(k) / k) times a limit on the error itself, sqrt(F.999(k,
k)) times one on the excess, the ratio of two estimates. So a true error over the limit by about
that factor may pass; the report says that sketches judged.

**A device without float64** adds up in float32 (``live.values.device_sketch``). The distance that
this alone may put between sketches is subtracted from the estimate.

**Integers and booleans** are compared exactly by digests; how many differ stays unknown."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from accucompare.bundle.format import GlobalRecord, Record
from accucompare.bundle.reading import Bundle, StepColumns, numbers_of
from accucompare.bundle.writing import SKETCHES_A_MEMBER
from accucompare.compare.judging.bounds import bound_columns, lower_bounds
from accucompare.compare.limits import NORMAL, ratio_limit
from accucompare.compare.measuring import Metrics, masks_may_explain
from accucompare.errors import RecordError
from accucompare.numbers import DTYPES, Float64, Products, deviation, distance, products

#: A sum of squares between these has lost nothing.
_SQUARES = 1e-200, 1e300
#: Members with products in memory: 500 KB each.
_HELD = 16


def can_estimate(golden: Record, candidate: Record) -> bool:
    """Whether two records have floating numbers and a sketch on at least one side, no less on any.

    Possible masks, NaN or Inf on one side, and norms beyond float64 go to ``judging.bounds``."""
    if not (golden.has_values and candidate.has_values) or None not in (
        golden.member,
        candidate.member,
    ):
        return False
    ours, theirs = golden.statistics, candidate.statistics
    if ours is None or not (DTYPES[golden.dtype].digits and DTYPES[candidate.dtype].digits):
        return False
    if theirs is None:
        return _is_finite_sum(candidate) and not (ours.l2 is None or ours.nan or ours.inf)
    if None in (ours.l2, theirs.l2):
        return False
    return (ours.nan, ours.inf) == (theirs.nan, theirs.inf) and not masks_may_explain(
        golden, candidate
    )


def _is_finite_sum(record: Record) -> bool:
    """Whether the sketches of finite terms tell a record's own."""
    if not isinstance(record, GlobalRecord) or record.sketch is None:
        return False
    known = [term.statistics for box in record.boxes for term in box.terms]
    return all(each is not None and not (each.nan or each.inf) for each in known)


class Estimates:
    """Estimates of pairs by sketches, worked out with their neighbours: ten times as fast."""

    def __init__(self) -> None:
        # the products of whole members
        self._held: dict[
            tuple[Bundle, Bundle, int, int, int, int, int], list[tuple[float, float, float]]
        ] = {}

    def metrics(self, ours: Bundle, golden: Record, theirs: Bundle, candidate: Record) -> Metrics:
        """Estimated metrics of a pair that ``can_estimate``. Returns as
        ``compare.judging.bounds.lower_bounds``, with ``rel_l2``, ``rmse`` and ``one_minus_cosine``
        raised to their estimates, and ``deviation`` set. Raises RecordError if a sketch is damaged,
        or the two were made in different ways."""
        assert golden.statistics is not None
        size = _size(ours, golden) or _size(theirs, candidate)
        if (
            golden.sketch is not None
            and candidate.sketch is not None
            and _size(theirs, candidate) != size
        ):
            raise _of_two_sizes(ours, golden, theirs, candidate)
        if candidate.statistics is None:
            return _of_sum(
                golden, numbers_of(ours, golden, size), numbers_of(theirs, candidate, size)
            )
        lengths = golden.statistics.l2 or 0.0, candidate.statistics.l2 or 0.0
        apart, angle = self._distances(ours, golden, theirs, candidate, size, lengths)
        bounds = lower_bounds(golden, candidate, cosine=False)
        if (
            blur := golden.statistics.rounding * lengths[0]
            + candidate.statistics.rounding * lengths[1]
        ):
            apart = max(apart - blur, 0.0)
        spread, root, least = deviation(size), math.sqrt(max(bounds.compared, 1)), min(lengths)
        rmse = max(apart / root, bounds.rmse)
        # else its bound, which is costly, cannot be larger: chords and angles
        if not least or math.sqrt(angle) < 2.0 * bounds.rmse * root / least:
            angle = max(angle, lower_bounds(golden, candidate).one_minus_cosine)
        return msgspec.structs.replace(
            bounds,
            rel_l2=max(
                apart / lengths[0] if lengths[0] else (math.inf if apart else 0.0), bounds.rel_l2
            ),
            one_minus_cosine=angle,
            max_abs=max(bounds.max_abs, rmse / (1.0 + 3.0 * spread)),
            rmse=rmse,
            deviation=spread,
        )

    def _distances(
        self,
        ours: Bundle,
        golden: Record,
        theirs: Bundle,
        candidate: Record,
        size: int,
        lengths: tuple[float, float],
    ) -> tuple[float, float]:
        """The norm of the difference, and 1 - cosine."""
        apart, along, length = self._products(ours, golden, theirs, candidate, size)
        longer = (lengths[1] - lengths[0]) / lengths[0] if lengths[0] else 0.0
        angle = (
            (apart - longer * (2.0 * along - longer * length)) / lengths[1] / lengths[1] / 2.0
            if lengths[1]
            else 0.0
        )
        # no difference, damage, or huge numbers
        if not (_SQUARES[0] < apart < _SQUARES[1] and length < _SQUARES[1] and angle <= 1.0):
            left, right = numbers_of(ours, golden, size), numbers_of(theirs, candidate, size)
            return distance(left, right), _one_minus_cosine(left, right, *lengths)
        if not all(lengths):
            return math.sqrt(apart), 0.0 if lengths[0] == lengths[1] else 1.0
        return math.sqrt(apart), max(angle, 0.0)

    def _products(
        self, ours: Bundle, golden: Record, theirs: Bundle, candidate: Record, size: int
    ) -> tuple[float, float, float]:
        """A pair's products; not finite if a sketch is damaged."""
        of_ranks = isinstance(golden, GlobalRecord) or isinstance(candidate, GlobalRecord)
        if golden.sketch is not None and golden.sketch == candidate.sketch and not of_ranks:
            of_all = self._of_members(ours, golden, theirs, candidate)
            place = golden.sketch % SKETCHES_A_MEMBER
            return of_all[place] if place < len(of_all) else (math.nan, math.nan, math.nan)
        left, right = numbers_of(ours, golden, size), numbers_of(theirs, candidate, size)
        return _each(products(left[None], right[None]))[0]

    def _of_members(
        self, ours: Bundle, golden: Record, theirs: Bundle, candidate: Record
    ) -> list[tuple[float, float, float]]:
        """The products of all sketches in the two members of a pair."""
        assert golden.sketch is not None
        key = (
            ours,
            theirs,
            golden.rank,
            golden.step,
            candidate.rank,
            candidate.step,
            golden.sketch // SKETCHES_A_MEMBER,
        )
        held = self._held.get(key)
        if held is None:
            left, right = ours.sketches(golden), theirs.sketches(candidate)
            rows = min(len(left), len(right))
            held = _each(products(left[:rows], right[:rows]))
            for old in list(self._held)[: len(self._held) - _HELD]:
                self._held.pop(old, None)  # another thread may have taken it away
            self._held[key] = held
        return held


@dataclass(frozen=True, eq=False)
class EstimatedMetrics:
    """What sketches of ``size`` numbers estimate about many pairs, as columns."""

    size: int
    # elements, relative L2 error, 1 - cosine, the largest and the mean difference, RMSE and bias,
    # of shape (pairs, 7); NaN where ``Estimates`` must look at the pair
    columns: Float64

    @property
    def rel_l2(self) -> Float64:
        return self.columns[:, 1]

    def each(self, some: slice = slice(None)) -> Iterator[Metrics]:
        """The metrics of one pair after the other."""
        return map(self._metrics, self.columns[some].tolist())

    def those(self, places: NDArray[Any]) -> EstimatedMetrics:
        """Some of the pairs."""
        return EstimatedMetrics(self.size, self.columns[places])

    def _metrics(self, numbers: list[float]) -> Metrics:
        elements, rel_l2, angle, max_abs, mean_abs, rmse, bias = numbers
        return Metrics(
            elements=int(elements),
            compared=int(elements),
            rel_l2=rel_l2,
            one_minus_cosine=angle,
            max_abs=max_abs,
            max_rel=None,
            mean_abs=mean_abs,
            rmse=rmse,
            bias=bias,
            over_1e3=None,
            over_5e3=None,
            saturated=None,
            masked=None,
            deviation=deviation(self.size),
        )


@np.errstate(all="ignore")
def estimate_columns(
    bundles: tuple[Bundle, Bundle], golden: StepColumns, candidate: StepColumns
) -> EstimatedMetrics:
    """The metrics of a step's pairs whose sketches tell them, as ``Estimates`` has them.

    Errors as ``Bundle.sketches``."""
    elements, sketches = golden.outline.reals, golden.sketches
    found = np.full((len(golden), 7), math.nan)
    if sketches is None or candidate.sketches is None:
        return EstimatedMetrics(1, found)
    size = bundles[0].sketch_facts(golden[0]).size
    if bundles[1].sketch_facts(candidate[0]).size != size:
        return EstimatedMetrics(1, found)
    of_all = np.full((len(golden), 3), math.nan)
    places = np.flatnonzero((sketches == candidate.sketches) & (sketches >= 0))
    for own in np.split(places, np.flatnonzero(np.diff(sketches[places] // SKETCHES_A_MEMBER)) + 1):
        if len(own):
            first, at = int(own[0]), sketches[own] % SKETCHES_A_MEMBER
            sides = bundles[0].sketches(golden[first]), bundles[1].sketches(candidate[first])
            rows = min(map(len, sides))
            of_member = np.stack(products(sides[0][:rows], sides[1][:rows]), 1)
            of_all[own[at < rows]] = of_member[at[at < rows]]
    squares, along, length = of_all.T
    lengths = golden.numbers[:, 3], candidate.numbers[:, 3]
    longer = (lengths[1] - lengths[0]) / lengths[0]
    angle = (squares - longer * (2.0 * along - longer * length)) / lengths[1] / lengths[1] / 2.0
    least, root = np.minimum(*lengths), np.sqrt(elements)
    bounds = bound_columns(golden.numbers, candidate.numbers, elements)
    apart = np.sqrt(squares)
    rmse = np.maximum(apart / root, bounds.rmse)
    says = (
        (squares > _SQUARES[0])
        & (squares < _SQUARES[1])
        & (length < _SQUARES[1])
        & (angle <= 1.0)
        & (least > 0.0)
        & (elements > 0)
        # else a bound may be larger
        & (np.sqrt(np.maximum(angle, 0.0)) >= 2.0 * bounds.rmse * root / least)
    )
    columns = (
        elements,
        np.maximum(apart / lengths[0], bounds.rel_l2),
        np.maximum(angle, 0.0),
        np.maximum(bounds.max_abs, rmse / (1.0 + 3.0 * deviation(size))),
        bounds.mean_abs,
        rmse,
        bounds.bias,
    )
    found[says] = np.stack(columns, 1)[says]
    found[~np.isfinite(found).all(axis=1)] = math.nan
    return EstimatedMetrics(size, found)


def _each(of_all: Products) -> list[tuple[float, float, float]]:
    """The products pair by pair."""
    return list(zip(*(each.tolist() for each in of_all), strict=True))


def room(metrics: Metrics) -> float:
    """The factor allowed on an estimated error, sqrt(chi2.999(k) / k); 1 if measured.

    E. B. Wilson & M. M. Hilferty, "The distribution of chi-square", PNAS 17, 1931."""
    if not metrics.deviation:
        return 1.0
    part = 2.0 / (9.0 * _numbers(metrics))
    return math.pow(1.0 - part + NORMAL * math.sqrt(part), 1.5)


def ratio_room(metrics: Metrics) -> float:
    """The same for an excess: sqrt(F.999(k, k))."""
    return ratio_limit(_numbers(metrics)) if metrics.deviation else 1.0


def _numbers(metrics: Metrics) -> int:
    """How many numbers the sketches had."""
    return round(0.5 / metrics.deviation**2)


def _of_sum(golden: Record, ours: Float64, theirs: Float64) -> Metrics:
    """The metrics of golden and a sum of ranks' terms, of which nothing but sketches is known."""
    assert golden.statistics is not None
    elements = math.prod(DTYPES[golden.dtype].reals(golden.shape))
    apart, length = distance(ours, theirs), golden.statistics.l2 or 0.0
    rmse, spread = apart / math.sqrt(max(elements, 1)), deviation(len(ours))
    return Metrics(
        elements=elements,
        compared=elements,
        rel_l2=apart / length if length else (math.inf if apart else 0.0),
        one_minus_cosine=_one_minus_cosine(
            ours, theirs, distance(ours, 0.0 * ours), distance(theirs, 0.0 * theirs)
        ),
        max_abs=rmse / (1.0 + 3.0 * spread),
        max_rel=None,
        rmse=rmse,
        over_1e3=None,
        over_5e3=None,
        saturated=None,
        masked=None,
        deviation=spread,
    )


def _one_minus_cosine(golden: Float64, candidate: Float64, ours: float, theirs: float) -> float:
    if not ours or not theirs:
        return 0.0 if ours == theirs else 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        golden, candidate = golden / ours, candidate / theirs
        apart, opposite = distance(golden, candidate), distance(golden, -candidate)
    if not min(apart, opposite) < 2.0:  # of damaged numbers, for these are unit vectors
        return 2.0
    # the shorter one is more exact
    return apart * apart / 2.0 if apart <= opposite else 2.0 - opposite * opposite / 2.0


def _size(bundle: Bundle, record: Record) -> int:
    return 0 if record.sketch is None else bundle.sketch_facts(record).size


def _of_two_sizes(ours: Bundle, golden: Record, theirs: Bundle, candidate: Record) -> RecordError:
    sizes = _size(ours, golden), _size(theirs, candidate)
    return RecordError(
        f"{theirs.path}: {candidate.key} has a sketch of {sizes[1]} numbers, and that in"
        f" {ours.path} has {sizes[0]}; capture one again: {theirs.path} with --sketch-size"
        f" {sizes[0]}, or {ours.path} with --sketch-size {sizes[1]}"
    )
