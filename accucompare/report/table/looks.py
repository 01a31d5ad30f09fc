"""How a report looks: colours, and the looks of cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from accucompare.compare.rows import UNMATCHED, Reason
from accucompare.report.table.columns import TEXT, Column

GREEN, RED, AMBER, GREY, DARK = "FF2E7D32", "FFC62828", "FFFFEB9C", "FFE2E2E2", "FF3A3A3A"
GREY_AMBER, BROWN = "FFE9E1C8", "FF7F6000"
PALE_GREEN, PALE_RED = "FFE2F0D9", "FFFFC7CE"
INK, MUTED, LINE, BLUE = "FF1F2933", "FF6B7280", "FFD5D9DF", "FF1B5FAA"
WHITE, DARK_RED, SLATE = "FFFFFFFF", "FF9C0006", "FF4B5563"

#: Far below a limit, at the limit, far over it.
HEAT_SCALE = ("FFFFFFFF", AMBER, "FFE05252")

#: Colours of charts, without alpha: curves, and what is around them.
CURVE = BLUE[2:]
OTHER_CURVE = "E07B00"
OVER = RED[2:]
LIMIT_CURVE = "C77700"
BASELINE_CURVE = "A5D6A7"
SCALE_CURVE = "2F6F73"
#: For curves side by side.
CURVES = (CURVE, "E07B00", "2E7D32", "8E44AD", "C62828", "00838F", "6D4C41", "9AA5B1")
GRID, AXIS, LETTERS = "E5E7EB", "9CA3AF", SLATE[2:]

#: Header fills by group of columns.
GROUPS = {
    "record": "FF33475B",
    "verdict": "FF1F2933",
    "difference": "FF1B5FAA",
    "baseline": "FF2F6F73",
    "not finite": "FF5B4B8A",
    "golden": "FF8A6D1B",
    "candidate": "FF2F6F73",
    "judgement": "FF33475B",
}

GREYED = (*UNMATCHED, Reason.NOT_CALLED, Reason.NOT_COMPARABLE, Reason.INCOMPLETE)


class Look(NamedTuple):
    """A cell's style: everything that differs from plain text on white."""

    size: float = 10
    bold: bool = False
    color: str = INK
    fill: str = ""
    align: str = "left"
    wrap: bool = False
    format: str = "General"
    underline: bool = False
    line: str = ""
    indent: int = 0
    vertical: str = "center"


PLAIN_LOOK = Look()
WRAPPED = Look(wrap=True, vertical="top")
BOLD = Look(bold=True)
MUTED_TEXT = Look(color=MUTED)
CAPTION = Look(color=MUTED, wrap=True, vertical="top")
SECTION = Look(size=13, bold=True, color=BLUE, vertical="bottom")
HEADER = Look(bold=True, color=WHITE, fill=GROUPS["record"])
HEADER_RIGHT = HEADER._replace(align="right")
CELL = Look(line=LINE)
CELL_WRAPPED = Look(line=LINE, wrap=True, vertical="top")
CELL_TOP = Look(line=LINE, vertical="top")
LINK = Look(line=LINE, color=BLUE, underline=True)
TOTAL = Look(bold=True, fill="FFF3F4F6", line=MUTED)

#: A reason's name in the table of counts looks as its rows do in *Layers*.
_REASON = Look(bold=True, line=LINE, fill=PALE_RED, color=DARK_RED)
REASON_LOOK = {
    **dict.fromkeys(Reason, _REASON),
    Reason.IDENTICAL: _REASON._replace(fill=PALE_GREEN, color=GREEN),
    Reason.OK: _REASON._replace(fill=PALE_GREEN, color=GREEN),
    **dict.fromkeys(GREYED, _REASON._replace(fill=GREY, color=INK)),
    Reason.OVER_PRECISE: _REASON._replace(fill=AMBER, color=BROWN),
    Reason.NOT_DETERMINISTIC: _REASON._replace(fill=GREY_AMBER, color=BROWN),
    Reason.NON_FINITE: _REASON._replace(fill=DARK, color=WHITE),
}


def verdict_look(passed: bool) -> Look:
    return Look(size=30, bold=True, color=WHITE, fill=GREEN if passed else RED, align="center")


def row_looks(
    columns: Sequence[Column], fill: str | tuple[str, ...] = "", line: str = LINE
) -> list[Look]:
    """The looks of a row's cells; ``fill`` is the colour of all, or of each."""
    fills = (fill,) * len(columns) if isinstance(fill, str) else fill
    return [
        _look(column)._replace(fill=color, line=line)
        for column, color in zip(columns, fills, strict=True)
    ]


def header_look(column: Column) -> Look:
    look = Look() if column.format == TEXT else Look(align="right")
    return look._replace(
        bold=True,
        color=WHITE,
        fill=GROUPS[column.group],
        wrap=True,
        indent=int(column.format == TEXT),
    )


def _look(column: Column) -> Look:
    """Numbers, and text for one (NaN), are aligned right; other text is indented."""
    look = (
        Look(indent=1, format=TEXT)
        if column.format == TEXT
        else Look(align="right", format=column.format)
    )
    if column.link:
        look = look._replace(color=BLUE, underline=True)
    return look._replace(wrap=True, vertical="top") if column.wrap else look
