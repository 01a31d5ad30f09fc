"""The workbook of a fit."""

from __future__ import annotations

from pathlib import Path

from accucompare.bundle.format import display_name
from accucompare.compare.fits import Fit, FitAnswer
from accucompare.files import EXCEL_FILE
from accucompare.report.contents import fit_tables
from accucompare.report.excel.worksheets import write_workbook
from accucompare.report.table import (
    Chart,
    ChartSeries,
    Line,
    Page,
    SheetItem,
    Table,
    heading_lines,
    looks,
)
from accucompare.report.words import fit_code, fit_words

_CHART_LINES = 30  # lines that the chart covers


def write_fit_workbook(found: Fit, path: Path) -> Path:
    """Write the sheets Runs, Curve, Blocks and Code, and return the path. ReportError if it cannot
    be written."""
    EXCEL_FILE.refuse_other(path)
    tab = looks.RED if found.answer is FitAnswer.UNREACHABLE else looks.GREEN
    lines = [*fit_words.fit_facts_in_words(found), *filter(None, [fit_words.fit_hint(found)])]
    runs = Table(
        "Fit",
        fit_tables.fit_run_columns(found),
        list(found.runs),
        heading=[
            *heading_lines(fit_words.fit_headline(found)),
            *(Line([SheetItem(line)]) for line in lines),
            Line([SheetItem("Keep in float32", looks.BOLD)]),
            *(Line([SheetItem(f"    {name}")]) for name in found.kept.whole),
            *(Line([SheetItem(f"    {display_name(name)}: own code")]) for name in found.kept.own),
        ],
        fill=lambda run: looks.PALE_GREEN if run is found.proof else "",
        tab=tab,
    )
    blocks = Table(
        "Blocks",
        fit_tables.PLACE_COLUMNS,
        fit_tables.shown_places(found),
        "Nothing was estimated.",
        heading=heading_lines("Where the error comes from, nothing in float32"),
        frozen=1,
    )
    code = [Line([SheetItem(line)]) for line in fit_code.fit_code(found).splitlines()]
    sheets: list[Page | Table] = [runs, _curve(found), blocks, Page("Code", (3, 110), code, "")]
    return write_workbook(path, f"what to keep in float32: {found.case}", sheets)


def _curve(found: Fit) -> Table:
    """The error against the share in float32."""
    series = [
        ChartSeries("estimate", looks.CURVE),
        ChartSeries("run", looks.OTHER_CURVE, width=0),
        ChartSeries("tolerance", looks.LIMIT_CURVE, dashed=True),
    ]
    of = "operations" if found.goal.by == "flops" else "weights"
    titles = ("", f"{of} in float32, %", "relative L2 error (logarithmic)")
    under = fit_tables.CURVE_COLUMNS[0].title
    chart = Chart(
        "A3", series if found.goal.rel_l2 else series[:2], under, titles,
        size=(24, 14), labels=20, spanned=True, to_scale=(0, 100),
    )  # fmt: skip
    return Table(
        "Curve",
        fit_tables.CURVE_COLUMNS,
        fit_tables.curve_rows(found),
        heading=[
            *heading_lines("The error against the share in float32"),
            Line(
                [SheetItem("Points are runs; the line is the estimate.", looks.CAPTION)], spread=0
            ),
        ],
        space=1 + _CHART_LINES,
        charts=[chart],
    )
