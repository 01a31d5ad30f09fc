"""T5, whose encoder and decoder share one embedding under three names."""

from __future__ import annotations

import torch
from transformers import T5Config, T5ForConditionalGeneration

from accucompare import Case


def case() -> Case:
    config = T5Config(
        vocab_size=128,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    tokens = torch.arange(32).reshape(2, 16) * 7 % 128
    return Case(
        T5ForConditionalGeneration(config).eval(),
        {"input_ids": tokens, "decoder_input_ids": tokens[:, :8], "use_cache": False},
    )
