"""The looks of cells as openpyxl writes them, the rules that colour rows, and a sheet's page."""

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
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.hyperlink import Hyperlink
from openpyxl.worksheet.page import PageMargins
from openpyxl.worksheet.properties import PageSetupProperties
from openpyxl.worksheet.worksheet import Worksheet

from accucompare.compare.rows import Reason, Status
from accucompare.report.columns import Value
from accucompare.report.excel_rows import number_or_text
from accucompare.report.looks import AMBER, BROWN, DARK, GREY, GREY_AMBER, PALE_RED, PLAIN, UNMATCHED, Look


def styled(sheet: Worksheet, value: Value, look: Look = PLAIN, link: str = "", tip: str = "") -> Cell:
    """A cell; text in it is text whatever it begins with, and ``link`` is a place in the workbook."""
    cell = WriteOnlyCell(sheet, number_or_text(value))
    if isinstance(cell.value, str):
        cell.data_type = "s"
    known = _styles.setdefault(cast(Workbook, sheet.parent), {})
    if look not in known:  # openpyxl finds each part by hashing and comparing all that it is made of
        font, fill, alignment, border = _parts(look)
        cell.font, cell.fill, cell.alignment, cell.border, cell.number_format = font, fill, alignment, border, look.format
        known[look] = copy(cell._style)  # type: ignore[attr-defined]
    cell._style = copy(known[look])  # type: ignore[attr-defined]
    if link:
        cell.hyperlink = Hyperlink(ref="A1", location=link, tooltip=tip or None)
    return cell


#: By workbook: the numbers that it has given to the parts of each look.
_styles: WeakKeyDictionary[Workbook, dict[Look, Any]] = WeakKeyDictionary()


@lru_cache(maxsize=256)
def _parts(look: Look) -> tuple[Font, PatternFill, Alignment, Border]:
    return (
        Font(name="Calibri", size=look.size, bold=look.bold, color=look.color, underline="single" if look.underline else None),
        PatternFill("solid", fgColor=look.fill) if look.fill else PatternFill(),
        Alignment(horizontal=look.align, vertical=look.vertical, wrap_text=look.wrap, indent=look.indent),
        Border(bottom=Side("thin", color=look.line)) if look.line else Border(),
    )


def place(title: str, column: str, line: int) -> str:
    """The location of a cell as links name it; quoted, since a sheet's title may hold a space."""
    return f"'{title}'!{column}{line}"


def row_rules(letters: dict[str, str]) -> list[Rule]:
    """The rules that colour the rows of a table, for its second line; the first that holds wins.

    Args:
        letters: the column letter of each title in ``COLUMNS``.
    """
    status, reason, used = (f"${letters[title]}2" for title in ("status", "reason", "x limit"))
    grey = ",".join(f'{reason}="{unmatched.value}"' for unmatched in UNMATCHED)
    near = f'AND({status}="{Status.PASS.value}",ISNUMBER({used}),{used}>0.5)'
    return [
        _rule(f'{reason}="{Reason.NON_FINITE.value}"', DARK, "FFFFFFFF", bold=True),
        _rule(f"OR({grey})", GREY, "FF4B5563"),
        _rule(f'{status}="{Status.FAIL.value}"', PALE_RED, "FF9C0006"),
        _rule(f'{reason}="{Reason.NOT_DETERMINISTIC.value}"', GREY_AMBER, BROWN),
        _rule(f'OR({reason}="{Reason.OVER_PRECISE.value}",{near})', AMBER, BROWN),
    ]


def _rule(formula: str, fill: str, color: str, bold: bool = False) -> Rule:
    look = DifferentialStyle(font=Font(color=color, bold=bold or None), fill=PatternFill("solid", fgColor=fill, bgColor=fill))
    return Rule(type="expression", formula=[formula], stopIfTrue=True, dxf=look)


def scale_rules() -> dict[str, Rule]:
    """By column title, the rule that shows sizes at a glance."""
    steps = [FormatObject(type="percentile", val=percent) for percent in (5, 50, 95)]
    blues = ColorScale(cfvo=steps, color=[Color(shade) for shade in ("FFFFFFFF", "FFE3EEF9", "FF9CC3E6")])
    whole = [FormatObject(type="num", val=end) for end in (0, 1)]
    bar = DataBar(cfvo=whole, color=Color("FF9CC3E6"), minLength=0, maxLength=100)
    return {"relative L2": Rule(type="colorScale", colorScale=blues), "x limit": Rule(type="dataBar", dataBar=bar)}


def add_sheet(workbook: Workbook, title: str, widths: Sequence[float], pages_wide: int = 1, large: bool = False) -> Worksheet:
    """A new sheet with these column widths, on as many landscape pages as its columns need; several are ``large`` ones."""
    sheet = cast(Worksheet, workbook.create_sheet(title))  # a write-only one has what is used here, but its type does not say so
    for number, width in enumerate(widths, 1):
        sheet.column_dimensions[get_column_letter(number)].width = width
    sheet.sheet_view.showGridLines = False
    sheet.sheet_properties.pageSetUpPr = PageSetupProperties(fitToPage=True)
    sheet.page_setup.orientation = "landscape"
    sheet.page_setup.paperSize = 8 if large or pages_wide > 1 else 9  # A3 or A4
    sheet.page_setup.fitToWidth, sheet.page_setup.fitToHeight = pages_wide, 0
    sheet.page_margins = PageMargins(left=0.4, right=0.4, top=0.5, bottom=0.6, footer=0.3)
    if sheet.oddFooter is not None and sheet.oddFooter.right is not None:
        sheet.oddFooter.right.text = "&A, page &P of &N"
    return sheet
