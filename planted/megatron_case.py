"""Megatron's GPT as cases, one of the whole model and one of each layout.

torchrun --nproc-per-node 2 -m accucompare locate planted/megatron_case.py:sp2 \\
    --golden-case planted/megatron_case.py:one --device cpu --dtype bfloat16
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path[:0] = [str(Path(__file__).parents[1])]

from accucompare import Case  # noqa: E402
from planted.megatron_models import MEGATRON_LAYOUTS, MegatronLayout, megatron_model, microbatches  # noqa: E402


def _sum_terms(model: Any, layout: MegatronLayout) -> None:
    """Sum the gradients that ranks have terms of, as Megatron does before its own updates."""
    from megatron.core import parallel_state

    group = parallel_state.get_tensor_model_parallel_group()
    for name, each in model.named_parameters():
        of_heads = name.endswith(("q_layernorm.weight", "k_layernorm.weight"))
        if of_heads or (layout.sequence and getattr(each, "sequence_parallel", False)):
            each.register_post_accumulate_grad_hook(
                lambda own: dist.all_reduce(own.grad, group=group)
            )


def _case(name: str, change: Callable[[Any], None] = lambda model: None) -> Case:
    layout = MEGATRON_LAYOUTS[name]
    if layout.ranks > 1:
        dist.init_process_group("gloo")
    model = megatron_model(layout, [torch.float32], seed=5).module
    if layout.size("tp") > 1:
        _sum_terms(model, layout)
    change(model)
    tokens, labels = layout.whole_batch(0)
    batch = next(microbatches(tokens, labels, rows=4))
    given = {
        "input_ids": batch.tokens,
        "position_ids": batch.position_ids,
        "attention_mask": batch.attention_mask,
        "labels": batch.labels,
    }

    def loss(output: torch.Tensor) -> torch.Tensor:
        mask: torch.Tensor = batch.loss_mask
        return (output.float() * mask).sum() / mask.sum()

    return Case(model, given, loss, torch.optim.AdamW(model.parameters(), 0.01, foreach=False))


def one() -> Case:
    return _case("megatron_one")


def tp2() -> Case:
    return _case("megatron_tp2")


def sp2() -> Case:
    return _case("megatron_sp2")


def moe_one() -> Case:
    return _case("megatron_moe_one")


def moe_sp2() -> Case:
    return _case("megatron_moe_sp2")


def faulty_sp2() -> Case:
    """Rank 1's second layer takes gate for up."""

    def exchange(model: Any) -> None:
        if dist.get_rank() == 1:
            weight = model.decoder.layers[1].mlp.linear_fc1.weight.data
            weight.copy_(torch.cat([*weight.chunk(2)][::-1]))

    return _case("megatron_sp2", exchange)


def faulty_tp2() -> Case:
    """A sum over the ranks is missing, of a product that is laid out otherwise."""

    def lose(model: Any) -> None:
        layer = model.decoder.layers[0].self_attention.linear_proj
        own = layer._forward_impl
        layer._forward_impl = lambda *args, **kwargs: (
            own(*args, **kwargs).transpose(0, -1).contiguous().transpose(0, -1)
        )

    return _case("megatron_tp2", lose)
