"""Faults of a training on several ranks, planted as user code would contain them.

Each changes the run of ``planted.rank_training`` on some ranks: a module's hooks or forward, a
collective, or the loop. What is recorded is never edited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from planted.rank_training import Batch, Run
from planted.training_faults import changed, wrap

Plant = Callable[[Run], None]


@dataclass(frozen=True)
class RankFault:
    """A fault in one layout.

    Attributes:
        name: what is wrong.
        layout: of ``fixtures.parallel``.
        where: the modules of which one is to be named; ``"*"`` for any, since all are wrong alike;
            ``""`` for the model itself: its input, its loss, its norm.
        stages: the parts of a step that may be named, as ``origins.Stage`` calls them.
        plant: puts it into a run.
        ranks: those that are wrong, if it is of some ranks and their own records show it.
        arithmetic: whether a rank computes something else; if not, it is of the layout or the loop.
        clip: whether the training is one whose gradients are clipped.
        real: its number in the list of real bugs.
    """

    name: str
    layout: str
    where: tuple[str, ...]
    stages: tuple[str, ...]
    plant: Plant
    ranks: tuple[int, ...] = ()
    arithmetic: bool = False
    clip: bool = False
    real: int | None = None

    def __str__(self) -> str:
        ranks = f", rank {' and '.join(map(str, self.ranks))}" if self.ranks else ""
        return f"{self.layout}: {self.name} in {self.where[0] or 'the loop'}{ranks}"


# how a run is changed


def _output(name: str, change: Callable[[Any], Any], first: bool = False) -> Plant:
    """Another output of a module, on every rank; ``first``: before its layout is changed."""

    def plant(run: Run) -> None:
        run.module(name).register_forward_hook(
            lambda module, args, output: change(output), prepend=first
        )

    return plant


def _input(name: str, change: Callable[[Any], Any]) -> Plant:
    """Another first input of a module, after its layout was changed."""

    def plant(run: Run) -> None:
        run.module(name).register_forward_pre_hook(
            lambda module, args: (change(args[0]), *args[1:])
        )

    return plant


def _forward(name: str, around: Callable[[nn.Module, Callable[..., Any]], Any]) -> Plant:
    """Another forward of a module, made of its own."""

    def plant(run: Run) -> None:
        module = run.module(name)
        wrap(module, lambda forward: around(module, forward))

    return plant


def _on(rank: int, plant: Plant) -> Plant:
    """The same on one rank only."""

    def on_rank(run: Run) -> None:
        if run.rank == rank:
            plant(run)

    return on_rank


def _grads(*names: str, change: Callable[[Run, torch.Tensor], Any]) -> Plant:
    """Other gradients of parameters when they are complete, as a hook of the user's would leave
    them."""

    def plant(run: Run) -> None:
        for name in names:
            parameter = run.parameter(name)

            def hook(each: Any) -> None:
                each.grad = change(run, each.grad)

            parameter.register_post_accumulate_grad_hook(hook)

    return plant


def _local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _claimed(tensor: Any, *placements: Any) -> Any:
    """The same local values, said to lie otherwise; by default replicated."""
    from torch.distributed.tensor import DTensor, Replicate

    return DTensor.from_local(
        tensor.to_local(), tensor.device_mesh, placements or [Replicate()], run_check=False
    )


class _Summed(torch.autograd.Function):
    """Summed over a group; its gradient goes on as it is."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        value = value.clone()
        dist.all_reduce(value, group=group)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


# layouts


def _unreduced(name: str) -> Plant:
    return _output(name, _claimed, first=True)


def _reduced_twice(name: str) -> Plant:
    def plant(run: Run) -> None:
        group = run.group("tp")
        _output(name, lambda output: _Summed.apply(output, group))(run)

    return plant


def _mean_for_sum(name: str) -> Plant:
    return lambda run: _output(name, lambda output: output / run.layout.mesh["tp"], True)(run)


def _input_gradient_not_summed(name: str) -> Plant:
    def claim(value: Any) -> Any:
        return changed(value, lambda grad: _claimed(grad))

    return _input(name, claim)


