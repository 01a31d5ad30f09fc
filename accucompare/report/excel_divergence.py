"""The sheet *Divergence*: the relative L2 error of every output over the execution order, as a chart and the data behind it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, cast

from openpyxl import Workbook
from openpyxl.cell import Cell
from openpyxl.chart import LineChart, Reference, Series
from openpyxl.chart.shapes import GraphicalProperties
from openpyxl.chart.text import RichText
from openpyxl.drawing.line import LineProperties
from openpyxl.drawing.text import CharacterProperties, Paragraph, ParagraphProperties, RichTextProperties
from openpyxl.worksheet.hyperlink import Hyperlink
from openpyxl.worksheet.worksheet import Worksheet

from accucompare.bundle.records import Role
from accucompare.compare.result import Result
from accucompare.compare.rows import Reason, Row, Status
from accucompare.report.columns import Value, layer
from accucompare.report.excel_layers import location
from accucompare.report.excel_rows import number_or_text
from accucompare.report.excel_styles import add_sheet, styled
from accucompare.report.looks import CAPTION, CELL, COUNT_CELL, HEADER, HEADER_RIGHT, LINK, SCIENTIFIC_CELL, SECTION
from accucompare.text import cut

TITLE = "Divergence"
MAX_POINTS = 1_000  # about one for each pixel of the chart's width
_LABEL = 26  # characters of a layer's name under the axis
_CHART_LINE, _HEADER_LINE = 4, 34
_COLUMNS = (
    ("#", 8),
    ("layer", 44),
    ("relative L2", 16),
    ("tolerance", 16),
    ("over tolerance", 16),
    ("under the axis", 40),
    ("measured", 16),
    ("baseline", 16),
)


class Point(NamedTuple):
    """One output in the chart: its row, the row's number, its relative L2 error, the limit on that, and the baseline's."""

    number: int
    row: Row
    error: float
    limit: float | None
    baseline: float | None


def limit_of(row: Row) -> float | None:
    """The limit on the relative L2 error: the one in force, or else the one that the error as a multiple of its limit implies."""
    if row.verdict.rel_l2_limit is not None:
        return row.verdict.rel_l2_limit or None  # a logarithmic axis has no zero
    used = row.verdict.used
    if row.metrics is None or not used or not math.isfinite(used):
        return None
    implied = row.metrics.rel_l2 / used
    return implied if implied > 0 and math.isfinite(implied) else None


def points(rows: Sequence[Row], glue: bool = False) -> list[Point]:
    """The outputs that were measured, in execution order; if asked for, also the inputs that glue made wrong."""
    return [
        Point(number, row, math.nan if row.metrics.nothing_finite else row.metrics.rel_l2, limit_of(row), row.baseline)
        for number, row in enumerate(rows, 1)
        if row.metrics is not None and row.record is not None and _is_drawn(row, glue)
    ]


def _is_drawn(row: Row, glue: bool) -> bool:
    assert row.record is not None
    return row.record.role is Role.OUTPUT or (glue and row.reason is Reason.GLUE)


def thinned(found: list[Point], most: int) -> list[Point]:
    """At most ``most`` points: of each run of neighbours the one that fails with the largest error, or else the largest error."""
    if len(found) <= most:
        return found
    run = math.ceil(len(found) / most)
    return [max(found[start : start + run], key=_height) for start in range(0, len(found), run)]


def _height(point: Point) -> tuple[bool, float]:
    return point.row.status is Status.FAIL, -1.0 if math.isnan(point.error) else point.error


def axis(shown: Sequence[Point]) -> tuple[float, float]:
    """Powers of ten that a logarithmic axis runs between, so that every positive finite number drawn lies inside."""
    values = [value for point in shown for value in (point.error, point.limit, point.baseline) if value and math.isfinite(value)]
    if not values:
        return 1e-8, 1.0
    low, high = (math.floor(math.log10(value)) for value in (min(values), max(values)))
    return 10.0 ** max(low - 1, -300), 10.0 ** min(high + 1, 300)


def add_divergence(workbook: Workbook, comparison: Result) -> None:
    """Add the sheet."""
    found = points(comparison.rows, glue=comparison.fed)  # which shows nowhere else: what comes after was given golden's values
    shown = thinned(found, MAX_POINTS)
    low, high = axis(shown)
    third = any(point.baseline is not None for point in shown)
    columns = _COLUMNS if third else _COLUMNS[: _BASELINE - 1]
    series = [each for each in _SERIES if third or each.column != _BASELINE]
    sheet = add_sheet(workbook, TITLE, [width for _, width in columns])
    sheet.row_dimensions[1].height = 26
    sheet.row_dimensions[2].height = 44
    sheet.merged_cells.add("A2:G2")
    sheet.append([styled(sheet, "Relative L2 error of every output, in execution order", SECTION)])
    sheet.append([styled(sheet, _caption(found, shown, low, high), CAPTION)])
    for _ in range(2, _HEADER_LINE - 1):
        sheet.append([])
    sheet.append(
        [styled(sheet, title, HEADER._replace(indent=1) if title in ("layer", "under the axis") else HEADER_RIGHT) for title, _ in columns]
    )
    looks = (
        COUNT_CELL,
        LINK._replace(indent=1),
        SCIENTIFIC_CELL,
        SCIENTIFIC_CELL,
        SCIENTIFIC_CELL,
        CELL._replace(indent=1),
        SCIENTIFIC_CELL,
        SCIENTIFIC_CELL,
    )
    cells = [styled(sheet, None, look) for look in looks]  # filled again for every row: making one costs as much as writing it
    for point in shown:
        error = _drawn(point.error, low, high)
        baseline = None if point.baseline is None else _drawn(point.baseline, low, high)
        name = layer(point.row)
        failing = error if point.row.status is Status.FAIL else None
        cells[1].hyperlink = Hyperlink(ref="A1", location=location(point.number), tooltip="Show the row in Layers")
        values = (point.number, name, error, point.limit, failing, label(name), point.error, baseline)
        sheet.append([_filled(cell, value) for cell, value in zip(cells, values, strict=True)])
    if shown:
        sheet.add_chart(_chart(sheet, series, len(shown), low, high), f"A{_CHART_LINE}")


def label(name: str, most: int = _LABEL) -> str:
    """A layer's name in few characters: with its numbers, which tell blocks apart, its last part, and as much of the rest as fits.

    ``encoder.layer.2.attention.output.LayerNorm`` is ``…layer.2…output.LayerNorm``: what is left out is so between its parts.
    """
    parts = name.split(".")
    kept = {len(parts) - 1}
    wanted = [at for at, part in enumerate(parts) if part.isdigit()]
    wanted += [at for at in (near - 1 for near in wanted) if at >= 0]  # what is numbered
    for at in (*wanted, *range(len(parts) - 1, -1, -1)):
        if len(_joined(parts, kept | {at})) <= most:
            kept.add(at)
    return cut(_joined(parts, kept), most)


def _joined(parts: Sequence[str], kept: Collection[int]) -> str:
    """The parts that are kept, with dots between neighbours and ``…`` for each gap."""
    name, before = "", -1
    for at in sorted(kept):
        name += ("." if name else "") if at == before + 1 else "…"
        name, before = name + parts[at], at
    return name


def _drawn(error: float, low: float, high: float) -> float:
    """Where on the axis an error is: at the ends what has no place there."""
    return high if math.isnan(error) else min(max(error, low), high)


def _filled(cell: Cell, value: Value) -> Cell | None:
    """The cell with the value, which is never taken for a formula; ``None`` for nothing."""
    if value is None or value == "":
        return None
    cell.value = number_or_text(value)
    if isinstance(cell.value, str):
        cell.data_type = "s"
    return cell


def _caption(found: Sequence[Point], shown: Sequence[Point], low: float, high: float) -> str:
    if not found:
        return "No output could be measured, so there is nothing to draw."
    parts = [
        "Tolerance: the limit on the relative L2 error where there is one; elsewhere the one that the error as a"
        + " multiple of its limit implies (relative L2 / x limit), and none where that is unknown."
    ]
    if any(point.row.record is not None and point.row.record.role is Role.INPUT for point in found):
        parts.append("Inputs that glue made wrong are drawn, too.")
    if any(point.baseline is not None for point in found):
        parts.append("Baseline: the error that rounding alone makes.")
    if any(point.error < low for point in shown):
        parts.append(f"A logarithmic axis has no zero: outputs without any difference are drawn at {low:.0e}; see the column measured.")
    if any(not point.error <= high for point in shown):
        parts.append(f"Errors that are infinite or not a number are drawn at {high:.0e}.")
    if len(shown) < len(found):
        run = math.ceil(len(found) / len(shown))
        parts.append(f"{len(found):,} outputs are too many for a chart: of each {run} neighbours the worst is drawn.")
    return " ".join(parts)


class _Series(NamedTuple):
    """A line of the chart: the column of its data, how it is drawn, and the colour of its markers."""

    column: int
    line: LineProperties
    marker: str = ""


_BASELINE = 8
_SERIES = (  # widths are in EMU: 12,700 to the point
    _Series(_BASELINE, LineProperties(solidFill="A5D6A7", w=44450)),  # below the others, and seen where they cover it
    _Series(3, LineProperties(solidFill="1B5FAA", w=19050)),
    _Series(4, LineProperties(solidFill="C77700", w=15875, prstDash="dash")),
    _Series(5, LineProperties(noFill=True), "C62828"),
)


def _chart(sheet: Worksheet, drawn: Sequence[_Series], count: int, low: float, high: float) -> LineChart:
    chart: Any = LineChart()  # its type says that there may be no legend, title or gridlines
    chart.width, chart.height = 27.5, 15  # cm
    chart.legend.position = "b"
    chart.display_blanks = "span"
    last = _HEADER_LINE + count
    for column, line, marker in drawn:
        series = Series(Reference(sheet, min_col=column, min_row=_HEADER_LINE, max_row=last), title_from_data=True)
        series.smooth = False
        series.graphicalProperties.line = line
        series.marker.symbol = "circle" if marker else "none"
        if marker:
            series.marker.size = 6 if count <= 400 else 4
            series.marker.graphicalProperties = GraphicalProperties(solidFill=marker, ln=LineProperties(solidFill="FFFFFF", w=3175))
        chart.series.append(series)
    chart.set_categories(Reference(sheet, min_col=6, min_row=_HEADER_LINE + 1, max_row=last))
    _axes(chart, count, low, high)
    return cast(LineChart, chart)


def _axes(chart: Any, count: int, low: float, high: float) -> None:
    x, y = chart.x_axis, chart.y_axis
    x.delete = y.delete = False  # openpyxl 3.1 leaves both out otherwise
    x.title, y.title = "outputs in execution order", "relative L2 error (logarithmic)"
    y.scaling.logBase, y.scaling.min, y.scaling.max = 10, low, high
    y.number_format, y.majorTickMark = "0E+00", "out"
    y.majorGridlines.spPr = GraphicalProperties(ln=LineProperties(solidFill="E5E7EB", w=6350))
    x.crosses = "min"  # at the foot of the chart, not at 1
    x.tickLblPos = "low"
    x.tickLblSkip = x.tickMarkSkip = max(1, math.ceil(count / 40))
    x.txPr, y.txPr = _small(rotation=-5_400_000), _small()
    for each in (x, y):
        each.title.overlay = False
        each.graphicalProperties = GraphicalProperties(ln=LineProperties(solidFill="9CA3AF", w=9525))


def _small(rotation: int = 0) -> RichText:
    """Small grey letters; rotation in 60,000ths of a degree."""
    letters = CharacterProperties(sz=800, solidFill="4B5563")
    paragraph = Paragraph(pPr=ParagraphProperties(defRPr=letters), endParaRPr=letters)
    return RichText(bodyPr=RichTextProperties(rot=rotation, vert="horz"), p=[paragraph])
