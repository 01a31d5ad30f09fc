"""Faults of a backward, an update, buffers or the loop. The outputs of the forward stay right."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from accucompare.bundle.format.records import Role

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
        site: ``"module"``, ``"glue"`` (of the module's own code), ``"buffer"`` (what the module's
            forward leaves in one), ``"loss"``, ``"update"``, or ``"between"`` (what something other
            than an update changes between two of them).
        kind: what is wrong.
        plant: puts it into a model that holds the module.
        roles: the records that can show it.
        path: of these records, where it is only some.
        update: of ``UPDATE_FAULTS``, the fault that the optimizer has.
        loop: what the loop does otherwise, by the attributes of ``planted.training_models.Loop``.
        certain: whether it changes far more than rounding by what it is: something is missing, or
            half as large.
    """

    name: str
    site: str
    kind: str
    plant: Callable[[nn.Module], None] = lambda model: None
    roles: tuple[Role, ...] = ()
    path: str = ""
    update: str = ""
    loop: Mapping[str, Any] = field(default_factory=dict)
    certain: bool = False

    def __str__(self) -> str:
        name = self.name or "(root)"
        where = {
            "module": name,
            "buffer": name,
            "glue": f"{name} (glue)",
            "between": f"{name}, between updates",
        }.get(self.site, f"the {self.site}")
        return f"{self.kind} in {where}"


