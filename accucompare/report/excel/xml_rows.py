"""A table's rows, written as XML into openpyxl's workbook, one row in memory at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import BinaryIO, NamedTuple
from zipfile import ZIP_DEFLATED, ZipFile

from openpyxl.worksheet.worksheet import Worksheet

from accucompare.report.table import Table, Value, value_blocks
from accucompare.text import printable

_AT_ONCE = 256  # rows
TEXT_LIMIT = 32_767  # UTF-16 units that a cell holds
_END = b"</sheetData>"  # after a sheet's last row
_LOOKS_ESCAPED = re.compile("_(?=x[0-9A-Fa-f]{4}_)")  # Excel reads _x0041_ in a file as A


@lru_cache(maxsize=4096)
def text(value: str) -> str:
    """Text for a cell: invisible and forbidden characters are escaped, long text is cut."""
    value = _LOOKS_ESCAPED.sub("_x005F_", printable(value))
    if len(value) * 2 <= TEXT_LIMIT or len(units := value.encode("utf-16-le")) <= TEXT_LIMIT * 2:
        return value
    note = f"… (cut; {len(value):,} characters)"
    return units[: 2 * (TEXT_LIMIT - len(note))].decode("utf-16-le", errors="ignore") + note


def number_or_text(value: Value) -> Value:
    """A value that a cell can hold: Excel has no NaN and no infinity, so these become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    return text(value) if isinstance(value, str) else value


class SheetRows(NamedTuple):
    """The rows of a sheet that openpyxl wrote down to its header."""

    sheet: Worksheet
    table: Table
    # start, stop: the indices of the first row and after the last one
    start: int
    stop: int
    # the numbers of the columns' cell styles in the workbook, by the fill of a row
    styles: Mapping[str | tuple[str, ...], Sequence[int]]


class _Archive(ZipFile):
    """Closing a half-written archive fails; that must not hide why it is half-written."""

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with suppress(*(() if kind is None else (Exception,))):
            self.close()


def save_with_rows(workbook: BinaryIO, sheets: Sequence[SheetRows], path: Path) -> None:
    """Copy a workbook that openpyxl saved to ``path``, and put the rows into its sheets.

    For each of millions of cells openpyxl would fill a Cell, look up its style and write it tag by
    tag, which takes five times as long."""
    by_part = {rows.sheet.path.lstrip("/"): rows for rows in sheets}
    with ZipFile(workbook) as source, _Archive(path, "w", ZIP_DEFLATED) as target:
        for part in source.infolist():
            content = source.read(part)
            if part.filename not in by_part:
                target.writestr(part, content)
                continue
            above, below = content.split(_END)  # text in a cell cannot hold it: its < is escaped
            # zipfile must know in advance whether it exceeds 2 GB; beside the report, so that a
            # full disk is reported correctly
            sheet = path.with_name(f"{path.name}.sheet")
            try:
                with sheet.open("wb") as file:
                    file.write(above)
                    file.writelines(
                        row.encode("ascii", "xmlcharrefreplace")
                        for row in _rows(by_part[part.filename])
                    )
                    file.write(_END + below)
                target.write(sheet, part.filename)
            finally:
                with suppress(OSError):
                    sheet.unlink(missing_ok=True)


def _rows(sheet: SheetRows) -> Iterator[str]:
    """The XML of every row. Few rows are read together, column by column, for speed."""
    table = sheet.table
    for start in range(sheet.start, sheet.stop, _AT_ONCE):
        places = range(start, min(start + _AT_ONCE, sheet.stop))
        rows = list(table.rows[places.start : places.stop])
        numbers = (
            [place + 1 for place in places]
            if table.numbers is None
            else [table.numbers[place] for place in places]
        )
        (values,) = value_blocks(table.columns, rows, len(rows), numbers)
        fills = [table.fill(row) for row in rows]
        styles = zip(*(sheet.styles[fill] for fill in fills), strict=True)
        first = table.header + 1 + start - sheet.start
        columns = [
            _column(letter, first, own_styles, own_values, table.dense)
            for letter, own_styles, own_values in zip(
                table.letters.values(), styles, values, strict=True
            )
        ]
        for line, (row, cells) in enumerate(
            zip(rows, zip(*columns, strict=True), strict=True), first
        ):
            height = table.height(row) if table.height else 0
            level = table.depth(row) if table.depth else 0
            attributes = (f' ht="{height}" customHeight="1"' if height else "") + (
                f' outlineLevel="{level}"' if level else ""
            )
            yield f'<row r="{line}"{attributes}>{"".join(cells)}</row>'


def _column(
    letter: str, first: int, styles: Iterable[int], values: Iterable[Value], dense: bool
) -> list[str]:
    """The XML of a few cells of a column. Nearly all are numbers, or empty."""
    return [
        f'<c r="{letter}{line}" s="{style}" t="n"><v>{value!r}</v></c>'
        if type(value) is int or (type(value) is float and isfinite(value))
        else ""
        if dense and value is None
        else _cell(f"{letter}{line}", style, value, dense)
        for line, (style, value) in enumerate(zip(styles, values, strict=True), first)
    ]


def _cell(place: str, style: int, value: Value, dense: bool) -> str:
    """The XML of a cell, none for an empty one if dense. Text is marked, so never a formula."""
    if value is None or value == "":
        return "" if dense else f'<c r="{place}" s="{style}" t="n" />'
    value = number_or_text(value)
    if isinstance(value, str):
        return f'<c r="{place}" s="{style}" t="inlineStr"><is>{_inline(value)}</is></c>'
    kind, shown = ("b", int(value)) if isinstance(value, bool) else ("n", value)
    return f'<c r="{place}" s="{style}" t="{kind}"><v>{shown!r}</v></c>'


@lru_cache(maxsize=4096)
def _inline(value: str) -> str:
    """The XML of a text; its outer spaces are preserved."""
    space = ' xml:space="preserve"' if value != value.strip() else ""
    return f"<t{space}>{_escaped(value)}</t>"


def _escaped(value: str) -> str:
    """Escaped for XML. The libraries' own function imports 15 ms of tables."""
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
