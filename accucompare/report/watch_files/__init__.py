"""What a watch wrote, as files: workbooks, pages, JSON."""

from accucompare.report.watch_files.health_files import write_health, write_health_json
from accucompare.report.watch_files.log_page import write_health_page, write_log_page
from accucompare.report.watch_files.watch_workbook import write_watch

__all__ = [
    "write_health",
    "write_health_json",
    "write_health_page",
    "write_log_page",
    "write_watch",
]
