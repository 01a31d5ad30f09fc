"""The checklist's layer *optimizer*: gradients and updates beside the weights, Adam's moments, what
was forgotten.
"""

from __future__ import annotations

import math

from accucompare.bundle.format import display_name
from accucompare.findings.checklist.checks import (
    Check,
    CheckOutcome,
    Evidence,
    Judge,
    Layer,
    Need,
    Threshold,
    failed,
    median,
    most,
    not_looked_at,
    passed,
    steps_in_log,
    warned,
)
from accucompare.findings.log import ParameterFacts

#: Classes of modules that normalise, in whose names these stand.
_NORMS = ("Norm",)
_SMALL_EPS = 1e-6
#: So many looks before something is said of all of them.
_FEW = 3


def _is_matrix(parameter: ParameterFacts) -> bool:
    """Whether its ratio to its gradient says something: biases and norms begin at 0 or 1, whatever
    the rest does.
    """
    return len(parameter.shape) > 1 and bool(parameter.group)


def _largest(seen: Evidence, measurement: str, over: bool = False) -> list[tuple[float, int, str]]:
    """Of each matrix the most of a measurement in all looks, its step, and the name; ``over``: as a
    share of the weight's norm.

    The most, since what has been learnt has no gradient left, and what begins with zeros has none
    yet."""
    found = []
    for parameter, series in seen.of_layers(measurement, "weight"):
        values = [
            (value / weight if over else value, step)
            for step, (value, weight) in series
            if 0 < value < math.inf and weight > 0
        ]
        if values and _is_matrix(parameter):
            found.append((*max(values), parameter.name))
    return found


def _vanishing(seen: Evidence) -> CheckOutcome:
    ratios = _largest(seen, "grad", over=True)
    if len(ratios) < 2:
        return not_looked_at(
            "fewer than two matrices that are updated have a gradient: one is compared with the"
            " others"
        )
    (value, step, name), *others = sorted(ratios)
    usual = median(value for value, *_ in others)
    likewise = [each[2] for each in others if each[0] < seen.limits["gradient-ratio"] * usual]
    measured = (
        f"the gradient's norm over the weight's was {value:.3g} at most in all looks, and"
        f" {usual:.3g} in the middle of the others"
    )
    if value < seen.limits["gradient-ratio"] * usual:
        return warned(
            measured + (f"; likewise {most(likewise)}" if likewise else ""),
            value / usual,
            step,
            name,
        )
    return passed(f"{display_name(name)}: {measured}", value / usual)


def _exploding(seen: Evidence) -> CheckOutcome:
    ratios = _least_ratios(seen)
    if len(ratios) < 2:
        return not_looked_at(
            "fewer than two matrices that are updated have a gradient: one is compared with the"
            " others"
        )
    *others, (value, step, name) = sorted(ratios)
    usual = median(value for value, *_ in others)
    measured = (
        f"the gradient's norm over the weight's was {value:.3g} at least in all looks, and"
        f" {usual:.3g} in the middle of the others"
    )
    large = value > seen.limits["gradient-most"] * max(
        usual, 1.0
    )  # where all are large, so is the loss
    return (
        warned(measured, value, step, name)
        if large
        else passed(f"{display_name(name)}: {measured}", value)
    )


def _least_ratios(seen: Evidence) -> list[tuple[float, int, str]]:
    """Of each matrix the smallest ratio of its gradient's norm to its own in any look, the first
    step, and its name.
    """
    found = []
    for parameter, series in seen.of_layers("grad", "weight"):
        values = [
            (grad / weight, step)
            for step, (grad, weight) in series
            if weight > 0 and math.isfinite(grad)
        ]
        if (
            len(values) >= _FEW and len(values) == len(series) and _is_matrix(parameter)
        ):  # a weight that began at 0 is small for long
            found.append((min(value for value, _ in values), values[0][1], parameter.name))
    return found