def _swapped_shards(name: str) -> Plant:
    """The two ranks' parts of a weight are exchanged as they are loaded."""

    def plant(run: Run) -> None:
        part = _local(run.parameter(name)).detach()
        parts = [torch.empty_like(part) for _ in range(run.layout.mesh["tp"])]
        dist.all_gather(parts, part.contiguous(), group=run.group("tp"))
        part.copy_(parts[run.along("tp") - 1])

    return plant


def _shifted(name: str, rank: int) -> Plant:
    """A rank's part of a weight begins one row too late: its first row comes last."""

    def plant(run: Run) -> None:
        part = _local(run.parameter(name)).detach()
        part.copy_(part.roll(-1, 0))

    return _on(rank, plant)


# the loop


def _norm_of_parts(counted: Callable[[str, Any], bool] = lambda name, grad: True) -> Plant:
    """The norm is that of all that the ranks hold, replicas again and again."""

    def norm(run: Run) -> float:
        total = torch.zeros((), dtype=torch.float64)
        for name, parameter in run.model.named_parameters():
            if parameter.grad is not None and counted(name, parameter.grad):
                total += _local(parameter.grad).double().square().sum()
        dist.all_reduce(total)
        return float(total) ** 0.5

    def plant(run: Run) -> None:
        run.norm = norm

    return plant


def _norm_of_own(run: Run) -> None:
    """The norm is that of a rank's own part, and each rank clips by its own."""
    run.norm = lambda run: float(
        sum(
            _local(parameter.grad).double().square().sum()
            for parameter in run.model.parameters()
            if parameter.grad is not None
        )
        ** 0.5
    )


def _clip_before_reduce(run: Run) -> None:
    run.unsynced = lambda step, last: True

    def reduce(run: Run, step: int) -> None:
        for parameter in run.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= run.ranks  # type: ignore[operator]

    run.before_update.append(reduce)


def _never_synced(run: Run) -> None:
    run.unsynced = lambda step, last: True


def _batch(change: Callable[[Run, Batch], Batch]) -> Plant:
    def plant(run: Run) -> None:
        run.batch = lambda run, step, whole: change(run, whole)

    return plant


def _divisor(change: Callable[[Run, Batch, Batch], tuple[int, float]]) -> Plant:
    def plant(run: Run) -> None:
        run.divisor = change

    return plant


def _tokens(batch: Batch) -> int:
    return int((batch[1] != -100).sum())


def _stale(name: str, rank: int) -> Plant:
    """A rank keeps a parameter as it was before the update."""

    def plant(run: Run) -> None:
        kept: list[torch.Tensor] = []

        def keep(run: Run, step: int) -> None:
            kept[:] = [_local(run.parameter(name)).detach().clone()]

        def back(run: Run, step: int) -> None:
            _local(run.parameter(name)).detach().copy_(kept[0])

        run.before_update.append(keep)
        run.after_update.append(back)

    return _on(rank, plant)


# arithmetic of one rank


def _scaled(factor: float) -> Callable[[Any], Any]:
    return lambda output: output * factor


def _last_row_wrong(output: Any) -> Any:
    scale = torch.ones(output.shape[-2], 1, dtype=output.dtype)
    scale[-1] = 0.5
    return output * scale


def _rows_exchanged(output: Any) -> Any:
    return torch.cat([output[..., 1:2, :], output[..., :1, :], output[..., 2:, :]], -2)


def _without_bias(module: nn.Module, forward: Callable[..., Any]) -> Any:
    return lambda value: functional.linear(value, module.weight)  # type: ignore[arg-type]


def _other_eps(module: Any, forward: Callable[..., Any]) -> Any:
    return lambda value: functional.layer_norm(
        value, module.normalized_shape, module.weight, module.bias, 0.1
    )


def _other_activation(module: nn.Module, forward: Callable[..., Any]) -> Any:
    return lambda value: functional.gelu(value)


