"""The checklist's layer *optimizer*: gradients and updates beside the weights, Adam's moments, what was forgotten."""

from __future__ import annotations

import math
import statistics

from accucompare.bundle.records import display_name
from accucompare.findings.checks import (
    Check,
    Evidence,
    Judge,
    Layer,
    Need,
    Outcome,
    Threshold,
    failed,
    median,
    most,
    not_looked_at,
    passed,
    steps_of,
    warned,
)
from accucompare.findings.vitals import ParameterFacts

#: Classes of modules that normalise, in whose names these stand.
_NORMS = ("Norm",)
#: So many looks before a moment's spread is known.
_LOOKS = 10
#: So many looks before something is said of all of them.
_FEW = 3


def _is_matrix(parameter: ParameterFacts) -> bool:
    """Whether its ratio to its gradient says something: biases and norms begin at 0 or 1, whatever the rest does."""
    return len(parameter.shape) > 1 and bool(parameter.group)


def _ratios(seen: Evidence, over: str, under: str) -> list[tuple[float, int, str]]:
    """Of each matrix the median of a ratio, the first step, and its name; where neither is zero."""
    found = []
    for parameter, series in seen.of_layers(over, under):
        values = [(one / other, step) for step, (one, other) in series if 0 < one < math.inf and 0 < other < math.inf]
        if values and _is_matrix(parameter):
            found.append((median(value for value, _ in values), values[0][1], parameter.name))
    return found


def _vanishing(seen: Evidence) -> Outcome:
    ratios = _ratios(seen, "grad", "weight")
    if not ratios:
        return not_looked_at("no matrix that is updated has a gradient")
    low = sorted(each for each in ratios if each[0] < seen.limits["gradient-ratio"])
    if low:
        value, step, name = low[0]
        others = f"; likewise {most([each[2] for each in low[1:]])}" if low[1:] else ""
        return warned(f"the gradient's norm over the weight's was {value:.3g} (median of the looks){others}", value, step, name)
    value, _, name = min(ratios)
    return passed(f"gradient over weight is {value:.3g} at least ({display_name(name)})", value)


def _exploding(seen: Evidence) -> Outcome:
    largest = (0.0, -1, "")
    for parameter, series in seen.of_layers("grad"):
        count = math.prod(parameter.shape) or 1
        for step, (grad,) in series:
            if math.isfinite(grad):
                largest = max(largest, (grad / math.sqrt(count), step, parameter.name))
    value, step, name = largest
    measured = f"the root mean square of a parameter's gradient was {value:.3g} at most"
    if value > seen.limits["gradient-size"]:
        return warned(measured, value, step, name)
    ratios = _least_ratios(seen)
    if ratios and max(ratios)[0] > seen.limits["gradient-most"]:
        value, step, name = max(ratios)
        return warned(f"the gradient's norm was {value:.3g} x the weight's at least, in every look", value, step, name)
    return passed(measured, value)


def _least_ratios(seen: Evidence) -> list[tuple[float, int, str]]:
    """Of each matrix the smallest ratio of its gradient's norm to its own in any look, the first step, and its name."""
    found = []
    for parameter, series in seen.of_layers("grad", "weight"):
        values = [(grad / weight, step) for step, (grad, weight) in series if weight > 0 and math.isfinite(grad)]
        if len(values) >= _FEW and len(values) == len(series) and _is_matrix(parameter):  # a weight that began at 0 is small for long
            found.append((min(value for value, _ in values), values[0][1], parameter.name))
    return found


