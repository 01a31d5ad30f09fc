"""Stable Diffusion 3's transformer with what a control net adds behind its blocks: two tensors for
five blocks.
"""

from __future__ import annotations

import torch
from diffusers import SD3Transformer2DModel

from accucompare import Case


def case() -> Case:
    model = SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=5,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=24,
        caption_projection_dim=32,
        pooled_projection_dim=16,
        pos_embed_max_size=8,
    ).eval()
    draw = torch.Generator().manual_seed(1)
    inputs = {
        "hidden_states": torch.randn(1, 4, 8, 8, generator=draw),
        "encoder_hidden_states": torch.randn(1, 6, 24, generator=draw),
        "pooled_projections": torch.randn(1, 16, generator=draw),
        "timestep": torch.tensor([500]),
        "block_controlnet_hidden_states": [
            torch.randn(1, 16, 32, generator=draw) for _ in range(2)
        ],
    }
    return Case(model, inputs)
