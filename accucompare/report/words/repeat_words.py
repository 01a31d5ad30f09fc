"""What is said of a run that was repeated."""

from __future__ import annotations

from accucompare.bundle.format import Role, display_name
from accucompare.compare.reruns import (
    Disagreement,
    Disagreements,
    NotReplayedWhy,
    Repeated,
    RepeatedAnswer,
    Replays,
)
from accucompare.report.words.layout_words import ranks_in_words
from accucompare.text import counted, first_few, printable

_NOT_REPLAYED = {
    NotReplayedWhy.AGREED: "",
    NotReplayedWhy.OF_SCRIPT: "a script's steps are not replayed; a case's are",
    NotReplayedWhy.WEIGHTS: "nothing is replayed, since the runs begin with other weights",
}


def repeat_headline(made: Repeated) -> str:
    found = made.found
    if made.answer is RepeatedAnswer.NOT_SURE:
        return "not sure: nothing was recorded"
    if found.first is None:
        return (
            f"agrees with itself: {counted(found.values, 'value')} in"
            f" {counted(len(found.steps), 'step')} have the same bits in {found.runs} runs"
        )
    return f"does not agree with itself: {odds(found)}, from {disagreement_place(found.first)}"


def odds(found: Disagreements) -> str:
    """``2 of 20 runs``; or how many values there are, if most runs have their own."""
    first = found.first
    if first is not None and 2 * len(first.odd) > found.runs:
        return f"{found.runs} runs have {first.values} different values"
    return f"{len(found.odd)} of {found.runs} runs"


def disagreement_place(first: Disagreement) -> str:
    """``blocks.1.fc (Linear) output, step 3, rank 0, cuda``."""
    call = f" call {first.call}" if first.call else ""
    kind = f" ({printable(first.type)})" if first.type else ""
    path = f" {printable(first.path)}" if first.path else ""
    where = "before the first step" if first.step is None else f"step {first.step}"
    device = f", {printable(first.device)}" if first.device else ""
    return (
        f"{display_name(first.name)}{kind}{call} {first.role}{path}, {where}, rank {first.rank}"
        f"{device}"
    )


def what_is_known(made: Repeated) -> list[str]:
    """What the first disagreement tells, and what follows it."""
    first = made.found.first
    if first is None:
        return []
    lines = [_told(first)]
    if first.missing:
        lines.append(
            f"{counted(len(first.missing), 'run')} have no such value: a call depends on chance"
        )
    layers = [f"{display_name(name)} ({count})" for name, count in made.found.layers.items()]
    lines.append(
        f"{counted(made.found.count, 'value')} disagree, in {first_few(layers, 6)}"
        + (
            f"; the odd runs: {', '.join(str(run + 1) for run in made.found.odd)}"
            if _few(made.found)
            else ""
        )
    )
    return lines


def what_replays_say(made: Repeated) -> str:
    replays = made.replays
    if not isinstance(replays, Replays):
        return _NOT_REPLAYED[replays]
    found = replays.found
    if found.first is None:
        return (
            f"step {replays.step} alone, from its state and inputs, agrees with itself in"
            f" {counted(found.runs, 'replay')}: what disagrees is rare, or needs what ran before"
        )
    return (
        f"step {replays.step} alone, from its state and inputs, disagrees in replay"
        f" {found.runs} of at most {made.found.runs}, from {disagreement_place(found.first)}"
    )


def repeat_cure(made: Repeated) -> str:
    first = made.found.first
    if first is None:
        return ""
    if first.step is None:
        return "seed the weights: draw them from the generators of torch, numpy or random"
    if not first.name and first.role == Role.INPUT:
        return "seed the inputs, or fix the order in which they are read"
    if _few(made.found):
        return (
            "few runs are odd: run it on another device of the kind; if only this one"
            f" disagrees ({ranks_in_words((first.rank,))}), take it out of use"
        )
    return (
        "try --deterministic; if that agrees, an algorithm adds in no fixed order (scatter, index"
        " and atomic additions), which is rounding"
    )


def _few(found: Disagreements) -> bool:
    return bool(found.odd) and 2 * len(found.odd) < found.runs


def _told(first: Disagreement) -> str:
    if first.step is None:
        return "a weight differs from the start"
    if first.role == Role.INPUT:
        of = "the model's inputs" if not first.name else "the code before this call"
        return f"{of} disagree first"
    if first.role == Role.OUTPUT:
        return "its inputs have the same bits in all runs, its output has not"
    return "all that was recorded before has the same bits in all runs"
