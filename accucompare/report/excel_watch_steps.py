"""The sheet *Steps* of a watch: every step, and charts of grad_norm and the loss scale, drawn from a hidden sheet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from openpyxl.utils import get_column_letter

from accucompare.findings.analysis import Analysis, Ranks
from accucompare.findings.events import Number, Step
from accucompare.report.columns import COUNT, GENERAL, NUMBER, TEXT, Column, Value
from accucompare.report.looks import AMBER, PALE_RED, SECTION
from accucompare.report.sheets import Chart, Item, Line, Series, Table, thinned

_CHART_LINES = 17  # lines that a chart covers
_MARKED = 60  # points, up to which each of them is marked
_NOT_FINITE = "not finite (drawn at the top)"


class _StepRow(NamedTuple):
    run: Analysis
    step: Step
    skipped: bool
    alarm: bool
    jumped: bool


def _rows(run: Analysis) -> Iterator[_StepRow]:
    skipped = {each.step for each in run.scaled if each.skipped}
    alarms = {each.step for each in run.alarms}
    jumps = {jump.step.step for jump in run.jumps}
    for step in run.steps:
        yield _StepRow(run, step, step.step in skipped, step.step in alarms, step.step in jumps)


def _fill(row: _StepRow) -> str:
    if not row.step.finite and not row.skipped:
        return PALE_RED
    return AMBER if row.jumped or row.alarm or row.step.overflowed else ""


def _yes(value: bool | None) -> str:
    return "yes" if value else ""


def number(value: Number | None) -> Value:
    """A number of a log, which may be in words (``nan``)."""
    return None if value is None else float(value)


def _largest(row: _StepRow) -> str:
    return ", ".join(f"{name} {float(norm):.4g}" for name, norm in row.step.largest[:5])


_COLUMNS = (
    Column("step", lambda row: row.step.step, COUNT, 10),
    Column("rank", lambda row: row.run.start.rank, COUNT, 7),
    Column("finite", lambda row: "yes" if row.step.finite else "no", TEXT, 8, "verdict"),
    Column("grad_norm", lambda row: number(row.step.grad_norm), NUMBER, 15, "difference"),
    Column("jumped", lambda row: _yes(row.jumped), TEXT, 9, "difference"),
    Column("loss", lambda row: number(row.step.loss), NUMBER, 15, "difference"),
    Column("loss scale", lambda row: row.step.scale, GENERAL, 13, "baseline"),
    Column("skipped", lambda row: _yes(row.skipped), TEXT, 9, "baseline"),
    Column("alarm", lambda row: _yes(row.alarm), TEXT, 8, "baseline"),
    Column("overflow flag", lambda row: _yes(row.step.overflowed), TEXT, 10, "not finite"),
    Column("most of grad_norm", _largest, TEXT, 70, "judgement"),
)


def steps(ranks: Ranks) -> list[Table]:
    """The tables *Steps*, and *Chart data*, which is hidden."""
    run = ranks.first[0] if ranks.first is not None else ranks.ranks[0]
    columns = [column for column in _COLUMNS if ranks.several or column.title != "rank"]
    data = Table("Chart data", _CHART_COLUMNS, _points(run.steps), hidden=True)
    table = Table(
        "Steps", columns, [row for run in ranks.ranks for row in _rows(run)], nothing="No step was watched.",
        heading=[Line([Item("Every step that was watched", SECTION)])], frozen=2 if ranks.several else 1, fill=_fill, pages_wide=2,
        charts=_charts(data, f", rank {run.start.rank}" if ranks.several else "", get_column_letter(len(columns) + 2)),
    )  # fmt: skip
    return [table, data]


# The charts


class _Point(NamedTuple):
    """A point of the charts: the step, and grad_norm and loss scale as a logarithmic axis can show them."""

    step: int
    norm: float | None
    bad: float | None
    scale: float | None


_CHART_COLUMNS = (
    Column("step", lambda point: point.step, COUNT, 10),
    Column("grad_norm", lambda point: point.norm, NUMBER, 16),
    Column(_NOT_FINITE, lambda point: point.bad, NUMBER, 16),
    Column("loss scale", lambda point: point.scale, NUMBER, 16),
)


def _charts(data: Table, of_rank: str, letter: str) -> list[Chart]:
    """What there is to draw, one chart below the other from this column on."""
    drawn = []
    if any(point.norm or point.bad for point in data.rows):
        drawn.append(("grad_norm", [Series("grad_norm", "1B5FAA", marked=_MARKED), Series(_NOT_FINITE, "C62828", width=0)]))
    if any(point.scale for point in data.rows):
        drawn.append(("loss scale", [Series("loss scale", "2F6F73", marked=_MARKED)]))
    return [
        Chart(f"{letter}{2 + place * _CHART_LINES}", series, "step", (title + of_rank, "step", ""), size=(24, 8), labels=20, data=data)
        for place, (title, series) in enumerate(drawn)
    ]


def _points(steps: Sequence[Step]) -> list[_Point]:
    """As many points as a chart has room for: of neighbours the last one, or the first that is not finite."""
    shown = thinned(steps, lambda group: next(filter(_is_bad, group), group[-1]))
    top = max((float(step.grad_norm) for step in shown if step.grad_norm is not None and not _is_bad(step)), default=1.0) or 1.0
    return [_point(step, top) for step in shown]


def _is_bad(step: Step) -> bool:
    return step.grad_norm is not None and not math.isfinite(float(step.grad_norm))


def _point(step: Step, top: float) -> _Point:
    """A norm that is not finite at the top of the others; nothing for 0, which a logarithmic axis lacks."""
    bad = _is_bad(step)
    norm = None if step.grad_norm is None or bad else float(step.grad_norm)
    return _Point(step.step, _positive(norm), top if bad else None, _positive(step.scale))


def _positive(value: float | None) -> float | None:
    return value if value is not None and value > 0 else None
