"""The verdict on a pair alone: whether it passes, and why. ``compare.origins.reasons`` says where a
difference came from.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from accucompare.bundle.format import Layout, Record
from accucompare.compare.judging.bounds import can_bound
from accucompare.compare.judging.estimates import ratio_room, room
from accucompare.compare.limits import (
    EXACT,
    FEW,
    Expected,
    SmallestLimit,
    Tolerance,
    differing,
    excess,
    floor,
    is_half,
    limit,
)
from accucompare.compare.measuring import Metrics
from accucompare.compare.pairing import most_changed
from accucompare.compare.rows import Reason, Status, Verdict
from accucompare.numbers import DTYPES, Kind


def judge_without_data(golden: Record, candidate: Record) -> Verdict | None:
    """The verdict on a pair that cannot or need not be measured; ``None`` if it is to be measured.

    A difference is ``OVER`` here, until ``trace`` says where it came from.
    """
    if golden.layout is not candidate.layout and not {golden.layout, candidate.layout} <= {
        Layout.STRIDED,
        Layout.SCALAR,
    }:
        return Verdict(Reason.DTYPE, detail=_both(golden, candidate))
    if _kind(golden) is not _kind(candidate):
        return Verdict(Reason.DTYPE, detail=_both(golden, candidate))
    if golden.layout is Layout.NESTED and None in (
        golden.components,
        candidate.components,
    ):  # an older bundle has no values of it
        return Verdict(Reason.NOT_COMPARABLE, detail=_described(golden))
    if golden.components != candidate.components:
        both = " and ".join(
            str([list(shape) for shape in (record.components or ())[:5]])
            for record in (golden, candidate)
        )
        return Verdict(Reason.SHAPE, detail=f"the tensors nested in it have other shapes: {both}")
    if golden.shape != candidate.shape:
        return Verdict(
            Reason.SHAPE,
            detail=f"golden is {list(golden.shape)}, the candidate {list(candidate.shape)}",
        )
    if golden.shard != candidate.shard:
        return Verdict(
            Reason.SHAPE, detail=f"golden is {_part(golden)}, the candidate {_part(candidate)}"
        )
    if (golden.member is not None and candidate.member is not None) or can_bound(golden, candidate):
        return None
    alike = _described(golden) == _described(candidate)
    detail = _described(golden) if alike else _both(golden, candidate)
    if golden.digest is None or candidate.digest is None:
        return Verdict(Reason.NOT_COMPARABLE, detail=detail, alike=alike)
    if golden.dtype != candidate.dtype:  # of which equal numbers have other bits
        return Verdict(Reason.NOT_COMPARABLE, detail=f"{detail}, of which digests tell nothing")
    same = golden.digest == candidate.digest
    if not same and golden.layout is not Layout.OPAQUE:
        detail = f"other bits, of {detail}; how far apart they are was not recorded"
    return Verdict(Reason.IDENTICAL if same else Reason.OVER, detail=detail)


def _part(record: Record) -> str:
    """Which part of a tensor a record is: ``[0:4, 8:16] of [4, 32]``."""
    shard = record.shard
    if shard is None:
        return f"the whole of {list(record.shape)}"
    places = ", ".join(
        f"{first}:{first + count}" for first, count in zip(shard.start, record.shape, strict=True)
    )
    return f"[{places}] of {list(shard.shape)}"


def _kind(record: Record) -> Kind | bool:
    """The kind of number that a record holds; for an opaque value, whether it has a digest to
    compare.
    """
    return DTYPES[record.dtype].kind if record.dtype in DTYPES else record.digest is not None


def _both(golden: Record, candidate: Record) -> str:
    return f"golden is {_described(golden)}, the candidate {_described(candidate)}"


def _described(record: Record) -> str:
    if record.layout is Layout.OPAQUE:
        return record.detail_and_line
    if record.layout is Layout.STRIDED:
        return record.dtype
    words = (
        f"a {record.layout.value} {record.dtype} tensor"
        if record.dtype
        else f"a {record.layout.value} value"
    )
    return f"{words} ({record.detail_and_line})" if record.detail_and_line else words


def judge_pair(
    golden: Record,
    candidate: Record,
    metrics: Metrics,
    tolerance: Tolerance,
    expected: Expected | None = None,
) -> Verdict:
    """The verdict on a measured pair alone. If its numbers fail, the reason is ``OVER`` until
    ``trace`` says where that came from.

    Args:
        golden, candidate: the pair.
        metrics: of the two.
        tolerance: what the user gave, or else what holds by default.
        expected: the baseline's error, if it is known; it judges instead of a default.
    """
    if expected is not None and DTYPES[golden.dtype].digits:
        return _judge_by_excess(golden, candidate, metrics, tolerance, expected)
    if (
        golden.digest is not None
        and golden.digest == candidate.digest
        and golden.dtype == candidate.dtype
    ):
        return Verdict(
            Reason.IDENTICAL,
            str(tolerance),
            tolerance.source,
            used=0.0,
            rel_l2_limit=tolerance.rel_l2,
        )
    if metrics.nonfinite_mismatch:
        detail = _nonfinite_detail(metrics)
        return Verdict(
            Reason.NON_FINITE,
            str(tolerance),
            tolerance.source,
            (),
            math.inf,
            detail,
            rel_l2_limit=tolerance.rel_l2,
        )
    detail = ""
    if metrics.saturated:
        largest = DTYPES[candidate.dtype].largest
        detail = (
            f"{metrics.saturated} value(s) saturated at {candidate.dtype}'s largest, {largest:g},"
            " where golden is larger"
        )
    if DTYPES[golden.dtype].kind in (Kind.INT, Kind.BOOL):
        if metrics.max_abs and expected is not None and expected.different:
            return _judge_choices(metrics, expected)
        if not metrics.max_abs:
            return Verdict(Reason.OK, str(EXACT), EXACT.source, used=0.0)
        detail = f"{differing(metrics)} of {metrics.compared} differ, and none may"
        return Verdict(Reason.OVER, str(EXACT), EXACT.source, used=math.inf, detail=detail)
    passes, used, smallest = zip(*_limits(metrics, tolerance), strict=True)
    if math.isinf(metrics.rel_l2) and tolerance.rel_l2 is not None:
        detail = (
            "golden is all zeros, so no relative limit would pass;"
            f" {SmallestLimit('atol', metrics.max_abs)} would"
        )
    return Verdict(
        evident=not all(passes) and tolerance.is_no_rounding(metrics.rel_l2),
        reason=Reason.OK if all(passes) else Reason.OVER,
        tolerance=str(tolerance),
        rule=tolerance.source,
        smallest=smallest,
        used=max(used),
        detail=detail,
        rel_l2_limit=tolerance.rel_l2,
    )


def _judge_by_excess(
    golden: Record, candidate: Record, metrics: Metrics, tolerance: Tolerance, expected: Expected
) -> Verdict:
    """The verdict by the user's limits, if there are any, with the excess added; else by the
    excess.
    """
    verdict = judge_pair(golden, candidate, metrics, tolerance)
    if metrics.nonfinite_mismatch:
        return verdict
    dtype = expected.dtype or candidate.dtype
    ratio, most = (
        excess(metrics, expected, dtype),
        limit(metrics.compared, dtype) * ratio_room(metrics),
    )
    if not tolerance.by_default:
        return replace(
            verdict, excess=ratio, evident=verdict.status is Status.FAIL and ratio > most
        )
    if (
        math.isinf(metrics.rel_l2) and verdict.reason is Reason.OK
    ):  # golden is all zeros, and rounding takes that much
        return verdict
    expects = max(expected.rel_l2, floor(dtype))
    most = max(most, most * tolerance.composed / expects, tolerance.summing / expects)
    verdict = replace(
        verdict,
        tolerance=f"excess {most:.3g}",
        rule="baseline",
        smallest=(SmallestLimit("excess", ratio),),
        used=ratio / most,
        rel_l2_limit=most * expects if math.isfinite(expects) else None,
        excess=ratio,
        excess_limit=most,
        evident=False,
    )
    beyond = (
        tolerance.ceiling is not None
        and tolerance.ceiling < metrics.rel_l2 < math.inf
        and ratio <= most
    )
    if (
        beyond and not tolerance.fed
    ):  # rounding may have changed a choice, in the baseline too: no failure, and no pass
        return replace(verdict, reason=Reason.OK, detail=_far_beyond(expected), beyond=True)
    if beyond and tolerance.ceiling is not None:
        return replace(
            verdict,
            reason=Reason.OVER,
            tolerance=f"rel_l2 {tolerance.ceiling:g}",
            rule="ceiling",
            smallest=(),
            used=metrics.rel_l2 / tolerance.ceiling,
            excess_limit=None,
            rel_l2_limit=tolerance.ceiling,
            detail=_far_beyond(expected),
            beyond=True,
        )
    if expected.missing_cast and ratio <= most:
        return replace(verdict, reason=Reason.OVER_PRECISE, detail=expected.missing_cast)
    if verdict.reason is Reason.IDENTICAL:
        return replace(verdict, smallest=())
    if ratio > most:
        return replace(verdict, reason=Reason.OVER, evident=True)
    proves = (
        is_half(dtype) and metrics.compared >= FEW and floor(dtype) < expected.rel_l2 < math.inf
    )
    detail = (
        verdict.detail if math.isfinite(metrics.rel_l2) else ""
    )  # that detail was about another limit
    return replace(
        verdict,
        reason=Reason.OVER_PRECISE if proves and ratio < 1.0 / most else Reason.OK,
        detail=detail,
    )


def _far_beyond(expected: Expected) -> str:
    return f"far beyond rounding, and so is the baseline (rel_l2 {expected.rel_l2:.2e})"


def _judge_choices(metrics: Metrics, expected: Expected) -> Verdict:
    """The verdict on integers that rounding alone changes, as the baseline shows: choices among
    nearly equal values, such as experts.

    How often that happens is about a Poisson variable, whose mean is estimated by the baseline's
    single count. Two such counts hardly ever differ by more than three times their joint standard
    deviation, plus one. If most of the baseline's are others, as where the integers are counts
    themselves (tokens of each expert), how many differ tells nothing, and their distance is judged
    likewise."""
    count = differing(metrics)
    if 2 * expected.different > metrics.compared and math.isfinite(expected.rmse):
        apart, theirs = (
            rmse * math.sqrt(metrics.compared) for rmse in (metrics.rmse, expected.rmse)
        )
        if apart > (most := most_changed(theirs)):
            detail = (
                f"{count} of {metrics.compared} differ, {apart:.3g} apart in L2 norm; the baseline"
                f" is {theirs:.3g}"
            )
            return Verdict(
                Reason.OVER,
                f"{most:.3g} apart",
                "baseline",
                used=apart / most,
                detail=detail,
                evident=True,
            )
    most = most_changed(expected.different)
    reason = Reason.OK if count <= most else Reason.OVER
    detail = (
        f"{count} of {metrics.compared} differ; so do {expected.different} in the baseline, by"
        " rounding alone"
    )
    smallest, ratio = (SmallestLimit("different", count),), count / expected.different
    evident = reason is Reason.OVER
    return Verdict(
        reason,
        f"{most:.0f} different",
        "baseline",
        smallest,
        count / most,
        detail,
        excess=ratio,
        evident=evident,
    )


def settle_noise(
    verdict: Verdict, tolerance: Tolerance, metrics: Metrics | None, noise: float | None
) -> Verdict:
    """The verdict on a pair whose candidate was run twice. ``noise`` is the distance of the two
    runs, relative to golden's norm.
    """
    if verdict.status is not Status.FAIL or metrics is None or not is_noise(metrics, noise):
        return verdict
    detail = f"two runs of the candidate differ by {noise:.2e} from each other"
    if tolerance.by_default:
        return replace(verdict, reason=Reason.NOT_DETERMINISTIC, detail=detail)
    return replace(verdict, detail="; ".join(part for part in (verdict.detail, detail) if part))


def settle_unsteady(
    verdict: Verdict, tolerance: Tolerance, metrics: Metrics | None, apart: float | None
) -> Verdict:
    """The verdict on a pair whose golden was captured twice. ``apart`` is the distance of the two,
    relative to the first's norm.

    If they are far apart, golden is no value to compare with: memory that was never written, for
    example."""
    if (
        verdict.status is not Status.FAIL
        or metrics is None
        or not apart
        or not tolerance.by_default
    ):
        return verdict
    if apart <= UNSTEADY and not is_noise(metrics, apart):
        return verdict
    return replace(
        verdict,
        reason=Reason.NOT_DETERMINISTIC,
        detail=f"two captures of golden differ by {apart:.2e} from each other",
    )


#: Relative L2 distance of golden's two captures beyond which golden is not compared with.
UNSTEADY = 0.1

#: An error up to this many times the distance of two runs counts as noise.
RUNS = 2.0


def is_noise(metrics: Metrics, noise: float | None) -> bool:
    """Whether an error is about as large as the distance of two runs, or smaller; both are relative
    to golden's norm.
    """
    return (
        bool(noise and math.isfinite(noise))
        and not metrics.nonfinite_mismatch
        and metrics.rel_l2 <= RUNS * (noise or 0.0)
    )


#: Whether a limit is kept, how much of it is used, and the smallest limit that would pass.
_Judged = tuple[bool, float, SmallestLimit]


def _limits(metrics: Metrics, tolerance: Tolerance) -> list[_Judged]:
    judged: list[_Judged] = []
    if tolerance.atol is not None or tolerance.rtol is not None:
        assert metrics.over_tolerance is not None
        assert metrics.tolerance_used is not None
        assert metrics.needed_atol is not None
        assert metrics.max_rel is not None
        relative = not tolerance.atol and tolerance.rtol
        smallest = (
            SmallestLimit("rtol", metrics.max_rel)
            if relative
            else SmallestLimit("atol", metrics.needed_atol)
        )
        used = metrics.tolerance_used
        passes = metrics.over_tolerance == 0
        judged.append((passes, min(used, 1.0) if passes else used, smallest))
    if tolerance.rel_l2 is not None:
        judged.append(_at_most(metrics.rel_l2, tolerance.rel_l2, "rel_l2", room(metrics)))
    if tolerance.cosine is not None:
        judged.append(
            _at_most(metrics.one_minus_cosine, 1.0 - tolerance.cosine, "cosine", room(metrics) ** 2)
        )
    return judged


def _at_most(measured: float, limit: float, name: str, room: float) -> _Judged:
    """``room``: by what factor an estimate may be over the limit."""
    most = limit * room
    used = measured / most if most else (math.inf if measured else 0.0)
    return measured <= most, used, SmallestLimit(name, measured)


def _nonfinite_detail(metrics: Metrics) -> str:
    parts = []
    if metrics.golden_nan != metrics.candidate_nan:
        parts.append(f"golden has {metrics.golden_nan} NaN, the candidate {metrics.candidate_nan}")
    if metrics.golden_inf != metrics.candidate_inf:
        parts.append(f"golden has {metrics.golden_inf} Inf, the candidate {metrics.candidate_inf}")
    if metrics.saturated:
        parts.append(f"{metrics.saturated} saturated in the candidate")
    if metrics.masked and parts:
        parts.append(f"{metrics.masked} masked on both sides are equal")
    counts = "; ".join(parts) or f"NaN or Inf in {metrics.nonfinite_mismatch} different places"
    return f"{counts}; the first at {list(metrics.nonfinite_index or ())}"
