"""Reading, once a step, what was looked at, and judging it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from accucompare.watch.events import Cause, Direction, Found, Seen, Site, number
from accucompare.watch.extrema import norm_now
from accucompare.watch.gradients import gradient_state
from accucompare.watch.judge import FLAG, MINUS, NAN, PLUS, Heard, Limits, What, judge
from accucompare.watch.listening import Watcher


class Reader:
    """What a step has shown so far.

    Attributes:
        findings: in execution order; read again, an earlier finding stays the same object.
        scaled: whether there is a loss scaler, which writes into gradients unseen.
        masked: an origin in the backward that spoilt no parameter's gradient, as an Inf behind a ReLU, and so is no finding.
    """

    def __init__(self, watcher: Watcher, limits: Limits, ranks: int) -> None:
        self.findings: list[Found] = []
        self.scaled = False
        self.masked: Found | None = None
        self._watcher = watcher
        self._limits = limits
        self._ranks = ranks
        self._known: dict[tuple[object, ...], Found] = {}

    def next_step(self) -> None:
        self.findings = []
        self.masked = None
        self._known.clear()

    @property
    def origins(self) -> list[Found]:
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
            return
        heard = [noted.heard() for noted in watcher.noted]
        if self._ranks == 1:  # of several, each has heard its own gradients before they were summed
            heard += self._gradients_not_finite(len(heard))
        self.findings = [
            self._known.setdefault(_identity(found), found) for found in self._harmful(judge(heard, watcher.step, self._limits))
        ]

    def add_loss(self, loss: float | None) -> None:
        """A loss that is not finite, and that nothing else explains, was made outside of the model."""
        if loss is None or math.isfinite(loss) or self.findings:
            return
        seen = Seen("output", "loss", "float64", (), number(loss), number(loss))
        kind = NAN if math.isnan(loss) else PLUS if loss > 0 else MINUS
        found = Found(
            step=self._watcher.step,
            order=len(self._watcher.noted),
            name="",
            call=0,
            type="",
            site=Site.LOSS,
            direction=Direction.FORWARD,
            origin=True,
            cause=Cause.INSIDE,
            kinds=[kind],
            tensors=[seen],
        )
        self.findings = [*self.findings, found]

    def _harmful(self, findings: list[Found]) -> list[Found]:
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

    def _gradients_not_finite(self, order: int) -> Iterator[Heard]:
        """Parameters whose gradients are not finite, in the order of the backward."""
        gradients = self._watcher.gradients
        by_name = {parameter.name: parameter for parameter in gradients.parameters}
        for name in {**gradients.order, **dict.fromkeys(gradients.norms)}:
            extrema = gradients.extrema.get(name)
            if extrema is not None and not extrema.finite:
                yield Heard(What.PARAMETER, by_name[name].owner, [extrema.seen("grad", name)], name, order=order)


def _identity(found: Found) -> tuple[object, ...]:
    return found.order, found.name, found.call, found.direction, found.site, found.near, *found.kinds
