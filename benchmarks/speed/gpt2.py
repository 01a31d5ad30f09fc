"""The model that captures are measured on: GPT-2 small with random weights."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from benchmarks.timing import Sample

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
            parameter.add_(relative * torch.randn(parameter.shape, generator=generator))  # zeros, such as biases, too


def plain(model: nn.Module, inputs: torch.Tensor) -> Sample:
    """A forward alone, after what was written before it has reached the disk."""
    os.sync()
    return forward(model, inputs)


def forward(model: nn.Module, inputs: torch.Tensor) -> Sample:
    """Run the model once and give the seconds it took, and those for which this thread had a processor."""
    import torch

    with torch.no_grad():
        began, busy = time.perf_counter(), time.thread_time()
        answer: Any = model(input_ids=inputs, use_cache=False)
        taken = {"forward": time.perf_counter() - began, "busy": time.thread_time() - busy}
    del answer
    return taken
