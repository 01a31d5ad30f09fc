"""The checklist's layer *loss*: inputs and labels of the functions that make it."""

from __future__ import annotations

import itertools

from accucompare.findings.analysis import Analysis
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
from accucompare.findings.log import Labels, remark

#: A function's input must not come from these: it has its own softmax or sigmoid, or takes
#: logarithms.
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
        return not_looked_at(remark("no-cross-entropy"))
    bad = [(step, given) for step, given in found if given.made_by in _MADE_TWICE[given.function]]
    if bad:
        step, given = bad[0]
        measured = remark(
            "made-twice",
            function=given.function,
            made_by=given.made_by,
            count=len(bad),
            looks=len(found),
        )
        return warned(measured, step=step, place=given.function)
    names = list(dict.fromkeys(given.function for _, given in found))
    return passed(remark("not-made-twice", functions=names, looks=len(found)))


def _loss_shape(seen: Evidence) -> CheckOutcome:
    found = [(each.step, given) for each in seen.vitals for given in each.losses if given.shape]
    if not found:
        return not_looked_at(remark("no-loss-of-one-shape"))
    for step, given in found:
        if given.spread:
            measured = remark(
                "spread",
                function=given.function,
                shape=list(given.shape),
                spread=list(given.spread),
            )
            return failed(measured, step=step, place=given.function)
    return passed(remark("one-shape", looks=len({step for step, _ in found})))


def _one_class(seen: Evidence) -> CheckOutcome:
    one = next(
        (each for each in seen.vitals if each.targets is not None and each.targets.classes == 1),
        None,
    )
    if one is not None:
        return failed(remark("one-class-only"), 0.0, one.step)
    judged = [
        each for each in _classifiers(seen.run).values() if each.count >= seen.limits["one-class"]
    ]
    if not judged:
        most = max((each.count for each in _classifiers(seen.run).values()), default=0)
        return not_looked_at(remark("too-few-labels", labels=most))
    for each in judged:
        if each.low == each.high:
            return warned(
                remark("one-label", labels=each.count, label=each.low),
                float(each.low),
                place=each.parameter,
            )
    return passed(
        remark(
            "several",
            parts=[
                remark("labels-span", parameter=each.parameter, low=each.low, high=each.high)
                for each in judged[:3]
            ],
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
        return not_looked_at(remark("labels-not-on-every-rank"))
    for name in names:
        for (one, mine), (other, theirs) in itertools.combinations(
            zip(seen.ranks, every, strict=True), 2
        ):
            if _are_apart(mine[name], theirs[name]):
                measured = remark(
                    "no-label-in-common",
                    one=one.start.rank,
                    other=other.start.rank,
                    low=mine[name].low,
                    high=mine[name].high,
                    other_low=theirs[name].low,
                    other_high=theirs[name].high,
                )
                return warned(measured, place=name)
    return passed(remark("labels-in-common", ranks=len(every)))


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
    """Whether two ranks had no class in common: exactly for few classes, else by their extrema."""
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
        return not_looked_at(remark("padding-not-known"))
    share, step = max(shares)
    measured = remark("padding-in-labels", share=share)
    return warned_if(share > seen.limits["padding-learnt"], measured, share, step)


LOSS = of_layer(
    Layer.LOSS,
    Check("loss-input", _loss_input),
    Check("loss-shape", _loss_shape),
    Check("one-class", _one_class, {"one-class": 1000}),
    Check("padding-in-loss", _padding, {"padding-learnt": 0.02}, needs=(Need.VITALS, Need.TARGETS)),
    Check(
        "labels-by-rank",
        _labels_by_rank,
        {"rank-labels": 300},
        across=True,
        needs=(Need.RANKS, Need.VITALS),
    ),
)
