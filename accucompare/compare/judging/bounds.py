"""What statistics alone prove about a pair without recorded values: how much it differs at least.

A bundle captured with ``--mode stats`` keeps each tensor's digest, extrema, mean and L2 norm. Equal
digests prove that two tensors are the same. Everything else here is a *lower* bound on what
``compare.measuring.measure`` would have measured. There are no upper bounds: reordering a tensor's
values changes none of its statistics.

**The bounds.** Let g and c be golden's and the candidate's n finite values (complex ones as pairs
of reals) and d = c - g. Any tensor x has a mean m(x) and a spread s(x) with n s² = ‖x - m‖² = ‖x‖²
- n m². The left side of d - m(d) = (c - m(c)) - (g - m(g)) is orthogonal to a constant, so
Pythagoras and the triangle inequality give ::

    bias     =  m(c) - m(g)
    rmse²    =  bias² + s(d)²  >=  bias² + (s(c) - s(g))²

that is, rmse is at least the distance of the two points (m, s) in the plane. By the triangle
inequality there, this is no less than | ‖c‖ - ‖g‖ | / sqrt(n) or | bias |. The same points bound
the angle between g and c, for by Cauchy-Schwarz g·c / n = m(g) m(c) + (g - m(g))·(c - m(c)) / n <=
m(g) m(c) + s(g) s(c): the cosine of the tensors is at most that of the points. The largest and the
smallest value are 1-Lipschitz functions of the values: ::

    max |d|  >=  max(|max c - max g|, |min c - min g|, rmse)
    rmse     >=  max |d| / sqrt(n),    mean |d|  >=  max(|bias|, max |d| / n)

**Rounding.** Extrema are exact. A sum in chunks of CHUNK values is wrong by at most CHUNK u sum
|x|, in whatever order a chunk is added, u = 2^-53 (C.-P. Jeannerod & S. M. Rump, "Improved error
bounds for inner products in floating-point arithmetic", SIAM J. Matrix Anal. Appl. 34, 2013); the
exact sum of the chunks, the division and the root add a few u. So an L2 norm is right to CHUNK u of
itself, and a mean to CHUNK u of mean |x|, which is at most the root mean square and the largest
magnitude. Each may lie anywhere within twice that (2e-12 relative), which leaves room for rounding
here; every bound holds wherever they lie.

**A device without float64** adds up in float32 (``live.values.device_sketch``): its mean and norm
are right to the statistics' ``rounding``.

**NaN and Inf.** Statistics are of finite values only. Equally many NaN and equally many Inf on both
sides are assumed to be in the same places. If they are not, the pair fails for that reason anyway,
so a reported failure stays certain. A pair that does not fail is not comparable, unless its digests
agree: Inf against -Inf counts alike. If the counts differ, the pair fails for certain, and nothing
is said about the finite values.

**Another tool's statistics**, from its dump, come without digests. They were computed in the
tensor's own type, or in float32, so a mean or norm is taken to be right to 2 u of the type and to 8
u sqrt(n) for n roundings of a sum in float32. A missing mean or norm lies where the extrema let it.
NaN and Inf are known to be there, but not counted: on one side only they fail for certain, on both
they are not comparable.

**Masks.** If both sides may hold different numbers as masks (``compare.measuring.masks``), these
may be most of a sum, and their number is unknown. Then only a different count of NaN is certain."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from accucompare.bundle.format import Record
from accucompare.compare.limits import EXACT, Tolerance
from accucompare.compare.measuring import Metrics, masks_may_explain
from accucompare.compare.remarks import BareRemark
from accucompare.compare.rows import Reason, Verdict
from accucompare.numbers import CHUNK, DTYPES, Float64, Kind, Statistics

#: Largest relative error of a mean or norm, doubled for the arithmetic here; and the absolute error
#: near 0, where floats are coarse.
_ERROR = CHUNK * 2.0**-52
_TINY = 4 * math.ulp(0.0)
#: The most that an angle between 0 and pi loses to rounding.
_ANGLE_ERROR = 4 * math.ulp(math.pi)


def can_bound(golden: Record, candidate: Record) -> bool:
    return all(record.statistics and record.dtype in DTYPES for record in (golden, candidate))


def _of_another_tool(record: Record) -> bool:
    """Whether its statistics are another tool's; ours come with a digest."""
    return record.digest is None


def _error_of(record: Record, count: int) -> float:
    """The largest relative error of a record's mean and norm over ``count`` values."""
    if not _of_another_tool(record):
        return max(_ERROR, record.statistics.rounding if record.statistics is not None else 0.0)
    return 2 * DTYPES[record.dtype].rounding + 8 * DTYPES["float32"].rounding * math.sqrt(count)


