"""The checklist's layer *optimizer*: gradients, updates, Adam's moments, what was forgotten."""

from __future__ import annotations

import math

from accucompare.findings.checklist.checks import (
    Check,
    CheckOutcome,
    Evidence,
    Layer,
    Need,
    failed,
    median,
    not_looked_at,
    of_layer,
    passed,
    warned,
    warned_if,
)
from accucompare.findings.log import ParameterFacts, remark

#: Parts of class names of normalising modules.
_NORMS = ("Norm",)
_SMALL_EPS = 1e-6
#: Fewest looks before something is said of all of them.
_FEW = 3


def _is_matrix(parameter: ParameterFacts) -> bool:
    """Whether its ratio to its gradient means something: biases and norms begin at 0 or 1."""
    return len(parameter.shape) > 1 and bool(parameter.group)


def _largest(seen: Evidence, measurement: str, over: bool = False) -> list[tuple[float, int, str]]:
    """Each matrix's largest measurement in all looks, its step, and the name; ``over``: as a share
    of the weight's norm.

    The largest, since a learnt weight has no gradient left, and one that begins with zeros has none
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
        return not_looked_at(remark("too-few-matrices"))
    (value, step, name), *others = sorted(ratios)
    usual = median(value for value, *_ in others)
    likewise = [each[2] for each in others if each[0] < seen.limits["gradient-ratio"] * usual]
    measured = remark("gradient-at-most", value=value, usual=usual, others=likewise)
    if value < seen.limits["gradient-ratio"] * usual:
        return warned(measured, value / usual, step, name)
    return passed(remark("of-parameter", parameter=name, measured=measured), value / usual)


def _exploding(seen: Evidence) -> CheckOutcome:
    if len(seen.looked) < _FEW:
        return not_looked_at(remark("too-few-looks", looks=len(seen.looked), least=_FEW))
    ratios = _least_ratios(seen)
    if len(ratios) < 2:
        return not_looked_at(remark("too-few-matrices"))
    *others, (value, step, name) = sorted(ratios)
    usual = median(value for value, *_ in others)
    measured = remark("gradient-at-least", value=value, usual=usual)
    # if all are large, the loss is large, too
    large = value > seen.limits["gradient-most"] * max(usual, 1.0)
    if large:
        return warned(measured, value, step, name)
    return passed(remark("of-parameter", parameter=name, measured=measured), value)


def _least_ratios(seen: Evidence) -> list[tuple[float, int, str]]:
    """Each matrix's smallest ratio of its gradient's norm to its own, first step, and name."""
    found = []
    for parameter, series in seen.of_layers("grad", "weight"):
        values = [
            (grad / weight, step)
            for step, (grad, weight) in series
            if weight > 0 and math.isfinite(grad)
        ]
        # a weight that began at 0 is small for long
        if len(values) >= _FEW and len(values) == len(series) and _is_matrix(parameter):
            found.append((min(value for value, _ in values), values[0][1], parameter.name))
    return found


def _update_ratio(seen: Evidence) -> CheckOutcome:
    ratios = _largest(seen, "update")
    if not ratios:
        return not_looked_at(remark("no-matrix-updated"))
    usual = median(value for value, *_ in ratios)
    high, low = max(ratios), min(ratios)
    measured = remark("update-ratios", least=low[0], most=high[0], usual=usual)
    losses = [point.value for point in seen.losses if math.isfinite(point.value)]
    part = max(len(losses) // 10, 5)
    learnt = (
        median(losses[-part:]) / first if losses and (first := median(losses[:part])) > 0 else 0.0
    )
    if usual > seen.limits["update-most"] and learnt > seen.limits["update-learnt"]:
        return warned(
            remark("loss-came-to", measured=measured, share=learnt), usual, high[1], high[2]
        )
    return warned_if(usual < seen.limits["update-least"], measured, usual, low[1], low[2])


def _second_moment(seen: Evidence) -> CheckOutcome:
    """The root of the mean of Adam's second moment against eps, where the gradient was largest."""
    eps = {each.name: each.eps for each in seen.setup.parameters}
    found = []
    for parameter, series in seen.of_layers("v", "grad"):
        values = [
            (math.sqrt(value), step)
            for step, (value, grad) in series
            if grad > 0 and 0 <= value < math.inf
        ]
        # a larger eps is meant to count
        if values and _is_matrix(parameter) and 0 < eps[parameter.name] <= _SMALL_EPS:
            value, step = max(values)
            found.append((value / eps[parameter.name], step, parameter.name))
    if not found:
        return not_looked_at(remark("no-second-moment"))
    usual, (_, step, name) = median(value for value, *_ in found), min(found)
    measured = remark("second-moment", times=usual)
    return warned_if(usual < seen.limits["second-moment"], measured, usual, step, name)


