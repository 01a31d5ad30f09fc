"""The checklist: its checks, and what a log says to each."""

from accucompare.findings.checklist.checks import Check, Layer, Outcome, Status, failed, not_looked_at, passed, warned
from accucompare.findings.checklist.checks_run import FINITE
from accucompare.findings.checklist.health import CHECKS, Health, Result, examine, read_thresholds

__all__ = [
    "CHECKS",
    "FINITE",
    "Check",
    "Health",
    "Layer",
    "Outcome",
    "Result",
    "Status",
    "examine",
    "failed",
    "not_looked_at",
    "passed",
    "read_thresholds",
    "warned",
]
