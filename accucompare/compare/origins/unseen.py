"""Rows that could not be compared and may hide an error, so that there is no all-clear.

**On the way.** A call is judged by its outputs. Not judged is an output without data to compare
(nested, sparse, quantized, inside vmap, unreadable), of another shape than golden's, or with NaN or
Inf on both sides in places that statistics and sketches do not tell. Later code may make its error
small: a normalisation, a wide limit. An opaque object may hold such values; it counts if nothing
else that the call returns is compared, and something after the call is. So a cache beside the
hidden states hides nothing, nor does an object that the whole model returns. Inputs do not count,
since their errors show in the outputs.

**Gradients.** A gradient without data (a sparse one), or of another shape, counts: outputs say
nothing about the backward. A parameter's hides nothing if the update made of it agrees. Fed, an
update over its limit that could not be judged counts, too.

**Chosen.** If rounding alone changes a shape or the number of calls, as the baseline shows, nothing
can judge the row.

**In flat.** FSDP1 may have its parameters as one tensor: no update is compared.

**Many.** If more than half of the tensors could not be compared, too little was compared.

**Too far.** Free-running, an update is made of other gradients than golden's and says little about
its code (Adam turns 1e-5 of a gradient into 1.5e-2 of an update): a row over its limit is not
judged. A step's updates together are. An optimizer that takes signs flips a share of the elements
that is about the gradient's error, so the whole is off by twice that share's root. Parameters made
by such updates are never further off than a free-running value may be.

**Unless proven.** If a call's outputs are bit for bit golden's, nothing inside it went wrong. Fed,
everything compared inside it must be golden's too, since golden's values replaced any error there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from accucompare.bundle.format import (
    BUFFER_ROLES,
    GRADIENT_ROLES,
    TRAINING_ROLES,
    UPDATE_ROLES,
    WRITTEN_ROLES,
    Layout,
    Record,
    Role,
)
from accucompare.compare.constants import FREE_GRADIENTS
from accucompare.compare.judging import but_plain, whole_steps
from accucompare.compare.limits import CEILING, DEFAULT_REL_L2
from accucompare.compare.origins.module_calls import CallKey, call_of, caller_of, parameter_of
from accucompare.compare.remarks import BareRemark, OneSideWhy
from accucompare.compare.rows import Reason, Row, Status, is_operator

#: Layouts of tensors listed without data. A meta tensor is not among them: it has no values.
_WITHOUT_DATA = (Layout.NESTED, Layout.SPARSE, Layout.QUANTIZED, Layout.BATCHED, Layout.UNREADABLE)

#: What is judged as a whole if its parts cannot be.
_SUMMED_UP = (Role.PARAM_UPDATE, Role.PARAM_BEFORE, Role.PARAM_CHANGED)


@dataclass(frozen=True)
class Unseen:
    """The first row that could not be compared and may hide an error, and how many there are."""

    first: Row
    count: int


def unseen_rows(rows: Sequence[Row], fed: bool, dtype: str = "float32") -> Unseen | None:
    """What may hide an error; ``None`` if nothing does.

    Args:
        rows: in execution order.
        dtype: the coarsest floating type that a side computes in.
    """
    if far := _too_far(but_plain(rows), dtype) or [*_of_one_side(but_plain(rows))]:
        return Unseen(far[0], len(far))
    suspects = [row for row in but_plain(rows) if _holds_values(row)]
    if not suspects:
        return None
    rows = list(rows)
    proven = _Proven(rows, fed)
    suspects = [
        row for row in suspects if _is_gradient(row) or (fed and _is_update(row)) or not proven(row)
    ]
    compared = sum(row.status is Status.PASS for row in rows)
    on_the_way = _on_the_way(suspects, rows) or (
        [row for row in suspects if _is_update(row)] if fed else []
    )
    if on_the_way:
        return Unseen(on_the_way[0], len(suspects))
    many = [
        row for row in suspects if row.golden is not None and row.golden.layout is not Layout.OPAQUE
    ]
    if len(many) > compared:
        return Unseen(many[0], len(suspects))
    return None


def _of_one_side(rows: Iterable[Row]) -> Iterator[Row]:
    """The updates of parameters that one side has in flat tensors; what golden alone keeps; and
    gradients that an update may take."""
    for row in rows:
        why = {getattr(each, "why", None) for each in row.verdict.remarks}
        role = None if row.record is None else row.record.role
        if (
            (OneSideWhy.IN_FLAT in why and role is Role.PARAM_UPDATE)
            or (OneSideWhy.KEPT_NOTHING in why and row.golden is not None)
            or OneSideWhy.NO_UPDATE_TELLS in why
            or OneSideWhy.HELD_OTHER in why
        ):
            yield row


def _too_far(rows: Iterable[Row], dtype: str) -> list[Row]:
    """The unjudged rows of updates, if their sum is further off than other gradients make it."""
    # by rank and step: squares of L2 norms of golden's values
    sizes: defaultdict[tuple[int, int, Role], float] = defaultdict(float)
    # of the errors that were not judged
    errors: defaultdict[tuple[int, int, Role], float] = defaultdict(float)
    waived: dict[tuple[int, int, Role], list[Row]] = {}
    for row in rows:
        golden, metrics = row.golden, row.metrics
        if (
            golden is None
            or metrics is None
            or golden.role not in _SUMMED_UP
            or golden.statistics is None
        ):
            continue
        part, size = (golden.rank, golden.step, golden.role), golden.statistics.l2 or 0.0
        sizes[part] += size**2
        if row.verdict.waived and math.isfinite(metrics.rel_l2):
            errors[part] += (metrics.rel_l2 * size) ** 2
            waived.setdefault(part, []).append(row)
    most = 2.0 * math.sqrt(FREE_GRADIENTS * DEFAULT_REL_L2[dtype]), CEILING[dtype][1]
    far = (
        own
        for part, own in waived.items()
        if errors[part] > most[part[-1] is not Role.PARAM_UPDATE] ** 2 * sizes[part]
    )
    return [row for own in far for row in own]


def weights_not_shown(rows: Iterable[Row], names: Iterable[str]) -> tuple[str, ...]:
    """Those of the candidate's parameters, which differ, that nothing compared shows: all bits of
    the module that has them, or of the nearest around it that returned something, are golden's."""
    returned, others = set[str](), set[str]()
    for row in rows:
        if row.candidate is not None:
            if row.candidate.role is Role.OUTPUT:
                returned.add(row.candidate.name)
            if row.reason is not Reason.IDENTICAL:
                others.add(row.candidate.name)

    def is_shown(owner: str) -> bool:
        while owner and owner not in returned:
            owner = owner.rpartition(".")[0]
        return owner in others or owner not in returned

    return tuple(name for name in names if not is_shown(name.rpartition(".")[0]))


