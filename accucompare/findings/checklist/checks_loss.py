"""The checklist's layer *loss*: what the functions that make it were given, and of which labels."""

from __future__ import annotations

import itertools

from accucompare.findings.analysis import Analysis
from accucompare.findings.checklist.checks import (
    Check,
    CheckOutcome,
    Evidence,
    Layer,
    Need,
    Threshold,
    failed,
    not_looked_at,
    passed,
    steps_in_log,
    warned,
)
from accucompare.findings.log import Labels

# : What a function takes must not be made by these: it has a softmax or a sigmoid of its own, or
# takes logarithms.
_MADE_TWICE = {
    "cross_entropy": ("softmax", "sigmoid", "relu", "tanh"),
    "binary_cross_entropy_with_logits": ("softmax", "sigmoid", "relu", "tanh"),
    "nll_loss": ("softmax", "linear"),
}


def _loss_input(seen: Evidence) -> CheckOutcome:
    found = [
        (each.step, given)
        for each in seen.vitals
        for given in each.losses
        if given.function in _MADE_TWICE
    ]
    if not found:
        return not_looked_at(
            "no cross entropy, with logits or of logarithms, was seen in the graph of the loss"
        )
    bad = [(step, given) for step, given in found if given.made_by in _MADE_TWICE[given.function]]
    if bad:
        step, given = bad[0]
        measured = (
            f"{given.function} was given what {given.made_by} gave, as it is, in {len(bad):,} of"
            f" {steps_in_log(len(found))} looked at"
        )
        return warned(measured, step=step, place=given.function)
    names = ", ".join(dict.fromkeys(given.function for _, given in found))
    return passed(
        f"{names}: not given what a softmax or the like gave, in {steps_in_log(len(found))}"
    )


def _loss_shape(seen: Evidence) -> CheckOutcome:
    found = [(each.step, given) for each in seen.vitals for given in each.losses if given.shape]
    if not found:
        return not_looked_at(
            "no loss of a prediction and a target of one shape was seen in the graph"
        )
    for step, given in found:
        if given.spread:
            measured = (
                f"{given.function}: the prediction is {list(given.shape)}, and each of its values"
                " met each of the target's: "
            )
            return failed(f"{measured}{list(given.spread)}", step=step, place=given.function)
    return passed(
        f"prediction and target had one shape in {steps_in_log(len({step for step, _ in found}))}"
        " that were looked at"
    )


def _one_class(seen: Evidence) -> CheckOutcome:
    one = next(
        (each for each in seen.vitals if each.targets is not None and each.targets.classes == 1),
        None,
    )
    if one is not None:
        return failed(
            "the cross entropy is over one class, so that it is 0 whatever the model gives",
            0.0,
            one.step,
        )
    judged = [
        each for each in _classifiers(seen.run).values() if each.count >= seen.limits["one-class"]
    ]
    if not judged:
        most = max((each.count for each in _classifiers(seen.run).values()), default=0)
        return not_looked_at(
            f"{most:,} labels of classes that are the rows of a weight of the model are too few"
        )
    for each in judged:
        if each.low == each.high:
            return warned(
                f"all of {each.count:,} labels were {each.low:g}",
                float(each.low),
                place=each.parameter,
            )
    return passed(
        "; ".join(
            f"labels of {each.parameter} were {each.low:g} to {each.high:g}" for each in judged[:3]
        )
    )


def _labels_by_rank(seen: Evidence) -> CheckOutcome:
    every = [_classifiers(run) for run in seen.ranks]
    names = [
        name
        for name in every[0]
        if all(name in each and each[name].count >= seen.limits["rank-labels"] for each in every)
    ]
    if not names:
        return not_looked_at(
            "not on every rank were enough labels seen, of classes that are the rows of a weight of"
            " the model"
        )
    for name in names:
        for (one, mine), (other, theirs) in itertools.combinations(
            zip(seen.ranks, every, strict=True), 2
        ):
            if _are_apart(mine[name], theirs[name]):
                ranks = one.start.rank, other.start.rank
                ends = (
                    f"{mine[name].low:g} to {mine[name].high:g} and {theirs[name].low:g} to"
                    f" {theirs[name].high:g}"
                )
                return warned(
                    f"ranks {ranks[0]} and {ranks[1]} had no label in common: {ends}", place=name
                )
    return passed(f"any two of {len(every)} ranks had labels in common")


