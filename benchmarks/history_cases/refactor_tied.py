"""A small language model whose head has the embedding's weight: as a function of it, and as a module of its own under a second name."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from accucompare import Case


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(128, 32)
        self.body = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))


class OneName(_Model):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.body(self.embed(tokens)), self.embed.weight)


class TwoNames(_Model):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, 128, bias=False, device="meta")  # draws no random numbers
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.body(self.embed(tokens)))
        return output


def one() -> Case:
    return _case(OneName())


def two() -> Case:
    return _case(TwoNames())


def _case(model: nn.Module) -> Case:
    tokens = [torch.arange(24)[None] * factor % 128 for factor in (5, 7)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Case(model, tokens, loss=lambda output: output.logsumexp(-1).mean(), optimizer=optimizer)
