"""The checklist's layer *model*: parameters and optimizers, units and layers that do nothing,
modes, buffers.
"""

from __future__ import annotations

import math

from accucompare.bundle.format import display_name
from accucompare.findings.checklist.checks import (
    Check,
    CheckOutcome,
    Evidence,
    Layer,
    Need,
    Threshold,
    failed,
    most,
    not_looked_at,
    passed,
    steps_in_log,
    warned,
)

#: So many looks before a layer or a unit is said to do nothing.
_LOOKS = 3
#: After so many looks running statistics have come to the size that their data has.
_SETTLED = 5


def _in_no_optimizer(seen: Evidence) -> CheckOutcome:
    assert seen.setup is not None
    trainable = [each for each in seen.setup.parameters if each.trainable]
    outside = {each.name for each in trainable if not each.group}
    reached = [
        parameter.name
        for parameter, series in seen.of_layers("grad")
        if any(grad for _, (grad,) in series)
    ]
    left = [name for name in reached if name in outside]
    if left:
        measured = (
            f"{len(left):,} of {len(trainable):,} trainable parameters have a gradient, and are in"
            f" no optimizer: {most(left)}"
        )
        return warned(measured, float(len(left)), place=left[0])
    if outside:  # as of a teacher that follows by an average
        return passed(
            f"{len(outside):,} of {len(trainable):,} trainable parameters are in no optimizer, and"
            " have no gradient",
            0.0,
        )
    return passed(f"all {len(trainable):,} trainable parameters are in an optimizer", 0.0)


def _without_gradient(seen: Evidence) -> CheckOutcome:
    assert seen.setup is not None
    looked = [each for each in seen.looked if each.updates]
    if len(looked) < _LOOKS:
        return not_looked_at(f"{len(looked)} looks at an update are too few: {_LOOKS} at least")
    looks = [each.layers.get("grad", []) for each in looked]
    trained = [
        (index, each.name)
        for index, each in enumerate(seen.setup.parameters)
        if each.group and each.trainable
    ]
    never = [
        name
        for index, name in trained
        if all(index >= len(look) or look[index] in (None, 0.0) for look in looks)
    ]
    if never and len(never) == len(trained):
        elsewhere = sum(each.elsewhere for each in seen.vitals)
        measured = (
            f"no parameter that an optimizer holds had a gradient in {len(looks):,} looks at an"
            " update"
        )
        if elsewhere:
            measured += (
                f"; {elsewhere:,} backwards began with a loss that leads to no parameter of the"
                " model"
            )
        return failed(measured, float(len(never)), looked[0].step, never[0])
    measured = (
        f"{len(never):,} parameters that an optimizer holds had no gradient, or zero, in"
        f" {len(looks):,} looks: {most(never)}"
    )
    entrance = _entrance(seen)
    if entrance in never:
        return warned(
            f"{measured}; {entrance} is the first one that is used",
            float(len(never)),
            place=entrance,
        )
    strangers = seen.updates[-1].strangers
    if strangers:
        held = f"an optimizer holds {strangers:,} parameters that are not the model's"
        return warned(
            f"{held}, and had no gradient in {steps_in_log(len(seen.updates))}",
            float(strangers),
            seen.updates[-1].step,
        )
    if never:
        return passed(f"{measured}; the first one that is used had one", float(len(never)))
    return passed(
        f"every parameter in an optimizer had a gradient in one of {len(looks):,} looks", 0.0
    )


def _entrance(seen: Evidence) -> str:
    """Of the modules in the order of their calls, the first parameter that is trained.

    Where it has a gradient, all that the loss depends on has one; without are branches that end
    beside it: a head, an expert, a pooler."""
    assert seen.setup is not None
    trained: dict[str, str] = {}
    for each in seen.setup.parameters:
        if each.group and each.trainable:
            trained.setdefault(each.name.rpartition(".")[0], each.name)
    called = next((each.outputs for each in seen.vitals if each.outputs), {})
    return next((trained[name] for name in called if name in trained), "")


