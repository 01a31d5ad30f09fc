"""An attention whose queries, keys and values are made by one linear layer, and by three with its
rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from accucompare import Case

SIZE, HEADS = 48, 4


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return _attend(*self.qkv(data).chunk(3, -1), self.out)


class Split(nn.Module):
    def __init__(self, fused: Fused) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(SIZE, SIZE) for _ in range(3))
        self.out = fused.out
        weights, biases = fused.qkv.weight.chunk(3), fused.qkv.bias.chunk(3)
        for layer, weight, bias in zip((self.q, self.k, self.v), weights, biases, strict=True):
            layer.load_state_dict({"weight": weight, "bias": bias})

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return _attend(self.q(data), self.k(data), self.v(data), self.out)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: nn.Module
) -> torch.Tensor:
    heads = (
        each.unflatten(-1, (HEADS, SIZE // HEADS)).transpose(1, 2) for each in (query, key, value)
    )
    output: torch.Tensor = out(
        functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
    )
    return output


def fused() -> Case:
    return _case(Fused)


def split() -> Case:
    return _case(lambda: Split(Fused()))


def _case(attention: Callable[[], nn.Module]) -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.LayerNorm(SIZE), attention(), nn.LayerNorm(SIZE), nn.Linear(SIZE, 8, bias=False)
    )
    nn.init.normal_(model[-1].weight, generator=torch.Generator().manual_seed(2))
    return Case(model.eval(), torch.randn(2, 12, SIZE, generator=torch.Generator().manual_seed(1)))
