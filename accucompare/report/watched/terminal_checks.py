"""The checklist in the terminal, all of it, or counts and what is wrong; custom backwards checked
against finite differences."""

from __future__ import annotations

from rich.text import Text

from accucompare.bundle.format import display_name
from accucompare.findings.analysis import Ranks
from accucompare.findings.checklist import FINITE, Checklist, CheckStatus, Health, Layer
from accucompare.findings.differences import FunctionGradients, GradientCheck
from accucompare.report.console import ReportConsole, open_console
from accucompare.report.watch_words import printable_value, said
from accucompare.report.watched.health_columns import cure, headline, limits

#: What a status is called, and its style.
_STATES = {
    CheckStatus.FAIL: ("FAIL", "bold red"),
    CheckStatus.WARN: ("WARN", "yellow"),
    CheckStatus.PASS: ("PASS", "green"),
    CheckStatus.NOT_LOOKED_AT: ("not looked at", "bright_black"),
}
_ORDER = (CheckStatus.PASS, CheckStatus.WARN, CheckStatus.FAIL, CheckStatus.NOT_LOOKED_AT)
_MODULES_SHOWN = 3
_NONE = (
    "the first forward and the loss apply no custom autograd Function; PyTorch's own derivatives"
    " are not checked"
)
_ON_PURPOSE = (
    "if that is on purpose, as of a straight-through estimator or a gradient reversal, leave it"
    " out: --skip MODULE"
)


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
    console.answer(headline(health), _STATES[health.status][1], path, "checklist: ")


def _print(console: ReportConsole, result: Checklist, with_limits: bool = False) -> None:
    """A check in a line; below it its thresholds, and what to do unless passed."""
    outcome, wrong = result.outcome, result.status in (CheckStatus.WARN, CheckStatus.FAIL)
    place = [f"rank {result.rank}"] if result.rank is not None and wrong else []
    place += [f"step {outcome.step}"] if outcome.step is not None else []
    place += [printable_value(display_name(outcome.place), 120)] if outcome.place else []
    measured = printable_value(said(outcome.measured), 600)
    console.entry(
        _STATES[result.status],
        result.check.id,
        (f"{', '.join(place)}: " if place else "") + measured,
        cure(result),
        f"  [{limits(result)}]" if with_limits and result.limits else "",
    )


def print_gradcheck(found: GradientCheck, quiet: bool = False) -> None:
    """Print the verdict, and unless ``quiet`` each custom Function in each form of its calls."""
    console = open_console()
    counts = {status: len(found.of(status)) for status in _ORDER}
    words = ", ".join(f"{count} {status.value}" for status, count in counts.items() if count)
    names = len({each.name for each in found.functions})
    forms = f" in {len(found.functions):,} forms of calls" if len(found.functions) > names else ""
    what = (
        f"{names:,} custom Function{'s' if names > 1 else ''}{forms}: {words}"
        if found.functions
        else _NONE
    )
    console.answer(found.status.value, _STATES[found.status][1], what)
    if quiet:
        return
    for each in found.functions:
        console.say(_of_function(each))
    if counts[CheckStatus.FAIL]:
        console.say(_ON_PURPOSE, "bright_black")


def _of_function(each: FunctionGradients) -> Text:
    status = each.outcome.status
    line = Text(f"  {status.value:<13} ", _STATES[status][1])
    line.append(printable_value(each.name, 80), "bold" if status is CheckStatus.FAIL else "")
    if each.modules:
        more = (
            f" and {len(each.modules) - _MODULES_SHOWN} more"
            if len(each.modules) > _MODULES_SHOWN
            else ""
        )
        names = map(display_name, each.modules[:_MODULES_SHOWN])
        line.append(f" in {', '.join(map(printable_value, names))}{more}")
    line.append(f" ({printable_value(each.given, 200)})" if each.given else "")
    line.append(f": {printable_value(said(each.outcome.measured), 500)}")
    return line
