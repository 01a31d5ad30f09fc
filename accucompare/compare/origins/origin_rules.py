"""What errors of each role come from, and what they make wrong: a table of free runs, one of fed.

Free-running, an error goes on to all that follows. Fed, only what golden's values did not replace
goes on.

A backward goes through the calls in the other direction. The code behind an output (its parent's or
the loss) made the gradient that arrives there (``grad_output``). A call itself makes what it adds
to the gradients of its inputs (``grad_input``) and parameters (``call_grad``). A parameter's whole
gradient (``param_grad``) is the sum of those. An update is made of that, the parameter and the
optimizer's state.

What a call writes into a buffer goes only into later calls of its module. What it writes into an
argument goes on as its outputs do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

import msgspec

from accucompare.bundle.format import GRADIENT_ROLES, NODE_ROLES, Record, Role
from accucompare.compare.origins.module_calls import (
    CallKey,
    call_of,
    caller_of,
    parameter_of,
    receiver_of,
    source_of,
)
from accucompare.compare.rows import (
    UNMATCHED,
    Reason,
    Status,
    Verdict,
    is_wrong,
    operator_of,
    owner_of,
)


@dataclass
class RowsSoFar:
    """What the rows so far show."""

    recorded: Collection[str] | None = None  # the modules that golden has; ``None`` for all
    with_rows: set[CallKey] = field(default_factory=set)  # calls with a row of their own
    callers: set[CallKey | None] = field(default_factory=set)  # calls that made calls
    # (rank, step) with a recorded update
    updated: set[tuple[int, int]] = field(default_factory=set)
    # in which steps each taint became wrong, for any reason (``None``) and for each
    wrong: dict[tuple[str, Hashable, Reason | None], set[int]] = field(default_factory=dict)


def _fails(verdict: Verdict) -> bool:
    return verdict.status is Status.FAIL


def _is_alone(verdict: Verdict) -> bool:
    return verdict.reason in UNMATCHED


def _is_own(verdict: Verdict) -> bool:
    return is_wrong(verdict) and verdict.reason is not Reason.INHERITED


def _may_differ(verdict: Verdict) -> bool:
    return _fails(verdict) or verdict.by_rounding or verdict.reason is Reason.NOT_DETERMINISTIC


def _differs(verdict: Verdict) -> bool:
    return verdict.reason is not Reason.IDENTICAL


def _differs_on_both(verdict: Verdict) -> bool:
    # what only one of two optimizers keeps is the optimizer's own
    alone = not verdict.waived and verdict.reason in (Reason.NOT_COMPARABLE, *UNMATCHED)
    return _differs(verdict) and not alone


def _now(age: int) -> bool:
    return age == 0


def _last(age: int) -> bool:
    return age == 1


def _earlier(age: int) -> bool:
    return age > 0


@dataclass(frozen=True)
class Taint:
    """What an error may make wrong. Called with a record, it says whether that is wrong by now."""

    # what, whose: of which call, module, parameter, … a record shows it; ``None``: of none
    what: str
    whose: Callable[[Record], Hashable | None]
    if_: Callable[[Verdict], bool] = is_wrong  # which verdicts make it wrong
    fed: bool = False  # whether golden's value, where one was fed, keeps it right
    # whether it counts if it became wrong so many steps ago
    when: Callable[[int], bool] = lambda age: True
    why: Reason | None = None  # the reason that counts; ``None`` for any

    def __call__(self, seen: RowsSoFar, record: Record) -> bool:
        whose = self.whose(record)
        steps = seen.wrong.get((self.what, whose, self.why), ())
        return any(self.when(record.step - step) for step in steps)


def _value_of(record: Record) -> tuple[CallKey, Role, str]:
    """A value of the forward, from its record or its gradient's."""
    if record.role not in GRADIENT_ROLES:
        return call_of(record), record.role, record.path
    role = Role.OUTPUT if record.role is Role.GRAD_OUTPUT else Role.INPUT
    return call_of(record), role, record.path.partition("#")[0]


def _parameter_of(record: Record) -> tuple[int, str]:
    """The parameter that a gradient, an update or its optimizer's state is about."""
    if record.role in (Role.STATE_BEFORE, Role.STATE_AFTER):
        record = msgspec.structs.replace(record, path=record.path.partition(".")[0])
    return record.rank, parameter_of(record)


def _rank_of_number(record: Record) -> int | None:
    """The rank, if the record is of a number in an optimizer's parameter groups."""
    return record.rank if record.is_of_group and record.shape == () else None


def _rank_of_tensor(record: Record) -> int | None:
    return record.rank if record.shape != () else None


_rank_of = attrgetter("rank")

