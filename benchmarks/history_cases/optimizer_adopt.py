"""Five steps of training with ADOPT, whose first step only begins its second moment."""

from __future__ import annotations

import torch
from pytorch_optimizer import ADOPT
from torch import nn

from accucompare import Case


def case() -> Case:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randn(4, 16, generator=draw) for _ in range(5)]
    # so that five steps see the second moment
    optimizer = ADOPT(model.parameters(), lr=1e-2, betas=(0.9, 0.9))
    return Case(model, batches, loss=lambda output: output.square().mean(), optimizer=optimizer)