def _frozen(seen: Evidence) -> CheckOutcome:
    found = next((each for each in seen.vitals if each.frozen), None)
    if found is not None:
        measured = (
            "frozen parameters had a gradient when their optimizer made an update:"
            f" {most(found.frozen)}"
        )
        return warned(measured, float(len(found.frozen)), found.step, found.frozen[0])
    assert seen.setup is not None
    held = sum(1 for each in seen.setup.parameters if each.group and not each.trainable)
    more = f"; {held:,} of them are in an optimizer, which leaves them as they are" if held else ""
    return passed(
        f"no frozen parameter had a gradient when its optimizer made an update{more}", 0.0
    )


def _dead_units(seen: Evidence) -> CheckOutcome:
    looks = [each for each in seen.vitals if each.idle]
    if len(looks) < _LOOKS:
        return not_looked_at(
            "no module of a kind that cuts off below zero (ReLU, GELU, SiLU) was looked at in three"
            " steps"
        )
    name, share = max(looks[-1].idle.items(), key=lambda item: item[1])
    measured = (
        f"{share:.0%} of the units of {name} gave nothing above zero in any of {len(looks):,} looks"
    )
    if share > seen.limits["dead-units"]:
        return warned(measured, share, looks[-1].step, name)
    return passed(measured, share)


def _output_constant(seen: Evidence) -> CheckOutcome:
    looks = [each for each in seen.vitals if each.outputs]
    if len(looks) < _LOOKS:
        return not_looked_at(f"{len(looks)} looks are too few: {_LOOKS} at least")
    changing = len({tuple(given.digest for given in each.given) for each in looks}) > 1
    trained = (
        {each.name.rpartition(".")[0] for each in seen.setup.parameters if each.trainable}
        if seen.setup is not None
        else set()
    )
    # A table of positions that no update has moved gives the same each time; that nothing is
    # updated other checks say.
    moved: dict[str, bool] = {}
    for parameter, series in seen.of_layers("moved"):
        name = parameter.name.rpartition(".")[0]
        moved[name] = moved.get(name, False) or any(share for _, (share,) in series)
    still = {name for name, updated in moved.items() if not updated}
    for name in looks[0].outputs:
        extrema = [each.outputs[name] for each in looks if name in each.outputs]
        if (
            len(extrema) < _LOOKS or name not in trained
        ):  # a frozen table of positions gives the same each time, as it should
            continue
        if not all(math.isfinite(float(number)) for pair in extrema for number in pair):
            continue
        if all(low == high for low, high in extrema):
            return warned(
                f"all values that it gave were one and the same in each of {len(extrema):,} looks",
                None,
                looks[0].step,
                name,
            )
        low, high = extrema[0]
        limited = (
            float(low).is_integer() and float(high).is_integer()
        )  # as what ends with a clamp, a saturated sigmoid, or one-hot codes
        if changing and len(set(extrema)) == 1 and not limited and name not in still:
            between = f"between {float(low):.4g} and {float(high):.4g}"
            measured = (
                f"what it gave was {between} in each of {len(extrema):,} looks, for other inputs"
                " and after updates of its weights"
            )
            return warned(measured, None, looks[0].step, name)
    changed = len((trained & looks[0].outputs.keys()) - still)
    if not changed:
        return not_looked_at("no update moved the weights of a module")
    return passed(f"the outputs of {changed:,} modules that were trained changed")


def _twins(seen: Evidence) -> CheckOutcome:
    assert seen.setup is not None
    if seen.setup.twins:
        one, other = seen.setup.twins[0]
        measured = (
            f"{one} and {other} are one and the same module; {len(seen.setup.twins):,} such pairs"
            " in lists"
        )
        return warned(measured, float(len(seen.setup.twins)), place=other)
    return passed("no two entries of a list are one and the same module", 0.0)


