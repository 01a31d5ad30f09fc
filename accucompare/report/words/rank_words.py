"""What is said of the checks of one run's ranks."""

from __future__ import annotations

from typing import NamedTuple

from accucompare.bundle.format import display_name
from accucompare.compare.invariants import (
    NotSeenWhy,
    RankCheck,
    RankFact,
    RankOutcome,
    RankPlace,
    RankStatus,
    RunChecks,
    rank_facts,
)
from accucompare.report.words.layout_words import ranks_in_words
from accucompare.text import counted, printable


class RankCheckWords(NamedTuple):
    """``holds``: what is said of ``{count:value}`` in ``{steps}``."""

    looks_at: str
    holds: str
    cure: str


WORDS = {
    RankCheck.COMPLETE: RankCheckWords(
        "whether every rank, and every step of each, is there",
        "{count:rank}, each with {steps}",
        "look at the log of these ranks: did they fail, or leave the loop early? Capture again",
    ),
    RankCheck.SETTINGS: RankCheckWords(
        "versions, flags, environment variables, libraries, code and mode of all ranks",
        "{count:setting}: the same on all ranks",
        "start all ranks from one environment",
    ),
    RankCheck.WEIGHTS: RankCheckWords(
        "replicas of weights, and whether the parts of one fill it, at the start",
        "{count:comparison}: replicas are equal, and parts fill the whole",
        "load one checkpoint on all ranks, or broadcast the weights before training",
    ),
    RankCheck.BATCHES: RankCheckWords(
        "which ranks were given which batch",
        "{count:comparison} in {steps}: ranks that share out the rows have other batches, the"
        " others the same",
        "give the sampler the data-parallel rank and number of ranks, not those of all processes",
    ),
    RankCheck.CALLS: RankCheckWords(
        "outputs of calls with bit-equal inputs and whole weights on several ranks",
        "{count:call} in {steps} gave the same on all ranks that were given the same",
        "look at this module on these ranks: its device, kernels, dropout, buffers. It is meant"
        " only if the module takes its rank's part by itself",
    ),
    RankCheck.LAYOUTS: RankCheckWords(
        "replicas of values whose layout is recorded, in all roles of calls",
        "{count:value} in {steps}: replicas are equal",
        "look for what is not reduced, or not broadcast, before this place",
    ),
    RankCheck.DROPOUT: RankCheckWords(
        "what Dropout modules dropped",
        "{count:pair} of ranks in {steps}: equal where the inputs are, unlike where the batches"
        " are",
        "seed ranks that hold replicas alike, and ranks with rows of their own apart",
    ),
    RankCheck.GRADIENTS: RankCheckWords(
        "replicas of the gradients that the optimizer is given",
        "{count:gradient} in {steps}: replicas are equal",
        "reduce the gradients before the update: no_sync left on, a parameter that DDP ignores, a"
        " replicated parameter whose gradient is each rank's own term",
    ),
    RankCheck.REDUCTION: RankCheckWords(
        "gradients given to the optimizer beside what the calls of all ranks gave",
        "{count:gradient} in {steps}: the {reduced} of the calls' over the ranks, to {error}",
        "look at the reduction of this gradient, and at hooks that change it",
    ),
    RankCheck.LOOP: RankCheckWords(
        "learning rates, loss scales, skipped updates, clip factors, and losses of one batch",
        "{count:number} in {steps}: the same on their ranks",
        "decide on one rank and broadcast it, or reduce the number before it is used",
    ),
    RankCheck.NORM: RankCheckWords(
        "the norm of the clipped gradients of all ranks put together",
        "it is the same in {steps} that clipped",
        "count each element once in the norm that clips: parts of all ranks, replicas of one",
    ),
    RankCheck.UPDATES: RankCheckWords(
        "replicas of what updates made of weights and of the optimizer's state",
        "{count:value} in {steps}: replicas are equal",
        "look at the update on these ranks: its gradients, options, and what is gathered after it",
    ),
    RankCheck.TIED: RankCheckWords(
        "tied weights that are recorded under two names",
        "{count:tied weight} in {steps}: equal",
        "tie the parameters again after loading, and sum their gradients",
    ),
    RankCheck.PADDING: RankCheckWords(
        "rows of a vocabulary that are padding", "{count:row}: zero", "zero the padding"
    ),
}

