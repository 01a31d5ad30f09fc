"""Where errors come from, told from the order of the rows and which call was made in which."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from accucompare.bundle.manifest import Manifest
from accucompare.bundle.records import TRAINING_ROLES, Layout, Record, Role
from accucompare.compare.operator_rows import Operator, OperatorOrigins, is_operator, not_fed_operators
from accucompare.compare.rows import UNMATCHED, Reason, Status, Verdict
from accucompare.compare.training import Training

#: Fed: a later error in a call's own code is one of its own if it is so many times as far over its limit as the earlier ones.
MUCH_FURTHER = 8.0

#: (rank, step, name, call index).
Call = tuple[int, int, str, int]


@dataclass
class _CallState:
    known: bool = False  # it has a row of its own; its children's come earlier if nothing went into it, or if it was left out
    over: bool = False  # an input of the call, or an output of a call made inside it, is over tolerance
    nonfinite: bool = False  # and one is not finite
    has_children: bool = False


@dataclass
class Origins:
    """Tells where errors come from, fed row by row in execution order.

    In a free-running comparison this is what limits alone can tell: an output over its limit is *introduced* by a
    module all of whose inputs were within; it is *glue* if the module's children were within too, for then its own code made
    the error; an input over its limit is *glue* if everything its parent had until then was within; all else is *inherited*. An
    input of an outermost call has no parent: it is *inputs differ* if nothing before it in its step was over.

    In a fed comparison nothing is inherited, since every call was given golden's values, but for what could not be fed: see ``Fed``.
    """

    _calls: dict[Call, _CallState] = field(default_factory=dict)
    _operators: OperatorOrigins = field(default_factory=lambda: OperatorOrigins(fed=False))
    _steps_over: set[tuple[int, int]] = field(default_factory=set)
    _steps_nonfinite: set[tuple[int, int]] = field(default_factory=set)
    _buffers: set[tuple[int, str]] = field(default_factory=set)  # modules with a computed buffer that is over tolerance, by rank
    _training: Training = field(default_factory=lambda: Training(fed=False))

    def trace(self, record: Record, verdict: Verdict) -> Verdict:
        """The verdict with its reason made exact, where the error could have come from elsewhere."""
        if record.role in TRAINING_ROLES:
            children = self._state((record.rank, record.step, record.name, record.call)).has_children
            return self._training.trace(record, verdict, False, children)
        verdict = self._trace(record, verdict)
        self._training.forward(record, verdict)
        return verdict

    def _trace(self, record: Record, verdict: Verdict) -> Verdict:
        step = record.rank, record.step
        if record.role is Role.COMPUTED_BUFFER:
            if verdict.status is Status.FAIL and verdict.reason not in UNMATCHED:
                self._buffers.add((record.rank, record.name))
            return _of_buffer(verdict)
        call = self._state((*step, record.name, record.call))
        if is_operator(record):
            return self._operators.trace(record, verdict, call.over)
        call.known = True
        parent = None
        if record.parent is not None:
            parent = self._state((*step, *record.parent))
            parent.has_children = True
        nonfinite = verdict.reason is Reason.NON_FINITE
        if verdict.reason is Reason.OVER:
            verdict = replace(verdict, reason=self._reason(record, call, parent))
        elif nonfinite and not self._nonfinite_before(record, call, parent):
            verdict = verdict.beginning()
        if verdict.status is Status.FAIL and verdict.reason not in UNMATCHED:
            self._steps_over.add(step)
            if nonfinite:
                self._steps_nonfinite.add(step)
            for state in (call if record.role is Role.INPUT else None, parent):
                if state is not None:
                    state.over = True
                    state.nonfinite = state.nonfinite or nonfinite
        return verdict

    def _state(self, call: Call) -> _CallState:
        """What is known of a call; a buffer that is wrong goes into every call of its module."""
        state = self._calls.get(call)
        if state is None:
            rank, _, name, _ = call
            state = self._calls[call] = _CallState(over=(rank, name) in self._buffers)
        return state

    def _reason(self, record: Record, call: _CallState, parent: _CallState | None) -> Reason:
        if record.role is Role.INPUT:
            earlier = parent.over if parent is not None and parent.known else (record.rank, record.step) in self._steps_over
            if earlier:
                return Reason.INHERITED
            return Reason.INPUTS_DIFFER if record.parent is None else Reason.GLUE
        if call.over:
            return Reason.INHERITED
        return Reason.GLUE if call.has_children else Reason.INTRODUCED

    def _nonfinite_before(self, record: Record, call: _CallState, parent: _CallState | None) -> bool:
        if record.role is Role.INPUT:
            return parent.nonfinite if parent is not None and parent.known else (record.rank, record.step) in self._steps_nonfinite
        return call.nonfinite


#: (rank, step, name, call index, role, path): what is told of a value that was not fed.
NotFed = tuple[int, int, str, int, str, str]


def not_fed(manifests: Mapping[int, Manifest]) -> set[NotFed]:
    """Which values of a fed capture kept what had been computed, from the manifests of its ranks."""
    return {
        (rank, entry.step, entry.name, entry.call, entry.role, entry.path)
        for rank, manifest in manifests.items()
        if (feed := manifest.feed) is not None
        for entry in feed.not_fed
    }


def operators_not_fed(manifests: Mapping[int, Manifest]) -> frozenset[Operator]:
    """Which operators of a fed capture kept what they were given, or gave, from the manifests of its ranks."""
    found: set[Operator] = set()
    for rank, manifest in manifests.items():
        feed = manifest.feed
        found |= set() if feed is None else not_fed_operators(rank, feed.not_fed)
    return frozenset(found)


@dataclass
class Fed:
    """The same for a fed candidate, of which every error is its own, but for what could not be fed.

    Where an input that was not fed is over its limit, or an output of a child that was not fed, a call's own code computed with
    values that were wrong already: its outputs, and what it gives its children, are *inherited*. Where such an input cannot be told to
    be right, the outputs' verdicts say so (``not_all_fed``).

    A call's own code goes on with what it has computed itself, as a residual stream does: of the values that it gives its children and
    returns, only the first one over its limit is *glue*, and others that are much further over theirs.

    Attributes:
        not_fed: which values kept what the candidate had computed.
        operators: the same for operators.
        recorded: the modules that golden has, so that they were fed; ``None`` for all.
    """

    not_fed: Collection[NotFed]
    operators: OperatorOrigins = field(default_factory=lambda: OperatorOrigins(fed=True))
    recorded: Collection[str] | None = None
    _tainted: set[Call] = field(default_factory=set)
    _reshaped: set[Call] = field(default_factory=set)  # of these, those that computed with another shape
    _with_children: set[Call] = field(default_factory=set)
    _glue: dict[Call, float] = field(default_factory=dict)  # by call: how far over its limit its code has been until now
    _buffers: set[tuple[int, str]] = field(default_factory=set)  # modules with a computed buffer that is over its limit, by rank
    _unknown: dict[Call, set[str]] = field(default_factory=dict)  # paths of inputs that were not fed and are not known to be right
    _erring: set[Call | None] = field(default_factory=set)  # calls whose own code has made an error in the forward

    def __post_init__(self) -> None:
        self._training = Training(fed=True, not_fed=self.not_fed)
        for rank, step, name, call, role, path in self.not_fed:
            if role == Role.INPUT.value:
                self._unknown.setdefault((rank, step, name, call), set()).add(path)

    def trace(self, record: Record, verdict: Verdict) -> Verdict:
        """The verdict with its reason made exact."""
        step = record.rank, record.step
        if record.role is Role.COMPUTED_BUFFER:
            if verdict.status is Status.FAIL and verdict.reason not in UNMATCHED:
                self._buffers.add((record.rank, record.name))
            return _of_buffer(verdict)
        call: Call = (*step, record.name, record.call)
        if is_operator(record):
            return self.operators.trace(record, verdict, call in self._tainted)
        parent: Call | None = None if record.parent is None else (*step, *record.parent)
        if record.role in TRAINING_ROLES:
            maker = parent if record.role is Role.GRAD_OUTPUT else call
            erring = maker in self._erring or (maker is not None and maker in self._tainted)
            return self._training.trace(record, verdict, erring, call in self._with_children)
        if parent is not None:
            self._with_children.add(parent)
        source = parent if record.role is Role.INPUT else call  # whose own code made the value
        given = source in self._tainted or (source is not None and not self._was_fed(source[2]))
        given = given or (source is not None and (record.rank, source[2]) in self._buffers)
        reshaped = verdict.reason is Reason.SHAPE
        if record.role is Role.INPUT and _is_right(record, verdict):
            self._unknown.get(call, set()).discard(record.path)
        elif record.role is Role.OUTPUT and verdict.status is Status.FAIL and self._unknown.get(call):
            verdict = verdict.unfed()
        if reshaped and source in self._reshaped:
            verdict = replace(verdict, reason=Reason.INHERITED)
        elif verdict.reason is Reason.OVER:
            reason = Reason.INHERITED if given else self._reason(record, call)
            if reason is Reason.GLUE and source is not None and self._passed_on(source, verdict):
                reason = Reason.INHERITED
            verdict = replace(verdict, reason=reason)
        elif verdict.reason is Reason.NON_FINITE and not given:
            verdict = verdict.beginning()
        if verdict.status is Status.FAIL and verdict.reason not in UNMATCHED:
            self._erring.add(source)
        wrong = verdict.status is Status.FAIL or verdict.chosen or verdict.reason is Reason.NOT_DETERMINISTIC
        if wrong and (*call, record.role.value, record.path) in self.not_fed:
            whose = call if record.role is Role.INPUT else parent  # whose own code goes on with it
            if whose is not None:
                self._tainted.add(whose)
                if reshaped:
                    self._reshaped.add(whose)
        return verdict

    def _passed_on(self, source: Call, verdict: Verdict) -> bool:
        """Whether a call's code was about as wrong before."""
        before, now = self._glue.get(source), verdict.used or 0.0
        if math.isinf(now):  # another choice, or a trace where golden is zero: no measure of how wrong what follows is
            return False
        self._glue[source] = max(before or 0.0, now)
        return before is not None and now <= MUCH_FURTHER * before

    def _was_fed(self, name: str) -> bool:
        return self.recorded is None or name in self.recorded

    def _reason(self, record: Record, call: Call) -> Reason:
        if record.role is Role.INPUT:
            return Reason.INPUTS_DIFFER if record.parent is None else Reason.GLUE
        return Reason.GLUE if call in self._with_children else Reason.INTRODUCED


def _of_buffer(verdict: Verdict) -> Verdict:
    """The verdict on a computed buffer: nothing goes into it."""
    if verdict.reason is Reason.OVER:
        return replace(verdict, reason=Reason.INTRODUCED)
    return verdict.beginning() if verdict.reason is Reason.NON_FINITE else verdict


def _is_right(record: Record, verdict: Verdict) -> bool:
    """Whether what was given to a call passes; or is a cache that cannot be looked into, which holds what was fed to calls before."""
    if verdict.reason is Reason.NOT_COMPARABLE and record.layout is Layout.OPAQUE:
        return verdict.alike and record.is_cache
    return verdict.status is Status.PASS
