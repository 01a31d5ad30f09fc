"""Six steps of training by timm's step schedule with noise of the deviation that was asked for."""

from __future__ import annotations

import torch
from torch import nn

from accucompare import Case
from benchmarks.history_torchvision import stand_in

stand_in()
from timm.scheduler.step_lr import StepLRScheduler  # noqa: E402


class _EachUpdate:
    """timm's schedules are told the number of the update."""

    def __init__(self, schedule: StepLRScheduler) -> None:
        self.schedule, self.updates = schedule, 0

    def step(self) -> None:
        self.updates += 1
        self.schedule.step_update(self.updates)

    def state_dict(self) -> dict[str, int]:
        return {"updates": self.updates}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.updates = state["updates"]


def case() -> Case:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randn(4, 16, generator=draw) for _ in range(6)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = StepLRScheduler(
        optimizer,
        decay_t=100,
        t_in_epochs=False,
        noise_range_t=(2, 6),
        noise_pct=0.9,
        noise_std=0.3,
    )
    return Case(
        model,
        batches,
        loss=lambda output: output.square().mean(),
        optimizer=optimizer,
        scheduler=_EachUpdate(schedule),
    )
