"""Charts of a table's columns."""

from __future__ import annotations

import math
from typing import Any

from openpyxl.chart import LineChart, Reference, ScatterChart
from openpyxl.chart import Series as Drawn
from openpyxl.chart.shapes import GraphicalProperties
from openpyxl.chart.text import RichText
from openpyxl.drawing.line import LineProperties
from openpyxl.drawing.text import (
    CharacterProperties,
    Paragraph,
    ParagraphProperties,
    RichTextProperties,
)
from openpyxl.worksheet.worksheet import Worksheet

from accucompare.report.table import TEXT, Chart, ChartSeries, Table, looks

_POINT = 12_700  # in EMU
_SMALL_MARKS = 400  # for more points than these


def draw(sheet: Worksheet, chart: Chart, table: Table) -> None:
    """Add a chart of the table, which is on one sheet, to a sheet."""
    count = len(table.rows)
    # their types forbid removing legend, title and gridlines
    drawn: Any = ScatterChart() if chart.to_scale else LineChart()
    drawn.width, drawn.height = chart.size
    drawn.legend.position = "b"
    drawn.display_blanks = "span" if chart.spanned else "gap"
    drawn.visible_cells_only = not table.hidden
    under = _cells(table, chart.under)
    for series in chart.series:
        values = _cells(table, series.column, header=True)
        drawn.series.append(_series(series, values, count, under if chart.to_scale else None))
    if not chart.to_scale:
        drawn.set_categories(under)
    title, drawn.x_axis.title, drawn.y_axis.title = (each or None for each in chart.titles)
    drawn.title = title
    names = next(column for column in table.columns if column.title == chart.under).format == TEXT
    _axes(drawn, chart, count, names)
    sheet.add_chart(drawn, chart.at)


def _cells(table: Table, title: str, header: bool = False) -> Reference:
    letter = table.letters[title]
    return Reference(
        range_string=(
            f"'{table.title}'!${letter}${table.header + (not header)}"
            f":${letter}${table.header + len(table.rows)}"
        )
    )


def _series(series: ChartSeries, values: Reference, count: int, under: Reference | None) -> Any:
    drawn: Any = Drawn(values, under, title_from_data=True)
    drawn.smooth = False
    line = LineProperties(
        solidFill=series.color,
        w=round(series.width * _POINT),
        prstDash="dash" if series.dashed else None,
    )
    drawn.graphicalProperties.line = line if series.width else LineProperties(noFill=True)
    drawn.marker.symbol = "none"
    if not series.width or count <= series.marked:
        drawn.marker.symbol = "circle"
        drawn.marker.size = 6 if count <= _SMALL_MARKS else 4
        drawn.marker.graphicalProperties = GraphicalProperties(
            solidFill=series.color, ln=LineProperties(solidFill=looks.WHITE[2:], w=3175)
        )
    return drawn


def _axes(drawn: Any, chart: Chart, count: int, names: bool) -> None:
    x, y = drawn.x_axis, drawn.y_axis
    x.delete = y.delete = False  # openpyxl 3.1 leaves both out otherwise
    if chart.logarithmic:
        y.scaling.logBase = 10
    if chart.bounds:
        y.scaling.min, y.scaling.max = chart.bounds
    y.number_format, y.majorTickMark = "0E+00" if chart.logarithmic else "General", "out"
    y.majorGridlines.spPr = GraphicalProperties(ln=LineProperties(solidFill=looks.GRID, w=6350))
    x.crosses = "min"  # at the foot of the chart, not at 1
    x.tickLblPos = "low"
    if chart.to_scale:
        x.number_format, x.majorGridlines = "General", None
        x.scaling.min, x.scaling.max = chart.to_scale
    else:
        x.tickLblSkip = x.tickMarkSkip = max(1, math.ceil(count / chart.labels))
    x.txPr, y.txPr = _small(rotation=-5_400_000 if names else 0), _small()
    for each in (x, y):
        each.graphicalProperties = GraphicalProperties(
            ln=LineProperties(solidFill=looks.AXIS, w=9525)
        )
    for each in (drawn, x, y):
        if each.title is not None:
            each.title.overlay = False


def _small(rotation: int = 0) -> RichText:
    """Small grey letters; rotation in 60,000ths of a degree."""
    letters = CharacterProperties(sz=800, solidFill=looks.LETTERS)
    paragraph = Paragraph(pPr=ParagraphProperties(defRPr=letters), endParaRPr=letters)
    return RichText(bodyPr=RichTextProperties(rot=rotation, vert="horz"), p=[paragraph])
