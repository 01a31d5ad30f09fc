"""Reads what was looked at in a step, and judges it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from accucompare.findings.log import (
    FLAG,
    OUTSIDE,
    Cause,
    Direction,
    Finding,
    ModuleCall,
    Site,
    Step,
    StepObservation,
    TensorRange,
    WatchLimits,
    What,
    kinds_of,
    number,
)
from accucompare.findings.origins import find_origins, infinite_outputs
from accucompare.live.autograd import Parameter, gradient_state
from accucompare.watcher.looking import Extrema, Meter, Watcher, has_memory, look_now, norm_now

#: How many of the parameters that carry most of grad_norm a step's event names.
_LARGEST = 5
#: How many modules that could not be looked at are listed altogether.
_UNSEEN_LISTED = 20


class StepFindings:
    """What a step has shown so far."""

    def __init__(self, watcher: Watcher, limits: WatchLimits, ranks: int) -> None:
        # in execution order; refreshing keeps earlier, explained objects
        self.findings: list[Finding] = []
        self.scaled = False  # whether there is a loss scaler, which writes into gradients unseen
        # an origin in the backward that spoilt no parameter's gradient, as an Inf behind a ReLU,
        # and so is no finding
        self.masked: Finding | None = None
        self._watcher = watcher
        self._limits = limits
        self._ranks = ranks
        self._known: dict[tuple[object, ...], Finding] = {}
        # findings that do not follow from the order of what was seen
        self._added: list[Finding] = []

    def next_step(self) -> None:
        self.findings = []
        self.masked = None
        self._known.clear()
        self._added = []

    @property
    def origins(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.origin]

    def refresh(self) -> None:
        """Bring what was looked at to the host, waiting for the device, and judge it."""
        watcher = self._watcher
        watcher.meter.fetch()
        self._mend_norms()
        norms = watcher.gradients.norms.values()
        finite = all(
            extrema.finite for note in watcher.notes for *_, extrema in note.parts
        ) and all(norm.finite for norm in norms)
        flagged = any(note.what is What.FLAG for note in watcher.notes)
        if finite and not flagged and not self._limits.saturates:
            self._add_late_gradients()
            return
        observations = [note.observation() for note in watcher.notes]
        if self._ranks == 1:  # several ranks each see their own gradients before the sum
            observations += self._gradients_not_finite(len(observations))
        self.findings = []
        for finding in self._harmful(find_origins(observations, watcher.step, self._limits)):
            identity = (
                finding.order,
                finding.origin,
                finding.name,
                finding.call,
                finding.direction,
                finding.site,
                finding.near,
                *finding.kinds,
            )
            self.findings.append(self._known.setdefault(identity, finding))
        self.findings += self._added
        self._add_late_gradients()

    def event(self, norms: Mapping[str, float], loss: float | None, **others: Any) -> Step:
        """The step's line in the log.

        Args:
            norms: of the gradients, by parameter.
            others: what else it has.
        """
        total = math.hypot(*norms.values()) if norms else None
        by_size = sorted(
            norms.items(), key=lambda item: -math.inf if math.isnan(item[1]) else -item[1]
        )
        return Step(
            self._watcher.step,
            finite=not self.origins and (total is None or math.isfinite(total)),
            grad_norm=None if total is None else number(total),
            largest=[(name, number(norm)) for name, norm in by_size[:_LARGEST]],
            loss=None if loss is None else number(loss),
            unseen=dict(list(self._watcher.unseen.items())[:_UNSEEN_LISTED]),
            **others,
        )

    def settle(self, explained: Sequence[tuple[Finding, Finding]]) -> None:
        """Replace findings by explained ones: ``explained`` has pairs of before and after."""
        after = {id(before): now for before, now in explained}
        self._known = {key: after.get(id(finding), finding) for key, finding in self._known.items()}
        self._added = [after.get(id(finding), finding) for finding in self._added]
        self.findings = [after.get(id(finding), finding) for finding in self.findings]

    def add_loss(self, loss: float | None) -> None:
        """A loss that is not finite and is otherwise unexplained was made outside of the model."""
        if loss is None or math.isfinite(loss) or self.findings:
            return
        outputs = (
            note.observation()
            for note in self._watcher.notes
            if note.what is What.ENDED and note.place.parent is None
        )
        legal = [output for ended in outputs for output in infinite_outputs(ended)]
        self._add(
            Site.LOSS,
            [TensorRange("output", "loss", "float64", (), number(loss), number(loss))],
            legal=legal,
        )

    def add_update(self, parameters: list[tuple[Parameter, Extrema]], step: int) -> None:
        """Parameters that became not finite since the last update, in this step."""
        owner = self._watcher.gradients.place_of(parameters[0][0])
        ranges = [extrema.range_of("weight", parameter.name) for parameter, extrema in parameters]
        self._add(Site.UPDATE, ranges, owner, step=step, weights=ranges)

    def bad_parameters(self) -> list[tuple[Parameter, Extrema]]:
        """The parameters that are not finite now; waits for the device once."""
        meter = Meter()
        parameters = [
            each for each in self._watcher.gradients.parameters if has_memory(each.tensor)
        ]
        looked = [
            (parameter, meter.look(parameter.tensor, frames=True)) for parameter in parameters
        ]
        meter.fetch()
        return [
            (parameter, extrema)
            for parameter, extrema in looked
            if extrema is not None and not extrema.finite
        ]

    def add_of_others(self) -> Finding:
        """Another rank's finding, with this rank's gradients that the sum over ranks spoilt."""
        gradients = self._watcher.gradients
        spoilt = {**gradients.norms, **gradients.late}
        bad = [name for name, norm in spoilt.items() if not norm.finite]
        ranges = [spoilt[name].range_of("grad", name) for name in bad]
        return self._add(
            Site.RANK,
            ranges,
            direction=Direction.BACKWARD,
            origin=False,
            cause=Cause.INPUTS,
            parameters=bad,
        )

    def _add_late_gradients(self) -> None:
        """Gradients that are not finite at the update, and were finite after the backward."""
        gradients = self._watcher.gradients
        # clipping spreads their norm to the others
        spoilt_before = not all(norm.finite for norm in gradients.norms.values())
        if self.origins or spoilt_before or all(norm.finite for norm in gradients.late.values()):
            return
        late = [
            each
            for each in gradients.parameters
            if each.name in gradients.late and not gradients.late[each.name].finite
        ]
        # a norm may overflow where no element does
        looked = [(each, look_now(each.tensor.grad)) for each in late]
        bad = [
            (each, extrema.range_of("grad", each.name))
            for each, extrema in looked
            if extrema is not None and not extrema.finite
        ]
        if bad:
            parameters = [each.name for each, _ in bad]
            cause = Cause.RANKS if self._ranks > 1 else Cause.INSIDE
            ranges = [ranges for _, ranges in bad]
            self._add(
                Site.GRADIENTS,
                ranges,
                gradients.place_of(bad[0][0]),
                direction=Direction.BACKWARD,
                cause=cause,
                parameters=parameters,
            )

    def _add(
        self, site: Site, ranges: list[TensorRange], owner: ModuleCall = OUTSIDE, **facts: Any
    ) -> Finding:
        """An origin in the forward at this place; ``facts`` replace its fields."""
        finding = Finding(
            step=self._watcher.step,
            order=len(self._watcher.notes),
            name=owner.name,
            call=0,
            type=owner.type,
            site=site,
            direction=Direction.FORWARD,
            origin=True,
            cause=Cause.INSIDE,
            kinds=sorted(kinds_of(ranges)),
            tensors=ranges,
        )
        finding = replace(finding, **facts)
        self._added.append(finding)
        self.findings = [*self.findings, finding]
        return finding

    def _harmful(self, findings: list[Finding]) -> list[Finding]:
        """The findings without a backward that reached no parameter, which goes to ``masked``."""
        backward = [
            finding
            for finding in findings
            if finding.direction is Direction.BACKWARD and finding.site is not Site.SUM
        ]
        norms = self._watcher.gradients.norms.values()
        self.masked = next(
            (finding for finding in backward if finding.origin and not finding.parameters), None
        )
        if (
            self.masked is None
            or FLAG in self.masked.kinds
            or not norms
            or not all(norm.finite for norm in norms)
        ):
            self.masked = None
            return findings
        return [finding for finding in findings if finding not in backward]

    def _mend_norms(self) -> None:
        """Recompute norms that overflow although no element does, from scaled elements.

        Where the gradients were unscaled, clipped or cleared since, the largest magnitude stands
        for the norm, as its lower bound."""
        gradients = self._watcher.gradients
        if not gradients.extrema:  # all norms are finite
            return
        for parameter in gradients.parameters:
            norm = gradients.norms.get(parameter.name)
            extrema = gradients.extrema.get(parameter.name)
            if norm is None or norm.finite or extrema is None or not extrema.finite:
                continue
            largest, grad = max(-extrema.low, extrema.high), parameter.tensor.grad
            as_it_was = (
                gradient_state(parameter.tensor) == gradients.states.get(parameter.name)
                and not self.scaled
            )
            norm.low = norm.high = (
                largest * norm_now(grad / largest) if grad is not None and as_it_was else largest
            )

    def _gradients_not_finite(self, order: int) -> Iterator[StepObservation]:
        """Parameters whose gradients are not finite, in the order of the backward."""
        gradients = self._watcher.gradients
        by_name = {parameter.name: parameter for parameter in gradients.parameters}
        for name in {**gradients.order, **dict.fromkeys(gradients.norms)}:
            extrema = gradients.extrema.get(name)
            if extrema is not None and not extrema.finite:
                parameter = by_name[name]
                yield StepObservation(
                    What.PARAMETER,
                    gradients.place_of(parameter),
                    [extrema.range_of("grad", name)],
                    parameter=parameter.own,
                    order=order,
                )