def lower_bounds(golden: Record, candidate: Record, cosine: bool = True) -> Metrics:
    """Lower bounds on a pair's metrics, from its statistics. Returns metrics: ``elements`` and the
    counts of NaN and Inf are exact. ``bias`` is the difference of the means, moved towards 0 by its
    possible error. ``rel_l2``, ``one_minus_cosine``, ``max_abs``, ``mean_abs``, ``rmse`` and
    ``nonfinite_mismatch`` are lower bounds; all else is ``None``. If the counts of NaN or Inf
    differ, or masks may explain any difference, ``compared`` is 0, and nothing is said about the
    finite values.

    Args:
        golden, candidate: records that ``can_bound``, of one shape and of dtypes of one kind.
        cosine: whether to compute ``one_minus_cosine`` (a third of the time); else it is 0.
    """
    ours, theirs = golden.statistics, candidate.statistics
    assert ours is not None
    assert theirs is not None
    kind = DTYPES[golden.dtype].kind
    elements = math.prod(golden.shape) * (2 if kind is Kind.COMPLEX else 1)
    metrics = Metrics(
        elements=elements,
        max_rel=None,
        over_1e3=None,
        over_5e3=None,
        saturated=None,
        golden_nan=ours.nan,
        candidate_nan=theirs.nan,
        golden_inf=ours.inf,
        candidate_inf=theirs.inf,
        # at least so many positions hold NaN, Inf or a finite value on one side only
        nonfinite_mismatch=max(
            abs(ours.nan - theirs.nan),
            abs(ours.inf - theirs.inf),
            abs(ours.nan + ours.inf - theirs.nan - theirs.inf),
        ),
        masked=None,
    )
    if masks_may_explain(golden, candidate):
        return msgspec.structs.replace(metrics, nonfinite_mismatch=abs(ours.nan - theirs.nan))
    # without NaN and Inf, both counts are one object
    count = elements - ours.nan - ours.inf if ours.nan or ours.inf else elements
    left = _profile(ours, count, _error_of(golden, count))
    right = _profile(theirs, count, _error_of(candidate, count))
    if metrics.nonfinite_mismatch or left is None or right is None:
        return metrics
    digests = golden.digest, candidate.digest
    extremes = max(_distance(right.low, left.low), _distance(right.high, left.high))
    if (
        kind in (Kind.INT, Kind.BOOL)
        and golden.dtype == candidate.dtype
        and None not in digests
        and golden.digest != candidate.digest
    ):
        extremes = max(extremes, 1.0)  # somewhere integers differ, and so by one at least
    one = min(extremes, sys.float_info.max)
    bias = left.mean.apart(right.mean)
    rmse = max(math.hypot(bias, left.spread.apart(right.spread)), _down(one / math.sqrt(count)))
    rel_l2 = math.inf if extremes else 0.0
    if left.largest:
        rel_l2 = min(rmse, sys.float_info.max) / left.rms.most
    return msgspec.structs.replace(
        metrics,
        compared=count,
        rel_l2=rel_l2,
        one_minus_cosine=_one_minus_cosine(left, right) if cosine else 0.0,
        max_abs=max(extremes, rmse),
        mean_abs=max(bias, _down(one / count)),
        rmse=rmse,
        bias=bias if right.mean.least > left.mean.least else 0.0 - bias,  # never -0
    )


class BoundColumns(NamedTuple):
    """``lower_bounds`` of many pairs, as columns."""

    rel_l2: Float64
    max_abs: Float64
    mean_abs: Float64
    rmse: Float64
    bias: Float64


def bound_columns(golden: Float64, candidate: Float64, counts: Float64) -> BoundColumns:
    """``lower_bounds`` of many pairs of floating tensors, all finite, bit for bit.

    Args:
        golden, candidate: smallest and largest value, mean, L2 norm of each, of shape (pairs, 4).
        counts: how many values each has.
    """
    (low, high, mean, l2), (other_low, other_high, other_mean, other_l2) = golden.T, candidate.T
    largest, other_largest = (
        np.maximum(np.abs(side[:, 0]), np.abs(side[:, 1])) for side in (golden, candidate)
    )
    most, means, spread = _ranges(mean, l2, largest, counts)
    _, others, other_spread = _ranges(other_mean, other_l2, other_largest, counts)
    extremes = np.maximum(np.abs(other_low - low), np.abs(other_high - high))
    one = np.minimum(extremes, sys.float_info.max)
    bias = _apart(means, others)
    across = np.array(list(map(math.hypot, bias.tolist(), _apart(spread, other_spread).tolist())))
    rmse = np.maximum(across, _lower(one / np.sqrt(counts)))
    zeros = np.where(extremes > 0.0, np.inf, 0.0)
    return BoundColumns(
        np.where(largest > 0.0, np.minimum(rmse, sys.float_info.max) / most, zeros),
        np.maximum(extremes, rmse),
        np.maximum(bias, _lower(one / counts)),
        rmse,
        np.where(others[0] > means[0], bias, 0.0 - bias),
    )


