"""The checklist's layer *schedule and clipping*: learning rates as they were applied, and what
became of gradients before the update.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

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
    steps_in_log,
    warned,
)

#: Schedulers that let the learning rate rise again, by design.
_RISES_AGAIN = (
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "OneCycleLR",
    "SequentialLR",
    "ChainedScheduler",
    "LambdaLR",
    "MultiplicativeLR",
)
# : So many updates running with a rate that rises are a warm-up, and so many behind them with one
# that falls a decay.
_WARMING, _FALLING = 10, 3

# : Of its most, a learning rate that is no more adds nothing to weights in float32 that an update
# of then has changed.
_ROUNDED = 2**-24


def _rates(seen: Evidence) -> Iterator[tuple[str, list[Point]]]:
    """By parameter group, the learning rate of each update."""
    for name in dict.fromkeys(name for each in seen.updates for name in each.lr):
        yield (
            name,
            [Point(each.step, float(each.lr[name])) for each in seen.updates if name in each.lr],
        )


def _lr_range(seen: Evidence) -> CheckOutcome:
    for name, series in _rates(seen):
        bad = next(
            (point for point in series if not math.isfinite(point.value) or point.value < 0), None
        )
        if bad is not None:
            return failed(f"the learning rate was {bad.value:.4g}", bad.value, bad.step, name)
    most = {name: max(point.value for point in series) for name, series in _rates(seen)}
    nothing = {name: rate * _ROUNDED for name, rate in most.items()}
    zeros = [
        each.step
        for each in seen.updates
        if each.lr and all(float(rate) <= nothing[name] for name, rate in each.lr.items())
    ]
    share = len(zeros) / len(seen.updates)
    if share > seen.limits["lr-zero"] and len(zeros) > 1:
        measured = (
            f"all learning rates were 0, or below the rounding of their most, in {len(zeros):,} of"
            f" {len(seen.updates):,} updates"
        )
        return warned(measured, share, zeros[-1])
    highest = max(point.value for _, series in _rates(seen) for point in series)
    lowest = min(point.value for _, series in _rates(seen) for point in series)
    return passed(
        f"learning rates from {lowest:.4g} to {highest:.4g} in {steps_in_log(len(seen.updates))}",
        highest,
    )


def _lr_jump(seen: Evidence) -> CheckOutcome:
    largest = 1.0
    for name, series in _rates(seen):
        values = [point.value for point in series]
        for at in range(_WARMING, len(values) - _FALLING):
            rises = all(
                one < other for one, other in itertools.pairwise(values[at - _WARMING : at])
            )
            falls = all(
                one > other for one, other in itertools.pairwise(values[at : at + _FALLING + 1])
            )
            if (
                not rises or not falls or values[at - 1] <= 0
            ):  # what begins again falls before it rises, and epochs have plateaus
                continue
            ratio = values[at] / values[at - 1]
            largest = max(largest, ratio)
            if ratio > seen.limits["lr-jump"]:
                jump = f"from {values[at - 1]:.4g} to {values[at]:.4g} in one"
                return warned(
                    f"the learning rate rose step by step, then {jump}, and fell from there",
                    ratio,
                    series[at].step,
                    name,
                )
    return passed(
        "where a learning rate ceased to rise and began to fall, it rose by no more than"
        f" {largest:.3g} x in one step",
        largest,
    )


def _lr_rises_again(seen: Evidence) -> CheckOutcome:
    assert seen.setup is not None
    for name, length in seen.setup.scheduler_lengths.items():
        if name.startswith(_RISES_AGAIN):
            continue
        past = next(
            (
                each
                for each in seen.updates
                if name in each.schedulers and each.schedulers[name].stepped > length
            ),
            None,
        )
        if past is not None:
            taken = past.schedulers[name].stepped
            measured = f"{name} was made for {length:,} steps, and had been stepped {taken:,} times"
            return warned(measured, taken / length, past.step, name)
    if not seen.setup.scheduler_lengths:
        return not_looked_at("no scheduler says how many steps it is made for")
    return passed(
        "no scheduler went beyond the steps that it is made for"
        f" ({min(seen.setup.scheduler_lengths.values()):,} at least)"
    )


def _counts(seen: Evidence) -> Iterator[tuple[str, list[tuple[Point, int]]]]:
    """By scheduler, how often it was stepped between one update and the next, and how many steps
    lie between.
    """
    for name in dict.fromkeys(name for each in seen.updates for name in each.schedulers):
        having = [each for each in seen.updates if name in each.schedulers]
        yield (
            name,
            [
                (
                    Point(
                        after.step, after.schedulers[name].stepped - before.schedulers[name].stepped
                    ),
                    after.step - before.step,
                )
                for before, after in itertools.pairwise(having)
            ],
        )


def _schedule_steps(seen: Evidence) -> CheckOutcome:
    words = []
    for name, counts in _counts(seen):
        if not counts:
            continue
        total, steps = (
            sum(point.value for point, _ in counts),
            sum(between for _, between in counts),
        )
        words.append(f"{name} was stepped {total:g} times in {steps_in_log(steps)}")
        if (
            total == 0
            and steps >= seen.limits["schedule-unstepped"]
            and (loaded := _epochs(seen)) != 1
        ):
            over = f", in which the data was gone through {loaded - 1:,} times" if loaded else ""
            return warned(words[-1] + over, 0.0, counts[-1][0].step, name)
        doubled = [point for point, between in counts if point.value > between]
        if len(doubled) > seen.limits["schedule-doubled"] * len(counts):
            measured = (
                f"{name} was stepped {total / steps:.3g} times between one update and the next"
            )
            return warned(measured, total / steps, doubled[0].step, name)
    return (
        passed("; ".join(words))
        if words
        else not_looked_at("one update was seen: it shows from the second on")
    )


def _epochs(seen: Evidence) -> int:
    """How often the loader that gave the last batch was begun; 0 where torch's loaders gave
    none."""
    return next(
        (each.loaded.begun for each in reversed(seen.updates) if each.loaded is not None), 0
    )


def _schedule_order(seen: Evidence) -> CheckOutcome:
    assert seen.setup is not None
    first = seen.updates[0]
    for name, applied in first.schedulers.items():
        before = applied.stepped - seen.run.setups[0].schedulers.get(name, applied.stepped)
        if before > 0 and first.step == seen.vitals[0].step:
            measured = (
                f"{name} was stepped {before} time{'' if before == 1 else 's'} before the first"
                " update, so that its first rate is left out"
            )
            return warned(measured, float(before), first.step, name)
    return passed("no scheduler was stepped before the first update")


def _schedule_applied(seen: Evidence) -> CheckOutcome:
    """Learning rates of the groups against those that the schedulers say they have set.

    Of an optimizer that updates in the step; one of another optimizer is judged if its own makes no
    update at all. Of several, as of one for the warm-up and one for plateaus, the last to act has
    set the rates."""
    here = {
        name for each in seen.updates for name, applied in each.schedulers.items() if applied.here
    }
    compared, other = 0, []
    for each in seen.updates:
        made = [float(rate) for rate in each.lr.values()]
        every = {
            name: [float(rate) for rate in applied.rates]
            for name, applied in each.schedulers.items()
            if (applied.here or name not in here) and 0 < len(applied.rates) <= len(made)
        }
        compared += bool(every)
        if every and not any(
            all(any(_close(rate, one) for one in made) for rate in rates)
            for rates in every.values()
        ):
            other.append((each.step, made, *next(iter(every.items()))))
    if not compared:
        return not_looked_at("no scheduler says what rates it has set")
    if len(other) > seen.limits["schedule-overruled"] * compared:
        step, made, name, rates = other[0]
        shown = ", ".join(f"{rate:.4g}" for rate in made[:3])
        measured = (
            f"the update was made with {shown}, and {name} had set"
            f" {', '.join(f'{rate:.4g}' for rate in rates[:3])}"
        )
        return warned(
            f"{measured}; likewise in {len(other):,} of {steps_in_log(compared)}",
            max(made),
            step,
            name,
        )
    return passed(
        f"{compared - len(other):,} of {steps_in_log(compared)} had an update with the rate that a"
        " scheduler had set"
    )


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-15)


def _clipped(seen: Evidence) -> list[tuple[Point, float]]:
    """Of each update: what became of the gradient norm before it, as a ratio, and the norm that the
    update was given.
    """
    found = []
    for each in seen.updates:
        before, after = each.norm, each.norm_at_update
        if before is None or after is None:
            continue
        norms = float(before), float(after)
        if all(map(math.isfinite, norms)) and norms[0] > 0:
            found.append((Point(each.step, norms[1] / norms[0]), norms[1]))
    return found


def _clip_share(seen: Evidence) -> CheckOutcome:
    ratios = _clipped(seen)
    clipped = [point for point, _ in ratios if point.value < 0.999]
    behind = [each for each in seen.updates if each.clipped_behind]
    if len(behind) > 2 and not any(each.clipped for each in seen.updates):
        measured = (
            f"gradients were clipped behind the update that had used them, in {len(behind):,} of"
            f" {len(seen.updates):,}"
        )
        return warned(
            f"{measured}, and before none", len(behind) / len(seen.updates), behind[0].step
        )
    if not ratios:
        return not_looked_at("all gradients were zero")
    share = len(clipped) / len(ratios)
    usual = median(point.value for point in clipped) if clipped else 1.0
    measured = f"gradients were made smaller before {len(clipped):,} of {len(ratios):,} updates"
    measured += f", to {usual:.3g} x" if clipped else ""
    if share >= seen.limits["clip-always"] and usual < seen.limits["clip-strength"]:
        return warned(measured, share, clipped[0].step)
    return passed(measured, share)


def _grown(seen: Evidence) -> CheckOutcome:
    alike = {
        each.step
        for each in seen.updates
        if each.grown is not None and _is_one_factor(*map(float, each.grown))
    }
    grown = [
        Point(point.step, norm / most)
        for point, norm in _clipped(seen)
        if (most := _most_before(seen, point.step)) > 0
    ]
    grown = [
        point for point in grown if point.value > seen.limits["clip-grows"] and point.step in alike
    ]
    if not grown:
        return passed(
            "gradients were not multiplied by a factor above 1 between the backward and the update"
        )
    worst = max(grown, key=lambda point: point.value)
    measured = (
        f"all gradients were {worst.value:.4g} x as large at the update as at the end of the"
        f" backward, in {steps_in_log(len(grown))}"
    )
    return warned(measured, worst.value, worst.step)


def _is_one_factor(low: float, high: float) -> bool:
    """Whether all gradients were multiplied by one number: noise, decay and projections change each
    in its own way.
    """
    return 0 < low <= high < math.inf and high / low < _ALIKE


def _most_before(seen: Evidence, step: int) -> float:
    """What the gradient norm at an update may be at most, if gradients were only clipped, and
    averaged over ranks by the loop itself.
    """
    norms = [
        each.norm for run in (seen.run, *seen.ranks) for each in run.vitals if each.step == step
    ]
    own, *every = [
        float(norm) for norm in norms if norm is not None and math.isfinite(float(norm))
    ] or [0.0]
    return max(own, sum(every) / len(every)) if every else own


def _clip_before_unscale(seen: Evidence) -> CheckOutcome:
    scaled = {each.step: each.scale for each in seen.vitals if each.scale}
    pairs = [
        (point, norm, scaled[point.step])
        for point, norm in _clipped(seen)
        if point.step in scaled and point.value < 0.999
    ]
    if not pairs:
        return not_looked_at("gradients were not made smaller before any update with a loss scale")
    usual = median(norm for _, norm, _ in pairs)
    product = [norm * scale for _, norm, scale in pairs]
    middle = median(product)
    even = all(abs(each - middle) <= 1e-3 * middle for each in product)
    if even and usual < seen.limits["clip-scaled"] and len(pairs) > 2:
        measured = (
            f"at each clipped update the gradient norm times the loss scale was {middle:.4g}; the"
            f" norm itself {usual:.4g}"
        )
        return failed(measured, usual, pairs[0][0].step)
    return passed(
        f"clipped gradients had a norm of {usual:.4g} at the update, without the loss scale", usual
    )


#: What rounding leaves of one factor.
_ALIKE = 1.001
_STEPS = "issue 15"
SCHEDULE = (
    Check(
        "lr-range",
        Layer.SCHEDULE,
        "learning rates below 0, not finite, or all 0 in many updates",
        "check the number of steps that the schedule was made for: a linear decay goes below 0"
        " behind its end",
        _lr_range,
        (
            Threshold(
                "lr-zero", 0.05, "share of updates with a learning rate of 0", "sound runs pass"
            ),
        ),
        needs=(Need.VITALS, Need.UPDATES),
        why="with a negative rate the loss is maximised",
    ),
    Check(
        "lr-jump",
        Layer.SCHEDULE,
        "a warm-up whose last rate does not meet the first of the decay",
        "let the warm-up end where the decay begins",
        _lr_jump,
        (
            Threshold(
                "lr-jump",
                1.5,
                "one update's rate over the last one's, between ten that rise and three that fall",
                "sound runs: 1.05",
            ),
        ),
        needs=(Need.VITALS, Need.UPDATES),
        why="a jump at the edge of a warm-up skips most of it",
    ),
    Check(
        "lr-length",
        Layer.SCHEDULE,
        "a scheduler that is stepped more often than it was made for (T_max, total_iters), so that"
        " its rate rises again or stays",
        "make the schedule for the steps of the whole run: epochs x updates in one",
        _lr_rises_again,
        needs=(Need.VITALS, Need.SCHEDULER, Need.UPDATES),
        why="a cosine goes up again behind its end",
    ),
    Check(
        "schedule-steps",
        Layer.SCHEDULE,
        "how often the scheduler was stepped between one update and the next",
        "step the scheduler once behind each update, or once each epoch if it counts epochs",
        _schedule_steps,
        (
            Threshold(
                "schedule-unstepped",
                200,
                "steps without one, and the data gone through",
                "one a step, or an epoch",
            ),
            Threshold(
                "schedule-doubled",
                0.1,
                "share of updates with more than one step of the scheduler between",
                _STEPS,
            ),
        ),
        needs=(Need.VITALS, Need.SCHEDULER, Need.UPDATES),
        why="the schedule ends at half of the run, or never",
    ),
    Check(
        "schedule-order",
        Layer.SCHEDULE,
        "a scheduler that is stepped before the first update",
        "call scheduler.step() behind optimizer.step()",
        _schedule_order,
        needs=(Need.VITALS, Need.SCHEDULER, Need.UPDATES),
        why="the first rate is never used",
    ),
    Check(
        "schedule-applied",
        Layer.SCHEDULE,
        "whether updates are made with the rates that the scheduler has set",
        "make the scheduler of the optimizer that is stepped, after its last replacement; do not"
        " set the rate elsewhere",
        _schedule_applied,
        (Threshold("schedule-overruled", 0.5, "share of updates", "a few may be set by hand"),),
        needs=(Need.VITALS, Need.SCHEDULER, Need.UPDATES),
        why="the schedule is drawn, and nobody follows",
    ),
    Check(
        "clip-share",
        Layer.SCHEDULE,
        "the share of updates whose gradients were made smaller before, and by how much; clipping"
        " that comes behind the update",
        "clip between backward() and step(); raise the limit, or lower the learning rate: always to"
        " clip is only a smaller learning rate",
        _clip_share,
        (
            Threshold("clip-always", 0.95, "share of updates", _STEPS),
            Threshold(
                "clip-strength",
                1e-4,
                "median of the factor; below it, clipping that always acts is a WARN",
                "sound runs: 0.016 at least",
            ),
        ),
        needs=(Need.VITALS, Need.UPDATES, Need.NORMS),
        why="it is a smaller learning rate in disguise",
    ),
    Check(
        "gradients-grow",
        Layer.SCHEDULE,
        "gradients that were all multiplied by one factor above 1 between the backward and the"
        " update",
        "look at what stands between backward() and step(): unscaling, averaging, clipping by a"
        " wrong factor",
        _grown,
        (
            Threshold(
                "clip-grows",
                1.01,
                "norm at the update over that behind the backward",
                "rounding is below",
            ),
        ),
        needs=(Need.VITALS, Need.UPDATES, Need.NORMS),
        why="between the backward and the update gradients only get smaller, if anything",
    ),
    Check(
        "clip-before-unscale",
        Layer.SCHEDULE,
        "clipped gradients whose norm is the same before the loss scale is taken out, and tiny"
        " behind it",
        "call scaler.unscale_(optimizer) before the clipping",
        _clip_before_unscale,
        (
            Threshold(
                "clip-scaled",
                1e-2,
                "norm at the update below which it is a FAIL",
                "a limit of clipping is 0.01 to 100",
            ),
        ),
        needs=(Need.VITALS, Need.SCALER, Need.UPDATES),
        why=(
            "the limit is applied to gradients times the loss scale, so that nothing is left of"
            " them"
        ),
    ),
)
