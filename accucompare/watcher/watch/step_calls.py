"""What is kept of a step's calls, to run them again, for the checklist, and for a saved state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from accucompare.findings.log import ModuleCall
from accucompare.watcher.again import Contexts
from accucompare.watcher.looking import WatchedCall
from accucompare.watcher.vitals import VitalSigns
from accucompare.watcher.watch.pausing import Pausing


class StepCalls:
    """Is told of calls by the watcher (``CallObserver``).

    Attributes:
        trainings: how many outermost calls had gradients, in all steps.
        trained_calls: likewise, in this step.
    """

    def __init__(
        self,
        contexts: Contexts,
        vitals: VitalSigns,
        pausing: Pausing | None,
        indices: Callable[[], Counter[str]],
        make_room: Callable[[], None],
    ) -> None:
        """
        Args:
            indices: how often each module was called in the step.
            make_room: is called before an outermost call is kept.
        """
        self.trainings = 0
        self.trained_calls = 0
        self._contexts = contexts
        self._vitals = vitals
        self._pausing = pausing
        self._indices = indices
        self._make_room = make_room

    def next_step(self) -> None:
        self.trained_calls = 0
        self._contexts.kept.clear()

    def outermost_began(
        self, call: WatchedCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        trains = torch.is_grad_enabled()
        self.trainings += trains
        self.trained_calls += trains
        self._make_room()
        self._contexts.keep(call, args, kwargs, self._indices())
        if self._pausing is not None and trains:
            self._pausing.called(args, kwargs)
        self._vitals.outermost_began(call.module, args, kwargs)

    def outermost_ended(self, call: WatchedCall) -> None:
        self._contexts.call_ended(call)
        self._vitals.outermost_ended()

    def call_given(self, call: WatchedCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._vitals.call_given(call.name, args, kwargs)

    def call_gave(self, call: WatchedCall, output: Any) -> None:
        self._vitals.call_gave(call.name, output)

    def gradient_arrived(self, place: ModuleCall, path: str, grad: torch.Tensor) -> None:
        context = self._contexts.find(place.key)
        if context is not None and not context.obstacle:
            context.grads[path] = grad.detach()
