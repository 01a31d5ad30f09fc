"""How the report looks: colours, cell styles and the rules that colour rows."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import lru_cache
from typing import Any, NamedTuple, cast
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
from accucompare.report.columns import COUNT, EXCESS, SCIENTIFIC, Value
from accucompare.report.excel_rows import number_or_text

GREEN, RED, AMBER, GREY, DARK = "FF2E7D32", "FFC62828", "FFFFEB9C", "FFE2E2E2", "FF3A3A3A"
GREY_AMBER, BROWN = "FFE9E1C8", "FF7F6000"
PALE_GREEN, PALE_RED = "FFE2F0D9", "FFFFC7CE"
INK, MUTED, LINE, BLUE = "FF1F2933", "FF6B7280", "FFD5D9DF", "FF1B5FAA"

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

UNMATCHED = (Reason.MISSING, Reason.EXTRA, Reason.NOT_CALLED, Reason.NOT_COMPARABLE)


class Look(NamedTuple):
    """One style of cell: everything that differs from plain text on white."""

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


PLAIN = Look()
WRAPPED = Look(wrap=True, vertical="top")
BOLD = Look(bold=True)
MUTED_TEXT = Look(color=MUTED)
CAPTION = Look(color=MUTED, wrap=True, vertical="top")
SECTION = Look(size=13, bold=True, color=BLUE, vertical="bottom")
HEADER = Look(bold=True, color="FFFFFFFF", fill=GROUPS["record"])
HEADER_RIGHT = HEADER._replace(align="right")
CELL = Look(line=LINE)
CELL_WRAPPED = Look(line=LINE, wrap=True, vertical="top")
CELL_TOP = Look(line=LINE, vertical="top")
DIFFERENT = Look(line=LINE, fill=AMBER)
LINK = Look(line=LINE, color=BLUE, underline=True)
COUNT_CELL = Look(line=LINE, align="right", format=COUNT)
SCIENTIFIC_CELL = Look(line=LINE, align="right", format=SCIENTIFIC)
EXCESS_CELL = Look(line=LINE, align="right", format=EXCESS)
TOTAL = Look(bold=True, fill="FFF3F4F6", line=MUTED)
TOTAL_COUNT = TOTAL._replace(align="right", format=COUNT)

#: How a reason's name looks in the table of counts: as its rows do in *Layers*.
REASON_LOOK = {
    **{reason: Look(bold=True, line=LINE, fill=PALE_RED, color="FF9C0006") for reason in Reason},
    **{reason: Look(bold=True, line=LINE, fill=PALE_GREEN, color=GREEN) for reason in (Reason.IDENTICAL, Reason.OK)},
    **{reason: Look(bold=True, line=LINE, fill=GREY) for reason in UNMATCHED},
    Reason.OVER_PRECISE: Look(bold=True, line=LINE, fill=AMBER, color=BROWN),
    Reason.NOT_DETERMINISTIC: Look(bold=True, line=LINE, fill=GREY_AMBER, color=BROWN),
    Reason.NON_FINITE: Look(bold=True, line=LINE, fill=DARK, color="FFFFFFFF"),
}


def verdict_look(passed: bool) -> Look:
    return Look(size=30, bold=True, color="FFFFFFFF", fill=GREEN if passed else RED, align="center")


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
