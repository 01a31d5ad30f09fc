"""The checklist's layer *model*: parameters and optimizers, units and layers that do nothing, modes, buffers."""

from __future__ import annotations

import math

from accucompare.bundle.records import display_name
from accucompare.findings.checks import (
    Check,
    Evidence,
    Layer,
    Need,
    Outcome,
    Threshold,
    failed,
    most,
    not_looked_at,
    passed,
    steps_of,
    warned,
)

#: So many looks before a layer or a unit is said to do nothing.
_LOOKS = 3


def _in_no_optimizer(seen: Evidence) -> Outcome:
    assert seen.setup is not None
    trainable = [each for each in seen.setup.parameters if each.trainable]
    left = [each.name for each in trainable if not each.group]
    if left:
        measured = f"{len(left):,} of {len(trainable):,} trainable parameters are in no optimizer: {most(left)}"
        return warned(measured, float(len(left)), place=left[0])
    return passed(f"all {len(trainable):,} trainable parameters are in an optimizer", 0.0)


def _without_gradient(seen: Evidence) -> Outcome:
    assert seen.setup is not None
    looked = [each for each in seen.looked if each.updates]
    if len(looked) < _LOOKS:
        return not_looked_at(f"{len(looked)} looks at an update are too few: {_LOOKS} at least")
    looks = [each.layers.get("grad", []) for each in looked]
    trained = [(index, each.name) for index, each in enumerate(seen.setup.parameters) if each.group and each.trainable]
    never = [name for index, name in trained if all(index >= len(look) or look[index] in (None, 0.0) for look in looks)]
    if never and len(never) == len(trained):
        elsewhere = sum(each.elsewhere for each in seen.vitals)
        measured = f"no parameter that an optimizer holds had a gradient in {len(looks):,} looks at an update"
        if elsewhere:
            measured += f"; {elsewhere:,} backwards began with a loss that leads to no parameter of the model"
        return failed(measured, float(len(never)), looked[0].step, never[0])
    if never:
        measured = f"{len(never):,} parameters that an optimizer holds had no gradient, or zero, in {len(looks):,} looks: {most(never)}"
        return warned(measured, float(len(never)), place=never[0])
    strangers = seen.updates[-1].strangers
    if strangers:
        measured = (
            f"an optimizer holds {strangers:,} parameters that are not the model's, and had no gradient in {steps_of(len(seen.updates))}"
        )
        return warned(measured, float(strangers), seen.updates[-1].step)
    return passed(f"every parameter in an optimizer had a gradient in one of {len(looks):,} looks", 0.0)


def _frozen(seen: Evidence) -> Outcome:
    found = next((each for each in seen.vitals if each.frozen), None)
    if found is not None:
        return warned(f"frozen parameters have a gradient: {most(found.frozen)}", float(len(found.frozen)), found.step, found.frozen[0])
    assert seen.setup is not None
    held = sum(1 for each in seen.setup.parameters if each.group and not each.trainable)
    more = f"; {held:,} of them are in an optimizer, which leaves them as they are" if held else ""
    return passed(f"no frozen parameter has a gradient{more}", 0.0)


def _dead_units(seen: Evidence) -> Outcome:
    looks = [each for each in seen.vitals if each.idle]
    if len(looks) < _LOOKS:
        return not_looked_at("no module of a kind that cuts off below zero (ReLU, GELU, SiLU) was looked at in three steps")
    name, share = max(looks[-1].idle.items(), key=lambda item: item[1])
    measured = f"{share:.0%} of the units of {name} gave nothing above zero in any of {len(looks):,} looks"
    if share > seen.limits["dead-units"]:
        return warned(measured, share, looks[-1].step, name)
    return passed(measured, share)


