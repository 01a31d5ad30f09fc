"""The workbooks: openpyxl."""

from accucompare.report.excel.health_workbook import write_health
from accucompare.report.excel.watch_workbook import write_watch
from accucompare.report.excel.workbook import write_excel

__all__ = ["write_excel", "write_health", "write_watch"]