def _update_ratio(seen: Evidence) -> Outcome:
    peak = max((float(rate) for each in seen.looked for rate in each.lr.values()), default=0.0)
    full = {each.step for each in seen.looked if each.lr and max(map(float, each.lr.values())) >= 0.1 * peak > 0}
    ratios = []
    largest = (0.0, -1, "")
    for parameter, series in seen.of_layers("update", "weight"):
        values = [(update, step) for step, (update, weight) in series if step in full and weight > 0 and 0 < update < math.inf]
        if values and _is_matrix(parameter):
            ratios.append((median(value for value, _ in values), values[0][1], parameter.name))
            largest = max(largest, (*max(values), parameter.name))
    if not ratios:
        return not_looked_at("no matrix was seen to be updated")
    usual = median(value for value, *_ in ratios)
    low, high = seen.limits["update-least"], seen.limits["update-most"]
    large = sorted((each for each in ratios if each[0] > high), reverse=True)
    measured = f"update over weight is {min(ratios)[0]:.3g} to {max(ratios)[0]:.3g}, {usual:.3g} in the middle"
    if large:
        value, step, name = large[0]
        return warned(f"{measured}; {steps_of(len(full))} looked at, where the rate was over a tenth of its most", value, step, name)
    if largest[0] > seen.limits["update-whole"]:
        value, step, name = largest
        return warned(f"an update was {value:.3g} x the weight that it was added to; {measured}", value, step, name)
    if usual < low:
        value, step, name = min(ratios)
        return warned(measured, usual, step, name)
    return passed(measured, usual)


def _first_moment(seen: Evidence) -> Outcome:
    sigmas, factor = seen.limits["moment-sigmas"], seen.limits["moment-factor"]
    worst: tuple[float, int, str, float] | None = None
    judged = 0
    for parameter, series in seen.of_layers("m"):
        values = [(step, value) for step, (value,) in series if math.isfinite(value)]
        judged = max(judged, len(values))
        for at in range(_LOOKS, len(values)):
            before = [value for _, value in values[at - _LOOKS : at]]
            step, value = values[at]
            mean, spread = statistics.fmean(before), statistics.pstdev(before)
            if value > mean + sigmas * spread and value > factor * max(before) > 0:
                found = value / max(before), step, parameter.name, mean
                worst = found if worst is None or found > worst else worst
    if worst is not None:
        value, step, name, mean = worst
        measured = f"the first moment was {value:.3g} x the largest of the {_LOOKS} looks before, whose mean was {mean:.3g}"
        return warned(measured, value, step, name)
    if judged <= _LOOKS:
        return not_looked_at(f"{judged} looks are too few to know a spread: {_LOOKS + 1} at least")
    return passed(f"no first moment left its last {_LOOKS} looks by {sigmas:g} standard deviations and {factor:g} x their largest")


def _second_moment(seen: Evidence) -> Outcome:
    found = []
    for parameter, series in seen.of_layers("v", "grad"):
        values = [(value, step) for step, (value, grad) in series if grad > 0 and math.isfinite(value)]
        if values and _is_matrix(parameter):
            found.append((median(value for value, _ in values), values[0][1], parameter.name))
    if not found:
        return not_looked_at("no matrix that is updated has a gradient")
    value, step, name = min(found)
    measured = f"the mean of a second moment was {value:.3g} at least (median of the looks)"
    return warned(measured, value, step, name) if value < seen.limits["second-moment"] else passed(measured, value)


def _state_restored(seen: Evidence) -> Outcome:
    setup = seen.run.setups[0]
    renewed = seen.updates[-1].renewed
    if renewed >= _FEW:
        first = next(each for each in seen.updates if each.renewed)
        measured = f"{renewed:,} times an optimizer without state took the place of one that had some, in {steps_of(len(seen.updates))}"
        return warned(measured, float(renewed), first.step)
    if not setup.taken:
        return not_looked_at("no optimizer keeps count of its steps")
    ahead = {name: count for name, count in setup.schedulers.items() if count > seen.limits["restored-ahead"]}
    for name, count in ahead.items():
        for optimizer, taken in setup.taken.items():
            if taken == 0:
                measured = f"at the beginning {optimizer} had taken 0 steps by its state, and {name} {count:,}"
                return failed(measured, float(count), seen.run.setups[0].step, optimizer)
    counts = ", ".join(f"{name} {count:,}" for name, count in setup.taken.items())
    if (before := _restarted(seen)) is not None:
        return failed(f"the run goes on with the weights of the one before, whose optimizer had taken {before:,} steps; now: {counts}")
    return passed(f"steps taken by the optimizers' state at the beginning: {counts}")


