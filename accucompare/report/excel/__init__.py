"""The workbooks: openpyxl."""

from accucompare.report.excel.excel import write_excel
from accucompare.report.excel.excel_environment import Entry, entries
from accucompare.report.excel.excel_health import write_health
from accucompare.report.excel.excel_layers import sized
from accucompare.report.excel.excel_overview import group_columns
from accucompare.report.excel.excel_summary import meaning
from accucompare.report.excel.excel_training import step_columns
from accucompare.report.excel.excel_watch import write_watch
from accucompare.report.excel.watch_environment import rank_entries

__all__ = [
    "Entry",
    "entries",
    "group_columns",
    "meaning",
    "rank_entries",
    "sized",
    "step_columns",
    "write_excel",
    "write_health",
    "write_watch",
]
