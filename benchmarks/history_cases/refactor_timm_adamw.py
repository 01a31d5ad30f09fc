"""Three steps of training with timm's AdamW, whose sums one release writes in another order."""

from __future__ import annotations

import torch
from torch import nn

from accucompare import Case
from benchmarks.history_torchvision import stand_in

stand_in()
from timm.optim.adamw import AdamWLegacy  # noqa: E402


def case() -> Case:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randn(4, 16, generator=draw) for _ in range(3)]
    optimizer = AdamWLegacy(model.parameters(), lr=1e-3, weight_decay=0.05)
    return Case(model, batches, loss=lambda output: output.square().mean(), optimizer=optimizer)
