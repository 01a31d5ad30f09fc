"""Recording updates: what an optimizer's step is given, and what it makes of that."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.utils import clip_grad
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from accucompare.bundle.records import Role
from accucompare.live.names import Modules
from accucompare.live.values import Scalar, leaves

#: What ``torch.nn.utils.clip_grad_norm_`` calls first, with the gradients, for their norm. Others call it, too, who clip nothing.
_NORM, _CLIPS = "_get_total_norm", "clip_grad_norm_"

#: What parameter groups say of how an update is computed, and not of what: a device may compute it otherwise.
_WAYS = ("foreach", "fused", "capturable", "differentiable")

#: What is recorded in place of a gradient where a trainable parameter has none.
NO_GRADIENT = "no gradient"


@dataclass(frozen=True)
class Parameter:
    """A parameter under its first name: the module that it belongs to, and its name there."""

    module: nn.Module
    name: str
    own: str
    tensor: torch.Tensor


class Sink(Protocol):
    """What is asked of the recorder."""

    listening: bool

    def run(self, act: Callable[..., Any], name: str, arguments: tuple[Any, ...]) -> Any:
        """Do what a hook does, one thread at a time."""

    def add_update(self, module: nn.Module, name: str, update: int, role: Role, path: str, value: Any) -> None:
        """Record what an update of this step, counted from 0, takes or gives."""


class Golden(Protocol):
    """Where golden's parameters, gradients and state come from."""

    def start(self, name: str, path: str, tensor: torch.Tensor) -> None:
        """Write golden's value before the first update of the step, unless it is there."""

    def put(self, name: str, update: int, role: Role, path: str, tensor: torch.Tensor) -> None:
        """Write golden's value into a tensor; what cannot be is noted."""

    def leave(self, name: str, update: int, role: Role, path: str, why: str) -> None:
        """Note that an update was not given golden's value."""


