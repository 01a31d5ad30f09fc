"""Reading, once a step, what was looked at, and judging it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from accucompare.findings.events import Cause, Direction, Finding, Site, TensorRange, number
from accucompare.findings.observations import FLAG, OUTSIDE, Limits, Observation, Place, What, kinds_of
from accucompare.findings.origins import judge
from accucompare.live.gradients import Parameter, gradient_state
from accucompare.watcher.extrema import Extrema, look_now, norm_now
from accucompare.watcher.hooks import Watcher


class Reader:
    """What a step has shown so far.

    Attributes:
        findings: in execution order; read again, an earlier finding stays the same object, as it was explained.
        scaled: whether there is a loss scaler, which writes into gradients unseen.
        masked: an origin in the backward that spoilt no parameter's gradient, as an Inf behind a ReLU, and so is no finding.
    """

    def __init__(self, watcher: Watcher, limits: Limits, ranks: int) -> None:
        self.findings: list[Finding] = []
        self.scaled = False
        self.masked: Finding | None = None
        self._watcher = watcher
        self._limits = limits
        self._ranks = ranks
        self._known: dict[tuple[object, ...], Finding] = {}
        self._added: list[Finding] = []  # what is no matter of what was heard in order

    def next_step(self) -> None:
        self.findings = []
        self.masked = None
        self._known.clear()
        self._added = []

    @property
    def origins(self) -> list[Finding]:
        return [found for found in self.findings if found.origin]

    def read(self) -> None:
        """Bring what was looked at to the host, which waits for the device, and judge it."""
        watcher = self._watcher
        watcher.meter.read()
        self._mend_norms()
        norms = watcher.gradients.norms.values()
        finite = all(extrema.finite for noted in watcher.noted for *_, extrema in noted.parts) and all(norm.finite for norm in norms)
        flagged = any(noted.what is What.FLAG for noted in watcher.noted)
        if finite and not flagged and not self._limits.saturates:
            self._add_late_gradients()
            return
        heard = [noted.heard() for noted in watcher.noted]
        if self._ranks == 1:  # of several, each has heard its own gradients before they were summed
            heard += self._gradients_not_finite(len(heard))
        self.findings = []
        for found in self._harmful(judge(heard, watcher.step, self._limits)):
            identity = found.order, found.name, found.call, found.direction, found.site, found.near, *found.kinds
            self.findings.append(self._known.setdefault(identity, found))
        self.findings += self._added
        self._add_late_gradients()

    def settle(self, told: Sequence[tuple[Finding, Finding]]) -> None:
        """Keep findings as they were explained, in place of what was judged."""
        after = {id(found): explained for found, explained in told}
        self._known = {key: after.get(id(found), found) for key, found in self._known.items()}
        self._added = [after.get(id(found), found) for found in self._added]
        self.findings = [after.get(id(found), found) for found in self.findings]

    def add_loss(self, loss: float | None) -> None:
        """A loss that is not finite, and that nothing else explains, was made outside of the model."""
        if loss is None or math.isfinite(loss) or self.findings:
            return
        self._add(Site.LOSS, [TensorRange("output", "loss", "float64", (), number(loss), number(loss))])

    def add_update(self, parameters: list[tuple[Parameter, Extrema]], step: int) -> None:
        """Parameters that are not finite since the last update, in this step."""
        owner, seen = (
            self._watcher.gradients.place_of(parameters[0][0]),
            [extrema.seen("weight", parameter.name) for parameter, extrema in parameters],
        )
        self._add(Site.UPDATE, seen, owner, step=step, weights=seen)

    def add_of_others(self) -> Finding:
        """What another rank has found; of this one's gradients, those that are not finite since they were summed over ranks."""
        gradients = self._watcher.gradients
        spoilt = {**gradients.norms, **gradients.late}
        bad = [name for name, norm in spoilt.items() if not norm.finite]
        seen = [spoilt[name].seen("grad", name) for name in bad]
        return self._add(Site.RANK, seen, direction=Direction.BACKWARD, origin=False, cause=Cause.INPUTS, parameters=bad)

    def _add_late_gradients(self) -> None:
        """Gradients that are not finite when the update begins, and were when the backward ended."""
        gradients = self._watcher.gradients
        if self.findings or all(norm.finite for norm in gradients.late.values()):
            return
        late = [each for each in gradients.parameters if each.name in gradients.late and not gradients.late[each.name].finite]
        looked = [(each, look_now(each.tensor.grad)) for each in late]  # a norm may overflow where no element does
        bad = [(each, extrema.seen("grad", each.name)) for each, extrema in looked if extrema is not None and not extrema.finite]
        if bad:
            parameters, cause = [each.name for each, _ in bad], Cause.RANKS if self._ranks > 1 else Cause.INSIDE
            seen = [seen for _, seen in bad]
            self._add(Site.GRADIENTS, seen, gradients.place_of(bad[0][0]), direction=Direction.BACKWARD, cause=cause, parameters=parameters)

    def _add(self, site: Site, seen: list[TensorRange], owner: Place = OUTSIDE, **facts: Any) -> Finding:
        """A finding of this place; ``facts`` are those in which it is not an origin in the forward."""
        found = Finding(
            step=self._watcher.step,
            order=len(self._watcher.noted),
            name=owner.name,
            call=0,
            type=owner.type,
            site=site,
            direction=Direction.FORWARD,
            origin=True,
            cause=Cause.INSIDE,
            kinds=sorted(kinds_of(seen)),
            tensors=seen,
        )
        found = replace(found, **facts)
        self._added.append(found)
        self.findings = [*self.findings, found]
        return found

    def _harmful(self, findings: list[Finding]) -> list[Finding]:
        backward = [found for found in findings if found.direction is Direction.BACKWARD and found.site is not Site.SUM]
        norms = self._watcher.gradients.norms.values()
        self.masked = next((found for found in backward if found.origin and not found.parameters), None)
        if self.masked is None or FLAG in self.masked.kinds or not norms or not all(norm.finite for norm in norms):
            self.masked = None
            return findings
        return [found for found in findings if found not in backward]

    def _mend_norms(self) -> None:
        """A norm may overflow where no element does: it is computed again, of the elements made small.

        Where they have been unscaled, clipped or cleared since, the largest of them stands for it, which it cannot be less than.
        """
        gradients = self._watcher.gradients
        for parameter in gradients.parameters:
            norm, extrema = gradients.norms.get(parameter.name), gradients.extrema.get(parameter.name)
            if norm is None or norm.finite or extrema is None or not extrema.finite:
                continue
            largest, grad = max(-extrema.low, extrema.high), parameter.tensor.grad
            as_it_was = gradient_state(parameter.tensor) == gradients.states.get(parameter.name) and not self.scaled
            norm.low = norm.high = largest * norm_now(grad / largest) if grad is not None and as_it_was else largest

    def _gradients_not_finite(self, order: int) -> Iterator[Observation]:
        """Parameters whose gradients are not finite, in the order of the backward."""
        gradients = self._watcher.gradients
        by_name = {parameter.name: parameter for parameter in gradients.parameters}
        for name in {**gradients.order, **dict.fromkeys(gradients.norms)}:
            extrema = gradients.extrema.get(name)
            if extrema is not None and not extrema.finite:
                parameter = by_name[name]
                yield Observation(
                    What.PARAMETER, gradients.place_of(parameter), [extrema.seen("grad", name)], parameter=parameter.own, order=order
                )
