"""What becomes of gradients between a backward and the update that uses them, for the checklist."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch

from accucompare.live.autograd import Parameter, gradient_state, stepped_by
from accucompare.live.values import writes_into
from accucompare.watcher.looking import Extrema, Meter

#: How many of the smallest changed gradients are checked for being zero now.
_FEW = 3


class GradientUse:
    """Follows the gradients of a model's parameters from one backward to the next.

    Attributes:
        clipped, clipped_behind: whether gradients were clipped before this step's update, and after
            it.
        strangers: how many parameters of an optimizer are not the model's and never had a gradient
            in an update.
    """

    def __init__(self, parameters: Sequence[Parameter], meter: Meter) -> None:
        self.clipped = self.clipped_behind = False
        self.strangers = 0
        self._parameters = parameters
        self._meter = meter
        # by parameter id: its gradient when the running backward began
        self._before: dict[int, tuple[int, int]] = {}
        # by parameter id: its gradient as the last backward left it, until it is used
        self._fresh: dict[int, tuple[int, int]] = {}
        self._weights: dict[int, int] = {}  # each one's version then
        # whether the model was given an input that needs a gradient, as in an adversarial attack
        self._probing = False
        self._probed = False  # whether it was for the last backward
        # per backward since the last update: zero, if its gradients were cleared
        self._cleared: list[list[Extrema]] = []
        self._thrown: list[list[Extrema]] = []  # those before an update
        self._behind = False  # whether an update was made since the last backward
        self._used: set[int] = set()  # ids of strangers that have had a gradient

    def called(self, inputs: Iterable[Any]) -> None:
        """The model is called in training."""
        self._probing = self._probing or any(
            isinstance(each, torch.Tensor) and each.requires_grad for each in inputs
        )

    def backward_begins(self) -> None:
        """Another backward begins: are the last one's gradients still there?"""
        fresh = [each for each in self._parameters if id(each.tensor) in self._fresh]
        there = [each for each in fresh if each.tensor.grad is not None]
        changed = [
            each for each in there if gradient_state(each.tensor) != self._fresh[id(each.tensor)]
        ]
        moved = any(writes_into(each.tensor) != self._weights[id(each.tensor)] for each in fresh)
        if fresh and len(changed) == len(there) and not moved and not self._probed:
            smallest = sorted(changed, key=lambda each: each.tensor.numel())[:_FEW]
            self._cleared.append(
                self._meter.norm(
                    [each.tensor.grad for each in smallest if each.tensor.grad is not None]
                )
            )
        self._fresh = {}
        self._before = {
            id(each.tensor): gradient_state(each.tensor)
            for each in self._parameters
            if each.tensor.grad is not None
        }
        self._probed, self._probing = self._probing, False

    def backward_ended(self) -> None:
        """A backward is over. One for inputs' gradients alone leaves parameters' gradients as they
        were."""
        having = [each for each in self._parameters if each.tensor.grad is not None]
        states = {id(each.tensor): gradient_state(each.tensor) for each in having}
        self._fresh = {
            key: state for key, state in states.items() if self._before.get(key) != state
        }
        self._weights = {id(each.tensor): writes_into(each.tensor) for each in having}
        self._behind = False

    def clips(self, gradients: Collection[int]) -> None:
        """Gradients with these ids are clipped."""
        if any(
            id(each.tensor.grad) in gradients
            for each in self._parameters
            if each.tensor.grad is not None
        ):
            self.clipped_behind = self.clipped_behind or self._behind
            self.clipped = self.clipped or not self._behind

    def update_begins(self, optimizer: Any) -> None:
        """An optimizer is about to use gradients of the model's parameters."""
        held = stepped_by(optimizer)
        ours = {id(each.tensor): each.tensor for each in self._parameters}
        others = {
            key: tensor for key, tensor in held.items() if key not in ours and tensor.requires_grad
        }
        self._used |= {key for key, tensor in others.items() if tensor.grad is not None}
        self.strangers = len(others.keys() - self._used)
        made = any(
            gradient_state(ours[key])[0] != state[0]
            for key, state in self._fresh.items()
            if key in held
        )
        # otherwise the applied gradients were assembled by hand, perhaps from cleared ones
        if not made:
            self._thrown += self._cleared
        self._cleared = []

    def updated(self) -> None:
        """Some optimizer has used gradients: those there now may be by-products."""
        self._fresh, self._cleared = {}, []
        self._behind = True

    def thrown(self) -> int:
        """How many backwards' gradients were cleared before an update used them, once read."""
        return sum(all(extrema.low == 0 for extrema in each) for each in self._thrown)

    def next_step(self) -> None:
        """A step is over."""
        self._thrown = []
        self.clipped = self.clipped_behind = False


def has_limit(clipping: str) -> bool:
    """Whether the running clipping function has a finite limit; else it only computes the norm."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != clipping:
        frame = frame.f_back
    limits = (
        [frame.f_locals.get(name) for name in ("max_norm", "clip_value")]
        if frame is not None
        else []
    )
    return any(isinstance(limit, (int, float)) and math.isfinite(limit) for limit in limits)