class Updates:
    """The optimizers' part of a recorder: any ``torch.optim.Optimizer`` that steps parameters of the model.

    An update is given ``param_before``, ``param_grad`` (before clipping by ``clip_grad_norm_``) and ``state_before``, and the numbers of
    its parameter groups; it makes ``param_update`` (after minus before) and ``state_after``. With golden, the update is given golden's.

    """

    def __init__(self, modules: Modules, sink: Sink, golden: Golden | None) -> None:
        self._sink = sink
        self._golden = golden
        self._parameters: dict[int, Parameter] = {}
        self._root = modules.named[""]
        for name, module in modules.named.items():
            for own, tensor in module._parameters.items():
                if tensor is not None:
                    self._parameters.setdefault(id(tensor), Parameter(module, name, own, tensor))
        self._count = 0  # of updates in this step
        self._recorded: set[int] = set()  # ids of parameters whose gradient was recorded for the next update
        self._times: Counter[int] = Counter()  # how often a parameter's gradient was recorded for the next update
        self._before: dict[int, torch.Tensor] = {}
        self._updated: set[int] = set()
        self._handles: list[Any] = []
        self._norm: Any = None

    def notes(self) -> list[str]:
        """What was not updated though it could be, in one sentence."""
        idle = [each for key, each in self._parameters.items() if key not in self._updated and each.tensor.requires_grad]
        if not idle or not self._updated:
            return []
        first = f"{idle[0].name}.{idle[0].own}" if idle[0].name else idle[0].own
        return [f"{len(idle)} trainable parameter(s) are in no optimizer that stepped, such as {first}"]

    def install(self) -> None:
        self._handles = [
            register_optimizer_step_pre_hook(functools.partial(self._guarded, self._begins)),
            register_optimizer_step_post_hook(functools.partial(self._guarded, self._ends)),
        ]
        original = self._norm = getattr(clip_grad, _NORM, None)
        if original is not None:  # before torch 2.6, gradients are recorded as they were clipped

            @functools.wraps(original)
            def norm(tensors: Any, *args: Any, **kwargs: Any) -> Any:
                tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
                if sys._getframe(1).f_code.co_name == _CLIPS:
                    self._guarded(self._clips, tensors)
                return original(tensors, *args, **kwargs)

            setattr(clip_grad, _NORM, norm)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._norm is not None:
            setattr(clip_grad, _NORM, self._norm)
            self._norm = None
        self._before.clear()

    def next_step(self) -> None:
        self._count = 0
        self._recorded.clear()
        self._times.clear()
        self._before.clear()

    def backward_begins(self) -> None:
        """Gradients that were recorded are no longer those of the next update: they were clipped and added to, or it was skipped."""
        self._recorded.clear()

    def start_from_golden(self) -> None:
        """A step begins: with golden's weights, where it has recorded them."""
        if self._golden is not None:
            for each in self._parameters.values():
                self._golden.start(each.name, each.own, each.tensor)

    def _guarded(self, act: Callable[..., None], *arguments: Any) -> None:
        if self._sink.listening:
            self._sink.run(act, "an update", arguments)

    def _of(self, optimizer: Any) -> Iterator[Parameter]:
        for group in optimizer.param_groups:
            for tensor in group["params"]:
                if id(tensor) in self._parameters:
                    yield self._parameters[id(tensor)]

    def _clips(self, grads: list[torch.Tensor]) -> None:
        """Gradients are about to be clipped."""
        clipped = {id(grad) for grad in grads}
        for each in self._parameters.values():
            if each.tensor.grad is not None and id(each.tensor.grad) in clipped:
                self._gradient(each, None)

    def _begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        parameters = list(self._of(optimizer))
        if not parameters:
            return
        self._groups(optimizer)
        closure = any(each is not None for each in (*args[1:2], kwargs.get("closure")))  # the first argument is the optimizer
        for each in parameters:
            self._updated.add(id(each.tensor))
            if not closure:  # which computes gradients only then
                self._gradient(each, getattr(optimizer, "grad_scale", None))
            self._take(each, Role.PARAM_BEFORE, each.own, each.tensor)
            for path, value in self._state(optimizer, each):
                self._take(each, Role.STATE_BEFORE, path, value)
            self._before[id(each.tensor)] = each.tensor.detach().clone()

    def _ends(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        parameters = list(self._of(optimizer))
        if not parameters:
            return
        for each in parameters:
            if id(each.tensor) not in self._recorded:
                self._gradient(each, None, late=True)
            before = self._before.pop(id(each.tensor), None)
            if before is not None:
                wide = torch.float32 if before.itemsize < 4 else before.dtype
                self._give(each, Role.PARAM_UPDATE, each.own, each.tensor.detach().to(wide) - before.to(wide))
            for path, value in self._state(optimizer, each):
                self._give(each, Role.STATE_AFTER, path, value)
        self._recorded.clear()
        self._times.clear()
        self._count += 1

    def _groups(self, optimizer: Any) -> None:
        """Record learning rates, betas and whatever numbers else the parameter groups have."""
        for number, group in enumerate(optimizer.param_groups):
            options = {name: value for name, value in group.items() if name not in ("params", *_WAYS)}
            for path, value in leaves(options):
                if isinstance(value, (torch.Tensor, *Scalar)):
                    path = f"{type(optimizer).__name__}.{number}.{path}"
                    self._sink.add_update(self._root, "", self._count, Role.STATE_BEFORE, path, value)

    def _gradient(self, parameter: Parameter, scale: torch.Tensor | None, late: bool = False) -> None:
        """Record a parameter's gradient, once for each update; again if there was a backward since.

        Args:
            parameter: whose.
            scale: what the gradient is still multiplied by, which a fused optimizer undoes itself.
            late: the update is over, so that golden's gradient comes too late.
        """
        if id(parameter.tensor) in self._recorded:
            return
        self._recorded.add(id(parameter.tensor))
        self._times[id(parameter.tensor)] += 1
        times = self._times[id(parameter.tensor)]
        path = parameter.own if times == 1 else f"{parameter.own}#{times}"
        grad = parameter.tensor.grad
        if grad is None:
            if parameter.tensor.requires_grad:
                self._give(parameter, Role.PARAM_GRAD, path, NO_GRADIENT)
        elif scale is not None:
            unscaled = grad / scale
            self._take(parameter, Role.PARAM_GRAD, path, unscaled)
            if self._golden is not None:
                grad.copy_(unscaled * scale)
        elif late:
            self._give(parameter, Role.PARAM_GRAD, path, grad)
            if self._golden is not None:
                self._golden.leave(parameter.name, self._count, Role.PARAM_GRAD, path, "the update computed it itself, in its closure")
        else:
            self._take(parameter, Role.PARAM_GRAD, path, grad)

    def _state(self, optimizer: Any, parameter: Parameter) -> Iterator[tuple[str, Any]]:
        for path, value in leaves(dict(optimizer.state.get(parameter.tensor, {}))):
            yield f"{parameter.own}.{path}", value

    def _take(self, parameter: Parameter, role: Role, path: str, value: Any) -> None:
        """Record what an update is given, and give it golden's."""
        self._give(parameter, role, path, value)
        if self._golden is not None and isinstance(value, torch.Tensor):
            self._golden.put(parameter.name, self._count, role, path, value)

    def _give(self, parameter: Parameter, role: Role, path: str, value: Any) -> None:
        self._sink.add_update(parameter.module, parameter.name, self._count, role, path, value)
