"""Models with a cache, as cases of one sequence: ``planted.computed_decode_models:llama``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from accucompare import Case

#: Tokens of the sequence, and how many of them come one by one.
LENGTH, STEPS = 15, 5

_OF_ALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_GROUPED = {**_OF_ALL, "num_key_value_heads": 2}
_HEADS = {**_GROUPED, "head_dim": 12}
_GPT2 = {"vocab_size": 97, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_BART = {
    "vocab_size": 97,
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 80,
    "decoder_ffn_dim": 80,
    "max_position_embeddings": 64,
}
_FALCON = {"vocab_size": 97, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_STATE = {"vocab_size": 97, "hidden_size": 48, "num_hidden_layers": 2, "state_size": 8}

#: By name: the model's class, its configuration's, and the options of that.
_KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", _GPT2),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**_GROUPED, "sliding_window": 6}),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", _HEADS),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**_HEADS, "sliding_window": 6}),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**_HEADS, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _GROUPED),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", _HEADS),
    "phi": ("PhiForCausalLM", "PhiConfig", _OF_ALL),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", {**_GROUPED, "sliding_window": 6}),
    "neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _OF_ALL),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", {**_GPT2, "rotary_dim": 4}),
    "gptneo": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {
            "vocab_size": 97,
            "hidden_size": 48,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 6,
            "max_position_embeddings": 64,
        },
    ),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {**_FALCON, "ffn_dim": 80, "max_position_embeddings": 64, "word_embed_proj_dim": 48},
    ),
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": 97, "hidden_size": 48, "n_layer": 2, "n_head": 4},
    ),
    "falcon": ("FalconForCausalLM", "FalconConfig", _FALCON),
    "mpt": (
        "MptForCausalLM",
        "MptConfig",
        {"vocab_size": 97, "d_model": 48, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    ),
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {**_GROUPED, "num_local_experts": 4, "sliding_window": 6},
    ),
    "qwen2 moe": (
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        {**_GROUPED, **_EXPERTS, "shared_expert_intermediate_size": 32},
    ),
    "cohere": ("CohereForCausalLM", "CohereConfig", _GROUPED),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", _GROUPED),
    "stablelm": (
        "StableLmForCausalLM",
        "StableLmConfig",
        {**_GROUPED, "partial_rotary_factor": 0.5},
    ),
    "starcoder2": ("Starcoder2ForCausalLM", "Starcoder2Config", {**_GROUPED, "sliding_window": 6}),
    "bigcode": ("GPTBigCodeForCausalLM", "GPTBigCodeConfig", _GPT2),
    "biogpt": ("BioGptForCausalLM", "BioGptConfig", _OF_ALL),
    "granite": ("GraniteForCausalLM", "GraniteConfig", _GROUPED),
    "mamba2": (
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {**_STATE, "num_heads": 8, "head_dim": 12, "n_groups": 1, "chunk_size": 4},
    ),
    "lfm2": (
        "Lfm2ForCausalLM",
        "Lfm2Config",
        {**_GROUPED, "layer_types": ["conv", "full_attention"]},
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": 97,
            "d_model": 48,
            "d_kv": 12,
            "d_ff": 80,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
    ),
    "bart": ("BartForConditionalGeneration", "BartConfig", _BART),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", _BART),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            **{name: value for name, value in _BART.items() if "position" not in name},
            "max_source_positions": 20,
            "max_target_positions": 64,
            "num_mel_bins": 8,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
    ),
}

#: Sound models: nothing of them may be more than rounding.
DECODE_CLEAN = tuple(_KINDS)
#: Sound token by token; several tokens behind a cache are wrong in transformers 5.24.
DECODE_WRONG_IN_CHUNKS = {"mamba": ("MambaForCausalLM", "MambaConfig", _STATE)}


def clean(name: str) -> Case:
    """A sound model, with weights that are large enough for its attention to matter."""
    import transformers

    model_class, config_class, options = {**_KINDS, **DECODE_WRONG_IN_CHUNKS}[name]
    config = getattr(transformers, config_class)(**options)
    for each in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if isinstance(number := getattr(config, each, None), int) and number >= 97:
            setattr(config, each, 0)
    model = getattr(transformers, model_class)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.add_(torch.randn_like(parameter) * 0.15)
    drawn = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, 97, (1, LENGTH), generator=drawn)
    if not config.is_encoder_decoder:
        return Case(model, {"input_ids": tokens})
    source: dict[str, Any] = {"input_ids": torch.randint(3, 97, (1, 9), generator=drawn)}
    if name == "whisper":
        source = {"input_features": torch.randn(1, 8, 40, generator=drawn)}
    return Case(model, {**source, "decoder_input_ids": tokens})


def __getattr__(name: str) -> Callable[[], Case]:
    if name in {**_KINDS, **DECODE_WRONG_IN_CHUNKS}:
        return functools.partial(clean, name)
    raise AttributeError(name)
