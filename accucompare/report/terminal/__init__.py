"""What commands print: rich."""

from accucompare.report.terminal.tables import shown
from accucompare.report.terminal.terminal import print_comparison
from accucompare.report.terminal.terminal_bundle import print_capture, print_import, print_records, print_tensor, print_verified
from accucompare.report.terminal.terminal_gradcheck import print_gradcheck
from accucompare.report.terminal.terminal_health import print_health, print_health_briefly
from accucompare.report.terminal.terminal_overflows import print_overflows
from accucompare.report.terminal.terminal_watch import checks_fail, print_analysis, print_finding, print_frames, print_watched, verdict_line

__all__ = [
    "checks_fail",
    "print_analysis",
    "print_capture",
    "print_comparison",
    "print_finding",
    "print_frames",
    "print_gradcheck",
    "print_health",
    "print_health_briefly",
    "print_import",
    "print_overflows",
    "print_records",
    "print_tensor",
    "print_verified",
    "print_watched",
    "shown",
    "verdict_line",
]