def _output_constant(seen: Evidence) -> Outcome:
    looks = [each for each in seen.vitals if each.outputs]
    if len(looks) < _LOOKS:
        return not_looked_at(f"{len(looks)} looks are too few: {_LOOKS} at least")
    changing = len({tuple(given.digest for given in each.given) for each in looks}) > 1
    trained = {each.name.rpartition(".")[0] for each in seen.setup.parameters if each.trainable} if seen.setup is not None else set()
    for name in looks[0].outputs:
        extrema = [each.outputs[name] for each in looks if name in each.outputs]
        if len(extrema) < _LOOKS or name not in trained:  # a frozen table of positions gives the same each time, as it should
            continue
        if not all(math.isfinite(float(number)) for pair in extrema for number in pair):
            continue
        if all(low == high for low, high in extrema):
            return warned(f"all values that it gave were one and the same in each of {len(extrema):,} looks", None, looks[0].step, name)
        if changing and len(set(extrema)) == 1:
            low, high = extrema[0]
            measured = f"what it gave was between {low} and {high} in each of {len(extrema):,} looks, for other inputs and after updates"
            return warned(measured, None, looks[0].step, name)
    return passed(f"the outputs of {len(trained & looks[0].outputs.keys()):,} modules with trainable parameters changed")


def _twins(seen: Evidence) -> Outcome:
    assert seen.setup is not None
    if seen.setup.twins:
        one, other = seen.setup.twins[0]
        measured = f"{one} and {other} are one and the same module; {len(seen.setup.twins):,} such pairs in lists"
        return warned(measured, float(len(seen.setup.twins)), place=other)
    return passed("no two entries of a list are one and the same module", 0.0)


def _mode(seen: Evidence) -> Outcome:
    assert seen.setup is not None
    if not seen.setup.switched:
        return not_looked_at("no module computes otherwise in training than in evaluation")
    trained = [each for each in seen.updates if each.backwards]
    if len(trained) < _LOOKS:
        return not_looked_at(f"{steps_of(len(trained))} that trained are too few: {_LOOKS} at least")
    counts = [each.evaluated for each in trained]
    total = seen.setup.switched
    if min(counts) == total:
        return warned(f"all {total:,} dropouts and batch norms were in evaluation in every step that trained", 1.0, trained[0].step)
    changed = next((each for each in trained if each.evaluated > counts[0]), None)
    if changed is not None:
        measured = (
            f"{changed.evaluated:,} of {total:,} dropouts and batch norms were in evaluation in a step that trained, at first {counts[0]:,}"
        )
        return warned(measured, changed.evaluated / total, changed.step)
    return passed(f"{counts[0]:,} of {total:,} dropouts and batch norms were in evaluation in {steps_of(len(trained))} that trained")


def _evaluated(seen: Evidence) -> Outcome:
    assert seen.setup is not None
    if not seen.setup.switched:
        return not_looked_at("no module computes otherwise in training than in evaluation")
    found = [each for each in seen.vitals if each.trained_without]
    if found:
        measured = (
            f"{found[0].trained_without:,} dropouts and batch norms were in training in calls without gradients, in {steps_of(len(found))}"
        )
        return warned(measured, float(found[0].trained_without), found[0].step)
    return passed("no call without gradients had a dropout or a batch norm in training", 0.0)


def _buffers(seen: Evidence) -> Outcome:
    looks = [each for each in seen.vitals if each.buffers]
    if not looks:
        return not_looked_at("the model has no running statistics")
    largest = 0.0
    for each in looks:
        for name, (low, high) in each.buffers.items():
            numbers = float(low), float(high)
            if not all(map(math.isfinite, numbers)) or (name.endswith("running_var") and numbers[0] < 0):
                return failed(f"it holds values from {low} to {high}", numbers[0], each.step, name)
            size = max(abs(number) for number in numbers)
            if size > seen.limits["buffer-size"]:
                return warned(f"it holds values from {numbers[0]:.4g} to {numbers[1]:.4g}", size, each.step, name)
            largest = max(largest, size)
    return passed(f"running statistics were {largest:.4g} at most", largest)


