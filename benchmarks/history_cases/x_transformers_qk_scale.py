"""x-transformers' decoder with normalised queries and keys and a learned scale for each of their
dimensions, here not all ones.
"""

from __future__ import annotations

import torch
from x_transformers import Decoder, TransformerWrapper

from accucompare import Case


def case() -> Case:
    layers = Decoder(
        dim=64,
        depth=3,
        heads=4,
        attn_dim_head=16,
        attn_qk_norm=True,
        attn_qk_norm_dim_scale=True,
        rotary_pos_emb=True,
    )
    model = TransformerWrapper(num_tokens=128, max_seq_len=64, attn_layers=layers).eval()
    for name, parameter in model.named_parameters():
        if "qk_norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 2.0)
    return Case(model, torch.arange(24)[None] * 7 % 128)
