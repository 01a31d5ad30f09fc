"""Names and microbatches of a pipeline's stages, and what one side has fused, in words."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from accucompare.bundle.format import display_name
from accucompare.compare.preflight_facts import (
    CallsInParts,
    CarriedApart,
    FindingFact,
    FusedNames,
    NamesPutBack,
    OddMicrobatches,
)
from accucompare.report.words.layout_words import ranks_in_words
from accucompare.text import counted, first_few, printable, ranges

_EVIDENCE = {"weights": "by their weights", "order": "by their order", "given": "by --map"}


def stage_words(fact: FindingFact) -> str:
    """``""`` for any other fact."""
    match fact:
        case NamesPutBack(ranks, names, evidence):
            pairs = [f"{own} is golden's {theirs}" for own, theirs in _runs(names)]
            return f"on {ranks_in_words(ranks)}, {first_few(pairs)} ({_EVIDENCE[evidence]})"
        case OddMicrobatches():
            return _microbatches(fact)
    return ""


def _microbatches(fact: OddMicrobatches) -> str:
    parts = []
    if fact.dropped:
        parts.append(f"{_numbers(fact.dropped)} dropped")
    if fact.doubled:
        parts.append(f"{_numbers(fact.doubled)} taken twice")
    if fact.order and not parts:
        order = ", ".join(map(str, fact.order))
        parts.append(f"the microbatches are taken in the order {order}")
    several = "s" if len(fact.steps) > 1 else ""
    steps = first_few(ranges(fact.steps, " to "))
    return f"{ranks_in_words(fact.ranks)}, step{several} {steps}: {' and '.join(parts)}"


def _numbers(numbers: Sequence[int]) -> str:
    several = "es" if len(numbers) > 1 else ""
    return f"microbatch{several} {', '.join(map(str, numbers))}"


def _runs(names: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Names with those of neighbours in a list as one: ``layers.0 to 3``, ``blocks.4 to 7``."""
    runs: list[list[tuple[str, str]]] = []
    for own, theirs in sorted(names, key=lambda pair: [_key(part) for part in pair[0].split(".")]):
        if runs and _next(runs[-1][-1][0]) == own and _next(runs[-1][-1][1]) == theirs:
            runs[-1].append((own, theirs))
        else:
            runs.append([(own, theirs)])
    return [
        (_run(first[0], last[0]), _run(first[1], last[1]))
        for first, *_, last in ((*run, run[-1]) for run in runs)
    ]


def _key(part: str) -> tuple[int, str]:
    return (int(part), "") if part.isdecimal() else (-1, part)


def _next(name: str) -> str:
    """The next name in a list; ``""`` if it is in none."""
    parent, dot, last = name.rpartition(".")
    return f"{parent}{dot}{int(last) + 1}" if last.isdecimal() else ""


def _run(first: str, last: str) -> str:
    if first == last:
        return display_name(first)
    return f"{display_name(first)} to {last.rpartition('.')[2]}"


#: The most runs of rows that are named of a part.
_MOST_RUNS = 2


def fusion_words(fact: FindingFact) -> str:
    """``""`` for any other fact."""
    match fact:
        case FusedNames(of_golden, whole, parts, turned, more):
            side, other = ("golden", "the candidate") if of_golden else ("the candidate", "golden")
            split = [name.split(".") for name in (whole, *(name for name, _ in parts))]
            around = sum(1 for _ in itertools.takewhile(_alike, zip(*split, strict=False)))
            word = "columns" if turned else "rows"
            said = [
                f"{printable('.'.join(name.split('.')[around:]))} ({word} {_rows(runs)})"
                for name, runs in parts
            ]
            others = f"; and {more} more alike" if more else ""
            return (
                f"{side}'s {printable(whole)} is {other}'s {first_few(said)}, by the values of its"
                f" {word}{others}"
            )
        case CarriedApart(of_golden, classes):
            side, other = ("golden", "the candidate") if of_golden else ("the candidate", "golden")
            return (
                f"{first_few(list(classes))} of {side}: {other}'s value is the sum of two of these"
                " (hidden states and residual)"
            )
        case CallsInParts(names, golden, candidate):
            shown = first_few([display_name(name) for name in names])
            return (
                f"{shown}: {counted(golden, 'call')} of golden and {counted(candidate, 'call')} of"
                " the candidate make up the same, by their shapes; the calls' tensors are compared"
                " side by side"
            )
    return ""


def _alike(names: Sequence[str]) -> bool:
    return len({*names}) == 1


def _rows(runs: Sequence[tuple[int, int]]) -> str:
    named = [f"{at} to {at + count - 1}" for at, count in runs[:_MOST_RUNS]]
    return ", ".join([*named, "…"] if len(runs) > _MOST_RUNS else named)
