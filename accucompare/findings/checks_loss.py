"""The checklist's layer *loss*: what the functions that make it were given, and of which labels."""

from __future__ import annotations

import functools
import itertools
import operator

from accucompare.findings.analysis import Analysis
from accucompare.findings.checks import (
    Check,
    Evidence,
    Layer,
    Need,
    Outcome,
    Threshold,
    failed,
    not_looked_at,
    passed,
    steps_of,
    warned,
)
from accucompare.findings.vitals import Targets

#: What a function takes must not be made by these: it has a softmax or a sigmoid of its own, or takes logarithms.
_MADE_TWICE = {
    "cross_entropy": ("softmax", "sigmoid", "relu", "tanh"),
    "binary_cross_entropy_with_logits": ("softmax", "sigmoid", "relu", "tanh"),
    "nll_loss": ("softmax", "linear"),
}
#: So many steps before labels are said to be of one class only, or of other classes on each rank.
_STEPS = 30
#: And so many looks, where not every step is looked at.
_LOOKS = 3


def _loss_input(seen: Evidence) -> Outcome:
    found = [(each.step, given) for each in seen.vitals for given in each.losses if given.function in _MADE_TWICE]
    if not found:
        return not_looked_at("no cross entropy, with logits or of logarithms, was seen in the graph of the loss")
    bad = [(step, given) for step, given in found if given.made_by in _MADE_TWICE[given.function]]
    if bad:
        step, given = bad[0]
        measured = f"{given.function} was given what {given.made_by} gave, as it is, in {len(bad):,} of {steps_of(len(found))} looked at"
        return warned(measured, step=step, place=given.function)
    names = ", ".join(dict.fromkeys(given.function for _, given in found))
    return passed(f"{names}: not given what a softmax or the like gave, in {steps_of(len(found))}")


def _loss_shape(seen: Evidence) -> Outcome:
    found = [(each.step, given) for each in seen.vitals for given in each.losses if given.shape]
    if not found:
        return not_looked_at("no loss of a prediction and a target of one shape was seen in the graph")
    for step, given in found:
        if given.spread:
            measured = f"{given.function}: the prediction is {list(given.shape)}, and each of its values met each of the target's: "
            return failed(f"{measured}{list(given.spread)}", step=step, place=given.function)
    return passed(f"prediction and target had one shape in {steps_of(len({step for step, _ in found}))} that were looked at")


def _one_class(seen: Evidence) -> Outcome:
    labels = [(each.step, each.targets) for each in seen.vitals if each.targets is not None and each.targets.low is not None]
    one = next((pair for pair in labels if pair[1].classes == 1), None)
    if one is not None:
        return failed("the cross entropy is over one class, so that it is 0 whatever the model gives", 0.0, one[0])
    own = [targets for _, targets in labels if targets.own]
    binary = [given for each in seen.vitals for given in each.losses if given.own and given.low is not None]
    if len(own) >= _STEPS:
        ends, count = [(float(each.low or 0), float(each.high or 0)) for each in own], len(own)
    elif len(binary) >= _LOOKS:
        ends, count = [(float(each.low or 0), float(each.high or 0)) for each in binary], len(binary)
    else:
        return not_looked_at(f"no labels were seen, in {steps_of(_STEPS)}, of classes that are the rows of a weight of the model")
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    if low == high:
        return warned(f"all labels of {steps_of(count)} were {low:g}", low, labels[0][0] if labels else seen.vitals[0].step)
    return passed(f"labels were {low:g} to {high:g}")


def _labels_by_rank(seen: Evidence) -> Outcome:
    every = [_labels(run) for run in seen.ranks]
    if any(len(labels) < _STEPS for labels in every):
        return not_looked_at(f"not on every rank were the labels of {_STEPS} steps seen, of classes that are the rows of a weight")
    for (one, mine), (other, theirs) in itertools.combinations(zip(seen.ranks, every, strict=True), 2):
        if _are_apart(mine, theirs):
            ranks = one.start.rank, other.start.rank
            measured = f"ranks {ranks[0]} and {ranks[1]} had no label in common: {_ends(mine)} and {_ends(theirs)}"
            return warned(f"{measured}, in {steps_of(min(len(mine), len(theirs)))}")
    return passed(f"any two of {len(every)} ranks had labels in common")


def _labels(run: Analysis) -> list[Targets]:
    return [each.targets for each in run.vitals if each.targets is not None and each.targets.own and each.targets.low is not None]


def _are_apart(mine: list[Targets], theirs: list[Targets]) -> bool:
    """Whether two ranks had no class in common: of few classes one by one, else by their smallest and largest."""
    sets = [[each.present for each in labels if each.present is not None] for labels in (mine, theirs)]
    if all(sets):
        one, other = (functools.reduce(operator.or_, each) for each in sets)
        return not one & other
    ends = [(min(float(each.low or 0) for each in labels), max(float(each.high or 0) for each in labels)) for labels in (mine, theirs)]
    return ends[0][1] < ends[1][0] or ends[1][1] < ends[0][0]


def _ends(labels: list[Targets]) -> str:
    low, high = min(float(each.low or 0) for each in labels), max(float(each.high or 0) for each in labels)
    return f"{low:g} to {high:g}"


def _padding(seen: Evidence) -> Outcome:
    shares = [(each.targets.padding, each.step) for each in seen.vitals if each.targets is not None and each.targets.padding is not None]
    if not shares:
        return not_looked_at("the id of padding is not known, is ignored by the loss, or the classes are no tokens")
    share, step = max(shares)
    measured = f"{share:.1%} of the labels were padding that follows padding, and none of it is ignored"
    if share > seen.limits["padding-learnt"]:
        return warned(measured, share, step)
    return passed(measured, share)


LOSS = (
    Check(
        "loss-input",
        Layer.LOSS,
        "cross entropies that are given what a softmax, a sigmoid or the like gave",
        "give cross_entropy and binary_cross_entropy_with_logits what the last layer gives, without softmax; and nll_loss a log_softmax",
        _loss_input,
        needs=(Need.VITALS,),
    ),
    Check(
        "loss-shape",
        Layer.LOSS,
        "predictions and targets whose shapes differ, so that each value of one meets each of the other",
        "give both one shape: output.squeeze(-1), or target.unsqueeze(-1)",
        _loss_shape,
        needs=(Need.VITALS,),
    ),
    Check(
        "one-class",
        Layer.LOSS,
        "labels that are one class in the whole run, and cross entropies over one class",
        "look at how labels are read and how the data is split: sorted by class, or all of it of one",
        _one_class,
        needs=(Need.VITALS,),
    ),
    Check(
        "padding-in-loss",
        Layer.LOSS,
        "labels that are padding and have a share in the loss",
        "ignore them: labels[mask == 0] = -100, or cross_entropy(ignore_index=pad)",
        _padding,
        (
            Threshold(
                "padding-learnt", 0.02, "share of labels that are padding behind padding", "one that ends a text is none; sound runs pass"
            ),
        ),
        needs=(Need.VITALS, Need.TARGETS),
    ),
    Check(
        "labels-by-rank",
        Layer.LOSS,
        "ranks that have no label in common",
        "shuffle the data before it is divided among ranks",
        _labels_by_rank,
        across=True,
        needs=(Need.RANKS, Need.VITALS),
    ),
)
