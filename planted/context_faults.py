"""Faults of a training whose ranks share out the sequence, planted as user code would contain
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from fixtures.parallel import Layout
from planted.context_models import LENGTH, CoreAttention, Gathered, Passed, by_context
from planted.rank_faults import Plant, RankFault, divided, given
from planted.rank_training import Batch, Run, token_count
from planted.sharded_layers import applied
from planted.training_faults import changed, given_as, wrap

_FORWARD, _BACKWARD, _GRADIENT = ("forward",), ("backward",), ("backward", "update")
_INPUT, _LOSS, _NORM = ("input",), ("loss",), ("norm",)
#: The attention of the first block, and what it calls.
_CORE = "blocks.0.attention.core"
_ATTENTION = (_CORE, f"{_CORE}.part")


def _on(rank: int, plant: Plant) -> Plant:
    def on_rank(run: Run) -> None:
        if run.rank == rank:
            plant(run)

    return on_rank


def _core(change: Callable[[CoreAttention], None], name: str = _CORE) -> Plant:
    return lambda run: change(run.module(name))


# positions and masks


def _positions(change: Callable[[Run, torch.Tensor], torch.Tensor]) -> Plant:
    """The model makes other positions of its tokens."""

    def plant(run: Run) -> None:
        model: Any = run.model.module  # DDP's
        model.own = change(run, model.own)

    return plant


def _local(run: Run, own: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(own))


def _in_order(run: Run, own: torch.Tensor) -> torch.Tensor:
    """As if each rank had one chunk."""
    parts: Any = run.layout
    return torch.arange(LENGTH).chunk(parts.parts)[run.place % parts.parts]


def _local_ids(run: Run, whole: Batch) -> Batch:
    tokens, positions, *rest = run.own(whole)
    return tokens, torch.arange(positions.shape[1]).expand_as(positions).contiguous(), *rest


def _uncut_mask(run: Run, whole: Batch) -> Batch:
    tokens, positions, real, labels = run.own(whole)
    rows: Any = run.own((whole[2],) * 4, run.place - run.place % 2)[0]
    return tokens, positions, whole[2][: len(rows), : real.shape[1]].contiguous(), labels


def _all_seen(core: CoreAttention) -> None:
    """Every key is looked at, those of later tokens too."""
    core.seen = lambda queries, keys, real: real[:, None].expand(  # type: ignore[method-assign]
        -1, queries.shape[1], -1
    )


def _mask_of_other_chunk(core: CoreAttention) -> None:
    """The causal mask of the rank's own chunk, as if its first token were the sequence's."""
    seen = core.seen
    core.seen = lambda queries, keys, real: seen(  # type: ignore[method-assign]
        queries - queries.min(), keys, real
    )


def _padding_seen(core: CoreAttention) -> None:
    seen = core.seen
    core.seen = lambda queries, keys, real: seen(  # type: ignore[method-assign]
        queries, keys, torch.ones_like(real)
    )


# keys and values


def _not_received(core: CoreAttention) -> None:
    """The rank takes part in the ring, and goes on with the keys and values that it had."""
    passed = core.passed
    core.passed = lambda value: value + 0 * passed(value)  # type: ignore[method-assign]


def _merged_evenly(core: CoreAttention) -> None:
    core.merged = lambda found, total, own, sums: (  # type: ignore[method-assign]
        (found + own) / 2,
        torch.logaddexp(total, sums),
    )


def _merged_without_sum(core: CoreAttention) -> None:
    """The sums that were divided by are taken for the larger of the two."""

    def merged(found: Any, total: Any, own: Any, sums: Any) -> Any:
        both = torch.maximum(total, sums)
        mixed = found * (total - both).exp() + own * (sums - both).exp()
        return mixed.to(found.dtype), both

    core.merged = merged  # type: ignore[method-assign]


def _sum_not_kept(core: CoreAttention) -> None:
    merged = core.merged
    core.merged = lambda found, total, own, sums: (  # type: ignore[method-assign]
        merged(found, total, own, sums)[0],
        total,
    )


def _in_ranks_order(core: CoreAttention) -> None:
    """Keys and values stay in the ranks' order; positions do not."""
    core.joined = lambda value: applied(  # type: ignore[method-assign]
        Gathered, value, core.group
    )


