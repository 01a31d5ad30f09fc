"""Six steps of training with schedule-free AdamW while the rate warms up."""

from __future__ import annotations

import torch
from schedulefree import AdamWScheduleFree
from torch import nn

from accucompare import Case


def case() -> Case:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randn(4, 16, generator=draw) for _ in range(6)]
    optimizer = AdamWScheduleFree(
        model.parameters(), lr=1e-2, weight_decay=0.1, warmup_steps=4, foreach=False
    )
    optimizer.train()
    return Case(model, batches, loss=lambda output: output.square().mean(), optimizer=optimizer)
