"""Tables in a terminal: as wide as it is; a name that is too long is broken behind a dot, and a number never."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from accucompare.text import cut

_GAP = 2  # spaces between columns
_PART = re.compile(r"[^./ ]*[./ ]?")


class Heading(NamedTuple):
    """A column.

    Attributes:
        title: what stands above it.
        name: of names, the least characters that it needs; 0 for what is never broken: numbers and single words.
        right: whether it is set to the right, as numbers are.
        spare: 0 if it is always shown; else a terminal too narrow for all leaves out the largest first.
    """

    title: str
    name: int = 0
    right: bool = False
    spare: int = 0


class Line(NamedTuple):
    """A line of a table: its cells, and what is said below them over the width that is left from the second column on."""

    cells: Sequence[Text]
    below: Sequence[Text] = ()


def number(title: str, spare: int = 0) -> Heading:
    return Heading(title, right=True, spare=spare)


def print_table(console: Console, headings: Sequence[Heading], lines: Sequence[Line], title: str = "") -> None:
    """Print a table, under a title of its own.

    Where a terminal is too narrow, columns that can be spared are left out, and named below. Elsewhere, as in a pipe or a file, all are
    there, and lines are as long as it takes.
    """
    widest = [max([cell_len(each.title), *(cell_len(line.cells[at].plain) for line in lines)]) for at, each in enumerate(headings)]
    shown = list(range(len(headings)))

    def needed() -> int:
        least = (min(widest[at], headings[at].name) if headings[at].name else widest[at] for at in shown)
        return sum(least) + _GAP * (len(shown) - 1)

    left_out = []
    while console.is_terminal and needed() > console.width and any(headings[at].spare for at in shown):
        spared = max(shown, key=lambda at: headings[at].spare)
        shown.remove(spared)
        left_out.append(headings[spared].title)
    widths = _shared([widest[at] for at in shown], [headings[at].name for at in shown], console.width - _GAP * (len(shown) - 1))
    if title:
        console.print(Text(title, "bold"))
    right = [headings[at].right for at in shown]
    _print(console, [[Text(headings[at].title, "bold")] for at in shown], widths, right)
    indent = widths[0] + _GAP
    for line in lines:
        _print(console, [_broken(line.cells[at], width) for at, width in zip(shown, widths, strict=True)], widths, right)
        for told in line.below:
            for part in told.wrap(console, max(console.width - indent, 1)):
                part.rstrip()
                console.print(Text(" " * indent).append_text(part), soft_wrap=True)
    if left_out:
        console.print(Text(f"not shown in {console.width} columns: {', '.join(reversed(left_out))}", "bright_black"), soft_wrap=True)


def _shared(widest: Sequence[int], names: Sequence[int], width: int) -> list[int]:
    """The widths of columns: what each needs, and for names that need more than there is equal shares of what the others leave."""
    widths = [0 if name else most for most, name in zip(widest, names, strict=True)]
    room = width - sum(widths)
    waiting = sorted((at for at, name in enumerate(names) if name), key=lambda at: widest[at])
    for count, at in zip(range(len(waiting), 0, -1), waiting, strict=True):
        least = min(widest[at], names[at])
        widths[at] = min(widest[at], max(room // count, least))
        room -= widths[at]
    return widths


def _print(console: Console, cells: Sequence[Sequence[Text]], widths: Sequence[int], right: Sequence[bool]) -> None:
    """A line of the table, as many lines high as its highest cell."""
    for row in range(max(map(len, cells))):
        line = Text()
        for parts, width, to_the_right in zip(cells, widths, right, strict=True):
            part = parts[row] if row < len(parts) else Text()
            space = " " * (width - cell_len(part.plain))
            line.append_text(Text.assemble(space, part) if to_the_right else Text.assemble(part, space)).append(" " * _GAP)
        line.rstrip()
        console.print(line, soft_wrap=True)


def _broken(cell: Text, width: int) -> list[Text]:
    """A cell in lines of this width: broken behind dots, slashes and spaces; a part that is longer yet is cut in the middle."""
    return [Text(line, cell.style) for line in _lines(cell.plain, width)]


def _lines(text: str, width: int) -> Iterator[str]:
    line = ""
    for part in _PART.findall(text):
        if cell_len((line + part).rstrip()) <= width:
            line += part
            continue
        if line:
            yield line.rstrip()
        line = part if cell_len(part.rstrip()) <= width else cut(part, width, cell_len)
    yield line.rstrip()
