"""SEW on a second of noise, without padding."""

from __future__ import annotations

import torch
from transformers import SEWConfig, SEWModel

from accucompare import Case


def case() -> Case:
    config = SEWConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        conv_dim=(16, 16, 32),
        conv_stride=(5, 2, 2),
        conv_kernel=(10, 3, 3),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        squeeze_factor=2,
    )
    return Case(
        SEWModel(config).eval(), torch.randn(1, 1600, generator=torch.Generator().manual_seed(1))
    )
