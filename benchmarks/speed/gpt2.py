"""The model that captures and watches are measured on: GPT-2 small with random weights, its forward
and its training.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.speed.plan import Plan
from benchmarks.timing import Argument, Sample, alternate

if TYPE_CHECKING:
    import torch
    from torch import nn

SEED = 20261120


def build(layers: int) -> nn.Module:
    """GPT-2 as transformers configures it, in eval mode; the same weights every time."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(SEED)
    model: nn.Module = GPT2LMHeadModel(GPT2Config(n_layer=layers))
    return model.eval()


def tokens(batch: int, length: int) -> torch.Tensor:
    import torch

    return torch.randint(0, 50257, (batch, length), generator=torch.Generator().manual_seed(SEED))


def disturb(model: nn.Module, relative: float = 1e-6) -> None:
    """Change every weight a little, so that two captures share hardly a byte."""
    import torch

    generator = torch.Generator().manual_seed(SEED + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + relative * torch.randn(parameter.shape, generator=generator))
            parameter.add_(
                relative * torch.randn(parameter.shape, generator=generator)
            )  # zeros, such as biases, too


def plain(model: nn.Module, inputs: torch.Tensor) -> Sample:
    """A forward alone, after what was written before it has reached the disk."""
    os.sync()
    return forward(model, inputs)


def forward(model: nn.Module, inputs: torch.Tensor) -> Sample:
    """Run the model once and give the seconds it took, and those for which this thread had a
    processor.
    """
    import torch

    with torch.no_grad():
        began, busy = time.perf_counter(), time.thread_time()
        answer: Any = model(input_ids=inputs, use_cache=False)
        taken = {"forward": time.perf_counter() - began, "busy": time.thread_time() - busy}
    del answer
    return taken


@dataclass
class Training:
    """A step of training, again and again: forward, backward, AdamW."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    inputs: torch.Tensor

    @classmethod
    def of(cls, model: nn.Module, inputs: torch.Tensor) -> Training:
        import torch

        return cls(model, torch.optim.AdamW(model.parameters(), lr=1e-5), inputs)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(input_ids=self.inputs, labels=self.inputs, use_cache=False).loss.backward()
        self.optimizer.step()


def options(plan: Plan, rounds: int) -> list[Argument]:
    """Those by which a process is told how large the model's input is, and how often to measure;
    ``parser`` reads them.
    """
    sizes = {
        "rounds": rounds,
        "batch": plan.sizes.batch,
        "length": plan.sizes.length,
        "layers": plan.sizes.layers,
    }
    return [word for name, value in sizes.items() for word in (f"--{name}", value)]


def parser() -> argparse.ArgumentParser:
    """Of a process that measures some arms in a folder of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    for name in ("rounds", "batch", "length", "layers"):
        parser.add_argument(f"--{name}", type=int)
    return parser


def measured(
    folder: Path, first: Callable[[], Sample], arms: Mapping[str, Callable[[], Sample]], rounds: int
) -> dict[str, list[Sample]]:
    """The samples of some arms, after one round that counts for nothing. The folder is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        first()  # what the first step loads and allocates is start-up
        alternate(arms, 1)
        return alternate(arms, rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
