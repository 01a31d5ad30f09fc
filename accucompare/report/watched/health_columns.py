"""The checklist as rows and columns, for every report of it."""

from __future__ import annotations

from accucompare.findings.checklist import Checklist, CheckStatus, Health
from accucompare.report.table import COUNT, NUMBER, TEXT, Column
from accucompare.report.watch_words import CHECK_WORDS, said


def headline(health: Health) -> str:
    """The result in a line: ``WARN in 1 of 27 checks, 38 not looked at``."""
    counts = health.counts()
    unseen = counts.pop(CheckStatus.NOT_LOOKED_AT)
    wrong = [
        f"{status.value} in {counts[status]:,}"
        for status in (CheckStatus.FAIL, CheckStatus.WARN)
        if counts[status]
    ]
    total = sum(counts.values())
    if not total:
        return f"{CheckStatus.NOT_LOOKED_AT.value}: none of {unseen:,} checks"
    return (
        f"{', '.join(wrong) if wrong else CheckStatus.PASS.value} of {total:,} checks, {unseen:,}"
        " not looked at"
    )


def limits(result: Checklist) -> str:
    """A check's thresholds, as they were in force: ``loss-spike=10``."""
    return ", ".join(f"{name}={value:g}" for name, value in result.limits.items())


def cure(result: Checklist) -> str:
    """What to do; nothing where nothing is wrong."""
    if result.status in (CheckStatus.WARN, CheckStatus.FAIL):
        return CHECK_WORDS[result.check.id].cure
    return ""


HEALTH = (
    Column("layer", lambda row: row.check.layer.value, TEXT, 20),
    Column("check", lambda row: row.check.id, TEXT, 22, least=12),
    Column("result", lambda row: row.status.value, TEXT, 16, "verdict"),
    Column("rank", lambda row: row.rank, COUNT, 7),
    Column("step", lambda row: row.outcome.step, COUNT, 9),
    Column("place", lambda row: row.outcome.place, TEXT, 36, least=16),
    Column(
        "what was measured",
        lambda row: said(row.outcome.measured),
        TEXT,
        90,
        "difference",
        least=30,
    ),
    Column("value", lambda row: row.outcome.value, NUMBER, 15, "difference"),
    Column("thresholds", limits, TEXT, 40, "baseline"),
    Column("what to do", cure, TEXT, 90, "judgement"),
    Column(
        "what it looks at", lambda row: CHECK_WORDS[row.check.id].looks_at, TEXT, 80, "judgement"
    ),
)
