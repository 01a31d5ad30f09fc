"""The tables of a watch's log, shared by the workbook and the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from accucompare.findings.analysis import Ranks
from accucompare.findings.checklist import Health
from accucompare.report.table import Column
from accucompare.report.watched import HEALTH
from accucompare.report.watched import watch_columns as log


class LogTable(NamedTuple):
    """Columns and rows; only with several ranks are there columns that tell them apart."""

    columns: list[Column]
    rows: list[Any]


def log_table(ranks: Ranks, columns: Sequence[Column], rows: Iterable[Any]) -> LogTable:
    """These rows, with the columns that this log needs."""
    needed = [
        column for column in columns if ranks.several or column.title not in ("rank", "coordinates")
    ]
    return LogTable(needed, list(rows))


def findings_table(ranks: Ranks) -> LogTable:
    return log_table(
        ranks, log.FINDINGS, (log.FindingRow(run, finding) for run, finding in ranks.findings)
    )


def frames_table(ranks: Ranks) -> LogTable:
    rows = (
        row for run in ranks.ranks for frames in run.frames for row in log.tensor_rows(frames, run)
    )
    return log_table(ranks, log.FRAMES, rows)


def steps_table(ranks: Ranks, columns: Sequence[Column] = log.STEPS) -> LogTable:
    return log_table(ranks, columns, (row for run in ranks.ranks for row in log.step_rows(run)))


def warnings_table(ranks: Ranks) -> LogTable:
    rows = (row for run in ranks.ranks for row in log.warning_rows(run))
    return log_table(
        ranks, log.WARNINGS, sorted(rows, key=lambda row: (row.alert.step, row.run.start.rank))
    )


def checks_table(ranks: Ranks, health: Health) -> LogTable:
    return log_table(ranks, HEALTH, health.results)
