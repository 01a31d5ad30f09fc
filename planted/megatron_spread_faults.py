"""Faults of Megatron's expert parallel and context parallel trainings."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from planted.megatron_faults import (
    as_released_loss,
    divided_by_own,
    experts_exchanged,
    finalized,
    on_module,
    on_ranks,
    output_of,
    unsynced,
    weight_of,
    with_loss,
)
from planted.megatron_models import forward_step
from planted.megatron_on_cpu import has_megatron
from planted.rank_faults import RankFault
from planted.rank_training import Run

_LAYER = "decoder.layers.{}."
_FIRST, _SECOND = (_LAYER.format(number) + "mlp" for number in (0, 1))
_FORWARD, _BACKWARD, _LOSS = ("forward",), ("backward",), ("loss",)
_GRADIENT = ("backward", "update")
_EXPERTS = 4
#: Ranks with rows of their own; and those that share out a sequence, too.
_SPREAD = ("megatron_ep2", "megatron_gathered_ep2")
_TOGETHER = "megatron_tp2ep2"


def _within(mlp: str) -> tuple[str, ...]:
    """A mixture's own code, its experts, and their layers."""
    experts = [f"{mlp}.experts.local_experts.{number}" for number in range(_EXPERTS)]
    layers = [f"{expert}.linear_fc{layer}" for expert in experts for layer in (1, 2)]
    return (mlp, f"{mlp}.experts", *experts, *layers)


def _dispatched(change: Callable[..., Any], *names: str) -> Callable[[Any], None]:
    """Another step of a mixture's dispatcher, made of its own; whichever release's name it has."""

    def plant(mixture: Any) -> None:
        dispatcher = mixture.token_dispatcher
        name = next(each for each in names if hasattr(dispatcher, each))
        setattr(dispatcher, name, change(getattr(dispatcher, name)))

    return plant


