"""The large tables: *Layers*, one row per row of the comparison, and *Unmatched*, the rows that have only one side."""

from __future__ import annotations

from collections.abc import Sequence

from accucompare.compare.result import Result
from accucompare.compare.rows import Reason, Row, Status
from accucompare.report.columns import COLUMNS, Column, chosen, layer
from accucompare.report.looks import AMBER, BROWN, DARK, DARK_RED, GREY, GREY_AMBER, PALE_RED, SLATE, UNMATCHED, WHITE, Look
from accucompare.report.sheets import Table

_MOST_LEVELS = 7  # of Excel's outline
_WIDEST_NAME = 56  # characters; wider would leave no room beside the frozen columns
_UNMATCHED_TITLES = (
    "#", "step", "rank", "reason", "layer", "nearest name", "type", "call", "role", "path",
    "golden shape", "candidate shape", "golden dtype", "candidate dtype", "detail",
)  # fmt: skip
_ONE_SIDED = (Reason.MISSING, Reason.EXTRA, Reason.NOT_CALLED)

#: How rows are coloured; the first rule that holds wins.
_COLORING = (
    (f'{{reason}}="{Reason.NON_FINITE.value}"', Look(bold=True, color=WHITE, fill=DARK)),
    ("OR({})".format(",".join(f'{{reason}}="{reason.value}"' for reason in UNMATCHED)), Look(color=SLATE, fill=GREY)),
    (f'{{status}}="{Status.FAIL.value}"', Look(color=DARK_RED, fill=PALE_RED)),
    (f'{{reason}}="{Reason.NOT_DETERMINISTIC.value}"', Look(color=BROWN, fill=GREY_AMBER)),
    (
        f'OR({{reason}}="{Reason.OVER_PRECISE.value}",AND({{status}}="{Status.PASS.value}",ISNUMBER({{x limit}}),{{x limit}}>0.5))',
        Look(color=BROWN, fill=AMBER),
    ),
)


def all_layers(comparison: Result) -> Table:
    """The table *Layers*."""
    return Table(
        "Layers", _sized(COLUMNS, comparison.rows), comparison.rows, nothing="Nothing: the bundles hold no record.",
        frozen=4, dense=True, coloring=_COLORING, depth=lambda row: min(row.module.count("."), _MOST_LEVELS), large=True,
    )  # fmt: skip


def unmatched(comparison: Result) -> Table:
    """The table *Unmatched*."""
    columns = [column._replace(folded=0) for column in chosen(COLUMNS, *_UNMATCHED_TITLES)]
    numbers = [number for number, row in enumerate(comparison.rows, 1) if row.reason in _ONE_SIDED]
    rows = [comparison.rows[number - 1] for number in numbers]
    return Table(
        "Unmatched", _sized(columns, rows), rows, numbers=numbers,
        nothing="Nothing: every record of either bundle has a partner.", frozen=5, dense=True,
    )  # fmt: skip


def _sized(columns: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    """The columns, that of the names as wide as those are."""
    width = min(max(max((len(layer(row)) for row in rows), default=0) + 2, 16), _WIDEST_NAME)
    return [column._replace(width=width) if column.title == "layer" else column for column in columns]
