"""The checklist's layer *precision*: the loss scale, underflow, logits, and updates that rounding takes away."""

from __future__ import annotations

import math

from accucompare.findings.checks import (
    Check,
    Evidence,
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
from accucompare.findings.events import AlertKind

_HALVES = ("float16", "bfloat16")


def _scale_falling(seen: Evidence) -> Outcome:
    longest = max((each.in_a_row for each in seen.run.scaled), default=0)
    skipped = sum(each.skipped for each in seen.run.scaled)
    measured = f"{skipped:,} of {len(seen.run.steps):,} updates were skipped, {longest} running at most"
    worst = next((each for each in seen.run.scaled if each.in_a_row >= seen.limits["skips-running"]), None)
    return passed(measured, float(longest)) if worst is None else failed(measured, float(longest), worst.step)


def _scale_at_one(seen: Evidence) -> Outcome:
    lowest = min(((step.scale, step.step) for step in seen.run.steps if step.scale is not None), default=(math.nan, -1))
    measured = f"the loss scale was {lowest[0]:g} at least"
    return failed(measured, lowest[0], lowest[1]) if lowest[0] <= seen.limits["scale-least"] else passed(measured, lowest[0])


def _scale_growing(seen: Evidence) -> Outcome:
    zero = [step for step in seen.run.steps if step.scale is not None and step.grad_norm is not None and float(step.grad_norm) == 0]
    highest = max(step.scale for step in seen.run.steps if step.scale is not None)
    measured = f"the loss scale was {highest:g} at most; all gradients were zero in {steps_of(len(zero))}"
    first = next(step.scale for step in seen.run.steps if step.scale is not None)
    bad = [step for step in zero if step.scale is not None and step.scale >= first]
    if len(bad) >= seen.limits["scale-zero-steps"]:
        return failed(measured, highest, bad[0].step)
    return passed(measured, highest)


def _alerts(seen: Evidence, kind: AlertKind, what: str) -> Outcome:
    found = [each for each in seen.run.warnings if each.kind is kind]
    if not found:
        return passed(f"no module's values or gradients {what}")
    places = [each.name or "(root)" for each in found]
    return warned(f"{found[0].text}" + (f"; likewise {most(places[1:])}" if places[1:] else ""), step=found[0].step, place=places[0])


def _underflow(seen: Evidence) -> Outcome:
    return _alerts(seen, AlertKind.UNDERFLOW, "were subnormal in 1 % of a sample or more")


def _near(seen: Evidence) -> Outcome:
    return _alerts(seen, AlertKind.NEAR, "came near the largest number of their type")


def _logit_spread(seen: Evidence) -> Outcome:
    series = [
        (each.step, -float(each.targets.lowest)) for each in seen.vitals if each.targets is not None and each.targets.lowest is not None
    ]
    series = [(step, spread) for step, spread in series if not math.isnan(spread) and spread < math.inf]  # masked logits are -Inf
    if not series:
        return not_looked_at("every output has logits of -Inf, as masks are")
    step, widest = max(series, key=lambda pair: pair[1])
    measured = f"the smallest log-probability of an output was {-widest:.4g}"
    if widest > seen.limits["logit-spread"]:
        return warned(measured, widest, step)
    return passed(measured, widest)


def _entropy(seen: Evidence) -> Outcome:
    series = [
        (each.step, float(each.targets.entropy) / math.log(each.targets.classes))
        for each in seen.vitals
        if each.targets is not None and each.targets.entropy is not None and each.targets.classes > 1
    ]
    if not series:
        return not_looked_at("no entropy was looked at: the output has one class, or axes behind its classes")
    losses = {point.step: point.value for point in seen.losses}
    wrong = [
        (step, share)
        for step, share in series
        if share < seen.limits["entropy-least"] and losses.get(step, 0) > seen.limits["entropy-loss"]
    ]
    if len(wrong) > len(series) / 4:
        step, share = wrong[0]
        return warned(f"the entropy of the output was {share:.2g} of its most, with a loss of {losses[step]:.4g}", share, step)
    lowest = min(share for _, share in series)
    flat = sum(share > 1 - seen.limits["entropy-flat"] for _, share in series)
    if flat == len(series) > 2:
        return warned(f"the output was uniform in {steps_of(flat)}: its entropy was its most, log(classes)", 1.0, series[-1][0])
    return passed(f"the entropy of the output was between {lowest:.2g} and {max(share for _, share in series):.2g} of its most", lowest)


def _loss_type(seen: Evidence) -> Outcome:
    kinds = {each.targets.dtype: each.step for each in reversed(seen.vitals) if each.targets is not None}
    half = next((name for name in kinds if name in _HALVES), None)
    if half is not None:
        return warned(f"the log-probabilities that the loss is computed of are {half}", step=kinds[half])
    return passed(f"the log-probabilities that the loss is computed of are {', '.join(kinds)}")


def _update_lost(seen: Evidence) -> Outcome:
    shares = []
    for parameter, series in seen.of_layers("grad", "moved"):
        moved = [share for _, (grad, share) in series if grad > 0]
        if moved and parameter.dtype in _HALVES and parameter.group:
            shares.append((1 - median(moved), parameter.name, series[0][0]))
    if not shares:
        return not_looked_at("no parameter that is updated is float16 or bfloat16")
    usual = median(share for share, *_ in shares)
    worst = max(shares)
    measured = f"{usual:.0%} of the weights did not change in an update (median of {len(shares)} parameters in half types)"
    if usual > seen.limits["update-lost"]:
        return warned(measured, usual, worst[2], worst[1])
    return passed(measured, usual)


_ISSUE = "issue 15"
PRECISION = (
    Check(
        "scale-falling",
        Layer.PRECISION,
        "updates that the loss scaler skips one after the other",
        "find what overflows at any scale (`accucompare overflow LOG`), and keep that module in float32",
        _scale_falling,
        (Threshold("skips-running", 5, "skipped updates running", _ISSUE),),
        needs=(Need.SCALER,),
    ),
    Check(
        "scale-at-one",
        Layer.PRECISION,
        "a loss scale that has come down to 1",
        "find what overflows at any scale (`accucompare overflow LOG`), and keep that module in float32, or train in bfloat16",
        _scale_at_one,
        (Threshold("scale-least", 1, "loss scale", _ISSUE),),
        needs=(Need.SCALER,),
    ),
    Check(
        "scale-growing",
        Layer.PRECISION,
        "a loss scale that grows while all gradients are zero",
        "find out why gradients are zero: a detached loss, a scaler that is not used for the backward, or all labels ignored",
        _scale_growing,
        (Threshold("scale-zero-steps", 3, "steps with zero gradients, the scale not below the first", "sound runs pass"),),
        needs=(Need.SCALER, Need.NORMS),
    ),
    Check(
        "underflow",
        Layer.PRECISION,
        "values and gradients that are subnormal in their type, by module",
        "use a loss scaler with float16; or bfloat16; or keep this module in float32",
        _underflow,
    ),
    Check(
        "near-limit",
        Layer.PRECISION,
        "values near the largest number of their type, by module",
        "keep this module in float32 or bfloat16, or scale its inputs down, before it overflows",
        _near,
    ),
    Check(
        "logit-spread",
        Layer.PRECISION,
        "the smallest log-probability of the outputs: beyond what exp can hold, the softmax is saturated",
        "normalise queries, keys or logits; add a z-loss; lower the learning rate",
        _logit_spread,
        (Threshold("logit-spread", 103, "its magnitude", "exp(-103) is less than the smallest float32"),),
        needs=(Need.VITALS, Need.TARGETS),
    ),
    Check(
        "entropy",
        Layer.PRECISION,
        "outputs that are certain and wrong, or uniform in every step",
        "check the scale of the logits (a temperature, a sum in place of a mean), and that the labels fit the inputs",
        _entropy,
        (
            Threshold("entropy-least", 1e-3, "entropy over log(classes), below which an output is certain", "sound runs pass"),
            Threshold("entropy-loss", 1.0, "loss above which a certain output is wrong", "sound runs pass"),
            Threshold("entropy-flat", 1e-6, "how near to 1 that share is, if an output is uniform", "rounding of float32"),
        ),
        needs=(Need.VITALS, Need.TARGETS),
    ),
    Check(
        "loss-type",
        Layer.PRECISION,
        "the type that the cross entropy is computed in",
        "cast the logits before the loss: loss(logits.float(), labels)",
        _loss_type,
        needs=(Need.VITALS, Need.TARGETS),
    ),
    Check(
        "update-lost",
        Layer.PRECISION,
        "weights in half types that an update does not change, since it is smaller than their rounding",
        "keep the weights that are updated in float32 (autocast does), or round stochastically",
        _update_lost,
        (Threshold("update-lost", 0.5, "share of weights, the median over parameters", "half of them"),),
        needs=(Need.VITALS, Need.CLOSE),
    ),
    Check(
        "label-smoothing",
        Layer.PRECISION,
        "the lowest loss that label smoothing allows",
        "",
        because="the amount of smoothing does not show in the graph of the loss",
    ),
    Check(
        "autocast-types",
        Layer.PRECISION,
        "casts of autocast that lose a type: positions or masks in half types",
        "",
        because="operators inside of modules are not followed through autocast; `accucompare diff` shows the type of each record",
    ),
)
