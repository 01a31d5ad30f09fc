"""The Excel reports of a comparison, and of a trend."""

from __future__ import annotations

from pathlib import Path

from accucompare.compare.result import Result
from accucompare.compare.trends import TrendFacts
from accucompare.files import EXCEL_FILE
from accucompare.report.contents import (
    all_layers,
    divergence,
    summaries,
    summary,
    training,
    trend_sheets,
    unmatched,
)
from accucompare.report.excel.worksheets import write_workbook
from accucompare.report.table import Page, Table, environment_sheets, overview_of


def write_excel(comparison: Result, path: Path) -> Path:
    """Write the Excel report, and return its path. Raises ReportError if the path is a directory or
    does not end in ``.xlsx``, or the file cannot be written."""
    EXCEL_FILE.refuse_other(path)
    found = overview_of(comparison)
    layers = all_layers(comparison, found)
    sheets: list[Page | Table] = [
        summary(comparison, layers, found),
        *training(comparison),
        layers,
        *summaries(comparison, layers, found),
        divergence(comparison, layers, found),
        unmatched(comparison, found),
        environment_sheets(comparison),
    ]
    return write_workbook(
        path, f"{comparison.golden.path.name} and {comparison.candidate.path.name} compared", sheets
    )


def write_trend_workbook(facts: TrendFacts, path: Path) -> Path:
    """Write the workbook of a trend, and return its path. Errors as ``write_excel``."""
    EXCEL_FILE.refuse_other(path)
    return write_workbook(path, f"trend of {len(facts.runs)} runs", trend_sheets(facts))
