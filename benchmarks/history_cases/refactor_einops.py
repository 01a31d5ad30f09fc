"""An MLP mixer whose tensors are turned by einops' layers."""

from __future__ import annotations

import torch
from einops.layers.torch import EinMix, Rearrange, Reduce
from torch import nn

from accucompare import Case


def case() -> Case:
    layers = [
        Rearrange("b c (h i) (w j) -> b (h w) (i j c)", i=4, j=4),
        nn.Linear(48, 32),
        nn.LayerNorm(32),
        EinMix("b n c -> b m c", weight_shape="n m", bias_shape="m", n=16, m=16),
        nn.GELU(),
        EinMix("b n c -> b n d", weight_shape="c d", bias_shape="d", c=32, d=32),
        Reduce("b n c -> b c", "mean"),
        nn.Linear(32, 10),
    ]
    return Case(
        nn.Sequential(*layers).eval(),
        torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1)),
    )
