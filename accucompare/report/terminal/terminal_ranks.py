"""The checks of one run's ranks in the terminal."""

from __future__ import annotations

from accucompare.compare.invariants import RankAnswer, RankStatus, RunChecks
from accucompare.report.console import open_console
from accucompare.report.words import rank_words

_STATES = {
    RankStatus.FAIL: ("FAIL", "bold red"),
    RankStatus.PASS: ("PASS", "green"),
    RankStatus.NOT_LOOKED_AT: ("not looked at", "bright_black"),
}
_OF_ANSWERS = {
    RankAnswer.HOLDS: "green",
    RankAnswer.BROKEN: "bold red",
    RankAnswer.NOT_SURE: "yellow",
}


def print_ranks(checks: RunChecks, quiet: bool = False) -> None:
    """Print each check with what was measured, where, and what to do; only counts if ``quiet``."""
    console = open_console()
    headline = rank_words.in_one_line(checks)
    console.answer(headline, _OF_ANSWERS[checks.answer], str(checks.path), "ranks: ")
    for outcome in () if quiet else checks.outcomes:
        where = rank_words.place(outcome.place)
        console.entry(
            _STATES[outcome.status],
            outcome.check.value,
            (f"{where}: " if where else "") + rank_words.what_was_measured(outcome),
            rank_words.what_to_do(outcome),
        )
