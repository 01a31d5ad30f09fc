"""Faults of pipelines, planted as user code would contain them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from accucompare.live.modules import in_trial_call
from fixtures.parallel import Layout
from planted.pipeline_models import Counted, Pipeline
from planted.rank_faults import Plant, RankFault, claimed
from planted.rank_training import Batch, Run
from planted.training_faults import changed, wrap

_FORWARD, _BACKWARD = ("forward",), ("backward",)
_GRADIENT = ("backward", "update")
_UPDATE = ("update", "between")
_INPUT = ("input",)


def _pipeline(run: Run) -> Pipeline:
    assert run.pipeline is not None
    return run.pipeline


def _on_module(name: str, plant: Callable[[Any], None]) -> Plant:
    """A fault of a module, on the ranks that have it."""

    def on_module(run: Run) -> None:
        if name in _pipeline(run).named:
            plant(run.module(name))

    return on_module


def _on_ranks(ranks: tuple[int, ...], plant: Plant) -> Plant:
    return lambda run: plant(run) if run.rank in ranks else None


def _forward(name: str, around: Callable[[Any, Callable[..., Any]], Any]) -> Plant:
    """Another forward of a module, made of its own."""
    return _on_module(name, lambda module: wrap(module, lambda own: around(module, own)))


def _output(name: str, change: Callable[[Any], Any]) -> Plant:
    return _forward(name, lambda module, own: lambda *args: change(own(*args)))


def _stage_input(change: Callable[[Any], Any]) -> Plant:
    """What a stage receives."""

    def plant(run: Run) -> None:
        run.model.register_forward_pre_hook(lambda module, args: (change(args[0]),))

    return plant


def _stage_output(change: Callable[[Any], Any]) -> Plant:
    """What a stage sends."""

    def plant(run: Run) -> None:
        run.model.register_forward_hook(lambda module, args, output: change(output))

    return plant


# microbatches


def _order(change: Callable[[torch.Tensor], torch.Tensor]) -> Plant:
    def plant(run: Run) -> None:
        _pipeline(run).order = change

    return plant


def _first_twice(rows: torch.Tensor) -> torch.Tensor:
    """The second microbatch is the first one again."""
    return torch.cat([rows[:1], rows[:1], rows[2:]])


def _rows(rows: slice) -> Plant:
    def plant(run: Run) -> None:
        _pipeline(run).rows = rows

    return plant


class _Received:
    """A stage that takes what it received before, for one of its microbatches."""

    def __init__(self, order: tuple[int, ...]) -> None:
        self._order, self._held = order, list[torch.Tensor]()

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        many = len(self._order)
        if in_trial_call():
            return value
        self._held.append(value.detach().clone())
        call = len(self._held) - 1
        other = self._held[call - call % many + self._order[call % many]]
        return value * 0.0 + other


# gradients


def _scale(factor: float) -> Plant:
    def plant(run: Run) -> None:
        _pipeline(run).scale = lambda loss: loss * factor

    return plant


def _scaled_at_each_schedule(run: Run) -> None:
    """The gradients that have been accumulated are divided again, not the new ones alone."""
    _pipeline(run).scale_grads = True
    _pipeline(run).scale = lambda loss: loss * 2.0


def _scaled_twice(run: Run) -> None:
    _pipeline(run).scale_grads = True


def _of_stage(change: Callable[[torch.Tensor], torch.Tensor]) -> Plant:
    """Other gradients of all parameters of a stage, when they are complete."""

    def plant(run: Run) -> None:
        def reduce(pipeline: Pipeline) -> None:
            for parameter in pipeline.model.parameters():
                if parameter.grad is not None:
                    parameter.grad = change(parameter.grad)

        _pipeline(run).reduces.append(reduce)

    return plant


def _unreduced(run: Run) -> None:
    _pipeline(run).reduces.clear()


# layers


def _exchanged(first: int, second: int) -> Plant:
    """Two layers of a stage stand in each other's place, as after loading in the wrong order."""

    def plant(run: Run) -> None:
        layers: Any = run.model.layers
        layers[first], layers[second] = layers[second], layers[first]

    return plant


def _called_backwards(module: Any, forward: Callable[..., Any]) -> Any:
    def wrong(x: torch.Tensor) -> Any:
        for block in reversed([*module.blocks.values()]):
            x = block(x)
        return module.head(module.norm(x))

    return wrong


