"""What captures and watches are measured on: GPT-2 small with random weights, and small models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

SEED = 20261120


@dataclass(frozen=True)
class Size:
    """Of GPT-2 and its input, and how many small Linears there are."""

    batch: int
    length: int
    layers: int
    linears: int


@dataclass
class Work:
    """Steps of a model, again and again.

    Attributes:
        model: the model.
        step: one forward, or one step of training.
        optimizer: of a training.
        repeat: steps in a sample; the more, the shorter they are.
    """

    model: nn.Module
    step: Callable[[], Any]
    optimizer: torch.optim.Optimizer | None = None
    repeat: int = 1


def gpt2(size: Size) -> nn.Module:
    """GPT-2 as transformers configures it, in eval mode; the same weights every time."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(SEED)
    model: nn.Module = GPT2LMHeadModel(GPT2Config(n_layer=size.layers))
    return model.eval()


def tokens(size: Size) -> torch.Tensor:
    import torch

    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(0, 50257, (size.batch, size.length), generator=generator)


def disturb(model: nn.Module, relative: float = 1e-6) -> None:
    """Change every weight a little, so that two captures share hardly a byte."""
    import torch

    generator = torch.Generator().manual_seed(SEED + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = [torch.randn(parameter.shape, generator=generator) for _ in range(2)]
            parameter.mul_(1 + relative * noise[0])
            parameter.add_(relative * noise[1])  # zeros, such as biases, too


def linears(size: Size) -> nn.Module:
    """Small Linears, one behind the other."""
    import torch
    from torch import nn

    torch.manual_seed(SEED)
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(size.linears))).eval()


def _forward(size: Size) -> Work:
    model, inputs = gpt2(size), tokens(size)
    return Work(model, _without_gradients(model, input_ids=inputs, use_cache=False))


def _training(size: Size) -> Work:
    """Forward, backward, AdamW."""
    return _trained(*_training_of(size), 1)


def _third(size: Size) -> Work:
    """A third of the layers: enough for ratios of what each layer costs alike."""
    return _training(_shallow(size))


def _short(size: Size) -> Work:
    return _trained(*_training_of(Size(2, 64, max(1, size.layers // 3), 0)), 3)


def _dropout(size: Size) -> Work:
    work = _training(_shallow(size))
    work.model.train()
    return work


def _tiny(size: Size) -> Work:
    import torch

    from fixtures.gpt2 import training

    torch.manual_seed(SEED)
    case = training()
    return _trained(case.model, case.inputs[0], 20)


def _linears(size: Size) -> Work:
    import torch

    model = linears(size)
    return Work(model, _without_gradients(model, torch.ones(8, 64)), repeat=10)


def _t5(size: Size) -> Work:
    from fixtures.t5 import case

    return _of_case(case())


def _llama(size: Size) -> Work:
    from fixtures.llama import case

    return _of_case(case())


WORKS: dict[str, Callable[[Size], Work]] = {
    "forward": _forward,
    "training": _training,
    "third": _third,
    "short": _short,
    "dropout": _dropout,
    "tiny": _tiny,
    "linears": _linears,
    "t5": _t5,
    "llama": _llama,
}


def _training_of(size: Size) -> tuple[nn.Module, dict[str, Any]]:
    return gpt2(size), {"input_ids": tokens(size), "labels": tokens(size)}


def _shallow(size: Size) -> Size:
    return Size(size.batch, size.length, max(1, size.layers // 3), size.linears)


def _of_case(case: Any) -> Work:
    inputs = case.inputs[0] if isinstance(case.inputs, list) else case.inputs
    return Work(case.model, _without_gradients(case.model, **inputs), repeat=10)


def _without_gradients(model: nn.Module, *args: Any, **kwargs: Any) -> Callable[[], None]:
    import torch

    def step() -> None:
        with torch.no_grad():
            model(*args, **kwargs)

    return step


def _trained(model: nn.Module, inputs: dict[str, Any], repeat: int) -> Work:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        optimizer.zero_grad()
        model(**{**inputs, "use_cache": False}).loss.backward()
        optimizer.step()

    return Work(model, step, optimizer, repeat)