#: Least and most of many numbers.
_Ranges = tuple[Float64, Float64]


def _ranges(
    mean: Float64, l2: Float64, largest: Float64, counts: Float64
) -> tuple[Float64, _Ranges, _Ranges]:
    """The largest root mean square, and the ranges of mean and spread; as ``_profile``."""
    root = np.maximum(l2, 0.0) / np.sqrt(counts)
    least, most = _lower(root), root + _ERROR * root + _TINY
    error = _ERROR * np.minimum(most, largest) + _TINY
    nearest, furthest = np.maximum(np.abs(mean) - error, 0.0), np.abs(mean) + error
    return most, (mean - error, mean + error), (_legs(least, furthest), _legs(most, nearest))


def _apart(one: _Ranges, other: _Ranges) -> Float64:
    return np.maximum(np.maximum(one[0] - other[1], other[0] - one[1]), 0.0)


def _legs(hypotenuse: Float64, other: Float64) -> Float64:
    share = other / hypotenuse
    return np.where(other >= hypotenuse, 0.0, hypotenuse * np.sqrt((1.0 - share) * (1.0 + share)))


def _lower(values: Float64) -> Float64:
    return np.maximum(values - _ERROR * values - _TINY, 0.0)


class _Range(msgspec.Struct, frozen=True, gc=False):
    least: float
    most: float

    def apart(self, other: _Range) -> float:
        """The least distance of two numbers in these ranges."""
        if self.least > other.most:
            return self.least - other.most
        return other.least - self.most if other.least > self.most else 0.0


class _Profile(msgspec.Struct, frozen=True, gc=False):
    """One tensor's finite values: exact extrema; ranges of mean, root mean square and spread."""

    low: float
    high: float
    mean: _Range
    rms: _Range
    spread: _Range

    @property
    def largest(self) -> float:
        return max(abs(self.low), abs(self.high))


def _profile(statistics: Statistics, count: int, relative: float = _ERROR) -> _Profile | None:
    """The profile of ``count`` finite values, mean and norm right to ``relative``."""
    low, high = statistics.min, statistics.max
    if count <= 0 or low is None or high is None:
        return None
    largest = max(abs(float(low)), abs(float(high)))
    mean = statistics.mean if statistics.mean is not None else float(low) / 2 + float(high) / 2
    # a damaged bundle may claim anything
    unknown = 0.0 if statistics.mean is not None else abs(float(high) / 2 - float(low) / 2)
    if statistics.l2 is None:  # beyond float64, or not there
        rms = _Range(max(_down(abs(mean), relative) - unknown, 0.0), largest)
    else:
        root = max(statistics.l2, 0.0) / math.sqrt(count)
        rms = _Range(_down(root, relative), root + relative * root + _TINY)
    error = unknown + relative * min(rms.most, largest) + _TINY
    least, most = max(abs(mean) - error, 0.0), abs(mean) + error
    spread = _Range(_leg(rms.least, most), _leg(rms.most, least))
    return _Profile(low, high, _Range(mean - error, mean + error), rms, spread)


def _leg(hypotenuse: float, other: float) -> float:
    """The third side of a right-angled triangle; 0 if there is none."""
    if other >= hypotenuse:
        return 0.0
    return hypotenuse * math.sqrt((1.0 - other / hypotenuse) * (1.0 + other / hypotenuse))


def _down(value: float, relative: float = _ERROR) -> float:
    return max(value - relative * value - _TINY, 0.0)


def _distance(left: float, right: float) -> float:
    try:
        return float(abs(left - right))
    except OverflowError:  # of huge integers in damaged statistics
        return math.inf


def _one_minus_cosine(golden: _Profile, candidate: _Profile) -> float:
    if not golden.largest or not candidate.largest:
        return 0.0 if golden.largest == candidate.largest else 1.0
    angle = max(_angles(golden).apart(_angles(candidate)) - _ANGLE_ERROR, 0.0)
    return 2.0 * (1.0 - _ERROR) * math.sin(angle / 2.0) ** 2


