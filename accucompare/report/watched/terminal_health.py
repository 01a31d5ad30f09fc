"""The checklist in the terminal: all of it, or counts and what is wrong."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from accucompare.bundle.format import display_name
from accucompare.findings.analysis import Ranks
from accucompare.findings.checklist import FINITE, Checklist, CheckStatus, Health, Layer
from accucompare.report.console import open_console, print_heading
from accucompare.report.watch_words import CHECK_WORDS, printable_value, said
from accucompare.report.watched.health_columns import headline, limits

_STYLES = {
    CheckStatus.FAIL: "bold red",
    CheckStatus.WARN: "yellow",
    CheckStatus.PASS: "green",
    CheckStatus.NOT_LOOKED_AT: "bright_black",
}
_WORDS = {
    CheckStatus.FAIL: "FAIL",
    CheckStatus.WARN: "WARN",
    CheckStatus.PASS: "PASS",
    CheckStatus.NOT_LOOKED_AT: "not looked at",
}


def print_health(ranks: Ranks, health: Health, *, quiet: bool = False) -> None:
    """Print each check's measurement, thresholds and cure, by layer; only counts if ``quiet``."""
    console = open_console()
    console.print(_counts(ranks, health), soft_wrap=True)
    if quiet:
        return
    for layer in Layer:
        print_heading(console, layer.value)
        for result in health.results:
            if result.check.layer is layer:
                _print(console, result, with_limits=True)


def print_health_briefly(ranks: Ranks, health: Health) -> None:
    """Print the counts, and a line for each check that is not passed."""
    console = open_console()
    console.print(_counts(ranks, health), soft_wrap=True)
    for result in health.of(CheckStatus.FAIL, CheckStatus.WARN):
        if result.check is not FINITE:  # the verdict of the watch stands above
            _print(console, result)
    if health.status is not CheckStatus.NOT_LOOKED_AT:
        console.print(
            f"all checks: accucompare health {printable_value(str(ranks.path), 400)}",
            soft_wrap=True,
        )


def _counts(ranks: Ranks, health: Health) -> Text:
    return Text.assemble(
        "checklist: ",
        (headline(health), _STYLES[health.status]),
        f"  {printable_value(str(ranks.path), 400)}",
    )


def _print(console: Console, result: Checklist, with_limits: bool = False) -> None:
    """A check in a line; below it its thresholds, and what to do unless passed."""
    outcome = result.outcome
    line = Text(f"  {_WORDS[result.status]:<13} ", _STYLES[result.status])
    line.append(f"{result.check.id}: ", "bold")
    place = (
        [f"rank {result.rank}"]
        if result.rank is not None and result.status in (CheckStatus.FAIL, CheckStatus.WARN)
        else []
    )
    place += [f"step {outcome.step}"] if outcome.step is not None else []
    place += [printable_value(display_name(outcome.place), 120)] if outcome.place else []
    line.append(f"{', '.join(place)}: " if place else "")
    line.append(printable_value(said(outcome.measured), 600))
    if with_limits and result.limits:
        line.append(f"  [{limits(result)}]", "bright_black")
    console.print(line, soft_wrap=True)
    if result.status in (CheckStatus.FAIL, CheckStatus.WARN):
        console.print(
            Text(f"                → {CHECK_WORDS[result.check.id].cure}"), soft_wrap=True
        )
