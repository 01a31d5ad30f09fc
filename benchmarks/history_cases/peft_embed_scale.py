"""LoRA on the embedding of Gemma 3, which multiplies what it looks up by the root of the hidden
size.
"""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from accucompare import Case


def case() -> Case:
    config = Gemma3TextConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=8,
    )
    lora = LoraConfig(
        target_modules=["embed_tokens", "q_proj"], r=4, lora_alpha=8, init_lora_weights=False
    )
    model = get_peft_model(Gemma3ForCausalLM(config), lora).eval()
    return Case(model, {"input_ids": torch.arange(16)[None] * 7 % 128, "use_cache": False})
