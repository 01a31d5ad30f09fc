"""The rows of sheets as XML, put into the workbook that XlsxWriter made: one row in memory at a
time.
"""

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

from accucompare.report.table import Table, Value, value_blocks
from accucompare.text import printable

_AT_ONCE = 256  # rows
TEXT_LIMIT = 32_767  # UTF-16 units that a cell holds
_ROWS = re.compile(rb"<sheetData(/>|>.*</sheetData>)", re.DOTALL)  # of XlsxWriter: only heights
_SIZE = re.compile(rb'<dimension ref="[^"]*"/>')  # of the sheet as XlsxWriter knows it
_AFTER_LINKS = b"<pageMargins"
_MOST_LINKS = 65_530  # that Excel opens in a sheet
_LOOKS_ESCAPED = re.compile("_(?=x[0-9A-Fa-f]{4}_)")  # Excel reads _x0041_ in a file as A


@lru_cache(maxsize=4096)
def text(value: str) -> str:
    """Text that a cell can hold: invisible characters and those that XML forbids are escaped; a
    text that is too long is cut.
    """
    value = _LOOKS_ESCAPED.sub("_x005F_", printable(value))
    if len(value) * 2 <= TEXT_LIMIT or len(units := value.encode("utf-16-le")) <= TEXT_LIMIT * 2:
        return value
    note = f"… (cut; {len(value):,} characters)"
    return units[: 2 * (TEXT_LIMIT - len(note))].decode("utf-16-le", errors="ignore") + note


class SheetContent(NamedTuple):
    """What a sheet holds.

    Attributes:
        part: the sheet's file in the workbook.
        rows: the XML of its rows; they are made when they are written.
        links: each the cell it is in, and the cell it leads to.
    """

    part: str
    rows: Iterable[str]
    links: Sequence[tuple[str, str]]


def save_with_rows(workbook: BinaryIO, sheets: Sequence[SheetContent], path: Path) -> None:
    """Copy a workbook, and put the rows into its sheets.

    XlsxWriter writes everything but the rows. It would take several times as long for their
    millions of cells, and a text that begins with ``<r>`` would not stay text.

    Args:
        workbook: the file that XlsxWriter saved.
        sheets: their rows and links.
        path: where to.
    """
    contents = {sheet.part: sheet for sheet in sheets}
    with ZipFile(workbook) as source, ZipFile(path, "w", ZIP_DEFLATED) as target:
        for part in source.infolist():
            frame = source.read(part)
            if part.filename not in contents:
                target.writestr(part, frame)
                continue
            content = contents[part.filename]
            place = _ROWS.search(frame)
            assert place is not None
            above = _SIZE.sub(b"", frame[: place.start()])
            below = frame[place.end() :].replace(
                _AFTER_LINKS, _links(content.links) + _AFTER_LINKS, 1
            )
            # zipfile must know in advance whether it exceeds 2 GB; on the report's own disk, so
            # that what is said of a full one is true
            sheet = path.with_name(f"{path.name}.sheet")
            try:
                with sheet.open("wb") as file:
                    file.write(above + b"<sheetData>")
                    file.writelines(
                        row.encode("ascii", "xmlcharrefreplace") for row in content.rows
                    )
                    file.write(b"</sheetData>" + below)
                target.write(sheet, part.filename)
            finally:
                with suppress(OSError):
                    sheet.unlink(missing_ok=True)


def _links(links: Sequence[tuple[str, str]]) -> bytes:
    shown = "".join(
        f'<hyperlink ref="{cell}" location="{_escaped(target)}" tooltip="Show the row in Layers"/>'
        for cell, target in links[:_MOST_LINKS]
    )
    return f"<hyperlinks>{shown}</hyperlinks>".encode() if shown else b""


def line_of_cells(number: int, cells: Iterable[tuple[str, int, Value]], height: float = 0) -> str:
    """The XML of one row, of cells that are known by their column's letter, style and value."""
    shown = "".join(_cell(f"{letter}{number}", style, value) for letter, style, value in cells)
    return _row(number, shown, height, level=0)


def table_rows(
    table: Table, start: int, stop: int, styles: Mapping[str | tuple[str, ...], Sequence[int]]
) -> Iterator[str]:
    """The XML of the rows with these indices, below the header. Few rows are looked at together,
    column by column, which is faster.

    Args:
        styles: the numbers of the columns' formats in the workbook, by the fill of a row.
    """
    for begin in range(start, stop, _AT_ONCE):
        places = range(begin, min(begin + _AT_ONCE, stop))
        rows = [table.rows[place] for place in places]
        numbers = (
            [place + 1 for place in places]
            if table.numbers is None
            else [table.numbers[place] for place in places]
        )
        (values,) = value_blocks(table.columns, rows, len(rows), numbers)
        of_rows = zip(*(styles[table.fill(row)] for row in rows), strict=True)
        first = table.header + 1 + begin - start
        columns = [
            _column(letter, first, own_styles, own_values, table.dense)
            for letter, own_styles, own_values in zip(
                table.letters.values(), of_rows, values, strict=True
            )
        ]
        for line, (row, cells) in enumerate(
            zip(rows, zip(*columns, strict=True), strict=True), first
        ):
            height = table.height(row) if table.height else 0
            yield _row(line, "".join(cells), height, table.depth(row) if table.depth else 0)


def _row(number: int, cells: str, height: float, level: int) -> str:
    attributes = (f' ht="{height}" customHeight="1"' if height else "") + (
        f' outlineLevel="{level}"' if level else ""
    )
    return f'<row r="{number}"{attributes}>{cells}</row>'


def _column(
    letter: str, first: int, styles: Iterable[int], values: Iterable[Value], dense: bool
) -> list[str]:
    """The XML of a few cells of a column, from a line on. Nearly all are numbers, or empty."""
    return [
        f'<c r="{letter}{line}" s="{style}" t="n"><v>{value!r}</v></c>'
        if type(value) is int or (type(value) is float and isfinite(value))
        else ""
        if dense and value is None
        else _cell(f"{letter}{line}", style, value, dense)
        for line, (style, value) in enumerate(zip(styles, values, strict=True), first)
    ]


def _cell(place: str, style: int, value: Value, dense: bool = False) -> str:
    """The XML of a cell; an empty one is left out of a dense table. Text is marked as text, so it
    is never taken for a formula. Excel has no NaN and no infinity: they become text.
    """
    if value is None or value == "":
        return "" if dense else f'<c r="{place}" s="{style}" t="n" />'
    if isinstance(value, float) and not isfinite(value):
        value = "NaN" if math.isnan(value) else str(value)
    if isinstance(value, str):
        return f'<c r="{place}" s="{style}" t="inlineStr"><is>{_inline(value)}</is></c>'
    kind, shown = ("b", int(value)) if isinstance(value, bool) else ("n", value)
    return f'<c r="{place}" s="{style}" t="{kind}"><v>{shown!r}</v></c>'


@lru_cache(maxsize=4096)
def _inline(value: str) -> str:
    """The XML of a text; its outer spaces are preserved."""
    value = text(value)
    space = ' xml:space="preserve"' if value != value.strip() else ""
    return f"<t{space}>{_escaped(value)}</t>"


def _escaped(value: str) -> str:
    """As in XML's text. The libraries' own function imports 15 ms of tables."""
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
