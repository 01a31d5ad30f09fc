"""Overflows that float16 makes by itself in transformers' models: the module named is the one that
a hand's own hooks find.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accucompare as ac
from tests.watcher.watched import origins

transformers = pytest.importorskip("transformers")
SIZES = {
    "embedding_size": 16,
    "hidden_sizes": [16, 24, 32, 48],
    "depths": [1, 1, 2, 1],
    "num_labels": 5,
}
MODELS: dict[str, Any] = {
    "regnet": lambda: transformers.RegNetForImageClassification(
        transformers.RegNetConfig(groups_width=8, **SIZES)
    ),
    "resnet": lambda: transformers.ResNetForImageClassification(transformers.ResNetConfig(**SIZES)),
}


def step(kind: str, seed: int) -> tuple[nn.Module, Any]:
    """A model, and a function that runs its forward and backward, with a loss scale near float16's
    limit.
    """
    torch.manual_seed(seed)
    model = MODELS[kind]().half().train()
    images = torch.randn(4, 3, 32, 32).half()
    return (
        model,
        lambda: (model(pixel_values=images, labels=torch.arange(4)).loss * 24000.0).backward(),
    )


def found_by_hand(model: nn.Module, run: Any) -> str:
    """The first module of which a parameter's gradient is not finite although no gradient of what
    it gave is.
    """
    arrived: set[str] = set()
    first: list[str] = []

    def finite(grad: torch.Tensor) -> bool:
        return bool(torch.isfinite(grad).all())

    def follow(name: str, output: torch.Tensor) -> None:
        output.register_hook(lambda grad: None if finite(grad) else arrived.add(name))  # type: ignore[no-untyped-call]

    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(lambda _m, _i, output, name=name: follow(name, output))
            for parameter in module.parameters(recurse=False):
                parameter.register_hook(
                    lambda grad, name=name: (
                        None if finite(grad) or name in arrived else first.append(name)
                    )  # type: ignore[no-untyped-call]
                )
    run()
    return first[0]


@pytest.mark.parametrize(
    ("kind", "seed"), [("regnet", 0), ("regnet", 1), ("regnet", 2), ("resnet", 0), ("resnet", 1)]
)
def test_a_natural_overflow_in_float16_is_named_where_it_is(
    kind: str, seed: int, tmp_path: Path
) -> None:
    expected = found_by_hand(*step(kind, seed))
    model, run = step(kind, seed)
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        run()
        watch.step()
    assert [found.place for found in origins(watch)] == [f"{expected}, backward"]
