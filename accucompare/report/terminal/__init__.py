"""What commands print: rich."""

from accucompare.report.terminal.tables import print_table, shown
from accucompare.report.terminal.terminal import print_comparison
from accucompare.report.terminal.terminal_bundle import (
    print_capture,
    print_import,
    print_records,
    print_tensor,
    print_verified,
)
from accucompare.report.terminal.terminal_fit import print_fit
from accucompare.report.terminal.terminal_reruns import (
    print_decode,
    print_invariance,
    print_ranks,
    print_repeats,
)
from accucompare.report.terminal.terminal_trend import print_trend

__all__ = [
    "print_capture",
    "print_comparison",
    "print_decode",
    "print_fit",
    "print_import",
    "print_invariance",
    "print_ranks",
    "print_records",
    "print_repeats",
    "print_table",
    "print_tensor",
    "print_trend",
    "print_verified",
    "shown",
]