_UNSEEN = {
    NotSeenWhy.NO_RECORDS: "nothing is recorded of it",
    NotSeenWhy.NO_LAYOUT: "no layout of replicas is recorded",
    NotSeenWhy.NO_MESH: "no mesh tells which ranks share out the rows of a batch",
    NotSeenWhy.NO_INPUTS: "what the model was given is not recorded",
    NotSeenWhy.NO_SAME_CALL: "no call was given the same on two ranks that hold its whole weights",
    NotSeenWhy.NO_DROPOUT: "no Dropout module dropped elements of what two ranks hold",
    NotSeenWhy.SEEDED_ALIKE: "the capture drew the same random numbers on all ranks; a script"
    " draws its own: accucompare capture -- torchrun …",
    NotSeenWhy.NO_VALUES: "the bundle holds no values of them",
    NotSeenWhy.NO_GRADIENTS: "no gradient of an update has replicas, or none is recorded",
    NotSeenWhy.NO_CALL_GRADIENTS: "what each call adds to a gradient (call_grad) is not recorded",
    NotSeenWhy.SEVERAL_UPDATES: "a step has several updates; nothing tells which calls are whose",
    NotSeenWhy.CHANGED_BY_LOOP: "most gradients are no common multiple of what the calls gave: the"
    " loop changes them, in a way that is not recorded",
    NotSeenWhy.NO_SERIES: "the loop's numbers are not recorded",
    NotSeenWhy.NOT_CLIPPED: "no step clipped its gradients, as far as is recorded",
    NotSeenWhy.CLIPPED_ONCE: "one clipped step tells nothing; capture several",
    NotSeenWhy.NOT_UPDATED: "no update of what two ranks hold is recorded",
    NotSeenWhy.NOT_TIED: "no weights are tied",
    NotSeenWhy.TIED_ONCE: "tied weights are recorded under one name",
    NotSeenWhy.NOTHING_TELLS: "nothing tells which rows are padding",
}

#: Smaller errors are lost where squares are added up in float64.
_RESOLUTION = 1e-7

_KINDS = {
    "device": "the device",
    "mode": "train mode",
    "run": "the run",
    "version": "the version of",
    "flag": "the flag",
    "variable": "the variable",
    "library": "the library",
    "source": "the source of",
}


def in_one_line(checks: RunChecks) -> str:
    """``FAIL in 1 of 9 checks, 5 not looked at``."""
    failed, passed, unseen = (
        len(checks.of(status))
        for status in (RankStatus.FAIL, RankStatus.PASS, RankStatus.NOT_LOOKED_AT)
    )
    if failed:
        word = f"FAIL in {failed}"
    elif checks.passed:
        word = "PASS"
    else:
        word = "NOT SURE"
    return f"{word} of {failed + passed} checks, {unseen} not looked at"


def place(where: RankPlace) -> str:
    """``rank 1, step 0, blocks.0.mlp.act output``."""
    parts = [ranks_in_words(where.ranks)] if where.ranks else []
    parts += [f"step {where.step}"] if where.step is not None else []
    if where.name or where.role is not None:
        call = f" call {where.call}" if where.call else ""
        role = f" {where.role}" if where.role else ""
        parts.append(f"{display_name(where.name)}{call}{role}")
    return ", ".join(parts)


def what_to_do(outcome: RankOutcome) -> str:
    """What to do; nothing where nothing is wrong."""
    wrong = outcome.status is RankStatus.FAIL or (
        outcome.check is RankCheck.COMPLETE and outcome.status is not RankStatus.PASS
    )
    return WORDS[outcome.check].cure if wrong else ""


def what_was_measured(outcome: RankOutcome) -> str:
    """What was measured, or why nothing was."""
    fact = outcome.measured
    if isinstance(fact, rank_facts.NotSeen):
        return _unseen(fact)
    if isinstance(fact, rank_facts.AllHold):
        return _holds(outcome.check, fact)
    more = f"; {outcome.count - 1:,} more" if outcome.count > 1 else ""
    return f"{_said(fact)}{more}"


