"""The pages: one HTML file that needs nothing else."""

from accucompare.report.page.page_comparison import write_comparison_page
from accucompare.report.page.page_log import write_health_page, write_log_page

__all__ = ["write_comparison_page", "write_health_page", "write_log_page"]
