"""Where a value that is not finite began, by all that was seen in a step, in order. Without torch.

Forward, each module call knows what kinds of values (NaN, +Inf, -Inf) its own code can have met: those it was given, and those that
its children gave back. A kind that turns up beyond that was made there:

- in a call's output, and nothing like it went in: made *inside* that call (``module``), or, if it has called children, in its own code
  after the last of them (``glue``);
- in what a child is given: made in the caller's own code before that child (``glue``).

An Inf or a NaN that the model is given, or that a caller's own code makes, is not reported at once: it may be a mask, or be removed again.
It is reported when a child turns it into NaN, or when a +Inf comes out. A -Inf that a module is given and turns into NaN is that module's
fault (a mask that hides a whole row), not its maker's.

Backward, the first gradient that is not finite is the origin; later ones are its consequences.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from accucompare.findings.events import Cause, Direction, Finding, Site, TensorRange
from accucompare.findings.observations import (
    FLAG,
    MINUS,
    NAN,
    OUTSIDE,
    PLUS,
    SATURATED,
    Limits,
    ModuleCall,
    Observation,
    What,
    kinds_of,
    near_the_limit,
    within,
)
from accucompare.numbers.dtypes import DTYPES

_INFINITE = frozenset((PLUS, MINUS))
#: What is legal until a call makes of it one of these.
_HARM = {NAN: {NAN}, SATURATED: {NAN, SATURATED, PLUS}, PLUS: {NAN, PLUS, SATURATED}, MINUS: {NAN}}
#: And what is wrong, too, if a call's own code makes it and gives it back; a mask of -Inf is not.
_HARMFUL = (NAN, SATURATED, PLUS)

#: Operators that give -Inf for what lies outside of a tensor, and those that masks are added by.
_POOLS = re.compile(r"aten\.(adaptive_|fractional_)?max_pool")
_SUMS = re.compile(r"aten\.(add|sub)_?\.")

#: In each step at most so many calls are reported that only passed on what came in.
_MOST_PASSED_ON = 100


@dataclass
class _OpenCall:
    """A module call that is running, or what is outside of all of them.

    Attributes:
        caller: the call that it was made in.
        arrived: the kinds that it was given.
        known: those, and what its children gave and its own code was seen to make.
        bad: of the known, those that come from a finding.
        pending: by kind, findings that are held back until the value does harm: it was made by this call's own code or, outside of all
            calls, given to the model.
        makers: the operators that made each kind, if operators were seen.
        sources: operators that gave a kind which no tensor given to them had, such as a mask of -Inf made of a number.
        brought: operators that were given a kind by a tensor that is neither an input of the call nor made in it.
        last: the child that ended last.
    """

    place: ModuleCall
    inputs: Observation | None
    caller: _OpenCall | None = None
    arrived: frozenset[str] = frozenset()
    known: set[str] = field(default_factory=set)
    bad: set[str] = field(default_factory=set)
    pending: dict[str, Finding] = field(default_factory=dict)
    makers: dict[str, Observation] = field(default_factory=dict)
    sources: dict[str, Observation] = field(default_factory=dict)
    brought: dict[str, Observation] = field(default_factory=dict)
    last: ModuleCall | None = None


class _Judge:
    def __init__(self, step: int, limits: Limits) -> None:
        self._findings: list[Finding] = []
        self._parameters: list[str] = []  # whose gradients are not finite, by the first origin
        self._step = step
        self._limits = limits
        self._open: dict[tuple[str, int], _OpenCall] = {}
        self._outside = _OpenCall(OUTSIDE, None)
        self._passed_on = 0
        self._spoilt = False  # backward: something has been found
        self._reported: set[tuple[str, int]] = set()  # calls whose gradients were reported
        self._ends: dict[tuple[str, int], tuple[_OpenCall, Observation]] = {}
        self._sees_operators = False
        self._made_in_loss: Observation | None = None  # the first gradient outside of the model that is not finite

    def kinds(self, tensors: Iterable[TensorRange]) -> frozenset[str]:
        return kinds_of(tensors, self._limits.saturates)

    @property
    def _has_origin(self) -> bool:
        return any(finding.origin for finding in self._findings)

    def add(self, observation: Observation) -> None:
        {
            What.BEGAN: self._began,
            What.ENDED: self._ended,
            What.OPERATOR: self._operator,
            What.POINT: self._point,
            What.FLAG: self._flag,
            What.ARRIVED: self._arrived,
            What.SUM: self._sum,
            What.GRADIENT: self._gradient,
            What.SECOND: self._second,
            What.LOSS: self._loss,
            What.HOOKED: self._sum,
            What.PARAMETER: self._parameter,
        }[observation.what](observation)

    def _caller(self, place: ModuleCall) -> _OpenCall:
        return self._open.get(place.parent, self._outside) if place.parent is not None else self._outside

    def _began(self, observation: Observation) -> None:
        caller, tensors = self._caller(observation.place), [tensor for tensor in observation.of("input") if not _is_number(tensor)]
        # of numbers, only -Inf counts: outputs are filled with it
        arrival = self.kinds(tensors) | (self.kinds(observation.of("input")) & {MINUS})
        call = _OpenCall(observation.place, observation, caller, arrival, set(arrival), set(arrival & caller.bad))
        self._open[observation.place.key] = call
        fresh = arrival - caller.known
        caller.known |= fresh
        for kind in sorted(self.kinds(tensors) & fresh):
            if kind == NAN and caller.known & caller.bad & _INFINITE:  # its own code made it of an Inf that is reported already
                self._blame({NAN}, caller, call)
            else:
                caller.pending[kind] = self._made_before(caller, observation, kind)

    def _made_before(self, caller: _OpenCall, observation: Observation, kind: str) -> Finding:
        """What a child, or the model, is given and was not known to its caller."""
        bad = [each for each in observation.of("input") if kind in self.kinds([each])]
        if caller is self._outside:
            return self._finding(observation, Site.INPUT, bad, kinds=[kind])
        near = f"before {within(observation.place, caller.place)}"
        return self._finding(observation, Site.GLUE, [*self._inputs_of(caller), *bad], caller, near, [kind])

    def _ended(self, observation: Observation) -> None:
        call = self._open.pop(observation.place.key, None)
        if call is None:
            return
        caller, kinds = self._caller(observation.place), self.kinds(observation.tensors)
        caller.last = observation.place
        self._ends[observation.place.key] = call, observation
        if kinds and not self._limits.allow(observation.place.name):
            self._judge(call, caller, observation, kinds)
        caller.known |= kinds

    def _judge(self, call: _OpenCall, caller: _OpenCall, observation: Observation, kinds: frozenset[str]) -> None:
        """Say where the kinds in a call's output come from."""
        made = NAN not in call.known and (NAN in kinds or bool(kinds - call.known))
        harmful = self._take_harmful(call, caller, kinds)
        if harmful is not None:
            self._report(harmful, caller, call)
            self._pass_on(call, caller, observation, kinds)
        elif call.arrived & call.bad:
            self._pass_on(call, caller, observation, kinds)
        elif call.known & call.bad:  # made in a child, and reported there
            self._blame(kinds, caller, call)
        elif (own := next((kind for kind in _HARMFUL if kind in call.pending and kinds & _HARM[kind]), None)) is not None:
            self._report(call.pending.pop(own), caller, call)
        elif made and not (kinds == {MINUS} and self._is_fill(call)):
            glue = call.last is not None
            near = f"after {within(call.last, call.place)}" if call.last is not None else ""
            tensors = [*self._inputs_of(call), *observation.tensors]
            self._report(self._finding(observation, Site.GLUE if glue else Site.MODULE, tensors, call, near), caller, call)

    def _take_harmful(self, call: _OpenCall, caller: _OpenCall, kinds: frozenset[str]) -> Finding | None:
        """Take the pending finding that does harm in this call, if there is one, from the caller that holds it."""
        for kind in (NAN,) if NAN in call.arrived else (*_HARMFUL, MINUS):
            around = self._around(kind, caller)
            maker = around[-1]
            if kind in call.arrived and kind in maker.pending and kinds & _HARM[kind] and (kind != MINUS or self._is_overflow(maker)):
                above = self._around(PLUS, maker.caller) if maker.caller is not None and kind == NAN and PLUS in maker.arrived else []
                if above and PLUS in above[-1].pending:  # the NaN was made of that
                    maker.pending.pop(kind)
                    around, maker, kind = [*around, *above], above[-1], PLUS
                finding = maker.pending.pop(kind)
                other = maker.pending.get(MINUS)
                if other is not None and other.order == finding.order and self._is_overflow(maker):
                    finding = replace(finding, kinds=[*finding.kinds, *maker.pending.pop(MINUS).kinds])
                self._blame(finding.kinds, *around)
                return finding
        return None

    def _around(self, kind: str, call: _OpenCall) -> list[_OpenCall]:
        """A call and those around it, up to the one whose own code has made an Inf that all within were given."""
        around = [call]
        while kind in call.arrived and kind not in call.pending and call is not self._outside:
            call = call.caller or self._outside
            around.append(call)
        return around

    def _is_overflow(self, caller: _OpenCall) -> bool:
        """Whether a pending -Inf was computed, and is no mask: by its operator; if that is not known, by there being positive values."""
        if self._sees_operators:
            return MINUS in caller.makers
        return any(float(tensor.high) > 0 for tensor in caller.pending[MINUS].tensors if MINUS in self.kinds([tensor]))

    def _is_fill(self, call: _OpenCall) -> bool:
        """Whether a -Inf that a call gives is what it was filled with, and none of its operators has computed it."""
        return MINUS not in call.makers if self._sees_operators else self._limits.fills(call.place.name)

    def _report(self, finding: Finding, *calls: _OpenCall) -> None:
        """A finding; from now on these calls' values of its kinds are known to come from one."""
        self._findings.append(finding)
        self._blame(finding.kinds, *calls)

    def _blame(self, kinds: Iterable[str], *calls: _OpenCall) -> None:
        for call in calls:
            call.known |= set(kinds)
            call.bad |= set(kinds)

    def _pass_on(self, call: _OpenCall, caller: _OpenCall, observation: Observation, kinds: frozenset[str]) -> None:
        """A call that was given what is not finite, and gives it on."""
        self._blame(kinds, caller)
        self._passed_on += 1
        if self._passed_on <= _MOST_PASSED_ON:
            tensors = [*self._inputs_of(call), *observation.tensors]
            self._findings.append(self._finding(observation, Site.MODULE, tensors, call).passing_on())

    def _operator(self, observation: Observation) -> None:
        self._sees_operators = True
        call = self._open.get(observation.place.key, self._outside)
        arrival, kinds = self.kinds(observation.of("input")), self.kinds(observation.of("output"))
        new = kinds - arrival
        if NAN in new and NAN not in call.makers:
            infinite = next((call.makers[kind] for kind in (PLUS, MINUS) if kind in arrival and kind in call.makers), None)
            call.makers[NAN] = infinite or observation
        given = self.kinds(tensor for tensor in observation.of("input") if not _is_number(tensor))
        for kind in kinds - given:
            call.sources[kind] = observation
        for kind in (kinds & given) - call.known - call.makers.keys() - call.sources.keys():
            call.brought.setdefault(kind, observation)
        if NAN not in arrival and not arrival & _INFINITE:
            filled = {MINUS} if _is_mask(observation) else set()
            call.sources.update(dict.fromkeys(new & filled, observation))
            call.makers.update(dict.fromkeys(new - {NAN} - filled, observation))  # the last: an earlier one may have done no harm

    def _point(self, observation: Observation) -> None:
        call, kinds = self._open.get(observation.place.key, self._outside), self.kinds(observation.tensors)
        if kinds and not kinds <= call.bad:
            tensors = [*self._inputs_of(call), *observation.tensors]
            self._report(self._finding(observation, Site.POINT, tensors, call, observation.near), call)

    def _flag(self, observation: Observation) -> None:
        """The first is the origin: what is saturated raises the flag in most calls after it."""
        call, ended = self._ends.get(observation.place.key, (self._open.get(observation.place.key), None))
        tensors = [*(self._inputs_of(call) if call is not None else []), *(ended.tensors if ended is not None else [])]
        finding = self._finding(observation, Site.GLUE if observation.near else Site.MODULE, tensors, call, observation.near, [FLAG])
        if call is not None and SATURATED in call.makers:
            finding = _made_by(call.makers[SATURATED], finding)
        if self._has_origin:
            finding = finding.passing_on()
            self._passed_on += 1
        if self._passed_on <= _MOST_PASSED_ON:
            self._findings.append(finding)

    def _arrived(self, observation: Observation) -> None:
        kinds = self.kinds(observation.tensors)
        if kinds and not self._spoilt:
            self._spoilt = True
            self._blame_loss(observation, not self._findings)

    def _blame_loss(self, observation: Observation, origin: bool) -> None:
        finding = _backward(self._finding(observation, Site.LOSS), cause=Cause.INSIDE)
        if self._made_in_loss is not None:
            finding = _made_by(self._made_in_loss, finding)
        self._findings.append(finding if origin else finding.passing_on())

    def _loss(self, observation: Observation) -> None:
        """It is reported only if it reaches the model."""
        if self._made_in_loss is None and self.kinds(observation.tensors):
            self._made_in_loss = observation

    def _second(self, observation: Observation) -> None:
        """In a second backward nothing arrives at what the model gave: what is not finite may come from the loss."""
        before = len(self._findings)
        if self._made_in_loss is not None and self.kinds(observation.tensors) and not self._findings:
            self._spoilt = True
            self._blame_loss(observation, True)
        else:
            self._gradient(observation)
        self._findings[before:] = [replace(finding, second=True) for finding in self._findings[before:]]

    def _gradient(self, observation: Observation) -> None:
        kinds = self.kinds(observation.tensors)
        if not kinds or observation.place.key in self._reported or len(self._reported) > _MOST_PASSED_ON:
            return
        origin = not self._spoilt and not self._has_origin
        if origin and (hidden := self._hidden(observation.place)) is not None:
            self._report(hidden)
            origin = False
        self._spoilt = True
        self._reported.add(observation.place.key)
        call, ended = self._ends.get(observation.place.key, (None, None))
        forward = [] if call is None or ended is None else [*self._inputs_of(call), *ended.tensors]
        site = Site.GLUE if observation.near else Site.MODULE
        finding = self._finding(observation, site, [*forward, *observation.tensors], near=observation.near)
        finding = _backward(finding, cause=Cause.INSIDE, operator=observation.operator, line=observation.line)
        if origin and call is not None:
            finding = finding.noting(*map(_swallowed, list(dict.fromkeys(call.makers.values()))[:1]))
        self._findings.append(finding if origin else finding.passing_on())

    def _hidden(self, place: ModuleCall) -> Finding | None:
        """What a call was given in the forward that did harm in the backward only, as a NaN that torch.where took out."""
        call, _ = self._ends.get(place.key, (None, None))
        for kind in (NAN, PLUS):
            if call is not None and kind in call.arrived:
                maker = self._around(kind, call.caller or self._outside)[-1]
                if kind in maker.pending:
                    return maker.pending.pop(kind)
        return None

    def _sum(self, observation: Observation) -> None:
        """A sum of gradients, or what a hook gives: if it is not finite but nothing was before, its parts were finite."""
        kinds = self.kinds(observation.tensors)
        if kinds and not self._spoilt and not self._has_origin:
            self._spoilt = True
            site, near = (Site.HOOK, observation.parameter) if observation.what is What.HOOKED else (Site.SUM, "")
            self._findings.append(_backward(self._finding(observation, site, near=near)))

    def _parameter(self, observation: Observation) -> None:
        """A parameter whose gradient is not finite is listed with the finding that spoilt it."""
        if not self.kinds(observation.tensors):
            return
        if not self._has_origin:
            finding = self._finding(observation, Site.SUM, near=observation.parameter)
            self._findings.append(_backward(finding, name=observation.place.name, type=observation.place.type))
        if observation.parameter_name not in self._parameters:
            self._parameters.append(observation.parameter_name)

    def findings(self) -> list[Finding]:
        """In the order of the step; the first that was found as an origin has the parameters."""
        spoiling = next((finding for finding in self._findings if finding.origin), None)
        findings = [replace(finding, parameters=self._parameters) if finding is spoiling else finding for finding in self._findings]
        return sorted(findings, key=lambda finding: finding.order)

    def _inputs_of(self, call: _OpenCall) -> list[TensorRange]:
        return call.inputs.of("input") if call.inputs is not None else []

    def _finding(
        self,
        observation: Observation,
        site: Site,
        tensors: Sequence[TensorRange] | None = None,
        call: _OpenCall | None = None,
        near: str = "",
        kinds: list[str] | None = None,
    ) -> Finding:
        """A finding of an observation: of all its tensors and their kinds, unless others are given."""
        kinds = kinds or sorted(self.kinds(observation.tensors))
        tensors = list(tensors if tensors is not None else observation.tensors)
        place = call.place if call is not None and call is not self._outside else observation.place
        makers = {**call.brought, **call.sources, **call.makers} if call is not None else {}
        maker = next((makers[kind] for kind in (NAN, *kinds) if kind in kinds and kind in makers), None)
        given = call if call is not None else self._open.get(observation.place.key)
        inputs = self._inputs_of(given) if given is not None else [tensor for tensor in tensors if tensor.role == "input"]
        unseen = list(given.inputs.unseen) if given is not None and given.inputs is not None else []
        if maker is not None and call is not None and maker in call.brought.values():
            bad = [tensor.path for tensor in maker.of("input") if self.kinds([tensor]) & set(kinds)]
            unseen.append(f"{', '.join(bad)} of {maker.operator}, which is neither an input nor a weight")
        finding = Finding(
            step=self._step,
            order=observation.order,
            name=place.name,
            call=place.call,
            type=place.type,
            site=site,
            direction=Direction.FORWARD,
            origin=True,
            cause=Cause.RANKS if observation.talked else Cause.NEAR if any(map(self._is_near, inputs)) else Cause.INSIDE,
            kinds=kinds,
            near=near,
            tensors=tensors,
            legal=[] if site is Site.INPUT else [tensor.path for tensor in inputs if self.kinds([tensor]) & _INFINITE],
            unseen=unseen,
        )
        return finding if maker is None else _made_by(maker, finding)

    def _is_near(self, tensor: TensorRange) -> bool:
        return near_the_limit(tensor.dtype, float(tensor.low), float(tensor.high), self._limits.near)