def _restarted(seen: Evidence) -> int | None:
    """How many updates the run before had made, if this one began with its last weights, and with an empty optimizer."""
    earlier = seen.run.earlier
    if earlier is None or earlier.end is None or any(seen.run.setups[0].taken.values()) or not seen.looked:
        return None
    both = [pair for pair in zip(seen.looked[0].layers.get("weight", []), earlier.end.weights, strict=False) if None not in pair]
    if len(both) < 2 or any(mine != theirs for mine, theirs in both):
        return None
    return sum(each.updates for each in earlier.vitals) or None


def _zero_grad(seen: Evidence) -> Outcome:
    kept = [each for each in seen.updates if each.kept]
    checked = list(seen.updates[1:])
    if not checked:
        return not_looked_at("it shows from the second update on")
    if kept:
        still = f"{kept[0].kept:,} parameters still had the gradient of before the last update when the backward began"
        return failed(f"{still}, in {steps_of(len(kept))}", float(kept[0].kept), kept[0].step)
    thrown = [each for each in seen.updates if each.thrown]
    if len(thrown) > 2 and 2 * len(thrown) > len(seen.updates):  # a loop may drop a batch now and then
        count = sum(each.thrown for each in thrown)
        measured = f"the gradients of {count:,} backwards were cleared before an update had used them, before {len(thrown):,} of "
        return warned(f"{measured}{len(seen.updates):,} updates", float(count), thrown[0].step)
    return passed(f"no gradient of before the last update was there when a backward began, in {steps_of(len(checked))}", 0.0)


def _update_skipped(seen: Evidence) -> Outcome:
    skipped = {each.step for each in seen.run.scaled if each.skipped} | {step.step for step in seen.run.steps if step.skipped}
    trained = [each for each in seen.vitals if each.backwards and each.step not in skipped]
    if (looks := _all_unmoved(seen)) is not None:
        return failed(f"updates changed no weight in any of {len(looks):,} looks", 1.0, looks[0])
    if not trained:
        return not_looked_at("no backward was seen")
    without = [each for each in trained if not each.updates]
    if len(without) == len(trained):
        return warned("no update was seen", 1.0, without[0].step)
    share = len(without) / len(trained)
    measured = f"{len(without):,} of {len(trained):,} steps with a backward had no update"
    if without and share < seen.limits["accumulating"]:  # where micro-batches are steps, most of them have none
        return warned(measured, share, without[0].step)
    still = _unmoved(seen)
    if still:
        return warned(f"an update changed no weight of a matrix, in {len(still):,} of {len(seen.looked):,} looks", step=still[0])
    return passed(measured, share)


def _all_unmoved(seen: Evidence) -> list[int] | None:
    """All looks at updates with a rate, if a sample of every parameter was the same behind every one of them."""
    looks = [each for each in seen.looked if each.updates and "moved" in each.layers and any(float(rate) for rate in each.lr.values())]
    moved = [float(share) for each in looks for share in each.layers["moved"] if share is not None]
    return [each.step for each in looks] if len(looks) >= _FEW and moved and not any(moved) else None


def _unmoved(seen: Evidence) -> list[int]:
    """The looks in which an update with a rate has changed no weight of any matrix that has a gradient."""
    moved: dict[int, float] = {}
    for parameter, series in seen.of_layers("moved", "grad"):
        for step, (share, grad) in series:
            if grad > 0 and _is_matrix(parameter):
                moved[step] = max(moved.get(step, 0.0), share)
    rates = {each.step: max((float(rate) for rate in each.lr.values()), default=0.0) for each in seen.looked}
    return [step for step, share in moved.items() if share == 0 and rates.get(step, 0.0) > 0]


def _decay(seen: Evidence) -> Outcome:
    assert seen.setup is not None
    decayed = [each for each in seen.setup.parameters if each.group and each.decay > seen.limits["decay-of-biases"] and each.trainable]
    plain = [each for each in decayed if len(each.shape) < 2 or any(word in each.owner for word in _NORMS)]
    strongest = max((each.decay for each in seen.setup.parameters if each.group), default=0.0)
    if plain:
        measured = f"{len(plain):,} biases and weights of norms have a weight decay of {max(each.decay for each in plain):g}"
        return warned(measured, max(each.decay for each in plain), place=plain[0].name)
    return passed(f"the weight decay is {strongest:g} at most; that of biases and norms is within the threshold", strongest)


