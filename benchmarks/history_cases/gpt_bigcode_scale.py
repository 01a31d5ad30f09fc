"""GPT BigCode: one key and value for all heads, scores scaled by the root of the head's size."""

from __future__ import annotations

import torch
from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM

from accucompare import Case


def case() -> Case:
    config = GPTBigCodeConfig(
        vocab_size=128, n_positions=64, n_embd=64, n_layer=3, n_head=4, attn_implementation="eager"
    )
    return Case(
        GPTBigCodeForCausalLM(config).eval(),
        {"input_ids": torch.arange(48).reshape(2, 24) * 7 % 128, "use_cache": False},
    )
