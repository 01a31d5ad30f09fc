"""The checklist's layer *run*: findings, its end, its curves, its ranks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from accucompare.findings.analysis import Analysis
from accucompare.findings.checklist.checks import (
    Check,
    CheckOutcome,
    Evidence,
    Need,
    Point,
    failed,
    median,
    not_looked_at,
    passed,
    spikes,
    warned,
    warned_if,
)
from accucompare.findings.log import Ending, Number, WatchRemark, remark

#: Fewer losses show no trend.
_FEWEST = 30
#: How many looks at a cross entropy stand for the beginning and for the end.
_FEW_LOOKS = 3


def _loss_finite(seen: Evidence) -> CheckOutcome:
    bad = [point for point in seen.losses if not math.isfinite(point.value)]
    if not bad:
        return passed(remark("loss-finite", steps=len(seen.losses)), 0.0)
    running = longest = 0
    for point in seen.losses:
        running = 0 if math.isfinite(point.value) else running + 1
        longest = max(longest, running)
    measured = remark("loss-not-finite", value=bad[0].value, steps=len(bad), running=longest)
    judge = failed if longest >= seen.limits["loss-not-finite-running"] else warned
    return judge(measured, float(longest), bad[0].step)


def _spiking(
    what: WatchRemark, series: list[Point], times: float, floor: float, record: float
) -> CheckOutcome:
    series = [point for point in series if math.isfinite(point.value) and point.value > 0]
    if len(series) <= 20:
        return not_looked_at(remark("too-few-for-spread", steps=len(series)))
    most = dict(
        zip(
            (point.step for point in series[1:]),
            itertools.accumulate((point.value for point in series), max),
            strict=False,
        )
    )
    found = [
        each
        for each in spikes(series, times, floor=floor)
        if each.point.value > record * most[each.point.step]
    ]
    if not found:
        return passed(remark("no-spike", what=what, times=times, record=record))
    worst = max(found, key=lambda each: each.spreads)
    measured = remark(
        "spike",
        what=what,
        value=worst.point.value,
        spreads=worst.spreads,
        usual=worst.usual,
        steps=len(found) if len(found) > 1 else 0,
    )
    return warned(measured, worst.spreads, worst.point.step)


def _loss_spike(seen: Evidence) -> CheckOutcome:
    finite = [point.value for point in seen.losses if math.isfinite(point.value)]
    if any(value < 0 for value in finite):
        lowest = min(finite)
        return not_looked_at(remark("loss-not-positive", lowest=lowest))
    # near 0, a loss may be ten times the last one
    floor = seen.limits["loss-spike-floor"] * median(finite[:_FEWEST])
    series = [Point(step, value + floor) for step, value in seen.losses]
    return _spiking(
        remark("the-loss"), series, seen.limits["loss-spike"], 0.1, seen.limits["loss-record"]
    )


def _norm_spike(seen: Evidence) -> CheckOutcome:
    return _spiking(
        remark("the-gradient-norm"),
        seen.norms,
        seen.limits["norm-spike"],
        0.2,
        seen.limits["norm-record"],
    )


def _loss_trend(seen: Evidence) -> CheckOutcome:
    """A loss that ends far above its beginning or guessing; one that stays flat may be right."""
    values = [point.value for point in seen.losses if math.isfinite(point.value)]
    if len(values) < _FEWEST:
        return not_looked_at(remark("too-few-for-trend", steps=len(values), least=_FEWEST))
    part = max(len(values) // 10, 5)
    first, last = median(values[:part]), median(values[-part:])
    if first <= 0:
        return not_looked_at(remark("no-ratio", first=first))
    ratio = last / first
    measured = remark("loss-went", first=first, last=last, steps=part)
    targets = [
        each.targets
        for each in seen.vitals
        if each.targets is not None and each.targets.missed is not None
    ]
    missed = [
        float(each.missed)
        for each in targets
        if each.missed is not None and math.isfinite(float(each.missed))
    ]
    if len(missed) >= _FEW_LOOKS:
        guessing = math.log(max(each.classes for each in targets))
        now, then = median(missed[-_FEW_LOOKS:]), median(missed[:_FEW_LOOKS])
        words = remark(
            "cross-entropy-went", then=then, now=now, looks=_FEW_LOOKS, guessing=guessing
        )
        over = now / max(then, guessing) if guessing > 0 else 0.0
        return warned_if(over > seen.limits["loss-rise"], words, over, seen.losses[-1].step)
    return warned_if(ratio > seen.limits["loss-diverges"], measured, ratio, seen.losses[-1].step)


#: Of the layer *run*.
LOSS_CURVE = (
    Check("loss-finite", _loss_finite, {"loss-not-finite-running": 3}, needs=(Need.LOSSES,)),
    Check(
        "loss-spike",
        _loss_spike,
        {"loss-spike": 10, "loss-spike-floor": 0.1, "loss-record": 6},
        needs=(Need.LOSSES,),
    ),
    Check(
        "loss-trend", _loss_trend, {"loss-rise": 1.5, "loss-diverges": 1e4}, needs=(Need.LOSSES,)
    ),
    Check("norm-spike", _norm_spike, {"norm-spike": 10, "norm-record": 5}, needs=(Need.NORMS,)),
)


def _finite(seen: Evidence) -> CheckOutcome:
    if seen.run.findings:
        first = seen.run.findings[0]
        measured = remark("gave", place=first.place, kinds=first.kinds)
        return failed(measured, step=first.step, place=first.place)
    if seen.run.unexplained:
        return failed(remark("unexplained"), step=seen.run.unexplained[0].step)
    return passed(remark("all-finite", steps=len(seen.run.steps)))


def _ended(seen: Evidence) -> CheckOutcome:
    end = seen.run.end
    if end is None:
        return not_looked_at(seen.run.ending)
    if end.ending is not Ending.FAILED or end.error == "SystemExit":
        return passed(remark("loop-ended", steps=end.steps, ending=end.ending.value))
    return failed(remark("loop-failed", steps=end.steps, reason=end.reason), step=end.steps)


def _ranks_agree(seen: Evidence) -> CheckOutcome:
    """Norms of weights that each rank holds whole: replicas compute the same bits."""
    if _split(seen.ranks):
        return not_looked_at(remark("ranks-hold-parts"))
    found = first_difference(seen.ranks)
    if found is not None:
        return found
    compared = sum(1 for _ in _pairs_of_ranks(seen.ranks))
    if not compared:
        return not_looked_at(remark("nothing-on-two-ranks"))
    return passed(remark("weights-agree", weights=compared, ranks=len(seen.ranks)))


def _split(runs: Sequence[Analysis]) -> bool:
    """Whether ranks hold different parts of a model."""
    return any(
        set(run.start.coordinates) - {"dp", "data", "replicate", "dp_replicate"} for run in runs
    )


def first_difference(runs: Sequence[Analysis]) -> CheckOutcome | None:
    """The first weight that differs between replicas; ``None`` also if ranks split a model."""
    if _split(runs):
        return None
    apart = [each for each in _pairs_of_ranks(runs) if each.mine != each.theirs]
    if not apart:
        return None
    found = min(apart, key=lambda each: each.step)
    measured = remark(
        "weights-differ",
        mine=found.mine,
        rank=runs[0].start.rank,
        theirs=found.theirs,
        other=found.rank,
    )
    return failed(measured, step=found.step, place=found.name)


class _OnTwoRanks(NamedTuple):
    """A weight's norm on the first rank and on another."""

    step: int
    name: str
    rank: int
    mine: Number
    theirs: Number


def _pairs_of_ranks(runs: Sequence[Analysis]) -> Iterator[_OnTwoRanks]:
    first, *others = runs
    norms = {each.step: each.layers.get("weight", []) for each in first.vitals if each.layers}
    parameters = first.setups[-1].parameters if first.setups else []
    for other in others:
        for each in other.vitals:
            if not each.layers or each.step not in norms:
                continue
            for parameter, mine, theirs in zip(
                parameters, norms[each.step], each.layers.get("weight", []), strict=False
            ):
                if not parameter.sharded and mine is not None and theirs is not None:
                    yield _OnTwoRanks(each.step, parameter.name, other.start.rank, mine, theirs)


#: Also the first verdict of a watch.
FINITE = Check("finite", _finite, needs=())
RUN = (
    FINITE,
    Check("ended", _ended, needs=()),
    *LOSS_CURVE,
    Check("ranks-agree", _ranks_agree, across=True, needs=(Need.RANKS, Need.VITALS)),
)
