"""The large tables: *Layers*, with all rows, and *Unmatched*, with the rows of one side only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accucompare.compare.constants import NEAR
from accucompare.compare.result import Result
from accucompare.compare.rows import Reason, Row, Status
from accucompare.report.table import (
    COLUMNS,
    Chosen,
    Column,
    Line,
    Overview,
    SheetItem,
    Table,
    chosen,
    comparison_columns,
    layer,
    looks,
    what_is_held,
)

_MOST_LEVELS = 7  # of Excel's outline
_WIDEST_NAME = 56  # characters; wider would leave no room beside the frozen columns
_UNMATCHED_TITLES = (
    "#",
    "step",
    "rank",
    "reason",
    "layer",
    "nearest name",
    "type",
    "call",
    "role",
    "path",
    "golden shape",
    "candidate shape",
    "golden dtype",
    "candidate dtype",
    "detail",
)


def _is(*reasons: Reason) -> str:
    return ",".join(f'{{reason}}="{reason.value}"' for reason in reasons)


def _as(reason: Reason, *, bold: bool = False, color: str = "") -> looks.Look:
    look = looks.REASON_LOOK[reason]
    return look._replace(bold=bold, line="", color=color or look.color)


#: How rows are coloured; the first rule that holds wins.
_COLORING = (
    (_is(Reason.NON_FINITE), _as(Reason.NON_FINITE, bold=True)),
    (f"OR({_is(*looks.GREYED)})", _as(Reason.MISSING, color=looks.SLATE)),
    (f'{{status}}="{Status.FAIL.value}"', _as(Reason.INTRODUCED)),
    (_is(Reason.NOT_DETERMINISTIC), _as(Reason.NOT_DETERMINISTIC)),
    (
        f'OR({_is(Reason.OVER_PRECISE)},AND({{status}}="{Status.PASS.value}",'
        f"ISNUMBER({{x limit}}),{{x limit}}>{NEAR}))",
        _as(Reason.OVER_PRECISE),
    ),
)


def all_layers(comparison: Result, found: Overview) -> Table:
    """The table *Layers*, which links lead to: all rows, or of very many the most telling."""
    rows: Sequence[Row] = comparison.rows
    numbers, heading = None, []
    if found.places is not None:
        rows, numbers = Chosen(comparison.rows, found.places), (found.places + 1).tolist()
        heading = [
            Line(
                [
                    SheetItem(
                        what_is_held(found, "This sheet", "other sheets lead to"), looks.MUTED_TEXT
                    )
                ]
            )
        ]
    return Table(
        "Layers",
        sized(comparison_columns(comparison), found.layers.names),
        rows,
        nothing="Nothing: the bundles hold no record.",
        numbers=numbers,
        heading=heading,
        frozen=4,
        dense=True,
        coloring=_COLORING,
        depth=lambda row: min(row.module.count("."), _MOST_LEVELS),
        large=True,
    )


def unmatched(comparison: Result, found: Overview) -> Table:
    columns = [column._replace(folded=0) for column in chosen(COLUMNS, *_UNMATCHED_TITLES)]
    rows = Chosen(comparison.rows, found.one_sided)
    more = found.one_sided_count - len(rows)
    return Table(
        "Unmatched",
        sized(columns, {layer(row) for row in rows}),
        rows,
        numbers=(found.one_sided + 1).tolist(),
        heading=[
            Line(
                [
                    SheetItem(
                        f"… and {more:,} more below these, which this sheet leaves out.",
                        looks.MUTED_TEXT,
                    )
                ]
            )
        ]
        if more
        else [],
        nothing="Nothing: every record of either bundle has a partner.",
        frozen=5,
        dense=True,
    )


def sized(columns: Sequence[Column], names: Iterable[str]) -> list[Column]:
    """The columns, with the layers' as wide as their names."""
    width = min(max(max(map(len, names), default=0) + 2, 16), _WIDEST_NAME)
    return [
        column._replace(width=width) if column.title == "layer" else column for column in columns
    ]
