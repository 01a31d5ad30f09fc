"""The checklist's layer *precision*: loss scale, underflow, logits, updates lost to rounding."""

from __future__ import annotations

import math
from functools import partial

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
from accucompare.findings.log import AlertKind, remark

_HALVES = ("float16", "bfloat16")


def _scale_falling(seen: Evidence) -> CheckOutcome:
    began = seen.run.steps[0].step if seen.run.steps else 0
    # the first ones find the initial scale
    later = [each for each in seen.run.scaled if each.in_a_row <= each.step - began]
    longest = max((each.in_a_row for each in later), default=0)
    skipped = sum(each.skipped for each in seen.run.scaled)
    measured = remark(
        "scale-skipped", skipped=skipped, updates=len(seen.run.steps), running=longest
    )
    worst = next((each for each in later if each.in_a_row >= seen.limits["skips-running"]), None)
    if worst is None:
        return passed(measured, float(longest))
    return failed(measured, float(longest), worst.step)


def _scale_at_one(seen: Evidence) -> CheckOutcome:
    lowest = min(
        ((step.scale, step.step) for step in seen.run.steps if step.scale is not None),
        default=(math.nan, -1),
    )
    first = next((step.scale for step in seen.run.steps if step.scale is not None), math.nan)
    measured = remark("scale-least", least=lowest[0], first=first)
    # otherwise it was set so
    came_down = first > lowest[0] or any(each.skipped for each in seen.run.scaled)
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
    # what has come to 0 has nothing left to learn
    zero = [step for step in zero if losses.get(step.step) != 0]
    highest = max(step.scale for step in seen.run.steps if step.scale is not None)
    measured = remark("scale-most", most=highest, steps=len(zero))
    first = next(step.scale for step in seen.run.steps if step.scale is not None)
    bad = [step for step in zero if step.scale is not None and step.scale >= first]
    if len(bad) >= seen.limits["scale-zero-steps"]:
        return failed(measured, highest, bad[0].step)
    return passed(measured, highest)


def _alerts(kind: AlertKind, none: str, seen: Evidence) -> CheckOutcome:
    found = [each for each in seen.run.warnings if each.kind is kind]
    if not found:
        return passed(remark(none))
    places = [each.name or "(root)" for each in found]
    return warned(
        remark("alert", text=found[0].text, others=places[1:]), step=found[0].step, place=places[0]
    )


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
        return not_looked_at(remark("no-entropy"))
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
        return warned(remark("certain-and-wrong", share=share, loss=losses[step]), share, step)
    lowest = min(share for _, share in series)
    flat = sum(share > 1 - seen.limits["entropy-flat"] for _, share in series)
    if flat == len(series) > 2:
        return warned(remark("uniform-output", steps=flat), 1.0, series[-1][0])
    return passed(
        remark("entropy-between", least=lowest, most=max((share for _, share in series))), lowest
    )


def _loss_type(seen: Evidence) -> CheckOutcome:
    kinds = {
        each.targets.dtype: each.step for each in reversed(seen.vitals) if each.targets is not None
    }
    half = next((name for name in kinds if name in _HALVES), None)
    if half is not None:
        return warned(remark("log-probabilities", kinds=[half]), step=kinds[half])
    return passed(remark("log-probabilities", kinds=list(kinds)))


def _update_lost(seen: Evidence) -> CheckOutcome:
    shares = []
    for parameter, series in seen.of_layers("grad", "moved"):
        moved = [share for _, (grad, share) in series if grad > 0]
        if moved and parameter.dtype in _HALVES and parameter.group:
            shares.append((1 - median(moved), parameter.name, series[0][0]))
    if not shares:
        return not_looked_at(remark("no-half-parameter"))
    usual = median(share for share, *_ in shares)
    worst = max(shares)
    measured = remark("updates-rounded-away", share=usual, parameters=len(shares))
    return warned_if(usual > seen.limits["update-lost"], measured, usual, worst[2], worst[1])


def _smoothing(seen: Evidence) -> CheckOutcome:
    found = [(each.step, each.targets) for each in seen.vitals if each.targets is not None]
    step, targets = max(found, key=lambda pair: pair[1].smoothing)
    amount, classes = targets.smoothing, targets.classes
    if not amount or classes < 2:
        return passed(remark("no-smoothing"), 0.0)
    other = amount / classes
    parts = (1 - amount + other, *[other] * (classes - 1)) if classes < 10 else None
    rest = (classes - 1) * other
    floor = (
        -(1 - rest) * math.log(1 - rest) - rest * math.log(other)
        if parts is None
        else -sum(part * math.log(part) for part in parts)
    )
    measured = remark("smoothing", amount=amount, classes=classes, floor=floor)
    return warned_if(amount > seen.limits["label-smoothing"], measured, amount, step)


def _narrowed(seen: Evidence) -> CheckOutcome:
    first = next((each for each in seen.vitals if each.narrowed), None)
    if first is None:
        return passed(remark("none-narrowed"))
    found = first.narrowed[0]
    names = list(dict.fromkeys(each.name or "(root)" for each in first.narrowed[1:]))
    measured = remark("narrowed", path=found.path, dtype=found.dtype, high=found.high, others=names)
    return warned(measured, float(found.high), first.step, found.name or "(root)")


_TARGETS = (Need.VITALS, Need.TARGETS)
PRECISION = of_layer(
    Layer.PRECISION,
    Check("scale-falling", _scale_falling, {"skips-running": 5}, needs=(Need.SCALER,)),
    Check("scale-at-one", _scale_at_one, {"scale-least": 1}, needs=(Need.SCALER,)),
    Check(
        "scale-growing", _scale_growing, {"scale-zero-steps": 3}, needs=(Need.SCALER, Need.NORMS)
    ),
    Check("underflow", partial(_alerts, AlertKind.UNDERFLOW, "none-subnormal"), needs=()),
    Check("near-limit", partial(_alerts, AlertKind.NEAR, "none-near"), needs=()),
    Check(
        "entropy",
        _entropy,
        {"entropy-least": 1e-3, "entropy-loss": 1.0, "entropy-flat": 1e-6},
        needs=_TARGETS,
    ),
    Check("loss-type", _loss_type, needs=_TARGETS),
    Check("update-lost", _update_lost, {"update-lost": 0.5}, needs=(Need.VITALS, Need.CLOSE)),
    Check("label-smoothing", _smoothing, {"label-smoothing": 0.5}, needs=_TARGETS),
    Check("autocast-types", _narrowed),
)
