"""A block with torch's LayerNorm, and with one that is written out."""

from __future__ import annotations

import torch
from torch import nn

from accucompare import Case


class LayerNorm(nn.Module):
    """``nn.LayerNorm``, written out."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = (
            nn.Parameter(torch.ones(size)),
            nn.Parameter(torch.zeros(size)),
            1e-5,
        )

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        centred = data - data.mean(-1, keepdim=True)
        return (
            self.weight * (centred / (centred.square().mean(-1, keepdim=True) + self.eps).sqrt())
            + self.bias
        )


class Block(nn.Module):
    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.norm, self.up, self.act, self.down = (
            norm(48),
            nn.Linear(48, 96),
            nn.GELU(),
            nn.Linear(96, 48),
        )

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = data + self.down(self.act(self.up(self.norm(data))))
        return output


def library() -> Case:
    return _case(nn.LayerNorm)


def written() -> Case:
    return _case(LayerNorm)


def _case(norm: type[nn.Module]) -> Case:
    model = nn.Sequential(Block(norm), Block(norm), norm(48))
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randn(4, 10, 48, generator=draw) for _ in range(2)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Case(
        model,
        batches,
        loss=lambda output: output.square().mean() + output.sin().mean(),
        optimizer=optimizer,
    )
