"""Mamba2 with four groups of B and C."""

from __future__ import annotations

import torch
from transformers import Mamba2Config, Mamba2Model

from accucompare import Case


def case() -> Case:
    config = Mamba2Config(
        vocab_size=128,
        hidden_size=64,
        expand=2,
        head_dim=16,
        num_heads=8,
        n_groups=4,
        state_size=16,
        num_hidden_layers=3,
        chunk_size=16,
    )
    return Case(
        Mamba2Model(config).eval(),
        {"input_ids": torch.arange(24)[None] * 5 % 128, "use_cache": False},
    )
