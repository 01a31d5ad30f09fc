"""A decoder of fused layers and tied embeddings, spread over ranks by hand, as Megatron does it.

Its tensors are plain: nothing but their shapes and values tells where they lie.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from fixtures.parallel import GROUPS, HEADS, INNER, LAYOUTS, WIDTH, Layout
from planted.expert_models import EXPERT_LAYOUTS
from planted.megatron_models import MEGATRON_LAYOUTS, MegatronLayout, has_megatron
from planted.pipeline_models import PIPELINES

#: All ranks have as many rows of it.
WORDS = 32
_EACH = WIDTH // HEADS


class Copied(torch.autograd.Function):
    """The value itself; its gradient is summed over the group."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad = grads[0].contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Reduced(torch.autograd.Function):
    """Summed over the group; its gradient goes on as it is."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        value = value.contiguous().clone()
        dist.all_reduce(value, group=group)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


class _Gathered(torch.autograd.Function):
    """The group's values side by side; of the gradient each rank takes its own part."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        parts = [torch.empty_like(value) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, value.contiguous(), group=group)
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        parts = grads[0].chunk(dist.get_world_size(ctx.group), -1)
        return parts[dist.get_rank(ctx.group)].contiguous(), None


def applied(function: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
    """One of these functions' value."""
    found: torch.Tensor = function.apply(value, group)
    return found


class Column(nn.Linear):
    """Each rank makes some of the outputs; of fused layers, some of each.

    Attributes:
        group: ``None`` on one device.
        parts: the widths of the fused layers.
    """

    group: Any = None

    def __init__(self, width: int, *parts: int, bias: bool = True) -> None:
        super().__init__(width, sum(parts), bias)
        self.parts = parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.copied(x), self.weight, self.bias)

    def copied(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.group is None else applied(Copied, x, self.group)


class Row(nn.Linear):
    """Each rank takes some of the inputs; its bias is added once, to the sum."""

    group: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.reduced(functional.linear(x, self.weight)) + self.bias

    def reduced(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.group is None else applied(Reduced, x, self.group)


class Words(nn.Embedding):
    """Each rank has some of the rows; what it has not is zero, and summed over the ranks."""

    group: Any = None
    first: int = 0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.group is None:
            return super().forward(tokens)
        own = tokens - self.first
        held = (own >= 0) & (own < len(self.weight))
        found = functional.embedding(own * held, self.weight) * held[..., None]
        return applied(Reduced, found, self.group)


class Head(nn.Module):
    """The logits, with the embedding's weight."""

    group: Any = None

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.group is None:
            return functional.linear(x, self.weight)
        found = functional.linear(applied(Copied, x, self.group), self.weight)
        return applied(_Gathered, found, self.group)


class FusedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # a bias of the keys has no gradient but rounding
        self.qkv = Column(WIDTH, WIDTH, GROUPS * _EACH, GROUPS * _EACH, bias=False)
        self.o = Row(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        mixed = self.qkv(x)
        shares = [part * mixed.shape[-1] // sum(self.qkv.parts) for part in self.qkv.parts]
        q, k, v = (
            part.reshape(rows, length, -1, _EACH).transpose(1, 2)
            for part in mixed.split(shares, -1)
        )
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(found.transpose(1, 2).reshape(rows, length, -1))  # type: ignore[no-any-return]


class FusedMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up = Column(WIDTH, INNER, INNER)
        self.act = nn.SiLU()
        self.down = Row(INNER, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(self.act(gate) * up)  # type: ignore[no-any-return]


class FusedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = FusedAttention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = FusedMlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class FusedDecoder(nn.Module):
    """As ``fixtures.parallel.Decoder``; its layers are fused, and its head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = Words(WORDS, WIDTH)
        self.blocks = nn.ModuleList(FusedBlock() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = Head(cast(nn.Parameter, self.embed.weight))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def by_hand(model: nn.Module, mesh: Any, interleaved: tuple[str, ...] = ("qkv", "gate_up")) -> Any:
    """Keep of each parameter what is this rank's.

    Args:
        interleaved: the fused layers of which each rank gets some of each part, as it must.
    """
    group, rank, ranks = mesh.get_group("tp"), mesh.get_local_rank("tp"), mesh.size(0)
    for name, module in model.named_modules():
        if isinstance(module, (Column, Row, Words, Head)):
            module.group = group
        if isinstance(module, Column):
            fused = name.rpartition(".")[2] in interleaved
            parts = module.parts if fused else (module.out_features,)
            for own, parameter in [*module.named_parameters()]:
                held = torch.split(parameter.data, [*parts])
                rows = torch.cat([part.chunk(ranks)[rank] for part in held])
                setattr(module, own, nn.Parameter(rows.clone()))
        if isinstance(module, Row):
            module.weight = nn.Parameter(module.weight.data.chunk(ranks, 1)[rank].clone())
        if isinstance(module, Words):
            module.first = rank * len(module.weight) // ranks
            module.weight = nn.Parameter(module.weight.data.chunk(ranks)[rank].clone())
    model.head.weight = model.embed.weight  # type: ignore[union-attr]
    return model


def fused_model(dtype: torch.dtype = torch.float32, seed: int = 5) -> FusedDecoder:
    """The model before it is spread: on every rank the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FusedDecoder().to(dtype)


def _mlp_alone(model: nn.Module, mesh: Any) -> nn.Module:
    """The MLPs and the head over more ranks than there are groups of keys."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan: dict[str, Any] = {"head": ColwiseParallel(output_layouts=Replicate())}
    for number in range(2):
        for name in ("gate", "up"):
            plan[f"blocks.{number}.mlp.{name}"] = ColwiseParallel()
        plan[f"blocks.{number}.mlp.down"] = RowwiseParallel()
    return parallelize_module(model, mesh["tp"], plan)


#: Those of the fixtures; one device that computes as FSDP2 with mixed precision does; a model that
#: is spread by hand; more ranks; and pipelines.
ALL_LAYOUTS: dict[str, Layout] = {
    **LAYOUTS,
    **EXPERT_LAYOUTS,
    "mixed_one": replace(LAYOUTS["fsdp2_bfloat16"], mesh={"dp": 1}),
    "fused_one": Layout(),
    "hand_tp2": Layout({"tp": 2}, by_hand),
    "tp4": Layout({"tp": 4}, _mlp_alone),
    "tp8": Layout({"tp": 8}, _mlp_alone),
    **(MEGATRON_LAYOUTS if has_megatron() else {}),
    **PIPELINES,
}


def ones(name: str) -> str:
    """The layout on one device, in float32."""
    layout = ALL_LAYOUTS[name]
    if isinstance(layout, MegatronLayout):
        return layout.one
    if kind := layout.transformer:
        return f"{kind}_one"
    if name in PIPELINES:
        return "tied_one" if name.startswith("tied") else "deep_one"
    if name in EXPERT_LAYOUTS:
        return f"{name.partition('_')[0]}_one"
    return "fused_one" if name in ("fused_one", "hand_tp2") else "one"
