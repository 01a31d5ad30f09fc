"""Where errors come from, as the order of the rows and the nesting of calls show."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from accucompare.bundle.format import NODE_ROLES, TRAINING_ROLES, Layout, Manifest, Record, Role
from accucompare.compare.origins.module_calls import CallKey, GlueSoFar, call_of, caller_of
from accucompare.compare.origins.training_trace import TrainingTrace
from accucompare.compare.rows import (
    UNMATCHED,
    OperatorKey,
    OperatorOrigins,
    Reason,
    Status,
    Verdict,
    is_buffer,
    is_operator,
    is_wrong,
    not_fed_operators,
    owner_of,
    trace_buffer,
)


@dataclass
class _CallState:
    # the call has a row of its own; without inputs, or left out, its children's rows come first
    known: bool = False
    # an input of the call, or an output of a call made inside it, is over tolerance
    over: bool = False
    nonfinite: bool = False  # and one is not finite
    has_children: bool = False


@dataclass
class Origins:
    """Traces errors of a free-running comparison, row by row in execution order.

    Limits alone decide. An output over its limit is *introduced* if all inputs of its module were
    within theirs; *glue* if the module called children that were within theirs: then its own code
    made the error. An input over its limit is *glue* if everything its parent had before was within
    limits. All else is *inherited*. An outermost call's input has no parent: it is *inputs differ*
    if nothing before it in its step was over its limit.

    ``steps``: those recorded on both sides, with their ranks; ``None`` for all."""

    steps: Collection[tuple[int, int]] | None = None
    _calls: dict[CallKey, _CallState] = field(default_factory=dict)
    _operators: OperatorOrigins = field(default_factory=lambda: OperatorOrigins(fed=False))
    _steps_over: set[tuple[int, int]] = field(default_factory=set)
    _steps_nonfinite: set[tuple[int, int]] = field(default_factory=set)
    # by rank: modules with a wrong buffer or parameter
    _buffers: set[tuple[int, str]] = field(default_factory=set)
    _training: TrainingTrace = field(default_factory=lambda: TrainingTrace(fed=False))

    def __post_init__(self) -> None:
        self._training.modules = self._buffers

    def trace(self, record: Record, verdict: Verdict) -> Verdict:
        """The verdict, with ``OVER`` replaced by where the error comes from."""
        if is_buffer(record):
            return self._written(record, verdict)
        if record.role in TRAINING_ROLES:
            children = self._state(call_of(record)).has_children
            return self._training.trace(record, verdict, False, children)
        verdict = self._trace(record, verdict)
        self._training.forward(record, verdict)
        return verdict

    def _written(self, record: Record, verdict: Verdict) -> Verdict:
        place = record.rank, owner_of(record)
        if record.role is Role.BUFFER_UPDATE:
            before = self._state(call_of(record)).over
        elif record.role is Role.BUFFER_AFTER:
            before = place in self._buffers or (record.rank, record.step) in self._steps_over
        else:
            before = place in self._buffers or any(
                rank == record.rank and step < record.step for rank, step in self._steps_over
            )
        verdict = trace_buffer(record, verdict, before, self.steps)
        if is_wrong(verdict):
            self._buffers.add(place)
        return verdict

    def _trace(self, record: Record, verdict: Verdict) -> Verdict:
        step = record.rank, record.step
        if record.role is Role.COMPUTED_BUFFER:
            return _of_buffer(record, verdict, self._buffers)
        call = self._state(call_of(record))
        if is_operator(record):
            before = self._training.before_node(record) if record.role in NODE_ROLES else call.over
            return self._operators.trace(record, verdict, before)
        call.known = True
        parent = None
        if (caller := caller_of(record)) is not None:
            parent = self._state(caller)
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

    def _state(self, call: CallKey) -> _CallState:
        """The state of a call. A wrong buffer is an input of every call of its module."""
        state = self._calls.get(call)
        if state is None:
            rank, _, name, _ = call
            state = self._calls[call] = _CallState(over=(rank, name) in self._buffers)
        return state

    def _reason(self, record: Record, call: _CallState, parent: _CallState | None) -> Reason:
        if record.role is Role.INPUT:
            earlier = (
                parent.over
                if parent is not None and parent.known
                else (record.rank, record.step) in self._steps_over
            )
            if earlier:
                return Reason.INHERITED
            return Reason.INPUTS_DIFFER if record.parent is None else Reason.GLUE
        if call.over:
            return Reason.INHERITED
        return Reason.GLUE if call.has_children else Reason.INTRODUCED

    def _nonfinite_before(
        self, record: Record, call: _CallState, parent: _CallState | None
    ) -> bool:
        if record.role is Role.INPUT:
            return (
                parent.nonfinite
                if parent is not None and parent.known
                else (record.rank, record.step) in self._steps_nonfinite
            )
        return call.nonfinite


#: A value that was not fed: (rank, step, name, call index, role, path).
NotFed = tuple[int, int, str, int, str, str]


def not_fed(manifests: Mapping[int, Manifest]) -> set[NotFed]:
    """The values of a fed capture that golden's did not replace, from its ranks' manifests."""
    return {
        (rank, entry.step, entry.name, entry.call, entry.role, entry.path)
        for rank, manifest in manifests.items()
        if (feed := manifest.feed) is not None
        for entry in feed.not_fed
    }


def operators_not_fed(manifests: Mapping[int, Manifest]) -> frozenset[OperatorKey]:
    """The operators whose inputs or outputs were not replaced by golden's, from the manifests."""
    feeds = ((rank, manifest.feed) for rank, manifest in manifests.items())
    return frozenset().union(
        *(not_fed_operators(rank, feed.not_fed) for rank, feed in feeds if feed is not None)
    )


