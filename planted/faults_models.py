"""The models in which faults are planted: small ones of many architectures with made-up weights,
and MiniLM with its real ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Inputs = dict[str, torch.Tensor | bool]


@dataclass(frozen=True)
class Architecture:
    """A model to be built.

    Attributes:
        classes: the model's and its configuration's, in transformers; empty for MiniLM.
        config: what the configuration is made of.
        inputs: makes the inputs of its forward.
        attention: ``"eager"`` or ``"sdpa"``.
    """

    classes: tuple[str, str]
    config: dict[str, Any]
    inputs: Callable[[], Inputs]
    attention: str = "eager"


def _text(vocabulary: int, length: int = 20, **more: bool) -> Callable[[], Inputs]:
    return lambda: {"input_ids": torch.randint(1, vocabulary, (2, length)), **more}


def _padded(vocabulary: int) -> Inputs:
    mask = torch.ones(2, 18, dtype=torch.int64)
    mask[1, 13:] = 0
    return {"input_ids": torch.randint(1, vocabulary, (2, 18)), "attention_mask": mask}


def _translation() -> Inputs:
    ids = torch.randint(1, 199, (2, 20))
    return {
        "input_ids": ids,
        "decoder_input_ids": ids[:, :9].clone(),
        "attention_mask": torch.ones_like(ids),
        "use_cache": False,
    }


def _speech() -> Inputs:
    return {
        "input_features": torch.randn(2, 20, 64),
        "decoder_input_ids": torch.randint(3, 151, (2, 11)),
        "use_cache": False,
    }


_HEADS: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4}
_GROUPED: dict[str, Any] = {
    **_HEADS,
    "vocab_size": 181,
    "intermediate_size": 96,
    "num_key_value_heads": 2,
}
_ENCODER: dict[str, Any] = {
    **_HEADS,
    "num_hidden_layers": 3,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}

ARCHITECTURES: dict[str, Architecture] = {
    "gpt2": Architecture(
        ("GPT2LMHeadModel", "GPT2Config"),
        {
            "vocab_size": 211,
            "n_positions": 64,
            "n_embd": 64,
            "n_layer": 3,
            "n_head": 4,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        _text(211, use_cache=False),
    ),
    "bert": Architecture(
        ("BertModel", "BertConfig"),
        {**_ENCODER, "vocab_size": 211},
        lambda: dict(_padded(211)),
        "sdpa",
    ),
    "albert": Architecture(
        ("AlbertModel", "AlbertConfig"),
        {**_ENCODER, "vocab_size": 181, "embedding_size": 48},
        _text(181),
    ),
    "t5": Architecture(
        ("T5ForConditionalGeneration", "T5Config"),
        {
            "vocab_size": 199,
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 128,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
        _translation,
    ),
    "llama": Architecture(
        ("LlamaForCausalLM", "LlamaConfig"),
        {**_GROUPED, "num_hidden_layers": 3},
        _text(181, use_cache=False),
        "sdpa",
    ),
    "mixtral": Architecture(
        ("MixtralForCausalLM", "MixtralConfig"),
        {
            **_GROUPED,
            "num_hidden_layers": 2,
            "num_local_experts": 4,
            "experts_implementation": "eager",
        },
        _text(181, use_cache=False),
    ),
    "qwen2_moe": Architecture(
        ("Qwen2MoeForCausalLM", "Qwen2MoeConfig"),
        {
            **_GROUPED,
            "num_hidden_layers": 2,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 96,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "experts_implementation": "batched_mm",
        },
        _text(181, use_cache=False),
        "sdpa",
    ),
    "vit": Architecture(
        ("ViTModel", "ViTConfig"),
        {
            **_HEADS,
            "num_hidden_layers": 3,
            "intermediate_size": 128,
            "image_size": 32,
            "patch_size": 8,
        },
        lambda: {"pixel_values": torch.randn(2, 3, 32, 32)},
    ),
    "convnext": Architecture(
        ("ConvNextModel", "ConvNextConfig"),
        {"hidden_sizes": [32, 48, 64, 96], "depths": [1, 1, 2, 1]},
        lambda: {"pixel_values": torch.randn(2, 3, 64, 64)},
    ),
    "whisper": Architecture(
        ("WhisperModel", "WhisperConfig"),
        {
            "vocab_size": 151,
            "d_model": 64,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "num_mel_bins": 20,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 128,
            "decoder_ffn_dim": 128,
            "max_source_positions": 32,
            "max_target_positions": 32,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        _speech,
        "sdpa",
    ),
    "mamba": Architecture(
        ("MambaForCausalLM", "MambaConfig"),
        {"vocab_size": 181, "hidden_size": 64, "state_size": 8, "num_hidden_layers": 3},
        _text(181, 12, use_cache=False),
    ),
    "minilm": Architecture(("", ""), {}, dict, "sdpa"),
}


def build(name: str) -> tuple[nn.Module, Inputs]:
    """A model in float32 and eval mode, and its inputs; the same in every process."""
    if name == "minilm":
        from fixtures.minilm import case

        _quiet()
        minilm = case()
        return minilm.model, minilm.inputs
    architecture = ARCHITECTURES[name]
    return made(architecture, name), architecture.inputs()


def made(architecture: Architecture, name: str) -> nn.Module:
    """A model in float32 and eval mode with made-up weights, which depend on its name; the
    generator goes on from there.
    """
    torch.manual_seed(sum(map(ord, name)))
    _quiet()
    import transformers

    config = getattr(transformers, architecture.classes[1])(**architecture.config)
    config._attn_implementation = architecture.attention
    model: nn.Module = getattr(transformers, architecture.classes[0])(config).eval()
    _liven(model)
    return model


def _quiet() -> None:
    """transformers tells of token ids that a small vocabulary lacks, and of kernels that are not
    installed.
    """
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def _liven(model: nn.Module) -> None:
    """Give every parameter values of the size that training gives them.

    As initialised, biases are 0, norms 1, and attention all but uniform: half of all faults would
    change nothing."""
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            # of a state-space model; their values are its design
            if name.endswith(("A_log", ".D", "dt_proj.bias")):
                continue
            if tensor.ndim < 2:
                scale = name.endswith("layer_scale_parameter")
                tensor.copy_(torch.ones_like(tensor)) if scale else tensor.add_(
                    torch.randn_like(tensor), alpha=0.1
                )
            elif (
                "embed" in name or "shared" in name or name.endswith((".wte.weight", ".wpe.weight"))
            ):
                tensor.normal_(std=0.5 if tensor.ndim < 4 else 1 / math.sqrt(tensor[0].numel()))
            # GPT-2 keeps them transposed
            elif name.endswith((".c_attn.weight", ".c_proj.weight")) or ".mlp.c_" in name:
                tensor.normal_(std=1 / math.sqrt(tensor.shape[0]))
            else:
                rows = (
                    tensor.shape[-1]
                    if tensor.ndim == 3 and "experts" in name
                    else tensor[0].numel()
                )
                tensor.normal_(std=1 / math.sqrt(rows))
