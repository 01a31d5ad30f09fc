"""Pages: one HTML file that needs nothing else."""

from accucompare.report.page.page_comparison import StepChart as StepChart
from accucompare.report.page.page_comparison import write_comparison_page as write_comparison_page
from accucompare.report.page.page_data import PageData as PageData
from accucompare.report.page.page_file import write_page as write_page
from accucompare.report.page.page_fit import write_fit_page as write_fit_page
from accucompare.report.page.page_trend import write_trend_page as write_trend_page
