"""Sound trainings of very different kinds, in which the checklist must say nothing: loops as people
write them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

#: Steps of most runs.
STEPS = 200


@dataclass(frozen=True)
class Parts:
    """What a loop gives to ``accucompare.watch``."""

    model: nn.Module
    optimizer: Any = None
    scheduler: Any = None
    scaler: Any = None


#: First the parts, when they are made, and then ``None`` at the end of each step. Libraries have
#: their loop inside: they yield nothing, and can only be watched as scripts are.
Loop = Iterator[Parts | None]

SOUND: dict[str, Callable[[], Loop]] = {}
#: Those whose loop is a library's.
LIBRARIES: set[str] = set()


def sound(name: str, library: bool = False) -> Callable[[Callable[[], Loop]], Callable[[], Loop]]:
    """Add a sound training to the catalogue; ``library``: its loop is a library's."""
    if library:
        LIBRARIES.add(name)

    def add(loop: Callable[[], Loop]) -> Callable[[], Loop]:
        assert name not in SOUND
        SOUND[name] = loop
        return loop

    return add


def images(count: int = 640, classes: int = 6, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy patterns with their labels: float32 [count, 1, size, size], int64 [count]."""
    labels = torch.randint(0, classes, (count,))
    return torch.randn(classes, 1, size, size)[labels] + 0.7 * torch.randn(
        count, 1, size, size
    ), labels


def digits(count: int = 512, size: int = 12) -> torch.Tensor:
    """Bright strokes on black, from 0 to 1: float32 [count, 1, size, size]."""
    at = torch.rand(count, 4, 2) * (size - 4) + 2
    axis = torch.arange(size)
    near = (axis[None, None, :, None] - at[..., :1, None]).abs() + (
        axis[None, None, None, :] - at[..., 1:, None]
    ).abs()
    return (2.0 - near).clamp(0, 1).amax(1, keepdim=True)


def points(
    count: int = 640, classes: int = 4, width: int = 16
) -> tuple[torch.Tensor, torch.Tensor]:
    """Clusters with their labels: float32 [count, width], int64 [count]."""
    labels = torch.randint(0, classes, (count,))
    return 1.5 * torch.randn(classes, width)[labels] + torch.randn(count, width), labels


def sentences(count: int, length: int, words: int, first: int = 2) -> torch.Tensor:
    """Ids of a small grammar, in which a word mostly follows from the one before: int64 [count,
    length].
    """
    ids = torch.randint(first, words, (count, length))
    for place in range(1, length):
        follows = (ids[:, place - 1] * 2) % (words - first) + first
        ids[:, place] = torch.where(torch.rand(count) < 0.8, follows, ids[:, place])
    return ids


def draw(*data: torch.Tensor, size: int = 16) -> list[torch.Tensor]:
    """A random batch."""
    chosen = torch.randint(0, len(data[0]), (size,))
    return [each[chosen] for each in data]


def epochs(*data: torch.Tensor, size: int = 16, steps: int = STEPS) -> Iterator[list[torch.Tensor]]:
    """Batches of shuffled epochs."""
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(*data), batch_size=size, shuffle=True
    )
    while True:
        for batch in loader:
            if not steps:
                return
            steps -= 1
            yield batch


def mlp(*widths: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), act()]
    return nn.Sequential(*layers[:-1])


class Net(nn.Module):
    """Convolutions with batch norm, and a classifier with dropout."""

    def __init__(self, classes: int = 6) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
            *(
                nn.Conv2d(8, 16, 3, 2, 1),
                nn.BatchNorm2d(16),
                nn.ReLU(),
                nn.AdaptiveAvgPool2d(2),
                nn.Flatten(),
            ),
        )
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.dropout(self.features(x)))
        return logits
