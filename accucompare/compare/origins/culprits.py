"""The sites where errors are made, ranked.

**Fed.** Every call got golden's values, so every row over its limit shows an error of its own. An
output of a module without children shows the module's error. An output of one with children shows
the error of its own code after the last child, an input that of the parent's code before the child.

**Free-running, with a baseline.** A passed-on error grows or shrinks as rounding does, so its
excess stays about the same. It was made where the excess jumps: where it is larger than that of
anything that went in.

**Free-running, without a baseline.** All that is known is where limits are first exceeded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import replace

from accucompare.bundle.format import SERIES_ROLES, TRAINING_ROLES, GlobalRecord, Role
from accucompare.compare.constants import ALIKE, CLEAR
from accucompare.compare.origins.describing import is_choice
from accucompare.compare.origins.jumps import by_jump
from accucompare.compare.origins.lost import once_for_an_update, where_cut, with_effect
from accucompare.compare.origins.module_calls import CallKey, call_of, caller_of
from accucompare.compare.origins.row_culprits import (
    OPERATOR,
    STRUCTURAL,
    culprit_of_row,
    excess_of,
    operator_culprits,
    own_error,
)
from accucompare.compare.origins.scaled import find_scaled
from accucompare.compare.origins.sites import Culprit, Stage
from accucompare.compare.rows import UNMATCHED, Reason, Row, Status, is_operator, one_sided_writes

#: What sorts culprits of a fed candidate.
_Rank = tuple[int, bool, bool, int, bool, float, bool, bool, int, float]


def find_culprits(
    all_rows: list[Row], fed: bool, has_baseline: bool, updated: bool = False
) -> list[Culprit]:
    """Where errors are made, the most certain first; each site once, with its largest error.

    Args:
        all_rows: in execution order.
        fed: whether each module call was given golden's values.
        has_baseline: whether errors were judged by a baseline.
        updated: whether steps made updates, so that each goes on with what the one before it made;
            a site then has its first step's largest error.
    """
    rows = with_effect([row for row in all_rows if not is_operator(row.record)])
    children = {
        caller_of(row.record)
        for row in rows
        if row.record is not None and row.record.parent is not None
    }
    operators = operator_culprits(all_rows) if len(rows) < len(all_rows) else []
    written = {id(row) for row in one_sided_writes(rows)}
    own = [row for row in rows if id(row) in written or own_error(row)]
    if fed:
        culprits = _ranked(
            [*operators, *(culprit_of_row(row, children) for row in own)], _off(rows)
        )
    elif has_baseline:
        of_series = (culprit_of_row(row, children) for row in own if _is_told(row))
        of_writes = (culprit_of_row(row, children) for row in own if id(row) in written)
        culprits = [*of_series, *by_jump(rows, children), *operators, *of_writes]
    else:
        culprits = [*(culprit_of_row(row, children) for row in own), *operators]
        # otherwise in execution order
        culprits.sort(key=lambda culprit: culprit.reason in STRUCTURAL and is_of_glue(culprit))
    if not has_baseline and not updated:
        culprits = _of_most_steps_first(culprits, fed)
    culprits = where_cut(
        once_for_an_update(culprits, rows), rows, lambda row: culprit_of_row(row, children)
    )
    if updated and (fed or has_baseline):
        culprits = _first_in_time(culprits)
    return _sites(_differences_first(culprits))


def _first_in_time(culprits: list[Culprit]) -> list[Culprit]:
    """The same order within a step; the first step with a clear error first, earlier ones last."""
    first = min((culprit.record.step for culprit in culprits if _is_clear(culprit)), default=0)
    return sorted(culprits, key=lambda culprit: (culprit.record.step < first, culprit.record.step))


def _of_most_steps_first(culprits: list[Culprit], fed: bool) -> list[Culprit]:
    """Sites off in most steps first: rounding alone passes a table's limit here and there.

    Numbers of steps count by their powers of ``ALIKE``. Fed, clear errors come before all."""
    steps: dict[tuple[str, str, str], set[tuple[int, int]]] = {}
    for culprit in culprits:
        steps.setdefault((culprit.name, culprit.site, culprit.before), set()).add(
            (culprit.record.rank, culprit.record.step)
        )

    def key(culprit: Culprit) -> tuple[bool, bool, int]:
        clear = fed and _is_clear(culprit)
        often = (
            0
            if clear
            else math.floor(math.log(len(steps[culprit.name, culprit.site, culprit.before]), ALIKE))
        )
        return culprit.reason in STRUCTURAL and is_of_glue(culprit), not clear, -often

    return sorted(culprits, key=key)


def _is_clear(culprit: Culprit) -> bool:
    """Whether only an error made there explains it."""
    verdict = culprit.row.verdict
    if culprit.reason in STRUCTURAL or verdict.beyond or verdict.not_all_fed:
        return False
    if is_choice(culprit.row):
        return math.isinf(culprit.size)
    return culprit.over_limit is None or culprit.over_limit >= CLEAR


def _differences_first(culprits: list[Culprit]) -> list[Culprit]:
    """The same order, but in each module call, culprits with different code come first."""
    differences: dict[CallKey, list[Culprit]] = {}
    for culprit in culprits:
        if culprit.difference is not None:
            differences.setdefault(_of(culprit), []).append(culprit)
    ordered = []
    for culprit in culprits:
        ordered += differences.pop(_of(culprit), [])
        if culprit.difference is None:
            ordered.append(culprit)
    return ordered


def _of(culprit: Culprit) -> CallKey:
    return culprit.record.rank, culprit.record.step, culprit.name, culprit.call


def _is_told(row: Row) -> bool:
    """Whether a row is of a step's number, or of what an optimizer was told."""
    record = row.record
    if record is None:
        return False
    return record.role in SERIES_ROLES or (record.is_of_group and not record.shape)


