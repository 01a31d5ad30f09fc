"""A watch's log, read back: one run's analysis, and that of all ranks."""

from accucompare.findings.analysis.analysis import Analysis as Analysis
from accucompare.findings.analysis.analysis import Ranks as Ranks
from accucompare.findings.analysis.analysis import Scaling as Scaling
from accucompare.findings.analysis.analysis import Trail as Trail
from accucompare.findings.analysis.analysis import read_logs as read_logs
