"""Tables as wide as the terminal: long names are cut, numbers never. In a pipe, names are whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from accucompare.report.console import ReportConsole
from accucompare.report.table import COUNT, EXCESS, NUMBER, PERCENT, SCIENTIFIC, TEXT, Column, Value
from accucompare.text import cut, printable

#: The least width of a column of names.
NAME_WIDTH = 24

_GAP = 2  # spaces between columns
_FORMATS = {SCIENTIFIC: ".2e", EXCESS: ".3g", NUMBER: ".5g", PERCENT: ".1%"}
_LEAST_NAME = 6  # characters of a name where a terminal is too narrow for anything better


def shown(column: Column, value: Value) -> str:
    """A value in few characters, without control characters."""
    if value is None or isinstance(value, str):
        return printable(value or "")
    if column.format == COUNT:
        return str(value) if value < 10_000_000 else f"{value:.1e}"
    if column.format == PERCENT and 0 < value < 0.001:
        return f"{100 * value:.2g}%"
    return format(value, _FORMATS[column.format])


def print_table(
    console: ReportConsole,
    columns: Sequence[Column],
    rows: Sequence[Any],
    title: str = "",
    *,
    style: Callable[[Any, Column], str] = lambda row, column: "",
    above: Callable[[Any], Iterable[Text]] = lambda row: (),
    below: Callable[[Any], Iterable[Text]] = lambda row: (),
) -> None:
    """Print a table.

    In a narrow terminal, columns that can be spared are left out and named below the table, and
    long names are cut in the middle. In a pipe or a file everything is whole, a row in one line.

    Args:
        rows: of a row without any value only ``above`` and ``below`` are printed.
        style: of a cell.
        above, below: lines around a row; those below are wrapped, and begin at the second column.
    """
    lines = [
        [shown(column, number if column.get is None else column.get(row)) for column in columns]
        for number, row in enumerate(rows, 1)
    ]
    widest = [
        max([cell_len(column.title), *(cell_len(line[at]) for line in lines)])
        for at, column in enumerate(columns)
    ]
    left = list(range(len(columns)))

    def needed() -> int:
        least = (
            min(widest[at], columns[at].least) if columns[at].least else widest[at] for at in left
        )
        return sum(least) + _GAP * (len(left) - 1)

    left_out = []
    while (
        console.is_terminal and needed() > console.width and any(columns[at].spare for at in left)
    ):
        spared = max(left, key=lambda at: columns[at].spare)
        left.remove(spared)
        left_out.append(columns[spared].title)
    widths = [widest[at] for at in left]
    if console.is_terminal:
        widths = _shared(
            widths, [columns[at].least for at in left], console.width - _GAP * (len(left) - 1)
        )
    if title:
        console.heading(title)
    right = [columns[at].format != TEXT for at in left]
    _print(
        console,
        [
            Text(cut(columns[at].title, width, cell_len), "bold")
            for at, width in zip(left, widths, strict=True)
        ],
        widths,
        right,
    )
    indent = widths[0] + _GAP
    for row, line in zip(rows, lines, strict=True):
        for text in above(row):
            console.say(text)
        if any(line):
            cells = [
                Text(cut(line[at], width, cell_len), style(row, columns[at]))
                for at, width in zip(left, widths, strict=True)
            ]
            _print(console, cells, widths, right)
        for text in below(row):
            for part in text.wrap(console, max(console.width - indent, 1)):
                part.rstrip()
                console.say(Text(" " * indent).append_text(part))
    if left_out:
        console.say(
            f"not shown in {console.width} columns: {', '.join(reversed(left_out))}", "bright_black"
        )


def _shared(widest: Sequence[int], names: Sequence[int], width: int) -> list[int]:
    """The widths of columns: what each needs, except that names share what is left."""
    widths = [0 if name else most for most, name in zip(widest, names, strict=True)]
    room = width - sum(widths)
    waiting = sorted((at for at, name in enumerate(names) if name), key=lambda at: widest[at])
    # whether there is room for what each should have
    least = sum(min(widest[at], names[at]) for at in waiting) <= room
    for count, at in zip(range(len(waiting), 0, -1), waiting, strict=True):
        widths[at] = min(widest[at], max(room // count, names[at] if least else _LEAST_NAME))
        room -= widths[at]
    return widths


def _print(
    console: ReportConsole, cells: Sequence[Text], widths: Sequence[int], right: Sequence[bool]
) -> None:
    """A line of the table."""
    line = Text()
    for cell, width, to_the_right in zip(cells, widths, right, strict=True):
        space = " " * (width - cell_len(cell.plain))
        line.append_text(
            Text.assemble(space, cell) if to_the_right else Text.assemble(cell, space)
        ).append(" " * _GAP)
    line.rstrip()
    console.say(line)