class _Unsummed(torch.autograd.Function):
    """Gathered; each rank keeps its own term of its part's gradient."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        whole: torch.Tensor = Gathered.forward(ctx, value, group)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        parts = grads[0].chunk(dist.get_world_size(ctx.group), -2)
        return parts[dist.get_rank(ctx.group)].contiguous(), None


def _gradients_unsummed(core: CoreAttention) -> None:
    core.joined = lambda value: core.natural(  # type: ignore[method-assign]
        applied(_Unsummed, value, core.group)
    )


class _Kept(torch.autograd.Function):
    """Passed around; the gradient stays where it is."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        received: torch.Tensor = Passed.forward(ctx, value, group)
        return received

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


def _gradients_kept(core: CoreAttention) -> None:
    core.passed = lambda value: applied(  # type: ignore[method-assign]
        _Kept if value.requires_grad else Passed, value, core.group
    )


def _heads_turned(core: CoreAttention) -> None:
    """The heads come back from the all-to-all in another order."""
    back = core.back
    core.back = lambda value: back(value).roll(1, 1)  # type: ignore[method-assign]


def _scattered_in_other_order(core: CoreAttention) -> None:
    """The tokens come out of the all-to-all in another order of the ranks."""
    scattered = core.scattered
    core.scattered = lambda value: scattered(value).roll(  # type: ignore[method-assign]
        value.shape[2], 2
    )


# the loop


def _never_synced(run: Run) -> None:
    run.unsynced = lambda step, last: True


def _ignored(*names: str) -> Callable[[Layout], Layout]:
    """DDP is told to ignore parameters."""

    def built(layout: Any) -> Any:
        def spread(model: nn.Module, mesh: Any) -> nn.Module:
            wrapper: Any = nn.parallel.DistributedDataParallel
            wrapper._set_params_and_buffers_to_ignore_for_model(model, names)
            return by_context(model, mesh, layout)

        return replace(layout, spread=spread)

    return built


def _synced_over_parts_only(layout: Any) -> Any:
    def spread(model: nn.Module, mesh: Any) -> nn.Module:
        made = by_context(model, mesh, layout)
        return nn.parallel.DistributedDataParallel(made.module, process_group=mesh.get_group("cp"))

    return replace(layout, spread=spread)


def _nothing(run: Run) -> None:
    pass


def _shifted_in_part(run: Run, whole: Batch) -> Batch:
    """Each token's label is the next one that the rank has; the part's last one has none."""
    *given, labels = run.own(whole)
    after = torch.full_like(labels, -100)
    after[:, :-1] = given[0][:, 1:]
    return *given, torch.where(labels == -100, labels, after)


def _chunk_twice(run: Run, whole: Batch) -> Batch:
    parts: Any = run.layout
    return run.own(whole, run.place - run.place % parts.parts)


def _stale(name: str) -> Plant:
    def plant(run: Run) -> None:
        kept: list[torch.Tensor] = []

        def keep(run: Run, step: int) -> None:
            kept[:] = [run.parameter(name).detach().clone()]

        def back(run: Run, step: int) -> None:
            run.parameter(name).detach().copy_(kept[0])

        run.before_update.append(keep)
        run.after_update.append(back)

    return plant


# arithmetic of one rank


def _output(name: str, change: Callable[[Any], Any]) -> Plant:
    def plant(run: Run) -> None:
        run.module(name).register_forward_hook(lambda module, args, output: change(output))

    return plant


def _gelu(run: Run) -> None:
    run.module("blocks.1.mlp.act").forward = functional.gelu


def _eps(run: Run) -> None:
    run.module("blocks.1.norm2").eps = 1e-3


def _last_token(output: torch.Tensor) -> torch.Tensor:
    scale = torch.ones(output.shape[-2], 1, dtype=output.dtype)
    scale[-1] = 0.5
    return output * scale