def _off(rows: Iterable[Row]) -> set[CallKey]:
    """The calls with an output over its limit, for whatever reason."""
    failed = (
        row
        for row in rows
        if row.status is Status.FAIL and row.reason not in (*STRUCTURAL, *UNMATCHED)
    )
    return {
        call_of(row.record)
        for row in failed
        if row.record is not None and row.record.role is Role.OUTPUT
    }


def _ranked(culprits: Sequence[Culprit], off: Collection[CallKey]) -> list[Culprit]:
    """Ranked by excess. Of about equal ones outputs come before glue, children before parents.

    Computed buffers come first, since they are wrong before anything runs. Last come another shape
    or kind of number, and what was computed from values that were not fed, which may be the cause:
    such as an output of another shape, which is none of golden's.
    Of inputs of another shape, those come first if their call's outputs are ``off``. A module's
    culprit comes after its operators'. The gradient that a loss sends back comes before its value
    where several ranks made it: it tells whose loss is wrong."""
    sent = {
        (culprit.record.rank, culprit.record.step)
        for culprit in culprits
        if culprit.stage is Stage.LOSS and isinstance(culprit.row.candidate, GlobalRecord)
    }
    most = max((culprit.size for culprit in culprits if math.isfinite(culprit.size)), default=0.0)

    def key(culprit: Culprit) -> _Rank:
        if culprit.reason is Reason.UNREDUCED:  # how large the terms are says nothing
            apart = -math.inf
        elif math.isinf(culprit.size) or not culprit.size:
            apart = -math.inf if culprit.size else math.inf
        else:
            apart = math.floor(math.log(most / culprit.size, ALIKE))
        not_all_fed = culprit.row.verdict.not_all_fed
        record = culprit.record
        harmless = record.role is Role.INPUT and call_of(record) not in off
        structure = (culprit.reason in STRUCTURAL) * (1 + harmless) or culprit.row.verdict.beyond
        if structure:
            # what a call with golden's inputs made in another shape is no golden value for others
            made = record.role is Role.OUTPUT and not not_all_fed
            structure = 1 if made and culprit.reason in STRUCTURAL else 2 + structure
        else:
            structure = 2 * not_all_fed
        depth = culprit.name.count(".") + bool(culprit.name)
        late = (Stage.BETWEEN, Stage.FORWARD, Stage.LOSS, Stage.BACKWARD, Stage.UPDATE).index(
            culprit.stage
        )
        return (
            int(structure),
            not_all_fed,
            culprit.site != "buffer",
            late,
            record.role is Role.LOSS and (record.rank, record.step) in sent,
            apart,
            is_of_glue(culprit),
            _is_of_terms(culprit),  # of a sum, nothing tells the rank
            -depth,
            -culprit.size,
        )

    last: dict[str, _Rank] = {}
    for culprit in culprits:
        if culprit.site == OPERATOR:
            last[culprit.name] = max(last.get(culprit.name, key(culprit)), key(culprit))

    def after_operators(culprit: Culprit) -> tuple[_Rank, bool]:
        own = key(culprit)
        if culprit.site == OPERATOR:
            return own, False
        return max(own, last.get(culprit.name, own)), True

    return sorted(culprits, key=after_operators)


def _is_of_terms(culprit: Culprit) -> bool:
    candidate = culprit.row.candidate
    unreduced = culprit.reason is Reason.UNREDUCED
    boxes = candidate.boxes if isinstance(candidate, GlobalRecord) and not unreduced else ()
    return any(len(box.terms) > 1 for box in boxes)


def is_of_glue(culprit: Culprit) -> bool:
    return culprit.site == "glue" or culprit.record.role is Role.OP_INPUT


def scaled_first(
    culprits: list[Culprit], rows: Iterable[Row], fed: bool, updated: bool = False
) -> list[Culprit]:
    """The culprits; if all gradients are golden's times one number, one culprit replaces theirs.

    Free-running, what comes after that step inherits it. With ``updated`` (see ``find_culprits``)
    it comes first in its step only."""
    scaled = find_scaled(rows)
    if scaled is None:
        return culprits
    row = scaled.row
    first = Culprit("", 0, "module", "", row, excess_of(row), row.reason, scaled=scaled)

    def shows_it(culprit: Culprit) -> bool:
        return culprit.record.role in TRAINING_ROLES and (
            scaled.holds(culprit.row) or (not fed and culprit.record.step >= scaled.step)
        )

    others = [culprit for culprit in culprits if not shows_it(culprit)]
    own = fed and scaled.of_loss is None  # if so, an error of the loss is one beside the factor

    before = [
        own
        and culprit.stage is Stage.LOSS
        and culprit.record.step == scaled.step
        and _is_clear(culprit)
        for culprit in others
    ]
    found = [
        *itertools.compress(others, before),
        first,
        *itertools.compress(others, (not each for each in before)),
    ]
    return _first_in_time(found) if updated else found


def _sites(culprits: Iterable[Culprit]) -> list[Culprit]:
    """Each site once: its first culprit, and how many calls show it."""
    first: dict[tuple[Hashable, ...], Culprit] = {}
    calls: dict[tuple[Hashable, ...], set[tuple[int, int, int]]] = {}
    for culprit in culprits:
        record = culprit.record
        # the loss's value is not its backward
        number = record.role.value if record.role in SERIES_ROLES else ""
        site = (
            culprit.name,
            culprit.site,
            culprit.before,
            culprit.operator,
            culprit.difference,
            culprit.stage.value,
            number,
        )
        first.setdefault(site, culprit)
        calls.setdefault(site, set()).add((record.rank, record.step, culprit.call))
    return [replace(culprit, seen=len(calls[site])) for site, culprit in first.items()]
