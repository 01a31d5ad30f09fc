"""Cell styles and conditional formats for openpyxl; colours are chosen in ``table.looks``."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import lru_cache
from typing import Any, cast
from weakref import WeakKeyDictionary

from openpyxl import Workbook
from openpyxl.cell import Cell, WriteOnlyCell
from openpyxl.formatting.rule import ColorScale, DataBar, FormatObject, Rule
from openpyxl.styles import Alignment, Border, Color, Font, PatternFill, Side
from openpyxl.styles.differential import DifferentialStyle
from openpyxl.worksheet.hyperlink import Hyperlink
from openpyxl.worksheet.worksheet import Worksheet

from accucompare.report.excel.xml_rows import number_or_text
from accucompare.report.table import Scale, Value, looks


def styled(
    sheet: Worksheet, value: Value, look: looks.Look = looks.PLAIN_LOOK, link: str = ""
) -> Cell:
    """A cell whose text is never a formula; ``link`` is a place in the workbook."""
    cell = WriteOnlyCell(sheet, number_or_text(value))
    if isinstance(cell.value, str):
        cell.data_type = "s"
    known = _styles.setdefault(cast(Workbook, sheet.parent), {})
    if look not in known:  # openpyxl hashes and compares every part for each cell
        font, fill, alignment, border = _parts(look)
        cell.font, cell.fill, cell.alignment, cell.border, cell.number_format = (
            font,
            fill,
            alignment,
            border,
            look.format,
        )
        known[look] = copy(cell._style)  # type: ignore[attr-defined]
    cell._style = copy(known[look])  # type: ignore[attr-defined]
    if link:
        cell.hyperlink = hyperlink("A1", link)
    return cell


#: By workbook: its style numbers for each look.
_styles: WeakKeyDictionary[Workbook, dict[looks.Look, Any]] = WeakKeyDictionary()


@lru_cache(maxsize=256)
def _parts(look: looks.Look) -> tuple[Font, PatternFill, Alignment, Border]:
    return (
        Font(
            name="Calibri",
            size=look.size,
            bold=look.bold,
            color=look.color,
            underline="single" if look.underline else None,
        ),
        PatternFill("solid", fgColor=look.fill) if look.fill else PatternFill(),
        Alignment(
            horizontal=look.align, vertical=look.vertical, wrap_text=look.wrap, indent=look.indent
        ),
        Border(bottom=Side("thin", color=look.line)) if look.line else Border(),
    )


def hyperlink(cell: str, location: str) -> Hyperlink:
    return Hyperlink(ref=cell, location=location, tooltip="Show the row in Layers")


def row_rules(coloring: Sequence[tuple[str, looks.Look]], cells: dict[str, str]) -> list[Rule]:
    """The rules that colour a table's rows; ``cells``: those of its first row, by column title."""
    rules = []
    for formula, look in coloring:
        style = DifferentialStyle(
            font=Font(color=look.color, bold=look.bold or None),
            fill=PatternFill("solid", fgColor=look.fill, bgColor=look.fill),
        )
        rules.append(
            Rule(type="expression", formula=[formula.format_map(cells)], stopIfTrue=True, dxf=style)
        )
    return rules


def heat_rules(first: str) -> list[Rule]:
    """The rules that colour a heat map: white far below the limit, red far over it."""
    style = DifferentialStyle(
        font=Font(color=looks.WHITE, bold=True),
        fill=PatternFill("solid", fgColor=looks.DARK, bgColor=looks.DARK),
    )
    endless = Rule(type="expression", formula=[f'{first}="inf"'], stopIfTrue=True, dxf=style)
    over = Rule(
        type="expression",
        formula=[f"AND(ISNUMBER({first}),{first}>0)"],
        dxf=DifferentialStyle(font=Font(color=looks.DARK_RED, bold=True)),
    )
    steps = [FormatObject(type="num", val=power) for power in (-3, 0, 3)]
    return [
        endless,
        over,
        Rule(
            type="colorScale",
            colorScale=ColorScale(cfvo=steps, color=[Color(each) for each in looks.HEAT_SCALE]),
        ),
    ]


def scale_rule(scale: Scale) -> Rule:
    """The conditional format of a column's scale."""
    if scale is Scale.BAR:
        whole = [FormatObject(type="num", val=end) for end in (0, 1)]
        return Rule(
            type="dataBar",
            dataBar=DataBar(cfvo=whole, color=Color("FF9CC3E6"), minLength=0, maxLength=100),
        )
    steps = [FormatObject(type="percentile", val=percent) for percent in (5, 50, 95)]
    blues = ColorScale(
        cfvo=steps, color=[Color(shade) for shade in ("FFFFFFFF", "FFE3EEF9", "FF9CC3E6")]
    )
    return Rule(type="colorScale", colorScale=blues)
