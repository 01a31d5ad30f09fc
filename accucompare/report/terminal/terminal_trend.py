"""A trend in the terminal: the answer, since when, and a heat map as wide as the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.cells import cell_len
from rich.text import Text

from accucompare.compare.trends import LayerError, PlaceState, PlaceTrend, TrendAnswer, TrendFacts
from accucompare.report.console import ReportConsole, open_console, safe_text
from accucompare.report.contents import listed_places, place_columns, run_columns
from accucompare.report.table import chosen
from accucompare.report.terminal.tables import print_table
from accucompare.report.words import trend_words
from accucompare.text import cut, printable

_STYLES = {
    TrendAnswer.WITHIN: "bold green",
    TrendAnswer.FAILS: "bold red",
    TrendAnswer.NOT_SURE: "bold yellow",
}
_MOST_LAYERS = 20
_MOST_RUNS = 10
_CELL = 6  # characters of a cell of the heat map
_NAME = 36  # characters of a layer there


def print_trend(facts: TrendFacts, quiet: bool = False, reports: Sequence[Path] = ()) -> None:
    """Print the answer, the runs, since when layers fail, and the heat map; only the answer if
    ``quiet``."""
    console = open_console()
    verdict = trend_words.TREND_VERDICTS[facts.answer], _STYLES[facts.answer]
    line = Text.assemble(verdict, "  ").append(safe_text(trend_words.trend_headline(facts)))
    console.say(line)
    if quiet:
        return
    for each in facts.left_out:
        style = "" if each not in facts.troubles else "yellow"
        told = printable(trend_words.left_out_run_words(each))
        console.say(f"  ! {told}", style)
    for note in trend_words.trend_notes(facts):
        console.say(f"  · {note}")
    _print_runs(console, facts)
    _print_since(console, facts)
    _print_heat(console, facts)
    if worse := trend_words.worse_words(facts):
        console.print()
        console.say(worse)
    for report in reports:
        console.say(f"report: {report}")


def _print_runs(console: ReportConsole, facts: TrendFacts) -> None:
    names = ("run", "captured (UTC)", "answer", "failing", "fell out here", "worst x limit")
    columns = chosen(run_columns(facts), *names, "worst layer")
    rows = range(max(0, len(facts.runs) - _MOST_RUNS), len(facts.runs))
    title = "Runs" if len(rows) == len(facts.runs) else f"The last {_MOST_RUNS} runs"
    print_table(
        console,
        columns,
        rows,
        title,
        style=lambda run, column: (
            "red" if column.title == "answer" and facts.runs[run].exit_code else ""
        ),
    )


def _print_since(console: ReportConsole, facts: TrendFacts) -> None:
    for run, fallen in facts.falls.items():
        console.heading(f"Since {printable(facts.runs[run].name)}")
        if culprit := trend_words.culprit_of(facts.runs[run]):
            console.say(f"its culprit: {culprit}")
        names = ("layer", "ok before in", "error before", "error after", "factor", "x limit now")
        columns = chosen(place_columns(facts), *names)
        print_table(console, columns, fallen[:_MOST_LAYERS])
        console.rest(len(fallen), _MOST_LAYERS)


def _print_heat(console: ReportConsole, facts: TrendFacts) -> None:
    """The errors as multiples of their limits, of the layers and runs that fit."""
    plain = (PlaceState.OK, PlaceState.NEVER_COMPARED)
    places = [place for place in listed_places(facts) if place.state not in plain]
    if not places:
        return
    name = min(_NAME, max(cell_len(place.layer) for place in places[:_MOST_LAYERS]))
    fits = max(1, (console.width - name - 2) // (_CELL + 1))
    runs = range(max(0, len(facts.runs) - fits), len(facts.runs))
    console.heading("x limit, layer by run")
    heads = [f"{cut(printable(facts.runs[run].name), _CELL):>{_CELL}}" for run in runs]
    console.say(f"{'':<{name}}  {' '.join(heads)}", "bright_black")
    for place in places[:_MOST_LAYERS]:
        console.say(_line(place, runs, name))
    console.rest(len(places), _MOST_LAYERS)
    console.say("over 1 fails; =: no difference; -: not compared", "bright_black")


def _line(place: PlaceTrend, runs: range, width: int) -> Text:
    name = cut(place.layer, width, cell_len)
    line = Text(name + " " * (width - cell_len(name) + 1))
    for run in runs:
        error = place.errors[run]
        line.append(" ").append(f"{_cell(error):>{_CELL}}", _style(error))
    return line


def _cell(error: LayerError | None) -> str:
    if error is None or error.over_limit is None:
        return "-"
    size = error.over_limit
    if not size:
        return "="
    if math.isinf(size):
        return "inf"
    return f"{size:.0e}" if size >= 1e5 or size < 0.01 else f"{size:.{3 if size >= 1 else 2}g}"


def _style(error: LayerError | None) -> str:
    if error is None or error.over_limit is None:
        return "bright_black"
    return "bold red" if error.failing else "yellow" if error.over_limit > 0.5 else "green"
