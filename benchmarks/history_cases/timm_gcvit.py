"""GCViT on two pictures: queries made of a whole picture meet the keys of its windows."""

from __future__ import annotations

import torch

from accucompare import Case
from benchmarks.history_torchvision import stand_in

stand_in()
from timm.models.gcvit import GlobalContextVit  # noqa: E402


def case() -> Case:
    model = GlobalContextVit(
        img_size=(64, 64),
        num_classes=10,
        window_size=(4, 4, 2, 2),
        embed_dim=16,
        depths=(2, 2, 2, 2),
        num_heads=(1, 2, 2, 4),
    )
    return Case(model.eval(), torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1)))