def wrap(module: nn.Module, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Give a module another forward, made of its own."""
    module.forward = around(module.forward)


def of_input(name: str, kind: str) -> TrainingFault:
    """The gradient that a module computes for its first input."""

    def plant(model: nn.Module) -> None:
        def around(forward: Callable[..., Any]) -> Callable[..., Any]:
            def wrong(*args: Any, **kwargs: Any) -> Any:
                if args:
                    return forward(changed(args[0], OF_INPUT[kind]), *args[1:], **kwargs)
                first = next(
                    key
                    for key, value in kwargs.items()
                    if isinstance(value, torch.Tensor) and value.requires_grad
                )
                return forward(**{**kwargs, first: changed(kwargs[first], OF_INPUT[kind])})

            return wrong

        wrap(model.get_submodule(name), around)

    return TrainingFault(
        name, "module", f"gradient of the input, {kind}", plant, (Role.GRAD_INPUT,)
    )


def of_parameter(name: str, own: str, kind: str, change: Change) -> TrainingFault:
    """The gradient that a module computes for one of its parameters."""

    def plant(model: nn.Module) -> None:
        module = model.get_submodule(name)

        def around(forward: Callable[..., Any]) -> Callable[..., Any]:
            def wrong(*args: Any, **kwargs: Any) -> Any:
                with given_as(module, own, lambda parameter: changed(parameter, change)):
                    return forward(*args, **kwargs)

            return wrong

        wrap(module, around)

    return TrainingFault(
        name, "module", f"gradient of the {_sort(own)}, {kind}", plant, (Role.CALL_GRAD,), own
    )


def _sort(own: str) -> str:
    """``weight`` or ``bias``, also of a recurrent module, which has several of each."""
    return "bias" if own.startswith("bias") else "weight"


@contextlib.contextmanager
def given_as(
    module: nn.Module, own: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[None]:
    """While it lasts, a module computes with something made of one of its parameters."""
    parameter = module._parameters[own]
    assert parameter is not None
    held: Any = module._parameters
    key: Any = own
    if isinstance(module, nn.RNNBase):  # which computes with a list of its own
        held, key = module._flat_weights, module._flat_weights_names.index(own)
    held[key] = change(parameter)
    try:
        yield
    finally:
        held[key] = parameter


def of_glue(parent: str, child: str, kind: str, factor: float) -> TrainingFault:
    """The gradient on its way from a child to what the parent's own code made: ``factor`` times as
    large, or lost.
    """

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

    return TrainingFault(parent, "glue", kind, plant, (Role.GRAD_OUTPUT, Role.GRAD_INPUT))


def of_detached(name: str) -> TrainingFault:
    """A module that is given its input without the graph that made it: no gradient goes further
    back than to its own parameters.
    """

    def plant(model: nn.Module) -> None:
        def around(forward: Callable[..., Any]) -> Callable[..., Any]:
            return lambda data, *args, **kwargs: forward(data.detach(), *args, **kwargs)

        wrap(model.get_submodule(name), around)

    return TrainingFault(name, "module", "input detached", plant, (Role.GRAD_INPUT,))


def of_frozen(name: str, own: str) -> TrainingFault:
    """A parameter that is not trained."""

    def plant(model: nn.Module) -> None:
        model.get_submodule(name)._parameters[own].requires_grad_(False)  # type: ignore[union-attr]

    return TrainingFault(
        name, "module", "parameter frozen", plant, (Role.CALL_GRAD, Role.PARAM_GRAD), own
    )


def of_halved(name: str, own: str) -> TrainingFault:
    """A weight that is halved between an update and the next step."""
    roles = (Role.PARAM_CHANGED, Role.PARAM_BEFORE)
    return TrainingFault(
        name,
        "between",
        "weight x 0.5",
        roles=roles,
        loop={"halved": _full(name, own)},
        certain=True,
    )


def of_forgotten(name: str, own: str) -> TrainingFault:
    """A weight's first moment that is set to zero between two steps."""
    roles = (Role.STATE_BEFORE,)
    return TrainingFault(
        name,
        "between",
        "first moment zeroed",
        roles=roles,
        loop={"forgotten": _full(name, own)},
        certain=True,
    )


def _full(name: str, own: str) -> str:
    return f"{name}.{own}" if name else own


#: Faults of an update that ``torch.optim.AdamW`` is told nothing of: what its kernel is called with
#: in place of what it was given.
UPDATE_FAULTS: dict[str, dict[str, Any]] = {
    "beta2 0.99 for 0.999": {"beta2": 0.99},
    "beta1 0.8 for 0.9": {"beta1": 0.8},
    "eps 1e-6 for 1e-8": {"eps": 1e-6},
    "no weight decay": {"weight_decay": 0.0},
    "L2 for decoupled decay": {"decoupled_weight_decay": False},
    "lr x 1.01": {"lr": 1.01},  # a factor
    "step counter off by one": {"steps": 1},
    "no bias correction": {"uncorrected": True},
    "biases decayed": {"weight_decay_of_others": 0.1},
    "first moment in bfloat16": {"rounded": "first"},
    "second moment in bfloat16": {"rounded": "second"},
}


@contextlib.contextmanager
def wrong_update(kind: str) -> Iterator[None]:
    """While it lasts, AdamW computes with this fault."""
    import torch.optim.adam as home

    original, fault = home.adam, UPDATE_FAULTS[kind]

    def wrong(
        params: Any,
        grads: Any,
        exp_avgs: Any,
        exp_avg_sqs: Any,
        maxima: Any,
        steps: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        for name in ("beta1", "beta2", "eps", "weight_decay", "decoupled_weight_decay"):
            if name in fault:
                kwargs[name] = fault[name]
        kwargs["lr"] = kwargs["lr"] * fault.get("lr", 1.0)
        if not kwargs["weight_decay"]:
            kwargs["weight_decay"] = fault.get("weight_decay_of_others", 0.0)
        for step in steps:
            step += fault.get("steps", 0)
        # 1 - beta ** 1e6 is 1
        counted = (
            [torch.full_like(step, 1e6) for step in steps] if "uncorrected" in fault else steps
        )
        original(params, grads, exp_avgs, exp_avg_sqs, maxima, counted, *args, **kwargs)
        for step in steps if "uncorrected" in fault else ():
            step += 1
        for each in {"first": exp_avgs, "second": exp_avg_sqs}.get(fault.get("rounded", ""), ()):
            each.copy_(each.bfloat16())

    home.adam = wrong  # type: ignore[assignment]
    try:
        yield
    finally:
        home.adam = original