def _weight_gradient(run: Run) -> None:
    module = run.module("blocks.1.mlp.down")

    def around(forward: Callable[..., Any]) -> Any:
        def wrong(*args: Any) -> Any:
            with given_as(module, "weight", lambda each: changed(each, lambda grad: grad * 1.05)):
                return forward(*args)

        return wrong

    wrap(module, around)


def _own_part_kept(run: Run) -> None:
    """A rank of tensor parallelism goes on with its own term of the sum."""
    row = run.module("blocks.1.mlp.down")
    reduced = row.reduced
    row.reduced = lambda x: x + 0 * reduced(x)


# the catalogue


def _of_positions() -> Iterator[RankFault]:
    where = "rotary", ""
    for layout, ranks in (("cp2", (1,)), ("ulysses4", ()), ("ring4", ())):
        title = "positions local"
        yield RankFault(title, layout, where, _FORWARD, _positions(_local), ranks)
    title = "positions local on one rank"
    yield RankFault(title, "cp2_zigzag", where, _FORWARD, _on(1, _positions(_local)), (1,))
    yield RankFault(title, "ring2_ids", ("",), _INPUT, _on(1, given(_local_ids)), (1,))
    for layout in ("cp2_zigzag", "ring4", "cp2tp2"):
        title = "positions not in a zigzag"
        yield RankFault(title, layout, where, _FORWARD, _positions(_in_order))
    title = "mask of padding not cut"
    yield RankFault(title, "ring2_ids", ("",), _INPUT, _on(1, given(_uncut_mask)), (1,))
    for layout, rank in (("cp2", 1), ("ring2_ids", 1), ("cp2_bfloat16", 1)):
        plant = _on(rank, _core(_mask_of_other_chunk))
        title = "causal mask of another chunk"
        yield RankFault(title, layout, _ATTENTION, _FORWARD, plant, (rank,))
    for layout in ("ring4", "ulysses2_ids"):
        yield RankFault("no causal mask", layout, _ATTENTION, _FORWARD, _core(_all_seen))


def _of_attention() -> Iterator[RankFault]:
    for layout, rank in (("ring2_ids", 1), ("ring4", 2), ("dp2cp2_ids", 3)):
        plant = _on(rank, _core(_not_received))
        title = "keys and values not received"
        yield RankFault(title, layout, _ATTENTION, _FORWARD, plant, (rank,))
    for layout in ("ring2_ids", "ring4"):
        yield RankFault("parts merged evenly", layout, _ATTENTION, _FORWARD, _core(_merged_evenly))
        plant = _core(_merged_without_sum)
        yield RankFault("parts merged without their sum", layout, _ATTENTION, _FORWARD, plant)
    yield RankFault("sum of parts not kept", "ring4", _ATTENTION, _FORWARD, _core(_sum_not_kept))
    for layout in ("cp2_zigzag", "cp2tp2"):
        plant = _core(_in_ranks_order)
        title = "keys and values in the ranks' order"
        yield RankFault(title, layout, _ATTENTION, _FORWARD, plant)
    for layout in ("cp2", "cp2_zigzag"):
        plant = _core(_gradients_unsummed)
        title = "gradients of keys and values not summed"
        yield RankFault(title, layout, _ATTENTION, _BACKWARD, plant)
    plant = _core(_gradients_kept)
    title = "gradients of keys and values not passed back"
    yield RankFault(title, "ring4", _ATTENTION, _BACKWARD, plant)
    for layout in ("ulysses2_ids", "ulysses4"):
        yield RankFault("heads exchanged", layout, _ATTENTION, _FORWARD, _core(_heads_turned))
        plant = _core(_scattered_in_other_order)
        yield RankFault("tokens exchanged", layout, _ATTENTION, _FORWARD, plant)