def _check(id: str, looks_at: str, cure: str, judge: Judge, *thresholds: Threshold, needs: tuple[Need, ...]) -> Check:
    return Check(id, Layer.OPTIMIZER, looks_at, cure, judge, thresholds, needs=(Need.VITALS, *needs))


_ISSUE = "issue 15"
OPTIMIZER = (
    _check(
        "gradient-vanishes",
        "the gradient's norm over the weight's, of each matrix",
        "check the initialisation, the normalisation and saturated activations between this layer and the loss",
        _vanishing,
        Threshold("gradient-ratio", 1e-5, "below it, the median of the looks", _ISSUE),
        needs=(Need.CLOSE,),
    ),
    _check(
        "gradient-explodes",
        "the root mean square of each parameter's gradient, and its norm over the weight's",
        "clip gradients; lower the learning rate; look for a sum over a batch that should be a mean",
        _exploding,
        Threshold("gradient-size", 100, "above it, in any look", _ISSUE),
        Threshold("gradient-most", 100, "norm of gradient over weight, in every look", _ISSUE),
        needs=(Need.CLOSE,),
    ),
    _check(
        "update-ratio",
        "what an update adds over the weight, of each matrix, where the learning rate is over a tenth of its most",
        "change the learning rate until updates are about 1e-3 of the weights",
        _update_ratio,
        Threshold("update-least", 1e-5, "below it, the median of the layers", _ISSUE),
        Threshold("update-most", 1e-1, "above it, any layer's median of the looks", _ISSUE),
        Threshold("update-whole", 2, "above it, in any look: the weight is replaced", "sound runs pass"),
        needs=(Need.UPDATES, Need.CLOSE),
    ),
    _check(
        "first-moment",
        "the root mean square of Adam's first moment, against its last looks",
        "look at the batch of this step, and at the gradient norm; clip gradients",
        _first_moment,
        Threshold("moment-sigmas", 3, "standard deviations above the mean of the last ten looks", _ISSUE),
        Threshold("moment-factor", 5, "and so many times the largest of them", "3 sigma alone complains in sound runs"),
        needs=(Need.CLOSE, Need.ADAM),
    ),
    _check(
        "second-moment",
        "the mean of Adam's second moment, of each matrix with a gradient",
        "check whether the loss is divided twice, or a loss scale is taken out twice; lower eps",
        _second_moment,
        Threshold("second-moment", 1e-10, "below it, the median of the looks", _ISSUE),
        needs=(Need.CLOSE, Need.ADAM),
    ),
    _check(
        "state-restored",
        "an optimizer whose state is empty beside a scheduler, or an earlier run in the log, that has gone on; one that is made anew",
        "load the optimizer's state with the weights: optimizer.load_state_dict(...); make the optimizer once, before the loop",
        _state_restored,
        Threshold("restored-ahead", 1, "steps of the scheduler; it takes one when it is made", "torch's own count"),
        needs=(Need.UPDATES,),
    ),
    _check(
        "zero-grad",
        "gradients of before the last update that are still there when the next backward begins, and gradients that are cleared unused",
        "call optimizer.zero_grad() behind each update, once, and not at each micro-batch",
        _zero_grad,
        needs=(Need.UPDATES,),
    ),
    _check(
        "update-skipped",
        "steps with a backward and without an update, or with one that changes no weight",
        "check what stands before optimizer.step(), and that the optimizer holds the model's parameters",
        _update_skipped,
        Threshold("accumulating", 0.4, "share of steps without; from it on they are micro-batches", "two micro-batches: 0.5"),
        needs=(),
    ),
    _check(
        "decay-of-biases",
        "weight decay on biases and on weights of norms",
        "give them a parameter group of their own with weight_decay=0",
        _decay,
        Threshold("decay-of-biases", 0.05, "weight decay; torch's default for AdamW (0.01) is below", "sound runs pass"),
        needs=(Need.UPDATES,),
    ),
)
