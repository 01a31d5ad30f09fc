"""Heat maps of layers by ranks and by steps: largest errors as multiples of their limits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from accucompare.numbers import Array
from accucompare.report.table.extremes import NONE, Extremes, first_of, second_of
from accucompare.report.table.overview import Groups, Overview

MOST_LAYERS = 1_000
MOST_COLUMNS = 512


@dataclass(frozen=True)
class HeatMap:
    """One heat map.

    Attributes:
        across: what its columns are: ``rank`` or ``step``.
        layers: the names of its lines, in execution order.
        columns: numbers of ranks or steps; ranges such as ``0–7`` where there are too many.
        sizes: lines by columns: the largest error as a multiple of its limit; 0 where nothing
            differs, infinite where a row fails without a number, ``NONE`` where nothing was
            compared.
        left_out: how many layers are left out, none worse than those shown.
        together: how many neighbours share a column.
    """

    across: str
    layers: list[str]
    columns: list[str]
    sizes: Array
    left_out: int
    together: int


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
