"""Where errors come from, told from the order of the rows and which call was made in which."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from accucompare.bundle.manifest import Manifest
from accucompare.bundle.records import Record, Role
from accucompare.compare.comparison import BEGINS_HERE, UNMATCHED, Reason, Status, Verdict
from accucompare.compare.operators import Operator, OperatorOrigins, is_operator, not_fed_operators

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

    def trace(self, record: Record, verdict: Verdict) -> Verdict:
        """The verdict with its reason made exact, where the error could have come from elsewhere."""
        step = record.rank, record.step
        call = self._calls.setdefault((*step, record.name, record.call), _CallState())
        if is_operator(record):
            return self._operators.trace(record, verdict, call.over)
        call.known = True
        parent = None
        if record.parent is not None:
            parent = self._calls.setdefault((*step, *record.parent), _CallState())
            parent.has_children = True
        nonfinite = verdict.reason is Reason.NON_FINITE
        if verdict.reason is Reason.INTRODUCED:
            verdict = replace(verdict, reason=self._reason(record, call, parent))
        elif nonfinite and not self._nonfinite_before(record, call, parent):
            verdict = _begins_here(verdict)
        if verdict.status is Status.FAIL and verdict.reason not in UNMATCHED:
            self._steps_over.add(step)
            if nonfinite:
                self._steps_nonfinite.add(step)
            for state in (call if record.role is Role.INPUT else None, parent):
                if state is not None:
                    state.over = True
                    state.nonfinite = state.nonfinite or nonfinite
        return verdict

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
        (rank, entry.get("step", 0), entry.get("name", ""), entry.get("call", 0), entry.get("role", ""), entry.get("path", ""))
        for rank, manifest in manifests.items()
        for entry in (manifest.capture.get("feed") or {}).get("not_fed") or ()
    }


def operators_not_fed(manifests: Mapping[int, Manifest]) -> frozenset[Operator]:
    """Which operators of a fed capture kept what they were given, or gave, from the manifests of its ranks."""
    found: set[Operator] = set()
    for rank, manifest in manifests.items():
        found |= not_fed_operators(rank, (manifest.capture.get("feed") or {}).get("not_fed") or ())
    return frozenset(found)


@dataclass
class Fed:
    """The same for a fed candidate, of which every error is its own, but for what could not be fed.

    Where an input that was not fed is over its limit, or an output of a child that was not fed, a call's own code computed with
    values that were wrong already: its outputs, and what it gives its children, are *inherited*.

    Attributes:
        not_fed: which values kept what the candidate had computed.
        operators: the same for operators.
        recorded: the modules that golden has, so that they were fed; ``None`` for all.
    """

    not_fed: Collection[NotFed]
    operators: OperatorOrigins = field(default_factory=lambda: OperatorOrigins(fed=True))
    recorded: Collection[str] | None = None
    _tainted: set[Call] = field(default_factory=set)
    _with_children: set[Call] = field(default_factory=set)

    def trace(self, record: Record, verdict: Verdict) -> Verdict:
        """The verdict with its reason made exact."""
        step = record.rank, record.step
        call: Call = (*step, record.name, record.call)
        if is_operator(record):
            return self.operators.trace(record, verdict, call in self._tainted)
        parent: Call | None = None if record.parent is None else (*step, *record.parent)
        if parent is not None:
            self._with_children.add(parent)
        source = parent if record.role is Role.INPUT else call  # whose own code made the value
        given = source in self._tainted or (source is not None and not self._was_fed(source[2]))
        if verdict.reason is Reason.INTRODUCED:
            verdict = replace(verdict, reason=Reason.INHERITED if given else self._reason(record, call))
        elif verdict.reason is Reason.NON_FINITE and not given:
            verdict = _begins_here(verdict)
        if verdict.status is Status.FAIL and (*call, record.role.value, record.path) in self.not_fed:
            whose = call if record.role is Role.INPUT else parent  # whose own code goes on with it
            if whose is not None:
                self._tainted.add(whose)
        return verdict

    def _was_fed(self, name: str) -> bool:
        return self.recorded is None or name in self.recorded

    def _reason(self, record: Record, call: Call) -> Reason:
        if record.role is Role.INPUT:
            return Reason.INPUTS_DIFFER if record.parent is None else Reason.GLUE
        return Reason.GLUE if call in self._with_children else Reason.INTRODUCED


def _begins_here(verdict: Verdict) -> Verdict:
    return replace(verdict, detail=f"{verdict.detail}; {BEGINS_HERE}" if verdict.detail else BEGINS_HERE)
