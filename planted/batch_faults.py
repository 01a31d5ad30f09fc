"""Models whose samples must not depend on their batch, and faults by which they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from accucompare import Case
from accucompare.compare.reruns import Variation

_GROUPED: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}


def _tokens(left: bool) -> dict[str, torch.Tensor]:
    """Three sequences of seven tokens, the second of which is padded."""
    mask = torch.ones(3, 7, dtype=torch.int64)
    mask[1, slice(0, 2) if left else slice(5, 7)] = 0
    return {"input_ids": torch.randint(1, 61, (3, 7)) * mask, "attention_mask": mask}


def llama(left: bool = False) -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**_GROUPED))
    model.config.use_cache = False
    return Case(model.eval(), _tokens(left))  # type: ignore[no-untyped-call]


def gpt2() -> Case:
    """Positions are counted from the first token, be it padding or not, unless they are given."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=61, n_positions=32, n_embd=32, n_layer=2, n_head=4)
    config.use_cache = False
    model = GPT2LMHeadModel(config).eval()  # type: ignore[no-untyped-call]
    return Case(model, _tokens(left=True))


def gpt2_with_positions() -> Case:
    case = gpt2()
    mask = case.inputs["attention_mask"]
    case.inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    return case


def cnn() -> Case:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )
    return Case(model.eval(), torch.randn(4, 3, 8, 8))


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 10, num_layers=2, batch_first=True)
        self.head = nn.Linear(10, 3)
        self.keeps = False
        self.kept: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.kept if self.keeps else None
        states, self.kept = self.lstm(x, kept)
        head: torch.Tensor = self.head(states[:, -1])
        return head


def sequence_first() -> Case:
    """Its inputs have their samples in the second axis."""
    return Case(nn.Sequential(nn.Linear(6, 6), nn.GRU(6, 4)).eval(), torch.randn(5, 3, 6))


def lstm() -> Case:
    """Its hidden states have their samples in the second axis."""
    return Case(_Recurrent().eval(), torch.randn(4, 5, 6))


class _Pooled(nn.Module):
    """An encoder of torch's own, and the mean of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(61, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)
        self.counts_padding = False

    def forward(self, tokens: torch.Tensor, **kwargs: Any) -> Any:
        padding = kwargs["src_key_padding_mask"]
        states = self.encoder(self.embed(tokens), src_key_padding_mask=padding)
        real = torch.ones_like(padding) if self.counts_padding else ~padding
        states = torch.where(real[..., None], states, 0.0)
        return self.head(states.sum(1) / real.sum(1, keepdim=True))


def pooled() -> Case:
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[2, 4:] = True
    inputs = {"tokens": torch.randint(1, 61, (3, 6)), "src_key_padding_mask": padding}
    return Case(_Pooled().eval(), inputs)


def _changes(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Case], None]:
    """Let a module return something else."""

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (change(output[0]), *output[1:])
        return change(output)

    def plant(case: Case) -> None:
        case.model.get_submodule(name).register_forward_hook(hook)

    return plant


def _flagged(name: str) -> Callable[[Case], None]:
    return lambda case: setattr(case.model, name, True)


def _without_mask(case: Case) -> None:
    def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return args, {**kwargs, "attention_mask": None}

    attention = case.model.get_submodule("model.layers.0.self_attn")
    attention.register_forward_pre_hook(hook, with_kwargs=True)


def _leaks(states: torch.Tensor) -> torch.Tensor:
    """The first token also sees the sample before."""
    leaked = states.clone()
    leaked[:, 0] += 0.05 * states.roll(1, 0)[:, 0]
    return leaked


def _over_capacity(states: torch.Tensor) -> torch.Tensor:
    """A mixture's capacity, in tokens of the whole batch: those beyond are dropped."""
    kept = torch.arange(states.shape[0] * states.shape[1]) < 16
    return states * kept.view(*states.shape[:2], 1)


def _kept(case: Case) -> None:
    seen: list[torch.Tensor] = []

    def keeps(states: torch.Tensor) -> torch.Tensor:
        seen.append(states.mean())
        return states if len(seen) == 1 else states + 0.01 * seen[-2]

    _changes("0", keeps)(case)


def _by_threads(states: torch.Tensor) -> torch.Tensor:
    """A loop cut for the threads, whose tail is lost."""
    end = states.shape[1] // torch.get_num_threads() * torch.get_num_threads()
    return torch.cat([states[:, :end], torch.zeros_like(states[:, end:])], 1)


