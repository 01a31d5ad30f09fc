"""The checklist's layer *schedule and clipping*: learning rates, and gradients' way to the
update."""

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
    failed,
    median,
    not_looked_at,
    of_layer,
    passed,
    warned,
)
from accucompare.findings.log import remark

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
#: So many updates in a row with a rising rate are a warm-up; so many after them with a falling one
#: a decay.
_WARMING, _FALLING = 10, 3

#: At or below this share of its maximum, a learning rate adds nothing to float32 weights that the
#: maximum's update changed.
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
            return failed(remark("rate-was", rate=bad.value), bad.value, bad.step, name)
    most = {name: max(point.value for point in series) for name, series in _rates(seen)}
    nothing = {name: rate * _ROUNDED for name, rate in most.items()}
    zeros = [
        each.step
        for each in seen.updates
        if each.lr and all(float(rate) <= nothing[name] for name, rate in each.lr.items())
    ]
    share = len(zeros) / len(seen.updates)
    if share > seen.limits["lr-zero"] and len(zeros) > 1:
        measured = remark("rates-zero", zeros=len(zeros), updates=len(seen.updates))
        return warned(measured, share, zeros[-1])
    highest = max(point.value for _, series in _rates(seen) for point in series)
    lowest = min(point.value for _, series in _rates(seen) for point in series)
    return passed(remark("rates", low=lowest, high=highest, steps=len(seen.updates)), highest)


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
            # a restart falls before it rises, and epochs have plateaus
            if not rises or not falls or values[at - 1] <= 0:
                continue
            ratio = values[at] / values[at - 1]
            largest = max(largest, ratio)
            if ratio > seen.limits["lr-jump"]:
                measured = remark("jump", before=values[at - 1], after=values[at])
                return warned(measured, ratio, series[at].step, name)
    return passed(remark("no-jump", times=largest), largest)


def _lr_rises_again(seen: Evidence) -> CheckOutcome:
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
            measured = remark("beyond-its-length", scheduler=name, length=length, taken=taken)
            return warned(measured, taken / length, past.step, name)
    if not seen.setup.scheduler_lengths:
        return not_looked_at(remark("no-lengths"))
    return passed(remark("within-lengths", least=min(seen.setup.scheduler_lengths.values())))


def _counts(seen: Evidence) -> Iterator[tuple[str, list[tuple[Point, int]]]]:
    """By scheduler, its steps between one update and the next, and the distance in steps."""
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
        total = sum(point.value for point, _ in counts)
        steps = sum(between for _, between in counts)
        words.append(remark("scheduler-stepped", scheduler=name, times=total, steps=steps))
        if (
            total == 0
            and steps >= seen.limits["schedule-unstepped"]
            and (loaded := _epochs(seen)) != 1
        ):
            measured = remark(
                "never-stepped", measured=words[-1], epochs=loaded - 1 if loaded else None
            )
            return warned(measured, 0.0, counts[-1][0].step, name)
        doubled = [point for point, between in counts if point.value > between]
        if len(doubled) > seen.limits["schedule-doubled"] * len(counts):
            measured = remark("stepped-between", scheduler=name, times=total / steps)
            return warned(measured, total / steps, doubled[0].step, name)
    return passed(remark("several", parts=words)) if words else not_looked_at(remark("one-update"))


def _epochs(seen: Evidence) -> int:
    """How often the loader of the last batch was begun; 0 without one of torch's loaders."""
    return next(
        (each.loaded.begun for each in reversed(seen.updates) if each.loaded is not None), 0
    )


def _schedule_order(seen: Evidence) -> CheckOutcome:
    first = seen.updates[0]
    for name, applied in first.schedulers.items():
        before = applied.stepped - seen.run.setups[0].schedulers.get(name, applied.stepped)
        if before > 0 and first.step == seen.vitals[0].step:
            measured = remark("stepped-before", scheduler=name, times=before)
            return warned(measured, float(before), first.step, name)
    return passed(remark("not-stepped-before"))


