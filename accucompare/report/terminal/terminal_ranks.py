"""The checks of one run's ranks in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from accucompare.compare.invariants import RankAnswer, RankOutcome, RankStatus, RunChecks
from accucompare.report.console import open_console, safe_text
from accucompare.report.words import rank_words

_STYLES = {
    RankStatus.FAIL: "bold red",
    RankStatus.PASS: "green",
    RankStatus.NOT_LOOKED_AT: "bright_black",
}
_WORDS = {
    RankStatus.FAIL: "FAIL",
    RankStatus.PASS: "PASS",
    RankStatus.NOT_LOOKED_AT: "not looked at",
}
_OF_ANSWERS = {
    RankAnswer.HOLDS: "green",
    RankAnswer.BROKEN: "bold red",
    RankAnswer.NOT_SURE: "yellow",
}


def print_ranks(checks: RunChecks, quiet: bool = False) -> None:
    """Print each check with what was measured, where, and what to do; only counts if ``quiet``."""
    console = open_console()
    line = Text.assemble(
        "ranks: ", (rank_words.in_one_line(checks), _OF_ANSWERS[checks.answer]), "  "
    )
    line.append(safe_text(str(checks.path)))
    console.print(line, soft_wrap=True)
    if not quiet:
        for outcome in checks.outcomes:
            _print(console, outcome)


def _print(console: Console, outcome: RankOutcome) -> None:
    line = Text(f"  {_WORDS[outcome.status]:<13} ", _STYLES[outcome.status])
    line.append(f"{outcome.check}: ", "bold")
    where = rank_words.place(outcome.place)
    line.append(safe_text(f"{where}: " if where else ""))
    line.append(safe_text(rank_words.what_was_measured(outcome)))
    console.print(line, soft_wrap=True)
    if cure := rank_words.what_to_do(outcome):
        console.print(Text(f"                → {cure}"), soft_wrap=True)