def without_output(rows: Iterable[Row]) -> Row | None:
    """The first input of a step in which the whole model returned nothing, or only objects.

    Arguments and buffers that it wrote to (``out=``) also tell what it computed, and so do
    gradients; writes through ``.data`` are not seen."""
    given: dict[CallKey, Row] = {}
    returned: set[CallKey] = set()
    trained = {part.place_of() for part in whole_steps(rows) if part.has_plain(TRAINING_ROLES)}
    for row in but_plain(rows, lambda part: part.places_of(_is_of_model)):
        record = row.record
        if record is None:
            continue
        if not record.name and record.role is Role.INPUT:
            given.setdefault(call_of(record), row)
        elif (
            not record.name
            and record.role in (Role.OUTPUT, Role.ARGUMENT_UPDATE)
            and record.layout is not Layout.OPAQUE
        ):
            returned.add(call_of(record))
        elif record.role in (*TRAINING_ROLES, *BUFFER_ROLES) and row.status is Status.PASS:
            trained.add((record.rank, record.step))
    return next(
        (row for call, row in given.items() if call not in returned and call[:2] not in trained),
        None,
    )


def _is_of_model(record: Record) -> bool:
    """Whether it is what the model was given or returned."""
    return not record.name and record.role not in TRAINING_ROLES


def _holds_values(row: Row) -> bool:
    """Whether a row without data may hold computed values, not one-sided or an input object."""
    golden, candidate = row.golden, row.candidate
    if row.verdict.by_rounding:
        return True
    if row.reason is not Reason.NOT_COMPARABLE or golden is None or candidate is None:
        return False
    if is_operator(golden) or golden.role is Role.COMPUTED_BUFFER:
        return False
    if golden.layout is Layout.OPAQUE:
        return golden.role is Role.OUTPUT
    return golden.layout is not Layout.META


