"""The watcher of a running watch, which also keeps what running a step again needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from accucompare.findings.log import ModuleCall
from accucompare.watcher.again import Contexts
from accucompare.watcher.looking import WatchedCall, Watcher
from accucompare.watcher.vitals import VitalSigns
from accucompare.watcher.watch.pausing import Pausing


class StepWatcher(Watcher):
    """Keeps a step's calls to run them again, for the checklist, and for a saved state.

    Attributes:
        make_room: is called before an outermost call is kept.
        trainings: how many outermost calls had gradients, in all steps.
        trained_calls: likewise, in this step.
    """

    contexts: Contexts
    vitals: VitalSigns
    pausing: Pausing | None = None
    make_room: Callable[[], None]
    trainings = trained_calls = 0

    def next_step(self) -> None:
        super().next_step()
        self.trained_calls = 0
        self.contexts.kept.clear()

    def outermost_began(
        self, call: WatchedCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        trains = torch.is_grad_enabled()
        self.trainings += trains
        self.trained_calls += trains
        self.make_room()
        self.contexts.keep(call, args, kwargs, self.indices())
        if self.pausing is not None and trains:
            self.pausing.called(args, kwargs)
        self.vitals.outermost_began(call.module, args, kwargs)

    def outermost_ended(self, call: WatchedCall) -> None:
        self.contexts.call_ended(call)
        self.vitals.outermost_ended()

    def call_given(self, call: WatchedCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.vitals.call_given(call.name, args, kwargs)

    def call_gave(self, call: WatchedCall, output: Any) -> None:
        self.vitals.call_gave(call.name, output)

    def gradient_arrived(self, place: ModuleCall, path: str, grad: torch.Tensor) -> None:
        context = self.contexts.find(place.key)
        if context is not None and not context.obstacle:
            context.grads[path] = grad.detach()
