"""Llama from a config as transformers v5 writes it: the rotary base is in rope_parameters, which v4
does not read.
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from accucompare import Case

WRITTEN = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
}


def case() -> Case:
    return Case(
        LlamaForCausalLM(LlamaConfig(**WRITTEN)).eval(),
        {"input_ids": torch.arange(48)[None] * 7 % 128, "use_cache": False},
    )