def _of_the_loop() -> Iterator[RankFault]:
    for layout in ("cp2", "ring4"):
        title = "gradients not summed over parts"
        yield RankFault(title, layout, ("*",), _GRADIENT, _never_synced)
    for name in ("blocks.0.attention.k", "blocks.1.norm1"):
        built = _ignored(f"{name}.weight")
        title = "parameter ignored by DDP"
        yield RankFault(title, "cp2_zigzag", (name,), _GRADIENT, _nothing, built=built)
    title, built = "gradients not summed over rows", _synced_over_parts_only
    yield RankFault(title, "dp2cp2_ids", ("*",), _GRADIENT, _nothing, built=built)
    for layout, parts in (("cp2", 2), ("ring4", 4)):
        plant = divided(lambda run, whole, own: (token_count(whole), 1))
        yield RankFault("divided by CP twice", layout, ("", "*"), _LOSS + _NORM, plant)
        plant = divided(lambda run, whole, own, n=parts: (token_count(whole), run.ranks * n))  # type: ignore[misc]
        title = "loss of a token times CP"
        yield RankFault(title, layout, ("", "*"), _LOSS + _NORM, plant, real=6)
    for layout in ("cp2", "ring2_ids", "dp2cp2_ids"):
        plant = divided(lambda run, whole, own: (max(token_count(own), 1), 1))
        yield RankFault("mean over own tokens", layout, ("",), _LOSS, plant, real=15)
    plant = given(_shifted_in_part)
    title = "labels shifted in the part"
    yield RankFault(title, "cp2", ("",), _LOSS, plant, (0,))
    yield RankFault(title, "ring2_ids", ("",), _LOSS, plant)
    for layout, rank in (("cp2", 1), ("cp2_zigzag", 1), ("ring4", 2)):
        plant = _on(rank, given(_chunk_twice))
        yield RankFault("a chunk given twice", layout, ("",), _INPUT, plant, (rank,))
    stages = ("between", "forward", "update")
    for layout, name in (("cp2_zigzag", "blocks.0.attention.v"), ("ring4", "blocks.1.mlp.up")):
        plant = _on(1, _stale(f"{name}.weight"))
        yield RankFault("stale weight", layout, (name,), stages, plant, (1,))


def _of_one_rank() -> Iterator[RankFault]:
    kinds: dict[str, tuple[str, Plant]] = {
        "x 1.01": ("blocks.0.mlp.act", _output("blocks.0.mlp.act", lambda each: each * 1.01)),
        "GELU": ("blocks.1.mlp.act", _gelu),
        "eps 1e-3": ("blocks.1.norm2", _eps),
        "last token x 0.5": ("blocks.0.norm2", _output("blocks.0.norm2", _last_token)),
        "keys x 1.01": (
            "blocks.1.attention.k",
            _output("blocks.1.attention.k", lambda each: each * 1.01),
        ),
    }
    for layout, rank, chosen in (
        ("cp2", 1, ["x 1.01", "last token x 0.5", "keys x 1.01"]),
        ("cp2_zigzag", 0, ["GELU", "eps 1e-3", "keys x 1.01"]),
        ("ring4", 2, ["x 1.01", "last token x 0.5"]),
        ("ulysses2_ids", 1, ["GELU", "keys x 1.01"]),
        ("dp2cp2_ids", 3, ["eps 1e-3", "last token x 0.5"]),
        ("cp2tp2", 3, ["GELU", "keys x 1.01"]),
        ("cp2_bfloat16", 1, ["GELU", "last token x 0.5"]),
    ):
        for kind in chosen:
            name, plant = kinds[kind]
            own = _on(rank, plant)
            yield RankFault(kind, layout, (name,), _FORWARD, own, (rank,), arithmetic=True)
    name = "blocks.1.mlp.down"
    title = "gradient of the weight x 1.05"
    plant = _on(1, _weight_gradient)
    yield RankFault(title, "cp2", (name,), _BACKWARD, plant, arithmetic=True)
    plant = _on(2, _own_part_kept)
    yield RankFault("own part kept", "cp2tp2", (name,), _FORWARD, plant, (2,))


CONTEXT_FAULTS = (*_of_positions(), *_of_attention(), *_of_the_loop(), *_of_one_rank())
