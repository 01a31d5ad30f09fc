"""Faults of one backward that need code of their own: norms, softmax, residuals, embeddings, tied
weights, checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from accucompare.bundle.format.records import Role
from planted.training_faults import TrainingFault, changed, given_as, wrap


class _OtherGradient(torch.autograd.Function):
    """Passes a value on, and computes its gradient another way."""

    @staticmethod
    def forward(
        ctx: Any,
        value: torch.Tensor,
        data: torch.Tensor,
        compute: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        ctx.save_for_backward(data)
        ctx.compute = compute
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], ctx.compute(ctx.saved_tensors[0], grads[0]), None


def of_norm(name: str) -> TrainingFault:
    """A norm whose backward leaves out the projection on the normalised values: its deviation
    counts as a constant.
    """

    def plant(model: nn.Module) -> None:
        norm: Any = model.get_submodule(name)
        eps = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
        batched, centred = (
            isinstance(norm, nn.BatchNorm2d),
            isinstance(norm, (nn.BatchNorm2d, nn.LayerNorm)),
        )
        axes = (0, 2, 3) if batched else (-1,)

        def compute(data: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
            wide, weight = data.double(), norm.weight.detach().double()
            centre = wide.mean(axes, keepdim=True) if centred else 0.0
            deviation = ((wide - centre).square().mean(axes, keepdim=True) + eps).rsqrt()
            scaled = grad.double() * (weight[:, None, None] if batched else weight)
            if centred:
                scaled = scaled - scaled.mean(axes, keepdim=True)
            result: torch.Tensor = (deviation * scaled).to(data.dtype)
            return result

        def around(forward: Callable[..., Any]) -> Callable[..., Any]:
            apply: Any = _OtherGradient.apply
            return lambda data: apply(forward(data.detach()), data, compute)

        wrap(norm, around)

    return TrainingFault(
        name, "module", "norm without its projection term", plant, (Role.GRAD_INPUT,)
    )


def of_token(name: str) -> TrainingFault:
    """The gradient of a weight to which the first token (of images: the first image) adds
    nothing."""

    def plant(model: nn.Module) -> None:
        module = model.get_submodule(name)

        def around(forward: Callable[..., Any]) -> Callable[..., Any]:
            def wrong(data: torch.Tensor) -> torch.Tensor:
                output: torch.Tensor = forward(data)
                with given_as(module, "weight", torch.Tensor.detach):
                    constant = forward(data)
                missed = torch.zeros_like(output, dtype=torch.bool)
                (missed[0, 0] if output.dim() == 3 else missed[0]).fill_(True)
                return torch.where(missed, constant, output)

            return wrong

        wrap(module, around)

    return TrainingFault(
        name, "module", "gradient of the weight, a token missed", plant, (Role.CALL_GRAD,), "weight"
    )


def of_softmax(name: str) -> TrainingFault:
    """An attention whose softmax gives nine tenths of its gradient."""

    def plant(model: nn.Module) -> None:
        def around(forward: Callable[..., Any]) -> Callable[..., Any]:
            def wrong(*args: Any, **kwargs: Any) -> Any:
                right = functional.softmax
                functional.softmax = lambda data, *rest, **options: right(
                    changed(data, lambda grad: grad * 0.9), *rest, **options
                )
                try:
                    return forward(*args, **kwargs)
                finally:
                    functional.softmax = right

            return wrong

        wrap(model.get_submodule(name), around)

    return TrainingFault(
        name,
        "glue",
        "softmax backward x 0.9",
        plant,
        (Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.CALL_GRAD),
    )


def of_residual(name: str, argument: int, first: str) -> TrainingFault:
    """Nine tenths of the gradient that goes along a residual.

    Args:
        name: the module whose own code adds what it is given to what its children made of that.
        argument: which of its arguments it adds.
        first: the child that is given the same, whose part of the gradient is right; ``""`` if none
            is.
    """

    def plant(model: nn.Module) -> None:
        module = model.get_submodule(name)

        def around(forward: Callable[..., Any]) -> Callable[..., Any]:
            def wrong(*args: Any, **kwargs: Any) -> Any:
                return forward(
                    *(
                        changed(each, lambda grad: grad * 0.9) if at == argument else each
                        for at, each in enumerate(args)
                    ),
                    **kwargs,
                )

            return wrong

        wrap(module, around)
        if first:

            def undo(child: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
                return (changed(args[0], lambda grad: grad / 0.9), *args[1:])

            module.get_submodule(first).register_forward_pre_hook(undo)

    return TrainingFault(
        name, "glue", "residual's gradient x 0.9", plant, (Role.GRAD_OUTPUT, Role.GRAD_INPUT)
    )


class _LastOnly(torch.autograd.Function):
    """An embedding whose gradient counts a repeated word once."""

    @staticmethod
    def forward(
        ctx: Any, weight: torch.Tensor, ids: torch.Tensor, padding: int | None
    ) -> torch.Tensor:
        ctx.save_for_backward(weight, ids)
        return functional.embedding(ids, weight, padding)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        weight, ids = ctx.saved_tensors
        grad = torch.zeros_like(weight)
        grad[ids.expand(grads[0].shape[:-1]).flatten()] = grads[0].flatten(0, -2)
        return grad, None, None


def of_embedding(name: str) -> TrainingFault:
    """An embedding whose backward overwrites where it should add up."""

    def plant(model: nn.Module) -> None:
        module = model.get_submodule(name)
        assert isinstance(module, nn.Embedding)
        apply: Any = _LastOnly.apply

        def forward(ids: torch.Tensor) -> Any:
            return apply(module.weight, ids, module.padding_idx)

        module.forward = forward  # type: ignore[method-assign, assignment]

    return TrainingFault(
        name,
        "module",
        "embedding's gradient without accumulation",
        plant,
        (Role.CALL_GRAD,),
        "weight",
    )


def of_tied(owner: str, user: str) -> TrainingFault:
    """A weight of two modules: what the second adds to its gradient is lost where the two are
    summed.

    Args:
        owner: the module under whose name the weight is known, with the weight as ``weight``.
        user: the other one.
    """

    def plant(model: nn.Module) -> None:
        lost: list[torch.Tensor] = []

        def note(grad: torch.Tensor) -> torch.Tensor:
            lost.append(grad.clone())
            return grad

        def around(forward: Callable[..., Any]) -> Callable[..., Any]:
            def wrong(*args: Any, **kwargs: Any) -> Any:
                with given_as(module, "weight", lambda parameter: changed(parameter, note)):
                    return forward(*args, **kwargs)

            return wrong

        def subtract(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            while lost:
                parameter.grad -= lost.pop()

        module = model.get_submodule(user)
        wrap(module, around)
        weight = module._parameters["weight"]
        assert weight is not None
        weight.register_post_accumulate_grad_hook(subtract)  # type: ignore[no-untyped-call]

    return TrainingFault(
        owner, "update", "tied weight counted once", plant, (Role.PARAM_GRAD,), "weight"
    )


def of_checkpoint(name: str) -> TrainingFault:
    """A checkpointed module that is computed again with another input than at first, 2 % larger."""

    def plant(model: nn.Module) -> None:
        def around(forward: Callable[..., Any]) -> Callable[..., Any]:
            def wrong(data: torch.Tensor) -> Any:
                times = 0

                def run(data: torch.Tensor) -> Any:
                    nonlocal times
                    times += 1
                    return forward(data * (1.0 if times == 1 else 1.02))

                return checkpoint(run, data, use_reentrant=False)

            return wrong

        wrap(model.get_submodule(name), around)

    return TrainingFault(
        name,
        "module",
        "checkpoint computed again otherwise",
        plant,
        (Role.CALL_GRAD, Role.GRAD_INPUT),
    )
