"""The model of which the dumps beside this file were made; its weights come from a seed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.up = nn.Linear(6, 8)
        self.act = nn.GELU()
        self.down = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def model() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def inputs() -> torch.Tensor:
    return torch.randn(3, 6, generator=torch.Generator().manual_seed(1))


class Twice(nn.Module):
    """A module called twice, blocks with and without a bias, a product without weights, and a
    Linear at the end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.act = nn.ReLU()
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.out = nn.Linear(6, 6, bias=False)
        self.fc_1 = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.fc(self.act(self.fc(x))))
        for layer in self.layers:
            x = layer(x)
        return self.fc_1(torch.softmax(x @ x.transpose(1, 2), -1) @ self.out(x))


class Repeated(nn.Module):
    """One block called twice in a row, and a module that gives two values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Block()
        self.lstm = nn.GRU(6, 6, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, last = self.lstm(self.layer(self.layer(x)))
        return out + last.transpose(0, 1)


def _seeded(
    module: nn.Module, *shape: int
) -> tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]:
    return lambda: module.eval(), lambda: torch.randn(
        *shape, generator=torch.Generator().manual_seed(1)
    )


def _convolutions() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 5),
    )
    model[1].running_mean.uniform_(-1, 1)
    model[1].running_var.uniform_(0.5, 2)
    return model


def _exported() -> dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]]:
    torch.manual_seed(0)
    return {
        "sequential": _seeded(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)), 2, 3, 6),
        "twice": _seeded(Twice(), 2, 3, 6),
        "repeated": _seeded(Repeated(), 2, 3, 6),
        "convolutions": _seeded(_convolutions(), 2, 3, 8, 8),
    }


#: What torch.onnx.export was given for tests/data/polygraphy: model and inputs.
EXPORTED = _exported()
