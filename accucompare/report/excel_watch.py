"""The Excel report of a watch: *Findings*, *Frames*, *Steps*, *Warnings*, *Environment*."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from accucompare.bundle.records import display_name
from accucompare.findings.analysis import Analysis, Ranks, hints
from accucompare.findings.answer import answer, called, described, smallest
from accucompare.findings.events import Alert, AlertKind, Cause, Finding, Frame, TensorRange
from accucompare.report.columns import COUNT, NUMBER, TEXT, Column, Value, bracketed
from accucompare.report.excel_environment import ABSENT, Entry, entry_table, flat
from accucompare.report.excel_sheets import write_workbook
from accucompare.report.excel_watch_steps import number, steps
from accucompare.report.looks import AMBER, BOLD, GREEN, MUTED_TEXT, PALE_RED, PLAIN, RED, SECTION
from accucompare.report.sheets import Item, Line, Table
from accucompare.report.terminal_watch import verdict_line

MAX_RANKS = 8  # columns of the sheet Environment


def write_watch(ranks: Ranks, path: Path) -> Path:
    """Write the Excel report.

    Args:
        ranks: the last run of every rank.
        path: where to; ends in ``.xlsx``. Directories that are not there are created.

    Returns:
        ``path``.

    Raises:
        ReportError: if the path is a directory, or the file cannot be written.
    """
    sheets = [_findings(ranks), _frames(ranks), *steps(ranks), _warnings(ranks), _environment(ranks)]
    return write_workbook(path, f"what a watch found: {ranks.path.name}", sheets)


# Findings


class _FindingRow(NamedTuple):
    run: Analysis
    finding: Finding


_INPUT_ROLES = ("input", "weight", "buffer")


def _inputs(finding: Finding) -> list[TensorRange]:
    return [tensor for tensor in finding.operator_tensors or finding.tensors if tensor.role in _INPUT_ROLES]


def _outputs(finding: Finding) -> list[TensorRange]:
    return [tensor for tensor in finding.operator_tensors or finding.tensors if tensor.role not in _INPUT_ROLES]


def _largest_input(row: _FindingRow) -> Value:
    """The largest magnitude that went in; a NaN, if there is one."""
    sizes = [tensor.abs_max for tensor in _inputs(row.finding)]
    return math.nan if any(map(math.isnan, sizes)) else max(sizes, default=None)


def _described(tensors: Sequence[TensorRange]) -> str:
    return "; ".join(map(described, tensors[:20]))


def _output_count(kind: str) -> Callable[[_FindingRow], Value]:
    def get(row: _FindingRow) -> Value:
        counts = [count for tensor in _outputs(row.finding) if (count := getattr(tensor, kind)) is not None]
        return sum(counts) if counts else None

    return get


def _hints(row: _FindingRow) -> str:
    return "; ".join(hints(row.finding, row.run.start, row.run.scale_at(row.finding.step)))


def _notes(row: _FindingRow) -> str:
    return "; ".join([*row.finding.notes, *(f"reproducer: {note}" for note in row.finding.reproducer_notes)])


def _coordinates(run: Analysis) -> str:
    return ", ".join(f"{axis} {index}" for axis, index in run.start.coordinates.items())


_FINDINGS = (
    Column("#", None, COUNT, 8),
    Column("step", lambda row: row.finding.step, COUNT, 9),
    Column("rank", lambda row: row.run.start.rank, COUNT, 7),
    Column("place", lambda row: row.finding.place, TEXT, 52),
    Column("begins here", lambda row: "origin" if row.finding.origin else "passed on", TEXT, 13, "verdict"),
    Column("what", lambda row: ", ".join(row.finding.kinds), TEXT, 15, "verdict"),
    Column("cause", lambda row: row.finding.cause.value, TEXT, 22, "verdict"),
    Column("class", lambda row: row.finding.type, TEXT, 22),
    Column("call", lambda row: row.finding.call, COUNT, 7),
    Column("direction", lambda row: row.finding.direction.value, TEXT, 11),
    Column("made in", lambda row: row.finding.site.value, TEXT, 11),
    Column("order in step", lambda row: row.finding.order, COUNT, 9),
    Column("coordinates", lambda row: _coordinates(row.run), TEXT, 18),
    Column("operator", lambda row: row.finding.operator, TEXT, 24, "difference"),
    Column("source line", lambda row: row.finding.line, TEXT, 28, "difference"),
    Column("largest that went in", _largest_input, NUMBER, 15, "golden"),
    Column("NaN that came out", _output_count("nan"), COUNT, 12, "not finite"),
    Column("Inf that came out", _output_count("inf"), COUNT, 12, "not finite"),
    Column("what went in", lambda row: _described(_inputs(row.finding)), TEXT, 60, "golden"),
    Column("what came out", lambda row: _described(_outputs(row.finding)), TEXT, 60, "not finite"),
    Column("weights not finite", lambda row: _described(row.finding.weights), TEXT, 40, "not finite"),
    Column("gradients not finite", lambda row: ", ".join(row.finding.parameters), TEXT, 40, "not finite"),
    Column("legal Inf in", lambda row: ", ".join(row.finding.legal), TEXT, 18),
    Column("what to try", _hints, TEXT, 90, "judgement"),
    Column("reproducer", lambda row: row.finding.reproducer, TEXT, 44, "judgement"),
    Column("notes", _notes, TEXT, 60, "judgement"),
)


def _finding_fill(row: _FindingRow) -> str:
    if not row.finding.origin:
        return ""
    return AMBER if row.finding.cause is Cause.NEAR else PALE_RED


def _findings(ranks: Ranks) -> Table:
    heading = [(verdict_line(ranks, alone=False).plain, SECTION)]
    if ranks.first is not None:
        run, finding = ranks.first
        lines = answer(finding, run.start, ranks.directory, run.scale_at(finding.step)).splitlines()
        heading += [(line, PLAIN if place else BOLD) for place, line in enumerate(lines)]
    heading += [(note, MUTED_TEXT) for note in ranks.notes[:3]]
    rows = [_FindingRow(run, finding) for run, finding in ranks.findings]
    return Table(
        "Findings", [column for column in _FINDINGS if ranks.several or column.title not in ("rank", "coordinates")], rows,
        nothing="Nothing was found.", heading=[Line([Item(*line)]) for line in heading], frozen=4 if ranks.several else 3,
        fill=_finding_fill, pages_wide=2, tab=RED if rows or ranks.trouble else GREEN,
    )  # fmt: skip


# Frames


class _TensorRow(NamedTuple):
    run: Analysis
    step: int
    traced: bool
    frame: Frame
    tensor: TensorRange | None
    origin: bool


def _tensor_rows(ranks: Ranks) -> Iterator[_TensorRow]:
    """A row for each tensor of each frame; one for a frame without any."""
    for run in ranks.ranks:
        origins = {(origin.step, origin.name, origin.call, origin.direction) for origin in run.origins}
        for frames in run.frames:
            for frame in frames.frames:
                is_origin = (frames.step, frame.name, frame.call, frame.direction) in origins
                tensors: Sequence[TensorRange | None] = frame.tensors or [None]
                for tensor in tensors:
                    yield _TensorRow(run, frames.step, frames.traced, frame, tensor, is_origin)


def _of_tensor(get: Callable[[TensorRange], Value]) -> Callable[[_TensorRow], Value]:
    return lambda row: None if row.tensor is None else get(row.tensor)


_FRAMES = (
    Column("step", lambda row: row.step, COUNT, 9),
    Column("rank", lambda row: row.run.start.rank, COUNT, 7),
    Column("order in step", lambda row: row.frame.order, COUNT, 9),
    Column("module", lambda row: display_name(row.frame.name), TEXT, 48),
    Column("tensor", _of_tensor(called), TEXT, 22),
    Column("class", lambda row: row.frame.type, TEXT, 22),
    Column("call", lambda row: row.frame.call, COUNT, 7),
    Column("direction", lambda row: row.frame.direction.value, TEXT, 11),
    Column("operator", lambda row: row.frame.operator, TEXT, 24),
    Column("dtype", _of_tensor(lambda tensor: tensor.dtype), TEXT, 11),
    Column("shape", _of_tensor(lambda tensor: bracketed(tensor.shape)), TEXT, 20),
    Column("abs min", _of_tensor(smallest), NUMBER, 14, "difference"),
    Column("abs max", _of_tensor(lambda tensor: tensor.abs_max), NUMBER, 14, "difference"),
    Column("min", _of_tensor(lambda tensor: number(tensor.low)), NUMBER, 14, "difference"),
    Column("max", _of_tensor(lambda tensor: number(tensor.high)), NUMBER, 14, "difference"),
    Column("NaN", _of_tensor(lambda tensor: tensor.nan or None), COUNT, 11, "not finite"),
    Column("Inf", _of_tensor(lambda tensor: tensor.inf or None), COUNT, 11, "not finite"),
    Column("kept because", lambda row: "traced" if row.traced else "before a finding", TEXT, 16, "judgement"),
)


def _frames(ranks: Ranks) -> Table:
    return Table(
        "Frames", [column for column in _FRAMES if ranks.several or column.title != "rank"], list(_tensor_rows(ranks)),
        nothing="No frames were kept.", frozen=4 if ranks.several else 3, pages_wide=2,
        heading=[Line([Item("The last calls before a finding, and all of traced steps, in the order in which they ended", SECTION)])],
        fill=lambda row: PALE_RED if row.origin else AMBER if row.tensor is not None and not row.tensor.finite else "",
    )  # fmt: skip


# Warnings and environment


class _WarningRow(NamedTuple):
    run: Analysis
    alert: Alert
    alarm: bool


_WARNINGS = (
    Column("step", lambda row: row.alert.step, COUNT, 10),
    Column("rank", lambda row: row.run.start.rank, COUNT, 7),
    Column("kind", lambda row: row.alert.kind.value, TEXT, 18, "verdict"),
    Column("module", lambda row: display_name(row.alert.name) if row.alert.type else row.alert.name, TEXT, 44),
    Column("class", lambda row: row.alert.type, TEXT, 22),
    Column("value", lambda row: number(row.alert.value), NUMBER, 15, "difference"),
    Column("dtype", lambda row: row.alert.dtype, TEXT, 11),
    Column("what is said", lambda row: row.alert.text, TEXT, 110, "judgement"),
)


def _warning_rows(run: Analysis) -> Iterator[_WarningRow]:
    """The warnings and, among them, what became of the loss scale."""
    alarms = {id(each) for each in run.alarms}
    for alert in run.warnings:
        yield _WarningRow(run, alert, False)
    for each in run.scaled:
        words = each.text or f"the loss scale is {each.scale:g} now" + (", the step was skipped" if each.skipped else "")
        yield _WarningRow(run, Alert(AlertKind.SCALE, words, each.step, value=each.scale), id(each) in alarms)


def _warnings(ranks: Ranks) -> Table:
    rows = sorted((row for run in ranks.ranks for row in _warning_rows(run)), key=lambda row: (row.alert.step, row.run.start.rank))
    return Table(
        "Warnings", [column for column in _WARNINGS if ranks.several or column.title != "rank"], rows, nothing="Nothing was warned of.",
        heading=[Line([Item("What was not wrong yet, and the loss scale", SECTION)])], frozen=2 if ranks.several else 1,
        fill=lambda row: PALE_RED if row.alarm else "", pages_wide=2,
    )  # fmt: skip


_OWN = ("log", "rank", "time", "device")  # what each rank has of its own


def _environment(ranks: Ranks) -> Table:
    """How each rank ran; what is not as in the first column is marked, but for what is each rank's own."""
    first = ranks.first[0] if ranks.first is not None else ranks.ranks[0]
    shown = [first, *(run for run in ranks.ranks if run is not first)][:MAX_RANKS]
    left_out = len(ranks.ranks) - len(shown)
    tables = [dict(_entries(run)) for run in shown]
    found = []
    for key in dict.fromkeys(key for table in tables for key in table):
        values = [table.get(key, ABSENT) for table in tables]
        found.append(Entry(key, values, [value != values[0] and key not in _OWN for value in values]))
    found += [Entry("note", [note] + [""] * (len(shown) - 1), [False] * len(shown)) for note in ranks.notes]
    note = f"{left_out:,} more ranks are not shown." if left_out else ""
    return entry_table("How it ran", note, [f"rank {run.start.rank}" for run in shown], found)


def _entries(run: Analysis) -> Iterator[tuple[str, str]]:
    start = run.start
    yield "log", str(run.path or "")
    yield "end", run.ending
    names = (
        "rank",
        "ranks",
        "model",
        "parameters",
        "device",
        "saturates",
        "case",
        "time",
        "version",
        "coordinates",
        "options",
        "environment",
    )
    for name in names:
        for key, value in flat(name, getattr(start, name), longest=sys.maxsize):
            yield key, value.shown