def _schedule_applied(seen: Evidence) -> CheckOutcome:
    """Learning rates of the groups against those that the schedulers say they have set.

    Only schedulers of an optimizer that updates in the step count, or whose optimizer never
    updates. Of several, as for warm-up and plateaus, the last to act has set the rates."""
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
        return not_looked_at(remark("no-rates"))
    if len(other) > seen.limits["schedule-overruled"] * compared:
        step, made, name, rates = other[0]
        measured = remark(
            "overruled",
            made=made[:3],
            scheduler=name,
            rates=rates[:3],
            count=len(other),
            steps=compared,
        )
        return warned(measured, max(made), step, name)
    return passed(remark("rates-followed", followed=compared - len(other), steps=compared))


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-15)


def _clipped(seen: Evidence) -> list[tuple[Point, float]]:
    """Per update, the ratio of the gradient norm to that of the backward, and the update's norm."""
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
        measured = remark("clipped-behind", behind=len(behind), updates=len(seen.updates))
        return warned(measured, len(behind) / len(seen.updates), behind[0].step)
    if not ratios:
        return not_looked_at(remark("gradients-zero"))
    share = len(clipped) / len(ratios)
    usual = median(point.value for point in clipped) if clipped else 1.0
    measured = remark(
        "made-smaller", clipped=len(clipped), updates=len(ratios), times=usual if clipped else None
    )
    if share >= seen.limits["clip-always"] and usual < seen.limits["clip-strength"]:
        return warned(measured, share, clipped[0].step)
    return passed(measured, share)


def _grown(seen: Evidence) -> CheckOutcome:
    # by one factor, unlike by noise, decay and projections
    alike = {
        each.step
        for each in seen.updates
        if each.grown is not None
        and 0 < (low := float(each.grown[0])) <= (high := float(each.grown[1])) < math.inf
        and high / low < _ALIKE
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
        return passed(remark("not-grown"))
    worst = max(grown, key=lambda point: point.value)
    measured = remark("gradients-grown", times=worst.value, steps=len(grown))
    return warned(measured, worst.value, worst.step)


def _most_before(seen: Evidence, step: int) -> float:
    """The largest gradient norm at an update that clipping and a loop's own averaging allow."""
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
        return not_looked_at(remark("not-clipped"))
    usual = median(norm for _, norm, _ in pairs)
    product = [norm * scale for _, norm, scale in pairs]
    middle = median(product)
    even = all(abs(each - middle) <= 1e-3 * middle for each in product)
    if even and usual < seen.limits["clip-scaled"] and len(pairs) > 2:
        measured = remark("clipped-scaled", product=middle, norm=usual)
        return failed(measured, usual, pairs[0][0].step)
    return passed(remark("clipped-norm", norm=usual), usual)


#: Ratio up to which factors count as one, by rounding.
_ALIKE = 1.001
_SCHEDULED = (Need.VITALS, Need.SCHEDULER, Need.UPDATES)
_NORMED = (Need.VITALS, Need.UPDATES, Need.NORMS)
_UPDATED = (Need.VITALS, Need.UPDATES)
SCHEDULE = of_layer(
    Layer.SCHEDULE,
    Check("lr-range", _lr_range, {"lr-zero": 0.05}, needs=_UPDATED),
    Check("lr-jump", _lr_jump, {"lr-jump": 1.5}, needs=_UPDATED),
    Check("lr-length", _lr_rises_again, needs=_SCHEDULED),
    Check(
        "schedule-steps",
        _schedule_steps,
        {"schedule-unstepped": 200, "schedule-doubled": 0.1},
        needs=_SCHEDULED,
    ),
    Check("schedule-order", _schedule_order, needs=_SCHEDULED),
    Check("schedule-applied", _schedule_applied, {"schedule-overruled": 0.5}, needs=_SCHEDULED),
    Check("clip-share", _clip_share, {"clip-always": 0.95, "clip-strength": 1e-4}, needs=_NORMED),
    Check("gradients-grow", _grown, {"clip-grows": 1.01}, needs=_NORMED),
    Check(
        "clip-before-unscale",
        _clip_before_unscale,
        {"clip-scaled": 1e-2},
        needs=(Need.VITALS, Need.SCALER, Need.UPDATES),
    ),
)
