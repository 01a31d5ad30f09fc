"""The checklist as a sheet of a watch's workbook, as a workbook of its own, and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accucompare.findings.analysis import Ranks
from accucompare.findings.checklist import Checklist, CheckStatus, Health
from accucompare.report.files import write_document
from accucompare.report.table import Line, SheetItem, Table, looks
from accucompare.report.watch_files.log_tables import checks_table
from accucompare.report.watch_words import CHECK_WORDS, said
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


def write_health_json(ranks: Ranks, health: Health, path: Path) -> Path:
    """Write every check with its result. Errors as ``write_document``."""
    content = {
        "log": str(ranks.path),
        "status": health.status.value,
        "headline": headline(health),
        "counts": {status.value: count for status, count in health.counts().items()},
        "steps": ranks.watched,
        "checks": [_check(result) for result in health.results],
        "notes": [said(note) for note in ranks.notes],
    }
    return write_document(content, path)


def _check(result: Checklist) -> dict[str, Any]:
    check, outcome = result.check, result.outcome
    words = CHECK_WORDS[check.id]
    return {
        "id": check.id,
        "layer": check.layer.value,
        "looks_at": words.looks_at,
        "status": result.status.value,
        "measured": said(outcome.measured),
        "value": outcome.value,
        "step": outcome.step,
        "place": outcome.place,
        "rank": result.rank,
        "thresholds": dict(result.limits),
        "cure": words.cure,
    }
