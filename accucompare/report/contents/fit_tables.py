"""The tables of a fit: its runs, where the error comes from, and the curve."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from accucompare.bundle.format import display_name
from accucompare.compare.fits import Fit, FitRun, PlaceShare
from accucompare.report.table import COUNT, PERCENT, SCIENTIFIC, TEXT, Column
from accucompare.report.words import fit_words


class CurveRow(NamedTuple):
    """A point of the curve: an estimate, or a run."""

    share: float  # in float32, in percent
    expected: float | None
    run: float | None
    limit: float | None


def fit_run_columns(found: Fit) -> list[Column]:
    def state(run: FitRun) -> str:
        return fit_words.run_state(found, run)

    return [
        Column("run", lambda run: found.runs.index(run) + 1, COUNT, 6),
        Column("operations", lambda run: run.flops, PERCENT, 12),
        Column("weights", lambda run: run.bytes, PERCENT, 12),
        Column("relative L2", lambda run: _finite(run.error), SCIENTIFIC, 13),
        Column("expected", lambda run: run.expected, SCIENTIFIC, 13),
        Column("", state, TEXT, 12),
        Column("in float32", fit_words.told_in_words, TEXT, 90, least=24),
    ]


#: Of a block.
PLACE_COLUMNS = (
    Column("block", lambda place: display_name(place.name), TEXT, 44, least=24),
    Column("class", lambda place: place.type, TEXT, 24, least=12, spare=1),
    Column("share of the error", lambda place: place.share, PERCENT, 14),
    Column("operations", lambda place: place.flops, PERCENT, 12),
    Column("weights", lambda place: place.bytes, PERCENT, 12),
)

CURVE_COLUMNS = (
    Column("in float32, %", lambda row: row.share, "0.0##", 14),
    Column("estimate", lambda row: row.expected, SCIENTIFIC, 13),
    Column("run", lambda row: row.run, SCIENTIFIC, 13),
    Column("tolerance", lambda row: row.limit, SCIENTIFIC, 13),
)


def curve_rows(found: Fit) -> list[CurveRow]:
    """The estimate from nothing to everything, and all runs, by their share."""
    by: Callable[[object], float] = lambda each: getattr(each, found.goal.by)  # noqa: E731
    limit = found.goal.rel_l2
    rows = [CurveRow(100 * by(point), point.error or None, None, limit) for point in found.curve]
    rows += [CurveRow(100 * by(run), None, _finite(run.error) or None, limit) for run in found.runs]
    return sorted(rows, key=lambda row: row.share)


def shown_places(found: Fit) -> list[PlaceShare]:
    return [place for place in found.places if place.share > 0]


def _finite(error: float) -> float | None:
    return error if math.isfinite(error) else None
