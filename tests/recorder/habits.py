"""Habits of models and of loops that train them, which a capture of the backward has to get
right."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

import accucompare as ac
from tests.asked import grouped

Forward = Callable[[Any, torch.Tensor], Any]
Loss = Callable[[Any], torch.Tensor]


class Habit(nn.Module):
    """Two linear layers, ``first`` and ``last``, what else it is given, and a forward of
    somebody's.
    """

    def __init__(self, forward: Forward, **others: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        for name, value in others.items():
            setattr(self, name, value)
        self._forward = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self._forward(self, x)


def values(*shape: int) -> torch.Tensor:
    """The same each time, none of them zero."""
    return torch.sin(torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape))


def _relu() -> nn.Module:
    return nn.ReLU(inplace=True)


def _in_place_on_a_slice(model: Any, x: torch.Tensor) -> Any:
    hidden = model.first(x)
    model.relu(hidden[:, :2])
    return model.last(hidden)


def _hooked(act: Callable[[torch.Tensor], torch.Tensor]) -> Forward:
    def forward(model: Any, x: torch.Tensor) -> Any:
        hidden = model.first(x)
        hidden.register_hook(act)
        return model.last(hidden)

    return forward


def _loss_used_inside(model: Any, x: torch.Tensor) -> Any:
    loss = model.last(model.first(x)).square().mean()
    return loss, 2 * loss


def _queries(model: Any, x: torch.Tensor) -> Any:
    return model.last(
        model.other(model.queries) + model.other(2 * model.queries) + model.first(x) + model.queries
    )


class _OfOneOnly(torch.autograd.Function):
    """A sum whose backward gives no gradient to the second part."""

    @staticmethod
    def forward(ctx: Any, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return one + other

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


class _Handed(torch.autograd.Function):
    """Hands on what it is given, and its gradient times a factor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * ctx.factor, None


class HandedOn(nn.Module):
    """Works in place, and hands on what it has written through a function with a backward of its
    own.
    """

    def __init__(self, factor: float = 1.0, detached: bool = False) -> None:
        super().__init__()
        self.factor, self.detached = factor, detached

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        written = functional.hardtanh_(x)
        return written.detach() if self.detached else _Handed.apply(written, self.factor)  # type: ignore[no-any-return, no-untyped-call]


def _changed_in_place(model: Any, x: torch.Tensor) -> Any:
    hidden = model.first(x)
    hidden[:, :2].mul_(2)
    return model.last(hidden)


def _view_written_into(model: Any, x: torch.Tensor) -> Any:
    """What a Linear gives for three axes is a view of its product."""
    hidden = model.first(x.view(1, *x.shape))
    early = hidden[:, 1].tanh()
    hidden[:, 0].mul_(0.5)
    return model.last(hidden)[0] + early


#: Forwards, with what else the model has.
HABITS: dict[str, Callable[[], Habit]] = {
    "in place on a view": lambda: Habit(
        lambda m, x: m.last(m.relu(m.first(x).view(4, 2)).view(2, 4)), relu=_relu()
    ),
    "in place on a transposed view": lambda: Habit(
        lambda m, x: m.last(m.relu(m.first(x).t()).t()), relu=_relu()
    ),
    "in place on a part": lambda: Habit(_in_place_on_a_slice, relu=_relu()),
    "an output that is a view, written into": lambda: Habit(_view_written_into),
    "in place, handed on by a function": lambda: Habit(
        lambda m, x: m.last(m.handed(m.first(x))), handed=HandedOn()
    ),
    "a parameter as an argument": lambda: Habit(
        _queries, other=nn.Linear(4, 4), queries=nn.Parameter(values(2, 4))
    ),
    "weight norm": lambda: Habit(
        lambda m, x: m.last(m.normed(m.first(x))),
        normed=parametrizations.weight_norm(nn.Linear(4, 4)),
    ),
    "a hook on an output": lambda: Habit(_hooked(lambda grad: 2 * grad)),
    "a hook that clips": lambda: Habit(_hooked(lambda grad: grad.clamp(-0.01, 0.01))),
    "a loss that is used inside": lambda: Habit(_loss_used_inside),
    "an output that is changed in place": lambda: Habit(_changed_in_place),
    "a function that gives no gradient": lambda: Habit(
        lambda m, x: m.last(_OfOneOnly.apply(m.first(x), m.other(x))), other=nn.Linear(4, 4)
    ),
    "a frozen layer": lambda: Habit(
        lambda m, x: m.last(m.frozen(m.first(x))), frozen=nn.Linear(4, 4).requires_grad_(False)
    ),
}


def build(name: str) -> Habit:
    """The same model each time."""
    torch.manual_seed(0)
    return HABITS[name]()


def loss_of(output: Any) -> torch.Tensor:
    """The sum of all losses of a tuple; of one output, its mean square."""
    return (
        sum(output)
        if isinstance(output, tuple)
        else functional.mse_loss(output, torch.zeros_like(output))
    )  # type: ignore[return-value]


def train(
    model: nn.Module, out: Path | None = None, backwards: int = 1, steps: int = 2, **options: Any
) -> list[torch.Tensor]:
    """Train a model by Adam, under capture where ``out`` is given; its weights afterwards.

    ``backwards``: through each graph.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    capture = (
        contextlib.nullcontext()
        if out is None
        else ac.capture(model, out, **grouped(overwrite=True, **{"backward": True, **options}))
    )
    with capture as session:
        for _ in range(steps):
            output = model(values(2, 4))
            roots = list(output) if isinstance(output, tuple) else [loss_of(output)]
            for left in reversed(range(backwards)):
                torch.autograd.backward(roots, retain_graph=left > 0)
            optimizer.step()
            optimizer.zero_grad()
            if session is not None:
                session.step()
    return [tensor.detach().clone() for tensor in model.state_dict().values()]
