"""Closer looks at a gradient or an update; ``compare.measuring.training_errors`` explains them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from accucompare.bundle.format import GRADIENT_ROLES, Record, Role
from accucompare.compare.constants import STANDARD_ERRORS
from accucompare.compare.judging.estimates import ratio_room, room
from accucompare.compare.judging.sides import Sides
from accucompare.compare.limit_facts import LimitKind, LimitOfKind
from accucompare.compare.limits import Expected, excess_limit, floor, is_half
from accucompare.compare.measuring import (
    Metrics,
    Values,
    at_right_angles,
    beyond_last_place,
    carriers,
    common_factor,
    common_limit,
    standard_error,
)
from accucompare.compare.pairing import most_changed
from accucompare.compare.remarks import BeyondLastPlace, FewCarryNorm, OneFactor, PairRemark
from accucompare.compare.rows import Reason, Task, Verdict
from accucompare.numbers import DTYPES


@dataclass(frozen=True)
class CloserLook:
    """A pair that a baseline has judged; ``expected`` is the baseline's error."""

    sides: Sides
    task: Task
    golden: Record
    candidate: Record
    metrics: Metrics
    verdict: Verdict
    expected: Expected

    def settled(self) -> Verdict:
        """The verdict on a gradient or an update, after a closer look."""
        verdict, golden, before = self.verdict, self.golden, self.task.before
        if (
            verdict.reason is Reason.OVER
            and verdict.excess_limit is not None
            and verdict.excess is not None
        ):
            # a sketch does not tell which elements carry the norm
            return verdict if golden.member is None else self._of_few_values(verdict.excess)
        if verdict.reason is not Reason.OK or self.expected.dtype or not self.task.tolerance.fed:
            return verdict
        if (
            before is not None
            and before.golden is not None
            and before.candidate is not None
            and is_half(before.candidate.dtype)
        ):
            if None in (golden.member, self.candidate.member):
                return verdict
            return self._beyond_last_place(before.golden, before.candidate.dtype)
        of_gradient = golden.role in (*GRADIENT_ROLES, Role.PARAM_GRAD)
        if of_gradient and is_half(self.candidate.dtype) and self.task.baseline is not None:
            return self._common_factor(self.task.baseline)
        return verdict

    def _of_few_values(self, ratio: float) -> Verdict:
        """The verdict on a pair over its limit, with the limit for what carries golden's norm."""
        metrics, ceiling = self.metrics, self.task.tolerance.ceiling
        few = carriers(Values.of(self.sides.golden, self.golden))
        dtype = self.expected.dtype or self.candidate.dtype
        most = excess_limit(math.floor(few), dtype) * ratio_room(metrics)
        over_ceiling = ceiling is not None and metrics.rel_l2 > ceiling
        if not few or over_ceiling or ratio > most or not math.isfinite(metrics.rel_l2):
            return self.verdict
        return msgspec.structs.replace(
            self.verdict,
            reason=Reason.OK,
            over_limit=ratio / most,
            remarks=(FewCarryNorm(few, metrics.compared),),
            limit=LimitOfKind(LimitKind.EXCESS, most),
            excess_limit=most,
            rel_l2_limit=most * max(self.expected.rel_l2, floor(dtype)),
        )

    def _beyond_last_place(self, before: Record, dtype: str) -> Verdict:
        """The verdict on an update of a parameter of a half type, element by element."""
        sides, golden, baseline = self.sides, self.golden, self.task.baseline
        if (
            baseline is None
            or before.member is None
            or sides.baseline is None
            or before.shape != golden.shape
        ):
            return self.verdict
        kept = None if baseline.error is None else baseline.error.beyond
        if baseline.member is None and kept is None:
            return self.verdict
        ours, parameter = Values.of(sides.golden, golden), Values.of(sides.golden, before)
        theirs, digits = Values.of(sides.candidate, self.candidate), DTYPES[dtype].digits
        count = beyond_last_place(ours, theirs, parameter, digits)
        if count <= most_changed(0):
            return self.verdict
        if kept is None:
            kept = beyond_last_place(ours, Values.of(sides.baseline, baseline), parameter, digits)
        most = most_changed(kept)
        if count <= most:
            return self.verdict
        remark = BeyondLastPlace(count, math.prod(golden.shape), dtype, kept)
        return _over(LimitOfKind(LimitKind.LAST_PLACE, most), count, remark)

    def _common_factor(self, baseline: Record) -> Verdict:
        """The verdict on a gradient that may be off by one common factor."""
        sides, metrics, expected = self.sides, self.metrics, self.expected
        statistics, angle = self.golden.statistics, metrics.one_minus_cosine
        own = common_factor(angle, statistics, self.candidate.statistics)
        usual = common_factor(expected.one_minus_cosine, statistics, baseline.statistics)
        usual = baseline.error.factor if baseline.error is not None else usual
        if own is None or usual is None or statistics is None or sides.baseline is None:
            return self.verdict
        allowed = common_limit(DTYPES[self.candidate.dtype].rounding, usual)
        if not abs(own - usual) > allowed:  # nearly always
            return self.verdict
        norm = statistics.l2 or 0.0
        if baseline.statistics is None:  # it keeps no tensors
            across = at_right_angles(metrics.rel_l2, own) + at_right_angles(expected.rel_l2, usual)
            apart = math.hypot(across, own - usual) * norm
        else:
            between = sides.measure(sides.baseline, baseline, sides.candidate, self.candidate)
            apart = between.rel_l2 * (baseline.statistics.l2 or 0.0)
        largest = max(abs(float(end or 0.0)) for end in (statistics.min, statistics.max))
        # sketches only estimate the cosines
        uncertain = (room(metrics) ** 2 - 1.0) * (angle + (expected.one_minus_cosine or 0.0))
        by_chance = standard_error(apart, (own - usual) * norm, largest, norm)
        most = allowed + uncertain + STANDARD_ERRORS * room(metrics) * by_chance
        if not abs(own - usual) > most:
            return self.verdict
        factors = OneFactor(1.0 + own, 1.0 + usual)
        return _over(LimitOfKind(LimitKind.FACTOR, most), abs(own - usual), factors)


def _over(limit: LimitOfKind, found: float, remark: PairRemark) -> Verdict:
    return Verdict(
        Reason.OVER, limit, over_limit=found / limit.most, remarks=(remark,), evident=True
    )
