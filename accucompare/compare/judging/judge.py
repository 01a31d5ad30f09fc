"""The verdict on a pair alone; ``compare.origins.trace`` says where a difference came from."""

from __future__ import annotations

import math

from msgspec.structs import replace

from accucompare.bundle.format import Layout, Record, Role
from accucompare.compare import remarks
from accucompare.compare.constants import FEW, IN_PART, RUNS, UNSTEADY
from accucompare.compare.judging.bounds import can_bound
from accucompare.compare.judging.estimates import ratio_room, room
from accucompare.compare.limit_facts import LimitKind, LimitOfKind
from accucompare.compare.limits import (
    EXACT,
    Expected,
    SmallestLimit,
    Tolerance,
    differing,
    excess,
    excess_limit,
    floor,
    is_half,
)
from accucompare.compare.measuring import Metrics
from accucompare.compare.pairing import most_changed
from accucompare.compare.remarks import BareRemark, PairRemark
from accucompare.compare.rows import Reason, Status, Verdict
from accucompare.numbers import DTYPES, Kind


def judge_without_data(golden: Record, candidate: Record) -> Verdict | None:
    """The verdict on a pair that need not be measured, ``OVER`` until ``trace``; else ``None``."""
    if golden.layout is not candidate.layout and not {golden.layout, candidate.layout} <= {
        Layout.STRIDED,
        Layout.SCALAR,
    }:
        return Verdict(Reason.DTYPE, remarks=(BareRemark.BOTH_KINDS,))
    if _kind(golden) is not _kind(candidate):
        return Verdict(Reason.DTYPE, remarks=(BareRemark.BOTH_KINDS,))
    # without its parts' shapes, its values were not kept
    if golden.layout is Layout.NESTED and None in (golden.components, candidate.components):
        return Verdict(Reason.NOT_COMPARABLE, remarks=(BareRemark.GOLDENS_KIND,))
    if golden.components != candidate.components:
        return Verdict(Reason.SHAPE, remarks=(BareRemark.OTHER_COMPONENTS,))
    if golden.shape != candidate.shape:
        return Verdict(Reason.SHAPE, remarks=(BareRemark.OTHER_SHAPES,))
    if golden.shard != candidate.shard:
        return Verdict(Reason.SHAPE, remarks=(BareRemark.OTHER_PARTS,))
    if (golden.member is not None and candidate.member is not None) or can_bound(golden, candidate):
        return None
    if golden.digest is None or candidate.digest is None:
        alike = _what(golden) == _what(candidate)
        return Verdict(Reason.NOT_COMPARABLE, remarks=(BareRemark.ALL_THERE_IS,), alike=alike)
    opaque = golden.layout is Layout.OPAQUE
    if golden.dtype != candidate.dtype and not opaque:  # equal numbers of two types: other bits
        return Verdict(Reason.NOT_COMPARABLE, remarks=(BareRemark.DIGESTS_TELL_NOTHING,))
    if golden.digest == candidate.digest:
        return Verdict(Reason.IDENTICAL, remarks=(BareRemark.ALL_THERE_IS,))
    remark = BareRemark.ALL_THERE_IS if opaque else BareRemark.OTHER_BITS
    return Verdict(Reason.OVER, remarks=(remark,))


def _what(record: Record) -> tuple[Layout, str, str]:
    dtype = "" if record.layout is Layout.OPAQUE else record.dtype
    return record.layout, dtype, "" if record.layout is Layout.STRIDED else record.detail_and_line


def _kind(record: Record) -> Kind | bool:
    """The kind of number in a record; for an opaque value, whether it has a digest to compare."""
    return DTYPES[record.dtype].kind if record.dtype in DTYPES else record.digest is not None


