"""Faults of trainings by Megatron, planted as user code, or Megatron itself, contains them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

from planted.megatron_models import MegatronLayout, forward_step, megatron_optimizer
from planted.megatron_on_cpu import has_megatron
from planted.rank_faults import Plant, RankFault
from planted.rank_training import Batch, Run
from planted.training_faults import changed, wrap

_LAYER = "decoder.layers.{}."
_FORWARD, _BACKWARD = ("forward",), ("backward",)
_GRADIENT = ("backward", "update")
_UPDATE = ("update", "between")
_LOSS = ("loss",)
_NORM = ("norm",)


def on_ranks(ranks: tuple[int, ...], plant: Plant) -> Plant:
    return lambda run: plant(run) if run.rank in ranks else None


def on_module(name: str, plant: Callable[[Any], None]) -> Plant:
    """A fault of a module, on the ranks that have it."""

    def planted(run: Run) -> None:
        number = own_name(run, name)
        if number is not None:
            plant(run.module(number))

    return planted


def own_name(run: Run, name: str) -> str | None:
    """A module's name on this rank; ``None`` if it is on others."""
    layout = run.layout
    assert isinstance(layout, MegatronLayout)
    stages, parts = layout.size("pp"), name.split(".")
    if stages > 1 and parts[:2] == ["decoder", "layers"]:
        stage, number = divmod(int(parts[2]), 2 // stages)
        if stage != run.along("pp"):
            return None
        parts[2] = str(number)
    if layout.expert_ranks > 1 and "local_experts" in parts:
        place = parts.index("local_experts") + 1
        holder, number = divmod(int(parts[place]), layout.experts // layout.expert_ranks)
        if holder != run.rank:
            return None
        parts[place] = str(number)
    return ".".join(parts)


def output_of(name: str, change: Callable[[Any], Any]) -> Plant:
    """Another first output."""

    def plant(module: Any) -> None:
        def around(forward: Callable[..., Any]) -> Callable[..., Any]:
            def wrong(*args: Any, **kwargs: Any) -> Any:
                made = forward(*args, **kwargs)
                return (change(made[0]), *made[1:]) if isinstance(made, tuple) else change(made)

            return wrong

        wrap(module, around)

    return on_module(name, plant)


def weight_of(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Plant:
    def plant(module: Any) -> None:
        module.weight.data.copy_(change(module.weight.data.clone()))

    return on_module(name, plant)


def _attribute(name: str, attribute: str, make: Callable[[Any], Any]) -> Plant:
    def plant(module: Any) -> None:
        setattr(module, attribute, make(getattr(module, attribute)))

    return on_module(name, plant)


def finalized(around: Callable[[Run, Callable[..., None]], Callable[..., None]]) -> Plant:
    """Another way to finish the gradients of a step, made of Megatron's own."""

    def plant(run: Run) -> None:
        config = run.model.config
        config.finalize_model_grads_func = around(run, config.finalize_model_grads_func)

    return plant


def _scaled_again(run: Run, finalize: Callable[..., None]) -> Callable[..., None]:
    def wrong(models: Any, *args: Any, **kwargs: Any) -> None:
        finalize(models, *args, **kwargs)
        models[0].scale_gradients(0.5)

    return wrong


def _not_tied(run: Run, finalize: Callable[..., None]) -> Callable[..., None]:
    def wrong(models: Any, *args: Any, **kwargs: Any) -> None:
        inner = models[0].module
        inner.share_embeddings_and_output_weights = False
        finalize(models, *args, **kwargs)
        inner.share_embeddings_and_output_weights = True

    return wrong


def _without_qk_norms(run: Run, finalize: Callable[..., None]) -> Callable[..., None]:
    def wrong(models: Any, *args: Any, **kwargs: Any) -> None:
        run.model.config.qk_layernorm = False
        finalize(models, *args, **kwargs)
        run.model.config.qk_layernorm = True

    return wrong


def unsynced(run: Run, finalize: Callable[..., None]) -> Callable[..., None]:
    """The data-parallel reduction is left out."""

    def wrong(models: Any, num_tokens: Any = None, **kwargs: Any) -> None:
        models[0].finish_grad_sync = lambda *args, **kwargs: None
        finalize(models, num_tokens, **kwargs)

    return wrong


def divided_by_own(run: Run, finalize: Callable[..., None]) -> Callable[..., None]:
    """Each rank divides by its own tokens, then their mean is taken."""

    def wrong(models: Any, num_tokens: Any = None, **kwargs: Any) -> None:
        models[0].scale_gradients(1.0 / (float(num_tokens) * run.ranks))
        finalize(models, None, **kwargs)

    return wrong


def with_loss(change: Callable[[torch.Tensor, torch.Tensor], tuple[Any, Any]]) -> Plant:
    """Another loss function: it is given the sum and the tokens, and makes of them what Megatron
    is given."""

    def plant(run: Run) -> None:
        def wrong(batches: Any, model: Any) -> Any:
            output, loss_func = forward_step(batches, model)

            def wrong_loss(values: torch.Tensor) -> Any:
                total, count, told = loss_func(values)
                return (*change(total, count), told)

            return output, wrong_loss

        run.forward_step = wrong  # type: ignore[attr-defined]

    return plant


def _counting_padding(run: Run) -> None:
    """The labels of padding count, too."""

    def wrong(batches: Any, model: Any) -> Any:
        batch = next(batches)
        batch.loss_mask = torch.ones_like(batch.loss_mask)
        return forward_step(iter([batch]), model)

    run.forward_step = wrong  # type: ignore[attr-defined]


def _padding_not_masked(layer: Any) -> None:
    del layer.forward  # Megatron's own is its class's


def _noncontiguous(layer: Any) -> None:
    """The product's result is laid out otherwise; Megatron then leaves it unreduced."""
    own = layer._forward_impl
    layer._forward_impl = lambda *args, **kwargs: (
        own(*args, **kwargs).transpose(0, -1).contiguous().transpose(0, -1)
    )


def _unreduced_gradient(layer: Any) -> None:
    own = layer._forward_impl
    layer._forward_impl = lambda *args, **kwargs: own(*args, **{**kwargs, "allreduce_dgrad": False})


def _per_layer(heads: list[int], each: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Rows of heads in another order."""
    return lambda weight: torch.cat([weight.split(each)[head] for head in heads])


def _halves(weight: torch.Tensor) -> torch.Tensor:
    gate, up = weight.chunk(2)
    return torch.cat([up, gate])


def _other_rope(module: Any) -> None:
    module.config = copy.copy(module.config)
    module.config.rotary_interleaved = True


def experts_exchanged(name: str) -> Plant:
    """The first two experts are each other's."""

    def plant(module: Any) -> None:
        one, two = module.local_experts[0], module.local_experts[1]
        for own, other in zip(one.parameters(), two.parameters(), strict=True):
            kept = own.data.clone()
            own.data.copy_(other.data)
            other.data.copy_(kept)

    return on_module(name, plant)


def _routed_to_neighbour(module: Any) -> None:
    """Tokens of expert n are given to expert n + 1."""
    routing = module.routing

    def wrong(*args: Any, **kwargs: Any) -> Any:
        probs, chosen = routing(*args, **kwargs)
        return probs.roll(1, -1), chosen.roll(1, -1)

    module.routing = wrong


def as_released_loss(module: Any) -> None:
    """Megatron's own auxiliary loss."""
    for name in ("attach_and_log_load_balancing_loss", "apply_load_balancing_loss"):
        vars(module).pop(name, None)


def _gate_of_first_head(run: Run) -> None:
    """On rank 3."""
    run.model.module.gate_part = lambda rank: 0 if rank == 3 else rank % 2


def _not_marked(run: Run) -> None:
    for name, parameter in run.model.named_parameters():
        if name.endswith("softmax_offset"):
            parameter.tensor_model_parallel = False


def _own_norm(run: Run) -> None:
    """Each rank clips by the norm of its own parts."""
    from megatron.core import parallel_state

    layout = run.layout
    assert isinstance(layout, MegatronLayout)
    run.optimizer = megatron_optimizer(layout, run.clip)(run.model)
    for each in (run.optimizer, *run.optimizer.chained_optimizers):
        each.get_grad_stats_parallel_group = parallel_state.get_pipeline_model_parallel_group


def _not_gathered(run: Run) -> None:
    """A rank does not get what the others have updated."""

    def stale(run: Run, step: int) -> None:
        run.held = [  # type: ignore[attr-defined]
            each.data.clone() for each in run.model.parameters()
        ]

    def back(run: Run, step: int) -> None:
        for parameter, value in zip(run.model.parameters(), run.held, strict=True):  # type: ignore[attr-defined]
            half = parameter.data.flatten()[: parameter.numel() // 2]
            half.copy_(value.flatten()[: parameter.numel() // 2])

    run.before_update.append(stale)
    run.after_update.append(back)


def _same_rows(run: Run, step: int, whole: Batch) -> Batch:
    return run.own(whole, 0)


def _in_bfloat16(value: torch.Tensor) -> torch.Tensor:
    return value.bfloat16().to(value.dtype)


def _last_token(value: torch.Tensor) -> torch.Tensor:
    scale = torch.ones(len(value), *[1] * (value.dim() - 1))
    scale[-1] = 0.5
    return value * scale


def _of_tensor_parallel() -> Iterator[RankFault]:
    proj, qkv = "self_attention.linear_proj", "self_attention.linear_qkv"
    fc1, fc2 = "mlp.linear_fc1", "mlp.linear_fc2"
    first, second = _LAYER.format(0), _LAYER.format(1)
    title = "non-contiguous partial not reduced"
    for layout, name in (("tp2", first + proj), ("tp4", second + fc2), ("tp2dp2", second + proj)):
        plant = on_module(name, _noncontiguous)
        yield RankFault(title, f"megatron_{layout}", (name,), _FORWARD, plant, real=1)
    title = "gradient of the input not summed"
    for layout, name in (("tp2", first + qkv), ("tp4", second + fc1)):
        plant = on_module(name, _unreduced_gradient)
        # the sum is missing between the two
        where = name, name.rpartition(".")[0], name[: len(first) - 1]
        yield RankFault(title, f"megatron_{layout}", where, _BACKWARD, plant)
    for layout in ("tp2", "sp2"):
        yield RankFault(
            "sink not marked",
            f"megatron_{layout}",
            ("", "*"),
            _NORM,
            _not_marked,
            clip=True,
            real=2,
        )
    yield RankFault("norm of own parts", "megatron_tp2", ("", "*"), _NORM, _own_norm, clip=True)
    name = first + qkv
    plant = weight_of(name, _per_layer([2, 0, 1, 3], 4))
    yield RankFault("heads swapped", "megatron_tp2", (name,), _FORWARD, plant)
    plant = on_ranks((1,), weight_of(name, _per_layer([1, 0, 2, 3], 4)))
    yield RankFault("heads swapped", "megatron_sp2", (name,), _FORWARD, plant, (1,))
    plant = weight_of(name, _per_layer([0, 1, 3, 2], 4))
    yield RankFault("key as value", "megatron_tp2dp2", (name,), _FORWARD, plant)
    name = second + fc1
    for layout, ranks in (("tp2", ()), ("sp2", (1,)), ("tp4", (2,))):
        plant = on_ranks(ranks or (0, 1), weight_of(name, _halves))
        yield RankFault("gate as up", f"megatron_{layout}", (name,), _FORWARD, plant, ranks)
    name = first + "self_attention"
    for layout, ranks in (("tp2", (1,)), ("sp2", (0,)), ("tp4", (3,))):
        plant = on_ranks(ranks, on_module(name, _other_rope))
        yield RankFault("other rope", f"megatron_{layout}", (name,), _FORWARD, plant, ranks)
    name = "embedding.word_embeddings"
    plant = on_ranks((1,), _attribute(name, "vocab_start_index", lambda first: first + 1))
    yield RankFault("words off by one", "megatron_tp2", (name,), _FORWARD, plant)
    plant = on_module("output_layer", _padding_not_masked)
    for layout in ("tp2", "tp2dp2"):
        yield RankFault(
            "padding of the vocabulary counted",
            f"megatron_{layout}",
            ("output_layer", ""),
            _FORWARD,
            plant,
        )
    for layout in ("sp2", "moe_sp2"):
        for name in (first + "input_layernorm", "decoder.final_layernorm"):

            def unmarked(module: Any) -> None:
                module.weight.sequence_parallel = False

            yield RankFault(
                "gradient of a norm not summed",
                f"megatron_{layout}",
                (name,),
                _GRADIENT,
                on_module(name, unmarked),
            )
    norms = tuple(
        f"{layer}self_attention.{each}_layernorm" for layer in (first, second) for each in "qk"
    )
    yield RankFault(
        "gradients of the norms of heads not summed",
        "megatron_tp2",
        norms,
        _GRADIENT,
        finalized(_without_qk_norms),
    )
    name = first + "self_attention"
    yield RankFault(
        "gate not sliced",
        "megatron_gate_tp4",
        (name, second + "self_attention"),
        _FORWARD,
        _gate_of_first_head,
        (3,),
    )


def _of_loop() -> Iterator[RankFault]:
    for layout in ("tp2", "dp2"):
        yield RankFault(
            "scaled by the microbatches again",
            f"megatron_{layout}",
            ("*",),
            _GRADIENT + _NORM,
            finalized(_scaled_again),
        )
    by_count = with_loss(lambda total, count: (total / count, count))
    yield RankFault("divided twice", "megatron_tp2", ("*", ""), _LOSS, by_count)
    by_own = with_loss(lambda total, count: (total / count, count * 0 + 1))
    for layout in ("dp2", "tp2dp2"):
        yield RankFault("mean of means", f"megatron_{layout}", ("*", ""), _LOSS, by_own, real=8)
    yield RankFault(
        "divided by own tokens",
        "megatron_dp2",
        ("*",),
        _GRADIENT,
        finalized(divided_by_own),
        real=8,
    )
    yield RankFault("padding counted", "megatron_tp2", ("", "*"), _LOSS, _counting_padding)
    yield RankFault("gradients not reduced", "megatron_dp2", ("*",), _GRADIENT, finalized(unsynced))

    def same_rows(run: Run) -> None:
        run.batch = _same_rows

    yield RankFault("same rows", "megatron_dp2", ("", "*"), ("input",), same_rows)
    yield RankFault(
        "update not gathered", "megatron_dp2", ("*",), _UPDATE, on_ranks((1,), _not_gathered), (1,)
    )


def _of_experts() -> Iterator[RankFault]:
    first, second = _LAYER.format(0) + "mlp", _LAYER.format(1) + "mlp"
    routers = (f"{first}.router", f"{second}.router")

    def as_released(run: Run) -> None:
        for name in routers:
            as_released_loss(run.module(name))

    title = "auxiliary loss of a share of the tokens"
    yield RankFault(title, "megatron_moe_sp2", routers, _GRADIENT, as_released, real=4)
    swapped = tuple(
        f"{first}.experts.local_experts.{number}.linear_fc{layer}"
        for number in (0, 1)
        for layer in (1, 2)
    )
    layout = "megatron_moe_sp2"
    plant = experts_exchanged(f"{first}.experts")
    yield RankFault("experts exchanged", layout, swapped, _FORWARD, plant)
    yield RankFault("experts exchanged", layout, swapped, _FORWARD, on_ranks((1,), plant), (1,))
    name = routers[1]
    plant = weight_of(name, lambda weight: weight * 1.1)
    yield RankFault("other router", layout, (name,), _FORWARD, on_ranks((1,), plant), (1,))
    plant = on_module(name, _routed_to_neighbour)
    yield RankFault("routed to the neighbour", layout, (name,), _FORWARD, plant)
    name = f"{second}.experts.local_experts.2.linear_fc1"
    plant = output_of(name, lambda value: value * 1.01)
    yield RankFault(
        "x 1.01", layout, (name,), _FORWARD, on_ranks((0,), plant), (0,), arithmetic=True
    )


def _of_stages() -> Iterator[RankFault]:
    tied = ("embedding.word_embeddings", "output_layer")
    for layout in ("pp2", "tp2pp2"):
        yield RankFault(
            "tied gradient not summed", f"megatron_{layout}", tied, _GRADIENT, finalized(_not_tied)
        )
    name = _LAYER.format(1) + "self_attention.core_attention"
    for layout, ranks in (("pp2", (1,)), ("tp2pp2", ())):
        plant = _attribute(name, "softmax_scale", lambda scale: scale * 2)
        yield RankFault(
            "scaled by the stage's own number",
            f"megatron_{layout}",
            (name,),
            _FORWARD,
            plant,
            ranks,
        )
    name = _LAYER.format(1) + "mlp.linear_fc2"
    for layout, ranks in (("pp2", (1,)), ("tp2pp2", (2,))):
        plant = on_ranks(ranks, output_of(name, lambda value: value * 1.01))
        yield RankFault(
            "x 1.01", f"megatron_{layout}", (name,), _FORWARD, plant, ranks, arithmetic=True
        )
    by_count = with_loss(lambda total, count: (total / count, count))
    yield RankFault("divided twice", "megatron_pp2", ("*", ""), _LOSS, by_count)


def _of_arithmetic() -> Iterator[RankFault]:
    norm, fc2 = _LAYER.format(1) + "input_layernorm", _LAYER.format(0) + "mlp.linear_fc2"
    fc1 = _LAYER.format(1) + "mlp.linear_fc1"
    kinds: dict[str, tuple[str, Plant, tuple[str, ...]]] = {
        "x 1.001": (fc2, output_of(fc2, lambda value: value * 1.001), _FORWARD),
        "eps 1e-2": (norm, _attribute(norm, "eps", lambda eps: 1e-2), _FORWARD),
        "last token x 0.5": (norm, output_of(norm, _last_token), _FORWARD),
        "in bfloat16": (fc1, output_of(fc1, _in_bfloat16), _FORWARD),
        "gradient x 1.05": (fc1, on_module(fc1, _other_gradient), _BACKWARD),
    }
    for layout, rank in (("tp2", 1), ("sp2", 0), ("dp2", 1), ("tp2dp2", 3), ("tp4", 2)):
        for title, (name, plant, stages) in kinds.items():
            own = on_ranks((rank,), plant)
            yield RankFault(
                title, f"megatron_{layout}", (name,), stages, own, (rank,), arithmetic=True
            )


def _other_gradient(module: Any) -> None:
    wrap(
        module,
        lambda forward: (
            lambda value, *args, **kwargs: forward(
                changed(value, lambda grad: grad * 1.05), *args, **kwargs
            )
        ),
    )


MEGATRON_FAULTS: tuple[RankFault, ...] = (
    (*_of_tensor_parallel(), *_of_loop(), *_of_experts(), *_of_stages(), *_of_arithmetic())
    if has_megatron()
    else ()
)
