"""The checklist in the terminal: all of it, or counts and what is wrong."""

from __future__ import annotations

from accucompare.bundle.format import display_name
from accucompare.findings.analysis import Ranks
from accucompare.findings.checklist import FINITE, Checklist, CheckStatus, Health, Layer
from accucompare.report.console import ReportConsole, open_console
from accucompare.report.watch_words import printable_value, said
from accucompare.report.watched.health_columns import cure, headline, limits

#: What a status is called, and its style.
STATES = {
    CheckStatus.FAIL: ("FAIL", "bold red"),
    CheckStatus.WARN: ("WARN", "yellow"),
    CheckStatus.PASS: ("PASS", "green"),
    CheckStatus.NOT_LOOKED_AT: ("not looked at", "bright_black"),
}


def print_health(ranks: Ranks, health: Health, *, quiet: bool = False) -> None:
    """Print each check's measurement, thresholds and cure, by layer; only counts if ``quiet``."""
    console = open_console()
    _print_counts(console, ranks, health)
    if quiet:
        return
    for layer in Layer:
        console.heading(layer.value)
        for result in health.results:
            if result.check.layer is layer:
                _print(console, result, with_limits=True)


def print_health_briefly(ranks: Ranks, health: Health) -> None:
    """Print the counts, and a line for each check that is not passed."""
    console = open_console()
    _print_counts(console, ranks, health)
    for result in health.of(CheckStatus.FAIL, CheckStatus.WARN):
        if result.check is not FINITE:  # the verdict of the watch stands above
            _print(console, result)
    if health.status is not CheckStatus.NOT_LOOKED_AT:
        console.say(f"all checks: accucompare health {printable_value(str(ranks.path), 400)}")


def _print_counts(console: ReportConsole, ranks: Ranks, health: Health) -> None:
    path = printable_value(str(ranks.path), 400)
    console.answer(headline(health), STATES[health.status][1], path, "checklist: ")


def _print(console: ReportConsole, result: Checklist, with_limits: bool = False) -> None:
    """A check in a line; below it its thresholds, and what to do unless passed."""
    outcome, wrong = result.outcome, result.status in (CheckStatus.WARN, CheckStatus.FAIL)
    place = [f"rank {result.rank}"] if result.rank is not None and wrong else []
    place += [f"step {outcome.step}"] if outcome.step is not None else []
    place += [printable_value(display_name(outcome.place), 120)] if outcome.place else []
    measured = printable_value(said(outcome.measured), 600)
    console.entry(
        STATES[result.status],
        result.check.id,
        (f"{', '.join(place)}: " if place else "") + measured,
        cure(result),
        f"  [{limits(result)}]" if with_limits and result.limits else "",
    )