def _update_ratio(seen: Evidence) -> CheckOutcome:
    ratios = _largest(seen, "update")
    if not ratios:
        return not_looked_at("no matrix was seen to be updated")
    usual = median(value for value, *_ in ratios)
    high, low = max(ratios), min(ratios)
    measured = (
        f"update over weight is {low[0]:.3g} to {high[0]:.3g}, {usual:.3g} in the middle: of each"
        " matrix the most of all looks"
    )
    losses = [point.value for point in seen.losses if math.isfinite(point.value)]
    part = max(len(losses) // 10, 5)
    learnt = (
        median(losses[-part:]) / first if losses and (first := median(losses[:part])) > 0 else 0.0
    )
    if usual > seen.limits["update-most"] and learnt > seen.limits["update-learnt"]:
        return warned(
            f"{measured}; the loss came to {learnt:.2g} x what it was at first",
            usual,
            high[1],
            high[2],
        )
    if usual < seen.limits["update-least"]:
        return warned(measured, usual, low[1], low[2])
    return passed(measured, usual)


def _second_moment(seen: Evidence) -> CheckOutcome:
    """The root of the mean of Adam's second moment against the eps that is added to it, where the
    gradient was largest.
    """
    eps = {each.name: each.eps for each in seen.setup.parameters} if seen.setup is not None else {}
    found = []
    for parameter, series in seen.of_layers("v", "grad"):
        values = [
            (math.sqrt(value), step)
            for step, (value, grad) in series
            if grad > 0 and 0 <= value < math.inf
        ]
        if (
            values and _is_matrix(parameter) and 0 < eps[parameter.name] <= _SMALL_EPS
        ):  # a larger one is meant to count
            value, step = max(values)
            found.append((value / eps[parameter.name], step, parameter.name))
    if not found:
        return not_looked_at(
            "no matrix with a gradient is updated by an optimizer that has a second moment, and an"
            " eps of 1e-6 or less"
        )
    usual, (_, step, name) = median(value for value, *_ in found), min(found)
    measured = (
        f"the root of the second moment was {usual:.3g} x eps at most in all looks, in the middle"
        " of all matrices"
    )
    return (
        warned(measured, usual, step, name)
        if usual < seen.limits["second-moment"]
        else passed(measured, usual)
    )


def _state_restored(seen: Evidence) -> CheckOutcome:
    setup = seen.run.setups[0]
    renewed = seen.updates[-1].renewed
    if renewed >= _FEW:
        first = next(each for each in seen.updates if each.renewed)
        measured = (
            f"{renewed:,} times an optimizer without state took the place of one that had some, in"
            f" {steps_in_log(len(seen.updates))}"
        )
        return warned(measured, float(renewed), first.step)
    if not setup.taken:
        return not_looked_at("no optimizer keeps count of its steps")
    ahead = {
        name: count
        for name, count in setup.schedulers.items()
        if count > seen.limits["restored-ahead"]
    }
    for name, count in ahead.items():
        for optimizer, taken in setup.taken.items():
            if taken == 0:
                measured = (
                    f"at the beginning {optimizer} had taken 0 steps by its state, and {name}"
                    f" {count:,}"
                )
                return failed(measured, float(count), seen.run.setups[0].step, optimizer)
    counts = ", ".join(f"{name} {count:,}" for name, count in setup.taken.items())
    if (before := _restarted(seen)) is not None:
        return failed(
            "the run goes on with the weights of the one before, whose optimizer had taken"
            f" {before:,} steps; now: {counts}"
        )
    return passed(f"steps taken by the optimizers' state at the beginning: {counts}")


def _restarted(seen: Evidence) -> int | None:
    """How many updates the run before had made, if this one began with its last weights, and with
    an empty optimizer.
    """
    earlier = seen.run.earlier
    if (
        earlier is None
        or earlier.end is None
        or any(seen.run.setups[0].taken.values())
        or not seen.looked
    ):
        return None
    both = [
        pair
        for pair in zip(seen.looked[0].layers.get("weight", []), earlier.end.weights, strict=False)
        if None not in pair
    ]
    if len(both) < 2 or any(mine != theirs for mine, theirs in both):
        return None
    return sum(each.updates for each in earlier.vitals) or None


def _zero_grad(seen: Evidence) -> CheckOutcome:
    kept = [each for each in seen.updates if each.kept]
    checked = list(seen.updates[1:])
    if not checked:
        return not_looked_at("it shows from the second update on")
    if kept:
        updated = f"{kept[0].kept:,} parameters were updated with a gradient in which there was"
        measured = f"{updated} that of before the last update, in {steps_in_log(len(kept))}"
        return failed(measured, float(kept[0].kept), kept[0].step)
    thrown = [each for each in seen.updates if each.thrown]
    if len(thrown) > 2 and 2 * len(thrown) > len(
        seen.updates
    ):  # a loop may drop a batch now and then
        count = sum(each.thrown for each in thrown)
        measured = (
            f"the gradients of {count:,} backwards were cleared before an update had used them,"
            f" before {len(thrown):,} of "
        )
        return warned(f"{measured}{len(seen.updates):,} updates", float(count), thrown[0].step)
    return passed(
        "no update had the gradient of before the last one in its own, in"
        f" {steps_in_log(len(checked))}",
        0.0,
    )


def _update_skipped(seen: Evidence) -> CheckOutcome:
    skipped = {each.step for each in seen.run.scaled if each.skipped} | {
        step.step for step in seen.run.steps if step.skipped
    }
    trained = [each for each in seen.vitals if each.backwards and each.step not in skipped]
    if (looks := _all_unmoved(seen)) is not None:
        return failed(f"updates changed no weight in any of {len(looks):,} looks", 1.0, looks[0])
    if not trained:
        return not_looked_at("no backward was seen")
    updated = {each.step for each in seen.updates}
    if updated:  # the watch may begin, and end, between a backward and its update
        trained = [each for each in trained if min(updated) <= each.step <= max(updated)] or trained
    without = [each for each in trained if not each.updates]
    if len(without) == len(trained):
        if seen.setup is None or not seen.setup.optimizers:
            return not_looked_at(
                "the watch was given no optimizer, and saw none: it does not see updates that are"
                " made by hand"
            )
        return warned(
            "no update was seen of the optimizer that the watch was given", 1.0, without[0].step
        )
    share = len(without) / len(trained)
    measured = f"{len(without):,} of {len(trained):,} steps with a backward had no update"
    if (
        without and share < seen.limits["accumulating"]
    ):  # where micro-batches are steps, most of them have none
        return warned(measured, share, without[0].step)
    still, count = _unmoved(seen)
    if still and len(still) == count:  # what has been learnt to the last digit moves no more
        return warned(
            f"an update changed no weight of a matrix, in {len(still):,} of {count:,} looks",
            step=still[0],
        )
    return passed(measured, share)


def _all_unmoved(seen: Evidence) -> list[int] | None:
    """All looks at updates with a rate, if a sample of every parameter was the same behind every
    one of them.
    """
    looks = [
        each
        for each in seen.looked
        if each.updates and "moved" in each.layers and any(float(rate) for rate in each.lr.values())
    ]
    moved = [float(share) for each in looks for share in each.layers["moved"] if share is not None]
    return (
        [each.step for each in looks] if len(looks) >= _FEW and moved and not any(moved) else None
    )


def _unmoved(seen: Evidence) -> tuple[list[int], int]:
    """The looks in which an update with a rate has changed no weight of any matrix that has a
    gradient, and how many looks there were.
    """
    moved: dict[int, float] = {}
    for parameter, series in seen.of_layers("moved", "grad"):
        for step, (share, grad) in series:
            if grad > 0 and _is_matrix(parameter):
                moved[step] = max(moved.get(step, 0.0), share)
    rates = {
        each.step: max((float(rate) for rate in each.lr.values()), default=0.0)
        for each in seen.looked
    }
    looks = [step for step in moved if rates.get(step, 0.0) > 0]
    return [step for step in looks if moved[step] == 0], len(looks)


def _decay(seen: Evidence) -> CheckOutcome:
    assert seen.setup is not None
    decayed = [
        each
        for each in seen.setup.parameters
        if each.group and each.decay > seen.limits["decay-of-biases"] and each.trainable
    ]
    plain = [
        each
        for each in decayed
        if len(each.shape) < 2 or any(word in each.owner for word in _NORMS)
    ]
    strongest = max((each.decay for each in seen.setup.parameters if each.group), default=0.0)
    if plain:
        measured = (
            f"{len(plain):,} biases and weights of norms have a weight decay of"
            f" {max(each.decay for each in plain):g}"
        )
        return warned(measured, max(each.decay for each in plain), place=plain[0].name)
    return passed(
        f"the weight decay is {strongest:g} at most; that of biases and norms is within the"
        " threshold",
        strongest,
    )


def _check(
    id: str,
    looks_at: str,
    cure: str,
    judge: Judge,
    *thresholds: Threshold,
    needs: tuple[Need, ...],
    why: str,
) -> Check:
    return Check(
        id, Layer.OPTIMIZER, looks_at, cure, judge, thresholds, needs=(Need.VITALS, *needs), why=why
    )


OPTIMIZER = (
    _check(
        "gradient-vanishes",
        "the gradient's norm over the weight's, of each matrix, beside that of the others",
        "check the initialisation, the normalisation and saturated activations between this layer"
        " and the loss",
        _vanishing,
        Threshold(
            "gradient-ratio",
            1e-5,
            "times the median of the others, below it; of each the largest of all looks",
            "sound runs: 0.004",
        ),
        needs=(Need.CLOSE,),
        why="the layer stands still",
    ),
    _check(
        "gradient-explodes",
        "the gradient's norm over the weight's, of each matrix, beside that of the others",
        "check how this weight was initialised, and the scale of what comes to it; clip gradients",
        _exploding,
        Threshold(
            "gradient-most",
            100,
            "above it in every look, and so many times the median of the others",
            "std over std, issue 15",
        ),
        needs=(Need.CLOSE,),
        why="one step undoes what thousands have learnt",
    ),
    _check(
        "update-ratio",
        "what an update adds over the weight, of each matrix",
        "change the learning rate until updates are about 1e-3 of the weights",
        _update_ratio,
        Threshold(
            "update-least",
            1e-7,
            "below it, the median of the matrices",
            "float32 rounds away what is less than 6e-8",
        ),
        Threshold(
            "update-most",
            2,
            "above it, the median of the matrices: weights are replaced",
            "sound runs: 1.3 at most",
        ),
        Threshold(
            "update-learnt",
            0.5,
            "and the last losses over the first losses, above it",
            "half of the loss is left",
        ),
        needs=(Need.UPDATES, Need.CLOSE),
        why=(
            "about 1e-3 is healthy; what is rounded away wastes steps, and what replaces the weight"
            " forgets"
        ),
    ),
    _check(
        "second-moment",
        "the root of Adam's second moment beside the eps that is added to it",
        "check whether the loss is divided twice, or a loss scale is taken out twice; lower eps",
        _second_moment,
        Threshold(
            "second-moment",
            10,
            "times eps, below it the median of the matrices; of each the largest of all looks",
            "sound runs: 2,000",
        ),
        needs=(Need.CLOSE, Need.ADAM),
        why=(
            "where its root comes near eps, Adam's step is no longer of the size of the learning"
            " rate"
        ),
    ),
    _check(
        "state-restored",
        "an optimizer whose state is empty beside a scheduler, or an earlier run in the log, that"
        " has gone on; one that is made anew",
        "load the optimizer's state with the weights: optimizer.load_state_dict(...); make the"
        " optimizer once, before the loop",
        _state_restored,
        Threshold(
            "restored-ahead",
            1,
            "steps of the scheduler; it takes one when it is made",
            "torch's own count",
        ),
        needs=(Need.UPDATES,),
        why="Adam without its moments takes steps that are far too large",
    ),
    _check(
        "zero-grad",
        "gradients of before the last update to which the next one's are added, and gradients that"
        " are cleared unused",
        "call optimizer.zero_grad() behind each update, once, and not at each micro-batch",
        _zero_grad,
        needs=(Need.UPDATES,),
        why="gradients of all steps add up, and their norm grows linearly",
    ),
    _check(
        "update-skipped",
        "steps with a backward and without an update, or updates that change no weight",
        "check what stands before optimizer.step(), and that the optimizer holds the model's"
        " parameters",
        _update_skipped,
        Threshold(
            "accumulating",
            0.4,
            "share of steps without; from it on they are micro-batches",
            "two micro-batches: 0.5",
        ),
        needs=(),
        why="data is used up, and nothing is learnt",
    ),
    _check(
        "decay-of-biases",
        "weight decay on biases and on weights of norms",
        "give them a parameter group of their own with weight_decay=0",
        _decay,
        Threshold(
            "decay-of-biases",
            0.25,
            "weight decay, above it",
            "recipes of sound runs have up to 0.2",
        ),
        needs=(Need.UPDATES,),
        why="it pulls norms towards 0, where they have no reason to be",
    ),
)
