"""Culprits of a free-running candidate with a baseline: where the excess of errors jumps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Iterator

from accucompare.bundle.format import GRADIENT_ROLES, SERIES_ROLES, TRAINING_ROLES, Record, Role
from accucompare.compare.constants import SMALLEST_JUMP
from accucompare.compare.origins.describing import is_choice
from accucompare.compare.origins.module_calls import CallKey, parameter_of, receiver_of, source_of
from accucompare.compare.origins.row_culprits import (
    STRUCTURAL,
    culprit_of_row,
    excess_of,
    may_be_culprit,
)
from accucompare.compare.origins.sites import Culprit, Stage
from accucompare.compare.rows import Reason, Row, is_buffer, owner_of


def by_jump(rows: Iterable[Row], children: set[CallKey | None]) -> list[Culprit]:
    """The rows over their limit, ranked by their excess relative to that of what went in."""
    largest: dict[
        Hashable, float
    ] = {}  # the largest excess of what goes on, by who goes on with it
    culprits, backward = list[Culprit](), list[Culprit]()
    for row in _outer_first(rows):
        record = row.record
        if record is None or record.role in SERIES_ROLES:
            continue
        of_backward = record.role in (*GRADIENT_ROLES, Role.PARAM_GRAD) or row.lost
        if record.role in TRAINING_ROLES and not of_backward:
            continue
        made_of, goes_to = _flow(record)
        jump = _jump(row, max(1.0, *(largest.get(each, 0.0) for each in made_of)))
        still_wrong = record.role in (Role.BUFFER_BEFORE, Role.BUFFER_AFTER)
        passed_on = still_wrong and row.reason is Reason.INHERITED
        if may_be_culprit(row) and jump is not None and not passed_on:
            (backward if of_backward else culprits).append(culprit_of_row(row, children, jump))
        # after another choice values may be entirely different without an error of the code
        choice = is_choice(row)
        if goes_to is not None and (choice or row.verdict.excess is not None or is_buffer(record)):
            size = math.inf if choice else excess_of(row)
            largest[goes_to] = max(largest.get(goes_to, 0.0), size)
    culprits.sort(
        key=lambda culprit: (
            culprit.reason in STRUCTURAL,
            culprit.site != "buffer",
            -(culprit.jump or 0.0),
        )
    )
    backward.sort(
        key=lambda culprit: (culprit.record.step, -(culprit.jump or 0.0), _behind(culprit))
    )
    begun = backward[0].record.step if backward else math.inf
    # later steps have weights made of wrong gradients
    kept = [culprit for culprit in culprits if culprit.record.step <= begun]
    changed = [
        culprit
        for culprit in backward
        if culprit.stage is Stage.BETWEEN and culprit.record.step <= begun
    ]
    return [*changed, *kept] or backward


def _outer_first(rows: Iterable[Row]) -> Iterator[Row]:
    """The rows, but of gradients that arrive one after the other the outer modules' first: a module
    may return what its last child does, and the child's is then recorded first."""
    for arrives, group in itertools.groupby(rows, _arrives):
        yield from sorted(
            group, key=lambda row: row.module.count(".") + bool(row.module) if arrives else 0
        )


def _arrives(row: Row) -> bool:
    return row.record is not None and row.record.role is Role.GRAD_OUTPUT


def _behind(culprit: Culprit) -> bool:
    """Whether its backward follows the loss: the gradient may also be the last inner module's."""
    return culprit.stage is not Stage.LOSS


def _flow(record: Record) -> tuple[tuple[Hashable, ...], Hashable | None]:
    """Whose values a value was made of, and who goes on with it: forward or backward of a call, a
    module's buffers, a parameter's gradient."""
    source, receiver = source_of(record), receiver_of(record)
    gradient = record.rank, record.step, parameter_of(record)
    if record.role is Role.PARAM_GRAD:
        return (gradient,), None
    if record.role in TRAINING_ROLES:
        return ((source, True),), gradient if record.role is Role.CALL_GRAD else (receiver, True)
    if is_buffer(record):
        buffers = record.rank, owner_of(record)
        return ((source, False), buffers), buffers
    made_of = ((source, False), (source or ())[::2])
    return made_of, None if receiver is None else (receiver, False)


def _jump(row: Row, before: float) -> float | None:
    """A row's excess relative to that of what went in; ``None`` if its error was passed on."""
    if row.reason in STRUCTURAL:
        return 0.0
    if row.reason is Reason.NON_FINITE or row.lost:
        return math.inf if row.verdict.begins else None
    if is_choice(row):
        return None if row.reason is Reason.INHERITED else excess_of(row)
    jump = 0.0 if math.isinf(before) else excess_of(row) / before
    return jump if jump >= SMALLEST_JUMP else None