def judge(observations: Iterable[Observation], step: int, limits: Limits) -> list[Finding]:
    """Find where values that are not finite began.

    Args:
        observations: all of a step, in order.
        step: its number.
        limits: what counts.

    Returns:
        Findings in the order of the step: origins, and the calls that passed on what came from one.
    """
    judge = _Judge(step, limits)
    for each in observations:
        judge.add(each)
    return judge.findings()


def _backward(finding: Finding, **facts: Any) -> Finding:
    return replace(finding, direction=Direction.BACKWARD, **facts)


def _made_by(maker: Observation, finding: Finding) -> Finding:
    """A finding with the operator that has made it."""
    return replace(finding, operator=maker.operator, line=maker.line, operator_tensors=maker.tensors)


def _is_number(tensor: TensorRange) -> bool:
    """Whether it may be a number in the code, not a tensor."""
    return not tensor.shape and tensor.dtype == "float64"


def _is_mask(observation: Observation) -> bool:
    """Whether an operator that gives -Inf does so where there is nothing, or has added something to the lowest number of a mask."""
    if _POOLS.match(observation.operator):
        return True
    return _SUMS.match(observation.operator) is not None and any(
        tensor.dtype in DTYPES and -DTYPES[tensor.dtype].largest <= float(tensor.low) <= -0.99 * DTYPES[tensor.dtype].largest
        for tensor in observation.of("input")
    )


def _swallowed(maker: Observation) -> str:
    """What an operator made in the forward that the call's output does not show, but its backward does."""
    return f"in the forward {maker.operator}{f' at {maker.line}' if maker.line else ''} gave a value that is not finite"
