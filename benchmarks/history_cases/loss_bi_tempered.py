"""Two steps of training with the bi-tempered logistic loss, where a third of the labels is to be
ignored.
"""

from __future__ import annotations

import torch
from pytorch_optimizer import BiTemperedLogisticLoss
from torch import nn

from accucompare import Case


def case() -> Case:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randn(12, 16, generator=draw) for _ in range(2)]
    labels = torch.arange(12) % 3
    loss = BiTemperedLogisticLoss(t1=0.8, t2=1.2, ignore_index=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Case(model, batches, loss=lambda output: loss(output, labels), optimizer=optimizer)
