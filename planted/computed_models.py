"""Models whose compiled form is tried: small, uneven, and each with what compilers get wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import accucompare as ac
from planted.faults_models import ARCHITECTURES, build


class _Attention(nn.Module):
    """Attention written out: a scale, a mask of -inf, a softmax."""

    def __init__(self, size: int, heads: int, heat: float) -> None:
        super().__init__()
        self.heads, self.scale = heads, heat / math.sqrt(size // heads)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, size = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, size // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = torch.matmul(query, key.transpose(-1, -2)) * self.scale
        shares = torch.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
        joined = torch.matmul(shares, value).transpose(1, 2).reshape(batch, length, size)
        made: torch.Tensor = self.out(joined)
        return made


class _Mlp(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.up, self.act, self.down = (
            nn.Linear(size, 3 * size),
            nn.GELU(),
            nn.Linear(3 * size, size),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down(self.act(self.up(x)))
        return made


class _Block(nn.Module):
    def __init__(self, size: int, heads: int, heat: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention, self.mlp = _Attention(size, heads, heat), _Mlp(size)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), mask)
        made: torch.Tensor = x + self.mlp(self.norm2(x))
        return made


class _Transformer(nn.Module):
    def __init__(self, heat: float = 12.0, size: int = 28, words: int = 53) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, size), nn.Embedding(32, size)
        self.blocks = nn.ModuleList(_Block(size, 2, heat) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, words, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.03)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        length = ids.shape[1]
        x = self.tokens(ids) + self.places(torch.arange(length, device=ids.device))
        mask = torch.ones(length, length, dtype=torch.bool, device=ids.device).triu(1)
        for block in self.blocks:
            x = block(x, mask)
        made: torch.Tensor = self.head(self.norm(x))
        return made


class _Gate(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1 / (1 + torch.exp(-x))


class _Residual(nn.Module):
    """A value that is read again after an operator of its own shape."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = x * 1.5
        made: torch.Tensor = torch.tanh(scaled) + scaled * self.inner(x)
        return made


class _Scan(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, dim=1) / 7.0


class _OddLayer(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.residual, self.gate, self.scan = _Residual(size), _Gate(), _Scan()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.residual(x)
        made: torch.Tensor = self.scan(x * self.gate(x))
        return made


class _Odd(nn.Module):
    def __init__(self, size: int = 13) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_OddLayer(size) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class _ConvBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = x + self.act(self.norm1(self.conv1(x)))
        return made


class _Conv(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(_ConvBlock(width) for _ in range(2))
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        for block in self.blocks:
            x = block(x)
        made: torch.Tensor = self.head(self.pool(x).mean(dim=(2, 3)))
        return made


def _llama() -> tuple[nn.Module, Any]:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=28,
        intermediate_size=44,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=53,
        max_position_embeddings=32,
        use_cache=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaModel(config)
    nn.init.normal_(model.embed_tokens.weight, std=0.02)
    return model, {"input_ids": torch.randint(3, 53, (2, 9))}


def _gpt2() -> tuple[nn.Module, Any]:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        n_embd=28,
        n_layer=2,
        n_head=2,
        vocab_size=53,
        n_positions=32,
        use_cache=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    model: nn.Module = GPT2Model(config)
    return model.eval(), {"input_ids": torch.randint(3, 53, (2, 9))}


_MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "blocks": lambda: (_Transformer(), torch.randint(0, 53, (3, 7))),
    "hot": lambda: (_Transformer(heat=600.0), torch.randint(0, 53, (3, 7))),
    "llama": _llama,
    "gpt2": _gpt2,
    "odd": lambda: (_Odd(), torch.randn(3, 7, 13)),
    "conv": lambda: (_Conv(), torch.randn(3, 3, 9, 9)),
}


def _loss(output: Any) -> torch.Tensor:
    value = getattr(output, "last_hidden_state", output)
    target = torch.linspace(-1, 1, value.numel(), device=value.device).view(value.shape)
    loss: torch.Tensor = ((value.float() - target) ** 2).mean()
    return loss


def computed_case(name: str, trains: bool) -> ac.Case:
    """A model with its inputs, and a loss if it trains."""
    model, inputs = _MODELS[name]()
    return ac.Case(model, inputs, loss=_loss if trains else None)


def blocks() -> ac.Case:
    return computed_case("blocks", trains=False)


def hot() -> ac.Case:
    return computed_case("hot", trains=False)


def llama() -> ac.Case:
    return computed_case("llama", trains=False)


def gpt2() -> ac.Case:
    return computed_case("gpt2", trains=False)


def odd() -> ac.Case:
    return computed_case("odd", trains=False)


def conv() -> ac.Case:
    return computed_case("conv", trains=False)


def blocks_training() -> ac.Case:
    return computed_case("blocks", trains=True)


def llama_training() -> ac.Case:
    return computed_case("llama", trains=True)


def odd_training() -> ac.Case:
    return computed_case("odd", trains=True)


def conv_training() -> ac.Case:
    return computed_case("conv", trains=True)


#: Of transformers, in eval mode: ``architecture_bert`` is a case of this module.
_ARCHITECTURE = "architecture_"


def __getattr__(name: str) -> Callable[[], ac.Case]:
    known = name.removeprefix(_ARCHITECTURE)
    if known == name or known not in ARCHITECTURES:
        raise AttributeError(name)
    return lambda: ac.Case(*build(known))
