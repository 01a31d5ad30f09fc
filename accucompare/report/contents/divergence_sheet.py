"""The sheet *Divergence*: the relative L2 error of every output in execution order."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from accucompare.bundle.format import Role
from accucompare.compare.result import Result
from accucompare.compare.rows import Row, Status
from accucompare.report.table import (
    COUNT,
    SCIENTIFIC,
    TEXT,
    Chart,
    ChartSeries,
    Column,
    Line,
    Overview,
    SheetItem,
    Table,
    heading_lines,
    layer,
    limit_on_error,
    looks,
)
from accucompare.text import cut

_LABEL = 26  # characters of a layer's name under the axis
_CHART_LINES = 30

#: Below the other curves, and wide enough to show where they cover it.
_BASELINE = ChartSeries("baseline", looks.BASELINE_CURVE, width=3.5)
_SERIES = (
    ChartSeries("relative L2", looks.CURVE),
    ChartSeries("tolerance", looks.LIMIT_CURVE, width=1.25, dashed=True),
    ChartSeries("over tolerance", looks.OVER, width=0),
)


@dataclass(frozen=True)
class _Point:
    """An output: its row, the row's number, its relative L2 error, limit and baseline's error."""

    number: int
    row: Row
    error: float
    limit: float | None
    baseline: float | None


def divergence(comparison: Result, layers: Table, found: Overview) -> Table:
    """The table behind the chart, with the chart above it; its rows link to those of *Layers*."""
    places = found.points.places[found.points.shown].tolist()
    shown = [_point(place, comparison.rows[place]) for place in places]
    low, high = _bounds(shown)

    def drawn(error: float | None) -> float | None:
        """An error on the axis, moved to the nearer end if outside."""
        return None if error is None else high if math.isnan(error) else min(max(error, low), high)

    columns = [
        Column("#", lambda point: point.number, COUNT, 8),
        Column(
            "layer",
            lambda point: layer(point.row),
            TEXT,
            44,
            link=lambda point: found.link(layers, point.number - 1),
        ),
        Column("relative L2", lambda point: drawn(point.error), SCIENTIFIC, 16),
        Column("tolerance", lambda point: point.limit, SCIENTIFIC, 16),
        Column(
            "over tolerance",
            lambda point: drawn(point.error) if point.row.status is Status.FAIL else None,
            SCIENTIFIC,
            16,
        ),
        Column("under the axis", lambda point: _label(layer(point.row)), TEXT, 40),
        Column("measured", lambda point: point.error, SCIENTIFIC, 16),
    ]
    series = list(_SERIES)
    if any(point.baseline is not None for point in shown):
        columns.append(Column("baseline", lambda point: drawn(point.baseline), SCIENTIFIC, 16))
        series.insert(0, _BASELINE)
    titles = ("", "outputs in execution order", "relative L2 error (logarithmic)")
    chart = Chart(
        "A4",
        series,
        "under the axis",
        titles,
        size=(27.5, 15),
        labels=40,
        bounds=(low, high),
        spanned=True,
    )
    caption = SheetItem(_caption(len(found.points.places), shown, low, high), looks.CAPTION)
    heading = heading_lines("Relative L2 error of every output, in execution order")
    heading.append(Line([caption], spread=0, height=44))
    return Table(
        "Divergence",
        columns,
        shown,
        heading=heading,
        space=1 + _CHART_LINES,
        charts=[chart] if shown else [],
    )


def _point(place: int, row: Row) -> _Point:
    error = math.nan if row.metrics is None or row.metrics.nothing_finite else row.metrics.rel_l2
    return _Point(place + 1, row, error, limit_on_error(row), row.baseline_error)


def _bounds(shown: Sequence[_Point]) -> tuple[float, float]:
    """Powers of ten around every positive finite value, as the ends of a logarithmic axis."""
    values = [
        value
        for point in shown
        for value in (point.error, point.limit, point.baseline)
        if value and math.isfinite(value)
    ]
    if not values:
        return 1e-8, 1.0
    low, high = (math.floor(math.log10(value)) for value in (min(values), max(values)))
    return 10.0 ** max(low - 1, -300), 10.0 ** min(high + 1, 300)


def _label(name: str, most: int = _LABEL) -> str:
    """A layer's name cut to its numbers, its last part and what else fits.

    ``encoder.layer.2.attention.output.LayerNorm`` becomes ``…layer.2…output.LayerNorm``."""
    parts = name.split(".")
    kept = {len(parts) - 1}
    wanted = [at for at, part in enumerate(parts) if part.isdigit()]
    wanted += [at for at in (near - 1 for near in wanted) if at >= 0]  # what is numbered
    for at in (*wanted, *range(len(parts) - 1, -1, -1)):
        if len(_joined(parts, kept | {at})) <= most:
            kept.add(at)
    return cut(_joined(parts, kept), most)


def _joined(parts: Sequence[str], kept: Collection[int]) -> str:
    """The kept parts, with dots between neighbours and ``…`` for gaps."""
    name, before = "", -1
    for at in sorted(kept):
        name += ("." if name else "") if at == before + 1 else "…"
        name, before = name + parts[at], at
    return name


def _caption(count: int, shown: Sequence[_Point], low: float, high: float) -> str:
    if not shown:
        return "No output could be measured, so there is nothing to draw."
    parts = [
        "Tolerance: the limit on the relative L2 error where there is one; elsewhere the one that"
        " the error as a"
        + " multiple of its limit implies (relative L2 / x limit), and none where that is unknown."
    ]
    if any(point.row.record is not None and point.row.record.role is Role.INPUT for point in shown):
        parts.append("Inputs that glue made wrong are drawn, too.")
    if any(point.baseline is not None for point in shown):
        parts.append("Baseline: the error that rounding alone makes.")
    if any(point.error < low for point in shown):
        parts.append(
            "A logarithmic axis has no zero: outputs without any difference are drawn at"
            f" {low:.0e}; see the column measured."
        )
    if any(not point.error <= high for point in shown):
        parts.append(f"Errors that are infinite or not a number are drawn at {high:.0e}.")
    if len(shown) < count:
        run = math.ceil(count / len(shown))
        parts.append(
            f"{count:,} outputs are too many for a chart: of each {run} neighbours the worst is"
            " drawn."
        )
    return " ".join(parts)
