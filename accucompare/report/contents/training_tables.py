"""The sheet *Training*: every step of two runs, with charts of losses, gradient norms and rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from accucompare.compare.result import Result
from accucompare.compare.runs import Apart, Quantity, StepPair, TrainingResult, value_of
from accucompare.report.table import (
    COUNT,
    GENERAL,
    SCIENTIFIC,
    TEXT,
    Chart,
    ChartSeries,
    Column,
    Line,
    SheetItem,
    Table,
    Value,
    column_letter,
    looks,
    table_lines,
    thinned,
)
from accucompare.report.words import training_words as words

_CHART_LINES = 17  # lines that a chart covers
_MARKED = 60  # up to this many points of a chart, each is marked
_GOLDEN, _CANDIDATE, _LIMIT, _PARTING = looks.CURVE, looks.OTHER_CURVE, looks.AXIS, looks.OVER
_PARTS = "parts here"

#: Six digits, as losses are printed.
_SIX = "[=0]0;[<0.001]0.00000E+00;0.000000"

#: A value of a step, for a chart.
_Get = Callable[[StepPair], Value]


def training(comparison: Result) -> list[Table]:
    """The table of steps with its charts, and the hidden one behind them; none without training."""
    found = comparison.training
    if found is None:
        return []
    heading = [Line([SheetItem(*item)]) for item in _heading(comparison, found)]
    if comparison.acceptance is not None:
        columns = [
            Column("rule", lambda met: met.rule.measure.value),
            Column("", lambda met: None),
            Column("measured", words.measured),
            Column("", lambda met: None),
            Column("limit", lambda met: words.rule_limit(met.rule)),
            Column("", lambda met: None),
            Column("outcome", words.outcome),
        ]
        heading += [
            Line([]),
            *table_lines(
                columns,
                comparison.acceptance.rules,
                fill=lambda met: "" if met.passed else looks.PALE_RED,
            ),
        ]
    columns = step_columns(found)
    data = _chart_data(found)
    letter = column_letter(len(columns) + 2)
    table = Table(
        "Training",
        columns,
        found.pairs,
        nothing="No step was recorded.",
        heading=[*heading, Line([])],
        frozen=1 + found.several_ranks,
        fill=lambda pair: _fill(found, pair),
        charts=_charts(found, data, letter),
        pages_wide=2,
        tab=looks.GREEN if found.parting is None else looks.RED,
    )
    return [table, data]


def _heading(comparison: Result, found: TrainingResult) -> Iterator[tuple[str, looks.Look]]:
    yield words.steps_sentence(comparison) or words.FED_STEPS, looks.SECTION
    if comparison.acceptance is not None:
        yield (
            (
                f"The candidate {words.acceptance_sentence(comparison.acceptance)}"
                f" ({words.STANDARD_SOURCES[comparison.acceptance.standard]})"
            ),
            looks.BOLD,
        )
    for line in words.settings(found):
        yield line, looks.PLAIN_LOOK
    for line in words.details(comparison, found):
        yield line, looks.MUTED_TEXT


def _fill(found: TrainingResult, pair: StepPair) -> str:
    parting = found.parting
    if parting is not None and (parting.rank, parting.step) == (pair.rank, pair.step):
        return looks.PALE_RED
    return looks.AMBER if any(apart.over for _, apart in pair.numbers) else ""


def _side(side: str, quantity: Quantity) -> _Get:
    return lambda pair: value_of(getattr(pair, side), quantity)


def _apart(name: str, part: str) -> _Get:
    def get(pair: StepPair) -> Value:
        apart: Apart | None = getattr(pair, name)
        return None if apart is None else getattr(apart, part)

    return get


def _field(side: str, name: str) -> _Get:
    return lambda pair: getattr(getattr(pair, side), name, None)


def _rate(side: str) -> _Get:
    """The learning rate of the first parameter group."""
    return lambda pair: next(iter(getattr(getattr(pair, side), "lr", {}).values()), None)


def _same(name: str) -> _Get:
    """Whether a digest is golden's; blank where a side has none."""

    def get(pair: StepPair) -> Value:
        both = getattr(pair.golden, name, None), getattr(pair.candidate, name, None)
        return "" if None in both else "same" if both[0] == both[1] else "other"

    return get


def _skipped(side: str) -> _Get:
    return lambda pair: "skipped" if getattr(getattr(pair, side), "skipped", False) else ""


def step_columns(found: TrainingResult) -> list[Column]:
    """The columns for each step: both sides' numbers and settings, differences and limits."""
    columns = [Column("step", lambda pair: pair.step, COUNT, 8)]
    if found.several_ranks:
        columns.append(Column("rank", lambda pair: pair.rank, COUNT, 7))
    for name, quantity in (
        ("loss", Quantity.LOSS),
        ("norm", Quantity.NORM),
        ("clipped", Quantity.CLIPPED),
    ):
        what = "clipped norm" if quantity is Quantity.CLIPPED else name
        columns += [
            Column(f"golden {what}", _side("golden", quantity), _SIX, 12, "golden", True),
            Column(f"candidate {what}", _side("candidate", quantity), _SIX, 12, "candidate", True),
            Column(
                f"{what} difference", _apart(name, "relative"), SCIENTIFIC, 12, "difference", True
            ),
            Column(f"{what} limit", _apart(name, "limit"), SCIENTIFIC, 11, "judgement", True),
        ]
    for side in ("golden", "candidate"):
        columns += [
            Column(f"{side} learning rate", _rate(side), SCIENTIFIC, 11, side, True),
            Column(f"{side} loss scale", _field(side, "loss_scale"), GENERAL, 11, side, True),
            Column(f"{side} updates", _field(side, "updates"), COUNT, 10, side, True),
            Column(f"{side} skipped", _skipped(side), TEXT, 10, side),
        ]
    columns.append(Column("batch", _same("batch"), TEXT, 9))
    return [*columns, Column("weights before", _same("weights"), TEXT, 10)]


