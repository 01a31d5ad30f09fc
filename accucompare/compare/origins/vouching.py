"""Values that the two sides hand on in different forms: refactorings, if what follows agrees.

A refactoring passes a flag, returns attention weights, calls a module that the other side lacks, or
gives a mask of another kind. Such a value matters only by what is computed of it. The receiving
call vouches for what goes in. The call around, whose code goes on, vouches for what comes out and
for a call that one side alone makes. A call vouches if all its outputs that both sides have are
within their limits, and so is all that it hands to calls inside it. The value is then listed, and
fails nothing.

- A *one-sided* value becomes ``ONE_SIDED``, and so does its gradient if the gradients around it
  agree too. The same holds for the values of a module that one side alone calls, but not if both
  call it, one of them more often.
- An input of another *form* (kind of number, shape, a flag) becomes ``NOT_COMPARABLE``, as do an
  output of another shape and its gradient. If it is a mask that lets through other positions, what
  is computed of it must be bit for bit golden's.
- If different calls *add to one parameter's gradient*, the whole gradient vouches for them: a tied
  weight is used by a module of its own, or by the code around it.
- Gradients that *no update takes* are those of ``unused_gradients``.
- If only one optimizer version has a *number of a parameter group*, the step's updates vouch.

For a tensor that is handed on, all receiving calls vouch, or none does. A call's own backward
vouches for the gradient of its only output, which autograd does not tell once that is written over.
Nothing vouches for what the model itself returns or is given, for other gradients of what both
sides have, or for what an update leaves behind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

from msgspec.structs import replace

from accucompare.bundle.format import (
    BUFFER_ROLES,
    GRADIENT_ROLES,
    SERIES_ROLES,
    UPDATE_ROLES,
    Layout,
    Record,
    Role,
)
from accucompare.compare.fusions import terms_of_calls
from accucompare.compare.judging import but_plain, with_changed
from accucompare.compare.measuring import are_masks_of_two_kinds
from accucompare.compare.origins.module_calls import (
    CallKey,
    call_of,
    caller_of,
    parameter_of,
    receiver_of,
)
from accucompare.compare.origins.unused_gradients import unused_gradients
from accucompare.compare.remarks import BareRemark, NotOnSide, OneSideWhy
from accucompare.compare.rows import Reason, Row, Status, is_operator

#: The role of the value that a gradient belongs to.
_FORWARD = {Role.GRAD_OUTPUT: Role.OUTPUT, Role.GRAD_INPUT: Role.INPUT}

#: What no call hands on.
_AFTERWARDS = (*UPDATE_ROLES, *BUFFER_ROLES, *SERIES_ROLES)

#: Said of values of two shapes that were compared, and are known to differ.
_BY_VALUES = {BareRemark.NOT_BROADCAST, BareRemark.RESHAPED}

#: (rank, step, name).
_Module = tuple[int, int, str]

#: A value of a module call: the call, its role, its path.
_Value = tuple[CallKey, Role, str]


def vouched_for(rows: Sequence[Row], parameters: Mapping[str, str]) -> Sequence[Row]:
    """The rows; those vouched for become ``ONE_SIDED`` or ``NOT_COMPARABLE`` and fail nothing.

    Args:
        rows: in execution order, each with its reason.
        parameters: golden's names to the candidate's other first names.
    """
    rows = _vouched_for(rows, parameters)
    if not any(row.status is Status.FAIL for row in but_plain(rows)):
        return rows
    unused = unused_gradients(rows, parameters)
    return with_changed(
        rows, lambda row: _unused(row, unused[id(row)]) if id(row) in unused else row
    )


def _unused(row: Row, harmless: bool) -> Row:
    if harmless:
        return _listed(row)
    why = NotOnSide(OneSideWhy.NO_UPDATE_TELLS, golden=row.golden is None)
    remarks = (*row.verdict.remarks, why)
    return replace(row, verdict=replace(row.verdict, reason=Reason.ONE_SIDED, remarks=remarks))


def _vouched_for(rows: Sequence[Row], parameters: Mapping[str, str]) -> Sequence[Row]:
    asked = [
        row
        for row in but_plain(rows)
        if row.reason in (Reason.MISSING, Reason.EXTRA) or _is_of_another_form(row)
    ]
    if not asked:
        return rows
    calls = _Calls(rows)
    alone = {
        _value(row.record)
        for row in asked
        if row.record is not None and row.record.role in (Role.INPUT, Role.OUTPUT)
    }
    updates, moved = _agreeing_updates(rows), _moved_gradients(rows, parameters)
    doubtful = {
        _content(row)
        for row in asked
        if not (calls.vouch_for(row, alone) or id(row) in moved or _step_of_setting(row) in updates)
    }
    listed = {id(row) for row in asked if _content(row) not in doubtful}
    return with_changed(rows, lambda row: _listed(row) if id(row) in listed else row)


def _listed(row: Row) -> Row:
    verdict = row.verdict
    if row.golden is None or row.candidate is None:
        return replace(row, verdict=replace(verdict, reason=Reason.ONE_SIDED))
    remarks = (*verdict.remarks, BareRemark.ALL_OF_IT_AGREES)
    return replace(
        row,
        metrics=None,
        verdict=replace(verdict, reason=Reason.NOT_COMPARABLE, remarks=remarks, over_limit=None),
    )


def _agreeing_updates(rows: Iterable[Row]) -> set[tuple[int, int]]:
    """(rank, step) of updates in which every parameter agrees."""
    agree: dict[tuple[int, int], bool] = {}
    for row in rows:
        if row.record is not None and row.record.role is Role.PARAM_UPDATE:
            place = row.record.rank, row.record.step
            agree[place] = row.status is Status.PASS and agree.get(place, True)
    return {place for place, all_of_them in agree.items() if all_of_them}


def _moved_gradients(rows: Iterable[Row], parameters: Mapping[str, str]) -> set[int]:
    """Rows, by id, of what different calls add to a parameter's gradient, if the sums agree.

    Without an update the sum was not recorded; then the parts must agree bit for bit. For example,
    one side uses a tied weight in a module of its own, the other in the code around it."""
    names = {new: old for old, new in parameters.items()}
    parts: dict[tuple[int, int, str], list[Row]] = {}
    agree: dict[tuple[int, int, str], bool] = {}
    for row in rows:
        record = row.record
        if record is None or record.role not in (Role.CALL_GRAD, Role.PARAM_GRAD):
            continue
        name = parameter_of(record)
        parameter = (
            record.rank,
            record.step,
            name if row.golden is not None else names.get(name, name),
        )
        if record.role is Role.PARAM_GRAD:
            agree[parameter] = row.status is Status.PASS and agree.get(parameter, True)
        elif row.golden is None or row.candidate is None:
            parts.setdefault(parameter, []).append(row)
    both = (
        (parameter, each)
        for parameter, each in parts.items()
        if len({row.golden is None for row in each}) == 2
    )
    moved = (
        each
        for parameter, each in both
        if agree.get(parameter, len(each) == 2 and _same_bits(*each))
    )
    return {id(row) for each in moved for row in each}


def _same_bits(*rows: Row) -> bool:
    """Whether one-sided rows are known to hold the same bits."""
    records = [row.record for row in rows if row.record is not None]
    return (
        all(record.digest for record in records)
        and len({(record.digest, record.dtype) for record in records}) == 1
    )


def _step_of_setting(row: Row) -> tuple[int, int] | None:
    """(rank, step) of a one-sided number of a parameter group; ``None`` for other rows."""
    record = row.record
    alone = row.golden is None or row.candidate is None
    return (
        (record.rank, record.step) if alone and record is not None and record.is_of_group else None
    )


def _content(row: Row) -> tuple[str | None, str | None] | int:
    """The digests of a row's tensors; for any other value the row itself."""
    sides = row.golden, row.candidate
    if any(
        record is not None and (record.layout is not Layout.STRIDED or record.digest is None)
        for record in sides
    ):
        return id(row)
    golden, candidate = (None if record is None else record.digest for record in sides)
    return golden, candidate