def judge_pair(
    golden: Record,
    candidate: Record,
    metrics: Metrics,
    tolerance: Tolerance,
    expected: Expected | None = None,
) -> Verdict:
    """The verdict on a measured pair alone. A failure is ``OVER`` until ``trace`` explains it.

    Args:
        tolerance: what the user gave, or else the default.
        expected: the baseline's error, if known; it judges instead of a default.
    """
    if metrics.rmse:
        tolerance = tolerance.of_spacing(candidate.dtype, metrics.rmse, metrics.rel_l2)
    verdict = _judge_whole(golden, candidate, metrics, tolerance, expected)
    over = verdict.reason is Reason.OVER and expected is None and tolerance.by_default
    if (over or verdict.beyond) and metrics.rel_l2 <= tolerance.noise:
        cancel = (remarks.TermsCancel(tolerance.noise),)
        return replace(verdict, reason=Reason.OK, beyond=True, evident=False, remarks=cancel)
    limit = verdict.rel_l2_limit
    if (
        verdict.reason is Reason.OK
        and tolerance.by_default
        and limit is not None
        and metrics.in_part > IN_PART * limit
        and golden.role in (Role.INPUT, Role.OUTPUT)
    ):
        said = (*verdict.remarks, remarks.BeyondInPart(metrics.in_part))
        return replace(verdict, remarks=said)
    return verdict


def _judge_whole(
    golden: Record,
    candidate: Record,
    metrics: Metrics,
    tolerance: Tolerance,
    expected: Expected | None,
) -> Verdict:
    """As ``judge_pair``, by the whole tensors' metrics."""
    if expected is not None and DTYPES[golden.dtype].digits:
        return _judge_by_excess(golden, candidate, metrics, tolerance, expected)
    if (
        golden.digest is not None
        and golden.digest == candidate.digest
        and golden.dtype == candidate.dtype
    ):
        return Verdict(
            Reason.IDENTICAL, tolerance.judged, over_limit=0.0, rel_l2_limit=tolerance.rel_l2
        )
    if metrics.nonfinite_mismatch:
        return Verdict(
            Reason.NON_FINITE,
            tolerance.judged,
            over_limit=math.inf,
            remarks=(BareRemark.NON_FINITE_COUNTS,),
            rel_l2_limit=tolerance.rel_l2,
        )
    said: tuple[PairRemark, ...] = (
        (remarks.Saturated(metrics.saturated),) if metrics.saturated else ()
    )
    if DTYPES[golden.dtype].kind in (Kind.INT, Kind.BOOL):
        if metrics.max_abs and expected is not None and expected.different:
            return _judge_choices(metrics, expected)
        if not metrics.max_abs:
            return Verdict(Reason.OK, EXACT.judged, over_limit=0.0)
        remark = remarks.NoneMayDiffer(differing(metrics), metrics.compared)
        return Verdict(Reason.OVER, EXACT.judged, over_limit=math.inf, remarks=(remark,))
    passes, used, smallest = zip(*_limits(metrics, tolerance), strict=True)
    if math.isinf(metrics.rel_l2) and tolerance.rel_l2 is not None:
        said = (remarks.NoRelativeLimit(metrics.max_abs),)
    return Verdict(
        evident=not all(passes) and tolerance.is_no_rounding(metrics.rel_l2),
        reason=Reason.OK if all(passes) else Reason.OVER,
        limit=tolerance.judged,
        smallest=smallest,
        over_limit=max(used),
        remarks=said,
        rel_l2_limit=tolerance.rel_l2,
    )


