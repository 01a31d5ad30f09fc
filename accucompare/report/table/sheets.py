"""A report as data for every format: pages of lines, and tables with columns, rows and charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from accucompare.report.table.columns import COUNT, Column, Value
from accucompare.report.table.looks import (
    MUTED_TEXT,
    PLAIN_LOOK,
    SECTION,
    Look,
    header_look,
    row_looks,
)

LINES_PER_SHEET = 1_048_576  # Excel's limit
MAX_POINTS = 1_000  # of a chart: about one for each pixel of its width

_T = TypeVar("_T")


class SheetItem(NamedTuple):
    """A cell of a line."""

    value: Value
    look: Look = PLAIN_LOOK
    link: str = ""


class Line(NamedTuple):
    """A line of text."""

    items: Sequence[SheetItem]  # its cells, from the first column in use on
    spread: int | None = None  # which item (from 0) reaches over several columns; ``None`` for none
    height: float = 0  # in points; 0 for the usual one
    free: int = 0  # how many columns on the right it leaves to the items after it
    margin: SheetItem | None = None  # what stands before the first column in use


def heading_lines(title: str, *notes: str) -> list[Line]:
    """What stands above a table: its title, and notes."""
    told = [Line([SheetItem(note, MUTED_TEXT)]) for note in notes]
    return [Line([SheetItem(title, SECTION)], height=26), *told]


class Page(NamedTuple):
    """A sheet of lines, whose first column is a margin."""

    title: str
    widths: Sequence[float]  # of the columns, in characters
    lines: Sequence[Line]
    tab: str  # the colour of the sheet's tab


class ChartSeries(NamedTuple):
    """A line of a chart."""

    column: str  # the title of the column with its values
    color: str
    width: float = 1.5  # in points; 0 for marks without a line
    dashed: bool = False
    marked: int = 0  # up to so many points are also marked


@dataclass(frozen=True)
class Chart:
    """A chart of columns of a table."""

    at: str  # the cell at its upper left corner
    series: Sequence[ChartSeries]  # its lines; the first ones are below
    under: str  # the title of the column whose values label the x axis
    titles: tuple[str, str, str]  # of the chart, the x axis, the y axis; ``""`` for none
    size: tuple[float, float]  # width and height in cm
    labels: int  # how many fit under the x axis
    bounds: tuple[float, float] | None = None  # of the y axis; ``None`` for the values' range
    spanned: bool = False  # whether lines go on where a value is missing
    data: Table | None = None  # the table with the columns; ``None`` for the table beside the chart
    logarithmic: bool = True
    # the x axis' ends, where points lie in proportion to their values on it; ``None`` for one step
    # from each row to the next
    to_scale: tuple[float, float] | None = None


@dataclass(frozen=True)
class Table:
    """A table, on as many sheets as its rows need."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    nothing: str = ""  # the text shown if there are no rows
    numbers: Sequence[int] | None = None  # the rows' numbers; ``None`` for 1, 2, …
    heading: Sequence[Line] = ()  # lines above the header
    space: int = 0  # how many empty lines between heading and header, as for a chart
    # how many columns stay in view, with a header that has a filter; ``None`` for neither
    frozen: int | None = None
    dense: bool = False  # for large tables: no empty cells, and grid lines instead of borders
    # gives the colour of a row, or of each of its cells; ``""`` for none
    fill: Callable[[Any], str | tuple[str, ...]] = lambda row: ""
    # Excel formulas that colour rows; the first that holds wins. ``{reason}`` stands for the row's
    # cell in the column *reason*.
    coloring: Sequence[tuple[str, Look]] = ()
    # a row's level in the outline; ``None`` for a table without one
    depth: Callable[[Any], int] | None = None
    height: Callable[[Any], float] | None = None  # a row's height in points; 0 for the usual one
    charts: Sequence[Chart] = ()  # drawn on the first sheet
    pages_wide: int = 1  # how many printed pages side by side
    large: bool = False  # whether on large paper, if on one
    tab: str = ""
    hidden: bool = False

    @property
    def header(self) -> int:
        """The line of the columns' titles."""
        return len(self.heading) + self.space + 1

    @property
    def _capacity(self) -> int:
        """How many rows a sheet holds; fewer if a chart stands above them."""
        return MAX_POINTS if self.space else LINES_PER_SHEET - self.header

    @cached_property
    def letters(self) -> dict[str, str]:
        return {
            column.title: column_letter(number) for number, column in enumerate(self.columns, 1)
        }

    def pages(self) -> Iterator[tuple[str, int, int]]:
        """For each sheet: its title, and the indices of its first row and after its last one."""
        for page, start in enumerate(range(0, max(len(self.rows), 1), self._capacity)):
            yield (
                f"{self.title} {page + 1}" if page else self.title,
                start,
                min(start + self._capacity, len(self.rows)),
            )

    def place(self, index: int, title: str) -> str:
        """A row's cell in the column of this title, in links' notation."""
        page, offset = divmod(index, self._capacity)
        sheet = f"{self.title} {page + 1}" if page else self.title
        return f"'{sheet}'!{self.letters[title]}{self.header + 1 + offset}"


def column_letter(number: int) -> str:
    """Excel's name of a column, counted from 1: A, …, Z, AA, …."""
    letters = ""
    while number:
        number, digit = divmod(number - 1, 26)
        letters = chr(ord("A") + digit) + letters
    return letters


def table_lines(
    columns: Sequence[Column],
    rows: Sequence[Any],
    *,
    spread: int | None = None,
    free: int = 0,
    fill: Callable[[Any], str | tuple[str, ...]] = lambda row: "",
    height: Callable[[Any], float] = lambda row: 0,
    below: Callable[[Any], Iterable[Line]] = lambda row: (),
    numbered: bool = False,
) -> Iterator[Line]:
    """A small table within a page: header, rows, and the lines of ``below`` under each row."""
    count = Column("#", None, COUNT)
    margin = SheetItem(count.title, header_look(count)) if numbered else None
    yield Line(
        [SheetItem(column.title, header_look(column)) for column in columns],
        spread,
        free=free,
        margin=margin,
    )
    for number, row in enumerate(rows, 1):
        items = [
            SheetItem(
                number if column.get is None else column.get(row),
                look,
                column.link(row) if column.link else "",
            )
            for column, look in zip(columns, row_looks(columns, fill(row)), strict=True)
        ]
        yield Line(
            items,
            spread,
            height(row),
            free,
            SheetItem(number, row_looks([count], fill(row))[0]) if numbered else None,
        )
        yield from below(row)


def thinned(items: Sequence[_T], choose: Callable[[Sequence[_T]], _T]) -> list[_T]:
    """At most ``MAX_POINTS`` items: one of each group of neighbours, taken by ``choose``."""
    group = max(1, math.ceil(len(items) / MAX_POINTS))
    return [choose(items[start : start + group]) for start in range(0, len(items), group)]
