"""From what was heard in a step, in order, to where a value that is not finite began. Without torch.

Forward, each module call knows what kinds of values (NaN, +Inf, -Inf) its own code can have met: those it was given, and those that
its children gave back. A kind that turns up beyond that was made there:

- in a call's output, and nothing like it went in: made *inside* that call (``module``), or, if it has called children, in its own code
  after the last of them (``glue``);
- in what a child is given: made in the caller's own code before that child (``glue``).

What the model was given, or a caller's own code made, is legal until it does harm, since masks are made of Inf, and a NaN may be
taken out again: it is told only when a child turns it into NaN, or a +Inf comes out again. A -Inf that was given and becomes NaN is the
fault of the module in which it does (a mask that hides a whole row), not of who made it.

Backward, the first gradient that is not finite is the origin, and what comes after it is what it spoilt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
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
    Observation,
    Place,
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

#: At most so many calls that only passed on what came in are told, a step.
_MOST_PASSED_ON = 100


@dataclass
class _Open:
    """A module call that is running, or what is outside of all of them.

    Attributes:
        caller: the call that it was made in.
        given: the kinds that it was given.
        known: those, and what its children gave and its own code was seen to make.
        bad: of the known, those that come from a finding.
        pending: an Inf that its own code has made and that has done no harm yet.
        makers: the operators that made each kind, if operators were seen.
        sources: those that made it of a number in the code, such as a mask of -Inf.
        brought: those that were given it by a tensor that is neither an input nor made here.
        last: the child that ended last.
    """

    place: Place
    inputs: Observation | None
    caller: _Open | None = None
    given: frozenset[str] = frozenset()
    known: set[str] = field(default_factory=set)
    bad: set[str] = field(default_factory=set)
    pending: dict[str, Finding] = field(default_factory=dict)
    makers: dict[str, Observation] = field(default_factory=dict)
    sources: dict[str, Observation] = field(default_factory=dict)
    brought: dict[str, Observation] = field(default_factory=dict)
    last: Place | None = None


class _Judge:
    def __init__(self, step: int, limits: Limits) -> None:
        self.found: list[Finding] = []
        self._parameters: list[str] = []  # whose gradients are not finite, by the first origin
        self._step = step
        self._limits = limits
        self._open: dict[tuple[str, int], _Open] = {}
        self._outside = _Open(OUTSIDE, None)
        self._passed_on = 0
        self._spoilt = False  # backward: something has been found
        self._told: set[tuple[str, int]] = set()  # backward: calls that have been
        self._ends: dict[tuple[str, int], tuple[_Open, Observation]] = {}
        self._sees_operators = False
        self._made_in_loss: Observation | None = None  # the first gradient outside of the model that is not finite

    def kinds(self, seen: Iterable[TensorRange]) -> frozenset[str]:
        return kinds_of(seen, self._limits.saturates)

    def hear(self, heard: Observation) -> None:
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
            What.HOOKED: self._hooked,
            What.PARAMETER: self._parameter,
        }[heard.what](heard)

    def _caller(self, place: Place) -> _Open:
        return self._open.get(place.parent, self._outside) if place.parent is not None else self._outside

    def _began(self, heard: Observation) -> None:
        caller, tensors = self._caller(heard.place), [seen for seen in heard.of("input") if not _is_number(seen)]
        arrival = self.kinds(tensors) | (self.kinds(heard.of("input")) & {MINUS})  # of numbers, -Inf alone is what outputs are filled with
        call = _Open(heard.place, heard, caller, arrival, set(arrival), set(arrival & caller.bad))
        self._open[heard.place.key] = call
        fresh = arrival - caller.known
        caller.known |= fresh
        for kind in sorted(self.kinds(tensors) & fresh):
            if kind == NAN and caller.known & caller.bad & _INFINITE:  # its own code made it of an Inf that is told already
                self._blame(caller, call, {NAN})
            else:
                caller.pending[kind] = self._made_before(caller, heard, kind)

    def _made_before(self, caller: _Open, heard: Observation, kind: str) -> Finding:
        """What a child, or the model, is given and was not known to its caller."""
        bad = [each for each in heard.of("input") if kind in self.kinds([each])]
        if caller is self._outside:
            return self._finding(heard, Site.INPUT, [kind], bad)
        near = f"before {within(heard.place, caller.place)}"
        tensors = [*self._inputs_of(caller), *bad]
        return self._finding(heard, Site.GLUE, [kind], tensors, caller, near)

    def _ended(self, heard: Observation) -> None:
        call = self._open.pop(heard.place.key, None)
        if call is None:
            return
        caller, kinds = self._caller(heard.place), self.kinds(heard.seen)
        caller.last = heard.place
        self._ends[heard.place.key] = call, heard
        if kinds and not self._limits.allow(heard.place.name):
            self._judge(call, caller, heard, kinds)
        caller.known |= kinds

    def _judge(self, call: _Open, caller: _Open, heard: Observation, kinds: frozenset[str]) -> None:
        """Say where the kinds in a call's output come from."""
        made = NAN not in call.known and (NAN in kinds or bool(kinds - call.known))
        pending = self._pending(call, caller, kinds)
        if pending is not None:
            self._tell(pending, caller, call)
            self._pass_on(call, caller, heard, kinds)
        elif call.given & call.bad:
            self._pass_on(call, caller, heard, kinds)
        elif call.known & call.bad:  # made in a child, and told there
            self._blame(caller, call, kinds)
        elif (own := next((kind for kind in _HARMFUL if kind in call.pending and kinds & _HARM[kind]), None)) is not None:
            self._tell(call.pending.pop(own), caller, call)
        elif made and not (kinds == {MINUS} and self._is_fill(call)):
            glue = call.last is not None
            near = f"after {within(call.last, call.place)}" if call.last is not None else ""
            tensors = [*self._inputs_of(call), *heard.seen]
            found = self._finding(heard, Site.GLUE if glue else Site.MODULE, sorted(kinds), tensors, call, near)
            self._tell(found, caller, call)

    def _pending(self, call: _Open, caller: _Open, kinds: frozenset[str]) -> Finding | None:
        """What, of that which callers' own code made or the model was given, does harm in this call."""
        for kind in (NAN,) if NAN in call.given else (*_HARMFUL, MINUS):
            around = self._around(kind, caller)
            maker = around[-1]
            if kind in call.given and kind in maker.pending and kinds & _HARM[kind] and (kind != MINUS or self._is_overflow(maker)):
                above = self._around(PLUS, maker.caller) if maker.caller is not None and kind == NAN and PLUS in maker.given else []
                if above and PLUS in above[-1].pending:  # the NaN was made of that
                    maker.pending.pop(kind)
                    around, maker, kind = [*around, *above], above[-1], PLUS
                found = maker.pending.pop(kind)
                other = maker.pending.get(MINUS)
                if other is not None and other.order == found.order and self._is_overflow(maker):
                    found = replace(found, kinds=[*found.kinds, *maker.pending.pop(MINUS).kinds])
                for each in around:
                    self._blame(each, None, found.kinds)
                return found
        return None

    def _around(self, kind: str, call: _Open) -> list[_Open]:
        """A call and those around it, up to the one whose own code has made an Inf that all within were given."""
        around = [call]
        while kind in call.given and kind not in call.pending and call is not self._outside:
            call = call.caller or self._outside
            around.append(call)
        return around

    def _is_overflow(self, caller: _Open) -> bool:
        """Whether a pending -Inf was computed, and is no mask: by its operator; if that is not known, by there being positive values."""
        if self._sees_operators:
            return MINUS in caller.makers
        return any(float(seen.high) > 0 for seen in caller.pending[MINUS].tensors if MINUS in self.kinds([seen]))

    def _is_fill(self, call: _Open) -> bool:
        """Whether a -Inf that a call gives is what it was filled with, and none of its operators has computed it."""
        return MINUS not in call.makers if self._sees_operators else self._limits.fills(call.place.name)

    def _tell(self, found: Finding, *calls: _Open) -> None:
        """A finding; from now on these calls' values of its kinds are known to come from one."""
        self.found.append(found)
        for call in calls:
            self._blame(call, None, found.kinds)

    def _blame(self, call: _Open, also: _Open | None, kinds: Iterable[str]) -> None:
        for each in (call, also) if also is not None else (call,):
            each.known |= set(kinds)
            each.bad |= set(kinds)

    def _pass_on(self, call: _Open, caller: _Open, heard: Observation, kinds: frozenset[str]) -> None:
        """A call that was given what is not finite, and gives it on."""
        self._blame(caller, None, kinds)
        self._passed_on += 1
        if self._passed_on <= _MOST_PASSED_ON:
            tensors = [*self._inputs_of(call), *heard.seen]
            self.found.append(self._finding(heard, Site.MODULE, sorted(kinds), tensors, call).passing_on())

    def _operator(self, heard: Observation) -> None:
        self._sees_operators = True
        call = self._open.get(heard.place.key, self._outside)
        arrival, kinds = self.kinds(heard.of("input")), self.kinds(heard.of("output"))
        new = kinds - arrival
        if NAN in new and NAN not in call.makers:
            infinite = next((call.makers[kind] for kind in (PLUS, MINUS) if kind in arrival and kind in call.makers), None)
            call.makers[NAN] = infinite or heard
        given = self.kinds(seen for seen in heard.of("input") if not _is_number(seen))
        for kind in kinds - given:
            call.sources[kind] = heard
        for kind in (kinds & given) - call.known - call.makers.keys() - call.sources.keys():
            call.brought.setdefault(kind, heard)
        if NAN not in arrival and not arrival & _INFINITE:
            filled = {MINUS} if _is_mask(heard) else set()
            call.sources.update(dict.fromkeys(new & filled, heard))
            call.makers.update(dict.fromkeys(new - {NAN} - filled, heard))  # the last: an earlier one may have done no harm

    def _point(self, heard: Observation) -> None:
        call, kinds = self._open.get(heard.place.key, self._outside), self.kinds(heard.seen)
        if kinds and not kinds <= call.bad:
            tensors = [*self._inputs_of(call), *heard.seen]
            self._tell(self._finding(heard, Site.POINT, sorted(kinds), tensors, call, heard.near), call)

    def _flag(self, heard: Observation) -> None:
        """The first is told as where it began: what is saturated sets off the flag in most calls after it."""
        call, ended = self._ends.get(heard.place.key, (self._open.get(heard.place.key), None))
        tensors = [*(self._inputs_of(call) if call is not None else []), *(ended.seen if ended is not None else [])]
        found = self._finding(heard, Site.GLUE if heard.near else Site.MODULE, [FLAG], tensors, call, heard.near)
        if call is not None and SATURATED in call.makers:
            found = _made_by(call.makers[SATURATED], found)
        if any(each.origin for each in self.found):
            found = found.passing_on()
            self._passed_on += 1
        if self._passed_on <= _MOST_PASSED_ON:
            self.found.append(found)

    def _arrived(self, heard: Observation) -> None:
        kinds = self.kinds(heard.seen)
        if kinds and not self._spoilt:
            self._spoilt = True
            self._blame_loss(heard, not self.found)

    def _blame_loss(self, heard: Observation, origin: bool) -> None:
        found = _backward(self._finding(heard, Site.LOSS, sorted(self.kinds(heard.seen)), heard.seen), cause=Cause.INSIDE)
        if self._made_in_loss is not None:
            found = _made_by(self._made_in_loss, found)
        self.found.append(found if origin else found.passing_on())

    def _loss(self, heard: Observation) -> None:
        """It is told only if it comes to the model."""
        if self._made_in_loss is None and self.kinds(heard.seen):
            self._made_in_loss = heard

    def _second(self, heard: Observation) -> None:
        """In a second backward nothing arrives at what the model gave: what is not finite may come from the loss."""
        before = len(self.found)
        if self._made_in_loss is not None and self.kinds(heard.seen) and not self.found:
            self._spoilt = True
            self._blame_loss(heard, True)
        else:
            self._gradient(heard)
        self.found[before:] = [replace(found, second=True) for found in self.found[before:]]

    def _hooked(self, heard: Observation) -> None:
        kinds = self.kinds(heard.seen)
        if kinds and not self._spoilt and not any(found.origin for found in self.found):
            self._spoilt = True
            self.found.append(_backward(self._finding(heard, Site.HOOK, sorted(kinds), heard.seen, None, heard.parameter)))

    def _gradient(self, heard: Observation) -> None:
        kinds = self.kinds(heard.seen)
        if not kinds or heard.place.key in self._told or len(self._told) > _MOST_PASSED_ON:
            return
        origin = not self._spoilt and not any(found.origin for found in self.found)
        if origin and (hidden := self._hidden(heard.place)) is not None:
            self._tell(hidden)
            origin = False
        self._spoilt = True
        self._told.add(heard.place.key)
        call, ended = self._ends.get(heard.place.key, (None, None))
        forward = [] if call is None or ended is None else [*self._inputs_of(call), *ended.seen]
        found = self._finding(heard, Site.GLUE if heard.near else Site.MODULE, sorted(kinds), [*forward, *heard.seen], None, heard.near)
        found = _backward(found, cause=Cause.INSIDE, operator=heard.operator, line=heard.line)
        if origin and call is not None:
            found = found.noting(*map(_swallowed, list(dict.fromkeys(call.makers.values()))[:1]))
        self.found.append(found if origin else found.passing_on())

    def _hidden(self, place: Place) -> Finding | None:
        """What a call was given in the forward that did harm in the backward only, as a NaN that torch.where took out."""
        call, _ = self._ends.get(place.key, (None, None))
        for kind in (NAN, PLUS):
            if call is not None and kind in call.given:
                maker = self._around(kind, call.caller or self._outside)[-1]
                if kind in maker.pending:
                    return maker.pending.pop(kind)
        return None

    def _sum(self, heard: Observation) -> None:
        """If a sum is not finite, but nothing was before, then its parts were finite."""
        kinds = self.kinds(heard.seen)
        if kinds and not self._spoilt and not any(found.origin for found in self.found):
            self._spoilt = True
            self.found.append(_backward(self._finding(heard, Site.SUM, sorted(kinds), heard.seen)))

    def _parameter(self, heard: Observation) -> None:
        """A parameter whose gradient is not finite is told with the gradient that spoilt it."""
        if not self.kinds(heard.seen):
            return
        if not any(found.origin for found in self.found):
            found = self._finding(heard, Site.SUM, sorted(self.kinds(heard.seen)), heard.seen, None, heard.parameter)
            self.found.append(_backward(found, name=heard.place.name, type=heard.place.type))
        if heard.parameter_name not in self._parameters:
            self._parameters.append(heard.parameter_name)

    def findings(self) -> list[Finding]:
        """In the order of the step; the first that was found as an origin has the parameters."""
        spoiling = next((found for found in self.found if found.origin), None)
        findings = [replace(found, parameters=self._parameters) if found is spoiling else found for found in self.found]
        return sorted(findings, key=lambda found: found.order)

    def _inputs_of(self, call: _Open) -> list[TensorRange]:
        return call.inputs.of("input") if call.inputs is not None else []

    def _finding(
        self, heard: Observation, site: Site, kinds: list[str], tensors: Iterable[TensorRange], call: _Open | None = None, near: str = ""
    ) -> Finding:
        place = call.place if call is not None and call is not self._outside else heard.place
        tensors = list(tensors)
        makers = {**call.brought, **call.sources, **call.makers} if call is not None else {}
        maker = next((makers[kind] for kind in (NAN, *kinds) if kind in kinds and kind in makers), None)
        given = call if call is not None else self._open.get(heard.place.key)
        inputs = self._inputs_of(given) if given is not None else [seen for seen in tensors if seen.role == "input"]
        unseen = list(given.inputs.unseen) if given is not None and given.inputs is not None else []
        if maker is not None and call is not None and maker in call.brought.values():
            bad = [seen.path for seen in maker.of("input") if self.kinds([seen]) & set(kinds)]
            unseen.append(f"{', '.join(bad)} of {maker.operator}, which is neither an input nor a weight")
        found = Finding(
            step=self._step,
            order=heard.order,
            name=place.name,
            call=place.call,
            type=place.type,
            site=site,
            direction=Direction.FORWARD,
            origin=True,
            cause=Cause.RANKS if heard.talked else Cause.NEAR if any(map(self._is_near, inputs)) else Cause.INSIDE,
            kinds=kinds,
            near=near,
            tensors=tensors,
            legal=[] if site is Site.INPUT else [seen.path for seen in inputs if self.kinds([seen]) & _INFINITE],
            unseen=unseen,
        )
        return found if maker is None else _made_by(maker, found)

    def _is_near(self, seen: TensorRange) -> bool:
        return near_the_limit(seen.dtype, float(seen.low), float(seen.high), self._limits.near)


