"""What one side has fused and the other in parts, in words."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from accucompare.compare.preflight_facts import CarriedApart, FindingFact, FusedNames
from accucompare.text import first_few, printable

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
    return ""


def _alike(names: Sequence[str]) -> bool:
    return len({*names}) == 1


def _rows(runs: Sequence[tuple[int, int]]) -> str:
    named = [f"{at} to {at + count - 1}" for at, count in runs[:_MOST_RUNS]]
    return ", ".join([*named, "…"] if len(runs) > _MOST_RUNS else named)
