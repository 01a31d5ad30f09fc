"""Pages and tables as sheets of a workbook."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

from openpyxl import Workbook
from openpyxl.formatting.rule import Rule
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.page import PageMargins
from openpyxl.worksheet.properties import Outline, PageSetupProperties
from openpyxl.worksheet.worksheet import Worksheet
from openpyxl.xml import LXML

from accucompare.errors import ReportError
from accucompare.files import is_stdout, written_whole
from accucompare.report.excel.charts import draw
from accucompare.report.excel.styles import heat_rules, hyperlink, row_rules, scale_rule, styled
from accucompare.report.excel.xml_rows import SheetRows, save_with_rows, text
from accucompare.report.table import Column, Line, Page, Scale, SheetItem, Table, looks

_TOGETHER = 256  # rows
_MOST_LINKS = 65_530  # Excel's limit in a sheet
_WRITE_ERRORS: tuple[type[Exception], ...] = ()
if LXML:  # openpyxl then writes with lxml and raises its errors
    from lxml.etree import LxmlError

    _WRITE_ERRORS = (LxmlError,)


def write_workbook(path: Path, title: str, sheets: Iterable[Page | Table]) -> Path:
    """Write the sheets, and return ``path``; missing directories are created. Raises ReportError if
    the path is a directory or a terminal, or the file cannot be written."""

    def write(temporary: Path) -> None:
        if is_stdout(path) and sys.stdout.isatty():
            raise ReportError(
                f"{path}: a terminal cannot show a workbook; name a file, such as report.xlsx, or"
                " add > report.xlsx"
            )
        _write(temporary, title, sheets)

    return written_whole(path, write, _WRITE_ERRORS)


def _write(path: Path, title: str, sheets: Iterable[Page | Table]) -> None:
    workbook = Workbook(write_only=True)
    workbook.properties.creator = "accucompare"
    workbook.properties.title = text(title)
    # nothing to calculate, so closing the workbook asks nothing
    workbook.calculation.fullCalcOnLoad = False
    without_rows = BytesIO()  # so it is small
    rows: list[SheetRows] = []
    try:
        for sheet in sheets:
            if isinstance(sheet, Page):
                _append(
                    _add_sheet(workbook, sheet.title, sheet.widths, sheet.tab),
                    sheet.lines,
                    first=2,
                    last=len(sheet.widths),
                )
            else:
                rows += _add_table(workbook, sheet)
        workbook.save(without_rows)
    except BaseException:
        for each in workbook.worksheets:
            # otherwise Python warns about half-written sheets when it deletes them
            with suppress(Exception):
                each.close()
        raise
    save_with_rows(without_rows, rows, path)


def _add_table(workbook: Workbook, table: Table) -> list[SheetRows]:
    """Add a table's sheets, each down to its header, and return the rows that go below."""
    sheets = [_add_rows(workbook, table, *page) for page in table.pages()]
    for chart in table.charts:
        draw(workbook[table.title], chart, chart.data or table)
    return sheets


def _add_rows(workbook: Workbook, table: Table, title: str, start: int, stop: int) -> SheetRows:
    facts = _facts(table, start, stop)
    sheet = _add_sheet(
        workbook,
        title,
        [column.width for column in table.columns],
        table.tab,
        table.pages_wide,
        table.large,
    )
    if table.hidden:
        sheet.sheet_state = "hidden"
    _fold(sheet, table.columns, facts)
    sheet.row_dimensions[table.header].height = 32
    last = table.header + max(stop - start, 1)
    if table.frozen is not None:
        sheet.freeze_panes = f"{get_column_letter(table.frozen + 1)}{table.header + 1}"
        sheet.auto_filter.ref = f"A{table.header}:{get_column_letter(len(table.columns))}{last}"
        sheet.print_title_rows = f"{table.header}:{table.header}"
    if table.dense:
        sheet.sheet_view.zoomScale = 90
        sheet.sheet_view.showGridLines = True
        sheet.sheet_properties.outlinePr = Outline(summaryBelow=False, summaryRight=False)
    if table.depth:
        sheet.sheet_format.outlineLevelRow = facts.deepest
    _color(sheet, table, last)
    _append(sheet, [*table.heading, *[Line([])] * table.space], first=1, last=len(table.columns))
    sheet.append(
        [styled(sheet, column.title, looks.header_look(column)) for column in table.columns]
    )
    if start == stop and table.nothing:
        sheet.append([styled(sheet, table.nothing, looks.MUTED_TEXT)])
    _link(sheet, table, start, stop)
    styles = {}
    for fill in facts.fills:
        own = looks.row_looks(table.columns, fill, "" if table.dense else looks.LINE)
        styles[fill] = [styled(sheet, None, look).style_id for look in own]
    return SheetRows(sheet, table, start, stop, styles)


