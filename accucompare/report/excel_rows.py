"""Rows of a long sheet, appended with openpyxl's write-only mode: one row in memory at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from openpyxl.cell import Cell
from openpyxl.worksheet.worksheet import Worksheet

from accucompare.compare.comparison import Row
from accucompare.report.columns import Column, Value

TEXT_LIMIT = 32_767  # UTF-16 units that a cell holds
MAX_OUTLINE = 7
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_LOOKS_ESCAPED = re.compile("_(?=x[0-9A-Fa-f]{4}_)")  # Excel reads _x0041_ in a file as A


@lru_cache(maxsize=4096)
def text(value: str) -> str:
    """Text that a cell can hold: characters that XML forbids or that would not be seen are escaped, too long a text is cut."""
    value = _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), value)
    value = _LOOKS_ESCAPED.sub("_x005F_", value)
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


def append_rows(
    sheet: Worksheet, columns: Sequence[Column], cells: Sequence[Cell], numbered: Iterable[tuple[int, Row]], outline: bool
) -> None:
    """Append rows below the header.

    Args:
        sheet: a write-only sheet that holds its header.
        columns: what to write of each row.
        cells: a styled cell for each column, filled again for every row: making one costs as much as writing it.
        numbered: rows, each with its number.
        outline: whether to group rows by depth.
    """
    for line, (number, row) in enumerate(numbered, 2):
        if outline:
            sheet.row_dimensions[line].outlineLevel = depth(row)
        sheet.append([filled(cell, column.get(number, row)) for cell, column in zip(cells, columns, strict=True)])
        if outline:
            del sheet.row_dimensions[line]  # it is written; a million of them would fill the memory


def filled(cell: Cell, value: Value) -> Cell | None:
    """The cell with the value, which is never taken for a formula; ``None`` for nothing."""
    if value is None or value == "":
        return None
    cell.value = number_or_text(value)
    if isinstance(cell.value, str):
        cell.data_type = "s"
    return cell
