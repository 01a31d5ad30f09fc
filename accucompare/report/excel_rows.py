"""Rows of a long sheet, written as XML into the workbook that openpyxl made: one row in memory at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import BinaryIO, NamedTuple
from zipfile import ZIP_DEFLATED, ZipFile

from openpyxl.utils import get_column_letter
from openpyxl.worksheet.worksheet import Worksheet

from accucompare.compare.rows import Row
from accucompare.report.columns import Column, Value
from accucompare.text import printable

TEXT_LIMIT = 32_767  # UTF-16 units that a cell holds
MAX_OUTLINE = 7
_END = b"</sheetData>"  # after a sheet's last row
_LOOKS_ESCAPED = re.compile("_(?=x[0-9A-Fa-f]{4}_)")  # Excel reads _x0041_ in a file as A


@lru_cache(maxsize=4096)
def text(value: str) -> str:
    """Text that a cell can hold: characters that XML forbids or that would not be seen are escaped, too long a text is cut."""
    value = _LOOKS_ESCAPED.sub("_x005F_", printable(value))
    if len(value) * 2 <= TEXT_LIMIT or len(units := value.encode("utf-16-le")) <= TEXT_LIMIT * 2:
        return value
    note = f"… (cut; {len(value):,} characters)"
    return units[: 2 * (TEXT_LIMIT - len(note))].decode("utf-16-le", errors="ignore") + note


def number_or_text(value: Value) -> Value:
    """A value that a cell can hold: Excel has no NaN and no infinity, so these become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return nonfinite(value)
    return text(value) if isinstance(value, str) else value


def nonfinite(value: float) -> str:
    return "NaN" if math.isnan(value) else str(value)


def depth(row: Row) -> int:
    """The outline level of a row: how deep in the model its module is."""
    return min(row.module.count("."), MAX_OUTLINE)


class LongSheet(NamedTuple):
    """A sheet that openpyxl writes down to its header, and what goes below.

    Attributes:
        sheet: the sheet.
        columns: what to write of each row.
        styles: the number of each column's cell style in the workbook.
        rows: all rows of the comparison.
        numbers: of those to write, the numbers (from 1).
        outline: whether to group rows by depth.
    """

    sheet: Worksheet
    columns: Sequence[Column]
    styles: Sequence[int]
    rows: Sequence[Row]
    numbers: Sequence[int]
    outline: bool


def save_with_rows(workbook: BinaryIO, long_sheets: Sequence[LongSheet], path: Path) -> None:
    """Copy a workbook, and put the rows into its long sheets.

    openpyxl makes everything but these rows: for each of their millions of cells it fills a Cell, looks up its style and writes it
    tag by tag, which takes five times as long as the few tags written here.

    Args:
        workbook: the file that openpyxl saved.
        long_sheets: sheets in it, and their rows.
        path: where to.
    """
    by_part = {long.sheet.path.lstrip("/"): long for long in long_sheets}
    with ZipFile(workbook) as source, ZipFile(path, "w", ZIP_DEFLATED) as target:
        for part in source.infolist():
            content = source.read(part)
            if part.filename not in by_part:
                target.writestr(part, content)
                continue
            above, below = content.split(_END)  # text in a cell cannot hold it: its < is escaped
            with NamedTemporaryFile(prefix="accucompare.") as file:  # for zipfile must know beforehand if it exceeds 2 GB
                file.write(above)
                file.writelines(row.encode("ascii", "xmlcharrefreplace") for row in _rows(by_part[part.filename]))
                file.write(_END + below)
                file.flush()
                target.write(file.name, part.filename)


def _rows(long: LongSheet) -> Iterator[str]:
    """The XML of every row, below the header."""
    letters = [get_column_letter(place) for place, _ in enumerate(long.columns, 1)]
    columns = [(column.get, letter, style) for column, letter, style in zip(long.columns, letters, long.styles, strict=True)]
    for line, number in enumerate(long.numbers, 2):
        row = long.rows[number - 1]
        cells = "".join([_cell(f"{letter}{line}", style, get(number, row)) for get, letter, style in columns])
        level = depth(row) if long.outline else 0
        yield f'<row r="{line}"' + (f' outlineLevel="{level}"' if level else "") + f">{cells}</row>"


def _cell(place: str, style: int, value: Value) -> str:
    """The XML of a cell; none for nothing. Text is marked as such, and so never taken for a formula."""
    if value is None or value == "":
        return ""
    value = number_or_text(value)
    if isinstance(value, str):
        return f'<c r="{place}" s="{style}" t="inlineStr"><is>{_inline(value)}</is></c>'
    kind, shown = ("b", int(value)) if isinstance(value, bool) else ("n", value)
    return f'<c r="{place}" s="{style}" t="{kind}"><v>{shown!r}</v></c>'


@lru_cache(maxsize=4096)
def _inline(value: str) -> str:
    """The XML of a text, whose outer spaces XML would otherwise drop."""
    space = ' xml:space="preserve"' if value != value.strip() else ""
    return f"<t{space}>{_escaped(value)}</t>"


def _escaped(value: str) -> str:
    """As in XML's text. The libraries' own function imports 15 ms of tables."""
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
