"""What a watch looks at while a step runs."""

from accucompare.watcher.looking.extrema import (
    Extrema,
    Meter,
    data_of,
    has_memory,
    is_small,
    known,
    look_now,
    norm_now,
    sample_of,
)
from accucompare.watcher.looking.notes import Note, Scope, WatchedCall
from accucompare.watcher.looking.watcher import Watcher

__all__ = [
    "Extrema",
    "Meter",
    "Note",
    "Scope",
    "WatchedCall",
    "Watcher",
    "data_of",
    "has_memory",
    "is_small",
    "known",
    "look_now",
    "norm_now",
    "sample_of",
]