def _value(record: Record) -> _Value:
    return call_of(record), record.role, record.path


def _is_of_another_form(row: Row) -> bool:
    """Whether a row fails because each side gives a value in its own form."""
    golden, candidate = row.golden, row.candidate
    if (
        golden is None
        or candidate is None
        or golden.role not in (Role.INPUT, Role.OUTPUT, *_FORWARD)
        or golden.parent is None
        or row.status is not Status.FAIL
    ):
        return False
    if golden.shape != candidate.shape or golden.layout is not candidate.layout:
        return not _BY_VALUES & {*row.verdict.remarks}
    return golden.role is Role.INPUT and (
        row.reason in (Reason.DTYPE, Reason.SHAPE)
        or are_masks_of_two_kinds(golden, candidate)
        # Python's True or False
        or all(
            each.layout is Layout.SCALAR and each.dtype == "bool" for each in (golden, candidate)
        )
    )


class _Calls:
    """Which module calls both sides made, and whether they agree, forward and backward."""

    def __init__(self, rows: Iterable[Row]) -> None:
        # golden's, the candidate's
        self._callers: tuple[dict[CallKey, CallKey | None], dict[CallKey, CallKey | None]] = {}, {}
        self._golden: dict[CallKey, CallKey] = {}  # by the candidate's call
        # by both sides, by golden's names and by the candidate's
        self._called: tuple[set[_Module], set[_Module]] = set(), set()
        # by golden's call, and whether its backward
        self._agree: dict[tuple[CallKey, bool], bool] = {}
        self._returns: set[CallKey] = set()  # calls of golden with a tensor that both return
        self._in_two_forms: set[CallKey] = set()  # and with one that each side has in its own form
        self._in_parts: set[CallKey] = set()  # calls of golden that the candidate makes in parts
        self._others: set[CallKey] = set()  # and whose code made other bits
        for row in rows:
            golden, candidate = row.golden, row.candidate
            for callers, record in zip(self._callers, (golden, candidate), strict=True):
                if (
                    record is not None
                    and not is_operator(record)
                    and record.role is not Role.COMPUTED_BUFFER  # of no call
                ):
                    callers.setdefault(call_of(record), caller_of(record))
            if (
                golden is not None
                and candidate is not None
                and not is_operator(golden)
                and golden.role not in _AFTERWARDS
            ):
                self._golden[call_of(candidate)] = call_of(golden)
                for own in terms_of_calls(candidate):
                    self._golden[call_of(own)] = call_of(golden)
                    self._in_parts.add(call_of(golden))
                for called, record in zip(self._called, (golden, candidate), strict=True):
                    called.add(call_of(record)[:3])
                if _is_of_another_form(row):
                    if golden.role is Role.OUTPUT:
                        self._in_two_forms.add(call_of(golden))
                elif row.reason is not Reason.NOT_COMPARABLE:
                    self._note(row, golden)

    def _note(self, row: Row, record: Record) -> None:
        """Note whether a value agrees, for the call whose code made it."""
        made_by_call = record.role in (
            Role.OUTPUT,
            Role.ARGUMENT_UPDATE,
            Role.GRAD_INPUT,
            Role.CALL_GRAD,
        )
        call = call_of(record) if made_by_call else caller_of(record)
        if call is None:
            return
        if record.role in (Role.OUTPUT, Role.ARGUMENT_UPDATE) and record.layout is Layout.STRIDED:
            self._returns.add(call)
        if row.reason is not Reason.IDENTICAL:
            self._others.add(call)
        part = call, record.role in GRADIENT_ROLES
        self._agree[part] = row.status is Status.PASS and self._agree.get(part, True)

    def vouch_for(self, row: Row, alone: Collection[_Value]) -> bool:
        """Whether what both compute of a row agrees. ``alone``: one-sided or other-form values."""
        record = row.record
        assert record is not None
        if is_operator(record) or record.role not in (
            Role.INPUT,
            Role.OUTPUT,
            Role.ARGUMENT_UPDATE,
            *GRADIENT_ROLES,
        ):
            return False
        backward, golden = record.role in GRADIENT_ROLES, row.golden is not None
        call: CallKey | None = call_of(record)
        own = self._shared(call, golden)
        if (
            backward
            and own is not None
            and (call, _FORWARD.get(record.role), record.path) not in alone
        ):
            # of a value that both have: lost, or the call that gave it was written over in place,
            # and then its own backward agrees
            whole = record.role is Role.GRAD_OUTPUT and not record.path
            return whole and self._agree.get((own, True), False)
        if own is None and call_of(record)[:3] in self._called[not golden]:
            return False  # one call more of what both call
        if own in self._in_parts and call_of(record) != own and record.layout is Layout.STRIDED:
            return False  # numbers tell a part's place, tensors are compared
        call = receiver_of(record)
        while call is not None and (
            (shared := self._shared(call, golden)) is None or shared in self._in_two_forms
        ):
            if shared is not None and not self._agree.get((shared, backward), True):
                return False
            call = self._callers[not golden].get(call)
        shared = self._shared(call, golden)
        if shared is None or shared not in self._returns:
            return False
        both = (row.golden, row.candidate) if row.metrics is not None else (None, None)
        if (
            both[0] is not None
            and both[1] is not None
            and are_masks_of_two_kinds(both[0], both[1])
            and shared in self._others
        ):
            return False  # masks that let through other positions
        # of gradients in two forms, the gradients of parameters may be all that there is
        two_forms = row.golden is not None and row.candidate is not None
        return self._agree.get((shared, False), False) and (
            not backward or self._agree.get((shared, True), two_forms)
        )

    def _shared(self, call: CallKey | None, golden: bool) -> CallKey | None:
        """Golden's call, if both sides made it. ``golden``: whether ``call`` is one of golden's."""
        if call is None or not golden:
            return None if call is None else self._golden.get(call)
        return call if call in self._of_both else None

    @cached_property
    def _of_both(self) -> frozenset[CallKey]:
        return frozenset(self._golden.values())
