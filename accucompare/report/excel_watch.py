"""The Excel report of a watch: *Findings*, *Frames*, *Steps*, *Warnings*, *Environment*."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from openpyxl import Workbook
from openpyxl.cell import Cell
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.worksheet import Worksheet

from accucompare.bundle.records import display_name
from accucompare.files import written_whole
from accucompare.findings.analysis import Analysis, Ranks, answer, called, described, hints, smallest
from accucompare.findings.events import Alert, AlertKind, Cause, Finding, Number, Step, TensorRange
from accucompare.report.columns import COUNT, NUMBER, TEXT, Value, bracketed
from accucompare.report.excel import WRITE_ERRORS, new_workbook
from accucompare.report.excel_rows import number_or_text
from accucompare.report.excel_styles import add_sheet, styled
from accucompare.report.excel_watch_charts import add_charts
from accucompare.report.looks import AMBER, CELL_WRAPPED, DIFFERENT, GREEN, GROUPS, HEADER, LINE, MUTED_TEXT, PALE_RED, RED, SECTION, Look
from accucompare.report.terminal_watch import verdict_line

LINES_PER_SHEET = 1_048_576  # Excel's limit
MAX_RANKS = 8  # columns of the sheet Environment
_ORIGIN, _NEAR = PALE_RED, AMBER  # fills of rows


class _Column(NamedTuple):
    """A column of one of the sheets: title, number format, width, and its value for a row."""

    title: str
    format: str
    width: float
    get: Callable[[Any], Value]
    group: str = "record"


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
    return written_whole(path, lambda temporary: _write(ranks, temporary), WRITE_ERRORS)


def _write(ranks: Ranks, path: Path) -> None:
    with new_workbook(f"what a watch found: {ranks.path.name}") as workbook:
        _add_findings(workbook, ranks)
        _add_frames(workbook, ranks)
        _add_steps(workbook, ranks)
        _add_warnings(workbook, ranks)
        _add_environment(workbook, ranks)
        workbook.save(path)


def _number(value: Number | None) -> Value:
    return None if value is None else float(value)


# The tables


def _add_table(
    workbook: Workbook,
    title: str,
    heading: Sequence[tuple[str, Look]],
    columns: Sequence[_Column],
    rows: Sequence[Any],
    *,
    frozen: int,
    nothing: str,
    fill: Callable[[Any], str] = lambda row: "",
    tab: str = "",
) -> Worksheet:
    """A sheet with lines of text, a header and a line for each row; more sheets where one does not hold all rows.

    Args:
        title: of the sheet; further ones are numbered.
        heading: lines above the header.
        columns, rows: of the table.
        frozen: so many columns stay where they are when the sheet is scrolled.
        nothing: what stands there if there are no rows.
        fill: a row's colour; ``""`` for none.
        tab: the colour of the sheet's tab.

    Returns:
        The first sheet.
    """
    capacity = LINES_PER_SHEET - len(heading) - 1
    sheets = []
    for page, first in enumerate(range(0, max(len(rows), 1), capacity)):
        shown = rows[first : first + capacity]
        sheet = add_sheet(workbook, f"{title} {page + 1}" if page else title, [column.width for column in columns], pages_wide=2)
        sheets.append(sheet)
        if tab:
            sheet.sheet_properties.tabColor = tab
        _prepare(sheet, heading, columns, frozen, len(shown))
        if not shown:
            sheet.append([styled(sheet, nothing, MUTED_TEXT)])
        looks: dict[str, list[Cell]] = {}
        for row in shown:
            color = fill(row)
            if color not in looks:  # filled again for every row: making a cell costs as much as writing it
                looks[color] = [styled(sheet, None, _look(column, color)) for column in columns]
            sheet.append([_filled(cell, column.get(row)) for cell, column in zip(looks[color], columns, strict=True)])
    return sheets[0]


def _prepare(sheet: Worksheet, heading: Sequence[tuple[str, Look]], columns: Sequence[_Column], frozen: int, count: int) -> None:
    """Everything above the rows."""
    line = len(heading) + 1
    last = get_column_letter(len(columns))
    sheet.freeze_panes = f"{get_column_letter(frozen + 1)}{line + 1}"
    sheet.auto_filter.ref = f"A{line}:{last}{line + max(count, 1)}"
    sheet.print_title_rows = f"{line}:{line}"
    sheet.row_dimensions[line].height = 32
    for told, look in heading:
        sheet.append([styled(sheet, told, look)])
    sheet.append([styled(sheet, column.title, _header(column)) for column in columns])


def _look(column: _Column, fill: str) -> Look:
    """Numbers to the right, and text that stands for one (NaN) too; text indented, so that it keeps clear of them."""
    look = Look(indent=1, format=TEXT) if column.format == TEXT else Look(align="right", format=column.format)
    return look._replace(fill=fill, line=LINE)


def _header(column: _Column) -> Look:
    return _look(column, GROUPS[column.group])._replace(bold=True, color="FFFFFFFF", wrap=True, format="General", line="")


def _filled(cell: Cell, value: Value) -> Cell:
    """The cell with the value, which is never taken for a formula."""
    cell.value = None if value == "" else number_or_text(value)
    if isinstance(cell.value, str):
        cell.data_type = "s"
    return cell


# Findings


class _FindingRow(NamedTuple):
    number: int
    run: Analysis
    found: Finding


_TAKEN = ("input", "weight", "buffer")


def _seen(found: Finding) -> list[TensorRange]:
    return found.operator_tensors or found.tensors


def _taken_most(row: _FindingRow) -> Value:
    """The largest magnitude that went in; a NaN, if there is one."""
    sizes = [seen.abs_max for seen in _seen(row.found) if seen.role in _TAKEN]
    return math.nan if any(map(math.isnan, sizes)) else max(sizes, default=None)


def _told(tensors: Sequence[TensorRange]) -> str:
    return "; ".join(described(seen) for seen in tensors[:20])


def _given_count(kind: str) -> Callable[[_FindingRow], Value]:
    def get(row: _FindingRow) -> Value:
        counts = [getattr(seen, kind) for seen in _seen(row.found) if seen.role not in _TAKEN]
        return sum(count for count in counts if count is not None) if any(count is not None for count in counts) else None

    return get


def _hints(row: _FindingRow) -> str:
    return "; ".join(hints(row.found, row.run.start, row.run.scale_at(row.found.step)))


def _notes(row: _FindingRow) -> str:
    return "; ".join([*row.found.notes, *(f"reproducer: {note}" for note in row.found.reproducer_notes)])


def _coordinates(run: Analysis) -> str:
    return ", ".join(f"{axis} {index}" for axis, index in run.start.coordinates.items())


_FINDINGS: tuple[_Column, ...] = (
    _Column("#", COUNT, 8, lambda row: row.number),
    _Column("step", COUNT, 9, lambda row: row.found.step),
    _Column("rank", COUNT, 7, lambda row: row.run.start.rank),
    _Column("place", TEXT, 52, lambda row: row.found.place),
    _Column("begins here", TEXT, 13, lambda row: "origin" if row.found.origin else "passed on", "verdict"),
    _Column("what", TEXT, 15, lambda row: ", ".join(row.found.kinds), "verdict"),
    _Column("cause", TEXT, 22, lambda row: row.found.cause.value, "verdict"),
    _Column("class", TEXT, 22, lambda row: row.found.type),
    _Column("call", COUNT, 7, lambda row: row.found.call),
    _Column("direction", TEXT, 11, lambda row: row.found.direction.value),
    _Column("made in", TEXT, 11, lambda row: row.found.site.value),
    _Column("order in step", COUNT, 9, lambda row: row.found.order),
    _Column("coordinates", TEXT, 18, lambda row: _coordinates(row.run)),
    _Column("operator", TEXT, 24, lambda row: row.found.operator, "difference"),
    _Column("source line", TEXT, 28, lambda row: row.found.line, "difference"),
    _Column("largest that went in", NUMBER, 15, _taken_most, "golden"),
    _Column("NaN that came out", COUNT, 12, _given_count("nan"), "not finite"),
    _Column("Inf that came out", COUNT, 12, _given_count("inf"), "not finite"),
    _Column("what went in", TEXT, 60, lambda row: _told([seen for seen in _seen(row.found) if seen.role in _TAKEN]), "golden"),
    _Column("what came out", TEXT, 60, lambda row: _told([seen for seen in _seen(row.found) if seen.role not in _TAKEN]), "not finite"),
    _Column("weights not finite", TEXT, 40, lambda row: _told(row.found.weights), "not finite"),
    _Column("gradients not finite", TEXT, 40, lambda row: ", ".join(row.found.parameters), "not finite"),
    _Column("legal Inf in", TEXT, 18, lambda row: ", ".join(row.found.legal)),
    _Column("what to try", TEXT, 90, _hints, "judgement"),
    _Column("reproducer", TEXT, 44, lambda row: row.found.reproducer, "judgement"),
    _Column("notes", TEXT, 60, _notes, "judgement"),
)


def _fill(row: _FindingRow) -> str:
    if not row.found.origin:
        return ""
    return _NEAR if row.found.cause is Cause.NEAR else _ORIGIN


def _add_findings(workbook: Workbook, ranks: Ranks) -> None:
    rows = [_FindingRow(number, run, found) for number, (run, found) in enumerate(ranks.findings, 1)]
    heading = [(verdict_line(ranks, alone=False).plain, SECTION)]
    if ranks.first is not None:
        run, found = ranks.first
        lines = answer(found, run.start, ranks.directory, run.scale_at(found.step)).splitlines()
        heading += [(line, Look(bold=not number)) for number, line in enumerate(lines)]
    heading += [(note, MUTED_TEXT) for note in ranks.notes[:3]]
    columns = [column for column in _FINDINGS if ranks.several or column.title not in ("rank", "coordinates")]
    _add_table(
        workbook, "Findings", heading, columns, rows, frozen=4 if ranks.several else 3,
        nothing="Nothing was found.", fill=_fill, tab=RED if rows or ranks.trouble else GREEN,
    )  # fmt: skip


# Frames


class _Tensor(NamedTuple):
    run: Analysis
    step: int
    traced: bool
    order: int
    name: str
    type: str
    call: int
    direction: str
    operator: str
    seen: TensorRange | None
    origin: bool


def _tensors(ranks: Ranks) -> Iterator[_Tensor]:
    """A row for each tensor of each frame; one for a frame without any."""
    for run in ranks.ranks:
        guilty = {(found.step, found.name, found.call, found.direction) for found in run.origins}
        for frames in run.frames:
            for frame in frames.frames:
                origin = (frames.step, frame.name, frame.call, frame.direction) in guilty
                about = (frame.order, frame.name, frame.type, frame.call, frame.direction.value, frame.operator)
                tensors: Sequence[TensorRange | None] = frame.tensors or [None]
                for seen in tensors:
                    yield _Tensor(run, frames.step, frames.traced, *about, seen, origin)


def _of_seen(get: Callable[[TensorRange], Value]) -> Callable[[_Tensor], Value]:
    return lambda row: None if row.seen is None else get(row.seen)


_FRAMES: tuple[_Column, ...] = (
    _Column("step", COUNT, 9, lambda row: row.step),
    _Column("rank", COUNT, 7, lambda row: row.run.start.rank),
    _Column("order in step", COUNT, 9, lambda row: row.order),
    _Column("module", TEXT, 48, lambda row: display_name(row.name)),
    _Column("tensor", TEXT, 22, _of_seen(called)),
    _Column("class", TEXT, 22, lambda row: row.type),
    _Column("call", COUNT, 7, lambda row: row.call),
    _Column("direction", TEXT, 11, lambda row: row.direction),
    _Column("operator", TEXT, 24, lambda row: row.operator),
    _Column("dtype", TEXT, 11, _of_seen(lambda seen: seen.dtype)),
    _Column("shape", TEXT, 20, _of_seen(lambda seen: bracketed(seen.shape))),
    _Column("abs min", NUMBER, 14, _of_seen(smallest), "difference"),
    _Column("abs max", NUMBER, 14, _of_seen(lambda seen: seen.abs_max), "difference"),
    _Column("min", NUMBER, 14, _of_seen(lambda seen: _number(seen.low)), "difference"),
    _Column("max", NUMBER, 14, _of_seen(lambda seen: _number(seen.high)), "difference"),
    _Column("NaN", COUNT, 11, _of_seen(lambda seen: seen.nan or None), "not finite"),
    _Column("Inf", COUNT, 11, _of_seen(lambda seen: seen.inf or None), "not finite"),
    _Column("kept because", TEXT, 16, lambda row: "traced" if row.traced else "before a finding", "judgement"),
)


def _add_frames(workbook: Workbook, ranks: Ranks) -> None:
    rows = list(_tensors(ranks))
    columns = [column for column in _FRAMES if ranks.several or column.title != "rank"]
    heading = [("The last calls before a finding, and all of traced steps, in the order in which they ended", SECTION)]
    _add_table(
        workbook, "Frames", heading, columns, rows, frozen=columns.index(_FRAMES[3]) + 1, nothing="No frames were kept.",
        fill=lambda row: _ORIGIN if row.origin else AMBER if row.seen is not None and not row.seen.finite else "",
    )  # fmt: skip


# Steps


class _Stepped(NamedTuple):
    run: Analysis
    step: Step
    skipped: bool
    alarm: bool
    jumped: bool


def _stepped(run: Analysis) -> Iterator[_Stepped]:
    skipped = {each.step for each in run.scaled if each.skipped}
    alarms = {each.step for each in run.alarms}
    jumps = {jump.step.step for jump in run.jumps}
    for step in run.steps:
        yield _Stepped(run, step, step.step in skipped, step.step in alarms, step.step in jumps)


def _step_fill(row: _Stepped) -> str:
    if not row.step.finite and not row.skipped:
        return _ORIGIN
    return AMBER if row.jumped or row.alarm or row.step.overflowed else ""


def _yes(value: bool | None) -> str:
    return "yes" if value else ""


_STEPS: tuple[_Column, ...] = (
    _Column("step", COUNT, 10, lambda row: row.step.step),
    _Column("rank", COUNT, 7, lambda row: row.run.start.rank),
    _Column("finite", TEXT, 8, lambda row: "yes" if row.step.finite else "no", "verdict"),
    _Column("grad_norm", NUMBER, 15, lambda row: _number(row.step.grad_norm), "difference"),
    _Column("jumped", TEXT, 9, lambda row: _yes(row.jumped), "difference"),
    _Column("loss", NUMBER, 15, lambda row: _number(row.step.loss), "difference"),
    _Column("loss scale", "General", 13, lambda row: row.step.scale, "baseline"),
    _Column("skipped", TEXT, 9, lambda row: _yes(row.skipped), "baseline"),
    _Column("alarm", TEXT, 8, lambda row: _yes(row.alarm), "baseline"),
    _Column("overflow flag", TEXT, 10, lambda row: _yes(row.step.overflowed), "not finite"),
    _Column(
        "most of grad_norm",
        TEXT,
        70,
        lambda row: ", ".join(f"{name} {float(norm):.4g}" for name, norm in row.step.largest[:5]),
        "judgement",
    ),
)


def _add_steps(workbook: Workbook, ranks: Ranks) -> None:
    rows = [row for run in ranks.ranks for row in _stepped(run)]
    columns = [column for column in _STEPS if ranks.several or column.title != "rank"]
    sheet = _add_table(
        workbook, "Steps", [("Every step that was watched", SECTION)], columns, rows,
        frozen=2 if ranks.several else 1, nothing="No step was watched.",
        fill=_step_fill,
    )  # fmt: skip
    run = ranks.first[0] if ranks.first is not None else ranks.ranks[0]
    of_rank = f", rank {run.start.rank}" if ranks.several else ""
    add_charts(workbook, sheet, run.steps, of_rank, get_column_letter(len(columns) + 2))


# Warnings and environment


class _Warning(NamedTuple):
    run: Analysis
    warned: Alert
    alarm: bool


_WARNINGS: tuple[_Column, ...] = (
    _Column("step", COUNT, 10, lambda row: row.warned.step),
    _Column("rank", COUNT, 7, lambda row: row.run.start.rank),
    _Column("kind", TEXT, 18, lambda row: row.warned.kind.value, "verdict"),
    _Column("module", TEXT, 44, lambda row: display_name(row.warned.name) if row.warned.type else row.warned.name),
    _Column("class", TEXT, 22, lambda row: row.warned.type),
    _Column("value", NUMBER, 15, lambda row: _number(row.warned.value), "difference"),
    _Column("dtype", TEXT, 11, lambda row: row.warned.dtype),
    _Column("what is said", TEXT, 110, lambda row: row.warned.text, "judgement"),
)


def _warned(run: Analysis) -> Iterator[_Warning]:
    """The warnings and, among them, what became of the loss scale."""
    alarms = {id(each) for each in run.alarms}
    for warned in run.warnings:
        yield _Warning(run, warned, False)
    for each in run.scaled:
        said = each.text or f"the loss scale is {each.scale:g} now" + (", the step was skipped" if each.skipped else "")
        yield _Warning(run, Alert(AlertKind.SCALE, said, each.step, value=each.scale), id(each) in alarms)


def _add_warnings(workbook: Workbook, ranks: Ranks) -> None:
    rows = sorted((row for run in ranks.ranks for row in _warned(run)), key=lambda row: (row.warned.step, row.run.start.rank))
    columns = [column for column in _WARNINGS if ranks.several or column.title != "rank"]
    _add_table(
        workbook, "Warnings", [("What was not wrong yet, and the loss scale", SECTION)], columns, rows, frozen=2 if ranks.several else 1,
        nothing="Nothing was warned of.", fill=lambda row: _ORIGIN if row.alarm else "",
    )  # fmt: skip


def _add_environment(workbook: Workbook, ranks: Ranks) -> None:
    """How each rank ran; what is not as in the first column is marked, but for what is each rank's own."""
    first = ranks.first[0] if ranks.first is not None else ranks.ranks[0]
    shown = [first, *(run for run in ranks.ranks if run is not first)][:MAX_RANKS]
    sheet = add_sheet(workbook, "Environment", (36, *([52] * len(shown))))
    sheet.freeze_panes = "B4"
    sheet.print_title_rows = "3:3"
    sheet.append([styled(sheet, "How it ran", SECTION)])
    left_out = len(ranks.ranks) - len(shown)
    sheet.append([styled(sheet, f"{left_out:,} more ranks are not shown." if left_out else "", MUTED_TEXT)])
    sheet.append([styled(sheet, title, HEADER) for title in ("entry", *(f"rank {run.start.rank}" for run in shown))])
    tables = [dict(_entries(run)) for run in shown]
    for key in dict.fromkeys(key for table in tables for key in table):
        values = [table.get(key, "—") for table in tables]
        looks = [DIFFERENT if value != values[0] and key not in _OWN else CELL_WRAPPED for value in values]
        cells = [styled(sheet, value, look._replace(wrap=True, vertical="top")) for value, look in zip(values, looks, strict=True)]
        sheet.append([styled(sheet, key, CELL_WRAPPED), *cells])
    for note in ranks.notes:
        sheet.append([styled(sheet, "note", CELL_WRAPPED), styled(sheet, note, CELL_WRAPPED)])


_OWN = ("log", "rank", "time", "device")


def _entries(run: Analysis) -> Iterator[tuple[str, str]]:
    start = run.start
    yield "log", str(run.path or "")
    yield "end", run.ending
    for name in ("rank", "ranks", "model", "parameters", "device", "saturates", "case", "time", "version"):
        yield name, _shown(getattr(start, name))
    for name in ("coordinates", "options", "environment"):
        yield from _flat(name, getattr(start, name))


def _flat(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flat(f"{key}.{name}", inner)
    else:
        yield key, _shown(value)


def _shown(value: Any) -> str:
    if value is None or value in ([], {}):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
