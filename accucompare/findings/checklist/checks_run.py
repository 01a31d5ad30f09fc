"""The checklist's layer *run*: losses, spikes, ranks."""

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
    Layer,
    Need,
    Point,
    Threshold,
    failed,
    median,
    not_looked_at,
    passed,
    spikes,
    steps_in_log,
    warned,
)
from accucompare.findings.log import Ending, Number
from accucompare.findings.words import printable_value

#: Fewer losses show no trend.
_FEWEST = 30
#: So many looks at a cross entropy stand for the beginning, and for the end.
_FEW_LOOKS = 3


def _finite(seen: Evidence) -> CheckOutcome:
    if seen.run.findings:
        first = seen.run.findings[0]
        return failed(
            f"{first.place} gave {', '.join(first.kinds)}", step=first.step, place=first.place
        )
    if seen.run.unexplained:
        return failed(
            "something was not finite, and no call was found", step=seen.run.unexplained[0].step
        )
    return passed(
        f"everything that was looked at was finite in {steps_in_log(len(seen.run.steps))}"
    )


def _ended(seen: Evidence) -> CheckOutcome:
    end = seen.run.end
    if end is None:
        return not_looked_at(seen.run.ending)
    if end.ending is not Ending.FAILED or end.reason.startswith("SystemExit"):
        return passed(f"the loop ended after {steps_in_log(end.steps)}: {end.ending.value}")
    return failed(
        f"the loop ended with an error, behind {steps_in_log(end.steps)}:"
        f" {printable_value(end.reason, 200)}",
        step=end.steps,
    )


def _loss_finite(seen: Evidence) -> CheckOutcome:
    bad = [point for point in seen.losses if not math.isfinite(point.value)]
    if not bad:
        return passed(f"the loss was finite in {steps_in_log(len(seen.losses))}", 0.0)
    running = longest = 0
    for point in seen.losses:
        running = 0 if math.isfinite(point.value) else running + 1
        longest = max(longest, running)
    measured = f"the loss was {bad[0].value:g} in {steps_in_log(len(bad))}, {longest} running"
    judge = failed if longest >= seen.limits["loss-not-finite-running"] else warned
    return judge(measured, float(longest), bad[0].step)


def _spiking(
    what: str, series: list[Point], times: float, floor: float, record: float
) -> CheckOutcome:
    series = [point for point in series if math.isfinite(point.value) and point.value > 0]
    if len(series) <= 20:
        return not_looked_at(
            f"{steps_in_log(len(series))} with a number above 0 are too few to know a spread: 21 at"
            " least"
        )
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
        return passed(
            f"{what} never rose more than {times:g} spreads above the median of the ten steps"
            f" before, to {record:g} x all before"
        )
    worst = max(found, key=lambda each: each.spreads)
    measured = (
        f"{what} was {worst.point.value:.4g}, {worst.spreads:.3g} spreads above the median of the"
        f" ten before ({worst.usual:.4g})"
    )
    return warned(
        measured + (f"; {len(found):,} such steps" if len(found) > 1 else ""),
        worst.spreads,
        worst.point.step,
    )


def _loss_spike(seen: Evidence) -> CheckOutcome:
    finite = [point.value for point in seen.losses if math.isfinite(point.value)]
    if any(value <= 0 for value in finite):
        lowest = min(finite)
        return not_looked_at(
            f"the loss is not positive ({lowest:.4g} at least), and spreads are measured in its"
            " logarithm"
        )
    floor = seen.limits["loss-spike-floor"] * median(
        finite[:_FEWEST]
    )  # near 0, a loss may well be ten times the last one
    series = [Point(step, value + floor) for step, value in seen.losses]
    return _spiking("the loss", series, seen.limits["loss-spike"], 0.1, seen.limits["loss-record"])


def _norm_spike(seen: Evidence) -> CheckOutcome:
    return _spiking(
        "the gradient norm", seen.norms, seen.limits["norm-spike"], 0.2, seen.limits["norm-record"]
    )


