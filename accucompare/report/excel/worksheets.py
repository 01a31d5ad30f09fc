"""Pages and tables as sheets of a workbook."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from accucompare.errors import ReportError
from accucompare.files import is_stdout, written_whole
from accucompare.report.excel.charts import draw
from accucompare.report.excel.styles import Formats, heat_rules, rgb, row_rules, scale_rule
from accucompare.report.excel.xml_rows import (
    SheetContent,
    line_of_cells,
    save_with_rows,
    table_rows,
    text,
)
from accucompare.report.table import (
    LINE,
    MUTED_TEXT,
    Column,
    Line,
    Page,
    Scale,
    SheetItem,
    Table,
    column_letter,
    header_look,
    row_looks,
)

if TYPE_CHECKING:
    from xlsxwriter import Workbook
    from xlsxwriter.worksheet import Worksheet

_HEADER_HEIGHT = 32
_MARGIN = 5 / 7  # of a character: what Excel adds to a column's width


def write_workbook(path: Path, title: str, sheets: Iterable[Page | Table]) -> Path:
    """Write a workbook.

    Args:
        path: where to; directories that are not there are created.
        title: of the workbook, among its properties.
        sheets: what it consists of, in this order.

    Returns:
        ``path``.

    Raises:
        ReportError: if the path is a directory or a terminal, or the file cannot be written.
    """

    def write(temporary: Path) -> None:
        if is_stdout(path) and sys.stdout.isatty():
            raise ReportError(
                f"{path}: a terminal cannot show a workbook; name a file, such as report.xlsx, or"
                " add > report.xlsx"
            )
        _write(temporary, title, sheets)

    return written_whole(path, write)


def _write(path: Path, title: str, sheets: Iterable[Page | Table]) -> None:
    from xlsxwriter import Workbook  # slow to import

    without_rows = BytesIO()  # so small
    workbook = Workbook(without_rows, {"in_memory": True})
    try:
        workbook.set_properties({"title": text(title), "author": "accucompare"})
        workbook.calc_on_load = False  # nothing to calculate, so closing it asks nothing
        formats = Formats(workbook)
        contents: list[SheetContent] = []
        for sheet in sheets:
            contents += (
                [_add_page(workbook, formats, sheet)]
                if isinstance(sheet, Page)
                else _add_table(workbook, formats, sheet)
            )
        workbook.close()
    finally:
        workbook.fileclosed = True  # or it would write when it is deleted, whatever was raised
    save_with_rows(without_rows, contents, path)


def _add_page(workbook: Workbook, formats: Formats, page: Page) -> SheetContent:
    sheet = _add_sheet(workbook, page.title, page.tab)
    for number, width in enumerate(page.widths):
        sheet.set_column(number, number, width - _MARGIN)
    links: list[tuple[str, str]] = []
    rows = list(_lines(sheet, formats, page.lines, 2, len(page.widths), links))
    return SheetContent(_part(sheet), rows, links)


def _add_table(workbook: Workbook, formats: Formats, table: Table) -> list[SheetContent]:
    """Add the sheets of a table, and return what they hold."""
    contents = [_add_rows(workbook, formats, table, *page) for page in table.pages()]
    for chart in table.charts:
        draw(workbook, table.title, chart, chart.data or table)
    return contents


def _add_rows(
    workbook: Workbook, formats: Formats, table: Table, title: str, start: int, stop: int
) -> SheetContent:
    facts = _facts(table, start, stop)
    sheet = _add_sheet(workbook, title, table.tab, table.pages_wide, table.large)
    if table.hidden:
        sheet.hide()
    _fold(sheet, table.columns, facts)
    header, letters = table.header, table.letters.values()
    last = header + max(stop - start, 1)
    if table.frozen is not None:
        sheet.freeze_panes(header, table.frozen)
        sheet.autofilter(header - 1, 0, last - 1, len(table.columns) - 1)
        sheet.repeat_rows(header - 1)
    if table.dense:
        sheet.set_zoom(90)
        sheet.hide_gridlines(1)  # printed ones alone
        sheet.outline_settings(symbols_below=False, symbols_right=False)
    sheet.outline_row_level = facts.deepest
    _color(sheet, formats, table, last)
    links: list[tuple[str, str]] = []
    above = list(_lines(sheet, formats, table.heading, 1, len(table.columns), links))
    titles = [
        (letter, formats.number(header_look(column)), column.title)
        for letter, column in zip(letters, table.columns, strict=True)
    ]
    sheet.set_row(header - 1, _HEADER_HEIGHT)
    above.append(line_of_cells(header, titles, _HEADER_HEIGHT))
    if start == stop and table.nothing:
        nothing = [("A", formats.number(MUTED_TEXT), table.nothing)]
        above.append(line_of_cells(header + 1, nothing))
    links += _links(table, start, stop)
    styles = {
        fill: [
            formats.number(look)
            for look in row_looks(table.columns, fill, "" if table.dense else LINE)
        ]
        for fill in facts.fills
    }
    return SheetContent(_part(sheet), chain(above, table_rows(table, start, stop, styles)), links)


def _add_sheet(
    workbook: Workbook, title: str, tab: str = "", pages_wide: int = 1, large: bool = False
) -> Worksheet:
    """A new sheet, printed in landscape format on so many pages side by side; large is A3."""
    sheet = workbook.add_worksheet(title)
    sheet.hide_gridlines(2)
    if tab:
        sheet.set_tab_color(rgb(tab))
    sheet.set_landscape()
    sheet.set_paper(8 if large or pages_wide > 1 else 9)  # A3 or A4
    sheet.fit_to_pages(pages_wide, 0)
    sheet.set_margins(left=0.4, right=0.4, top=0.5, bottom=0.6)
    sheet.set_footer("&R&A, page &P of &N", {"margin": 0.3})
    return sheet


def _part(sheet: Worksheet) -> str:
    """The sheet's file in the workbook."""
    return f"xl/worksheets/sheet{sheet.index + 1}.xml"


