"""Where errors of a backward and of an update come from.

A backward goes through the calls in the other direction. The code behind an output (its parent's or
the loss) made the gradient that arrives there (``grad_output``). A call itself makes what it adds
to the gradients of its inputs (``grad_input``) and parameters (``call_grad``). A parameter's whole
gradient (``param_grad``) is the sum of those. An update is made of that, the parameter and the
optimizer's state."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from msgspec.structs import replace

from accucompare.bundle.format import GRADIENT_ROLES, UPDATE_ROLES, Record, Role
from accucompare.compare.constants import RECURRENT, SUMMED
from accucompare.compare.limits import Tolerance
from accucompare.compare.origins.module_calls import (
    CallKey,
    GlueSoFar,
    call_of,
    caller_of,
    parameter_of,
)
from accucompare.compare.remarks import BareRemark
from accucompare.compare.rows import UNMATCHED, Reason, Status, Verdict

_STATES = (Role.STATE_BEFORE, Role.STATE_AFTER)

#: The role of the value that a gradient belongs to.
_VALUE_OF = {Role.GRAD_OUTPUT: Role.OUTPUT, Role.GRAD_INPUT: Role.INPUT}


def updated_parameter(record: Record) -> str:
    """The qualified name of the parameter that an update, or its optimizer state, is about."""
    return (
        parameter_of(replace(record, path=record.path.partition(".")[0]))
        if record.role in _STATES
        else parameter_of(record)
    )


@dataclass
class TrainingTrace:
    """Tells where errors of backwards and updates come from, row by row in execution order.

    Attributes:
        fed: whether each call, and each update, was given golden's values.
        not_fed: exceptions, as in ``accucompare.compare.origins.reasons.NotFed``.
        modules: by rank, modules that compute with a value that was wrong before; is added to.
    """

    fed: bool
    not_fed: Collection[tuple[int, int, str, int, str, str]] = ()
    modules: set[tuple[int, str]] = field(default_factory=set)
    # free-running: steps with something over its limit
    _over: set[tuple[int, int]] = field(default_factory=set)
    # steps with an update made of other values than golden's
    _other: set[tuple[int, int]] = field(default_factory=set)
    # calls whose backward went on with a wrong gradient
    _tainted: set[CallKey] = field(default_factory=set)
    _glue: GlueSoFar = field(default_factory=GlueSoFar)
    # with a part of its gradient over its limit, or one-sided
    _parameters: set[tuple[int, int, str]] = field(default_factory=set)
    # parameters with a gradient on one side only
    _without: set[tuple[int, int, str]] = field(default_factory=set)
    # values of the forward on one side only
    _alone: set[tuple[CallKey, Role, str]] = field(default_factory=set)
    # calls whose backward lacks a gradient that only one side has
    _lost: set[CallKey] = field(default_factory=set)
    # by rank: parameters updated on one side only
    _not_updated: set[tuple[int, str]] = field(default_factory=set)
    # by rank: the first step with an error of its update's own
    _wrote: dict[int, int] = field(default_factory=dict)
    # steps with another number in an optimizer's parameter groups
    _groups: set[tuple[int, int]] = field(default_factory=set)
    # by rank: state that an update made over its limit
    _states: set[tuple[int, str]] = field(default_factory=set)
    # by rank: parameters with an update over its limit
    _wrong_updates: set[tuple[int, str]] = field(default_factory=set)
    # steps with a recorded update
    _updated: set[tuple[int, int]] = field(default_factory=set)

    def forward(self, record: Record, verdict: Verdict) -> None:
        """A row of the forward was traced."""
        if verdict.reason in UNMATCHED:
            self._alone.add((call_of(record), record.role, record.path))
        if verdict.status is Status.FAIL and not self.fed:
            self._over.add((record.rank, record.step))

    def before_node(self, record: Record) -> bool:
        """Whether an input of a backward node was wrong before."""
        return call_of(record) in self._tainted or (
            not self.fed and (record.rank, record.step) in self._over
        )

    def trace(
        self, record: Record, verdict: Verdict, own_forward: bool, has_children: bool
    ) -> Verdict:
        """The verdict with its reason made exact.

        Args:
            own_forward: whether the value's code erred in the forward too: its derivative differs.
            has_children: whether the record's call made calls itself.
        """
        if record.role in GRADIENT_ROLES:
            return self._gradient(record, verdict, own_forward, has_children)
        assert record.role in UPDATE_ROLES
        return self._update(record, verdict)

    def _gradient(
        self, record: Record, verdict: Verdict, own_forward: bool, has_children: bool
    ) -> Verdict:
        call, parent = call_of(record), caller_of(record)
        step = record.rank, record.step
        arrives = record.role is Role.GRAD_OUTPUT
        source = parent if arrives else call
        if verdict.reason in UNMATCHED:
            return self._gradient_alone(record, verdict, call, parent)
        before = (
            own_forward
            or source in self._tainted
            or source in self._lost
            or (not self.fed and step in self._over)
        )
        if verdict.reason is Reason.OVER:
            reason = Reason.INTRODUCED
            if before:
                reason = Reason.INHERITED
            elif parent is not None if arrives else has_children:
                reason = Reason.INHERITED if self._glue.passes_on(source, verdict) else Reason.GLUE
            verdict = replace(verdict, reason=reason)
        elif verdict.reason is Reason.NON_FINITE and not before:
            verdict = verdict.beginning()
        if verdict.status is Status.FAIL and verdict.reason not in UNMATCHED:
            self._over.add(step)
            if record.role is Role.CALL_GRAD:
                self._parameters.add((*step, parameter_of(record)))
            elif (*call, record.role.value, record.path) in self.not_fed:
                self._tainted |= {
                    each for each in (call if arrives else parent,) if each is not None
                }
        return verdict

    def _gradient_alone(
        self, record: Record, verdict: Verdict, call: CallKey, parent: CallKey | None
    ) -> Verdict:
        """The verdict on a one-sided gradient; it begins where autograd's graph was cut.

        There its code has all arriving gradients, and both sides have its forward value."""
        arrives = record.role is Role.GRAD_OUTPUT
        source, receiver = (parent, call) if arrives else (call, parent)
        before = source in self._lost
        if record.role is Role.CALL_GRAD:
            self._parameters.add((record.rank, record.step, parameter_of(record)))
        else:
            self._lost |= {receiver} if receiver is not None else set()
            before = (
                before
                or (call, _VALUE_OF[record.role], record.path.partition("#")[0]) in self._alone
            )
        self._over.add((record.rank, record.step))
        return verdict if before else verdict.beginning()

    def _wanders(self, record: Record, given: bool) -> bool:
        """Whether an update of other gradients made a value, which then says nothing of its code.

        Numbers, such as learning rates and step counters, do not wander."""
        if not given:
            return (record.rank, record.step) in self._other
        return (
            record.role is not Role.PARAM_GRAD
            and record.shape != ()
            and (record.rank, record.step - 1) in self._other
        )

    def _after_wrong_steps(self, record: Record) -> bool:
        """Whether unrecorded updates made a parameter's state after a step with an error."""
        before = [step for rank, step in self._over if rank == record.rank and step < record.step]
        return bool(before) and (record.rank, record.step - 1) not in self._updated

    def _update(self, record: Record, verdict: Verdict) -> Verdict:
        step, state = (record.rank, record.step), (record.rank, parameter_of(record))
        parameter = (*step, updated_parameter(record))
        self._updated.add(step)
        given = record.role in (Role.PARAM_GRAD, Role.PARAM_BEFORE, Role.STATE_BEFORE)
        own = (
            record.rank,
            record.step,
            record.name,
            record.call,
            record.role.value,
            record.path,
        ) in self.not_fed
        other_state = record.role is Role.STATE_BEFORE and verdict.reason in (
            *UNMATCHED,
            Reason.NOT_COMPARABLE,
        )
        if (
            given
            and verdict.reason is not Reason.IDENTICAL
            and (own or not (self.fed or other_state))
        ):
            self._other.add(step)  # what only one of two optimizers keeps is the optimizer's own
        if record.role is Role.PARAM_CHANGED:
            return self._changed(record, verdict)
        # one side says that there is no gradient
        if record.role is Role.PARAM_GRAD and verdict.reason is Reason.DTYPE:
            verdict = replace(verdict, reason=Reason.MISSING if record.dtype else Reason.EXTRA)
        if verdict.reason in UNMATCHED:
            return self._update_alone(record, verdict, parameter)
        if verdict.reason is Reason.OVER and self._wanders(record, given):
            return replace(
                verdict,
                reason=Reason.NOT_COMPARABLE,
                remarks=(BareRemark.WANDERED_FED if self.fed else BareRemark.WANDERED,),
                waived=not self.fed,
            )
        of_group = record.is_of_group and record.shape == ()
        if verdict.reason is Reason.OVER:
            # a gradient that was not used in an update was not set to zero either
            inherited = {
                Role.PARAM_GRAD: (
                    parameter in self._parameters or parameter[::2] in self._not_updated
                ),
                Role.PARAM_BEFORE: not self.fed and step in self._over,
                Role.STATE_BEFORE: (
                    (of_group and self._wrote.get(record.rank, record.step) < record.step)
                    or state in self._states
                    or parameter[::2] in self._not_updated
                    or (record.shape != () and self._after_wrong_steps(record))
                ),
                Role.PARAM_UPDATE: (
                    step in self._groups
                    or parameter in self._without
                    or parameter[::2] in self._not_updated
                ),
                Role.STATE_AFTER: (
                    step in self._groups
                    or parameter in self._without
                    or parameter[::2] in self._not_updated
                ),
            }[record.role]
            verdict = replace(verdict, reason=Reason.INHERITED if inherited else Reason.INTRODUCED)
        elif verdict.reason is Reason.NON_FINITE and parameter not in self._parameters:
            verdict = verdict.beginning()
        if verdict.status is Status.FAIL and verdict.reason not in UNMATCHED:
            self._over.add(step)
            if of_group:
                self._groups.add(step)
            if record.role is Role.PARAM_UPDATE:
                self._wrong_updates.add(state)
            if record.role is Role.STATE_AFTER:
                self._states.add(state)
            if not given and verdict.reason is not Reason.INHERITED:
                self._wrote.setdefault(record.rank, record.step)
        return verdict

    def _changed(self, record: Record, verdict: Verdict) -> Verdict:
        """The verdict on a parameter that something but an update changed, on one side or both.

        After a wrong update that is no error of its own: clamping may do more there."""
        parameter = record.rank, parameter_of(record)
        before = parameter in self._wrong_updates or parameter in self._not_updated
        if verdict.reason is Reason.OVER:
            if (
                not self.fed
                and {(record.rank, record.step - 1), (record.rank, record.step)} & self._other
            ):
                return replace(
                    verdict,
                    reason=Reason.NOT_COMPARABLE,
                    remarks=(BareRemark.WANDERED,),
                    waived=True,
                )
            verdict = replace(verdict, reason=Reason.INHERITED if before else Reason.INTRODUCED)
        if verdict.status is Status.FAIL:
            self._over.add((record.rank, record.step))
            if not self.fed:  # golden's is fed to what comes next
                self.modules.add((record.rank, record.name))
        return verdict.beginning() if verdict.reason in UNMATCHED and not before else verdict

    def _update_alone(
        self, record: Record, verdict: Verdict, parameter: tuple[int, int, str]
    ) -> Verdict:
        """The verdict on a one-sided part of an update; it begins there unless its gradient did."""
        if record.role in _STATES:  # of two optimizers one may keep what the other does not
            return verdict
        self._over.add(parameter[:2])
        if record.role is Role.PARAM_GRAD:
            self._without.add(parameter)
        elif record.role is Role.PARAM_UPDATE:
            self._not_updated.add(parameter[::2])
            if not self.fed or verdict.reason is Reason.EXTRA:  # golden's is fed otherwise
                self.modules.add((record.rank, record.name))
        begins = parameter not in self._parameters and record.role is not Role.PARAM_BEFORE
        return verdict.beginning() if begins else verdict


