"""RoFormer, whose positions are rotations of queries and keys."""

from __future__ import annotations

import torch
from transformers import RoFormerConfig, RoFormerModel

from accucompare import Case


def case() -> Case:
    config = RoFormerConfig(
        vocab_size=128,
        hidden_size=64,
        embedding_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    return Case(
        RoFormerModel(config).eval(), {"input_ids": torch.arange(48).reshape(2, 24) * 7 % 128}
    )
