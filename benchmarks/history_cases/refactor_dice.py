"""Two steps of training with segmentation-models-pytorch's Dice loss, which one release writes as a Tversky loss."""

from __future__ import annotations

import torch
from torch import nn

from accucompare import Case
from benchmarks.history_torchvision import stand_in

stand_in()
from segmentation_models_pytorch.losses import DiceLoss  # noqa: E402


def case() -> Case:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randn(2, 3, 12, 12, generator=draw) for _ in range(2)]
    labels = torch.randint(0, 4, (2, 12, 12), generator=draw)
    loss = DiceLoss("multiclass")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Case(model, batches, loss=lambda output: loss(output, labels), optimizer=optimizer)