# what a call's own code goes on with; an error of its own; a value on one side only
CODE = Taint("code", call_of, fed=True)
_MAKER = replace(CODE, whose=source_of)
_ERROR = Taint("error", lambda record: (record.rank, record.step, source_of(record)))
_ALONE = Taint("alone", _value_of, _is_alone)
# what a call's backward goes on with, or lacks, as only one side has it
_BACKWARD = Taint("backward", source_of, fed=True)
_LOST = Taint("lost", source_of, _is_alone)
# what an operator or node takes, and what one of a call's gives
_OPERATOR = Taint("operator", operator_of, fed=True)
_RESULT = Taint("result", lambda record: (call_of(record), record.role in NODE_ROLES), fed=True)
# a buffer or parameter that a module computes with
MODULE = Taint("module", lambda record: call_of(record)[::2])
_BUFFER = Taint("module", lambda record: (record.rank, owner_of(record)), fed=True)
# something in the module calls of a step's forward; anything in a step
_FORWARD = Taint("forward", _rank_of, when=_now)
_STEP = Taint("step", _rank_of, _fails, when=_now)
# a part of a parameter's gradient; one side only has a gradient, or an update; the update
_GRADIENT = Taint("gradient", _parameter_of, _fails, when=_now)
_NO_GRADIENT = Taint("no_gradient", _parameter_of, _is_alone, when=_now)
_NOT_UPDATED = Taint("not_updated", _parameter_of, _is_alone)
_UPDATE = Taint("update", _parameter_of)
# a number in an optimizer's groups; state that an update made; an own error of an update
_NUMBER = Taint("number", _rank_of_number, when=_now)
_STATE = Taint("state", lambda record: (record.rank, parameter_of(record)))
_OPTIMIZER = Taint("optimizer", _rank_of, _is_own)
# an update is made of other values than golden's
_OTHER = Taint("other", _rank_of, _differs, fed=True, when=_now)

#: Whether something that a record's value was made of is wrong.
Test = Callable[[RowsSoFar, Record], bool]


def _around(why: Reason | None = None) -> Test:
    """The caller's code; of one that was left out, everything before in the step's forward."""
    code, step = replace(_MAKER, why=why), replace(_FORWARD, why=why)
    return lambda seen, record: (code if source_of(record) in seen.with_rows else step)(
        seen, record
    )


def _unrecorded(seen: RowsSoFar, record: Record) -> bool:
    """Whether golden lacks the module whose code made a value, so that it was not fed."""
    maker = source_of(record)
    return maker is not None and seen.recorded is not None and maker[2] not in seen.recorded


def _unrecorded_updates(seen: RowsSoFar, record: Record) -> bool:
    """Whether unrecorded updates made a parameter's state after a step with an error."""
    before = replace(_STEP, whose=_rank_of_tensor, when=_earlier)
    return (record.rank, record.step - 1) not in seen.updated and before(seen, record)


@dataclass(frozen=True)
class OriginRule:
    """How errors of a role are traced."""

    # over its limit, it is inherited if one of these is wrong; else its own
    source: tuple[Test, ...] = ()
    taints: tuple[Taint, ...] = ()  # what it makes wrong
    # NaN and Inf begin here unless one of these is wrong; ``None`` for ``source``
    nan_source: tuple[Test, ...] | None = None
    # if on one side only, it begins here unless one of these is wrong
    alone_source: tuple[Test, ...] = (lambda seen, record: True,)
    shape_source: tuple[Test, ...] = ()  # another shape is inherited if one of these is wrong
    wanders: tuple[Test, ...] = ()  # over its limit, it is not judged if one of these is wrong


def _operators(nodes: tuple[Test, ...], *taints: Taint) -> dict[Role, OriginRule]:
    """Operators, and ``nodes`` of a call's backward by what was wrong before."""
    return {
        Role.OP_INPUT: OriginRule((CODE, _RESULT), (_OPERATOR, *taints)),
        Role.OP_OUTPUT: OriginRule((_OPERATOR,), (_RESULT, *taints)),
        Role.OP_GRAD_OUTPUT: OriginRule((*nodes, _RESULT), (_OPERATOR, *taints)),
        Role.OP_GRAD_INPUT: OriginRule((*nodes, _OPERATOR), (_RESULT, *taints)),
    }


def _gradients(*source: Test) -> dict[Role, OriginRule]:
    """One-sided, a gradient begins where autograd's graph was cut: there its code has all arriving
    gradients, and both sides have its forward value."""
    goes_on = (replace(taint, whose=receiver_of) for taint in (_BACKWARD, _LOST))
    passed = OriginRule(source, (_STEP, *goes_on), alone_source=(_LOST, _ALONE))
    part = OriginRule(source, (_STEP, _GRADIENT), alone_source=(_LOST,))
    return {Role.GRAD_OUTPUT: passed, Role.GRAD_INPUT: passed, Role.CALL_GRAD: part}


