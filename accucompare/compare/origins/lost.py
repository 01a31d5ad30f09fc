"""Gradients and updates on one side only: where each was lost, and whether that does harm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from accucompare.bundle.format import UPDATE_ROLES, Record, Role
from accucompare.compare.origins.module_calls import CallKey, call_of, caller_of, parameter_of
from accucompare.compare.origins.sites import Culprit
from accucompare.compare.rows import UNMATCHED, Row, Status

#: (rank, step).
_Step = tuple[int, int]

#: (rank, step, number of the update in the step).
_Update = tuple[int, int, int]


def with_effect(rows: list[Row]) -> list[Row]:
    """The rows without harmless one-sided gradients: nothing else in their step is off.

    If a call and one inside it return the same tensor, its gradient is lost behind the outer one.
    """
    harmed: set[_Step] = set()
    alone: set[CallKey | None] = set()  # calls with a one-sided gradient at their outputs
    for row in rows:
        record = row.record
        if row.status is not Status.FAIL or record is None:
            continue
        if row.reason not in UNMATCHED or record.role in UPDATE_ROLES:
            harmed.add((record.rank, record.step))
        elif record.role is Role.GRAD_OUTPUT:
            alone.add(call_of(record))

    def counts(row: Row) -> bool:
        record = row.record
        if not row.lost or record is None:
            return True
        return (record.rank, record.step) in harmed and not (
            record.role is Role.GRAD_OUTPUT and caller_of(record) in alone
        )

    return [row for row in rows if counts(row)]


def once_for_an_update(culprits: list[Culprit], rows: Iterable[Row]) -> list[Culprit]:
    """The culprits, but one per one-sided update; a parameter's update replaces its gradient."""
    # by update: the parameters that both sides, or one alone, have updated
    kept: dict[_Update, set[str]] = {}
    alone: dict[_Update, set[str]] = {}
    for row in rows:
        if row.record is not None and row.record.role is Role.PARAM_UPDATE:
            found = alone if row.reason in UNMATCHED else kept
            found.setdefault(_update_of(row.record), set()).add(parameter_of(row.record))
    told: set[_Update] = set()
    left = []
    for culprit in culprits:
        record = culprit.record
        if not culprit.row.lost or record.role not in (Role.PARAM_GRAD, Role.PARAM_UPDATE):
            left.append(culprit)
            continue
        update = _update_of(record)
        none_left = update in alone and update not in kept
        if none_left and update not in told:
            told.add(update)
            left.append(replace(culprit, name="", whole=True))
        elif not none_left and not (
            record.role is Role.PARAM_GRAD and parameter_of(record) in alone.get(update, ())
        ):
            left.append(culprit)
    return left


def _update_of(record: Record) -> _Update:
    return record.rank, record.step, record.call


def where_cut(
    culprits: list[Culprit], rows: Iterable[Row], culprit_of: Callable[[Row], Culprit]
) -> list[Culprit]:
    """The culprits; a lost gradient's is where autograd first follows the forward on one side only.

    A step that autograd does not follow at all says nothing.

    Args:
        rows: in execution order.
        culprit_of: the culprit that a row of the forward would be.
    """
    cuts: dict[_Step, Row] = {}
    followed: dict[_Step, list[bool]] = {}
    for row in rows:
        if (
            row.golden is None
            or row.candidate is None
            or row.golden.role not in (Role.INPUT, Role.OUTPUT)
        ):
            continue
        step = (row.golden.rank, row.golden.step)
        sides = (row.golden.requires_grad, row.candidate.requires_grad)
        followed[step] = [
            before or now for before, now in zip(followed.get(step, sides), sides, strict=True)
        ]
        if sides[0] is not sides[1]:
            cuts.setdefault(step, row)
    told = {
        step: cut
        for step, cut in cuts.items()
        if all(followed[step])
        # the model's own input was not lost on its way
        and not (
            (given := cut.record) is not None and given.role is Role.INPUT and given.parent is None
        )
    }

    def moved(culprit: Culprit) -> Culprit:
        record = culprit.record
        if not culprit.row.lost or record.role not in (Role.GRAD_OUTPUT, Role.GRAD_INPUT):
            return culprit
        cut = told.get((record.rank, record.step))
        if cut is None:
            return culprit
        place = culprit_of(cut)
        return replace(
            culprit,
            name=place.name,
            call=place.call,
            site=place.site,
            before=place.before,
            cut=True,
        )

    return [moved(culprit) for culprit in culprits]