def _in_bfloat16(module: Any, forward: Callable[..., Any]) -> Any:
    return lambda value: functional.linear(
        value.bfloat16(),
        module.weight.bfloat16(),
        None if module.bias is None else module.bias.bfloat16(),
    ).to(value.dtype)


# the catalogue

_TP = ("tp2", "sp2", "tp2dp2")
_DP = ("ddp2", "fsdp2", "fsdp1_2", "zero2")

_BACKWARD = ("backward",)
_GRADIENT = ("backward", "update")
_FORWARD = ("forward",)
_LOSS = ("loss", "forward")


def _of_layout() -> Iterator[RankFault]:
    for layout in ("tp2", "tp2_bfloat16", "sp2", "tp2dp2"):
        for name in ("blocks.0.attention.o", "blocks.1.mlp.down"):
            yield RankFault("partial not reduced", layout, (name,), _FORWARD, _unreduced(name))
            yield RankFault("mean for sum", layout, (name,), _FORWARD, _mean_for_sum(name))
    for layout in ("tp2", "tp2dp2"):
        for name in ("blocks.0.mlp.down", "blocks.1.attention.o"):
            yield RankFault("reduced twice", layout, (name,), _FORWARD, _reduced_twice(name))
    for layout in ("tp2", "sp2"):
        for name in ("blocks.0.attention.q", "blocks.1.mlp.up"):
            yield RankFault(
                "shards swapped", layout, (name,), _FORWARD, _swapped_shards(f"{name}.weight")
            )
    for layout in ("tp2", "tp2dp2"):
        for name in ("blocks.0.mlp.gate", "blocks.1.attention.v"):
            yield RankFault(
                "gradient of the input not summed",
                layout,
                (name,),
                _BACKWARD,
                _input_gradient_not_summed(name),
                real=13 if "mlp" in name else None,
            )
    for name in ("blocks.0.norm1", "blocks.1.norm2", "norm"):
        yield RankFault(
            "gradient of a norm not summed",
            "sp2",
            (name,),
            _GRADIENT,
            _grads(f"{name}.weight", f"{name}.bias", change=lambda run, grad: _claimed(grad)),
        )
    yield RankFault(
        "wrong offset of the vocabulary", "sp2", ("embed",), _FORWARD, _shifted("embed.weight", 1)
    )
    yield RankFault(
        "wrong offset of the vocabulary", "tp2", ("head",), _FORWARD, _shifted("head.weight", 1)
    )


def _of_loop() -> Iterator[RankFault]:
    for layout in ("tp2", "sp2"):
        yield RankFault(
            "norm counts replicas twice", layout, ("",), ("norm",), _norm_of_parts(), clip=True
        )
    for layout in _DP:
        yield RankFault(
            "mean over the ranks' own tokens",
            layout,
            ("",),
            _LOSS,
            _divisor(lambda run, whole, own: (_tokens(own), 1)),
            real=15,
        )
        yield RankFault(
            "a batch given twice",
            layout,
            ("",),
            _FORWARD,
            _batch(lambda run, whole: run.own(whole, 0)),
            ranks=(1,),
        )
    for name in ("blocks.0.mlp.up", "norm"):
        yield RankFault(
            "stale weight",
            "ddp2",
            (name,),
            ("between", "forward"),
            _stale(f"{name}.weight", 1),
            (1,),
        )
    yield RankFault("no_sync left on", "ddp2", ("*",), _GRADIENT, _never_synced)


def _of_arithmetic() -> Iterator[RankFault]:
    for layout in ("tp2", "ddp2", "fsdp2", "tp2dp2"):
        for name, kind, plant in (
            ("blocks.0.mlp.act", "x 1.01", _output("blocks.0.mlp.act", _scaled(1.01))),
            ("blocks.1.mlp.act", "GELU", _forward("blocks.1.mlp.act", _other_activation)),
            ("blocks.1.norm1", "eps 0.1", _forward("blocks.1.norm1", _other_eps)),
        ):
            yield RankFault(kind, layout, (name,), _FORWARD, _on(1, plant), (1,), True)


CATALOGUE = (*_of_layout(), *_of_loop(), *_of_arithmetic())
