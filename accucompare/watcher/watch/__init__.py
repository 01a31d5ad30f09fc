"""A watch from beginning to end, and the result of each step."""

from accucompare.watcher.watch.case_watch import watch_case as watch_case
from accucompare.watcher.watch.running_watch import Watch as Watch
from accucompare.watcher.watch.watch_context import watch as watch
from accucompare.watcher.watch.watch_context import watching as watching
