"""Closer looks at a gradient or an update; ``compare.measuring.training_errors`` explains them."""

from __future__ import annotations

import math

import msgspec

from accucompare.bundle.format import GRADIENT_ROLES, Record, Role
from accucompare.compare.constants import STANDARD_ERRORS
from accucompare.compare.judging.estimates import ratio_room, room
from accucompare.compare.judging.sides import Sides
from accucompare.compare.limit_facts import LimitKind, LimitOfKind
from accucompare.compare.limits import EXACT, Expected, Tolerance, excess_limit, floor, is_half
from accucompare.compare.measuring import (
    Metrics,
    Run,
    Values,
    at_right_angles,
    beyond_last_place,
    carriers,
    common_factor,
    common_limit,
    standard_error,
)
from accucompare.compare.pairing import most_changed
from accucompare.compare.remarks import BeyondLastPlace, FewCarryNorm, OneFactor
from accucompare.compare.rows import Reason, Task, Verdict
from accucompare.numbers import DTYPES


def look_closer(
    sides: Sides,
    task: Task,
    golden: Record,
    candidate: Record,
    metrics: Metrics,
    verdict: Verdict,
    expected: Expected,
    run: Run,
) -> Verdict:
    """The verdict on a gradient or an update that a baseline has judged, after a closer look."""
    if (
        verdict.reason is Reason.OVER
        and verdict.excess_limit is not None
        and verdict.excess is not None
    ):
        if golden.member is None:  # a sketch does not tell which elements carry the norm
            return verdict
        return _of_few_values(sides, golden, candidate, metrics, task.tolerance, verdict, expected)
    if verdict.reason is not Reason.OK or expected.dtype or not task.tolerance.fed:
        return verdict
    baseline, before = task.baseline, task.before
    if (
        before is not None
        and before.golden is not None
        and before.candidate is not None
        and is_half(before.candidate.dtype)
    ):
        if None in (golden.member, candidate.member):
            return verdict
        return _beyond_last_place(
            sides, golden, candidate, before.golden, before.candidate.dtype, baseline, verdict
        )
    if (
        is_half(candidate.dtype)
        and golden.role in (*GRADIENT_ROLES, Role.PARAM_GRAD)
        and baseline is not None
    ):
        return _common_factor(sides, golden, candidate, baseline, metrics, verdict, expected, run)
    return verdict


def _of_few_values(
    sides: Sides,
    golden: Record,
    candidate: Record,
    metrics: Metrics,
    tolerance: Tolerance,
    verdict: Verdict,
    expected: Expected,
) -> Verdict:
    """The verdict on a pair over its limit, with the limit for what carries golden's norm."""
    few = carriers(Values.of(sides.golden, golden))
    most = excess_limit(math.floor(few), expected.dtype or candidate.dtype) * ratio_room(metrics)
    ratio = verdict.excess or 0.0
    over_ceiling = tolerance.ceiling is not None and metrics.rel_l2 > tolerance.ceiling
    if not few or over_ceiling or ratio > most or not math.isfinite(metrics.rel_l2):
        return verdict
    return msgspec.structs.replace(
        verdict,
        reason=Reason.OK,
        over_limit=ratio / most,
        remarks=(FewCarryNorm(few, metrics.compared),),
        limit=LimitOfKind(LimitKind.EXCESS, most),
        excess_limit=most,
        rel_l2_limit=most * max(expected.rel_l2, floor(expected.dtype or candidate.dtype)),
    )


def _beyond_last_place(
    sides: Sides,
    golden: Record,
    candidate: Record,
    before: Record,
    dtype: str,
    baseline: Record | None,
    verdict: Verdict,
) -> Verdict:
    """The verdict on an update of a parameter of a half type, element by element."""
    if (
        baseline is None
        or before.member is None
        or sides.baseline is None
        or before.shape != golden.shape
    ):
        return verdict
    kept = None if baseline.error is None else baseline.error.beyond
    if baseline.member is None and kept is None:
        return verdict
    ours, parameter = Values.of(sides.golden, golden), Values.of(sides.golden, before)
    digits = DTYPES[dtype].digits
    count = beyond_last_place(ours, Values.of(sides.candidate, candidate), parameter, digits)
    if count <= most_changed(0):
        return verdict
    expects = (
        kept
        if kept is not None
        else beyond_last_place(ours, Values.of(sides.baseline, baseline), parameter, digits)
    )
    most = most_changed(expects)
    if count <= most:
        return verdict
    remark = BeyondLastPlace(count, math.prod(golden.shape), dtype, expects)
    judged = LimitOfKind(LimitKind.LAST_PLACE, most)
    return Verdict(Reason.OVER, judged, over_limit=count / most, remarks=(remark,), evident=True)


def _common_factor(
    sides: Sides,
    golden: Record,
    candidate: Record,
    baseline: Record,
    metrics: Metrics,
    verdict: Verdict,
    expected: Expected,
    run: Run,
) -> Verdict:
    """The verdict on a gradient that may be off by one common factor."""
    own = common_factor(metrics.one_minus_cosine, golden.statistics, candidate.statistics)
    usual = common_factor(expected.one_minus_cosine, golden.statistics, baseline.statistics)
    usual = baseline.error.factor if baseline.error is not None else usual
    if own is None or usual is None or golden.statistics is None or sides.baseline is None:
        return verdict
    allowed = common_limit(DTYPES[candidate.dtype].rounding, usual)
    if not abs(own - usual) > allowed:  # nearly always
        return verdict
    norm = golden.statistics.l2 or 0.0
    if baseline.statistics is None:  # it keeps no tensors
        apart = (
            math.hypot(
                at_right_angles(metrics.rel_l2, own) + at_right_angles(expected.rel_l2, usual),
                own - usual,
            )
            * norm
        )
    else:
        length = baseline.statistics.l2 or 0.0
        apart = (
            sides.measure(sides.baseline, baseline, sides.candidate, candidate, EXACT, run).rel_l2
            * length
        )
    largest = max(abs(float(end or 0.0)) for end in (golden.statistics.min, golden.statistics.max))
    # sketches only estimate the cosines
    uncertain = (room(metrics) ** 2 - 1.0) * (
        metrics.one_minus_cosine + (expected.one_minus_cosine or 0.0)
    )
    most = (
        allowed
        + uncertain
        + STANDARD_ERRORS
        * room(metrics)
        * standard_error(apart, (own - usual) * norm, largest, norm)
    )
    if not abs(own - usual) > most:
        return verdict
    return Verdict(
        Reason.OVER,
        LimitOfKind(LimitKind.FACTOR, most),
        over_limit=abs(own - usual) / most,
        remarks=(OneFactor(1.0 + own, 1.0 + usual),),
        evident=True,
    )
