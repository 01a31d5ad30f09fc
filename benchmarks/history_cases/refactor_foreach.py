"""Three steps of training with torch's AdamW, one parameter after the other, and all at once."""

from __future__ import annotations

import torch
from torch import nn

from accucompare import Case


def each() -> Case:
    return _case(False)


def at_once() -> Case:
    return _case(True)


def _case(foreach: bool) -> Case:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randn(4, 16, generator=draw) for _ in range(3)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, foreach=foreach)
    return Case(model, batches, loss=lambda output: output.square().mean(), optimizer=optimizer)
