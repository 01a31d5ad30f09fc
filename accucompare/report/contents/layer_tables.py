"""The large tables: *Layers*, with all rows, and *Unmatched*, with the rows of one side only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accucompare.compare.constants import NEAR
from accucompare.compare.result import Result
from accucompare.compare.rows import Reason, Row, Status
from accucompare.report.table import (
    AMBER,
    BROWN,
    COLUMNS,
    DARK,
    DARK_RED,
    GREY,
    GREY_AMBER,
    GREYED,
    MUTED_TEXT,
    PALE_RED,
    SLATE,
    WHITE,
    Chosen,
    Column,
    Line,
    Look,
    Overview,
    SheetItem,
    Table,
    chosen,
    layer,
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

#: How rows are coloured; the first rule that holds wins.
_COLORING = (
    (f'{{reason}}="{Reason.NON_FINITE.value}"', Look(bold=True, color=WHITE, fill=DARK)),
    (
        "OR({})".format(",".join(f'{{reason}}="{reason.value}"' for reason in GREYED)),
        Look(color=SLATE, fill=GREY),
    ),
    (f'{{status}}="{Status.FAIL.value}"', Look(color=DARK_RED, fill=PALE_RED)),
    (f'{{reason}}="{Reason.NOT_DETERMINISTIC.value}"', Look(color=BROWN, fill=GREY_AMBER)),
    (
        f'OR({{reason}}="{Reason.OVER_PRECISE.value}",AND({{status}}="{Status.PASS.value}",'
        f"ISNUMBER({{x limit}}),{{x limit}}>{NEAR}))",
        Look(color=BROWN, fill=AMBER),
    ),
)


def all_layers(comparison: Result, found: Overview) -> Table:
    """The table *Layers*, which links lead to: all rows, or of very many the most telling."""
    rows: Sequence[Row] = comparison.rows
    numbers, heading = None, []
    if found.places is not None:
        rows, numbers = Chosen(comparison.rows, found.places), (found.places + 1).tolist()
        heading = [
            Line([SheetItem(what_is_held(found, "This sheet", "other sheets lead to"), MUTED_TEXT)])
        ]
    return Table(
        "Layers",
        sized(COLUMNS, found.layers.names),
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
                        f"… and {more:,} more below these, which this sheet leaves out.", MUTED_TEXT
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
