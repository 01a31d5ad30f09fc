"""x-transformers' decoder."""

from __future__ import annotations

import torch
from x_transformers import Decoder, TransformerWrapper

from accucompare import Case


def case() -> Case:
    layers = Decoder(dim=64, depth=3, heads=4, attn_dim_head=32)
    return Case(
        TransformerWrapper(num_tokens=128, max_seq_len=64, attn_layers=layers).eval(),
        torch.arange(24)[None] * 7 % 128,
    )
