"""The looks of cells, and the rules that colour them, in the words of XlsxWriter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from accucompare.report.table import DARK, DARK_RED, HEAT_SCALE, WHITE, Look, Scale

if TYPE_CHECKING:
    from xlsxwriter import Workbook
    from xlsxwriter.format import Format

_VERTICAL = {"center": "vcenter"}  # the others are called alike


class Formats(dict[Look, "Format"]):
    """The formats of a workbook, by the looks that they are made of."""

    def __init__(self, workbook: Workbook) -> None:
        self._workbook = workbook

    def __missing__(self, look: Look) -> Format:
        made = self[look] = self._workbook.add_format(
            {
                "font_name": "Calibri",
                "font_size": look.size,
                "bold": look.bold,
                "font_color": rgb(look.color),
                "underline": int(look.underline),
                "align": look.align,
                "valign": _VERTICAL.get(look.vertical, look.vertical),
                "text_wrap": look.wrap,
                "indent": look.indent,
                "num_format": look.format,
                **({"pattern": 1, "fg_color": rgb(look.fill)} if look.fill else {}),
                **({"bottom": 1, "bottom_color": rgb(look.line)} if look.line else {}),
            }
        )
        return made

    def number(self, look: Look) -> int:
        """What a cell of the file calls the format."""
        number: int = self[look]._get_xf_index()
        return number

    def of_rule(self, color: str, bold: bool, fill: str = "") -> Format:
        """What a rule changes in the look of a cell."""
        filled = {"bg_color": rgb(fill)} if fill else {}
        return self._workbook.add_format({"font_color": rgb(color), "bold": bold, **filled})


def rgb(color: str) -> str:
    """A colour without the alpha channel that Excel's files have before it."""
    return f"#{color[-6:]}"


def row_rules(
    formats: Formats, coloring: Sequence[tuple[str, Look]], cells: dict[str, str]
) -> list[dict[str, Any]]:
    """The rules that colour the rows of a table; ``cells`` are those of its first row, by the
    titles of their columns.
    """
    return [
        {
            "type": "formula",
            "criteria": formula.format_map(cells),
            "stop_if_true": True,
            "format": formats.of_rule(look.color, look.bold, look.fill),
        }
        for formula, look in coloring
    ]


def heat_rules(formats: Formats, first: str) -> list[dict[str, Any]]:
    """The rules that colour a heat map, whose first cell this is: white for what is far below its
    limit, red for what is far over it.
    """
    return [
        {
            "type": "formula",
            "criteria": f'{first}="inf"',
            "stop_if_true": True,
            "format": formats.of_rule(WHITE, True, DARK),
        },
        {
            "type": "formula",
            "criteria": f"AND(ISNUMBER({first}),{first}>0)",
            "format": formats.of_rule(DARK_RED, True),
        },
        _shades("num", (-3, 0, 3), HEAT_SCALE),
    ]


def scale_rule(scale: Scale) -> dict[str, Any]:
    """The rule that shows a column's sizes at a glance."""
    if scale is Scale.BAR:
        return {
            "type": "data_bar",
            "bar_color": "#9CC3E6",
            "min_type": "num",
            "min_value": 0,
            "max_type": "num",
            "max_value": 1,
            "min_length": 0,
            "max_length": 100,
        }
    return _shades("percentile", (5, 50, 95), ("FFFFFFFF", "FFE3EEF9", "FF9CC3E6"))


def _shades(kind: str, steps: Sequence[float], colors: Sequence[str]) -> dict[str, Any]:
    rule: dict[str, Any] = {"type": "3_color_scale"}
    for name, step, color in zip(("min", "mid", "max"), steps, colors, strict=True):
        rule |= {f"{name}_type": kind, f"{name}_value": step, f"{name}_color": rgb(color)}
    return rule
