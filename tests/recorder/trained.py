"""Small models to be trained, of many habits, and a loop that trains them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional

import accucompare as ac
from tests.asked import grouped

Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]
_HEADS: dict[str, Any] = {
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "vocab_size": 97,
}
_SPECIAL: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 1}


def _images(ids: torch.Tensor) -> torch.Tensor:
    return torch.sin(ids.float().sum() + torch.arange(2 * 3 * 64.0)).reshape(2, 3, 8, 8)


class Tied(nn.Module):
    """One weight in two modules, one block called three times, a parameter of the root's, keyword
    arguments, nested outputs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(97, 16)
        self.block = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 97, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, ids: torch.Tensor, *, share: float = 1.0) -> dict[str, Any]:
        x = self.embed(ids) * self.scale
        for _ in range(3):
            x = x + self.block(self.norm(x)) * share
        return {"logits": self.head(x), "middle": (x, x * 2)}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.out = (
            nn.Embedding(97, 16),
            nn.LSTM(16, 16, 2, batch_first=True),
            nn.Linear(16, 97),
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.lstm(self.embed(ids))[0])
        return out


def _tied_loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    out = model(ids, share=0.5)
    return (
        functional.cross_entropy(out["logits"].flatten(0, 1), ids.flatten())
        + out["middle"][1].pow(2).mean() * 0.1
    )


def _own_loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=ids, labels=ids).loss
    return loss


def _token_loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def _image_loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = model(_images(ids))
    return out.square().mean()


def _convolutions() -> nn.Module:
    """With batch norm, activations in place, and an output that is a view."""
    first, second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
    relu = nn.ReLU(inplace=True)
    return nn.Sequential(
        first, nn.BatchNorm2d(8), relu, second, nn.ReLU(inplace=True), nn.Flatten(),
        nn.Dropout(0.1), nn.Linear(512, 5)
    )  # fmt: skip


def _gpt2() -> nn.Module:
    config = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 97, "n_positions": 32}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**config, **_SPECIAL))


def _t5() -> nn.Module:
    sizes = {
        "num_layers": 2,
        "d_model": 32,
        "d_kv": 16,
        "num_heads": 2,
        "d_ff": 48,
        "vocab_size": 97,
    }
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, decoder_start_token_id=0)
    )


def _mixtral() -> nn.Module:
    config = transformers.MixtralConfig(
        **_HEADS, num_key_value_heads=1, num_local_experts=4, output_router_logits=True
    )
    return transformers.MixtralForCausalLM(config)


MODELS: dict[str, tuple[Callable[[], nn.Module], Loss]] = {
    "gpt2": (_gpt2, _own_loss),
    "t5": (_t5, _own_loss),
    "mixtral": (_mixtral, _own_loss),
    "tied": (Tied, _tied_loss),
    "recurrent": (Recurrent, _token_loss),
    "convolutions": (_convolutions, _image_loss),
}


def build(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The same model each time, in train mode, with weights that bfloat16 can hold."""
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    return MODELS[name][0]().to(torch.bfloat16).to(dtype).train()


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(
    name: str,
    out: Path | None = None,
    steps: int = 1,
    *,
    model: nn.Module | None = None,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = adamw,
    before_update: Callable[[nn.Module], object] = lambda model: None,
    chosen: Any = None,
    **options: Any,
) -> tuple[nn.Module, list[float]]:
    """Train a model, under capture where ``out`` is given; the model and its losses. ``chosen``:
    the steps that are recorded.
    """
    model = build(name) if model is None else model
    update = None if optimizer is None else optimizer(model)
    drawn, losses = torch.Generator().manual_seed(5), []
    capture = (
        ac.capture(
            model, out, **grouped(overwrite=True, **{"backward": True, "steps": chosen, **options})
        )
        if out is not None
        else contextlib.nullcontext()
    )
    with capture as session:
        for _ in range(steps):
            loss = MODELS[name][1](model, torch.randint(97, (2, 8), generator=drawn))
            loss.backward()
            before_update(model)
            if update is not None:
                update.step()
                update.zero_grad()
            losses.append(loss.item())
            if session is not None:
                session.step()
    return model, losses
