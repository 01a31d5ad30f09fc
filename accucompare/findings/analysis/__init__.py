"""A watch's log, read back: one run's analysis, and that of all ranks."""

from accucompare.findings.analysis.analysis import Analysis, Ranks, Scaling, Trail, read_logs

__all__ = ["Analysis", "Ranks", "Scaling", "Trail", "read_logs"]
