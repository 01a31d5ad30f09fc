"""GPT-2 by its own attention, and by torch's scaled_dot_product_attention."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from accucompare import Case


def eager() -> Case:
    return _case("eager")


def sdpa() -> Case:
    return _case("sdpa")


def _case(attention: str) -> Case:
    config = GPT2Config(
        vocab_size=128,
        n_positions=64,
        n_embd=64,
        n_layer=3,
        n_head=4,
        attn_implementation=attention,
    )
    return Case(
        GPT2LMHeadModel(config).eval(),
        {"input_ids": torch.arange(48).reshape(2, 24) * 7 % 128, "use_cache": False},
    )
