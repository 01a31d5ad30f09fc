"""A watch from beginning to end, and what each step comes to."""

from accucompare.watcher.watch.steps import Watch
from accucompare.watcher.watch.watch import watch, watching
from accucompare.watcher.watch.watch_case import watch_case

__all__ = ["Watch", "watch", "watch_case", "watching"]
