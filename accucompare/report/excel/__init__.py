"""Workbooks: openpyxl."""

from accucompare.report.excel.fit_workbook import write_fit_workbook
from accucompare.report.excel.workbook import write_excel, write_trend_workbook
from accucompare.report.excel.worksheets import write_workbook

__all__ = ["write_excel", "write_fit_workbook", "write_trend_workbook", "write_workbook"]
