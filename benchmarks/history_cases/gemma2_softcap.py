"""Gemma 2 with eager attention, a sequence longer than its sliding window, and scores that the soft
cap bends.
"""

from __future__ import annotations

import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

from accucompare import Case


def case() -> Case:
    config = Gemma2Config(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=8,
        attn_logit_softcapping=2.0,
        initializer_range=0.2,
        attn_implementation="eager",
    )
    return Case(
        Gemma2ForCausalLM(config).eval(),
        {"input_ids": torch.arange(32)[None] * 7 % 128, "use_cache": False},
    )
