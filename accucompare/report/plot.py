"""The chart of the sheet *Divergence* as a matplotlib figure."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from accucompare.bundle.format import Role
from accucompare.compare.result import Result
from accucompare.compare.rows import Reason, Row, Status
from accucompare.errors import ReportError
from accucompare.report.table import layer, limit_on_error, looks
from accucompare.text import cut, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LABELS = 24  # layers named under the axis
_LABEL = 30  # characters of each


def plot_divergence(comparison: Result) -> Figure:
    """The relative L2 error of every output in execution order, with limit, baseline and failures.

    The axis is logarithmic: errors that are zero or not finite are left out. The figure is
    independent of pyplot. Raises ReportError if matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ReportError("plot() needs matplotlib: pip install 'accucompare[plot]'") from None

    class Chart(Figure):
        """A figure that notebooks show without pyplot."""

        def _repr_png_(self) -> bytes:
            image = io.BytesIO()
            self.savefig(image, format="png")
            return image.getvalue()

    rows = _outputs(comparison)
    figure = Chart(figsize=(10, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_yscale("log")
    axes.set_title(
        printable(f"{comparison.candidate.path} against {comparison.golden.path}"), parse_math=False
    )
    unbounded = sum(
        not math.isfinite(math.nan if (error := _error(row)) is None else error) for row in rows
    )
    axes.set_xlabel(
        "outputs in execution order"
        + (f"; {unbounded} whose error is not finite have no place here" if unbounded else "")
    )
    axes.set_ylabel("relative L2 error")
    curves: tuple[tuple[str, str, str, Callable[[Row], float | None]], ...] = (
        ("baseline", looks.BASELINE_CURVE, "-", lambda row: row.baseline_error),
        ("candidate", looks.CURVE, "-", _error),
        ("limit", looks.LIMIT_CURVE, "--", limit_on_error),
        (
            "over its limit",
            looks.OVER,
            "o",
            lambda row: _error(row) if row.status is Status.FAIL else None,
        ),
    )
    for name, colour, style, get in curves:
        heights = [_height(get(row)) for row in rows]
        if not all(map(math.isnan, heights)):
            axes.plot(range(len(rows)), heights, style, label=name, color=f"#{colour[-6:]}")
    if axes.lines:
        axes.legend()
    every = max(1, math.ceil(len(rows) / _LABELS))
    places = range(0, len(rows), every)
    axes.set_xticks(
        list(places),
        [cut(printable(layer(rows[at])), _LABEL) for at in places],
        rotation=60,
        ha="right",
        fontsize=7,
    )
    for label in axes.get_xticklabels():
        label.set_parse_math(False)  # a name with dollars is no formula
    return figure


def _outputs(comparison: Result) -> Sequence[Row]:
    """The measured outputs; in a fed comparison also the inputs that glue made wrong."""
    return [
        row
        for row in comparison.rows
        if row.metrics is not None and row.record is not None
        if row.record.role is Role.OUTPUT or (comparison.fed and row.reason is Reason.GLUE)
    ]


def _error(row: Row) -> float | None:
    return None if row.metrics is None or row.metrics.nothing_finite else row.metrics.rel_l2


def _height(value: float | None) -> float:
    """A value's place on a logarithmic axis; NaN where it has none."""
    return value if value is not None and value > 0 and math.isfinite(value) else math.nan
