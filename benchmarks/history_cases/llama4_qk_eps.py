"""Llama 4, dense: queries and keys are normalised, with the config's eps, and so small that it
matters.
"""

from __future__ import annotations

import torch
from transformers import Llama4ForCausalLM, Llama4TextConfig

from accucompare import Case


def case() -> Case:
    config = Llama4TextConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        intermediate_size_mlp=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        moe_layers=[],
        num_local_experts=2,
        rms_norm_eps=1e-5,
        initializer_range=0.01,
        attention_chunk_size=64,
        pad_token_id=0,
    )
    return Case(
        Llama4ForCausalLM(config).eval(),
        {"input_ids": torch.arange(24)[None] * 7 % 128, "use_cache": False},
    )
