"""Heat maps of layers by ranks, by steps and by runs: largest errors as multiples of limits."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from accucompare.compare.trends import LayerError, PlaceTrend, TrendFacts
from accucompare.numbers import Array
from accucompare.report.table.extremes import NONE, Extremes, first_of, second_of
from accucompare.report.table.overview import Groups, Overview
from accucompare.text import printable

MOST_LAYERS = 1_000
MOST_COLUMNS = 512


@dataclass(frozen=True)
class HeatMap:
    """One heat map."""

    across: str  # what its columns are: ``rank`` or ``step``
    layers: list[str]  # the names of its lines, in execution order
    columns: list[str]  # numbers of ranks or steps; ranges such as ``0–7`` where there are too many
    # lines by columns: the largest error as a multiple of its limit; 0 where nothing differs,
    # infinite where a row fails without a number, ``NONE`` where nothing was compared
    sizes: Array
    left_out: int  # how many layers are left out, none worse than those shown
    together: int  # how many neighbours share a column


def heat_maps(found: Overview) -> list[HeatMap]:
    """The heat maps with several columns."""
    sides = (("rank", found.ranks, found.pairs_by_rank), ("step", found.steps, found.pairs_by_step))
    return [
        _heat_map(across, groups, pairs, found.layers)
        for across, groups, pairs in sides
        if len(groups.names) > 1
    ]


def heat_note(heat: HeatMap) -> str:
    """What a heat map leaves out, in words; ``""`` for nothing."""
    parts = (
        [f"Of every {heat.together} neighbouring {heat.across}s the worst is shown."]
        if heat.together > 1
        else []
    )
    if heat.left_out:
        parts.append(
            f"The {len(heat.layers):,} worst layers are shown; {heat.left_out:,} more are left out."
        )
    return " ".join(parts)


def _heat_map(across: str, groups: Groups, pairs: Extremes, layers: Groups) -> HeatMap:
    worst = layers.worst.over_limit
    compared = np.flatnonzero(worst > NONE)
    shown = np.sort(compared[np.argsort(-worst[compared], kind="stable")[:MOST_LAYERS]])
    line_of = np.full(len(worst), -1)
    line_of[shown] = np.arange(len(shown))
    together = -(-len(groups.names) // MOST_COLUMNS)
    starts = range(0, len(groups.names), together)
    sizes = np.full((len(shown), len(starts)), NONE)
    lines = line_of[first_of(pairs.groups)]
    np.maximum.at(
        sizes,
        (lines[lines >= 0], second_of(pairs.groups)[lines >= 0] // together),
        pairs.over_limit[lines >= 0],
    )
    ends = [
        (groups.names[start], groups.names[min(start + together, len(groups.names)) - 1])
        for start in starts
    ]
    columns = [str(first) if first == last else f"{first}–{last}" for first, last in ends]
    return HeatMap(
        across,
        [layers.names[at] for at in shown],
        columns,
        sizes,
        len(compared) - len(shown),
        together,
    )


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