def _unseen(fact: rank_facts.NotSeen) -> str:
    match fact.why:
        case NotSeenWhy.RANKS_MISSING:
            return f"the records of {ranks_in_words(fact.ranks)} are not there"
        case NotSeenWhy.STEPS_MISSING:
            steps = ", ".join(map(str, fact.steps))
            what = "step" if len(fact.steps) == 1 else "steps"
            return f"the ranks have unequal steps: {what} {steps} only on some"
        case NotSeenWhy.ENDED_EARLY:
            return "the capture did not come to its end"
    return _UNSEEN[fact.why]


class _Count(int):
    """``1 value``, ``1,200 values``, by the noun in the format."""

    def __format__(self, noun: str) -> str:
        return counted(int(self), noun)


def _holds(check: RankCheck, fact: rank_facts.AllHold) -> str:
    steps = counted(fact.steps, "step")
    error = f"{max(fact.error or 0.0, _RESOLUTION):.0e}"
    text = WORDS[check].holds.format(
        count=_Count(fact.count), steps=steps, reduced=fact.reduced, error=error
    )
    if fact.factor is not None:
        text += f"; all are {fact.factor:.4g} times that, as the loop may scale them"
    if fact.left:
        text += f"; {fact.left:,} could not be looked at"
    return text


def _said(fact: RankFact) -> str:
    match fact:
        case rank_facts.SettingApart(kind, name, values):
            what = " ".join(filter(None, (_KINDS[kind], name)))
            return f"{what} is {_values(values)}"
        case rank_facts.ReplicasApart(rel_l2):
            return f"ranks that should hold the same values do not{_off(rel_l2)}"
        case rank_facts.PartsApart(shape):
            return f"the ranks' parts leave holes in {shape}, or overlap"
        case rank_facts.ChangedBetween():
            return "something other than an update changed these ranks' part, and not the others'"
        case rank_facts.OutputsApart(rel_l2, backward):
            if backward:
                return (
                    "equal inputs, weights and gradients of the output gave several gradients of"
                    f" the input{_off(rel_l2)}"
                )
            return f"equal inputs and weights gave several outputs{_off(rel_l2)}"
        case rank_facts.BatchTwice():
            return "these ranks share out the rows, but were given one batch"
        case rank_facts.BatchApart():
            return "these ranks should be given one batch, but were given several"
        case rank_facts.MasksApart(share):
            return f"dropout of one input dropped other elements: {share:.1%}"
        case rank_facts.MasksAlike(elements):
            return f"dropout of unlike batches dropped the same elements, all of {elements:,}"
        case rank_facts.NumberApart(number, name, values):
            what = " ".join(filter(None, (number.value, name)))
            return f"{what}: {_values(values)}"
        case rank_facts.NormUneven(lowest, highest, steps):
            return (
                f"the norm of the clipped gradients is {lowest:.6g} to {highest:.6g} in {steps}"
                " steps: with one max_norm, they were clipped by another norm than their own"
            )
    return _of_gradient(fact)


def _of_gradient(fact: RankFact) -> str:
    match fact:
        case rank_facts.ScaledGradient(factor, ranks, usual):
            over = "of the calls" if ranks == 1 else f"over {ranks} data-parallel ranks"
            text = f"the gradient is {factor:.4g} times the mean {over}"
            if ranks > 1:
                text += f", {factor / ranks:.4g} times the sum"
            return text + ("" if usual is None else f"; most gradients are {usual:.4g} times it")
        case rank_facts.UnevenGradient(weights):
            several = len({call for _, call, _ in weights}) > 1
            terms = [
                f"{weight:.3g} x {ranks_in_words(ranks)}{f' call {call}' if several else ''}"
                for ranks, call, weight in weights
            ]
            return (
                f"of what the calls gave, the gradient is {' + '.join(terms)}; all should have"
                " one factor"
            )
        case rank_facts.OtherGradient(error):
            return (
                f"the gradient is no sum of what the calls gave: {error:.1%} of it is not explained"
            )
    raise AssertionError(fact)


def _off(rel_l2: float | None) -> str:
    return "" if rel_l2 is None else f" (relative L2 {rel_l2:.2g})"


def _values(values: tuple[tuple[str, tuple[int, ...]], ...]) -> str:
    return ", ".join(
        f"{printable(value)[:80]} on {ranks_in_words(ranks)}" for value, ranks in values
    )
