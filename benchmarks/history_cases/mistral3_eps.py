"""Mistral 3 on one small picture, with features so small that eps matters."""

from __future__ import annotations

import torch
from transformers import Mistral3Config, Mistral3ForConditionalGeneration

from accucompare import Case

IMAGE = 10  # the token that a patch of the picture takes the place of


def case() -> Case:
    config = Mistral3Config(
        text_config={
            "model_type": "mistral",
            "vocab_size": 128,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "rms_norm_eps": 1e-5,
        },
        vision_config={
            "model_type": "pixtral",
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "head_dim": 16,
            "image_size": 32,
            "patch_size": 8,
        },
        image_token_index=IMAGE,
        spatial_merge_size=2,
        vision_feature_layer=-1,
    )
    model = Mistral3ForConditionalGeneration(config).eval()
    for name, module in model.named_modules():
        if name.endswith("ln_pre"):  # the picture's features leave the tower at about its weight
            torch.nn.init.constant_(module.weight, 0.03)
    pixels = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    tokens = torch.tensor([[1, *[IMAGE] * 4, 20, 21, 22]])
    inputs = {
        "input_ids": tokens,
        "pixel_values": pixels,
        "image_sizes": torch.tensor([[32, 32]]),
        "use_cache": False,
    }
    return Case(model, inputs)
