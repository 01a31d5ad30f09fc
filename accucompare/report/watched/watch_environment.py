"""How each rank of a watch ran, entry by entry: for the sheet and for the page."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from accucompare.findings.analysis import Analysis, Ranks
from accucompare.report.table import ABSENT, EnvironmentEntry, flat
from accucompare.report.watch_words import said
from accucompare.report.watched.watch_columns import main_run

MAX_RANKS = 8  # columns
_OWN = ("log", "rank", "time", "device")  # differs between ranks as a matter of course


def rank_entries(ranks: Ranks) -> tuple[list[Analysis], list[EnvironmentEntry]]:
    """The ranks shown, the main one first, and how each ran; what differs is marked."""
    first = main_run(ranks)
    shown = [first, *(run for run in ranks.ranks if run is not first)][:MAX_RANKS]
    tables = [dict(_entries(run)) for run in shown]
    listed = []
    for key in dict.fromkeys(key for table in tables for key in table):
        values = [table.get(key, ABSENT) for table in tables]
        marked = [value != values[0] and key not in _OWN for value in values]
        listed.append(EnvironmentEntry(key, values, marked, any(marked)))
    listed += [
        EnvironmentEntry("note", [said(note)] + [""] * (len(shown) - 1), [False] * len(shown))
        for note in ranks.notes
    ]
    return shown, listed


def _entries(run: Analysis) -> Iterator[tuple[str, str]]:
    start = run.start
    yield "log", str(run.path or "")
    yield "end", said(run.ending)
    facts = (
        "rank",
        "ranks",
        "model",
        "parameters",
        "device",
        "saturates",
        "case",
        "time",
        "version",
    )
    for name in (*facts, "coordinates", "options", "environment"):
        for key, value in flat(name, getattr(start, name), longest=sys.maxsize):
            yield key, value.shown