@dataclass
class Fed:
    """Traces errors of a fed candidate, row by row. Every error is a row's own, except what comes
    from values that were not fed.

    If an input or a child's output that was not fed is over its limit, a call's own code computed
    with wrong values: its outputs and its children's inputs are *inherited*. If such an input
    cannot be proven right, the outputs' verdicts say so (``not_all_fed``).

    A call's own code goes on with its own results, as a residual stream does. Of its children's
    inputs and its outputs, only the first one over its limit is *glue*, and later ones that are
    much further over theirs.

    Attributes:
        not_fed: the values that were not replaced by golden's.
        operators: the same for operators.
        recorded: the modules that golden has, so that they were fed; ``None`` for all.
        steps: those recorded on both sides, with their ranks; ``None`` for all.
    """

    not_fed: Collection[NotFed]
    operators: OperatorOrigins = field(default_factory=lambda: OperatorOrigins(fed=True))
    recorded: Collection[str] | None = None
    steps: Collection[tuple[int, int]] | None = None
    _tainted: set[CallKey] = field(default_factory=set)
    # those of them that computed with another shape
    _reshaped: set[CallKey] = field(default_factory=set)
    _with_children: set[CallKey] = field(default_factory=set)
    _glue: GlueSoFar = field(default_factory=GlueSoFar)
    # by rank: modules with a buffer or parameter that stayed wrong
    _buffers: set[tuple[int, str]] = field(default_factory=set)
    # paths of inputs that were not fed and are not known to be right
    _unknown: dict[CallKey, set[str]] = field(default_factory=dict)
    # calls with an error of their own code in the forward
    _erring: set[CallKey | None] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._training = TrainingTrace(fed=True, not_fed=self.not_fed, modules=self._buffers)
        for rank, step, name, call, role, path in self.not_fed:
            if role == Role.INPUT.value:
                self._unknown.setdefault((rank, step, name, call), set()).add(path)

    def trace(self, record: Record, verdict: Verdict) -> Verdict:
        """The verdict with its reason made exact."""
        if record.role is Role.COMPUTED_BUFFER:
            return _of_buffer(record, verdict, self._buffers)
        if is_buffer(record):
            return self._written(record, verdict)
        call, parent = call_of(record), caller_of(record)
        if record.role in NODE_ROLES:
            before = (
                self._training.before_node(record) or call in self._erring or call in self._tainted
            )
            return self.operators.trace(record, verdict, before)
        if is_operator(record):
            return self.operators.trace(record, verdict, call in self._tainted)
        if record.role in TRAINING_ROLES:
            maker = parent if record.role is Role.GRAD_OUTPUT else call
            erring = maker in self._erring or (maker is not None and maker in self._tainted)
            return self._training.trace(record, verdict, erring, call in self._with_children)
        self._training.forward(record, verdict)
        if parent is not None:
            self._with_children.add(parent)
        source = parent if record.role is Role.INPUT else call  # whose own code made the value
        tainted = source in self._tainted or (
            source is not None and (record.rank, source[2]) in self._buffers
        )
        tainted = tainted or (
            source is not None and self.recorded is not None and source[2] not in self.recorded
        )
        reshaped = verdict.reason is Reason.SHAPE
        if record.role is Role.INPUT and _is_right(record, verdict):
            self._unknown.get(call, set()).discard(record.path)
        elif (
            record.role in (Role.OUTPUT, Role.ARGUMENT_UPDATE)
            and verdict.status is Status.FAIL
            and self._unknown.get(call)
        ):
            verdict = verdict.unfed()
        if reshaped and source in self._reshaped:
            verdict = replace(verdict, reason=Reason.INHERITED)
        elif verdict.reason is Reason.OVER:
            reason = Reason.INHERITED if tainted else self._reason(record, call)
            if reason is Reason.GLUE and self._glue.passes_on(source, verdict):
                reason = Reason.INHERITED
            verdict = replace(verdict, reason=reason)
        elif verdict.reason is Reason.NON_FINITE and not tainted:
            verdict = verdict.beginning()
        if verdict.status is Status.FAIL and verdict.reason not in UNMATCHED:
            self._erring.add(source)
        self._taint(record, verdict, call if record.role is Role.INPUT else parent, reshaped)
        return verdict

    def _taint(
        self, record: Record, verdict: Verdict, whose: CallKey | None, reshaped: bool
    ) -> None:
        """Note that a call goes on with a wrong value, not golden's.

        Args:
            whose: the call whose own code goes on with it.
            reshaped: whether the value has another shape than golden's.
        """
        wrong = (
            verdict.status is Status.FAIL
            or verdict.chosen
            or verdict.reason is Reason.NOT_DETERMINISTIC
        )
        if (
            wrong
            and whose is not None
            and (*call_of(record), record.role.value, record.path) in self.not_fed
        ):
            self._tainted.add(whose)
            if reshaped:
                self._reshaped.add(whose)

    def _written(self, record: Record, verdict: Verdict) -> Verdict:
        call, place = call_of(record), (record.rank, owner_of(record))
        before = place in self._buffers or (
            self.recorded is not None and record.name not in self.recorded
        )
        if record.role is Role.BUFFER_UPDATE:
            before = before or call in self._erring or call in self._tainted
            if verdict.status is Status.FAIL and self._unknown.get(call):
                verdict = verdict.unfed()
        verdict = trace_buffer(record, verdict, before, self.steps)
        if is_wrong(verdict) and (*call, record.role.value, record.path) in self.not_fed:
            self._buffers.add(place)
        return verdict

    def _reason(self, record: Record, call: CallKey) -> Reason:
        if record.role is Role.INPUT:
            return Reason.INPUTS_DIFFER if record.parent is None else Reason.GLUE
        return Reason.GLUE if call in self._with_children else Reason.INTRODUCED


def _of_buffer(record: Record, verdict: Verdict, wrong: set[tuple[int, str]]) -> Verdict:
    """The verdict on a computed buffer, which has no inputs; adds its module to ``wrong``."""
    if verdict.status is Status.FAIL and verdict.reason not in UNMATCHED:
        wrong.add((record.rank, record.name))
    if verdict.reason is Reason.OVER:
        return replace(verdict, reason=Reason.INTRODUCED)
    return verdict.beginning() if verdict.reason is Reason.NON_FINITE else verdict


def _is_right(record: Record, verdict: Verdict) -> bool:
    """Whether an input passes, or is an opaque cache, which holds what earlier calls were fed."""
    if verdict.reason is Reason.NOT_COMPARABLE and record.layout is Layout.OPAQUE:
        return verdict.alike and record.is_cache
    return verdict.status is Status.PASS