def _one_late(layout: Layout) -> Layout:
    """The second stage begins with the last layer of the first one."""

    class Late(Counted):
        def __init__(self, model: Any, blocks: range) -> None:
            super().__init__(model, blocks)
            if 0 not in blocks:
                import copy

                self.layers[0] = copy.deepcopy(model.blocks[blocks[0] - 1])

    made: Any = replace(layout, stage=Late)
    from planted.pipeline_models import cut

    return replace(made, spread=lambda model, mesh: cut(model, mesh, made))


def _scaled_scores(factor: float) -> Callable[[Any, Callable[..., Any]], Any]:
    """The scores are divided by one number and multiplied with another one, of the layer: its
    number in the model, and in the stage."""

    def around(module: Any, forward: Callable[..., Any]) -> Any:
        def wrong(x: torch.Tensor) -> Any:
            rows, length, width = x.shape
            q, k, v = (
                part.view(rows, length, -1, width // 4).transpose(1, 2)
                for part in (module.q(x), module.k(x), module.v(x))
            )
            mixed = functional.scaled_dot_product_attention(
                q * factor, k, v, is_causal=True, enable_gqa=True
            )
            return module.o(mixed.transpose(1, 2).reshape(rows, length, -1))

        return wrong

    return around


def _without_residual(module: Any, forward: Callable[..., Any]) -> Any:
    def wrong(x: torch.Tensor) -> Any:
        x = module.attention(module.norm1(x))
        return x + module.mlp(module.norm2(x))

    return wrong


def _eps(eps: float) -> Callable[[Any, Callable[..., Any]], Any]:
    return lambda module, forward: (
        lambda value: functional.layer_norm(
            value, module.normalized_shape, module.weight, module.bias, eps
        )
    )


def _eps_of_stage(eps: float) -> Plant:
    def plant(run: Run) -> None:
        for module in run.model.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = eps

    return plant


def _in_bfloat16(module: Any, forward: Callable[..., Any]) -> Any:
    return lambda value: functional.linear(
        value.bfloat16(), module.weight.bfloat16(), module.bias.bfloat16()
    ).to(value.dtype)


def _last_token_half(output: torch.Tensor) -> torch.Tensor:
    scale = torch.ones(output.shape[-2], 1, dtype=output.dtype)
    scale[-1] = 0.5
    return output * scale


def _other_microbatch_wrong(name: str, which: int) -> Plant:
    """One microbatch alone comes out wrong."""

    def plant(module: Any) -> None:
        calls = [0]

        def around(own: Callable[..., Any]) -> Any:
            def wrong(value: torch.Tensor) -> Any:
                found = own(value)
                calls[0] += 1
                return found * 1.02 if calls[0] % 4 == which else found

            return wrong

        wrap(module, around)

    return _on_module(name, plant)


# updates


def _stale(name: str) -> Plant:
    """A module's weight stays as it was before the update."""

    def plant(run: Run) -> None:
        if name.rpartition(".")[0] not in _pipeline(run).named:
            return
        kept: list[torch.Tensor] = []
        run.before_update.append(
            lambda run, step: kept.append(run.parameter(name).detach().clone())
        )
        run.after_update.append(lambda run, step: run.parameter(name).detach().copy_(kept[-1]))

    return plant


def _older(name: str) -> Plant:
    """A stage begins with other weights than the checkpoint's."""
    return _on_module(name, lambda module: module.weight.data.mul_(1.01))


def _not_updated(run: Run) -> None:
    run.updates = lambda step: step > 0


def _other_rate(run: Run) -> None:
    run.optimizer = run.layout.optimizer(run.model)
    for group in run.optimizer.param_groups:
        group["lr"] = 0.02


def _labels(run: Run, step: int, whole: Batch) -> Batch:
    tokens, labels = run.own(whole)
    return tokens, labels.roll(1, 0)


def _labels_of_others(run: Run) -> None:
    run.batch = _labels


# the catalogue


def _of_microbatches() -> Iterator[RankFault]:
    for layout in ("pp2", "chunks_pp2", "pp4"):
        plant = _on_ranks((0,), _order(_first_twice))
        yield RankFault("a microbatch given twice", layout, ("",), _INPUT, plant, (0,))
    yield RankFault("a microbatch dropped", "counted_pp2", ("",), _INPUT, _rows(slice(0, 3)))
    for layout in ("counted_pp2", "wrapped_pp2"):
        plant = _on_ranks((0,), _order(lambda rows: rows.roll(1, 0)))
        where, stages = ("", "head"), ("input", "loss")
        yield RankFault("microbatches reordered, labels not", layout, where, stages, plant)
    yield RankFault("labels of other rows", "pp2", ("", "head"), ("loss",), _labels_of_others)
    twice, order = _Received((0, 0, 2, 3)), _Received((0, 1, 1, 3))
    for layout, name, received in (("counted_pp2", "blocks.2", twice), ("pp2", "blocks.1", order)):
        plant = _on_ranks((1,), _stage_input(received))
        yield RankFault("a microbatch received twice", layout, ("", name), _FORWARD, plant, (1,))


def _of_gradients() -> Iterator[RankFault]:
    title = "scale_grads at every schedule"
    yield RankFault(title, "twice_pp2", ("*",), _GRADIENT, _scaled_at_each_schedule, real=11)
    for layout in ("pp2", "chunks_pp2"):
        title = "loss divided by the microbatches again"
        yield RankFault(title, layout, ("*",), ("loss",), _scale(0.25))
        title = "gradients divided by the microbatches again"
        yield RankFault(title, layout, ("*",), _GRADIENT, _scaled_twice)
    for layout, ranks in (("counted_pp2", (1,)), ("wrapped_pp2", (0,)), ("pp2dp2", (2, 3))):
        plant = _on_ranks(ranks, _of_stage(lambda grad: grad * 0.25))
        title = "a stage's gradients scaled again"
        yield RankFault(title, layout, ("*",), _GRADIENT, plant, ranks)
    where = ("embed", "head", "embed.weight")
    yield RankFault("tied embedding not summed", "tied_pp2", where, _GRADIENT, _unreduced)
    plant = _on_ranks((2, 3), _unreduced)
    yield RankFault("a stage's gradients not reduced", "pp2dp2", ("*",), _GRADIENT, plant, (2, 3))
    plant = _on_ranks((1,), _stage_input(lambda x: changed(x, lambda grad: grad * 0.5)))
    where = ("", "blocks.0", "blocks.1")
    yield RankFault("gradient sent back x 0.5", "pp2", where, _BACKWARD, plant)


def _of_layers() -> Iterator[RankFault]:
    for layout, ranks in (("counted_pp2", (1,)), ("pp2dp2", (3,))):
        plant = _on_ranks(ranks, _exchanged(0, 1))
        yield RankFault("layers in the wrong order", layout, ("*",), _FORWARD, plant, ranks)
    plant = _on_ranks(
        (1,), lambda run: wrap(run.model, lambda own: _called_backwards(run.model, own))
    )
    where = ("", "blocks.1", "blocks.2", "blocks.3")
    yield RankFault("layers called backwards", "pp2", where, _FORWARD, plant, (1,))
    yield RankFault(
        "a stage begins one layer early",
        "counted_pp2",
        ("*",),
        _FORWARD,
        lambda run: None,
        (1,),
        built=_one_late,
    )
    for layout, block, rank, factor in (("counted_pp2", 2, 1, 3.0), ("pp4", 3, 3, 4.0)):
        attention = f"blocks.{block}.attention"
        plant, title = _forward(attention, _scaled_scores(factor)), "scores by the stage's number"
        own = (attention, f"{attention}.o")
        yield RankFault(title, layout, own, _FORWARD, plant, (rank,))
    for layout, block, rank in (("counted_pp2", 2, 1), ("chunks_pp2", 3, 1)):
        plant, name = _forward(f"blocks.{block}", _without_residual), f"blocks.{block}"
        own = (name, f"{name}.norm2")
        yield RankFault("no residual between stages", layout, own, _FORWARD, plant, (rank,))
    plant = _on_ranks((0,), _stage_output(lambda x: x.bfloat16().float()))
    for layout, name in (("pp2", "blocks.1"), ("counted_pp2", "blocks.2")):
        yield RankFault("sent in bfloat16", layout, ("", name), _FORWARD, plant)
    for layout, ranks, names in (
        ("pp2", (1,), ("blocks.1.norm1",)),
        ("pp4", (2,), ("blocks.2.norm1",)),
    ):
        plant = _on_ranks(ranks, _eps_of_stage(1e-2))
        yield RankFault("eps of a stage", layout, names, _FORWARD, plant, ranks)


def _of_updates() -> Iterator[RankFault]:
    for layout, ranks, name in (("counted_pp2", (1,), "blocks.3.mlp.up"), ("pp2", (0,), "embed")):
        plant = _stale(f"{name}.weight")
        yield RankFault("stale weight", layout, (name,), _UPDATE, plant, ranks)
    for layout, ranks, name in (
        ("wrapped_pp2", (1,), "blocks.3.attention.o"),
        ("pp2dp2", (3,), "blocks.2.mlp.down"),
    ):
        plant = _on_ranks(ranks, _older(name))
        yield RankFault("other weights", layout, (name,), _FORWARD, plant, ranks)
    for layout in ("pp2", "chunks_pp2"):
        plant = _on_ranks((1,), _not_updated)
        yield RankFault("a stage misses an update", layout, ("*",), _UPDATE, plant, (1,))
    plant = _on_ranks((1,), _other_rate)
    yield RankFault("another lr of a stage", "counted_pp2", ("*",), _UPDATE, plant, (1,))


_ARITHMETIC: tuple[tuple[str, str, str, tuple[int, ...], Plant], ...] = (
    (
        "x 1.001",
        "pp2",
        "blocks.2.attention.o",
        (1,),
        _output("blocks.2.attention.o", lambda x: x * 1.001),
    ),
    (
        "x 1.01",
        "chunks_pp2",
        "blocks.2.mlp.up",
        (0,),
        _output("blocks.2.mlp.up", lambda x: x * 1.01),
    ),
    (
        "x 1.001",
        "pp2dp2",
        "blocks.3.mlp.down",
        (3,),
        _output("blocks.3.mlp.down", lambda x: x * 1.001),
    ),
    (
        "GELU",
        "wrapped_pp2",
        "blocks.2.mlp.act",
        (0,),
        _forward("blocks.2.mlp.act", lambda m, own: functional.gelu),
    ),
    (
        "GELU",
        "pp4",
        "blocks.1.mlp.act",
        (1,),
        _forward("blocks.1.mlp.act", lambda m, own: functional.gelu),
    ),
    (
        "last token x 0.5",
        "counted_pp2",
        "blocks.3.norm2",
        (1,),
        _output("blocks.3.norm2", _last_token_half),
    ),
    (
        "in bfloat16",
        "tied_pp2",
        "blocks.2.attention.q",
        (1,),
        _forward("blocks.2.attention.q", _in_bfloat16),
    ),
    ("eps 1e-3", "pp2dp2", "blocks.2.norm1", (3,), _forward("blocks.2.norm1", _eps(1e-3))),
    (
        "one microbatch x 1.02",
        "counted_pp2",
        "blocks.2.mlp.down",
        (1,),
        _other_microbatch_wrong("blocks.2.mlp.down", 2),
    ),
)


def _of_arithmetic() -> Iterator[RankFault]:
    for title, layout, name, ranks, plant in _ARITHMETIC:
        own = _on_ranks(ranks, plant)
        yield RankFault(title, layout, (name,), _FORWARD, own, ranks, arithmetic=True)


def _of_meshes() -> Iterator[RankFault]:
    """Of stages whose ranks share the work."""
    for name in ("blocks.1.attention.o", "blocks.3.mlp.down"):

        def unreduced(module: Any) -> None:
            module.register_forward_hook(lambda module, args, output: claimed(output), prepend=True)

        plant = _on_module(name, unreduced)
        yield RankFault("partial not reduced", "pp2tp2", (name,), _FORWARD, plant)
    for layout, title, name, change in (
        ("pp2tp2", "x 1.01", "blocks.2.norm2", lambda x: x * 1.01),
        ("pp2fsdp2", "x 1.001", "blocks.2.attention.q", lambda x: x * 1.001),
        ("pp2fsdp2", "last token x 0.5", "blocks.3.mlp.up", _last_token_half),
    ):
        plant = _on_ranks((3,), _output(name, change))
        yield RankFault(title, layout, (name,), _FORWARD, plant, (3,), arithmetic=True)
    plant = _on_ranks((1,), _stale_part("blocks.1.mlp.down"))
    where = ("blocks.1.mlp.down",)
    yield RankFault("stale weight", "pp2fsdp2", where, _UPDATE, plant, (1,))
    plant = _on_ranks((0, 1), _order(_first_twice))
    yield RankFault("a microbatch given twice", "pp2tp2", ("",), _INPUT, plant, (0, 1))
    plant = _on_ranks((2, 3), _of_stage(lambda grad: grad * 0.5))
    title = "a stage's gradients scaled again"
    yield RankFault(title, "pp2fsdp2", ("*",), _GRADIENT, plant)


def _stale_part(name: str) -> Plant:
    """A rank's part of a weight stays as it was before the update."""

    def plant(run: Run) -> None:
        def part() -> torch.Tensor:
            local: torch.Tensor = run.parameter(f"{name}.weight").to_local().detach()
            return local

        kept: list[torch.Tensor] = []
        run.before_update.append(lambda run, step: kept.append(part().clone()))

        def back(run: Run, step: int) -> None:
            part().copy_(kept[-1])

        run.after_update.append(back)

    return plant


PIPELINE_FAULTS = (
    *_of_meshes(),
    *_of_microbatches(),
    *_of_gradients(),
    *_of_layers(),
    *_of_updates(),
    *_of_arithmetic(),
)
