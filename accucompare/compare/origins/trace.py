"""Where errors come from, as the order of the rows and the nesting of calls show."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from accucompare.bundle.format import (
    GRADIENT_ROLES,
    OPERATOR_ROLES,
    TRAINING_ROLES,
    UPDATE_ROLES,
    Layout,
    Manifest,
    Record,
    Role,
)
from accucompare.compare.constants import MUCH_FURTHER
from accucompare.compare.origins.module_calls import CallKey, call_of, caller_of, source_of
from accucompare.compare.origins.origin_rules import (
    CODE,
    MODULE,
    RULES,
    OriginRule,
    RowsSoFar,
    Taint,
    Test,
)
from accucompare.compare.remarks import BareRemark
from accucompare.compare.rows import UNMATCHED, OperatorKey, Reason, Status, Verdict, operator_of

#: A value that was not fed: (rank, step, name, call index, role, path).
NotFed = tuple[int, int, str, int, str, str]

#: What makes, or is made by, module calls.
_FORWARD = (Role.INPUT, Role.OUTPUT, Role.ARGUMENT_UPDATE)

#: What comes before or after calls.
_BETWEEN = (Role.COMPUTED_BUFFER, Role.BUFFER_BEFORE, Role.BUFFER_AFTER, *TRAINING_ROLES)

#: What a call makes of its inputs.
_MADE = (Role.OUTPUT, Role.ARGUMENT_UPDATE, Role.BUFFER_UPDATE)

#: What a call, and its backward, make theirs of.
_TAKEN = (Role.INPUT.value, Role.GRAD_OUTPUT.value)

#: What the code around calls, or their backward, made.
_GLUE = (Role.INPUT, Role.GRAD_OUTPUT, Role.OP_INPUT, Role.OP_GRAD_OUTPUT)

#: What a call gives, made by its own code or by the calls that it made.
_GIVES = (Role.OUTPUT, Role.ARGUMENT_UPDATE, *GRADIENT_ROLES)


def not_fed(manifests: Mapping[int, Manifest]) -> set[NotFed]:
    """The values of a fed capture that golden's did not replace, from its ranks' manifests."""
    return {
        (rank, entry.step, entry.name, entry.call, entry.role, entry.path)
        for rank, manifest in manifests.items()
        if (feed := manifest.feed) is not None
        for entry in feed.not_fed
    }


@dataclass
class Trace:
    """Traces errors, row by row in execution order, by the rules of ``origin_rules``.

    Free-running, an output over its limit is *introduced* if all inputs of its module were within
    theirs; *glue* if the module called children that were within theirs: then its own code made the
    error. An input over its limit is *glue* if everything its parent had before was within limits.
    All else is *inherited*. An outermost call's input has no parent: it is *inputs differ* if
    nothing before it in its step was over its limit.

    Fed, every error is a row's own, except what comes from values that were not fed. If an input
    that was not fed cannot be proven right, its call's outputs say so (``not_all_fed``). A call's
    own code goes on with its own results, as a residual stream does: of its children's inputs and
    its outputs, only the first one over its limit is *glue*, and later ones that are much further
    over theirs."""

    fed: bool = False  # whether each call, and each update, was given golden's values
    not_fed: Collection[NotFed] = ()  # the values that were not
    # the modules that golden has, so that they were fed; ``None`` for all
    recorded: Collection[str] | None = None
    # those recorded on both sides, with their ranks; ``None`` for all
    steps: Collection[tuple[int, int]] | None = None
    # whether the sides' code is known to be written differently: what one side alone takes or gives
    # is then a part of its code, and makes nothing wrong
    rewritten: bool = False
    _operators: set[OperatorKey] = field(default_factory=set)  # with a value that was not fed
    # inputs, and gradients of outputs, that were not fed and are not known to be right
    _unknown: dict[CallKey, set[tuple[str, str]]] = field(default_factory=dict)
    _begun: set[CallKey] = field(default_factory=set)
    # how far over its limit each call's own code, or its backward, has been
    _glue: dict[tuple[bool, CallKey | None], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rules = RULES[self.fed]
        self._seen = RowsSoFar(self.recorded)
        for rank, step, name, call, role, path in self.not_fed:
            if role in _TAKEN:
                self._unknown.setdefault((rank, step, name, call), set()).add((role, path))
            elif role in OPERATOR_ROLES:
                operator, _, rest = path.partition("#")
                number = rest.partition(".")[0]
                if number.isdecimal():
                    self._operators.add((rank, step, name, call, operator, int(number)))

    def trace(self, record: Record, verdict: Verdict) -> Verdict:
        """The verdict, with ``OVER`` replaced by where the error comes from."""
        rule = self._rules[record.role]
        self._meet(record)
        verdict = self._of_its_steps(record, self._of_its_inputs(record, verdict))
        traced = self._traced(rule, record, verdict)
        own = self.rewritten and record.role in _FORWARD and verdict.reason in UNMATCHED
        for taint in () if own else rule.taints:
            if taint.if_(traced) and not (taint.fed and self._was_fed(record)):
                self._taint(taint, taint.whose(record), record.step, verdict.reason)
        return traced

    def _meet(self, record: Record) -> None:
        """Note how calls are nested, and that a call begins with what its module holds."""
        call, caller, role = call_of(record), None, record.role
        if role in _FORWARD:
            caller = caller_of(record)
            self._seen.with_rows.add(call)
            self._seen.callers.add(caller)
        elif role in UPDATE_ROLES:
            self._seen.updated.add((record.rank, record.step))
        for begun in (call, caller) if role not in _BETWEEN and not self.fed else ():
            if begun is not None and begun not in self._begun:
                self._begun.add(begun)
                for why in (None, Reason.NON_FINITE):
                    if (MODULE.what, begun[::2], why) in self._seen.wrong:
                        self._taint(CODE, begun, record.step, why)

    def _taint(
        self, taint: Taint, whose: Hashable | None, step: int, why: Reason | None = None
    ) -> None:
        for reason in {None, why} if whose is not None else ():
            self._seen.wrong.setdefault((taint.what, whose, reason), set()).add(step)

    def _traced(self, rule: OriginRule, record: Record, verdict: Verdict) -> Verdict:
        reason = verdict.reason
        if reason is Reason.OVER:
            if self._any(rule.wanders, record):
                return self._wandered(verdict)
            inherited = self._any(rule.source, record)
            return replace(
                verdict, reason=Reason.INHERITED if inherited else self._own(record, verdict)
            )
        if reason is Reason.SHAPE and self._any(rule.shape_source, record):
            return replace(verdict, reason=Reason.INHERITED)
        begins = False
        if reason is Reason.NON_FINITE:
            tests = rule.source if rule.nan_source is None else rule.nan_source
            begins = not self._any(tests, record)
        elif reason in UNMATCHED:
            begins = not self._any(rule.alone_source, record)
        return verdict.beginning() if begins else verdict

    def _any(self, tests: tuple[Test, ...], record: Record) -> bool:
        return any(test(self._seen, record) for test in tests)

    def _own(self, record: Record, verdict: Verdict) -> Reason:
        """The reason of an error that was not inherited."""
        operator = record.role in OPERATOR_ROLES
        if record.role in _GLUE and record.parent is None and not operator:
            return Reason.INPUTS_DIFFER if record.role is Role.INPUT else Reason.INTRODUCED
        if not (
            record.role in _GLUE
            or (record.role in _GIVES and call_of(record) in self._seen.callers)
        ):
            return Reason.INTRODUCED
        passed_on = self.fed and not operator and self._passes_on(record, verdict.over_limit or 0.0)
        return Reason.INHERITED if passed_on else Reason.GLUE

    def _passes_on(self, record: Record, over_limit: float) -> bool:
        """Whether an earlier value of a call's own code was about as wrong."""
        # another choice, or something tiny where golden is zero, says nothing about later values
        if math.isinf(over_limit):
            return False
        source = record.role in GRADIENT_ROLES, source_of(record)
        before = self._glue.get(source)
        self._glue[source] = max(before or 0.0, over_limit)
        return before is not None and over_limit <= MUCH_FURTHER * before

    def _was_fed(self, record: Record) -> bool:
        if record.role in OPERATOR_ROLES:
            return self.fed and operator_of(record) not in self._operators
        place = *call_of(record), record.role.value, record.path
        return self.fed and place not in self.not_fed

    def _wandered(self, verdict: Verdict) -> Verdict:
        """An update of other gradients made the value, which then says nothing of its code."""
        remark = BareRemark.WANDERED_FED if self.fed else BareRemark.WANDERED
        return replace(
            verdict, reason=Reason.NOT_COMPARABLE, remarks=(remark,), waived=not self.fed
        )

    def _of_its_inputs(self, record: Record, verdict: Verdict) -> Verdict:
        """The verdict, which says whether its call's inputs were all fed or proven right."""
        if not self._unknown:
            return verdict
        caller = caller_of(record)
        around = () if caller is None else self._unknown.get(caller, ())
        if record.role is Role.GRAD_OUTPUT and any(
            role == Role.GRAD_OUTPUT.value for role, _ in around
        ):  # what arrives at a call may be what arrives at its last child
            return verdict.unfed() if verdict.status is Status.FAIL else verdict
        unknown = self._unknown.get(call_of(record))
        if not unknown:
            return verdict
        if record.role.value in _TAKEN and _is_right(record, verdict):
            unknown.discard((record.role.value, record.path))
        made = record.role in _MADE and any(role == Role.INPUT.value for role, _ in unknown)
        back = record.role in (Role.GRAD_INPUT, Role.CALL_GRAD) and unknown
        return verdict.unfed() if (made or back) and verdict.status is Status.FAIL else verdict

    def _of_its_steps(self, record: Record, verdict: Verdict) -> Verdict:
        """The verdict on what both sides do in the step and have recorded before."""
        # one side says that there is no gradient
        if record.role is Role.PARAM_GRAD and verdict.reason is Reason.DTYPE:
            return replace(verdict, reason=Reason.MISSING if record.dtype else Reason.EXTRA)
        if (
            record.role is Role.BUFFER_BEFORE
            and record.step > 0
            and self.steps is not None
            and (record.rank, record.step - 1) not in self.steps
            and verdict.status is Status.FAIL
        ):
            return Verdict(Reason.NOT_COMPARABLE, remarks=(BareRemark.OTHER_STEPS,))
        return verdict


def _is_right(record: Record, verdict: Verdict) -> bool:
    """Whether an input passes, or is an opaque cache, which holds what earlier calls were fed."""
    if verdict.reason is Reason.NOT_COMPARABLE and record.layout is Layout.OPAQUE:
        return verdict.alike and record.is_cache
    return verdict.status is Status.PASS
