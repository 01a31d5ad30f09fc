"""Pages: one HTML file that needs nothing else."""

from accucompare.report.page.page_comparison import StepChart, write_comparison_page
from accucompare.report.page.page_data import PageData
from accucompare.report.page.page_file import write_page
from accucompare.report.page.page_fit import write_fit_page
from accucompare.report.page.page_trend import write_trend_page

__all__ = [
    "PageData",
    "StepChart",
    "write_comparison_page",
    "write_fit_page",
    "write_page",
    "write_trend_page",
]
