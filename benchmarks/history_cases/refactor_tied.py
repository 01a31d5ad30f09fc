"""A small language model whose head has the embedding's weight: as a function of it, and as a
module of its own under a second name.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from accucompare import Case


class Model(nn.Module):
    def __init__(self, two_names: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(128, 32)
        self.body = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.head: nn.Linear | None = None
        if two_names:
            self.head = nn.Linear(32, 128, bias=False, device="meta")  # draws no random numbers
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found = self.body(self.embed(tokens))
        output: torch.Tensor = (
            functional.linear(found, self.embed.weight) if self.head is None else self.head(found)
        )
        return output


def one() -> Case:
    return _case(Model(False))


def two() -> Case:
    return _case(Model(True))


def _case(model: nn.Module) -> Case:
    tokens = [torch.arange(24)[None] * factor % 128 for factor in (5, 7)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Case(model, tokens, loss=lambda output: output.logsumexp(-1).mean(), optimizer=optimizer)
