"""Seven steps of training with schedule-free RAdam: in the first four it is SGD, as its second
moment is not yet to be trusted.
"""

from __future__ import annotations

import torch
from pytorch_optimizer import ScheduleFreeRAdam
from torch import nn

from accucompare import Case


def case() -> Case:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randn(4, 16, generator=draw) for _ in range(7)]
    optimizer = ScheduleFreeRAdam(model.parameters(), lr=1e-2, betas=(0.9, 0.9))
    return Case(model, batches, loss=lambda output: output.square().mean(), optimizer=optimizer)
