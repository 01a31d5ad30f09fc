"""How a fault is planted in a training, and which of the checks must complain of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from planted.health_models import STEPS, Training, groups, warm_up_and_cosine

#: In this step, what happens once happens.
ONCE = 150


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: what is wrong.
        checks: one of these must complain.
        plant: changes the training.
        places: model and precision of each trial.
        dies: the error that the training ends with.
    """

    name: str
    checks: tuple[str, ...]
    plant: Callable[[Training], None]
    places: tuple[tuple[str, str], ...]
    dies: type[Exception] | None = None


FAULTS: list[Fault] = []


def fault(
    name: str, *checks: str, places: str, dies: type[Exception] | None = None
) -> Callable[[Callable[[Training], None]], Callable[[Training], None]]:
    """``places``: such as ``"cnn float32, moe bfloat16"``."""

    def add(plant: Callable[[Training], None]) -> Callable[[Training], None]:
        pairs: list[tuple[str, str]] = []
        for place in places.split(", "):
            model, precision = place.split()
            pairs.append((model, precision))
        FAULTS.append(Fault(name, checks, plant, tuple(pairs), dies))
        return plant

    return add


def at(step: int, act: Callable[[Training], Any]) -> Callable[[Training, int], None]:
    return lambda training, now: act(training) if now == step else None


def first(training: Training, *kinds: type[nn.Module]) -> Any:
    return next(module for module in training.model.modules() if isinstance(module, kinds))


def head(training: Training) -> Any:
    return [module for module in training.model.modules() if isinstance(module, nn.Linear)][-1]


def trained(training: Training) -> list[Any]:
    """The parameters that have a gradient."""
    return [parameter for parameter in training.model.parameters() if parameter.grad is not None]


def renew(training: Training) -> None:
    """An optimizer and a scheduler of the model as it is now."""
    training.optimizer = torch.optim.AdamW(groups(training.model), lr=2e-3)
    training.scheduler = warm_up_and_cosine(training.optimizer, STEPS)
