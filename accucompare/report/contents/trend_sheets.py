"""The sheets of a trend: since when each layer fails, the runs, layers by runs."""

from __future__ import annotations

from typing import Any

from accucompare.compare.trends import PlaceState, PlaceTrend, TrendFacts, TrendRun
from accucompare.report.contents.group_sheets import heat_table
from accucompare.report.contents.layer_tables import sized
from accucompare.report.table import (
    COUNT,
    EXCESS,
    SCIENTIFIC,
    TEXT,
    Column,
    Scale,
    Table,
    heading_lines,
    looks,
    trend_heats,
)
from accucompare.report.words import trend_words
from accucompare.text import printable

#: The states in the order in which layers are listed.
_ORDER = (
    PlaceState.FELL_OUT,
    PlaceState.ALWAYS,
    PlaceState.CAME_BACK,
    PlaceState.NOT_IN_NEWEST,
    PlaceState.OK,
    PlaceState.NEVER_COMPARED,
)


_OF_ERRORS = (
    "log10 of the largest relative L2 error of each layer in each run. =: no difference. Empty: not"
    " compared."
)


def listed_places(facts: TrendFacts) -> list[PlaceTrend]:
    """The layers: those that fell out last first, within a run as they fail there."""
    return sorted(
        facts.places,
        key=lambda place: (_ORDER.index(place.state), -(place.since or 0), place.first_failing),
    )


def place_columns(facts: TrendFacts) -> list[Column]:
    """The columns of layers in a trend."""

    def name(run: int | None) -> str:
        return "" if run is None else printable(facts.runs[run].name)

    def now(place: PlaceTrend, what: str) -> Any:
        return None if place.newest is None else getattr(place.newest, what)

    columns = [
        Column("layer", lambda place: place.layer, TEXT, 40, least=24),
        Column("state", lambda place: place.state.value, TEXT, 19, "verdict"),
        Column("since", lambda place: name(place.since), TEXT, 18, "verdict", least=8),
        Column("ok before in", lambda place: name(place.before), TEXT, 18, "verdict", least=8),
        Column("error before", lambda place: place.error_before, SCIENTIFIC, 12, "difference"),
        Column("error after", lambda place: place.error_after, SCIENTIFIC, 12, "difference"),
        Column("factor", lambda place: place.factor, EXCESS, 10, "difference"),
        Column("x limit now", lambda place: now(place, "over_limit"), EXCESS, 10, "judgement"),
        Column("relative L2 now", lambda place: now(place, "rel_l2"), SCIENTIFIC, 12, "judgement"),
        Column("excess now", lambda place: now(place, "excess"), EXCESS, 10, "baseline", True),
        Column("worst value", lambda place: now(place, "value") or "", TEXT, 16, "judgement"),
        Column("fell out", lambda place: place.falls or None, COUNT, 9, "verdict"),
    ]
    if facts.against is not None:
        title = trend_words.against_words(facts)
        columns += [
            Column("held against", lambda place: name(place.against), TEXT, 18, "candidate"),
            Column(
                f"error in {title}", lambda place: place.error_against, SCIENTIFIC, 12, "candidate"
            ),
            Column(
                f"factor to {title}", lambda place: place.factor_against, EXCESS, 10, "candidate"
            ),
        ]
    return sized(columns, [place.layer for place in facts.places])


def run_columns(facts: TrendFacts) -> list[Column]:
    """The columns of runs, which are numbered rows."""
    fell = [0] * len(facts.runs)
    for place in facts.places:
        if place.since is not None and place.before is not None:
            fell[place.since] += 1

    def of(what: Any) -> Any:
        return lambda run: what(facts.runs[run])

    def worst(run: TrendRun) -> tuple[float | None, str]:
        sizes = [(error.over_limit or 0.0, name) for name, error in run.layers.items()]
        return max(sizes, key=lambda each: each[0], default=(None, ""))

    return [
        Column("run", of(lambda run: printable(run.name)), TEXT, 24, least=12),
        Column("captured (UTC)", of(trend_words.when_words), TEXT, 18),
        Column("answer", of(lambda run: printable(run.answer)), TEXT, 16, "verdict"),
        Column("layers", of(lambda run: len(run.layers)), COUNT, 9),
        Column("failing", of(lambda run: run.failing), COUNT, 9, "verdict"),
        Column("fell out here", fell.__getitem__, COUNT, 9, "verdict"),
        Column("worst x limit", of(lambda run: worst(run)[0]), EXCESS, 11, "judgement"),
        Column("worst layer", of(lambda run: worst(run)[1]), TEXT, 32, "judgement", least=16),
        Column("culprit", of(lambda run: printable(trend_words.culprit_of(run))), TEXT, 40),
        Column("golden", of(lambda run: printable(run.golden)), TEXT, 30, folded=1),
        Column("path", of(lambda run: printable(run.path)), TEXT, 30, folded=1),
        Column("conclusion", of(lambda run: printable(run.conclusion)), TEXT, 80, folded=1),
    ]


def trend_sheets(facts: TrendFacts) -> list[Table]:
    """The workbook: layers, runs, and two heat maps."""
    limits, errors = trend_heats(facts)
    said = [
        trend_words.worse_words(facts),
        *map(trend_words.left_out_run_words, facts.left_out),
        *trend_words.trend_notes(facts),
    ]
    heading = heading_lines(
        f"{trend_words.TREND_VERDICTS[facts.answer]}  {trend_words.trend_headline(facts)}",
        "Errors are the largest relative L2 error of a layer in a run. Red fails in the newest run,"
        " amber failed before.",
        *filter(None, said),
    )
    return [
        Table(
            "Since when",
            place_columns(facts),
            listed_places(facts),
            nothing="Nothing was compared.",
            heading=heading,
            frozen=1,
            dense=True,
            fill=_fill,
        ),
        Table(
            "Runs",
            run_columns(facts),
            range(len(facts.runs)),
            heading=heading_lines("Runs", "The oldest first; the newest decides."),
            frozen=1,
            dense=True,
            fill=lambda run: looks.PALE_RED if facts.runs[run].failing else "",
        ),
        heat_table(limits),
        heat_table(errors, "Error by run", _OF_ERRORS, Scale.MATRIX, narrow=8),
    ]


def _fill(place: PlaceTrend) -> str:
    if place.fails:
        return looks.PALE_RED
    if place.state is PlaceState.CAME_BACK:
        return looks.AMBER
    return ""