def _state_restored(seen: Evidence) -> CheckOutcome:
    setup = seen.run.setups[0]
    renewed = seen.updates[-1].renewed
    if renewed >= _FEW:
        first = next(each for each in seen.updates if each.renewed)
        measured = remark("optimizer-renewed", times=renewed, steps=len(seen.updates))
        return warned(measured, float(renewed), first.step)
    if not setup.taken:
        return not_looked_at(remark("no-count-of-steps"))
    ahead = {
        name: count
        for name, count in setup.schedulers.items()
        if count > seen.limits["restored-ahead"]
    }
    for name, count in ahead.items():
        for optimizer, taken in setup.taken.items():
            if taken == 0:
                measured = remark("taken-none", optimizer=optimizer, scheduler=name, steps=count)
                return failed(measured, float(count), seen.run.setups[0].step, optimizer)
    counts = list(setup.taken.items())
    if (before := _restarted(seen)) is not None:
        return failed(remark("restarted", steps=before, counts=counts))
    return passed(remark("steps-taken", counts=counts))


def _restarted(seen: Evidence) -> int | None:
    """The updates of the run before, if this one began with its weights and an empty optimizer."""
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
        return not_looked_at(remark("from-second-update"))
    if kept:
        measured = remark("stale-gradient", parameters=kept[0].kept, steps=len(kept))
        return failed(measured, float(kept[0].kept), kept[0].step)
    thrown = [each for each in seen.updates if each.thrown]
    # a loop may drop a batch now and then
    if len(thrown) > 2 and 2 * len(thrown) > len(seen.updates):
        count = sum(each.thrown for each in thrown)
        measured = remark(
            "cleared-unused", backwards=count, thrown=len(thrown), updates=len(seen.updates)
        )
        return warned(measured, float(count), thrown[0].step)
    return passed(remark("no-stale-gradient", steps=len(checked)), 0.0)


def _update_skipped(seen: Evidence) -> CheckOutcome:
    skipped = {each.step for each in seen.run.scaled if each.skipped} | {
        step.step for step in seen.run.steps if step.skipped
    }
    trained = [each for each in seen.vitals if each.backwards and each.step not in skipped]
    if (looks := _all_unmoved(seen)) is not None:
        return failed(remark("updates-changed-nothing", looks=len(looks)), 1.0, looks[0])
    if not trained:
        return not_looked_at(remark("no-backward"))
    updated = {each.step for each in seen.updates}
    if updated:  # the watch may begin or end between a backward and its update
        trained = [each for each in trained if min(updated) <= each.step <= max(updated)] or trained
    without = [each for each in trained if not each.updates]
    if len(without) == len(trained):
        if not seen.setup.optimizers:
            return not_looked_at(remark("no-optimizer"))
        return warned(remark("given-optimizer-idle"), 1.0, without[0].step)
    share = len(without) / len(trained)
    measured = remark("without-update", without=len(without), trained=len(trained))
    # where micro-batches are steps, most have no update
    if without and share < seen.limits["accumulating"]:
        return warned(measured, share, without[0].step)
    still, count = _unmoved(seen)
    if still and len(still) == count:  # what has been learnt to the last digit moves no more
        return warned(remark("matrix-unmoved", still=len(still), looks=count), step=still[0])
    return passed(measured, share)


def _all_unmoved(seen: Evidence) -> list[int] | None:
    """All looks at updates with a rate, if none of them changed any parameter's sample."""
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
    """The looks in which an update with a rate moved no matrix that has a gradient; and all
    looks."""
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
        decay = max(each.decay for each in plain)
        measured = remark("biases-decayed", count=len(plain), decay=decay)
        return warned(measured, decay, place=plain[0].name)
    return passed(remark("decay-at-most", decay=strongest), strongest)


_UPDATED = (Need.VITALS, Need.UPDATES)
_CLOSE = (Need.VITALS, Need.CLOSE)
OPTIMIZER = of_layer(
    Layer.OPTIMIZER,
    Check("gradient-vanishes", _vanishing, {"gradient-ratio": 1e-5}, needs=_CLOSE),
    Check("gradient-explodes", _exploding, {"gradient-most": 100}, needs=_CLOSE),
    Check(
        "update-ratio",
        _update_ratio,
        {"update-least": 1e-7, "update-most": 2, "update-learnt": 0.5},
        needs=(Need.VITALS, Need.UPDATES, Need.CLOSE),
    ),
    Check(
        "second-moment",
        _second_moment,
        {"second-moment": 10},
        needs=(Need.VITALS, Need.CLOSE, Need.ADAM),
    ),
    Check("state-restored", _state_restored, {"restored-ahead": 1}, needs=_UPDATED),
    Check("zero-grad", _zero_grad, needs=_UPDATED),
    Check("update-skipped", _update_skipped, {"accumulating": 0.4}),
    Check("decay-of-biases", _decay, {"decay-of-biases": 0.25}, needs=_UPDATED),
)