def _classifiers(run: Analysis) -> dict[str, Labels]:
    """By classifier, its labels of the whole run."""
    found: dict[str, Labels] = {}
    for new in (labels for each in run.vitals for labels in each.labels):
        old = found.get(new.parameter, new)
        present = None if old.present is None or new.present is None else old.present | new.present
        low, high = min(float(old.low), float(new.low)), max(float(old.high), float(new.high))
        found[new.parameter] = Labels(
            new.parameter, new.count + (old.count if old is not new else 0), low, high, present
        )
    return found


def _are_apart(mine: Labels, theirs: Labels) -> bool:
    """Whether two ranks had no class in common: of few classes one by one, else by their smallest
    and largest.
    """
    if mine.present is not None and theirs.present is not None:
        return not mine.present & theirs.present
    return float(mine.high) < float(theirs.low) or float(theirs.high) < float(mine.low)


def _padding(seen: Evidence) -> CheckOutcome:
    shares = [
        (each.targets.padding, each.step)
        for each in seen.vitals
        if each.targets is not None and each.targets.padding is not None
    ]
    if not shares:
        return not_looked_at(
            "the id of padding is not known, is ignored by the loss, or the classes are no tokens"
        )
    share, step = max(shares)
    measured = (
        f"{share:.1%} of the labels were padding that follows padding, and none of it is ignored"
    )
    if share > seen.limits["padding-learnt"]:
        return warned(measured, share, step)
    return passed(measured, share)


LOSS = (
    Check(
        "loss-input",
        Layer.LOSS,
        "cross entropies that are given what a softmax, a sigmoid or the like gave",
        "give cross_entropy and binary_cross_entropy_with_logits what the last layer gives, without"
        " softmax; and nll_loss a log_softmax",
        _loss_input,
        needs=(Need.VITALS,),
        why=(
            "the function has a softmax of its own: what it is given lies between 0 and 1, and its"
            " gradients are small"
        ),
    ),
    Check(
        "loss-shape",
        Layer.LOSS,
        "predictions and targets whose shapes differ, so that each value of one meets each of the"
        " other",
        "give both one shape: output.squeeze(-1), or target.unsqueeze(-1)",
        _loss_shape,
        needs=(Need.VITALS,),
        why="the mean over all pairs is least where each prediction is the mean of all targets",
    ),
    Check(
        "one-class",
        Layer.LOSS,
        "labels that are one class in the whole run, and cross entropies over one class",
        "look at how labels are read and how the data is split: sorted by class, or all of it"
        " of one",
        _one_class,
        (
            Threshold(
                "one-class",
                1000,
                "labels, below which nothing is said",
                "a class of 1 in 200 is among them in 99 of 100 runs",
            ),
        ),
        needs=(Need.VITALS,),
        why="the model learns to say this class",
    ),
    Check(
        "padding-in-loss",
        Layer.LOSS,
        "labels that are padding and have a share in the loss",
        "ignore them: labels[mask == 0] = -100, or cross_entropy(ignore_index=pad)",
        _padding,
        (
            Threshold(
                "padding-learnt",
                0.02,
                "share of labels that are padding behind padding",
                "one that ends a text is none; sound runs pass",
            ),
        ),
        needs=(Need.VITALS, Need.TARGETS),
        why="the loss is small, since padding is easy",
    ),
    Check(
        "labels-by-rank",
        Layer.LOSS,
        "ranks that have no label in common",
        "shuffle the data before it is divided among ranks",
        _labels_by_rank,
        (
            Threshold(
                "rank-labels",
                300,
                "labels of each rank, below which nothing is said",
                "sound runs pass",
            ),
        ),
        across=True,
        needs=(Need.RANKS, Need.VITALS),
        why="each rank's gradient pulls to its own classes",
    ),
)