def _updates(fed: bool) -> dict[Role, OriginRule]:
    # golden's parameter is fed to what comes next, unless it has none
    begins_wrong = replace(
        MODULE, if_=(lambda verdict: verdict.reason is Reason.EXTRA) if fed else _is_alone
    )
    changes = (_STEP,) if fed else (_STEP, replace(MODULE, if_=_fails))
    changed = _UPDATE, _NOT_UPDATED
    # numbers, such as learning rates and step counters, do not wander
    made_by_other = replace(_OTHER, whose=_rank_of_tensor, when=_last)
    both = replace(_STEP, if_=is_wrong)
    updated = OriginRule(
        (replace(_NUMBER, whose=_rank_of), _NO_GRADIENT, _NOT_UPDATED),
        nan_source=(_GRADIENT,),
        wanders=(_OTHER,),
    )
    return {
        Role.PARAM_GRAD: OriginRule(
            # one that was not used in an update was not set to zero either
            (_GRADIENT, _NOT_UPDATED),
            # free-running, the module then goes on with what an update made of it
            (_STEP, _NO_GRADIENT, _OTHER, *(() if fed else (replace(MODULE, if_=_fails),))),
            nan_source=(_GRADIENT,),
            alone_source=(_GRADIENT,),
        ),
        Role.PARAM_BEFORE: OriginRule(
            () if fed else (_STEP,),
            (_STEP, _OTHER),
            nan_source=(_GRADIENT,),
            wanders=(made_by_other,),
        ),
        Role.STATE_BEFORE: OriginRule(
            (
                replace(_OPTIMIZER, whose=_rank_of_number, when=_earlier),
                _STATE,
                _NOT_UPDATED,
                _unrecorded_updates,
            ),
            (both, _NUMBER, _OTHER if fed else replace(_OTHER, if_=_differs_on_both)),
            nan_source=(_GRADIENT,),
            wanders=(made_by_other,),
        ),
        Role.PARAM_UPDATE: replace(
            updated,
            taints=(_STEP, _UPDATE, _NOT_UPDATED, _OPTIMIZER, begins_wrong),
            alone_source=(_GRADIENT,),
        ),
        Role.STATE_AFTER: replace(updated, taints=(both, _STATE, _OPTIMIZER)),
        Role.PARAM_CHANGED: OriginRule(
            # after a wrong update it is no error of its own: clamping may do more there
            changed,
            changes,
            alone_source=changed,
            wanders=() if fed else (_OTHER, replace(_OTHER, when=_last)),
        ),
    }


def _free() -> dict[Role, OriginRule]:
    taints = (_FORWARD, _STEP, _ALONE, replace(CODE, whose=caller_of))
    output = OriginRule((CODE,), taints, nan_source=(replace(CODE, why=Reason.NON_FINITE),))
    return {
        Role.INPUT: OriginRule(
            (_around(),), (*taints, CODE), nan_source=(_around(Reason.NON_FINITE),)
        ),
        Role.OUTPUT: output,
        Role.ARGUMENT_UPDATE: output,
        Role.COMPUTED_BUFFER: OriginRule((), (MODULE, _STEP)),
        Role.BUFFER_UPDATE: OriginRule((CODE,), (_BUFFER,)),
        Role.BUFFER_AFTER: OriginRule((_BUFFER, _FORWARD), (_BUFFER,)),
        Role.BUFFER_BEFORE: OriginRule((_BUFFER, replace(_FORWARD, when=_earlier)), (_BUFFER,)),
        **_operators((_STEP,), _STEP),
        **_gradients(_STEP),
        **_updates(fed=False),
    }


def _fed() -> dict[Role, OriginRule]:
    value = OriginRule(
        (_MAKER, replace(MODULE, whose=lambda record: (source_of(record) or ())[::2]), _unrecorded),
        (_ERROR, _ALONE, replace(CODE, whose=receiver_of, if_=_may_differ)),
        shape_source=(replace(_MAKER, why=Reason.SHAPE),),
    )
    return {
        **dict.fromkeys((Role.INPUT, Role.OUTPUT, Role.ARGUMENT_UPDATE), value),
        Role.COMPUTED_BUFFER: OriginRule((), (MODULE,)),
        Role.BUFFER_UPDATE: OriginRule((_BUFFER, _unrecorded, _ERROR, CODE), (_BUFFER,)),
        Role.BUFFER_AFTER: OriginRule((_BUFFER, _unrecorded), (_BUFFER,)),
        Role.BUFFER_BEFORE: OriginRule((_BUFFER, _unrecorded), (_BUFFER,)),
        **_operators((_BACKWARD, _ERROR, CODE)),
        # a derivative differs if the forward does
        **_gradients(_ERROR, _MAKER, _BACKWARD, _LOST),
        **_updates(fed=True),
    }


#: By whether the candidate was fed.
RULES: Mapping[bool, Mapping[Role, OriginRule]] = {False: _free(), True: _fed()}