def _add_sheet(
    workbook: Workbook,
    title: str,
    widths: Sequence[float],
    tab: str = "",
    pages_wide: int = 1,
    large: bool = False,
) -> Worksheet:
    """A new sheet, printed in landscape on ``pages_wide`` pages side by side; large is A3."""
    # a write-only sheet has the attributes used here, which its type does not list
    sheet = cast(Worksheet, workbook.create_sheet(title))
    for number, width in enumerate(widths, 1):
        sheet.column_dimensions[get_column_letter(number)].width = width
    sheet.sheet_view.showGridLines = False
    sheet.sheet_properties.pageSetUpPr = PageSetupProperties(fitToPage=True)
    if tab:
        sheet.sheet_properties.tabColor = tab
    sheet.page_setup.orientation = "landscape"
    sheet.page_setup.paperSize = 8 if large or pages_wide > 1 else 9  # A3 or A4
    sheet.page_setup.fitToWidth, sheet.page_setup.fitToHeight = pages_wide, 0
    sheet.page_margins = PageMargins(left=0.4, right=0.4, top=0.5, bottom=0.6, footer=0.3)
    if sheet.oddFooter is not None and sheet.oddFooter.right is not None:
        sheet.oddFooter.right.text = "&A, page &P of &N"
    return sheet


def _append(sheet: Worksheet, lines: Sequence[Line], first: int, last: int) -> None:
    """Write the sheet's first lines; ``first`` and ``last`` are the columns in use."""
    for number, line in enumerate(lines, 1):
        if line.height:
            sheet.row_dimensions[number].height = line.height
        items = list(line.items)
        if line.spread is not None:  # each merged cell has its own border and fill
            sheet.merged_cells.add(
                f"{get_column_letter(first + line.spread)}{number}"
                f":{get_column_letter(last - line.free)}{number}"
            )
            after = line.spread + 1
            items[after:after] = [SheetItem(None, items[line.spread].look)] * (
                last - first + 1 - len(items)
            )
        margin = [line.margin and styled(sheet, *line.margin)] * (first - 1)
        sheet.append([*margin, *(styled(sheet, *item) for item in items)])


class _Facts(NamedTuple):
    """What must be known of rows before they are written."""

    empty: set[str]  # the titles of sparse columns without any value
    several: set[str]  # the titles of columns shown only if rows differ in them, and do
    fills: list[str | tuple[str, ...]]
    deepest: int  # the deepest level of the rows' outline


def _between(table: Table, start: int, stop: int) -> Iterator[Any]:
    """Some rows; a few at a time are made together."""
    for first in range(start, stop, _TOGETHER):
        yield from table.rows[first : min(first + _TOGETHER, stop)]


def _facts(table: Table, start: int, stop: int) -> _Facts:
    """One pass, since a row may be made each time it is asked for."""
    empty = {column.title: column.get for column in table.columns if column.sparse and column.get}
    alike: dict[str, set[Any]] = {
        column.title: set() for column in table.columns if column.several and column.get
    }
    getters = {column.title: column.get for column in table.columns if column.get}
    several: set[str] = set()
    fills: dict[str | tuple[str, ...], None] = {}
    deepest = 0
    for row in _between(table, start, stop):
        fills[table.fill(row)] = None
        if table.depth:
            deepest = max(deepest, table.depth(row))
        for title in [title for title, get in empty.items() if get(row) is not None]:
            del empty[title]
        for title, values in list(alike.items()):
            if (value := getters[title](row)) is not None:
                values.add(value)
                if len(values) > 1:
                    several.add(title)
                    del alike[title]
    return _Facts(set(empty), several, list(fills), deepest)


def _fold(sheet: Worksheet, columns: Sequence[Column], facts: _Facts) -> None:
    """Hide columns without values, and fold those that few readers need."""
    # openpyxl would write it before it counts the levels
    if most := max(column.folded for column in columns):
        sheet.column_dimensions.max_outline = most
    before, level_before = None, 0
    # hidden, not left out: columns have the same places in every report
    for number, column in enumerate(columns, 1):
        dimension = sheet.column_dimensions[get_column_letter(number)]
        if column.title in facts.empty:
            dimension.hidden = True
        level = 0 if column.title in facts.several else column.folded
        if level:
            dimension.outlineLevel, dimension.hidden = level, True
        if before is not None and level > level_before:
            before.collapsed = True
        before, level_before = dimension, level


def _color(sheet: Worksheet, table: Table, last: int) -> None:
    """Bars over everything, then the row's colour, and shades where the row has none."""
    first, letters = table.header + 1, table.letters

    def add(rule: Rule, left: str, right: str) -> None:
        sheet.conditional_formatting.add(f"{left}{first}:{right}{last}", rule)

    heat = [letters[column.title] for column in table.columns if column.scale is Scale.HEAT]
    if heat:
        for rule in heat_rules(f"{heat[0]}{first}"):
            add(rule, heat[0], heat[-1])
    matrix = [letters[column.title] for column in table.columns if column.scale is Scale.MATRIX]
    if matrix:
        add(scale_rule(Scale.MATRIX), matrix[0], matrix[-1])
    for scale in (Scale.BAR, Scale.SHADES):
        for column in table.columns:
            if column.scale is scale:
                add(scale_rule(scale), letters[column.title], letters[column.title])
        if scale is Scale.BAR:
            for rule in row_rules(
                table.coloring, {title: f"${letter}{first}" for title, letter in letters.items()}
            ):
                add(rule, "A", get_column_letter(len(letters)))


def _link(sheet: Any, table: Table, start: int, stop: int) -> None:
    """Add the rows' links; openpyxl writes them at the end of the sheet."""
    for column, letter in zip(table.columns, table.letters.values(), strict=True):
        if column.link:
            links = enumerate(map(column.link, _between(table, start, stop)), table.header + 1)
            sheet._hyperlinks += islice(
                (hyperlink(f"{letter}{line}", link) for line, link in links if link), _MOST_LINKS
            )
