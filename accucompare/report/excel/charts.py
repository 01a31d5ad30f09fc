"""Charts of a table's columns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from accucompare.report.table import TEXT, Chart, ChartSeries, Table, looks

if TYPE_CHECKING:
    from xlsxwriter import Workbook

_PIXELS = 96 / 2.54  # in a cm
_SMALL_MARKS = 400  # of more points than these


def draw(workbook: Workbook, title: str, chart: Chart, table: Table) -> None:
    """Add a chart of the table, which is on one sheet, to the sheet of this title."""
    count = len(table.rows)
    drawn: Any = workbook.add_chart({"type": "line"})
    drawn.set_size({"width": chart.size[0] * _PIXELS, "height": chart.size[1] * _PIXELS})
    drawn.set_legend({"position": "bottom"})
    drawn.show_blanks_as("span" if chart.spanned else "gap")
    if table.hidden:
        drawn.show_hidden_data()
    for series in chart.series:
        drawn.add_series(
            {
                "name": f"='{table.title}'!${table.letters[series.column]}${table.header}",
                "categories": _cells(table, chart.under),
                "values": _cells(table, series.column),
                "smooth": False,
                **_strokes(series, count),
            }
        )
    name, *of_axes = chart.titles
    drawn.set_title({"name": name, "overlay": False} if name else {"none": True})
    titles = [{"name": each, "name_overlay": False} if each else {} for each in of_axes]
    names = next(column for column in table.columns if column.title == chart.under).format == TEXT
    every = max(1, math.ceil(count / chart.labels))
    drawn.set_x_axis(
        titles[0]
        | {
            "label_position": "low",
            "major_tick_mark": "none",
            "interval_unit": every,
            "interval_tick": every,
            "num_font": _letters(rotation=-90 if names else 0),
            "line": _line(looks.AXIS, 0.75),
        }
    )
    drawn.set_y_axis(
        titles[1]
        | {
            "crossing": "min",  # at the foot of the chart, not at 1
            "num_format": "0E+00" if chart.logarithmic else "General",
            "major_tick_mark": "outside",
            "major_gridlines": {"visible": True, "line": _line(looks.GRID, 0.5)},
            "num_font": _letters(),
            "line": _line(looks.AXIS, 0.75),
            **({"log_base": 10} if chart.logarithmic else {}),
            **(dict(zip(("min", "max"), chart.bounds, strict=True)) if chart.bounds else {}),
        }
    )
    sheet: Any = workbook.get_worksheet_by_name(title)
    sheet.insert_chart(chart.at, drawn)


def _cells(table: Table, title: str) -> str:
    """The cells of a column below the header."""
    letter, first = table.letters[title], table.header + 1
    return f"='{table.title}'!${letter}${first}:${letter}${table.header + len(table.rows)}"


def _strokes(series: ChartSeries, count: int) -> dict[str, Any]:
    line: dict[str, Any] = {"none": True}
    if series.width:
        dash = {"dash_type": "dash"} if series.dashed else {}
        line = _line(series.color, series.width) | dash
    if series.width and count > series.marked:
        return {"line": line, "marker": {"type": "none"}}
    marker = {
        "type": "circle",
        "size": 6 if count <= _SMALL_MARKS else 4,
        "fill": {"color": f"#{series.color}"},
        "border": _line(looks.WHITE[2:], 0.25),
    }
    return {"line": line, "marker": marker}


def _line(color: str, width: float) -> dict[str, Any]:
    """A line of this width in points."""
    return {"color": f"#{color}", "width": width}


def _letters(rotation: int = 0) -> dict[str, Any]:
    """Small grey letters; rotation in degrees."""
    return {"size": 8, "color": f"#{looks.LETTERS}", **({"rotation": rotation} if rotation else {})}
