"""The checklist's layer *model*: parameters, optimizers, idle units, modes, buffers."""

from __future__ import annotations

import math

from accucompare.bundle.format import display_name
from accucompare.findings.checklist.checks import (
    Check,
    CheckOutcome,
    Evidence,
    Layer,
    Need,
    failed,
    not_looked_at,
    of_layer,
    passed,
    warned,
    warned_if,
)
from accucompare.findings.log import remark

#: Fewest looks before a layer or unit is said to do nothing.
_LOOKS = 3
#: After so many looks, running statistics have reached the size of their data.
_SETTLED = 5


def _in_no_optimizer(seen: Evidence) -> CheckOutcome:
    trainable = [each for each in seen.setup.parameters if each.trainable]
    outside = {each.name for each in trainable if not each.group}
    reached = [
        parameter.name
        for parameter, series in seen.of_layers("grad")
        if any(grad for _, (grad,) in series)
    ]
    left = [name for name in reached if name in outside]
    if left:
        measured = remark("in-no-optimizer", left=len(left), trainable=len(trainable), names=left)
        return warned(measured, float(len(left)), place=left[0])
    if outside:  # a teacher may follow by an average
        return passed(
            remark("in-none-without-gradient", outside=len(outside), trainable=len(trainable)), 0.0
        )
    return passed(remark("all-in-an-optimizer", trainable=len(trainable)), 0.0)


def _without_gradient(seen: Evidence) -> CheckOutcome:
    looked = [each for each in seen.looked if each.updates]
    if len(looked) < _LOOKS:
        return not_looked_at(remark("too-few-updates", looks=len(looked), least=_LOOKS))
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
        measured = remark("none-with-gradient", looks=len(looks), elsewhere=elsewhere)
        return failed(measured, float(len(never)), looked[0].step, never[0])
    measured = remark("without-gradient", never=len(never), looks=len(looks), names=never)
    entrance = _entrance(seen)
    if entrance in never:
        return warned(
            remark("entrance-without-gradient", measured=measured, entrance=entrance),
            float(len(never)),
            place=entrance,
        )
    strangers = seen.updates[-1].strangers
    if strangers:
        measured = remark("strangers", parameters=strangers, steps=len(seen.updates))
        return warned(measured, float(strangers), seen.updates[-1].step)
    if never:
        return passed(remark("entrance-with-gradient", measured=measured), float(len(never)))
    return passed(remark("all-with-gradient", looks=len(looks)), 0.0)


def _entrance(seen: Evidence) -> str:
    """The first trained parameter in the order of the modules' calls.

    Where it has a gradient, all that the loss depends on has one. Branches that end aside have
    none: a head, an expert, a pooler."""
    trained: dict[str, str] = {}
    for each in seen.setup.parameters:
        if each.group and each.trainable:
            trained.setdefault(each.name.rpartition(".")[0], each.name)
    called = next((each.outputs for each in seen.vitals if each.outputs), {})
    return next((trained[name] for name in called if name in trained), "")


def _frozen(seen: Evidence) -> CheckOutcome:
    found = next((each for each in seen.vitals if each.frozen), None)
    if found is not None:
        measured = remark("frozen-updated", names=found.frozen)
        return warned(measured, float(len(found.frozen)), found.step, found.frozen[0])
    held = sum(1 for each in seen.setup.parameters if each.group and not each.trainable)
    return passed(remark("none-frozen-updated", held=held), 0.0)


def _dead_units(seen: Evidence) -> CheckOutcome:
    looks = [each for each in seen.vitals if each.idle]
    if len(looks) < _LOOKS:
        return not_looked_at(remark("no-cut-off"))
    name, share = max(looks[-1].idle.items(), key=lambda item: item[1])
    measured = remark("idle-units", share=share, module=name, looks=len(looks))
    return warned_if(share > seen.limits["dead-units"], measured, share, looks[-1].step, name)


def _output_constant(seen: Evidence) -> CheckOutcome:
    looks = [each for each in seen.vitals if each.outputs]
    if len(looks) < _LOOKS:
        return not_looked_at(remark("too-few-looks", looks=len(looks), least=_LOOKS))
    changing = len({tuple(given.digest for given in each.given) for each in looks}) > 1
    trained = {each.name.rpartition(".")[0] for each in seen.setup.parameters if each.trainable}
    # A table of positions that no update has moved gives the same each time; other checks say that
    # nothing is updated.
    moved: dict[str, bool] = {}
    for parameter, series in seen.of_layers("moved"):
        name = parameter.name.rpartition(".")[0]
        moved[name] = moved.get(name, False) or any(share for _, (share,) in series)
    still = {name for name, updated in moved.items() if not updated}
    for name in looks[0].outputs:
        extrema = [each.outputs[name] for each in looks if name in each.outputs]
        # a frozen table of positions gives the same each time, as it should
        if len(extrema) < _LOOKS or name not in trained:
            continue
        if not all(math.isfinite(float(number)) for pair in extrema for number in pair):
            continue
        if all(low == high for low, high in extrema):
            return warned(remark("one-value", looks=len(extrema)), None, looks[0].step, name)
        low, high = extrema[0]
        # the output of a clamp or a saturated sigmoid, or one-hot codes
        limited = float(low).is_integer() and float(high).is_integer()
        if changing and len(set(extrema)) == 1 and not limited and name not in still:
            measured = remark("one-output", low=float(low), high=float(high), looks=len(extrema))
            return warned(measured, None, looks[0].step, name)
    changed = len((trained & looks[0].outputs.keys()) - still)
    if not changed:
        return not_looked_at(remark("nothing-moved"))
    return passed(remark("outputs-changed", modules=changed))