def _mode(seen: Evidence) -> CheckOutcome:
    assert seen.setup is not None
    if not seen.setup.switched:
        return not_looked_at("no module computes otherwise in training than in evaluation")
    trained = [each for each in seen.updates if each.backwards]
    if len(trained) < _LOOKS:
        return not_looked_at(
            f"{steps_in_log(len(trained))} that trained are too few: {_LOOKS} at least"
        )
    total = seen.setup.switched
    found = [
        each for each in trained if 2 * each.evaluated >= total
    ]  # with fewer, most of the model is frozen, and meant to be
    measured = f"of {total:,} dropouts and batch norms beside what is trained"
    if found:
        count = max(each.evaluated for each in found)
        where = f"in {len(found):,} of {steps_in_log(len(trained))} that trained"
        measured = f"{count:,} {measured} were in evaluation, as the whole model, {where}"
        return warned(measured, count / total, found[0].step)
    return passed(
        f"fewer than half {measured} were in evaluation with the whole model in"
        f" {steps_in_log(len(trained))} that trained",
        0.0,
    )


def _evaluated(seen: Evidence) -> CheckOutcome:
    assert seen.setup is not None
    if not seen.setup.switched:
        return not_looked_at("no module computes otherwise in training than in evaluation")
    found = [each for each in seen.vitals if each.trained_without]
    if not found:
        return passed("no call without gradients had a dropout or a batch norm in training", 0.0)
    count = found[0].trained_without
    measured = (
        f"{count:,} dropouts and batch norms were in training in calls without gradients, in"
        f" {steps_in_log(len(found))}"
    )
    share = len(found) / len(seen.vitals)
    if len(found) > 1 and share < seen.limits["evaluated-in-training"]:
        return warned(measured, share, found[0].step)
    return passed(
        f"{measured}: not as evaluations come", share
    )  # once: batch norms measured anew; in each step: a part of the training


def _buffers(seen: Evidence) -> CheckOutcome:
    looks = [each for each in seen.vitals if each.buffers]
    if not looks:
        return not_looked_at("the model has no running statistics")
    largest = 1.0
    before: dict[str, list[float]] = {}
    for each in looks:
        for name, (low, high) in each.buffers.items():
            numbers = float(low), float(high)
            if not all(map(math.isfinite, numbers)) or (
                name.endswith("running_var") and numbers[0] < 0
            ):
                return failed(f"it holds values from {low} to {high}", numbers[0], each.step, name)
            sizes = before.setdefault(name, [])
            size = max(abs(number) for number in numbers)
            if len(sizes) >= _SETTLED and max(sizes) > 0:
                largest = max(largest, size / max(sizes))
                if size / max(sizes) > seen.limits["buffer-grows"]:
                    before_it = (
                        f"where {max(sizes):.4g} was the most in {len(sizes):,} looks before"
                    )
                    return warned(
                        f"it came to hold values up to {size:.4g}, {before_it}",
                        size / max(sizes),
                        each.step,
                        name,
                    )
            sizes.append(size)
    return passed(
        f"running statistics were no more than {largest:.3g} x the most of before, after {_SETTLED}"
        " looks",
        largest,
    )


def _dropout(seen: Evidence) -> CheckOutcome:
    assert seen.setup is not None
    if not seen.setup.dropouts:
        return not_looked_at("the model has no dropout")
    name, share = max(seen.setup.dropouts.items(), key=lambda item: item[1])
    measured = f"dropout sets {share:.0%} of what it is given to zero at most"
    if share > seen.limits["dropout"]:
        others = [
            each
            for each, other in seen.setup.dropouts.items()
            if other > seen.limits["dropout"] and each != name
        ]
        likewise = f"; likewise {most([display_name(each) for each in others])}" if others else ""
        return warned(measured + likewise, share, place=name)
    return passed(measured, share)