class BlockNorm(nn.Module):
    """A norm whose kernel takes larger blocks from so many rows on: the sums have another order
    then, or are made in a half type."""

    def __init__(self, width: int, in_half: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.in_half = in_half

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        many = x.shape[:-1].numel() >= 256
        squares = x.double().square() if x.dtype == torch.float64 else x.float().square()
        if many and self.in_half:
            squares = squares.bfloat16()
        blocks = squares.view(*x.shape[:-1], 8 if many else 2, -1).sum(-1).sum(-1, keepdim=True)
        scale = (blocks.to(x.dtype) / x.shape[-1] + 1e-6).rsqrt()
        normed: torch.Tensor = x * scale * self.weight
        return normed


def blocks(in_half: bool = False) -> Case:
    """Its batch has 240 tokens, a larger one 480."""
    torch.manual_seed(5)
    layers = nn.Linear(24, 24), BlockNorm(24, in_half), nn.Linear(24, 5)
    return Case(nn.Sequential(*layers).eval(), torch.randn(4, 60, 24))


def _sees_padding(case: Case) -> None:
    """The norm's statistics are those of all tokens, padding too."""
    _changes("encoder.layers.0", lambda states: states - states.mean(1, keepdim=True))(case)


def _shifted_by_one(states: torch.Tensor) -> torch.Tensor:
    """What a cache of another batch's slots gives: each sample's is the one before."""
    return 0.9 * states + 0.1 * states.roll(1, 0)


class BatchFault(NamedTuple):
    """A fault of a model, in which runs it shows, and where it begins."""

    model: Callable[[], Case]
    plant: Callable[[Case], None]
    shows: Variation
    place: str


BATCH_FAULTS = {
    "reduction over the batch": BatchFault(
        llama,
        _changes("model.layers.1.mlp", lambda states: states - 0.01 * states.mean(0)),
        Variation.ALONE,
        "model.layers.1.mlp",
    ),
    "scale of the whole batch": BatchFault(
        cnn,
        _changes("2", lambda states: (states / states.max() * 127).round() * states.max() / 127),
        Variation.ALONE,
        "2",
    ),
    "attention leaks over samples": BatchFault(
        llama,
        _changes("model.layers.0.self_attn", _leaks),
        Variation.ALONE,
        "model.layers.0.self_attn",
    ),
    "capacity of the whole batch": BatchFault(
        llama, _changes("model.layers.0.mlp", _over_capacity), Variation.ALONE, "model.layers.0.mlp"
    ),
    "mask that ignores padding": BatchFault(
        lambda: llama(left=True), _without_mask, Variation.LEFT, "model.layers.0.self_attn.o_proj"
    ),
    "positions that count padding": BatchFault(
        gpt2, lambda case: None, Variation.UNPADDED, "transformer.wpe"
    ),
    "mean over padding": BatchFault(pooled, _flagged("counts_padding"), Variation.RIGHT, "head"),
    "state kept between calls": BatchFault(cnn, _kept, Variation.LATER, "0"),
    "hidden state kept between calls": BatchFault(lstm, _flagged("keeps"), Variation.LATER, "lstm"),
    "tail lost between threads": BatchFault(
        cnn, _changes("5", _by_threads), Variation.THREADS, "5"
    ),
    "larger blocks in a half type": BatchFault(
        lambda: blocks(in_half=True), lambda case: None, Variation.MORE, "1"
    ),
    "statistics over padding": BatchFault(
        pooled, _sees_padding, Variation.RIGHT, "encoder.layers.0"
    ),
    "slots of another sample": BatchFault(
        cnn, _changes("0", _shifted_by_one), Variation.ALONE, "0"
    ),
    "norm over the batch": BatchFault(
        lstm, _changes("head", lambda states: states / states.norm()), Variation.ALONE, "head"
    ),
    "sort over the batch": BatchFault(
        lstm, _changes("head", lambda states: states.sort(0).values), Variation.ALONE, "head"
    ),
}

BATCH_CLEAN: dict[str, Callable[[], Case]] = {
    "llama": llama,
    "llama padded left": lambda: llama(left=True),
    "gpt2 with positions": gpt2_with_positions,
    "cnn": cnn,
    "lstm": lstm,
    "pooled": pooled,
    "sequence first": sequence_first,
    "larger blocks": blocks,
}


def clean(name: str) -> Case:
    return BATCH_CLEAN[name]()


def faulty(name: str) -> Case:
    fault = BATCH_FAULTS[name]
    case = fault.model()
    fault.plant(case)
    return case
