"""A watch's rows and columns, and what the terminal prints of it."""

from accucompare.report.watched import watch_columns
from accucompare.report.watched.health_columns import HEALTH, headline
from accucompare.report.watched.norms_by_step import norm_sheets
from accucompare.report.watched.terminal_checks import (
    print_gradcheck,
    print_health,
    print_health_briefly,
)
from accucompare.report.watched.terminal_overflows import print_overflows
from accucompare.report.watched.terminal_watch import (
    checks_fail,
    print_analysis,
    print_finding,
    print_frames,
    print_watched,
    verdict_line,
)
from accucompare.report.watched.watch_environment import rank_entries

__all__ = [
    "HEALTH",
    "checks_fail",
    "headline",
    "norm_sheets",
    "print_analysis",
    "print_finding",
    "print_frames",
    "print_gradcheck",
    "print_health",
    "print_health_briefly",
    "print_overflows",
    "print_watched",
    "rank_entries",
    "verdict_line",
    "watch_columns",
]
