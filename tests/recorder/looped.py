"""A training loop with all that a loop has, interrupted and not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import accucompare as ac
from tests.asked import grouped
from tests.compare.builder import edit_manifest


class Net(nn.Module):
    """Dropout, batch norm, a buffer that it computes itself and changes, and a counter of its
    own."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.size: int | None = None
        self.first, self.norm, self.drop, self.last = (
            nn.Linear(6, 8),
            nn.BatchNorm1d(8),
            nn.Dropout(0.5),
            nn.Linear(8, 3),
        )
        self.register_buffer("mean", torch.zeros(8), persistent=False)
        self.register_buffer("table", torch.arange(8.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.size = len(x)
        hidden = self.drop(self.norm(self.first(x)))
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        out: torch.Tensor = self.last(hidden + self.mean) * (1 + self.calls / 10)
        return out


@dataclass
class Loop:
    """A model with all that trains it; and what came out."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    scaler: Any
    losses: list[float] = field(default_factory=list)

    @classmethod
    def new(cls, seed: int = 0, lr: float = 1e-2) -> Loop:
        torch.manual_seed(seed)
        model = Net().train()
        optimizer = torch.optim.AdamW(model.parameters(), lr)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4], gamma=0.5)
        return cls(
            model,
            optimizer,
            scheduler,
            torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2),
        )

    @property
    def parts(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer, "scheduler": self.scheduler, "scaler": self.scaler}

    def step(self, number: int) -> None:
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(number))
        loss = self.model(x).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.scheduler.step()
        self.losses.append(loss.item())

    def tensors(self) -> dict[str, torch.Tensor]:
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}


def run(loop: Loop, out: Path, steps: range, recorded: str | None = None, **options: Any) -> Loop:
    with ac.capture(
        loop.model, out, **grouped(**{"backward": True, "steps": recorded, **options})
    ) as session:
        for number in steps:
            loop.step(number)
            session.step()
    return loop


def edited(golden: Path, out: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    shutil.copytree(golden, out)
    edit_manifest(out, lambda manifest: edit(manifest["capture"]))
    return out


def interrupted(out: Path) -> tuple[Path, Loop]:
    """Steps 0 to 5 in one go; of steps 3 to 5 the records, and the state before them."""
    torch.manual_seed(1)
    loop = Loop.new()
    return out, run(loop, out, range(6), "3-5", save_state=True, **loop.parts)
