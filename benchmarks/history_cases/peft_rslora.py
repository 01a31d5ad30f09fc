"""Rank-stabilised LoRA whose weight in the sum is set, as diffusers does it for an adapter that it
loads.
"""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import LlamaConfig, LlamaForCausalLM

from accucompare import Case


def case() -> Case:
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    lora = LoraConfig(
        target_modules=["v_proj"], r=16, lora_alpha=16, use_rslora=True, init_lora_weights=False
    )
    model = get_peft_model(LlamaForCausalLM(config), lora).eval()
    for module in model.modules():
        if isinstance(module, LoraLayer):
            module.set_scale("default", 0.5)
    return Case(model, {"input_ids": torch.arange(24)[None] * 7 % 128, "use_cache": False})
