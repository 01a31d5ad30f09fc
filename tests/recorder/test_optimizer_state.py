"""Going on from a saved state with each optimizer and each scheduler of PyTorch: the same bits as
without the interruption.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import accucompare as ac
from accucompare.bundle.format.saved_training import Component
from tests.asked import grouped
from tests.combinations import once

# some are in newer versions only
NAMES = "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop"
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    name: functools.partial(getattr(torch.optim, name), lr=0.05)
    for name in NAMES.split()
    if hasattr(torch.optim, name)
}
OPTIMIZERS["SGD with momentum"] = functools.partial(
    torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True
)
OPTIMIZERS["AdamW, its lr a tensor"] = lambda parameters: torch.optim.AdamW(
    parameters, torch.tensor(0.05), capturable=False
)
OPTIMIZERS["AdamW, amsgrad"] = functools.partial(torch.optim.AdamW, lr=0.05, amsgrad=True)

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "ChainedScheduler": lambda made: lr_scheduler.ChainedScheduler(
        [lr_scheduler.StepLR(made, 1), lr_scheduler.ExponentialLR(made, 0.5)]
    ),
    "ConstantLR": lr_scheduler.ConstantLR,
    "CosineAnnealingLR": lambda made: lr_scheduler.CosineAnnealingLR(made, 5),
    "CosineAnnealingWarmRestarts": lambda made: lr_scheduler.CosineAnnealingWarmRestarts(made, 3),
    "CyclicLR": lambda made: lr_scheduler.CyclicLR(made, 0.01, 0.1, 2),
    "ExponentialLR": lambda made: lr_scheduler.ExponentialLR(made, 0.5),
    "LambdaLR": lambda made: lr_scheduler.LambdaLR(made, lambda step: 1 / (1 + step)),
    "LinearLR": lr_scheduler.LinearLR,
    "MultiStepLR": lambda made: lr_scheduler.MultiStepLR(made, [1, 3]),
    "MultiplicativeLR": lambda made: lr_scheduler.MultiplicativeLR(made, lambda step: 0.9),
    "OneCycleLR": lambda made: lr_scheduler.OneCycleLR(made, 0.1, 9),
    "PolynomialLR": lr_scheduler.PolynomialLR,
    "ReduceLROnPlateau": lambda made: lr_scheduler.ReduceLROnPlateau(made, patience=0),
    "SequentialLR": lambda made: lr_scheduler.SequentialLR(
        made, [lr_scheduler.LinearLR(made), lr_scheduler.StepLR(made, 1)], [2]
    ),
}


def trained(
    out: Path,
    numbers: range,
    optimizer: Callable[[Any], Any],
    scheduler: Callable[[Any], Any],
    **options: Any,
) -> list[Any]:
    """The weights and learning rates that a small training ends with."""
    torch.manual_seed(0)
    model = nn.Linear(3, 3, bias=False)
    update = optimizer(model.parameters())
    rates = scheduler(update)
    with ac.capture(
        model, out, **grouped(mode="stats", optimizer=update, scheduler=rates, **options)
    ) as session:
        for number in numbers:

            def closure(number: int = number) -> torch.Tensor:
                update.zero_grad()
                loss: torch.Tensor = (model(torch.eye(3) * (number + 1)) - 1).square().sum()
                loss.backward()
                return loss

            closure()
            loss = update.step(closure)
            rates.step(loss.item()) if isinstance(
                rates, lr_scheduler.ReduceLROnPlateau
            ) else rates.step()
            session.step()
    return [
        model.weight.tolist(),
        [float(group["lr"]) for group in update.param_groups],
        rates.state_dict(),
    ]


#: Each of both, some twice.
PAIRS = once(OPTIMIZERS, SCHEDULERS)


@pytest.mark.parametrize(("optimizer", "scheduler"), PAIRS)
def test_any_optimizer_and_scheduler_goes_on_with_the_same_bits(
    optimizer: str, scheduler: str, tmp_path: Path
) -> None:
    make = OPTIMIZERS[optimizer], SCHEDULERS[scheduler]
    whole = trained(tmp_path / "golden", range(5), *make, steps="3-4", save_state=True)
    assert trained(tmp_path / "out", range(3, 5), *make, like=tmp_path / "golden") == whole
    with ac.open_bundle(tmp_path / "out") as bundle:
        started = bundle.manifest.training.started
    assert started is not None
    assert {entry.component for entry in started.missing} == {Component.DATA}