def _lines(
    sheet: Worksheet,
    formats: Formats,
    lines: Sequence[Line],
    first: int,
    last: int,
    links: list[tuple[str, str]],
) -> Iterator[str]:
    """The XML of the sheet's first lines; ``first`` and ``last`` are the columns in use. Their
    links are added to ``links``.
    """
    for number, line in enumerate(lines, 1):
        if line.height:  # charts are placed by it
            sheet.set_row(number - 1, line.height)
        items = list(line.items)
        if line.spread is not None:  # each merged cell has its own border and fill
            sheet.merge_range(
                number - 1, first + line.spread - 1, number - 1, last - line.free - 1, ""
            )
            after = line.spread + 1
            items[after:after] = [SheetItem(None, items[line.spread].look)] * (
                last - first + 1 - len(items)
            )
        shown = {column_letter(place): item for place, item in enumerate(items, first)}
        if line.margin and first > 1:
            shown = {"A": line.margin, **shown}
        links += [(f"{letter}{number}", item.link) for letter, item in shown.items() if item.link]
        yield line_of_cells(
            number,
            ((letter, formats.number(item.look), item.value) for letter, item in shown.items()),
            line.height,
        )


class _Facts(NamedTuple):
    """What must be known of rows before they are written.

    Attributes:
        empty: the titles of sparse columns without any value.
        several: the titles of columns that are to be seen if rows differ in them, and do.
        fills: the rows' colours.
        deepest: the deepest level of their outline.
    """

    empty: set[str]
    several: set[str]
    fills: list[str | tuple[str, ...]]
    deepest: int


def _facts(table: Table, start: int, stop: int) -> _Facts:
    """Found in one pass, for a row may be made each time it is asked for."""
    empty = {column.title: column.get for column in table.columns if column.sparse and column.get}
    alike: dict[str, set[Any]] = {
        column.title: set() for column in table.columns if column.several and column.get
    }
    getters = {column.title: column.get for column in table.columns if column.get}
    several: set[str] = set()
    fills: dict[str | tuple[str, ...], None] = {}
    deepest = 0
    for index in range(start, stop):
        row = table.rows[index]
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
    """Set the widths of the columns; hide those without values, and fold those that not everybody
    needs.
    """
    levels = [0 if column.title in facts.several else column.folded for column in columns]
    for place, (column, level) in enumerate(zip(columns, levels, strict=True)):
        after = levels[place + 1] if place + 1 < len(levels) else 0
        # hidden, not left out: every report has the same columns in the same places
        options = {
            "level": level,
            "hidden": bool(level) or column.title in facts.empty,
            "collapsed": after > level,
        }
        sheet.set_column(place, place, column.width - _MARGIN, None, options)


def _color(sheet: Worksheet, formats: Formats, table: Table, last: int) -> None:
    """Bars over everything, then the row's colour, and shades where the row has none."""
    first, letters = table.header + 1, table.letters

    def add(rule: dict[str, Any], left: str, right: str) -> None:
        sheet.conditional_format(f"{left}{first}:{right}{last}", rule)

    heat = [letters[column.title] for column in table.columns if column.scale is Scale.HEAT]
    if heat:
        for rule in heat_rules(formats, f"{heat[0]}{first}"):
            add(rule, heat[0], heat[-1])
    matrix = [letters[column.title] for column in table.columns if column.scale is Scale.MATRIX]
    if matrix:
        add(scale_rule(Scale.MATRIX), matrix[0], matrix[-1])
    for scale in (Scale.BAR, Scale.SHADES):
        for column in table.columns:
            if column.scale is scale:
                add(scale_rule(scale), letters[column.title], letters[column.title])
        if scale is Scale.BAR:
            cells = {title: f"${letter}{first}" for title, letter in letters.items()}
            for rule in row_rules(formats, table.coloring, cells):
                add(rule, "A", column_letter(len(letters)))


def _links(table: Table, start: int, stop: int) -> Iterator[tuple[str, str]]:
    """The links of the rows."""
    for column, letter in zip(table.columns, table.letters.values(), strict=True):
        if column.link:
            for line, index in enumerate(range(start, stop), table.header + 1):
                if link := column.link(table.rows[index]):
                    yield f"{letter}{line}", link
