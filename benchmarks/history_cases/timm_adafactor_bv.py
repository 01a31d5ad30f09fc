"""Three steps of training with big vision's Adafactor, whose updates are clipped by their root mean
square.
"""

from __future__ import annotations

import torch
from torch import nn

from accucompare import Case
from benchmarks.history_torchvision import stand_in

stand_in()
from timm.optim.adafactor_bv import AdafactorBigVision  # noqa: E402


def case() -> Case:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randn(4, 16, generator=draw) for _ in range(3)]
    optimizer = AdafactorBigVision(model.parameters(), lr=1e-2, clipping_threshold=0.5)
    return Case(model, batches, loss=lambda output: output.square().mean(), optimizer=optimizer)
