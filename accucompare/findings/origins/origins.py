"""Where a value that is not finite began, by all that was seen in a step, in order. Without torch.

Forward, each module call knows which kinds of values (NaN, +Inf, -Inf) its own code can have met:
those that it was given, and those that its children returned. Any other kind was made there:

- in a call's output: made *inside* that call (``module``) or, if it has called children, in its own
  code after the last of them (``glue``);
- in a child's input: made in the caller's own code before that child (``glue``).

An Inf or a NaN that the model is given, or that a caller's own code makes, may be a mask, or be
removed again. It is reported only when a child turns it into NaN, or when a +Inf comes out. If a
module turns a given -Inf into NaN, that is its own fault (a mask that hides a whole row), not the
maker's.

Backward, the first gradient that is not finite is the origin; later ones are its consequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from accucompare.findings.log import (
    FLAG,
    MINUS,
    NAN,
    OUTSIDE,
    PLUS,
    SATURATED,
    Cause,
    Direction,
    Finding,
    ModuleCall,
    Site,
    StepObservation,
    TensorRange,
    WatchLimits,
    What,
    kinds_of,
    near_the_limit,
    remark,
    within,
)
from accucompare.findings.origins.open_calls import INFINITE, OpenCall, explain_kinds

#: By a legal kind, the kinds that make it harmful if a call turns it into them.
_HARM = {NAN: {NAN}, SATURATED: {NAN, SATURATED, PLUS}, PLUS: {NAN, PLUS, SATURATED}, MINUS: {NAN}}
#: Kinds that a call's own code must not make and return; a mask of -Inf is legal.
_HARMFUL = (NAN, SATURATED, PLUS)

#: Calls per step that are reported for only passing on what came in, at most.
_MOST_PASSED_ON = 100


class _OriginSearch:
    """Goes through a step's observations in order; keeps what each running call can have met."""

    def __init__(self, step: int, limits: WatchLimits, sees_operators: bool) -> None:
        self._findings: list[Finding] = []
        self._parameters: list[str] = []  # whose gradients are not finite, by the first origin
        self._step = step
        self._limits = limits
        self._open: dict[tuple[str, int], OpenCall] = {}
        self._outside = OpenCall(OUTSIDE, None)
        self._passed_on = 0
        self._spoilt = False  # backward: something has been found
        self._reported: set[tuple[str, int]] = set()  # calls whose gradients were reported
        self._ends: dict[tuple[str, int], tuple[OpenCall, StepObservation]] = {}
        self._sees_operators = sees_operators
        self._given_out: list[str] = []  # the model's outputs that hold an Inf
        # the first gradient outside of the model that is not finite
        self._made_in_loss: StepObservation | None = None

    def kinds(self, tensors: Iterable[TensorRange]) -> frozenset[str]:
        return kinds_of(tensors, self._limits.saturates)

    @property
    def _has_origin(self) -> bool:
        return any(finding.origin for finding in self._findings)

    def add(self, observation: StepObservation) -> None:
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

    def _caller(self, place: ModuleCall) -> OpenCall:
        if place.parent is not None:
            return self._open.get(place.parent, self._outside)
        return self._outside

    def _began(self, observation: StepObservation) -> None:
        caller = self._caller(observation.place)
        tensors = [tensor for tensor in observation.of("input") if not _is_number(tensor)]
        # of numbers, only -Inf counts: outputs are filled with it
        arrival = self.kinds(tensors) | (self.kinds(observation.of("input")) & {MINUS})
        call = OpenCall(
            observation.place,
            observation,
            caller,
            arrival,
            set(arrival),
            set(arrival & caller.explained),
        )
        self._open[observation.place.key] = call
        fresh = arrival - caller.met
        caller.met |= fresh
        for kind in sorted(self.kinds(tensors) & fresh):
            # its own code made it of an Inf that is reported already
            if kind == NAN and caller.met & caller.explained & INFINITE:
                explain_kinds({NAN}, caller, call)
            else:
                self._hold(
                    caller,
                    kind,
                    self._made_before(caller, observation, kind),
                    caller is not self._outside and self._fills(caller, kind),
                )

    def _hold(self, maker: OpenCall, kind: str, finding: Finding, fill: bool) -> None:
        """Hold a finding back until its value does harm."""
        maker.pending[kind] = finding
        (maker.filled.add if fill else maker.filled.discard)(kind)

    def _made_before(self, caller: OpenCall, observation: StepObservation, kind: str) -> Finding:
        """A kind that a child, or the model, is given and its caller did not know."""
        bad = [each for each in observation.of("input") if kind in self.kinds([each])]
        if caller is self._outside:
            return self._finding(observation, Site.INPUT, bad, kinds=[kind])
        near = f"before {within(observation.place, caller.place)}"
        return self._finding(observation, Site.GLUE, [*caller.given, *bad], caller, near, [kind])

    def _ended(self, observation: StepObservation) -> None:
        call = self._open.pop(observation.place.key, None)
        if call is None:
            return
        caller, kinds = self._caller(observation.place), self.kinds(observation.tensors)
        caller.last = observation.place
        self._ends[observation.place.key] = call, observation
        if kinds and not self._limits.allow(observation.place.name):
            self._trace_output(call, caller, observation, kinds)
        caller.met |= kinds
        if caller is self._outside:
            self._given_out += infinite_outputs(observation)

    def _trace_output(
        self, call: OpenCall, caller: OpenCall, observation: StepObservation, kinds: frozenset[str]
    ) -> None:
        """Say where the kinds in a call's output come from."""
        made = NAN not in call.met and (NAN in kinds or bool(kinds - call.met))
        harmful = self._take_harmful(call, caller, kinds)
        if harmful is not None:
            self._report(harmful, caller, call)
            self._pass_on(call, caller, observation, kinds)
        elif call.arrived & call.explained:
            self._pass_on(call, caller, observation, kinds)
        elif call.met & call.explained:  # made in a child, and reported there
            explain_kinds(kinds, caller, call)
        elif (
            own := next(
                (kind for kind in _HARMFUL if kind in call.pending and kinds & _harm(kind, call)),
                None,
            )
        ) is not None:
            self._report(call.pending.pop(own), caller, call)
        elif made:
            site = Site.GLUE if call.last is not None else Site.MODULE
            near = f"after {within(call.last, call.place)}" if call.last is not None else ""
            finding = self._finding(
                observation, site, [*call.given, *observation.tensors], call, near
            )
            if not all(self._fills(call, kind) for kind in kinds - call.met):
                self._report(finding, caller, call)
            elif PLUS in kinds - call.met:
                self._hold(caller, PLUS, finding, fill=True)

    def _take_harmful(
        self, call: OpenCall, caller: OpenCall, kinds: frozenset[str]
    ) -> Finding | None:
        """Take the pending finding that does harm in this call from the caller that holds it."""
        for kind in (NAN,) if NAN in call.arrived else (*_HARMFUL, MINUS):
            around = caller.around(kind)
            maker = around[-1]
            if not self._does_harm(kind, call, maker, kinds):
                continue
            if kind == NAN and PLUS in maker.arrived and maker.caller is not None:
                above = maker.caller.around(PLUS)
                if PLUS in above[-1].pending:  # the NaN was made of that
                    maker.pending.pop(kind)
                    around, maker, kind = [*around, *above], above[-1], PLUS
            finding = maker.pending.pop(kind)
            other = maker.pending.get(MINUS)
            if other is not None and other.order == finding.order and self._is_overflow(maker):
                finding = replace(finding, kinds=[*finding.kinds, *maker.pending.pop(MINUS).kinds])
            explain_kinds(finding.kinds, *around)
            return finding
        return None

    def _does_harm(self, kind: str, call: OpenCall, maker: OpenCall, kinds: frozenset[str]) -> bool:
        """Whether a call turned a kind pending at its maker into a harmful one; masks do not."""
        pending = kind in call.arrived and kind in maker.pending
        return (
            pending
            and bool(kinds & _harm(kind, maker))
            and (kind != MINUS or (MINUS not in maker.filled and self._is_overflow(maker)))
        )

    def _is_overflow(self, caller: OpenCall) -> bool:
        """Whether a pending -Inf was computed: by its operator, or by positive values beside it."""
        if self._sees_operators:
            return MINUS in caller.makers
        return any(
            float(tensor.high) > 0
            for tensor in caller.pending[MINUS].tensors
            if MINUS in self.kinds([tensor])
        )

    def _fills(self, call: OpenCall, kind: str) -> bool:
        """Whether a call's own code only filled something with an Inf; no operator computed one."""
        if kind not in INFINITE:
            return False
        if self._sees_operators:
            return kind not in call.makers
        return self._limits.fills(call.place.name, kind)

    def _report(self, finding: Finding, *calls: OpenCall) -> None:
        """A finding; from now on these calls' values of its kinds are known to come from one."""
        self._findings.append(finding)
        explain_kinds(finding.kinds, *calls)

    def _pass_on(
        self, call: OpenCall, caller: OpenCall, observation: StepObservation, kinds: frozenset[str]
    ) -> None:
        """A call that was given a non-finite value and passes it on."""
        explain_kinds(kinds, caller)
        self._passed_on += 1
        if self._passed_on <= _MOST_PASSED_ON:
            tensors = [*call.given, *observation.tensors]
            self._findings.append(
                self._finding(observation, Site.MODULE, tensors, call).passing_on()
            )

    def _operator(self, observation: StepObservation) -> None:
        call = self._open.get(observation.place.key, self._outside)
        arrival, kinds = self.kinds(observation.of("input")), self.kinds(observation.of("output"))
        given = self.kinds(tensor for tensor in observation.of("input") if not _is_number(tensor))
        call.saw(observation, arrival, given, kinds)

    def _point(self, observation: StepObservation) -> None:
        call = self._open.get(observation.place.key, self._outside)
        kinds = self.kinds(observation.tensors)
        if kinds and not kinds <= call.explained:
            tensors = [*call.given, *observation.tensors]
            self._report(
                self._finding(observation, Site.POINT, tensors, call, observation.near), call
            )

    def _flag(self, observation: StepObservation) -> None:
        """The first flag is the origin: saturated values raise it in most later calls."""
        call, ended = self._ends.get(
            observation.place.key, (self._open.get(observation.place.key), None)
        )
        tensors = [
            *(call.given if call is not None else []),
            *(ended.tensors if ended is not None else []),
        ]
        finding = self._finding(
            observation,
            Site.GLUE if observation.near else Site.MODULE,
            tensors,
            call,
            observation.near,
            [FLAG],
        )
        if call is not None and SATURATED in call.makers:
            finding = _made_by(call.makers[SATURATED], finding)
        if self._has_origin:
            finding = finding.passing_on()
            self._passed_on += 1
        if self._passed_on <= _MOST_PASSED_ON:
            self._findings.append(finding)

    def _arrived(self, observation: StepObservation) -> None:
        kinds = self.kinds(observation.tensors)
        if kinds and not self._spoilt:
            self._spoilt = True
            self._blame_loss(observation, not self._findings)

    def _blame_loss(self, observation: StepObservation, origin: bool) -> None:
        finding = _backward(
            self._finding(observation, Site.LOSS), cause=Cause.INSIDE, legal=self._given_out
        )
        if self._made_in_loss is not None:
            finding = _made_by(self._made_in_loss, finding)
        self._findings.append(finding if origin else finding.passing_on())

    def _loss(self, observation: StepObservation) -> None:
        """It is reported only if it reaches the model."""
        if self._made_in_loss is None and self.kinds(observation.tensors):
            self._made_in_loss = observation

    def _second(self, observation: StepObservation) -> None:
        """In a second backward nothing arrives at the model's outputs: the loss may be to blame."""
        before = len(self._findings)
        if (
            self._made_in_loss is not None
            and self.kinds(observation.tensors)
            and not self._findings
        ):
            self._spoilt = True
            self._blame_loss(observation, True)
        else:
            self._gradient(observation)
        self._findings[before:] = [
            replace(finding, second=True) for finding in self._findings[before:]
        ]

    def _gradient(self, observation: StepObservation) -> None:
        kinds = self.kinds(observation.tensors)
        if (
            not kinds
            or observation.place.key in self._reported
            or len(self._reported) > _MOST_PASSED_ON
        ):
            return
        origin = not self._spoilt and not self._has_origin
        if origin and (hidden := self._hidden(observation.place)) is not None:
            self._report(hidden)
            origin = False
        self._spoilt = True
        self._reported.add(observation.place.key)
        call, ended = self._ends.get(observation.place.key, (None, None))
        forward = [] if call is None or ended is None else [*call.given, *ended.tensors]
        site = Site.GLUE if observation.near else Site.MODULE
        finding = self._finding(
            observation, site, [*forward, *observation.tensors], near=observation.near
        )
        finding = _backward(
            finding, cause=Cause.INSIDE, operator=observation.operator, line=observation.line
        )
        if origin and call is not None:
            for maker in [*call.makers.values()][:1]:  # only the backward shows what it made
                finding = finding.noting(
                    remark("swallowed", operator=maker.operator, line=maker.line)
                )
        self._findings.append(finding if origin else finding.passing_on())

    def _hidden(self, place: ModuleCall) -> Finding | None:
        """A forward input that did harm in the backward only, as a NaN that torch.where removed."""
        call, _ = self._ends.get(place.key, (None, None))
        for kind in (NAN, PLUS):
            if call is not None and kind in call.arrived:
                maker = (call.caller or self._outside).around(kind)[-1]
                if kind in maker.pending:
                    return maker.pending.pop(kind)
        return None

    def _sum(self, observation: StepObservation) -> None:
        """A non-finite sum of gradients or hook's result, although all before was finite."""
        kinds = self.kinds(observation.tensors)
        if kinds and not self._spoilt and not self._has_origin:
            self._spoilt = True
            site, near = (
                (Site.HOOK, observation.parameter)
                if observation.what is What.HOOKED
                else (Site.SUM, "")
            )
            self._findings.append(_backward(self._finding(observation, site, near=near)))

    def _parameter(self, observation: StepObservation) -> None:
        """Lists a parameter whose gradient is not finite with the finding that spoilt it."""
        if not self.kinds(observation.tensors):
            return
        if not self._has_origin:
            finding = self._finding(observation, Site.SUM, near=observation.parameter)
            self._findings.append(
                _backward(finding, name=observation.place.name, type=observation.place.type)
            )
        if observation.parameter_name not in self._parameters:
            self._parameters.append(observation.parameter_name)

    def findings(self) -> list[Finding]:
        """In the order of the step; the first origin has the parameters."""
        spoiling = next((finding for finding in self._findings if finding.origin), None)
        findings = [
            replace(finding, parameters=self._parameters) if finding is spoiling else finding
            for finding in self._findings
        ]
        return sorted(findings, key=lambda finding: finding.order)

    def _finding(
        self,
        observation: StepObservation,
        site: Site,
        tensors: Sequence[TensorRange] | None = None,
        call: OpenCall | None = None,
        near: str = "",
        kinds: list[str] | None = None,
    ) -> Finding:
        """A finding of an observation: of all its tensors and kinds, unless others are given."""
        kinds = kinds or sorted(self.kinds(observation.tensors))
        tensors = list(observation.tensors if tensors is None else tensors)
        place = observation.place if call is None or call is self._outside else call.place
        around = call or self._open.get(observation.place.key)
        inputs = (
            around.given
            if around is not None
            else [tensor for tensor in tensors if tensor.role == "input"]
        )
        unseen = (
            list(around.inputs.unseen) if around is not None and around.inputs is not None else []
        )
        maker = None if call is None else call.maker_of(kinds)
        if call is not None and maker is not None and maker in call.brought.values():
            bad = [tensor.path for tensor in maker.of("input") if self.kinds([tensor]) & set(kinds)]
            unseen.append(remark("neither-input-nor-weight", paths=bad, operator=maker.operator))
        finding = Finding(
            step=self._step,
            order=observation.order,
            name=place.name,
            call=place.call,
            type=place.type,
            site=site,
            direction=Direction.FORWARD,
            origin=True,
            cause=Cause.RANKS if observation.talked else self._cause(inputs),
            kinds=kinds,
            near=near,
            tensors=tensors,
            legal=(
                []
                if site is Site.INPUT
                else [tensor.path for tensor in inputs if self.kinds([tensor]) & INFINITE]
            ),
            unseen=unseen,
        )
        return finding if maker is None else _made_by(maker, finding)

    def _cause(self, inputs: Iterable[TensorRange]) -> Cause:
        """Whether inputs near the limit of their type are the cause, or the call itself."""
        near = any(
            near_the_limit(tensor.dtype, float(tensor.low), float(tensor.high), self._limits.near)
            for tensor in inputs
        )
        return Cause.NEAR if near else Cause.INSIDE


