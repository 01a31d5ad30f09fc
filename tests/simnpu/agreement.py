"""Run by test_simnpu in a process that has the simulated NPU: how far models on it are from the
same models on the CPU.

Prints, by model, the worst relative L2 error of any module's output and of any parameter's
gradient, and how many outputs there were."""

from __future__ import annotations

import copy
import json
from typing import Any

import torch
import transformers
from torch import Tensor, nn

_LENGTH, _WORDS = 12, 97
_SMALL = {
    "vocab_size": _WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


class _First(nn.Module):
    """A module that returns a tuple, as one that returns its first item."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, values: Tensor) -> Tensor:
        return self.module(values)[0]


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, groups=4),
        nn.GroupNorm(2, 8),
        nn.GELU(),
        nn.ConvTranspose2d(8, 4, 2, 2),
        nn.MaxPool2d(2),
        nn.Upsample(scale_factor=2),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(64, 10),
        nn.LayerNorm(10),
    )


def models() -> dict[str, tuple[nn.Module, dict[str, Tensor] | Tensor]]:
    words = torch.randint(0, _WORDS, (2, _LENGTH))
    mask = torch.ones_like(words)
    mask[1, 8:] = 0
    gpt2 = transformers.GPT2Config(
        vocab_size=_WORDS,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=1,
        eos_token_id=2,
    )
    t5 = transformers.T5Config(
        vocab_size=_WORDS,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    llama = transformers.LlamaConfig(**_SMALL, num_key_value_heads=2)
    return {
        "cnn": (cnn(), torch.randn(2, 3, 16, 16)),
        "lstm": (_First(nn.LSTM(8, 12, num_layers=2, bidirectional=True)), torch.randn(5, 2, 8)),
        "gru": (_First(nn.GRU(8, 12, batch_first=True)), torch.randn(2, 5, 8)),
        "transformer": (
            nn.TransformerEncoderLayer(16, 4, 32, dropout=0, batch_first=True),
            torch.randn(2, 5, 16),
        ),
        "embedding": (
            nn.Sequential(nn.Embedding(_WORDS, 8, padding_idx=0), nn.RMSNorm(8), nn.Linear(8, 3)),
            words,
        ),
        "gpt2": (transformers.GPT2LMHeadModel(gpt2).eval(), {"input_ids": words, "labels": words}),
        "bert": (
            transformers.BertForSequenceClassification(transformers.BertConfig(**_SMALL)).eval(),
            {"input_ids": words, "attention_mask": mask, "labels": torch.tensor([0, 1])},
        ),
        "t5": (
            transformers.T5ForConditionalGeneration(t5).eval(),
            {"input_ids": words, "labels": words},
        ),
        "llama": (
            transformers.LlamaForCausalLM(llama).eval(),
            {"input_ids": words, "attention_mask": mask, "labels": words},
        ),
    }


def run(
    model: nn.Module, inputs: dict[str, Tensor] | Tensor, device: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Every module's output and every parameter's gradient, copied to the CPU."""
    model = copy.deepcopy(model).to(device)
    outputs: dict[str, Tensor] = {}
    for name, module in model.named_modules():

        def keep(module: nn.Module, inputs: Any, output: Any, name: str = name) -> None:
            if isinstance(output, Tensor):
                assert output.device.type == device, name
                outputs.setdefault(name, output.detach().to("cpu", copy=True))

        module.register_forward_hook(keep)
    if isinstance(inputs, Tensor):
        loss = model(inputs.to(device)).pow(3).mean()
    else:
        loss = model(**{name: value.to(device) for name, value in inputs.items()}).loss
    loss.backward()
    # a gradient that is nothing but rounding, such as that of a key's bias, has no relative error
    gradients = {
        name: parameter.grad.cpu()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return outputs, {
        name: gradient for name, gradient in gradients.items() if gradient.norm() > 1e-6
    }


def worst(values: dict[str, Tensor], golden: dict[str, Tensor]) -> float:
    return max(
        (
            (values[name].double() - golden[name].double()).norm() / golden[name].double().norm()
        ).item()
        for name in golden
    )


def main() -> None:
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    found = {}
    for name, (model, inputs) in models().items():
        golden_outputs, golden_gradients = run(model, inputs, "cpu")
        outputs, gradients = run(model, inputs, "npu")
        assert outputs.keys() == golden_outputs.keys()
        found[name] = [
            worst(outputs, golden_outputs),
            worst(gradients, golden_gradients),
            len(outputs),
        ]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
