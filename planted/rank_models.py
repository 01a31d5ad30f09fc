"""A decoder of fused layers and tied embeddings, spread over ranks by hand, as Megatron does it.

Its tensors are plain: nothing but their shapes and values tells where they lie.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from fixtures.parallel import GROUPS, HEADS, INNER, LAYOUTS, WIDTH, Layout
from planted.context_models import CONTEXT_LAYOUTS, ContextLayout
from planted.expert_models import EXPERT_LAYOUTS
from planted.megatron_models import MEGATRON_LAYOUTS, MegatronLayout
from planted.megatron_on_cpu import has_megatron
from planted.pipeline_models import PIPELINES
from planted.sharded_layers import Column, Head, Row, Words

#: All ranks have as many rows of it.
WORDS = 32
_EACH = WIDTH // HEADS


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
    **CONTEXT_LAYOUTS,
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
    if isinstance(layout, ContextLayout):
        return "context_ids_one" if layout.ids else "context_one"
    if isinstance(layout, MegatronLayout):
        return layout.one
    if kind := layout.transformer:
        return f"{kind}_one"
    if name in PIPELINES:
        return "tied_one" if name.startswith("tied") else "deep_one"
    if name in EXPERT_LAYOUTS:
        return f"{name.partition('_')[0]}_one"
    return "fused_one" if name in ("fused_one", "hand_tp2") else "one"
