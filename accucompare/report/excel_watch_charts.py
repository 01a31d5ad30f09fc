"""The charts of the sheet *Steps*: grad_norm and the loss scale over the steps, from a hidden sheet with their data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from openpyxl import Workbook
from openpyxl.chart import LineChart, Reference, Series
from openpyxl.chart.shapes import GraphicalProperties
from openpyxl.drawing.line import LineProperties
from openpyxl.worksheet.worksheet import Worksheet

from accucompare.findings.events import Number, Step
from accucompare.report.excel_styles import add_sheet, styled
from accucompare.report.looks import HEADER

MAX_POINTS = 1_000  # about one for each pixel of a chart's width
_CHART_LINES = 17  # rows that a chart covers


class _Drawn(NamedTuple):
    """A point of the charts: the step, and grad_norm and loss scale as a logarithmic axis can show them."""

    step: int
    norm: float | None
    bad: float | None
    scale: float | None


def add_charts(workbook: Workbook, sheet: Worksheet, steps: Sequence[Step], of_rank: str, column: str) -> None:
    """Draw what there is to draw, one chart below the other.

    Args:
        workbook: gets a hidden sheet with the charts' data.
        sheet: where the charts go.
        steps: of one rank.
        of_rank: what to add to the titles.
        column: the letter of the column that the charts begin in.
    """
    points = _points(steps)
    data = _add_data(workbook, points)
    charts = [
        (f"grad_norm{of_rank}", [(2, "1B5FAA"), (3, "C62828")], any(point.norm or point.bad for point in points)),
        (f"loss scale{of_rank}", [(4, "2F6F73")], any(point.scale for point in points)),
    ]
    for number, (title, series, _) in enumerate(chart for chart in charts if chart[2]):
        sheet.add_chart(_chart(data, title, series, len(points)), f"{column}{2 + number * _CHART_LINES}")


def _points(steps: Sequence[Step]) -> list[_Drawn]:
    """At most so many points as a chart has room for: of each run of neighbours the last one, or one that is not finite."""
    run = max(1, math.ceil(len(steps) / MAX_POINTS))
    shown = [_worst(steps[first : first + run]) for first in range(0, len(steps), run)]
    norms = [float(step.grad_norm) for step in shown if step.grad_norm is not None]
    top = max((norm for norm in norms if math.isfinite(norm)), default=1.0) or 1.0
    return [_Drawn(step.step, *_drawn(step.grad_norm, top), step.scale if step.scale and step.scale > 0 else None) for step in shown]


def _worst(steps: Sequence[Step]) -> Step:
    return next((step for step in steps if step.grad_norm is not None and not math.isfinite(float(step.grad_norm))), steps[-1])


def _drawn(norm: Number | None, top: float) -> tuple[float | None, float | None]:
    """A norm that is a number above 0, and, at the top of the others, one that is none: a logarithmic axis has neither 0 nor NaN."""
    if norm is None:
        return None, None
    value = float(norm)
    if not math.isfinite(value):
        return None, top
    return (value if value > 0 else None), None


def _add_data(workbook: Workbook, points: Sequence[_Drawn]) -> Worksheet:
    """The hidden sheet that the charts are drawn from."""
    sheet = add_sheet(workbook, "Chart data", (10, 16, 16, 16))
    sheet.sheet_state = "hidden"
    sheet.append([styled(sheet, title, HEADER) for title in ("step", "grad_norm", "not finite (drawn at the top)", "loss scale")])
    for point in points:
        sheet.append(list(point))
    return sheet


def _chart(data: Worksheet, title: str, lines: Sequence[tuple[int, str]], count: int) -> LineChart:
    chart: Any = LineChart()  # its type says that there may be no legend, title or axes
    chart.title, chart.width, chart.height = title, 24, 8
    chart.display_blanks, chart.visible_cells_only = "gap", False
    chart.legend.position = "b"
    for column, color in lines:
        series = Series(Reference(data, min_col=column, min_row=1, max_row=count + 1), title_from_data=True)
        series.smooth = False
        marks = column == 3 or count <= 60
        series.graphicalProperties.line = LineProperties(noFill=True) if column == 3 else LineProperties(solidFill=color, w=19050)
        series.marker.symbol = "circle" if marks else "none"
        if marks:
            series.marker.size = 6
            series.marker.graphicalProperties = GraphicalProperties(solidFill=color, ln=LineProperties(solidFill="FFFFFF", w=3175))
        chart.series.append(series)
    chart.set_categories(Reference(data, min_col=1, min_row=2, max_row=count + 1))
    x, y = chart.x_axis, chart.y_axis
    x.delete = y.delete = False  # openpyxl 3.1 leaves both out otherwise
    x.title, y.scaling.logBase, y.number_format = "step", 10, "0.0E+00"
    x.crosses, x.tickLblPos = "min", "low"
    x.tickLblSkip = x.tickMarkSkip = max(1, math.ceil(count / 20))
    y.majorGridlines.spPr = GraphicalProperties(ln=LineProperties(solidFill="E5E7EB", w=6350))
    return cast(LineChart, chart)