def _angles(profile: _Profile) -> _Range:
    """The range of the point (mean, spread)'s angle: a rectangle's corners are its extremes."""
    mean, spread = profile.mean, profile.spread
    corners = [
        math.atan2(leg, base)
        for leg in (spread.least, spread.most)
        for base in (mean.least, mean.most)
    ]
    return _Range(min(corners), max(corners))


def judge_bounds(
    golden: Record, candidate: Record, metrics: Metrics, tolerance: Tolerance
) -> Verdict:
    """The verdict on a pair by statistics alone. A failure is ``OVER`` until ``trace`` explains it.

    A failure is certain: a limit is exceeded whatever the values were. So is ``identical``. ``ok``
    means only that statistics prove no failure; a remark says so. ``needed`` is empty, since no
    limit is known to pass. If masks may explain any difference, the pair is not comparable.

    One more limit follows from ``rmse``: if every element kept to atol + rtol |golden|, rmse would
    be at most atol + rtol * (root mean square of golden), by Minkowski's inequality.

    Args:
        golden, candidate: records that ``can_bound``, of one shape and of dtypes of one kind.
        metrics: their ``lower_bounds``.
    """
    same_dtype = golden.dtype == candidate.dtype
    if same_dtype and golden.digest is not None and golden.digest == candidate.digest:
        return Verdict(
            Reason.IDENTICAL, tolerance.judged, over_limit=0.0, rel_l2_limit=tolerance.rel_l2
        )
    uncounted = _of_another_tool(golden) or _of_another_tool(candidate)
    if (
        uncounted
        and metrics.golden_nan + metrics.golden_inf
        and metrics.candidate_nan + metrics.candidate_inf
    ):
        return Verdict(Reason.NOT_COMPARABLE, remarks=(BareRemark.NON_FINITE_UNCOUNTED,))
    if metrics.nonfinite_mismatch:
        exact = BareRemark.NON_FINITE_BY_STATISTICS
        return Verdict(
            Reason.NON_FINITE,
            tolerance.judged,
            over_limit=math.inf,
            remarks=(BareRemark.NON_FINITE_AT_LEAST if uncounted else exact,),
            rel_l2_limit=tolerance.rel_l2,
        )
    if masks_may_explain(golden, candidate):
        return Verdict(Reason.NOT_COMPARABLE, remarks=(BareRemark.MAY_BE_MASKS,))
    bounds = (BareRemark.LOWER_BOUNDS,)
    if DTYPES[golden.dtype].kind in (Kind.INT, Kind.BOOL):
        if metrics.max_abs:
            return Verdict(Reason.OVER, EXACT.judged, over_limit=math.inf, remarks=bounds)
        return Verdict(Reason.OK, EXACT.judged, over_limit=0.0, remarks=bounds)
    used = max(_shares(golden, metrics, tolerance), default=0.0)
    if used <= 1.0 and metrics.golden_nan + metrics.golden_inf:
        return Verdict(Reason.NOT_COMPARABLE, remarks=(BareRemark.NON_FINITE_SOMEWHERE,))
    return Verdict(
        reason=Reason.OVER if used > 1.0 else Reason.OK,
        limit=tolerance.judged,
        over_limit=used,
        remarks=bounds,
        rel_l2_limit=tolerance.rel_l2,
        evident=used > 1.0 and tolerance.is_no_rounding(metrics.rel_l2),
    )


def _shares(golden: Record, metrics: Metrics, tolerance: Tolerance) -> Iterator[float]:
    """The least share of each limit that is used."""
    if tolerance.atol is not None or tolerance.rtol is not None:
        atol, rtol = tolerance.atol or 0.0, tolerance.rtol or 0.0
        assert golden.statistics is not None
        profile = _profile(golden.statistics, metrics.compared, _error_of(golden, metrics.compared))
        if profile is not None:
            yield _share(metrics.max_abs, atol + rtol * profile.largest)
            yield _share(metrics.rmse, atol + rtol * profile.rms.most)
    if tolerance.rel_l2 is not None:
        yield _share(metrics.rel_l2, tolerance.rel_l2)
    if tolerance.cosine is not None:
        yield _share(metrics.one_minus_cosine, 1.0 - tolerance.cosine)


def _share(least: float, limit: float) -> float:
    if least <= limit:
        return min(least / limit, 1.0) if 0.0 < limit < math.inf else 0.0
    return max(least / limit, math.nextafter(1.0, 2.0)) if limit else math.inf
