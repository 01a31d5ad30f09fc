"""A watch from beginning to end, and the result of each step."""

from accucompare.watcher.watch.case_watch import watch_case
from accucompare.watcher.watch.running_watch import Watch
from accucompare.watcher.watch.watch_context import watch, watching

__all__ = ["Watch", "watch", "watch_case", "watching"]