def find_origins(
    observations: Iterable[StepObservation],
    step: int,
    limits: WatchLimits,
    sees_operators: bool = False,
) -> list[Finding]:
    """Find where values that are not finite began. Returns findings in the order of the step:
    origins, and the calls that passed on what came from one.

    Args:
        sees_operators: whether the modules' own operators were observed.
    """
    observations = list(observations)
    search = _OriginSearch(
        step, limits, sees_operators or any(each.what is What.OPERATOR for each in observations)
    )
    for each in observations:
        search.add(each)
    return search.findings()


def infinite_outputs(ended: StepObservation) -> list[str]:
    """The outputs of a call that hold an Inf, as people read them."""
    return [
        f"{each.role} {each.path}".rstrip()
        for each in ended.of("output")
        if kinds_of([each]) & INFINITE
    ]


def _backward(finding: Finding, **facts: Any) -> Finding:
    return replace(finding, direction=Direction.BACKWARD, **facts)


def _harm(kind: str, maker: OpenCall) -> set[str]:
    """The kinds that a pending kind must turn into to do harm."""
    return {NAN} if kind in maker.filled else _HARM[kind]


def _made_by(maker: StepObservation, finding: Finding) -> Finding:
    """A finding with the operator that made it."""
    return replace(
        finding, operator=maker.operator, line=maker.line, operator_tensors=maker.tensors
    )


def _is_number(tensor: TensorRange) -> bool:
    """Whether it may be a number in the code, not a tensor."""
    return not tensor.shape and tensor.dtype == "float64"
