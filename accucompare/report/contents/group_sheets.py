"""Summaries of many rows, ranks or steps: *By layer*, *By rank*, *By step*, heat maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from accucompare.compare.result import Result
from accucompare.numbers import Array
from accucompare.report.contents.layer_tables import sized
from accucompare.report.table import (
    COUNT,
    EXCESS,
    LOGARITHM,
    MOST_ROWS,
    NONE,
    SCIENTIFIC,
    TEXT,
    Column,
    Groups,
    HeatMap,
    Overview,
    Scale,
    Table,
    Value,
    heading_lines,
    heat_maps,
    heat_note,
    looks,
)

_SAME, _NARROW = "=", 6.5


def summaries(comparison: Result, layers: Table, found: Overview) -> list[Table]:
    """The sheets, linked to rows of *Layers*; none if the rows tell everything."""
    if not found.summarised:
        return []
    tables = [_groups(comparison, layers, found, "layer", found.layers)]
    for name, groups in (("rank", found.ranks), ("step", found.steps)):
        if len(groups.names) > 1:
            tables.append(_groups(comparison, layers, found, name, groups))
    return [*tables, *map(heat_table, heat_maps(found))]


def group_columns(name: str, groups: Groups) -> list[Column]:
    """Columns for groups, which are numbered rows; ``name``: ``layer``, ``rank`` or ``step``."""

    def of(values: Array) -> Any:
        listed = [None if value == NONE else value for value in values.tolist()]
        return lambda group: listed[group]

    def counted(values: Array) -> Any:
        return values.tolist().__getitem__

    of_layers, worst = name == "layer", groups.worst
    columns = [
        Column(
            name, groups.names.__getitem__, TEXT if of_layers else COUNT, 40 if of_layers else 8
        ),
        Column("rows", counted(groups.rows), COUNT, 10),
        Column("failing", counted(groups.failing), COUNT, 10, "verdict"),
        Column("layers failing", counted(groups.layers_failing), COUNT, 10, "verdict"),
        Column("not compared", counted(groups.not_compared), COUNT, 10, "verdict"),
        Column("worst x limit", of(worst.over_limit), EXCESS, 10, "judgement", scale=Scale.BAR),
        Column("worst excess", of(worst.excess), EXCESS, 10, "baseline", sparse=True),
        Column(
            "worst relative L2", of(worst.rel_l2), SCIENTIFIC, 12, "difference", scale=Scale.SHADES
        ),
    ]
    return [column for column in columns if column.title != "layers failing" or not of_layers]


def _groups(comparison: Result, layers: Table, found: Overview, name: str, groups: Groups) -> Table:
    places = groups.worst.places.tolist()

    def where(group: int) -> Value:
        return comparison.place(comparison.rows[places[group]]) if places[group] >= 0 else ""

    columns = sized(group_columns(name, groups), groups.names if name == "layer" else [])
    columns += [
        Column("#", lambda group: places[group] + 1 if places[group] >= 0 else None, COUNT, 10),
        Column(
            "worst row",
            where,
            TEXT,
            60,
            link=lambda group: found.link(layers, places[group] if places[group] >= 0 else None),
        ),
    ]
    note = (
        f"All {found.total:,} rows by their {name}; worst: by the error as a multiple of its limit."
        " inf: it fails without a number"
    )
    rows: Sequence[int] = range(len(groups.names))
    if len(rows) > MOST_ROWS:
        rows = np.sort(np.argsort(-groups.worst.over_limit, kind="stable")[:MOST_ROWS]).tolist()
        note += f"; {len(groups.names) - MOST_ROWS:,} layers, none of them worse, are left out"
    failing = groups.failing.tolist()
    return Table(
        f"By {name}",
        columns,
        rows,
        nothing="No row.",
        heading=heading_lines(f"What the rows of each {name} come to", f"{note}."),
        frozen=1,
        dense=True,
        fill=lambda group: looks.PALE_RED if failing[group] else "",
    )


def heat_table(
    heat: HeatMap,
    title: str = "",
    note: str = "",
    scale: Scale = Scale.HEAT,
    narrow: float = _NARROW,
) -> Table:
    """A heat map of log10: a cell shows how many powers of ten an error is over its limit, or what
    else ``title`` and ``note`` say."""
    lines = [[_power(size) for size in line] for line in heat.sizes.tolist()]

    def cell(at: int) -> Any:
        return lambda line: lines[line][at]

    where = "on" if heat.across == "rank" else "in"
    title = title or f"Layer by {heat.across}"
    note = note or (
        f"The largest error of each layer {where} each {heat.across}, as a multiple of its limit,"
        " in powers of ten: over 0 fails. =: no difference. inf: fails without a number. Empty: not"
        " compared."
    )
    columns = [Column("layer", heat.layers.__getitem__, TEXT, 40)]
    columns += [
        Column(name, cell(at), LOGARITHM, max(narrow, len(name) + 2), "difference", scale=scale)
        for at, name in enumerate(heat.columns)
    ]
    return Table(
        title,
        sized(columns, heat.layers),
        range(len(heat.layers)),
        nothing="Nothing was compared.",
        heading=heading_lines(title, f"{note} {heat_note(heat)}".rstrip()),
        frozen=1,
        dense=True,
    )


def _power(size: float) -> Value:
    if size == NONE:
        return None
    return _SAME if not size else math.log10(size) if math.isfinite(size) else math.inf
