"""The long sheets: *Layers*, one row per row of the comparison, and *Unmatched*, the rows that have only one side."""

from __future__ import annotations

from collections.abc import Sequence

from openpyxl import Workbook
from openpyxl.cell import Cell
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.properties import Outline
from openpyxl.worksheet.worksheet import Worksheet

from accucompare.compare.result import Result
from accucompare.compare.rows import Reason, Row
from accucompare.report.columns import COLUMNS, TEXT, Column, layer
from accucompare.report.excel_rows import LongSheet, depth
from accucompare.report.excel_styles import add_sheet, place, row_rules, scale_rules, styled
from accucompare.report.looks import GROUPS, MUTED_TEXT, Look

LINES_PER_SHEET = 1_048_576  # Excel's limit; the header is one of them
LAYERS = "Layers"
UNMATCHED = "Unmatched"
_NOTHING = {LAYERS: "Nothing: the bundles hold no record.", UNMATCHED: "Nothing: every record of either bundle has a partner."}
_WIDEST_NAME = 56  # characters; wider would leave no room beside the frozen columns
_LETTERS = {column.title: get_column_letter(number) for number, column in enumerate(COLUMNS, 1)}
_UNMATCHED_TITLES = (
    "#", "step", "rank", "reason", "layer", "nearest name", "type", "call", "role", "path",
    "golden shape", "candidate shape", "golden dtype", "candidate dtype", "detail",
)  # fmt: skip
_ONE_SIDED = (Reason.MISSING, Reason.EXTRA, Reason.NOT_CALLED)


def location(number: int) -> str:
    """Where the row of this number (from 1) is, as links name it."""
    page, offset = divmod(number - 1, LINES_PER_SHEET - 1)
    return place(_page_title(LAYERS, page), _LETTERS["layer"], offset + 2)


def add_layers(workbook: Workbook, rows: Sequence[Row]) -> list[LongSheet]:
    """Add *Layers*, and *Layers 2* and so on where one sheet does not hold all rows, down to their headers."""
    return _add_pages(workbook, LAYERS, COLUMNS, rows, range(1, len(rows) + 1), colored=True)


def add_unmatched(workbook: Workbook, comparison: Result) -> list[LongSheet]:
    """Add *Unmatched*, split likewise."""
    by_title = {column.title: column for column in COLUMNS}
    columns = [by_title[title] for title in _UNMATCHED_TITLES]
    numbers = [number for number, row in enumerate(comparison.rows, 1) if row.reason in _ONE_SIDED]
    return _add_pages(workbook, UNMATCHED, columns, comparison.rows, numbers, colored=False)


def _page_title(title: str, page: int) -> str:
    return f"{title} {page + 1}" if page else title


def _add_pages(
    workbook: Workbook, title: str, columns: Sequence[Column], rows: Sequence[Row], numbers: Sequence[int], colored: bool
) -> list[LongSheet]:
    """Sheets for the rows of these numbers (from 1)."""
    capacity = LINES_PER_SHEET - 1
    pages = []
    for page, start in enumerate(range(0, max(len(numbers), 1), capacity)):
        shown = numbers[start : start + capacity]
        sheet = _add_page(workbook, _page_title(title, page), columns, [rows[number - 1] for number in shown], colored)
        if colored:
            _color(sheet, max(len(shown), 1) + 1)
        sheet.append([_header(sheet, column) for column in columns])
        if not shown:
            sheet.append([styled(sheet, _NOTHING[title], MUTED_TEXT)])
        styles = [styled(sheet, None, _look(column)).style_id for column in columns]
        pages.append(LongSheet(sheet, columns, styles, rows, shown, outline=colored))
    return pages


def _add_page(workbook: Workbook, title: str, columns: Sequence[Column], rows: Sequence[Row], colored: bool) -> Worksheet:
    """A sheet with everything but its lines: widths, frozen header and names, filter, outline, page."""
    titles = [column.title for column in columns]
    widest = max((len(layer(row)) for row in rows), default=0)
    name_width = min(max(widest + 2, 16), _WIDEST_NAME)
    widths = [name_width if column.title == "layer" else column.width for column in columns]
    sheet = add_sheet(workbook, title, widths, large=colored)
    for number, column in enumerate(columns, 1):  # hidden, not left out: every report has the same columns in the same places
        if column.sparse and all(column.get(0, row) is None for row in rows):
            sheet.column_dimensions[get_column_letter(number)].hidden = True
    if colored:
        _fold(sheet, columns, rows)
    sheet.row_dimensions[1].height = 32
    sheet.freeze_panes = f"{get_column_letter(titles.index('layer') + 2)}2"
    sheet.auto_filter.ref = f"A1:{get_column_letter(len(columns))}{max(len(rows), 1) + 1}"
    sheet.sheet_view.zoomScale = 90
    sheet.sheet_view.showGridLines = True  # cells that hold nothing are not written, so lines of their own would have gaps
    sheet.sheet_format.outlineLevelRow = max((depth(row) for row in rows), default=0)
    sheet.sheet_properties.outlinePr = Outline(summaryBelow=False, summaryRight=False)
    sheet.print_title_rows = "1:1"
    return sheet


def _fold(sheet: Worksheet, columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """Fold the columns that are not for everybody: a click above the last one seen shows the first of each group, another its rest."""
    sheet.column_dimensions.max_outline = max(column.folded for column in columns)  # openpyxl counts them after it has said how many
    before, level_before = None, 0
    for number, column in enumerate(columns, 1):
        dimension = sheet.column_dimensions[get_column_letter(number)]
        several = column.several and len({column.get(0, row) for row in rows} - {None}) > 1
        level = 0 if several else column.folded
        if level:
            dimension.outlineLevel, dimension.hidden = level, True
        if before is not None and level > level_before:
            before.collapsed = True
        before, level_before = dimension, level


def _color(sheet: Worksheet, last_line: int) -> None:
    """Bars over everything, then the row's colour, and a scale where the row has none."""
    scales = scale_rules()
    used, error = _LETTERS["x limit"], _LETTERS["relative L2"]
    sheet.conditional_formatting.add(f"{used}2:{used}{last_line}", scales["x limit"])
    for rule in row_rules(_LETTERS):
        sheet.conditional_formatting.add(f"A2:{get_column_letter(len(COLUMNS))}{last_line}", rule)
    sheet.conditional_formatting.add(f"{error}2:{error}{last_line}", scales["relative L2"])


def _header(sheet: Worksheet, column: Column) -> Cell:
    look = _look(column)._replace(bold=True, color="FFFFFFFF", fill=GROUPS[column.group], wrap=True, format="General")
    return styled(sheet, column.title, look)


def _look(column: Column) -> Look:
    """Numbers to the right, and text that stands for one (NaN) too; text indented, so that it keeps clear of them."""
    return Look(indent=1, format=TEXT) if column.format == TEXT else Look(align="right", format=column.format)
