"""Four steps of training with QHAdam."""

from __future__ import annotations

import torch
from pytorch_optimizer import QHAdam
from torch import nn

from accucompare import Case


def case() -> Case:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randn(4, 16, generator=draw) for _ in range(4)]
    optimizer = QHAdam(model.parameters(), lr=1e-3)
    return Case(model, batches, loss=lambda output: output.square().mean(), optimizer=optimizer)
