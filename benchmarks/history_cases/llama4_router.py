"""Llama 4 with four experts of which a token takes one, weighted by its score."""

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
        num_local_experts=4,
        num_experts_per_tok=1,
        interleave_moe_layer_step=1,
        attention_chunk_size=64,
        initializer_range=0.2,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = Llama4ForCausalLM(config).eval()
    return Case(model, {"input_ids": torch.arange(24)[None] * 7 % 128, "use_cache": False})
