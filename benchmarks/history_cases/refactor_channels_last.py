"""Two steps of training of convolutions and batch norms, in torch's two layouts of a picture."""

from __future__ import annotations

import torch
from torch import nn

from accucompare import Case


def contiguous() -> Case:
    return _case(torch.contiguous_format)


def channels_last() -> Case:
    return _case(torch.channels_last)


def _case(layout: torch.memory_format) -> Case:
    layers = [
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
    ]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).to(
        memory_format=layout
    )  # type: ignore[call-overload]
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randn(8, 3, 24, 24, generator=draw).to(memory_format=layout) for _ in range(2)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return Case(
        model, batches, loss=lambda output: output.logsumexp(-1).mean(), optimizer=optimizer
    )