def _to_neighbour(own: Callable[..., Any]) -> Callable[..., Any]:
    """Tokens go to the experts of the next rank."""

    def wrong(tokens: Any, *routing: Any) -> Any:
        # the map and the probabilities, in either order
        return own(tokens, *(each.roll(_EXPERTS // 2, -1) for each in routing))

    return wrong


def _without_probabilities(own: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(*args: Any, **kwargs: Any) -> Any:
        tokens, counts, probs = own(*args, **kwargs)
        return tokens, counts, torch.ones_like(probs) + 0.0 * probs

    return wrong


def _not_sorted(mixture: Any) -> None:
    """What comes from the ranks is not put into the order of experts."""
    dispatcher = mixture.token_dispatcher
    for name in ("sort_input_by_local_experts", "restore_output_by_local_experts"):
        setattr(dispatcher, name, getattr(dispatcher, name).sort().values)


def _drops(router: Any) -> None:
    """Experts take no more than half of the tokens that they would take of equal shares."""
    router.config = copy.copy(router.config)
    router.config.moe_expert_capacity_factor = 0.5


def _aux_loss_times(factor: float) -> Callable[[Any], None]:
    def plant(router: Any) -> None:
        name = "attach_and_log_load_balancing_loss"
        attach = getattr(router, name)

        def wrong(activation: Any, coefficient: float, loss: Any, *args: Any, **kwargs: Any) -> Any:
            return attach(activation, coefficient, loss * factor, *args, **kwargs)

        setattr(router, name, wrong)

    return plant


def _experts_scaled(run: Run, finalize: Callable[..., None]) -> Callable[..., None]:
    """The gradients of experts are divided by the ranks that share them out."""

    def wrong(models: Any, *args: Any, **kwargs: Any) -> None:
        finalize(models, *args, **kwargs)
        for buffer in models[0].expert_parallel_buffers:
            buffer.scale_gradients(1.0 / run.ranks)

    return wrong


def _experts_as_replicas(run: Run, finalize: Callable[..., None]) -> Callable[..., None]:
    """The gradients of experts are averaged over ranks that have others."""

    def wrong(models: Any, *args: Any, **kwargs: Any) -> None:
        finalize(models, *args, **kwargs)
        for buffer in models[0].expert_parallel_buffers:
            dist.all_reduce(buffer.grad_data)
            buffer.scale_gradients(1.0 / run.ranks)

    return wrong


def _of_experts() -> Iterator[RankFault]:
    before = ("dispatch_preprocess", "token_permutation")
    after = ("dispatch_postprocess", "token_permutation")
    by_count = with_loss(lambda total, count: (total / count, count))
    for layout in (*_SPREAD, _TOGETHER):
        plant = on_module(_SECOND, _dispatched(_to_neighbour, *before))
        title = "experts of the next rank"
        yield RankFault(title, layout, _within(_SECOND), _FORWARD, plant)
        plant = on_module(_FIRST, _dispatched(_without_probabilities, *after))
        yield RankFault("without probabilities", layout, _within(_FIRST), _FORWARD, plant)
        name = f"{_SECOND}.router"
        plant = on_ranks((1,), weight_of(name, lambda weight: weight * 1.1))
        yield RankFault("other router", layout, (name,), _FORWARD, plant, (1,))
        name = f"{_FIRST}.router"
        plant = on_ranks((1,), on_module(name, _drops))
        yield RankFault("tokens dropped", layout, (name,), _FORWARD, plant, (1,))
        plant = on_ranks((1,), experts_exchanged(f"{_SECOND}.experts"))
        where = _within(_SECOND)[1:]
        yield RankFault("experts exchanged", layout, where, _FORWARD, plant, (1,))
        experts = (*_within(_FIRST)[1:], *_within(_SECOND)[1:])
        yield RankFault(
            "gradients of experts scaled", layout, experts, _GRADIENT, finalized(_experts_scaled)
        )
        yield RankFault(
            "experts as replicas", layout, experts, _GRADIENT, finalized(_experts_as_replicas)
        )
        name = f"{_FIRST}.experts.local_experts.2.linear_fc2"
        plant = output_of(name, lambda value: value * 1.01)
        yield RankFault("x 1.01", layout, (name,), _FORWARD, plant, (1,), arithmetic=True)
        yield RankFault("divided twice", layout, ("*", ""), _LOSS, by_count)
    for layout in ("megatron_ep2", _TOGETHER):
        plant = on_module(_FIRST, _not_sorted)
        yield RankFault("not sorted by expert", layout, _within(_FIRST), _FORWARD, plant)
    yield RankFault(
        "divided by own tokens",
        "megatron_ep2",
        ("*",),
        _GRADIENT,
        finalized(divided_by_own),
        real=8,
    )
    name = f"{_SECOND}.router"
    for layout in ("megatron_ep2", _TOGETHER):
        plant = on_module(name, _aux_loss_times(0.5))
        yield RankFault(
            "auxiliary loss by the microbatches again", layout, (name,), _GRADIENT, plant
        )


def _other_order(attention: Any) -> None:
    """Keys and values stay in the order of the ranks."""
    attention.order = lambda length, parts: torch.arange(length)


def _gradients_of_own(attention: Any) -> None:
    attention.sums_gradients = False


def _chunks_exchanged(value: torch.Tensor) -> torch.Tensor:
    return value.roll(len(value) // 2, 0)


def _last_token(value: torch.Tensor) -> torch.Tensor:
    scale = torch.ones(len(value), *[1] * (value.dim() - 1))
    scale[-1] = 0.5
    return value * scale


def _with_mean(factor: float) -> Callable[[Run], None]:
    """A loss function of one's own that gives a mean, times a factor."""

    def plant(run: Run) -> None:
        def wrong(batches: Any, model: Any) -> Any:
            output, loss_func = forward_step(batches, model)

            def wrong_loss(values: torch.Tensor) -> Any:
                mean, told = loss_func(values)
                return mean * factor, told

            return output, wrong_loss

        run.forward_step = wrong  # type: ignore[attr-defined]

    return plant


def _same_tokens(run: Run) -> None:
    """Rank 1 is given what rank 0 is."""

    def wrong(batches: Any, model: Any) -> Any:
        batch = next(batches)
        for name in ("tokens", "labels", "loss_mask", "position_ids"):
            setattr(batch, name, own := getattr(batch, name).contiguous())
            dist.broadcast(own, 0)
        return forward_step(iter([batch]), model)

    run.forward_step = wrong  # type: ignore[attr-defined]


def _of_context() -> Iterator[RankFault]:
    """Real ones are of facts/ranks_bugs.md: 6 is Megatron's commit 5946e24b37, which 0.11.0 lacks:
    a loss function that gives a mean was not multiplied by the context parallel ranks."""
    attention = [_LAYER.format(number) + "self_attention" for number in (0, 1)]
    core = f"{attention[1]}.core_attention"
    inside = (core, f"{core}.scale_mask_softmax")
    for layout, ranks in (("megatron_cp2", ()), ("megatron_mean_cp2", (1,))):
        plant = on_ranks(ranks or (0, 1), on_module(core, _other_order))
        yield RankFault("keys in the ranks' order", layout, inside, _FORWARD, plant, ranks)
    core = f"{attention[0]}.core_attention"
    plant = on_module(core, _gradients_of_own)
    for layout in ("megatron_cp2", "megatron_moe_cp2"):
        where = (core, attention[0])
        yield RankFault("gradients of keys not summed", layout, where, _BACKWARD, plant)
    for rank in (0, 1):
        plant = on_ranks((rank,), output_of("rotary_pos_emb", _chunks_exchanged))
        yield RankFault("other rope", "megatron_cp2", ("rotary_pos_emb",), _FORWARD, plant, (rank,))
    # the loss or its reduction: each is as far from golden as the other
    stages = (*_LOSS, *_GRADIENT)
    for title, factor in (("not times the ranks", 0.5), ("times the ranks twice", 2.0)):
        yield RankFault(title, "megatron_mean_cp2", ("*", ""), stages, _with_mean(factor), real=6)
    by_ranks = with_loss(lambda total, count: (total * 2, count))
    yield RankFault("sum times the ranks", "megatron_cp2", ("*", ""), stages, by_ranks, real=6)
    by_count = with_loss(lambda total, count: (total / count, count))
    yield RankFault("divided twice", "megatron_cp2", ("*", ""), _LOSS, by_count)
    for layout in ("megatron_cp2", "megatron_moe_cp2"):
        plant = finalized(divided_by_own)
        yield RankFault("divided by own tokens", layout, ("*",), _GRADIENT, plant)
    for layout in ("megatron_cp2", "megatron_mean_cp2"):
        yield RankFault("gradients not reduced", layout, ("*",), _GRADIENT, finalized(unsynced))
    yield RankFault("same tokens", "megatron_cp2", ("", "*"), ("input",), _same_tokens)
    routers = (f"{_FIRST}.router", f"{_SECOND}.router")

    def as_released(run: Run) -> None:
        for name in routers:
            as_released_loss(run.module(name))

    title = "auxiliary loss of a share of the tokens"
    for layout in ("megatron_moe_cp2", _TOGETHER):
        yield RankFault(title, layout, routers, _GRADIENT, as_released, real=4)
    fc1 = f"{_SECOND}.linear_fc1"
    norm = _LAYER.format(1) + "input_layernorm"
    kinds = {
        "x 1.01": (fc1, output_of(fc1, lambda value: value * 1.01)),
        "last token x 0.5": (norm, output_of(norm, _last_token)),
    }
    for layout, rank in (("megatron_cp2", 1), ("megatron_mean_cp2", 0)):
        for title, (name, plant) in kinds.items():
            own = on_ranks((rank,), plant)
            yield RankFault(title, layout, (name,), _FORWARD, own, (rank,), arithmetic=True)


MEGATRON_SPREAD_FAULTS: tuple[RankFault, ...] = (
    (*_of_experts(), *_of_context()) if has_megatron() else ()
)
