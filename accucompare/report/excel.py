"""The Excel report: *Summary*, *Layers*, *Divergence*, *Unmatched*, *Environment*."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path

from openpyxl import Workbook
from openpyxl.xml import LXML

from accucompare.compare.result import Result
from accucompare.errors import ReportError
from accucompare.files import is_stream, written_whole
from accucompare.report.excel_divergence import add_divergence
from accucompare.report.excel_environment import add_environment
from accucompare.report.excel_layers import add_layers, add_unmatched
from accucompare.report.excel_rows import save_with_rows, text
from accucompare.report.excel_summary import add_summary

WRITE_ERRORS: tuple[type[Exception], ...] = ()
if LXML:  # openpyxl writes with lxml where that is installed, which then raises errors of its own
    from lxml.etree import LxmlError

    WRITE_ERRORS = (LxmlError,)


def write_excel(comparison: Result, path: Path) -> Path:
    """Write the Excel report.

    Args:
        comparison: what to report.
        path: where to; ends in ``.xlsx``. Directories that are not there are created.

    Returns:
        ``path``.

    Raises:
        ReportError: if the path is a directory or has another suffix, or the file cannot be written.
    """
    if path.suffix.lower() != ".xlsx" and not path.is_dir() and not is_stream(path):  # of a directory, that is said first
        raise ReportError(f"{path}: an Excel report's name must end in .xlsx, such as {path.stem or 'report'}.xlsx")
    return written_whole(path, lambda temporary: _write(comparison, temporary), WRITE_ERRORS)


@contextmanager
def new_workbook(title: str) -> Iterator[Workbook]:
    """A workbook that is written row by row; its sheets are closed if that fails."""
    workbook = Workbook(write_only=True)
    workbook.properties.creator = "accucompare"
    workbook.properties.title = text(title)
    workbook.calculation.fullCalcOnLoad = False  # there is nothing to calculate, so closing it asks nothing
    try:
        yield workbook
    except BaseException:
        for sheet in workbook.worksheets:
            with suppress(Exception):  # or Python complains about sheets half written when it forgets them
                sheet.close()
        raise


def _write(comparison: Result, path: Path) -> None:
    saved = BytesIO()  # without the rows of long sheets, so small
    with new_workbook(f"{comparison.golden.path.name} and {comparison.candidate.path.name} compared") as workbook:
        add_summary(workbook, comparison)
        long_sheets = add_layers(workbook, comparison.rows)
        add_divergence(workbook, comparison)
        long_sheets += add_unmatched(workbook, comparison)
        add_environment(workbook, comparison)
        workbook.save(saved)
    save_with_rows(saved, long_sheets, path)
