"""The sheet *Health* of a watch's workbook, and the workbook of the checklist alone."""

from __future__ import annotations

from pathlib import Path

from accucompare.findings.analysis import Ranks
from accucompare.findings.checklist import Checklist, CheckStatus, Health
from accucompare.report.table import Line, SheetItem, Table, looks
from accucompare.report.watch_files.log_tables import checks_table
from accucompare.report.watched import headline, norm_sheets

_TABS = {
    CheckStatus.FAIL: looks.RED,
    CheckStatus.WARN: looks.AMBER,
    CheckStatus.PASS: looks.GREEN,
    CheckStatus.NOT_LOOKED_AT: "",
}
_FILLS = {CheckStatus.FAIL: looks.PALE_RED, CheckStatus.WARN: looks.AMBER}


def health_sheet(ranks: Ranks, health: Health) -> Table:
    """Every check with its result, what was measured, its thresholds, and what to do."""

    def fill(row: Checklist) -> str:
        return _FILLS.get(row.status, "")

    return Table(
        "Health",
        *checks_table(ranks, health),
        heading=[Line([SheetItem(f"The checklist: {headline(health)}", looks.SECTION)])],
        frozen=3,
        fill=fill,
        tab=_TABS[health.status],
        pages_wide=2,
    )


def write_health(ranks: Ranks, health: Health, path: Path) -> Path:
    """Write the checklist and each parameter's norms as a workbook, and return its path.
    ReportError if it cannot be written."""
    from accucompare.report.excel import write_workbook

    return write_workbook(
        path,
        f"the checklist of {ranks.path.name}",
        [health_sheet(ranks, health), *norm_sheets(ranks)],
    )
