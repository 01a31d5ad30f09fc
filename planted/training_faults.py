"""Faults of a backward and of an update: the forward stays as it is, and so does its loss."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

#: Makes a wrong gradient of a right one.
Change = Callable[[torch.Tensor], torch.Tensor]


class _Changed(torch.autograd.Function):
    """The value itself, and another gradient."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, change: Change) -> torch.Tensor:
        ctx.change = change
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.change(grads[0]), None


def changed(value: Any, change: Change) -> Any:
    """A tensor whose gradient will be changed; anything else as it is."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return value
    return _Changed.apply(value, change)  # type: ignore[no-untyped-call]


def _one_channel(grad: torch.Tensor) -> torch.Tensor:
    grad = grad.clone()
    grad[..., 0] *= 1.5
    return grad


def _noise(grad: torch.Tensor) -> torch.Tensor:
    drawn = torch.randn(grad.shape, generator=torch.Generator().manual_seed(0)).to(grad)
    return grad * (1 + 0.02 * drawn)


def _without_last(grad: torch.Tensor) -> torch.Tensor:
    grad = grad.clone()
    grad[..., -1] = 0
    return grad


def _swapped(grad: torch.Tensor) -> torch.Tensor:
    grad = grad.clone()
    grad[[0, 1]] = grad[[1, 0]]
    return grad


def _token_missed(grad: torch.Tensor) -> torch.Tensor:
    grad = grad.clone()
    grad.select(1 if grad.dim() > 1 and grad.shape[1] > 1 else 0, 0).zero_()
    return grad


#: What may happen to the gradient of an input or of a weight.
CHANGES: dict[str, Change] = {
    "x 1.01": lambda grad: grad * 1.01,
    "x 1.02": lambda grad: grad * 1.02,
    "one channel x 1.5": _one_channel,
    "noise of 2 %": _noise,
    "last column zero": _without_last,
}
OF_INPUT = {**CHANGES, "a token missed": _token_missed}
OF_WEIGHT = {**CHANGES, "two rows swapped": _swapped}


@dataclass(frozen=True)
class TrainingFault:
    """A fault.

    Attributes:
        name: the module that has it.
        site: ``"module"``, ``"glue"`` (of the module's own code), ``"loss"``, or ``"update"``.
        kind: what is wrong.
        plant: puts it into a model that holds the module.
    """

    name: str
    site: str
    kind: str
    plant: Callable[[nn.Module], None]


def _wrap(module: nn.Module, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    module.forward = around(module.forward)


def of_input(name: str, kind: str) -> TrainingFault:
    """The gradient that a module computes for its first input."""

    def plant(model: nn.Module) -> None:
        def around(forward: Callable[..., Any]) -> Callable[..., Any]:
            def wrong(*args: Any, **kwargs: Any) -> Any:
                if args:
                    return forward(changed(args[0], OF_INPUT[kind]), *args[1:], **kwargs)
                first = next(key for key, value in kwargs.items() if isinstance(value, torch.Tensor) and value.requires_grad)
                return forward(**{**kwargs, first: changed(kwargs[first], OF_INPUT[kind])})

            return wrong

        _wrap(model.get_submodule(name), around)

    return TrainingFault(name, "module", f"gradient of the input, {kind}", plant)


def of_parameter(name: str, own: str, kind: str, change: Change) -> TrainingFault:
    """The gradient that a module computes for one of its parameters."""

    def plant(model: nn.Module) -> None:
        module = model.get_submodule(name)

        def around(forward: Callable[..., Any]) -> Callable[..., Any]:
            def wrong(*args: Any, **kwargs: Any) -> Any:
                parameter = module._parameters[own]
                module._parameters[own] = changed(parameter, change)
                try:
                    return forward(*args, **kwargs)
                finally:
                    module._parameters[own] = parameter

            return wrong

        _wrap(module, around)

    return TrainingFault(name, "module", f"gradient of {own}, {kind}", plant)


class _NormWithoutProjection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, data: torch.Tensor, norm: nn.LayerNorm) -> torch.Tensor:
        ctx.save_for_backward(data)
        ctx.norm = norm
        return functional.layer_norm(data, norm.normalized_shape, norm.weight, norm.bias, norm.eps)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (data,) = ctx.saved_tensors
        wide = data.double()
        deviation = (wide.var(-1, keepdim=True, unbiased=False) + ctx.norm.eps).rsqrt()
        scaled = grads[0].double() * ctx.norm.weight.double()
        return (deviation * (scaled - scaled.mean(-1, keepdim=True))).to(data.dtype), None


def of_norm(name: str) -> TrainingFault:
    """A layer norm whose backward leaves out the projection on the normalised values."""

    def plant(model: nn.Module) -> None:
        norm = model.get_submodule(name)
        assert isinstance(norm, nn.LayerNorm)
        norm.forward = lambda data: _NormWithoutProjection.apply(data, norm)  # type: ignore

    return TrainingFault(name, "module", "norm without its projection term", plant)


def of_glue(parent: str, child: str, kind: str, factor: float) -> TrainingFault:
    """The gradient on its way from a child to what the parent's own code made: ``factor`` times as large, or lost."""

    def plant(model: nn.Module) -> None:
        def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
            done = False

            def once(value: Any) -> Any:
                nonlocal done
                if done or not isinstance(value, torch.Tensor) or not value.requires_grad:
                    return value
                done = True
                return changed(value, lambda grad: grad * factor)

            return tuple(map(once, args)), {key: once(value) for key, value in kwargs.items()}

        model.get_submodule(child).register_forward_pre_hook(before, with_kwargs=True)

    return TrainingFault(parent, "glue", kind, plant)


#: Faults of an update that ``torch.optim.AdamW`` is told nothing of: what its kernel is called with in place of what it was given.
UPDATE_FAULTS: dict[str, dict[str, Any]] = {
    "beta2 0.99 for 0.999": {"beta2": 0.99},
    "beta1 0.8 for 0.9": {"beta1": 0.8},
    "eps 1e-6 for 1e-8": {"eps": 1e-6},
    "no weight decay": {"weight_decay": 0.0},
    "L2 for decoupled decay": {"decoupled_weight_decay": False},
    "lr x 1.01": {"lr": 1.01},  # a factor
    "step counter off by one": {"steps": 1},
    "second moment in bfloat16": {"rounded": True},
}


@contextlib.contextmanager
def wrong_update(kind: str) -> Iterator[None]:
    """While it lasts, AdamW computes with this fault."""
    import torch.optim.adam as home

    original, fault = home.adam, UPDATE_FAULTS[kind]

    def wrong(params: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, maxima: Any, steps: Any, *args: Any, **kwargs: Any) -> None:
        for name in ("beta1", "beta2", "eps", "weight_decay", "decoupled_weight_decay"):
            if name in fault:
                kwargs[name] = fault[name]
        kwargs["lr"] = kwargs["lr"] * fault.get("lr", 1.0)
        for step in steps:
            step += fault.get("steps", 0)
        original(params, grads, exp_avgs, exp_avg_sqs, maxima, steps, *args, **kwargs)
        if fault.get("rounded"):
            for each in exp_avg_sqs:
                each.copy_(each.bfloat16())

    home.adam = wrong  # type: ignore[assignment]
    try:
        yield
    finally:
        home.adam = original


def faults_of(model: nn.Module) -> list[TrainingFault]:
    """Faults that a model can have, of every kind, in the order of its modules."""
    found = []
    children: dict[str, list[str]] = {}
    for name, _ in model.named_modules():
        if name:
            children.setdefault(name.rpartition(".")[0], []).append(name)
    for name, module in model.named_modules():
        if children.get(name) or not name:
            continue
        own = dict(module.named_parameters(recurse=False))
        if isinstance(module, (nn.Linear, nn.LayerNorm, nn.Conv2d)) or type(module).__name__ in ("Conv1D", "NewGELUActivation"):
            found += [of_input(name, kind) for kind in OF_INPUT]
        if "weight" in own and own["weight"].dim() > 1:
            found += [of_parameter(name, "weight", kind, change) for kind, change in OF_WEIGHT.items()]
        if own.get("bias") is not None:
            found.append(of_parameter(name, "bias", "zero", torch.zeros_like))
        if isinstance(module, nn.LayerNorm):
            found.append(of_norm(name))
        parent = name.rpartition(".")[0]
        if isinstance(module, (nn.LayerNorm, nn.Linear)) and children.get(parent, [""])[0] == name:
            found += [of_glue(parent, name, "gradient behind a child x 0.9", 0.9), of_glue(parent, name, "a use forgotten in a sum", 0.0)]
    return found
