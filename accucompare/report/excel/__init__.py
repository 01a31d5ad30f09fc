"""Workbooks: openpyxl."""

from accucompare.report.excel.fit_workbook import write_fit_workbook as write_fit_workbook
from accucompare.report.excel.workbook import write_excel as write_excel
from accucompare.report.excel.workbook import write_trend_workbook as write_trend_workbook
from accucompare.report.excel.worksheets import write_workbook as write_workbook