def _chart_data(found: TrainingResult) -> Table:
    """The hidden table behind the charts: of neighbouring steps the one furthest apart."""

    def parts(pair: StepPair) -> bool:
        return found.parting is not None and (found.parting.rank, found.parting.step) == (
            pair.rank,
            pair.step,
        )

    def height(pair: StepPair) -> tuple[bool, float]:
        return parts(pair), abs(pair.loss.relative) if pair.loss is not None else -1.0

    first = min((pair.rank for pair in found.pairs), default=0)
    own = [
        pair
        for pair in found.pairs
        if pair.rank == (found.parting.rank if found.parting is not None else first)
    ]
    shown = thinned(own, lambda group: max(group, key=height))

    def marked(get: _Get) -> _Get:
        return lambda pair: get(pair) if parts(pair) else None

    difference = _positive(_apart("loss", "relative"))
    columns = [Column("step", lambda pair: pair.step, COUNT, 10)]
    for quantity in (Quantity.LOSS, Quantity.NORM):
        make = _finite if quantity is Quantity.LOSS else _positive
        ours, theirs = make(_side("golden", quantity)), make(_side("candidate", quantity))
        columns += [
            Column(f"golden {quantity.value}", ours, GENERAL, 14),
            Column(f"candidate {quantity.value}", theirs, GENERAL, 14),
            Column(f"{_PARTS}, {quantity.value}", marked(theirs), GENERAL, 14),
        ]
    columns += [
        Column("relative difference", difference, SCIENTIFIC, 14),
        Column("limit", _positive(_apart("loss", "limit")), SCIENTIFIC, 14),
        Column(f"{_PARTS}, difference", marked(difference), SCIENTIFIC, 14),
        Column("golden learning rate", _finite(_rate("golden")), GENERAL, 14),
        Column("candidate learning rate", _finite(_rate("candidate")), GENERAL, 14),
    ]
    return Table("Training data", columns, shown, hidden=True)


def _finite(get: _Get) -> _Get:
    """The value where a chart can show it."""

    def finite(pair: StepPair) -> Value:
        value = get(pair)
        return value if isinstance(value, (int, float)) and math.isfinite(value) else None

    return finite


def _positive(get: _Get) -> _Get:
    """The magnitude where a logarithmic axis can show it."""

    def size(pair: StepPair) -> Value:
        value = get(pair)
        if isinstance(value, (int, float)) and value and math.isfinite(value):
            return abs(value)
        return None

    return size


def _charts(found: TrainingResult, data: Table, letter: str) -> list[Chart]:
    """The charts that have data, one below the other, from this column on."""
    of_rank = f", rank {data.rows[0].rank}" if found.several_ranks and data.rows else ""

    def both(what: str) -> list[ChartSeries]:
        return [
            ChartSeries(f"golden {what}", _GOLDEN, 2.25, marked=_MARKED),
            ChartSeries(f"candidate {what}", _CANDIDATE, 1.25, marked=_MARKED),
        ]

    marks = [
        ChartSeries(f"{_PARTS}, {what}", _PARTING, width=0)
        for what in ("loss", "difference", "gradient norm")
    ]
    if found.parting is None:
        marks = []
    difference = [
        ChartSeries("limit", _LIMIT, dashed=True),
        ChartSeries("relative difference", _GOLDEN, marked=_MARKED),
    ]
    drawn = [
        ("loss", [*both("loss"), *marks[:1]], "", False),
        ("relative difference of the loss (logarithmic)", [*difference, *marks[1:2]], "", True),
        ("gradient norm (logarithmic)", [*both("gradient norm"), *marks[2:]], "", True),
        ("learning rate of the first parameter group", both("learning rate"), "", False),
    ]
    titles = {column.title: column for column in data.columns}

    def holds(series: list[ChartSeries]) -> bool:
        return any(
            get(pair) is not None
            for each in series
            if (get := titles[each.column].get) is not None
            for pair in data.rows
        )

    shown = [
        each for each in drawn if holds([each[1][-1] if each[1][-1] not in marks else each[1][-2]])
    ]
    return [
        Chart(
            f"{letter}{2 + place * _CHART_LINES}",
            [each for each in series if holds([each])],
            "step",
            (title + of_rank, "step", upwards),
            size=(24, 8),
            labels=20,
            spanned=True,
            data=data,
            logarithmic=logarithmic,
        )
        for place, (title, series, upwards, logarithmic) in enumerate(shown)
    ]