def judge(heard: Iterable[Observation], step: int, limits: Limits) -> list[Finding]:
    """Find where values that are not finite began.

    Args:
        heard: all of a step, in order.
        step: its number.
        limits: what counts.

    Returns:
        Findings in the order in which they were heard: origins, and the calls that passed on what came from one.
    """
    judge = _Judge(step, limits)
    for each in heard:
        judge.hear(each)
    return judge.findings()


def _backward(found: Finding, **facts: Any) -> Finding:
    return replace(found, direction=Direction.BACKWARD, **facts)


def _made_by(maker: Observation, found: Finding) -> Finding:
    """A finding with the operator that has made it."""
    return replace(found, operator=maker.operator, line=maker.line, operator_tensors=maker.seen)


def _is_number(seen: TensorRange) -> bool:
    """Whether it may be a number in the code, not a tensor."""
    return not seen.shape and seen.dtype == "float64"


def _is_mask(heard: Observation) -> bool:
    """Whether an operator that gives -Inf does so where there is nothing, or has added something to the lowest number of a mask."""
    if _POOLS.match(heard.operator):
        return True
    return _SUMS.match(heard.operator) is not None and any(
        seen.dtype in DTYPES and -DTYPES[seen.dtype].largest <= float(seen.low) <= -0.99 * DTYPES[seen.dtype].largest
        for seen in heard.of("input")
    )


def _swallowed(maker: Observation) -> str:
    """What an operator made in the forward that the call's output does not show, but its backward does."""
    return f"in the forward {maker.operator}{f' at {maker.line}' if maker.line else ''} gave a value that is not finite"
