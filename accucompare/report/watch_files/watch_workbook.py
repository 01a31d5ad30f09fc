"""The workbook of a watch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accucompare.findings.analysis import Ranks
from accucompare.findings.checklist import CheckStatus, Health, judge_finite, judge_vitals
from accucompare.findings.log import Cause, Number, Step
from accucompare.report.table import (
    COUNT,
    NUMBER,
    Chart,
    ChartSeries,
    Column,
    Line,
    SheetItem,
    Table,
    column_letter,
    entry_table,
    looks,
    thinned,
)
from accucompare.report.watch_files.health_files import health_sheet
from accucompare.report.watch_files.log_tables import (
    LogTable,
    findings_table,
    frames_table,
    steps_table,
    warnings_table,
)
from accucompare.report.watch_words import said
from accucompare.report.watched import checks_fail, norm_sheets, rank_entries, verdict_line
from accucompare.report.watched import watch_columns as log

_CHART_LINES = 17  # lines that a chart covers
_MARKED = 60  # up to this many points of a chart, each is marked
_NOT_FINITE = "not finite (drawn at the top)"


def write_watch(ranks: Ranks, path: Path) -> Path:
    """Write the workbook of every rank's last run, and return its path; ReportError on failure."""
    from accucompare.report.excel import write_workbook

    health = judge_vitals(ranks)
    checklist = [] if health is None else [health_sheet(ranks, health)]
    sheets = [
        _findings(ranks, health),
        _frames(ranks),
        *_steps(ranks),
        *norm_sheets(ranks),
        _warnings(ranks),
        *checklist,
        _environment(ranks),
    ]
    return write_workbook(path, f"what a watch found: {ranks.path.name}", sheets)


def _table(
    ranks: Ranks,
    title: str,
    content: LogTable,
    heading: Sequence[tuple[str, looks.Look]],
    **more: Any,
) -> Table:
    """A sheet whose first columns stay in view: those that tell several ranks apart."""
    return Table(
        title,
        *content,
        heading=[Line([SheetItem(*line)]) for line in heading],
        frozen=more.pop("frozen") + ranks.several,
        pages_wide=2,
        **more,
    )


def _findings(ranks: Ranks, health: Health | None) -> Table:
    def fill(row: log.FindingRow) -> str:
        if not row.finding.origin:
            return ""
        return looks.AMBER if row.finding.cause is Cause.NEAR else looks.PALE_RED

    heading = [(verdict_line(ranks, health, alone=False).plain, looks.SECTION)]
    heading += [
        (line, looks.PLAIN_LOOK if place else looks.BOLD)
        for place, line in enumerate(log.main_answer(ranks).splitlines())
    ]
    heading += [(said(note), looks.MUTED_TEXT) for note in ranks.notes[:3]]
    content = findings_table(ranks)
    wrong = judge_finite(ranks).status is not CheckStatus.PASS or checks_fail(health)
    return _table(
        ranks,
        "Findings",
        content,
        heading,
        nothing="Nothing was found.",
        frozen=3,
        fill=fill,
        tab=looks.RED if wrong else looks.GREEN,
    )


def _frames(ranks: Ranks) -> Table:
    def fill(row: log.TensorRow) -> str:
        if row.origin:
            return looks.PALE_RED
        return looks.AMBER if row.tensor is not None and not row.tensor.finite else ""

    said = (
        "The last calls before a finding, and all of traced steps, in the order in which they ended"
    )
    return _table(
        ranks,
        "Frames",
        frames_table(ranks),
        [(said, looks.SECTION)],
        nothing="No frames were kept.",
        frozen=3,
        fill=fill,
    )


def _warnings(ranks: Ranks) -> Table:
    return _table(
        ranks,
        "Warnings",
        warnings_table(ranks),
        [("What was not wrong yet, and the loss scale", looks.SECTION)],
        nothing="Nothing was warned of.",
        frozen=1,
        fill=lambda row: looks.PALE_RED if row.alarm else "",
    )


def _steps(ranks: Ranks) -> list[Table]:
    """The table *Steps* with its charts, and the hidden one that feeds them."""

    def fill(row: log.StepRow) -> str:
        if not row.step.finite and not row.skipped:
            return looks.PALE_RED
        return looks.AMBER if row.jumped or row.alarm or row.step.overflowed else ""

    run = log.main_run(ranks)
    data = _chart_data(run.steps)
    charts = _charts(
        data,
        f", rank {run.start.rank}" if ranks.several else "",
        column_letter(len(log.STEPS) + 1 + ranks.several),
    )
    shown = _table(
        ranks,
        "Steps",
        steps_table(ranks),
        [("Every step that was watched", looks.SECTION)],
        nothing="No step was watched.",
        frozen=1,
        fill=fill,
        charts=charts,
    )
    return [shown, data]


def _chart_data(steps: Sequence[Step]) -> Table:
    """The hidden table behind the charts: of neighbouring steps the first not finite, or last."""
    shown = thinned(steps, lambda group: next(filter(_is_bad, group), group[-1]))
    top = max((norm for step in shown if (norm := _positive(step.grad_norm))), default=1.0)
    columns = [
        Column("step", lambda step: step.step, COUNT, 10),
        Column("grad_norm", lambda step: _positive(step.grad_norm), NUMBER, 16),
        Column(_NOT_FINITE, lambda step: top if _is_bad(step) else None, NUMBER, 16),
        Column("loss scale", lambda step: _positive(step.scale), NUMBER, 16),
    ]
    return Table("Chart data", columns, shown, hidden=True)


def _is_bad(step: Step) -> bool:
    return step.grad_norm is not None and not math.isfinite(float(step.grad_norm))


def _positive(number: Number | None) -> float | None:
    """A number on a logarithmic axis, which has neither 0 nor infinity."""
    return float(number) if number is not None and 0 < float(number) < math.inf else None


def _charts(data: Table, of_rank: str, letter: str) -> list[Chart]:
    """The charts that have data, one below the other, from this column on."""
    norm = ChartSeries("grad_norm", looks.CURVE, marked=_MARKED)
    scale = ChartSeries("loss scale", looks.SCALE_CURVE, marked=_MARKED)
    drawn = []
    if any(step.grad_norm for step in data.rows):
        drawn.append(("grad_norm", [norm, ChartSeries(_NOT_FINITE, looks.OVER, width=0)]))
    if any(_positive(step.scale) for step in data.rows):
        drawn.append(("loss scale", [scale]))
    return [
        Chart(
            f"{letter}{2 + place * _CHART_LINES}",
            series,
            "step",
            (title + of_rank, "step", ""),
            size=(24, 8),
            labels=20,
            data=data,
        )
        for place, (title, series) in enumerate(drawn)
    ]


def _environment(ranks: Ranks) -> Table:
    """How each rank ran; unexpected differences from the first column are marked."""
    shown, listed = rank_entries(ranks)
    left_out = len(ranks.ranks) - len(shown)
    note = f"{left_out:,} more ranks are not shown." if left_out else ""
    return entry_table("How it ran", note, [f"rank {run.start.rank}" for run in shown], listed)