def _is_gradient(row: Row) -> bool:
    """Whether a row is of a gradient that cannot be compared."""
    record: Record | None = row.record
    return (
        record is not None
        and record.role in (*GRADIENT_ROLES, Role.PARAM_GRAD)
        and (record.layout in _WITHOUT_DATA or _has_two_forms(row))
    )


def _has_two_forms(row: Row) -> bool:
    """Whether each side gives a value in its own form, which only what follows vouches for."""
    golden, candidate = row.golden, row.candidate
    if (
        golden is None
        or candidate is None
        or BareRemark.ALL_OF_IT_AGREES not in row.verdict.remarks
    ):
        return False
    return golden.shape != candidate.shape or golden.layout is not candidate.layout


def _is_update(row: Row) -> bool:
    """Whether a row has what an update was given or made, with its data."""
    return (
        row.record is not None
        and row.record.role in UPDATE_ROLES
        and row.record.layout is Layout.STRIDED
    )


def _on_the_way(suspects: Iterable[Row], rows: Sequence[Row]) -> list[Row]:
    """The rows of outputs that nothing judges."""
    judged = {
        call_of(row.record)
        for row in rows
        if row.status is Status.PASS and row.record is not None and row.record.role is Role.OUTPUT
    }
    updated = {
        (row.golden.rank, row.golden.step, parameter_of(row.golden))
        for row in rows
        if row.status is Status.PASS
        and row.golden is not None
        and row.golden.role is Role.PARAM_UPDATE
    }
    # the order of the last row that was compared, by rank and step
    last: dict[tuple[int, int], int] = {}
    for row in rows:
        if row.status is Status.PASS and row.golden is not None:
            step = row.golden.rank, row.golden.step
            last[step] = max(last.get(step, 0), row.golden.order)
    hiding = []
    for row in suspects:
        record = row.record
        assert record is not None
        if row.verdict.by_rounding:
            hiding.append(row)
            continue
        if _is_gradient(row):
            of_parameter = record.role in (Role.CALL_GRAD, Role.PARAM_GRAD)
            if not of_parameter or (record.rank, record.step, parameter_of(record)) not in updated:
                hiding.append(row)
            continue
        between = record.order < last.get((record.rank, record.step), -1)
        alone = record.layout is Layout.OPAQUE and between and call_of(record) not in judged
        if record.role in (Role.OUTPUT, *WRITTEN_ROLES) and (
            record.layout in _WITHOUT_DATA or alone or _has_two_forms(row) or _not_finite(row)
        ):
            hiding.append(row)
    return hiding


def _not_finite(row: Row) -> bool:
    """Whether both sides hold NaN or Inf in unknown places."""
    return all(
        each is not None
        and each.statistics is not None
        and each.statistics.nan + each.statistics.inf > 0
        for each in (row.golden, row.candidate)
    )


class _Proven:
    """Whether the outputs of a row's call, or of a call around it, are bit for bit golden's."""

    def __init__(self, rows: Iterable[Row], fed: bool) -> None:
        others: set[CallKey] = set()  # fed calls with other values, which were not passed on
        self.parents: dict[CallKey, CallKey | None] = {}
        self.same: dict[CallKey, bool] = {}
        for row in rows:
            record = row.record
            if record is None:
                continue
            call = call_of(record)
            self.parents[call] = caller_of(record)
            if record.role is Role.OUTPUT and record.layout is not Layout.OPAQUE:
                self.same[call] = self.same.get(call, True) and row.reason is Reason.IDENTICAL
            if (
                fed
                and row.reason not in (Reason.IDENTICAL, Reason.NOT_COMPARABLE)
                and not is_operator(record)
            ):
                others.add(call)
        for call in others:
            above = self.parents.get(call)
            while above is not None:
                self.same[above] = False
                above = self.parents.get(above)

    def __call__(self, row: Row) -> bool:
        assert row.record is not None
        call: CallKey | None = call_of(row.record)  # unproven if its own output was not compared
        while call is not None:
            if self.same.get(call):
                return True
            call = self.parents.get(call)
        return False
