"""A student that learns from itself without a gradient first, in lightning's bf16-mixed: weights
cast under no_grad must not be kept.
"""

from __future__ import annotations

import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn

from accucompare import Case


class Student(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 8)
        self.precision = MixedPrecision("bf16-mixed", "cpu")

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        with self.precision.forward_context():
            with torch.no_grad():
                target = self.net(data)
            output: torch.Tensor = self.head(self.net(data) - target.tanh())
        return output.float()


def case() -> Case:
    torch.manual_seed(0)
    model = Student()
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randn(8, 16, generator=draw) for _ in range(2)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Case(model, batches, loss=lambda output: output.square().mean(), optimizer=optimizer)