#: A parameter's gradient: of one call, and whole.
PARAMETER_GRADIENTS = (Role.CALL_GRAD, Role.PARAM_GRAD)

#: What a module makes of its sums.
_OF_SUMS = (Role.OUTPUT, Role.BUFFER_UPDATE, Role.GRAD_INPUT, Role.CALL_GRAD, Role.PARAM_GRAD)


@dataclass
class Terms:
    """How much larger golden's terms of a gradient or an update are than their sum.

    A sum is rounded as its terms are, and they may cancel: the gradient of a key's bias is zero but
    for rounding. An update is rounded as its parameter is. What a call writes into a buffer may be
    a mean of its inputs: after a normalisation, zero but for rounding. A mean of n terms has one
    term's rounding, divided by the square root of n."""

    # L2 norm of all that arrived at a call's outputs
    _arrived: dict[CallKey, float] = field(default_factory=dict)
    # the same at one of its nodes
    _nodes: dict[tuple[CallKey, str, int], float] = field(default_factory=dict)
    # of the terms of a parameter's gradient
    _sizes: dict[tuple[int, int, str], float] = field(default_factory=dict)
    # L2 norm of a parameter before an update
    _values: dict[tuple[int, int, int, str], float] = field(default_factory=dict)
    # in this step: L2 norm and size of what calls were given
    _given: dict[CallKey, list[tuple[float, int]]] = field(default_factory=dict)
    # how many values each sum of a module has
    _summed: dict[str, int] = field(default_factory=dict)
    # how many values arrived at a module's output
    _elements: dict[str, int] = field(default_factory=dict)
    # mean length of a recurrent module's sequences
    _length: dict[str, float] = field(default_factory=dict)

    def summed(self, record: Record) -> int:
        """How many values a ``SUMMED`` module sums for a channel or sample; 0 if unknown."""
        if record.role is Role.OUTPUT and record.type in SUMMED and len(record.shape) > 1:
            each = record.shape[SUMMED[record.type]]
            self._summed[record.name] = max(
                self._summed.get(record.name, 0), math.prod(record.shape) // max(each, 1)
            )
        return self._summed.get(record.name, 0) if record.role in _OF_SUMS else 0

    def added(self, record: Record) -> int:
        """How many terms a bias's gradient sums; 0 for other records, or if unknown."""
        if record.role is Role.GRAD_OUTPUT:
            self._elements[record.name] = max(
                self._elements.get(record.name, 0), math.prod(record.shape)
            )
        if record.role not in PARAMETER_GRADIENTS or len(record.shape) != 1:
            return 0
        return self._elements.get(record.name, 0) // max(record.shape[0], 1)

    def roundings(self, record: Record) -> float:
        """How many roundings a value takes in a ``RECURRENT`` module composed of operators."""
        if record.role is Role.OUTPUT and len(record.shape) > 1:
            if record.path == "0" or record.path.startswith("0."):
                self._length[record.name] = math.prod(record.shape[:-1])
            elif record.name in self._length and record.path in ("1", "1.0"):
                self._length[record.name] /= max(math.prod(record.shape[1:-1]), 1)
        if record.role not in _OF_SUMS:
            return 0.0
        forward = RECURRENT[record.type]
        if record.role in PARAMETER_GRADIENTS:
            return 2.0 * forward + self._length.get(record.name, 0.0) / 2.0
        return 2.0 * forward if record.role is Role.GRAD_INPUT else forward

    def give(self, record: Record) -> None:
        """Remember an input of a call; it may become a term of a buffer's update."""
        size = (record.statistics.l2 if record.statistics is not None else None) or 0.0
        call = call_of(record)
        if self._given and next(iter(self._given))[:2] != call[:2]:
            self._given.clear()
        self._given.setdefault(call, []).append((size, math.prod(record.shape)))

    def widened(self, tolerance: Tolerance, record: Record) -> Tolerance:
        """The limits of golden's record, with room for the rounding of its terms."""
        size = (record.statistics.l2 if record.statistics is not None else None) or 0.0
        call = call_of(record)
        part = (record.rank, record.step, parameter_of(record))
        update = (record.rank, record.step, record.call, part[-1])
        terms = size
        if record.role is Role.GRAD_OUTPUT:
            self._arrived[call] = math.hypot(self._arrived.get(call, 0.0), size)
        elif record.role is Role.CALL_GRAD:
            # a bias: the sum of what arrived
            terms = max(size, self._arrived.get(call, 0.0)) if len(record.shape) == 1 else size
            self._sizes[part] = math.hypot(self._sizes.get(part, 0.0), terms)
        elif record.role is Role.OP_GRAD_OUTPUT:
            self._nodes[(call, *record.operator)] = size
        elif record.role is Role.OP_GRAD_INPUT and len(record.shape) == 1:
            terms = max(size, self._nodes.get((call, *record.operator), 0.0))
        elif record.role is Role.BUFFER_UPDATE:
            own = math.prod(record.shape)
            terms = max(
                (
                    given * min(own / count, 1.0)
                    for given, count in self._given.get(call, ())
                    if count
                ),
                default=size,
            )
        elif record.role is Role.PARAM_GRAD:
            terms = self._sizes.get(part, size)
        elif record.role is Role.PARAM_BEFORE:
            self._values[update] = size
        elif record.role is Role.PARAM_UPDATE:
            terms = self._values.get(update, size)
        return (
            tolerance.scaled(max(terms / size, 1.0)) if size else tolerance.of_zero(terms, record)
        )
