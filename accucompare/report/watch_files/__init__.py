"""What a watch wrote, as files: workbooks, pages, JSON."""

from accucompare.report.watch_files.health_files import write_health as write_health
from accucompare.report.watch_files.health_files import write_health_json as write_health_json
from accucompare.report.watch_files.log_page import write_health_page as write_health_page
from accucompare.report.watch_files.log_page import write_log_page as write_log_page
from accucompare.report.watch_files.watch_workbook import write_watch as write_watch
