"""The Excel report of a comparison."""

from __future__ import annotations

import os
from pathlib import Path

from accucompare.compare.result import Result
from accucompare.errors import ReportError
from accucompare.files import is_stream
from accucompare.report.contents import (
    all_layers,
    divergence,
    summaries,
    summary,
    training,
    unmatched,
)
from accucompare.report.excel.worksheets import write_workbook
from accucompare.report.table import Page, Table, environment_sheets, overview_of


def write_excel(comparison: Result, path: Path) -> Path:
    """Write the Excel report, and return its path.

    Raises:
        ReportError: if the path is a directory or does not end in ``.xlsx``, or the file cannot be
            written.
    """
    # a directory gets its own message first
    if path.suffix.lower() != ".xlsx" and not os.path.isdir(path) and not is_stream(path):
        raise ReportError(
            f"{path}: an Excel report's name must end in .xlsx, such as"
            f" {path.stem or 'report'}.xlsx"
        )
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
