"""The culprit that a row alone shows, and how far its error is from what is expected."""

from __future__ import annotations

import math

from accucompare.bundle.format import SERIES_ROLES, UPDATE_ROLES, Role
from accucompare.compare.constants import MANY
from accucompare.compare.judging import is_noise
from accucompare.compare.limits import differing
from accucompare.compare.origins.describing import are_masks, is_choice
from accucompare.compare.origins.module_calls import CallKey, call_of
from accucompare.compare.origins.sites import Culprit
from accucompare.compare.rows import UNMATCHED, Reason, Row, Status, blame, is_buffer

#: Reasons of another structure, not of other numbers. Such culprits come after those of errors.
STRUCTURAL = (Reason.SHAPE, Reason.DTYPE)

#: Reasons of a row whose error was made there.
_MADE_HERE = (Reason.INTRODUCED, Reason.GLUE, *STRUCTURAL, Reason.UNREDUCED, Reason.RANKS_DISAGREE)

#: The site of an operator's culprit.
OPERATOR = "operator"


def operator_culprits(rows: list[Row]) -> list[Culprit]:
    """The culprits that rows of operators show."""
    by_row = blame(rows)
    culprits = []
    for row in rows:
        if id(row) in by_row and own_error(row) and row.record is not None:
            blamed, record = by_row[id(row)], row.record
            call = (
                record.parent
                if record.role is Role.INPUT and record.parent is not None
                else (record.name, record.call)
            )
            culprits.append(
                Culprit(
                    *call,
                    OPERATOR,
                    "",
                    row,
                    excess_of(row),
                    row.reason,
                    difference=blamed.difference,
                    seen_in=blamed.hints,
                    operator=blamed.operator,
                )
            )
    return culprits


def own_error(row: Row) -> bool:
    """Whether a row shows an error made there."""
    if not may_be_culprit(row):
        return False
    if row.reason is Reason.NON_FINITE or row.lost:
        return row.verdict.begins
    return row.reason in _MADE_HERE


def may_be_culprit(row: Row) -> bool:
    """Whether a row fails by a module or glue, not by inputs, noise, or being one-sided."""
    if (
        row.status is not Status.FAIL
        or (row.reason in UNMATCHED and not row.lost)
        or row.record is None
    ):
        return False
    if row.record.role is Role.INPUT and row.record.parent is None:
        return False
    return row.metrics is None or not is_noise(row.metrics, row.noise)


def culprit_of_row(row: Row, children: set[CallKey | None], jump: float | None = None) -> Culprit:
    """The culprit that a row shows; ``children``: the calls that made others."""
    record, reason = row.record, row.reason
    assert record is not None
    call, site, before = (record.name, record.call), "module", ""
    if record.role is Role.COMPUTED_BUFFER:
        site = "buffer"
    elif record.role is Role.INPUT:
        assert record.parent is not None
        call, site, before = record.parent, "glue", record.name
        reason = Reason.GLUE if reason is Reason.INHERITED else reason
    elif record.role is Role.GRAD_OUTPUT:
        call = ("", 0)
        if record.parent is not None:
            call, site, before = record.parent, "glue", record.name
    elif not is_buffer(record) and record.role not in (*UPDATE_ROLES, *SERIES_ROLES):
        site = "glue" if call_of(record) in children else "module"
        if reason is Reason.INHERITED:
            reason = Reason.GLUE if site == "glue" else Reason.INTRODUCED
    return Culprit(*call, site, before, row, excess_of(row), reason, jump=jump)


def excess_of(row: Row) -> float:
    """An error as a multiple of the baseline's, or else of its limit. Other shapes come last."""
    if row.lost:
        return math.inf
    if row.reason in STRUCTURAL:
        return 0.0
    if are_masks(row):
        return math.inf
    if is_choice(row):
        if row.metrics is None or differing(row.metrics) > MANY * row.metrics.compared:
            return math.inf
        return 1.0
    if row.verdict.excess is not None:
        return row.verdict.excess
    return row.verdict.over_limit if row.verdict.over_limit is not None else 0.0
