"""A watch's rows and columns, and what the terminal prints of it."""

from accucompare.report.watched import watch_columns as watch_columns
from accucompare.report.watched.health_columns import HEALTH as HEALTH
from accucompare.report.watched.health_columns import headline as headline
from accucompare.report.watched.norms_by_step import norm_sheets as norm_sheets
from accucompare.report.watched.terminal_checks import print_gradcheck as print_gradcheck
from accucompare.report.watched.terminal_checks import print_health as print_health
from accucompare.report.watched.terminal_checks import print_health_briefly as print_health_briefly
from accucompare.report.watched.terminal_overflows import print_overflows as print_overflows
from accucompare.report.watched.terminal_watch import checks_fail as checks_fail
from accucompare.report.watched.terminal_watch import print_analysis as print_analysis
from accucompare.report.watched.terminal_watch import print_finding as print_finding
from accucompare.report.watched.terminal_watch import print_frames as print_frames
from accucompare.report.watched.terminal_watch import print_watched as print_watched
from accucompare.report.watched.terminal_watch import verdict_line as verdict_line
from accucompare.report.watched.watch_environment import rank_entries as rank_entries
