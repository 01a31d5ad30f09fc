"""Heat maps of layers by runs: errors as multiples of their limits, and relative L2 errors."""

from __future__ import annotations

from operator import attrgetter

import numpy as np

from accucompare.compare.trends import LayerError, PlaceTrend, TrendFacts
from accucompare.report.table.extremes import NONE
from accucompare.report.table.heat import MOST_COLUMNS, MOST_LAYERS, HeatMap
from accucompare.text import printable


def trend_heats(facts: TrendFacts) -> tuple[HeatMap, HeatMap]:
    """The errors as multiples of their limits, and the relative L2 errors; of the same layers."""
    compared = [place for place in facts.places if any(map(_size, place.errors))]
    shown = set(
        sorted(range(len(compared)), key=lambda at: (-_worst(compared[at]), at))[:MOST_LAYERS]
    )
    places = [place for at, place in enumerate(compared) if at in shown]
    first = max(0, len(facts.runs) - MOST_COLUMNS)
    names = [printable(run.name) for run in facts.runs[first:]]
    maps = []
    for measure in (attrgetter("over_limit"), attrgetter("rel_l2")):
        sizes = np.full((len(places), len(names)), NONE)
        for line, place in enumerate(places):
            for column, error in enumerate(place.errors[first:]):
                value = None if error is None else measure(error)
                sizes[line, column] = NONE if value is None else value
        layers = [place.layer for place in places]
        maps.append(HeatMap("run", layers, names, sizes, len(compared) - len(places), 1))
    return maps[0], maps[1]


def _size(error: LayerError | None) -> bool:
    return error is not None and error.over_limit is not None


def _worst(place: PlaceTrend) -> float:
    """How much it must be shown: what fails now first, then by the largest error of any run."""
    sizes = [error.over_limit or 0.0 for error in place.errors if error is not None]
    return max(sizes, default=0.0) + 1e300 * place.fails