def _dropout(seen: Evidence) -> Outcome:
    assert seen.setup is not None
    if not seen.setup.dropouts:
        return not_looked_at("the model has no dropout")
    name, share = max(seen.setup.dropouts.items(), key=lambda item: item[1])
    measured = f"dropout sets {share:.0%} of what it is given to zero at most"
    if share > seen.limits["dropout"]:
        others = [each for each, other in seen.setup.dropouts.items() if other > seen.limits["dropout"] and each != name]
        likewise = f"; likewise {most([display_name(each) for each in others])}" if others else ""
        return warned(measured + likewise, share, place=name)
    return passed(measured, share)


_ISSUE = "issue 15"
MODEL = (
    Check(
        "in-no-optimizer",
        Layer.MODEL,
        "trainable parameters that no optimizer holds",
        "make the optimizer of model.parameters() after the model has its last form, or freeze these: requires_grad_(False)",
        _in_no_optimizer,
        needs=(Need.VITALS, Need.UPDATES),
    ),
    Check(
        "without-gradient",
        Layer.MODEL,
        "parameters in an optimizer that never get a gradient, or are not the model's any more",
        "check that what they compute reaches the loss: no detach(), no item(), no no_grad(), no branch that is never taken; "
        "make the optimizer after weights are tied or exchanged",
        _without_gradient,
        needs=(Need.VITALS, Need.UPDATES),
    ),
    Check(
        "frozen-with-gradient",
        Layer.MODEL,
        "frozen parameters that have a gradient, as from before they were frozen, which an optimizer would apply",
        "set their .grad to None when they are frozen, and take them out of the optimizer",
        _frozen,
        needs=(Need.VITALS,),
    ),
    Check(
        "dead-units",
        Layer.MODEL,
        "units of ReLU, GELU and SiLU that give nothing above zero in any look",
        "lower the learning rate; check the initialisation of biases; use an activation with a slope below zero",
        _dead_units,
        (Threshold("dead-units", 0.5, "share of a module's units", "sound runs pass"),),
        needs=(Need.VITALS,),
    ),
    Check(
        "output-constant",
        Layer.MODEL,
        "modules with trainable parameters whose output does not change, or has one value only",
        "check for weights that are zero, a mask over everything, and inputs that are multiplied by 0",
        _output_constant,
        needs=(Need.VITALS,),
    ),
    Check(
        "shared-by-mistake",
        Layer.MODEL,
        "one module at several places of a list, as [layer] * n makes",
        "make each entry anew: [make_layer() for _ in range(n)]",
        _twins,
        needs=(Need.VITALS,),
    ),
    Check(
        "training-mode",
        Layer.MODEL,
        "dropout and batch norm in evaluation in steps that train",
        "call model.train() before training, and again behind each evaluation",
        _mode,
        needs=(Need.VITALS, Need.UPDATES),
    ),
    Check(
        "evaluation-mode",
        Layer.MODEL,
        "dropout and batch norm in training in calls without gradients",
        "call model.eval() before an evaluation",
        _evaluated,
        needs=(Need.VITALS,),
    ),
    Check(
        "buffers",
        Layer.MODEL,
        "running means and variances that are not finite, negative or large",
        "look at the inputs of this norm in this step; lower its momentum; check the range of the data",
        _buffers,
        (Threshold("buffer-size", 1e4, "magnitude", "the data's range, issue 15"),),
        needs=(Need.VITALS,),
    ),
    Check(
        "dropout",
        Layer.MODEL,
        "the share that dropout sets to zero",
        "nn.Dropout(p=) is the share that is set to zero, not the share that is kept",
        _dropout,
        (Threshold("dropout", 0.9, "share, above it", "with more, less than one value in ten is left; sound runs pass"),),
        needs=(Need.VITALS,),
    ),
    Check(
        "custom-backward",
        Layer.MODEL,
        "custom autograd Functions against finite differences",
        "",
        because="finite differences need calls of their own: run `accucompare gradcheck CASE`",
    ),
)
