"""What a loop does to gradients between a backward and its update: it clips them, scales the loss,
or leaves the update out."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch

from accucompare.live.autograd import Parameter, gradient_state
from accucompare.live.operators import entrances
from accucompare.live.values import leaves
from accucompare.recorder.recording.guard import Guard, guarded
from accucompare.recorder.recording.main_grad import gradient_of
from accucompare.recorder.recording.series import SeriesRecorder


class TakenGradients(Protocol):
    """What ``Clipping`` asks of the recording of updates."""

    @property
    def parameters(self) -> Mapping[int, Parameter]:
        """The model's, by the ids of their tensors."""

    def held_by(self, optimizer: Any) -> Iterable[Parameter]:
        """The model's parameters that an optimizer steps."""

    def record_gradient(self, parameter: Parameter, scale: torch.Tensor | None) -> None:
        """Record a parameter's gradient, once for each update."""


class Clipping:
    """Records gradients before PyTorch's functions clip them, and keeps for the series their norms
    behind that, the loss scale, and updates that a scaler leaves out."""

    def __init__(
        self, gradients: TakenGradients, guard: Guard, series: SeriesRecorder, scaler: Any
    ) -> None:
        self._gradients = gradients
        self._guard = guard
        self._series = series
        # ids of parameters whose gradient was clipped for the next update
        self._clipped: set[int] = set()
        self._begun: Counter[int] = Counter()  # steps of each optimizer, by its id
        self._after_hooks: Any = None  # of the running update, after the user's own
        self._observed: list[tuple[Any, str, entrances.Before]] = [
            (*place, functools.partial(self._clipping, callers))
            for place, callers in entrances.clipping().items()
        ]
        for kind in entrances.scalers(scaler):
            self._observed += [(kind, "scale", self._scaling), (kind, "step", self._stepping)]

    def install(self) -> None:
        for owner, name, act in self._observed:
            entrances.observe_function(owner, name, act)

    def remove(self) -> None:
        self.leave_hooks()
        for owner, name, act in self._observed:
            entrances.observe_function_no_more(owner, name, act)

    def next_step(self) -> None:
        self._clipped.clear()

    def update_begins(self, optimizer: Any) -> None:
        self._begun[id(optimizer)] += 1

    def gradients_taken(
        self, optimizer: Any, parameters: Sequence[Parameter], scale: torch.Tensor | None
    ) -> None:
        """An update takes its gradients, which are still multiplied by ``scale``."""
        self._note_norms(parameters, scale)
        # the user's hooks run after this one, and may clip
        if getattr(optimizer, "_optimizer_step_pre_hooks", None):
            states = {id(each.tensor): gradient_state(each.tensor) for each in parameters}
            self.leave_hooks()  # of a step that has raised
            self._after_hooks = optimizer.register_step_pre_hook(
                lambda *_: self._guarded(self._hooks_ran, parameters, states, scale)
            )

    def leave_hooks(self) -> None:
        if self._after_hooks is not None:
            self._after_hooks.remove()
            self._after_hooks = None

    def updated(self, later: Collection[int]) -> None:
        """An update is over; ``later``: ids of parameters that it has still to step."""
        self._clipped.intersection_update(later)

    def _guarded(self, act: Callable[..., None], *arguments: Any) -> None:
        guarded(self._guard, act, "an update", *arguments)

    def _clipping(
        self, callers: Collection[str], caller: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if caller in callers:
            self._guarded(self._clips, {id(each) for _, each in leaves(args)})

    def _clips(self, grads: Collection[int]) -> None:
        """The gradients with these ids, or of parameters with these, are about to be clipped."""
        for key, each in self._gradients.parameters.items():
            if each.tensor.grad is not None and {id(each.tensor.grad), key} & {*grads}:
                self._gradients.record_gradient(each, None)
                self._clipped.add(key)

    def _scaling(
        self, caller: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[Any], None] | None:
        if self._guard.listening:
            return functools.partial(self._guarded, self._scaled, args[0])
        return None

    def _scaled(self, scaler: Any, result: Any) -> None:
        if getattr(scaler, "is_enabled", lambda: True)():
            scale = getattr(scaler, "_scale", None)
            self._series.scaled(
                (part for _, part in leaves(result)),
                scale if isinstance(scale, torch.Tensor) else scaler.get_scale(),
            )

    def _stepping(
        self, caller: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[Any], None] | None:
        """A scaler is told to step an optimizer; it skips that if a gradient is not finite."""
        optimizer = args[1] if len(args) > 1 else kwargs.get("optimizer")
        if not self._guard.listening or optimizer is None:
            return None
        before = self._begun[id(optimizer)]

        def stepped(result: Any) -> None:
            if self._begun[id(optimizer)] == before and any(self._gradients.held_by(optimizer)):
                self._series.rates(optimizer)
                self._series.left_out()

        return functools.partial(self._guarded, stepped)

    def _hooks_ran(
        self,
        parameters: Sequence[Parameter],
        states: Mapping[int, tuple[int, int]],
        scale: torch.Tensor | None,
    ) -> None:
        """The optimizer's own hooks have run; ``states`` are the gradients' from before."""
        changed = {
            id(each.tensor)
            for each in parameters
            if gradient_state(each.tensor) != states[id(each.tensor)]
        }
        if changed:
            self._clipped |= changed
            self._note_norms(parameters, scale)

    def _note_norms(self, parameters: Sequence[Parameter], scale: torch.Tensor | None) -> None:
        """Keep the norms of the gradients as the update uses them, if some were clipped."""
        if any(id(each.tensor) in self._clipped for each in parameters):
            grads = (gradient_of(each.tensor)[0] for each in parameters)
            self._series.clipped(
                grad if scale is None else grad / scale for grad in grads if grad is not None
            )