def _loss_trend(seen: Evidence) -> CheckOutcome:
    values = [point.value for point in seen.losses if math.isfinite(point.value)]
    if len(values) < _FEWEST:
        return not_looked_at(
            f"{steps_in_log(len(values))} are too few for a trend: {_FEWEST} at least"
        )
    part = max(len(values) // 10, 5)
    first, last = median(values[:part]), median(values[-part:])
    if first <= 0:
        return not_looked_at(
            f"the loss is not positive ({first:.4g} at first), and a trend is judged by its ratio"
        )
    ratio = last / first
    measured = (
        f"the loss went from {first:.4g} to {last:.4g} (medians of the first and the last"
        f" {steps_in_log(part)})"
    )
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
        words = (
            f"the cross entropy went from {then:.4g} to {now:.4g} (medians of {_FEW_LOOKS} looks),"
            f" where guessing has {guessing:.4g}"
        )
        over = now / max(then, guessing) if guessing > 0 else 0.0
        return (
            warned(words, over, seen.losses[-1].step)
            if over > seen.limits["loss-rise"]
            else passed(words, over)
        )
    return (
        warned(measured, ratio, seen.losses[-1].step)
        if ratio > seen.limits["loss-diverges"]
        else passed(measured, ratio)
    )


def _ranks_agree(seen: Evidence) -> CheckOutcome:
    """Weights of parameters that are whole on each rank, by their norms: replicas compute the same
    numbers bit for bit.
    """
    if _split(seen.ranks):
        return not_looked_at(
            "ranks hold different parts of the model, and which are replicas is not looked at"
        )
    found = first_difference(seen.ranks)
    if found is not None:
        return found
    compared = sum(1 for _ in _pairs_of_ranks(seen.ranks))
    if not compared:
        return not_looked_at(
            "no step was looked at closely on two ranks, or all parameters are sharded"
        )
    return passed(f"{compared:,} weights have the same norm on all of {len(seen.ranks)} ranks")


def _split(runs: Sequence[Analysis]) -> bool:
    """Whether ranks hold different parts of a model."""
    return any(
        set(run.start.coordinates) - {"dp", "data", "replicate", "dp_replicate"} for run in runs
    )


def first_difference(runs: Sequence[Analysis]) -> CheckOutcome | None:
    """The first weight that replicas on several ranks do not have alike; ``None`` if there is none,
    or ranks split a model.
    """
    if _split(runs):
        return None
    apart = [each for each in _pairs_of_ranks(runs) if each.mine != each.theirs]
    if not apart:
        return None
    found = min(apart, key=lambda each: each.step)
    measured = (
        f"the norm of the weights is {found.mine} on rank {runs[0].start.rank} and {found.theirs}"
        f" on rank {found.rank}"
    )
    return failed(measured, step=found.step, place=found.name)


class _OnTwoRanks(NamedTuple):
    """The norm of a weight on the first rank, and on another one."""

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


#: What a watch says first, too.
FINITE = Check(
    "finite",
    Layer.RUN,
    "NaN, Inf and overflow in every module call and gradient",
    "see where it began: `accucompare overflow LOG`",
    _finite,
    why="see [Loss is NaN](nan.md)",
)
RUN = (
    FINITE,
    Check(
        "ended",
        Layer.RUN,
        "whether the loop ended with an error",
        "see what the step was given that it ended in: FAIL and WARN of the data say so first",
        _ended,
        why="the last step's batch is what it died of, often",
    ),
    Check(
        "loss-finite",
        Layer.RUN,
        "losses that are NaN or Inf, and how many running",
        "see where it began: `accucompare overflow LOG`; go on from the last checkpoint before",
        _loss_finite,
        (
            Threshold(
                "loss-not-finite-running",
                3,
                "so many running are a FAIL; one is a WARN",
                "issue 15; msprobe's AnomalyNan",
            ),
        ),
        needs=(Need.LOSSES,),
        why="after one update with it, the weights are NaN",
    ),
    Check(
        "loss-spike",
        Layer.RUN,
        "losses far above their running spread, and above all before",
        "look at this step's batch and gradient norm; run the step twice: a result that differs is"
        " the hardware's (silent data corruption)",
        _loss_spike,
        (
            Threshold(
                "loss-spike",
                10,
                "spreads above the median of the ten steps before",
                "sound runs pass",
            ),
            Threshold(
                "loss-spike-floor",
                0.1,
                "share of the first losses that is added to all",
                "sound runs pass",
            ),
            Threshold(
                "loss-record", 6, "and so many times the largest before", "sound runs: 3.03 at most"
            ),
        ),
        needs=(Need.LOSSES,),
        why="a bad batch, an unstable layer, or a bit that flipped",
    ),
    Check(
        "loss-trend",
        Layer.RUN,
        "whether a cross entropy ends above guessing, or another loss far above its beginning",
        "lower the learning rate; check the sign of the loss and the labels",
        _loss_trend,
        (
            Threshold(
                "loss-rise",
                1.5,
                "last cross entropy over the first, or over that of guessing if that is larger",
                "sound runs: 0.95",
            ),
            Threshold(
                "loss-diverges",
                1e4,
                "last losses over first losses, of what is no cross entropy",
                "sound runs: 11",
            ),
        ),
        needs=(Need.LOSSES,),
        why="it does not learn, but forget",
    ),
    Check(
        "norm-spike",
        Layer.RUN,
        "gradient norms far above their running spread, and above all before",
        "look at this step's batch; clip gradients; run the step twice: a result that differs is"
        " the hardware's",
        _norm_spike,
        (
            Threshold(
                "norm-spike",
                10,
                "spreads above the median of the ten steps before",
                "msprobe's AnomalyTurbulence; sound runs",
            ),
            Threshold(
                "norm-record", 5, "and so many times the largest before", "sound runs: 0.46 at most"
            ),
        ),
        needs=(Need.NORMS,),
        why="it comes before the spike of the loss",
    ),
    Check(
        "ranks-agree",
        Layer.RUN,
        "whether replicas on several ranks have the same weights",
        "check that gradients are summed over all ranks, and that all ranks started from the same"
        " weights",
        _ranks_agree,
        across=True,
        needs=(Need.RANKS, Need.VITALS),
        why="replicas that part train different models",
    ),
)