MODEL = (
    Check(
        "in-no-optimizer",
        Layer.MODEL,
        "trainable parameters that have a gradient, and that no optimizer holds",
        "make the optimizer of model.parameters() after the model has its last form, or freeze"
        " these: requires_grad_(False)",
        _in_no_optimizer,
        needs=(Need.VITALS, Need.UPDATES),
        why="they stay as they were initialised",
    ),
    Check(
        "without-gradient",
        Layer.MODEL,
        "whether the first trained parameter that is used never gets a gradient, and parameters in"
        " an optimizer that are not the model's",
        "check that what they compute reaches the loss: no detach(), no item(), no no_grad(), no"
        " branch that is never taken; make the optimizer after weights are tied or exchanged",
        _without_gradient,
        needs=(Need.VITALS, Need.UPDATES),
        why="what the loss does not depend on is carried along, decayed, and never learns",
    ),
    Check(
        "frozen-with-gradient",
        Layer.MODEL,
        "frozen parameters whose optimizer updates them with a gradient of before they were frozen",
        "set their .grad to None when they are frozen, and take them out of the optimizer",
        _frozen,
        needs=(Need.VITALS,),
        why="an optimizer goes on updating what has a gradient, and Adam's momentum with it",
    ),
    Check(
        "dead-units",
        Layer.MODEL,
        "units of ReLU, GELU and SiLU that give nothing above zero in any look",
        "lower the learning rate; check the initialisation of biases; use an activation with a"
        " slope below zero",
        _dead_units,
        (Threshold("dead-units", 0.9, "share of a module's units", "sound runs: 0.56 at most"),),
        needs=(Need.VITALS,),
        why="a unit that gives nothing for any input gets no gradient, and stays so",
    ),
    Check(
        "output-constant",
        Layer.MODEL,
        "modules whose output does not change although updates move their weights, or has one value"
        " only",
        "check for weights that are zero, a mask over everything, and inputs that are multiplied"
        " by 0",
        _output_constant,
        needs=(Need.VITALS,),
        why="what comes behind it cannot depend on the input",
    ),
    Check(
        "shared-by-mistake",
        Layer.MODEL,
        "one module at several places of a list, as [layer] * n makes",
        "make each entry anew: [make_layer() for _ in range(n)]",
        _twins,
        needs=(Need.VITALS,),
        why="n layers train as one",
    ),
    Check(
        "training-mode",
        Layer.MODEL,
        "dropout and batch norm beside trained parameters that are in evaluation, with the whole"
        " model, in steps that train",
        "call model.train() before training, and again behind each evaluation",
        _mode,
        needs=(Need.VITALS, Need.UPDATES),
        why="dropout is off, and batch norm does not learn its statistics",
    ),
    Check(
        "evaluation-mode",
        Layer.MODEL,
        "dropout and batch norm in training in calls without gradients that come now and then, as"
        " evaluations do",
        "call model.eval() before an evaluation",
        _evaluated,
        (
            Threshold(
                "evaluated-in-training",
                0.5,
                "share of steps; from it on it is a part of the training",
                "sound runs: all, or one",
            ),
        ),
        needs=(Need.VITALS,),
        why="dropout spoils the evaluation, and the evaluation spoils batch norm's statistics",
    ),
    Check(
        "buffers",
        Layer.MODEL,
        "running means and variances that are not finite, negative, or all at once far larger",
        "look at the inputs of this norm in this step; lower its momentum; check the range of the"
        " data",
        _buffers,
        (
            Threshold(
                "buffer-grows",
                100,
                "times the most of all looks before, after five",
                "sound runs: 1.75 at most",
            ),
        ),
        needs=(Need.VITALS,),
        why="evaluation divides by them",
    ),
    Check(
        "dropout",
        Layer.MODEL,
        "the share that dropout sets to zero",
        "nn.Dropout(p=) is the share that is set to zero, not the share that is kept",
        _dropout,
        (
            Threshold(
                "dropout",
                0.9,
                "share, above it",
                "with more, less than one value in ten is left; sound runs pass",
            ),
        ),
        needs=(Need.VITALS,),
        why="a share that is kept, given as the share that is set to zero, leaves next to nothing",
    ),
    Check(
        "custom-backward",
        Layer.MODEL,
        "custom autograd Functions against finite differences",
        "",
        because="finite differences need calls of their own: run `accucompare gradcheck CASE`",
        why="autograd believes whatever a custom Function says",
    ),
)