def _judge_by_excess(
    golden: Record, candidate: Record, metrics: Metrics, tolerance: Tolerance, expected: Expected
) -> Verdict:
    """The verdict by the user's limits, if any, with the excess added; else by the excess."""
    verdict = _judge_whole(golden, candidate, metrics, tolerance, None)
    if metrics.nonfinite_mismatch:
        return verdict
    dtype = expected.dtype or candidate.dtype
    ratio = excess(metrics, expected, dtype)
    most = excess_limit(metrics.compared, dtype) * ratio_room(metrics) * tolerance.kernels
    if not tolerance.by_default:
        return replace(
            verdict, excess=ratio, evident=verdict.status is Status.FAIL and ratio > most
        )
    # golden is all zeros, and rounding makes that much
    if math.isinf(metrics.rel_l2) and verdict.reason is Reason.OK:
        return verdict
    expects = max(expected.rel_l2, floor(dtype))
    most = max(most, most * tolerance.composed / expects, tolerance.summing / expects)
    verdict = replace(
        verdict,
        limit=LimitOfKind(LimitKind.EXCESS, most),
        smallest=(SmallestLimit("excess", ratio),),
        over_limit=ratio / most,
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
    beyond_too = (remarks.BeyondLikeBaseline(expected.rel_l2),)
    # rounding may have changed a choice, in the baseline too: neither failure nor pass
    if beyond and not tolerance.fed:
        return replace(verdict, reason=Reason.OK, remarks=beyond_too, beyond=True)
    if beyond and tolerance.ceiling is not None:
        return replace(
            verdict,
            reason=Reason.OVER,
            limit=LimitOfKind(LimitKind.CEILING, tolerance.ceiling),
            smallest=(),
            over_limit=metrics.rel_l2 / tolerance.ceiling,
            excess_limit=None,
            rel_l2_limit=tolerance.ceiling,
            remarks=beyond_too,
            beyond=True,
        )
    if expected.dtype and ratio <= most:
        return replace(
            verdict, reason=Reason.OVER_PRECISE, remarks=(remarks.MissingCast(expected.dtype),)
        )
    if verdict.reason is Reason.IDENTICAL:
        return replace(verdict, smallest=())
    if ratio > most:
        return replace(verdict, reason=Reason.OVER, evident=True)
    proves = (
        is_half(dtype) and metrics.compared >= FEW and floor(dtype) < expected.rel_l2 < math.inf
    )
    return replace(
        verdict,
        reason=Reason.OVER_PRECISE if proves and ratio < 1.0 / most else Reason.OK,
        # the remark was about another limit than that on golden's zeros
        remarks=verdict.remarks if math.isfinite(metrics.rel_l2) else (),
    )


def _judge_choices(metrics: Metrics, expected: Expected) -> Verdict:
    """The verdict on integers that rounding changes in the baseline too (choices of experts).

    Such counts are roughly Poisson; the baseline's single count estimates the mean. Two of them
    hardly ever differ by more than three joint standard deviations plus one. If most of the
    baseline's integers changed (counts themselves, as tokens of each expert), their number says
    nothing; their distance is judged likewise."""
    count = differing(metrics)
    if 2 * expected.different > metrics.compared and math.isfinite(expected.rmse):
        apart, usual = (
            rmse * math.sqrt(metrics.compared) for rmse in (metrics.rmse, expected.rmse)
        )
        if apart > (most := most_changed(usual)):
            return Verdict(
                Reason.OVER,
                LimitOfKind(LimitKind.APART, most),
                over_limit=apart / most,
                remarks=(remarks.ChoicesApart(count, metrics.compared, apart, usual),),
                evident=True,
            )
    most = most_changed(expected.different)
    reason = Reason.OK if count <= most else Reason.OVER
    return Verdict(
        reason,
        LimitOfKind(LimitKind.DIFFERENT, most),
        (SmallestLimit("different", count),),
        count / most,
        (remarks.ChoicesChanged(count, metrics.compared, expected.different),),
        excess=count / expected.different,
        evident=reason is Reason.OVER,
    )


def settle_noise(
    verdict: Verdict, tolerance: Tolerance, metrics: Metrics | None, noise: float | None
) -> Verdict:
    """The verdict with two candidate runs, ``noise`` apart relative to golden's norm."""
    if (
        verdict.status is not Status.FAIL
        or metrics is None
        or noise is None
        or not is_noise(metrics, noise)
    ):
        return verdict
    remark = remarks.RunsApart(golden=False, apart=noise)
    if tolerance.by_default:
        return replace(verdict, reason=Reason.NOT_DETERMINISTIC, remarks=(remark,))
    return replace(verdict, remarks=(*verdict.remarks, remark))


def settle_unsteady(
    verdict: Verdict, tolerance: Tolerance, metrics: Metrics | None, apart: float | None
) -> Verdict:
    """The verdict with two golden captures, ``apart`` relative to the first one's norm.

    If they are far apart (such as memory never written), nothing is compared with golden."""
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
        remarks=(remarks.RunsApart(golden=True, apart=apart),),
    )


def is_noise(metrics: Metrics, noise: float | None) -> bool:
    """Whether an error is at most about the two runs' distance, relative to golden's norm."""
    return (
        bool(noise and math.isfinite(noise))
        and not metrics.nonfinite_mismatch
        and metrics.rel_l2 <= RUNS * (noise or 0.0)
    )


#: Whether a limit is kept, the share used, and the smallest limit that would pass.
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
    """``room``: the factor by which an estimate may be over the limit."""
    most = limit * room
    used = measured / most if most else (math.inf if measured else 0.0)
    return measured <= most, used, SmallestLimit(name, measured)
