"""Gemma 3n, text only: copies of the embeddings are brought to the magnitude of the first, which is
not divided by nothing.
"""

from __future__ import annotations

import torch
from transformers import Gemma3nForCausalLM, Gemma3nTextConfig

from accucompare import Case


def case() -> Case:
    config = Gemma3nTextConfig(
        vocab_size=128,
        vocab_size_per_layer_input=128,
        hidden_size=64,
        hidden_size_per_layer_input=16,
        intermediate_size=[128] * 4,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_kv_shared_layers=0,
        laurel_rank=8,
        altup_num_inputs=4,
        activation_sparsity_pattern=[0.0] * 4,
        initializer_range=0.002,
    )
    return Case(
        Gemma3nForCausalLM(config).eval(),
        {"input_ids": torch.arange(1, 17)[None] * 7 % 128, "use_cache": False},
    )
