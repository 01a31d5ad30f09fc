"""The checklist: its checks, and what a log says to each."""

from accucompare.findings.checklist.checks import (
    Check,
    CheckOutcome,
    CheckStatus,
    Layer,
    failed,
    not_looked_at,
    passed,
    warned,
)
from accucompare.findings.checklist.checks_run import FINITE
from accucompare.findings.checklist.health_checklist import (
    CHECKS,
    STATUS_EXIT_CODES,
    Checklist,
    Health,
    judge_finite,
    judge_log,
    judge_vitals,
    read_thresholds,
)

__all__ = [
    "CHECKS",
    "FINITE",
    "STATUS_EXIT_CODES",
    "Check",
    "CheckOutcome",
    "CheckStatus",
    "Checklist",
    "Health",
    "Layer",
    "failed",
    "judge_finite",
    "judge_log",
    "judge_vitals",
    "not_looked_at",
    "passed",
    "read_thresholds",
    "warned",
]
