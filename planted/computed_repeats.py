"""Trainings that do not agree with themselves: failing hardware, sums without order, lost seeds."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from accucompare import Case

#: How often each fault was asked so far in this process, over all runs.
_ASKED: Counter[str] = Counter()


def _now(name: str, every: int, at: int) -> bool:
    """True for each ``every``-th time that it is asked, from the ``at``-th on."""
    _ASKED[name] += 1
    return (_ASKED[name] - 1 - at) % every == 0 and _ASKED[name] > at


def flipped(value: torch.Tensor, bit: int) -> torch.Tensor:
    """With one bit of one element flipped."""
    found = value.detach().clone()
    kinds = {4: torch.int32, 2: torch.int16}
    found.view(kinds[value.element_size()]).view(-1)[3] ^= 1 << bit
    return value + (found - value.detach())


def _shuffled_sum(rows: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(rows[0])
    for each in sorted(range(len(rows)), key=lambda each: os.urandom(8)):
        total = total + rows[each]
    return total


class _Odd(nn.Module):
    """Computes the same, but for the fault."""

    def __init__(self, forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.own = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.own(x)


class _Backward(torch.autograd.Function):
    """The value itself; its gradient by the fault."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, change: Any) -> torch.Tensor:
        ctx.change = change
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.change(grads[0]), None


class RepeatFault(NamedTuple):
    """A fault, and where the first value must be named: module, role and step (``None``: any)."""

    make: Callable[[], Case]
    place: str
    roles: tuple[str, ...]
    step: int | None = None


def _train(middle: nn.Module, change: Callable[[Any, Any], None] | None = None) -> Case:
    model = nn.Sequential(nn.Linear(8, 8), middle, nn.Dropout(0.2), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    if change is not None:
        change(model, optimizer)
    inputs = [torch.randn(40, 8) for _ in range(3)]
    return Case(model, inputs, lambda output: output.square().mean(), optimizer)


def _flips(name: str, bit: int, every: int, at: int) -> Callable[[], Case]:
    def change(x: torch.Tensor) -> torch.Tensor:
        return flipped(x, bit) if _now(name, every, at) else x * 1

    return lambda: _train(_Odd(change))


def _in_backward(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], Case]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _Backward.apply(x, change)  # type: ignore[no-untyped-call]
        return found

    return lambda: _train(_Odd(forward))


def _in_update() -> Case:
    def change(model: Any, optimizer: Any) -> None:
        def after(*_: Any) -> None:
            if _now("update", 5, 4):
                with torch.no_grad():
                    model[3].weight.copy_(flipped(model[3].weight, 9))

        optimizer.register_step_post_hook(after)

    return _train(nn.Tanh(), change)


def _of_state() -> Case:
    def change(model: Any, optimizer: Any) -> None:
        def after(*_: Any) -> None:
            if _now("state", 7, 5):
                held = optimizer.state[model[0].weight]["exp_avg"]
                held.copy_(flipped(held, 12))

        optimizer.register_step_post_hook(after)

    return _train(nn.Tanh(), change)


def _noise() -> Case:
    generator = random.SystemRandom()

    def change(x: torch.Tensor) -> torch.Tensor:
        found = x.clone()
        found[0, 0] += generator.random() * 1e-3
        return found

    return _train(_Odd(change))


def _own_dropout() -> Case:
    def change(x: torch.Tensor) -> torch.Tensor:
        seed = int.from_bytes(os.urandom(4), "little")
        kept = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) > 0.3
        return x * kept

    return _train(_Odd(change))


def _by_ids() -> Case:
    """Adds up in the order of a set of strings whose hashes have another seed each time."""

    def change(x: torch.Tensor) -> torch.Tensor:
        salt = os.urandom(4)
        order = sorted(range(x.shape[1]), key=lambda each: hash((salt, each)))
        total = x[:, :1] * 0
        for each in order:
            total = total + x[:, each : each + 1]
        return x + total

    return _train(_Odd(change))


def _weights() -> Case:
    def change(model: Any, optimizer: Any) -> None:
        with torch.no_grad():
            model[0].weight[0, 0] = int.from_bytes(os.urandom(2), "little") / 1e5

    return _train(nn.Tanh(), change)


def _inputs() -> Case:
    case = _train(nn.Tanh())
    case.inputs[1] = case.inputs[1] + os.urandom(2)[0] + 1e-3 * os.urandom(1)[0]
    return case


class _Norm(nn.BatchNorm1d):
    """Its running mean has a flipped bit now and then."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = super().forward(x)
        if _now("buffer", 8, 6) and self.running_mean is not None:
            self.running_mean.data.copy_(flipped(self.running_mean, 10))
        return found


def _scattered(grad: torch.Tensor) -> torch.Tensor:
    return grad + 1e-4 * _shuffled_sum(grad)


REPEAT_FAULTS = {
    "low bit of a forward": RepeatFault(_flips("low", 1, 15, 7), "1", ("output",), 1),
    "high bit of a forward": RepeatFault(_flips("high", 27, 15, 9), "1", ("output",), 0),
    "sign in the last step": RepeatFault(_flips("sign", 31, 15, 11), "1", ("output",), 2),
    "often flipped": RepeatFault(_flips("often", 8, 2, 3), "1", ("output",)),
    "sum without order": RepeatFault(
        lambda: _train(_Odd(lambda x: x + _shuffled_sum(x))), "1", ("output",), 0
    ),
    "scatter in the backward": RepeatFault(
        _in_backward("scatter", _scattered), "1", ("grad_input",), 0
    ),
    "bit of a gradient": RepeatFault(
        _in_backward("grad", lambda grad: flipped(grad, 5) if _now("grad", 9, 4) else grad),
        "1",
        ("grad_input",),
        1,
    ),
    "bit of an update": RepeatFault(_in_update, "3", ("param_update", "param_changed")),
    "bit of an optimizer's state": RepeatFault(_of_state, "0", ("state_after", "state_before")),
    "noise": RepeatFault(_noise, "1", ("output",), 0),
    "dropout of its own seed": RepeatFault(_own_dropout, "1", ("output",), 0),
    "order of a set": RepeatFault(_by_ids, "1", ("output",), 0),
    "weights without a seed": RepeatFault(_weights, "0.weight", ("param",)),
    "inputs without a seed": RepeatFault(_inputs, "", ("input",), 1),
    "bit of a buffer": RepeatFault(
        lambda: _train(_Norm(8)), "1", ("buffer_update", "buffer_after", "buffer_before")
    ),
}


def faulty(name: str) -> Case:
    return REPEAT_FAULTS[name].make()


def _conv() -> Case:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 4)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    inputs = [torch.randn(5, 3, 8, 8) for _ in range(2)]
    return Case(model, inputs, lambda output: output.square().mean(), optimizer)


def _lstm() -> Case:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(6, 10, batch_first=True), nn.Linear(10, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            head: torch.Tensor = self.head(self.lstm(x)[0][:, -1])
            return head

    model = Last()
    optimizer = torch.optim.Adam(model.parameters())
    return Case(model, [torch.randn(4, 7, 6)] * 2, lambda output: output.square().sum(), optimizer)


REPEAT_CLEAN: dict[str, Callable[[], Case]] = {
    "dropout": lambda: _train(nn.Tanh()),
    "batch norm": lambda: _train(nn.BatchNorm1d(8)),
    "noise with a seed": lambda: _train(_Odd(lambda x: x + torch.randn_like(x))),
    "convolutions": _conv,
    "lstm": _lstm,
}


def clean(name: str) -> Case:
    return REPEAT_CLEAN[name]()
