"""Layers of which each rank has a part, written by hand as Megatron does it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional


class Copied(torch.autograd.Function):
    """The value itself; its gradient is summed over the group."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad = grads[0].contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Reduced(torch.autograd.Function):
    """Summed over the group; its gradient goes on as it is."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        value = value.contiguous().clone()
        dist.all_reduce(value, group=group)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


class _Gathered(torch.autograd.Function):
    """The group's values side by side; of the gradient each rank takes its own part."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        parts = [torch.empty_like(value) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, value.contiguous(), group=group)
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        parts = grads[0].chunk(dist.get_world_size(ctx.group), -1)
        return parts[dist.get_rank(ctx.group)].contiguous(), None


def applied(function: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
    """One of these functions' value."""
    found: torch.Tensor = function.apply(value, group)
    return found


class Column(nn.Linear):
    """Each rank makes some of the outputs; of fused layers, some of each.

    Attributes:
        group: ``None`` on one device.
        parts: the widths of the fused layers.
    """

    group: Any = None

    def __init__(self, width: int, *parts: int, bias: bool = True) -> None:
        super().__init__(width, sum(parts), bias)
        self.parts = parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.copied(x), self.weight, self.bias)

    def copied(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.group is None else applied(Copied, x, self.group)


class Row(nn.Linear):
    """Each rank takes some of the inputs; its bias is added once, to the sum."""

    group: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.reduced(functional.linear(x, self.weight)) + self.bias

    def reduced(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.group is None else applied(Reduced, x, self.group)


class Words(nn.Embedding):
    """Each rank has some of the rows; what it has not is zero, and summed over the ranks."""

    group: Any = None
    first: int = 0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.group is None:
            return super().forward(tokens)
        own = tokens - self.first
        held = (own >= 0) & (own < len(self.weight))
        found = functional.embedding(own * held, self.weight) * held[..., None]
        return applied(Reduced, found, self.group)


class Head(nn.Module):
    """The logits, with the embedding's weight."""

    group: Any = None

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.group is None:
            return functional.linear(x, self.weight)
        found = functional.linear(applied(Copied, x, self.group), self.weight)
        return applied(_Gathered, found, self.group)