def _twins(seen: Evidence) -> CheckOutcome:
    if seen.setup.twins:
        one, other = seen.setup.twins[0]
        measured = remark("one-module", one=one, other=other, pairs=len(seen.setup.twins))
        return warned(measured, float(len(seen.setup.twins)), place=other)
    return passed(remark("no-one-module"), 0.0)


def _mode(seen: Evidence) -> CheckOutcome:
    if not seen.setup.switched:
        return not_looked_at(remark("no-modes"))
    trained = [each for each in seen.updates if each.backwards]
    if len(trained) < _LOOKS:
        return not_looked_at(remark("too-few-trained", steps=len(trained), least=_LOOKS))
    total = seen.setup.switched
    # with fewer, most of the model is frozen on purpose
    found = [each for each in trained if 2 * each.evaluated >= total]
    if found:
        count = max(each.evaluated for each in found)
        measured = remark(
            "in-evaluation", count=count, modules=total, found=len(found), steps=len(trained)
        )
        return warned(measured, count / total, found[0].step)
    return passed(remark("few-in-evaluation", modules=total, steps=len(trained)), 0.0)


def _evaluated(seen: Evidence) -> CheckOutcome:
    if not seen.setup.switched:
        return not_looked_at(remark("no-modes"))
    found = [each for each in seen.vitals if each.trained_without]
    if not found:
        return passed(remark("evaluated-well"), 0.0)
    count = found[0].trained_without
    measured = remark("evaluated-in-training", modules=count, steps=len(found))
    share = len(found) / len(seen.vitals)
    if len(found) > 1 and share < seen.limits["evaluated-in-training"]:
        return warned(measured, share, found[0].step)
    # once: batch norms measured anew; in each step: part of the training
    return passed(remark("not-as-evaluations", measured=measured), share)


def _buffers(seen: Evidence) -> CheckOutcome:
    looks = [each for each in seen.vitals if each.buffers]
    if not looks:
        return not_looked_at(remark("no-running-statistics"))
    largest = 1.0
    before: dict[str, list[float]] = {}
    for each in looks:
        for name, (low, high) in each.buffers.items():
            numbers = float(low), float(high)
            if not all(map(math.isfinite, numbers)) or (
                name.endswith("running_var") and numbers[0] < 0
            ):
                return failed(
                    remark("buffer-holds", low=low, high=high), numbers[0], each.step, name
                )
            sizes = before.setdefault(name, [])
            size = max(abs(number) for number in numbers)
            if len(sizes) >= _SETTLED and max(sizes) > 0:
                largest = max(largest, size / max(sizes))
                if size / max(sizes) > seen.limits["buffer-grows"]:
                    measured = remark("buffer-grew", size=size, before=max(sizes), looks=len(sizes))
                    return warned(measured, size / max(sizes), each.step, name)
            sizes.append(size)
    return passed(remark("buffers-grew", times=largest, looks=_SETTLED), largest)


def _dropout(seen: Evidence) -> CheckOutcome:
    if not seen.setup.dropouts:
        return not_looked_at(remark("no-dropout"))
    name, share = max(seen.setup.dropouts.items(), key=lambda item: item[1])
    if share > seen.limits["dropout"]:
        others = [
            display_name(each)
            for each, other in seen.setup.dropouts.items()
            if other > seen.limits["dropout"] and each != name
        ]
        return warned(remark("dropout-sets", share=share, others=others), share, place=name)
    return passed(remark("dropout-sets", share=share, others=()), share)


_UPDATED = (Need.VITALS, Need.UPDATES)
MODEL = of_layer(
    Layer.MODEL,
    Check("in-no-optimizer", _in_no_optimizer, needs=_UPDATED),
    Check("without-gradient", _without_gradient, needs=_UPDATED),
    Check("frozen-with-gradient", _frozen),
    Check("dead-units", _dead_units, {"dead-units": 0.9}),
    Check("output-constant", _output_constant),
    Check("shared-by-mistake", _twins),
    Check("training-mode", _mode, needs=_UPDATED),
    Check("evaluation-mode", _evaluated, {"evaluated-in-training": 0.5}),
    Check("buffers", _buffers, {"buffer-grows": 100}),
    Check("dropout", _dropout, {"dropout": 0.9}),
    Check("custom-backward"),
)
