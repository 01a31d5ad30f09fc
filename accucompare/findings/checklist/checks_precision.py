"""The checklist's layer *precision*: the loss scale, underflow, logits, and updates that rounding
takes away.
"""

from __future__ import annotations

import math

from accucompare.findings.checklist.checks import (
    Check,
    CheckOutcome,
    Evidence,
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
from accucompare.findings.log import AlertKind

_HALVES = ("float16", "bfloat16")


def _scale_falling(seen: Evidence) -> CheckOutcome:
    began = seen.run.steps[0].step if seen.run.steps else 0
    later = [
        each for each in seen.run.scaled if each.in_a_row <= each.step - began
    ]  # the first ones find the scale to begin with
    longest = max((each.in_a_row for each in later), default=0)
    skipped = sum(each.skipped for each in seen.run.scaled)
    measured = (
        f"{skipped:,} of {len(seen.run.steps):,} updates were skipped, {longest} running at most"
        " after the first update"
    )
    worst = next((each for each in later if each.in_a_row >= seen.limits["skips-running"]), None)
    return (
        passed(measured, float(longest))
        if worst is None
        else failed(measured, float(longest), worst.step)
    )


def _scale_at_one(seen: Evidence) -> CheckOutcome:
    lowest = min(
        ((step.scale, step.step) for step in seen.run.steps if step.scale is not None),
        default=(math.nan, -1),
    )
    first = next((step.scale for step in seen.run.steps if step.scale is not None), math.nan)
    measured = f"the loss scale was {lowest[0]:g} at least, and {first:g} at first"
    came_down = first > lowest[0] or any(
        each.skipped for each in seen.run.scaled
    )  # else it was made so
    if lowest[0] <= seen.limits["scale-least"] and came_down:
        return failed(measured, lowest[0], lowest[1])
    return passed(measured, lowest[0])


def _scale_growing(seen: Evidence) -> CheckOutcome:
    losses = {point.step: point.value for point in seen.losses}
    zero = [
        step
        for step in seen.run.steps
        if step.scale is not None and step.grad_norm is not None and float(step.grad_norm) == 0
    ]
    zero = [
        step for step in zero if losses.get(step.step) != 0
    ]  # what has come to 0 has nothing left to learn
    highest = max(step.scale for step in seen.run.steps if step.scale is not None)
    measured = (
        f"the loss scale was {highest:g} at most; all gradients were zero in"
        f" {steps_in_log(len(zero))}"
    )
    first = next(step.scale for step in seen.run.steps if step.scale is not None)
    bad = [step for step in zero if step.scale is not None and step.scale >= first]
    if len(bad) >= seen.limits["scale-zero-steps"]:
        return failed(measured, highest, bad[0].step)
    return passed(measured, highest)


def _alerts(seen: Evidence, kind: AlertKind, what: str) -> CheckOutcome:
    found = [each for each in seen.run.warnings if each.kind is kind]
    if not found:
        return passed(f"no module's values or gradients {what}")
    places = [each.name or "(root)" for each in found]
    return warned(
        f"{found[0].text}" + (f"; likewise {most(places[1:])}" if places[1:] else ""),
        step=found[0].step,
        place=places[0],
    )


def _underflow(seen: Evidence) -> CheckOutcome:
    return _alerts(seen, AlertKind.UNDERFLOW, "were subnormal in 10 % of a sample or more")


def _near(seen: Evidence) -> CheckOutcome:
    return _alerts(seen, AlertKind.NEAR, "came near the largest number of their type")


def _entropy(seen: Evidence) -> CheckOutcome:
    series = [
        (each.step, float(each.targets.entropy) / math.log(each.targets.classes))
        for each in seen.vitals
        if each.targets is not None
        and each.targets.entropy is not None
        and each.targets.classes > 1
    ]
    series = [(step, share) for step, share in series if math.isfinite(share)]
    if not series:
        return not_looked_at(
            "no entropy was looked at: the output has one class, or axes behind its classes, or is"
            " no log-probability"
        )
    losses = {
        each.step: float(each.targets.missed)
        for each in seen.vitals
        if each.targets is not None and each.targets.missed is not None
    }
    wrong = [
        (step, share)
        for step, share in series
        if share < seen.limits["entropy-least"]
        and losses.get(step, 0) > seen.limits["entropy-loss"]
    ]
    if len(wrong) > len(series) / 4:
        step, share = wrong[0]
        return warned(
            f"the entropy of the output was {share:.2g} of its most, with a cross entropy of"
            f" {losses[step]:.4g}",
            share,
            step,
        )
    lowest = min(share for _, share in series)
    flat = sum(share > 1 - seen.limits["entropy-flat"] for _, share in series)
    if flat == len(series) > 2:
        return warned(
            f"the output was uniform in {steps_in_log(flat)}: its entropy was its most,"
            " log(classes)",
            1.0,
            series[-1][0],
        )
    return passed(
        f"the entropy of the output was between {lowest:.2g} and"
        f" {max(share for _, share in series):.2g} of its most",
        lowest,
    )


def _loss_type(seen: Evidence) -> CheckOutcome:
    kinds = {
        each.targets.dtype: each.step for each in reversed(seen.vitals) if each.targets is not None
    }
    half = next((name for name in kinds if name in _HALVES), None)
    if half is not None:
        return warned(
            f"the log-probabilities that the loss is computed of are {half}", step=kinds[half]
        )
    return passed(f"the log-probabilities that the loss is computed of are {', '.join(kinds)}")


def _update_lost(seen: Evidence) -> CheckOutcome:
    shares = []
    for parameter, series in seen.of_layers("grad", "moved"):
        moved = [share for _, (grad, share) in series if grad > 0]
        if moved and parameter.dtype in _HALVES and parameter.group:
            shares.append((1 - median(moved), parameter.name, series[0][0]))
    if not shares:
        return not_looked_at("no parameter that is updated is float16 or bfloat16")
    usual = median(share for share, *_ in shares)
    worst = max(shares)
    measured = (
        f"{usual:.0%} of the weights did not change in an update (median of {len(shares)}"
        " parameters in half types)"
    )
    if usual > seen.limits["update-lost"]:
        return warned(measured, usual, worst[2], worst[1])
    return passed(measured, usual)


def _smoothing(seen: Evidence) -> CheckOutcome:
    found = [(each.step, each.targets) for each in seen.vitals if each.targets is not None]
    step, targets = max(found, key=lambda pair: pair[1].smoothing)
    amount, classes = targets.smoothing, targets.classes
    if not amount or classes < 2:
        return passed("the cross entropy has no label smoothing", 0.0)
    other = amount / classes
    parts = (1 - amount + other, *[other] * (classes - 1)) if classes < 10 else None
    rest = (classes - 1) * other
    floor = (
        -(1 - rest) * math.log(1 - rest) - rest * math.log(other)
        if parts is None
        else -sum(part * math.log(part) for part in parts)
    )
    measured = (
        f"label smoothing is {amount:.3g} over {classes:,} classes, with which no mean loss can be"
        f" below {floor:.4g}"
    )
    if amount > seen.limits["label-smoothing"]:
        return warned(measured, amount, step)
    return passed(measured, amount)


def _narrowed(seen: Evidence) -> CheckOutcome:
    first = next((each for each in seen.vitals if each.narrowed), None)
    if first is None:
        return passed(
            "no module was given positions or ids in a half type, beyond the whole numbers that it"
            " holds exactly"
        )
    found = first.narrowed[0]
    names = list(dict.fromkeys(each.name or "(root)" for each in first.narrowed[1:]))
    others = f"; likewise {most(names)}" if names else ""
    measured = (
        f"input {found.path} is {found.dtype}, and as large as {found.high}, where {found.dtype}"
        f" holds no odd numbers{others}"
    )
    return warned(measured, float(found.high), first.step, found.name or "(root)")


_ISSUE = "issue 15"
PRECISION = (
    Check(
        "scale-falling",
        Layer.PRECISION,
        "updates that the loss scaler skips one after the other, after the first that it has let"
        " pass",
        "find what overflows at any scale (`accucompare overflow LOG`), and keep that module in"
        " float32",
        _scale_falling,
        (Threshold("skips-running", 5, "skipped updates running", _ISSUE),),
        needs=(Need.SCALER,),
        why="a scaler skips now and then; many skips running are no longer too large a scale",
    ),
    Check(
        "scale-at-one",
        Layer.PRECISION,
        "a loss scale that has come down to 1",
        "find what overflows at any scale (`accucompare overflow LOG`), and keep that module in"
        " float32, or train in bfloat16",
        _scale_at_one,
        (Threshold("scale-least", 1, "loss scale", _ISSUE),),
        needs=(Need.SCALER,),
        why="there is nothing left to give",
    ),
    Check(
        "scale-growing",
        Layer.PRECISION,
        "a loss scale that grows while all gradients are zero, and the loss is not",
        "find out why gradients are zero: a detached loss, a scaler that is not used for the"
        " backward, or all labels ignored",
        _scale_growing,
        (
            Threshold(
                "scale-zero-steps",
                3,
                "steps with zero gradients, the scale not below the first",
                "sound runs pass",
            ),
        ),
        needs=(Need.SCALER, Need.NORMS),
        why="with zero gradients nothing can overflow",
    ),
    Check(
        "underflow",
        Layer.PRECISION,
        "gradients that are subnormal in float16, by module, without a loss scale",
        "use a loss scaler with float16; or bfloat16; or keep this module in float32",
        _underflow,
        why="what is subnormal loses digits, and then is zero",
    ),
    Check(
        "near-limit",
        Layer.PRECISION,
        "values near the largest number of their type, and gradients without a loss scale, by"
        " module",
        "keep this module in float32 or bfloat16, or scale its inputs down, before it overflows",
        _near,
        why="the next step may overflow",
    ),
    Check(
        "entropy",
        Layer.PRECISION,
        "outputs that are certain and wrong, or uniform in every step",
        "check the scale of the logits (a temperature, a sum in place of a mean), and that the"
        " labels fit the inputs",
        _entropy,
        (
            Threshold(
                "entropy-least",
                1e-3,
                "entropy over log(classes), below which an output is certain",
                "sound runs pass",
            ),
            Threshold(
                "entropy-loss",
                1.0,
                "cross entropy above which a certain output is wrong",
                "sound runs pass",
            ),
            Threshold(
                "entropy-flat",
                1e-6,
                "how near to 1 that share is, if an output is uniform",
                "rounding of float32",
            ),
        ),
        needs=(Need.VITALS, Need.TARGETS),
        why="a certain wrong answer has a gradient of full size; a uniform one has learnt nothing",
    ),
    Check(
        "loss-type",
        Layer.PRECISION,
        "the type that the cross entropy is computed in",
        "cast the logits before the loss: loss(logits.float(), labels)",
        _loss_type,
        needs=(Need.VITALS, Need.TARGETS),
        why="a bfloat16 loss has three digits: 4.97 and 4.98 are one number",
    ),
    Check(
        "update-lost",
        Layer.PRECISION,
        "weights in half types that an update does not change, since it is smaller than their"
        " rounding",
        "keep the weights that are updated in float32 (autocast does), or round stochastically",
        _update_lost,
        (
            Threshold(
                "update-lost", 0.5, "share of weights, the median over parameters", "half of them"
            ),
        ),
        needs=(Need.VITALS, Need.CLOSE),
        why="bfloat16 holds 8 bits: an update below 1/512 of a weight is rounded away",
    ),
    Check(
        "label-smoothing",
        Layer.PRECISION,
        "label smoothing, and the lowest loss that it allows",
        "give CrossEntropyLoss(label_smoothing=) the share that is taken from the label, such as"
        " 0.1, not that which it keeps",
        _smoothing,
        (
            Threshold(
                "label-smoothing",
                0.5,
                "share of the label that is given to all classes",
                "more than the label keeps",
            ),
        ),
        needs=(Need.VITALS, Need.TARGETS),
        why="a smoothed loss cannot go to 0",
    ),
    Check(
        "autocast-types",
        Layer.PRECISION,
        "positions and ids that modules are given in half types, in which neighbouring whole"
        " numbers are one",
        "make positions and time steps in float32 or int64, outside of autocast and of"
        " model.to(dtype)",
        _narrowed,
        needs=(Need.VITALS,),
        why=(
            "bfloat16 holds whole numbers up to 256 one by one, float16 up to 2,048; rotary"
            " embeddings and time steps are spoilt beyond"
        ),
    ),
)
