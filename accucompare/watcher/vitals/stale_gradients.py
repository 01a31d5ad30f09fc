"""Gradients that an update used and nobody cleared: the next backward adds to them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from accucompare.live.autograd import Parameter, gradient_state
from accucompare.watcher.looking import Extrema, Meter


class StaleGradients:
    """Which parameters still have the last update's gradient when a backward begins."""

    def __init__(self, parameters: Sequence[Parameter], meter: Meter) -> None:
        self._parameters, self._meter = parameters, meter
        # by parameter id: its gradient as the last update or backward left it
        self._states: dict[int, tuple[int, int]] = {}
        # by id, the gradients that the last update had used, when a backward began
        self._stale: dict[int, tuple[Extrema, ...]] = {}
        self._kept: tuple[int, list[Extrema]] = (0, [])

    def next_step(self) -> None:
        self._kept = (0, [])

    @property
    def kept(self) -> int:
        """How many parameters were updated with such a gradient in it that is not zero."""
        count, norms = self._kept
        return count if any(extrema.low > 0 for extrema in norms) else 0

    def backward_begins(self) -> None:
        same = [each for each in self._parameters if self._is_as_it_was(each)]
        self._states = {id(each.tensor): self._states[id(each.tensor)] for each in same}
        new = sorted(
            (each for each in same if id(each.tensor) not in self._stale),
            key=lambda each: each.tensor.numel(),
        )
        smallest = [each.tensor.grad for each in new[:3] if each.tensor.grad is not None]
        norms = self._meter.norm(smallest)  # zero, if they were zeroed past autograd
        self._stale = {key: self._stale[key] for key in self._states if key in self._stale}
        self._stale |= {id(each.tensor): tuple(norms) for each in new}

    def _is_as_it_was(self, parameter: Parameter) -> bool:
        known = self._states.get(id(parameter.tensor))
        return (
            known is not None
            and parameter.tensor.grad is not None
            and gradient_state(parameter.tensor) == known
        )

    def backward_ends(self) -> None:
        if self._states:
            self._states |= {
                id(each.tensor): gradient_state(each.tensor)
                for each in self._parameters
                if id(each.tensor) in self._states
            }

    def update_begins(self, updated: Sequence[Parameter]) -> None:
        """``updated``: the updated parameters that have a gradient."""
        kept = [
            each.tensor
            for each in updated
            if id(each.tensor) in self._stale
            and id(each.tensor.grad) == self._states[id(each.tensor)][0]
        ]
        if kept and not self._kept[0]:
            self._kept = len(kept), [norm for tensor in kept for norm in self._stale[id(tensor)]]

    def update_ended(self, held: Collection[int], updated: Sequence[Parameter]) -> None:
        """``held``: ids of the optimizer's parameters; ``updated``: those that have a gradient
        now."""
        self._states = {key: state for key, state in self._states.items() if key not in held}
        self._states |= {id(each.tensor): gradient_state(each.tensor) for each in updated}
        self._stale = {key: norms for key, norms in self._stale.items() if key not in held}
