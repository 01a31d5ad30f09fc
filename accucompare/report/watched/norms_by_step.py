"""The sheets with a number of each parameter in each step: a heat map, and a few curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from accucompare.findings.analysis import Analysis, Ranks
from accucompare.report.table import (
    COUNT,
    SCIENTIFIC,
    Chart,
    ChartSeries,
    Column,
    Scale,
    Table,
    heading_lines,
    looks,
    thinned,
)
from accucompare.report.watched.watch_columns import (
    MEASURES,
    LayerStep,
    WatchMeasure,
    layer_steps,
    main_run,
)
from accucompare.text import printable

#: The most parameters of a sheet; each has a column.
_MOST = 500
#: How many of the largest, and of the smallest at the end, are drawn.
_DRAWN = 4
_CHART_LINES = 17


def norm_sheets(ranks: Ranks) -> list[Table]:
    """A sheet for each number of the parameters in the main rank's log; none without numbers."""
    run = main_run(ranks)
    of_rank = f", rank {run.start.rank}" if ranks.several else ""
    return [
        sheet
        for measure in MEASURES
        if (sheet := _sheet(run, measure, measure.title + of_rank)) is not None
    ]


def _sheet(run: Analysis, measure: WatchMeasure, title: str) -> Table | None:
    names, steps = layer_steps(run, measure)
    if not steps:
        return None
    rows = thinned(steps, lambda group: group[-1])
    shown = names[:_MOST]
    columns = [Column("step", lambda row: row.step, COUNT, 10)]
    columns += [
        Column(printable(name), _number(name), SCIENTIFIC, 14, "difference", scale=Scale.MATRIX)
        for name in shown
    ]
    note = (
        "Parameters side by side, steps below each other; darker is larger. Empty: not looked at."
    )
    note += f" {len(names) - _MOST:,} more parameters are left out." if len(names) > _MOST else ""
    drawn = _ends(rows, shown)
    series = [
        ChartSeries(printable(name), color)
        for name, color in zip(drawn, looks.CURVES, strict=False)
    ]
    titles = (f"{title}: the largest and the smallest at the end", "step", "")
    chart = Chart("B4", series, "step", titles, size=(24, 8), labels=20, spanned=True)
    return Table(
        measure.sheet,
        columns,
        rows,
        heading=heading_lines(title, note),
        space=_CHART_LINES,
        frozen=1,
        dense=True,
        charts=[chart] if series else [],
    )


def _number(name: str) -> Callable[[LayerStep], float | None]:
    return lambda row: row.numbers.get(name)


def _ends(rows: Sequence[LayerStep], names: Sequence[str]) -> list[str]:
    """Parameters with the largest and smallest last numbers that a logarithmic axis can show."""
    known = {
        name: [each for row in rows if (each := row.numbers.get(name)) is not None]
        for name in names
    }
    last = {
        name: numbers[-1]
        for name, numbers in known.items()
        if numbers and all(0 < each < math.inf for each in numbers)
    }
    by_size = sorted(last, key=last.__getitem__, reverse=True)
    return by_size if len(by_size) <= 2 * _DRAWN else [*by_size[:_DRAWN], *by_size[-_DRAWN:]]
