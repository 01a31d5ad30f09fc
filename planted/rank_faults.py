"""Faults of a training on several ranks, planted as user code would contain them.

Each changes the run of ``planted.rank_training`` on some ranks: a module's hooks or forward, a
collective, or the loop. What is recorded is never edited.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from fixtures.parallel import Layout
from planted.rank_models import by_hand
from planted.rank_training import Batch, Run, plain, token_count
from planted.sharded_layers import Reduced, applied
from planted.training_faults import changed, given_as, wrap

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
        built: how the layout itself is built otherwise.
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
    built: Callable[[Layout], Layout] | None = None

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
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def claimed(tensor: Any, *placements: Any) -> Any:
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


def _patched(name: str, owner: Callable[[], Any], method: str, instead: Any) -> Plant:
    """While a module's forward runs, another method of a class: made of its own."""

    def around(module: nn.Module, forward: Callable[..., Any]) -> Any:
        def wrong(*args: Any, **kwargs: Any) -> Any:
            place = owner()
            original = getattr(place, method)
            setattr(place, method, instead(original))
            try:
                return forward(*args, **kwargs)
            finally:
                setattr(place, method, original)

        return wrong

    return _forward(name, around)


def _experts(name: str, function: str, instead: Any) -> Plant:
    """While transformers' experts run, another of its collectives."""

    def owner() -> Any:
        import transformers.distributed.tensor_parallel as home

        return home

    return _patched(name, owner, function, lambda original: instead)


class _Unchanged:
    """In place of a function that reduces."""

    @staticmethod
    def apply(value: torch.Tensor, group: Any) -> torch.Tensor:
        return value


def _dtensor() -> Any:
    from torch.distributed.tensor import DTensor

    return DTensor


# layouts


def _unreduced_by_plan(name: str) -> Plant:
    """Of transformers' own plan, which reduces inside of the module's forward."""

    def instead(original: Any) -> Any:
        def redistribute(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if any(each.is_partial() for each in tensor.placements):
                return claimed(tensor)
            return original(tensor, *args, **kwargs)

        return redistribute

    return _patched(name, _dtensor, "redistribute", instead)


def _input_gradient_not_summed_by_plan(name: str) -> Plant:
    def instead(original: Any) -> Any:
        return lambda *args, **kwargs: changed(original(*args, **kwargs), claimed)

    return _patched(name, _dtensor, "from_local", instead)


def _unreduced(name: str) -> Plant:
    return _output(name, claimed, first=True)


def _reduced_twice(name: str) -> Plant:
    def plant(run: Run) -> None:
        group = run.group("tp")
        _output(name, lambda output: applied(_Summed, output, group))(run)

    return plant


def _mean_for_sum(name: str) -> Plant:
    return lambda run: _output(name, lambda output: output / run.layout.mesh["tp"], True)(run)


def _input_gradient_not_summed(name: str) -> Plant:
    def claim(value: Any) -> Any:
        return changed(value, lambda grad: claimed(grad))

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


def _norm_of_parts(counted: Callable[[int, str], bool] = lambda rank, name: True) -> Plant:
    """The norm is that of all that the ranks hold, replicas again and again."""

    def norm(run: Run) -> float:
        total = torch.zeros((), dtype=torch.float64)
        for name, parameter in run.model.named_parameters():
            if parameter.grad is not None and counted(run.rank, plain(name)):
                total += _local(parameter.grad).double().square().sum()
        dist.all_reduce(total)
        return math.sqrt(float(total))

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
            grad: Any = parameter.grad
            dist.all_reduce(grad)
            grad /= run.ranks

    run.before_update.append(reduce)


def _never_synced(run: Run) -> None:
    run.unsynced = lambda step, last: True


def given(change: Callable[[Run, Batch], Batch]) -> Plant:
    """Changes the batch that a rank is given."""

    def plant(run: Run) -> None:
        run.batch = lambda run, step, whole: change(run, whole)

    return plant


def divided(change: Callable[[Run, Batch, Batch], tuple[int, float]]) -> Plant:
    """Changes what the sum of the loss is divided by."""

    def plant(run: Run) -> None:
        run.divisor = change

    return plant


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
    if hasattr(output, "to_local"):
        found = _last_row_wrong(output.to_local())
        return _dtensor().from_local(found, output.device_mesh, output.placements)
    scale = torch.ones(output.shape[-2], 1, dtype=output.dtype)
    scale[-1] = 0.5
    return output * scale


def _rows_exchanged(output: Any) -> Any:
    return torch.cat([output[..., 1:2, :], output[..., :1, :], output[..., 2:, :]], -2)


def _without_bias(module: nn.Module, forward: Callable[..., Any]) -> Any:
    # which still gets a gradient, as DDP wants it
    return lambda value: functional.linear(value, module.weight, module.bias * 0.0)  # type: ignore


def _eps(eps: float) -> Callable[[Any, Callable[..., Any]], Any]:
    return lambda module, forward: (
        lambda value: functional.layer_norm(
            value, module.normalized_shape, module.weight, module.bias, eps
        )
    )


def _other_activation(module: nn.Module, forward: Callable[..., Any]) -> Any:
    return lambda value: functional.gelu(value)


def _in_bfloat16(module: Any, forward: Callable[..., Any]) -> Any:
    return lambda value: functional.linear(
        value.bfloat16(),
        module.weight.bfloat16(),
        None if module.bias is None else module.bias.bfloat16(),
    ).to(value.dtype)


def _unreduced_view(name: str) -> Plant:
    """The sum is made in a copy of what is not contiguous, and lost."""

    def reduced(value: torch.Tensor) -> torch.Tensor:
        value = value.transpose(0, 1).contiguous().transpose(0, 1)
        applied(Reduced, value.detach(), None)  # a collective that all ranks take part in
        return value

    def plant(run: Run) -> None:
        run.module(name).reduced = reduced

    return plant


def _biased_before(name: str) -> Plant:
    """The bias is added on each rank, and so counted twice."""

    def around(module: Any, forward: Callable[..., Any]) -> Any:
        return lambda x: module.reduced(functional.linear(x, module.weight, module.bias))

    return _forward(name, around)


def _not_copied(name: str) -> Plant:
    def plant(run: Run) -> None:
        run.module(name).copied = lambda x: x

    return plant


def _head_apart(run: Run) -> None:
    """The head has its own copy of the embedding's weight; their gradients are not summed."""
    head = run.module("head")
    head.weight = nn.Parameter(head.weight.detach().clone())


def _unmasked(module: Any, forward: Callable[..., Any]) -> Any:
    """Tokens of other ranks get the nearest row of this one's."""

    def wrong(tokens: torch.Tensor) -> torch.Tensor:
        own = (tokens - module.first).clamp(0, len(module.weight) - 1)
        return applied(Reduced, functional.embedding(own, module.weight), module.group)

    return wrong


def _offset(run: Run) -> None:
    run.module("embed").first += 1


def _exchanged(name: str, group: str) -> Plant:
    """The output's parts are exchanged between ranks."""

    class Exchanged(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor, own: Any) -> torch.Tensor:
            ctx.own = own
            return _of_other(value, own)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return _of_other(grads[0], ctx.own), None

    def plant(run: Run) -> None:
        def change(output: Any) -> Any:
            if not hasattr(output, "to_local"):
                return applied(Exchanged, output, run.group(group))
            moved = applied(Exchanged, output.to_local(), run.group(group))
            return _dtensor().from_local(moved, output.device_mesh, output.placements)

        _output(name, change)(run)

    return plant


def _of_other(value: torch.Tensor, group: Any) -> torch.Tensor:
    parts = [torch.empty_like(value, memory_format=torch.contiguous_format) for _ in range(2)]
    dist.all_gather(parts, value.contiguous(), group=group)
    return parts[1 - dist.get_rank(group)]


def _fsdp_shards_exchanged(name: str) -> Plant:
    def plant(run: Run) -> None:
        part = _local(run.parameter(name)).detach()
        part.copy_(_of_other(part, None))

    return plant


def _ignored(*names: str) -> Callable[[Layout], Layout]:
    """DDP is told to ignore parameters."""

    def built(layout: Layout) -> Layout:
        def spread(model: nn.Module, mesh: Any) -> nn.Module:
            wrapper: Any = nn.parallel.DistributedDataParallel
            wrapper._set_params_and_buffers_to_ignore_for_model(model, names)
            return wrapper(model)  # type: ignore[no-any-return]

        return replace(layout, spread=spread)

    return built


def _reduced_in_bfloat16(layout: Layout) -> Layout:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    def spread(model: Any, mesh: Any) -> nn.Module:
        policy = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
        for block in model.blocks:
            fully_shard(block, mp_policy=policy)
        found: nn.Module = fully_shard(model, mp_policy=policy)
        return found

    return replace(layout, spread=spread)


def _not_interleaved(name: str) -> Callable[[Layout], Layout]:
    left = tuple(each for each in ("qkv", "gate_up") if each != name)
    return lambda layout: replace(layout, spread=lambda model, mesh: by_hand(model, mesh, left))


def _scaled_at_each_call(run: Run) -> None:
    """The accumulated gradient is divided at each micro-batch, not each one's own."""

    def halve(each: Any) -> None:
        each.grad *= 0.5

    parameters: Any = run.model.parameters()
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(halve)


def _undivided(run: Run) -> None:
    run.divisor = lambda run, whole, own: (
        token_count(whole),
        run.layout.data_ranks * run.layout.micro,
    )


def _block_of_rows_twice(run: Run, grad: Any) -> Any:
    local = _local(grad)
    local[: len(local) // 2] *= 2
    return grad


def _not_gathered(run: Run) -> None:
    """After the update, a rank keeps what the others updated as it was."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    class Apart(ZeroRedundancyOptimizer):
        def _sync_params(self) -> None:
            pass

    run.optimizer = Apart(run.model.parameters(), torch.optim.AdamW, lr=0.01, foreach=False)


def _not_updated(run: Run) -> None:
    """A rank makes no update in the first step, as if it alone had found gradients infinite."""
    run.updates = lambda step: step > 0


def _other_option(**options: Any) -> Plant:
    """A rank's optimizer has other options."""

    def plant(run: Run) -> None:
        run.optimizer = run.layout.optimizer(run.model)
        for group in run.optimizer.param_groups:
            group.update(options)

    return plant


def _own_part_kept(name: str) -> Plant:
    """A rank takes part in the reduction, and goes on with its own term."""

    def change(output: Any) -> Any:
        whole = output.redistribute(output.device_mesh, [_replicate()])
        own = output.to_local() + 0.0 * whole.to_local()
        return _dtensor().from_local(own, output.device_mesh, [_replicate()])

    def plant(run: Run) -> None:
        def both(output: Any) -> Any:
            if run.rank == 1:
                return change(output)
            return output.redistribute(output.device_mesh, [_replicate()])

        _output(name, both, first=True)(run)

    return plant


def _replicate() -> Any:
    from torch.distributed.tensor import Replicate

    return Replicate()


def _other_weight_gradient(name: str, run: Run) -> None:
    def around(forward: Callable[..., Any]) -> Any:
        def wrong(*args: Any) -> Any:
            with given_as(run.module(name), "weight", lambda each: changed(each, _larger)):
                return forward(*args)

        return wrong

    wrap(run.module(name), around)


def _larger(grad: Any) -> Any:
    return grad * 1.05


def _lost(rank: int) -> Plant:
    """A rank's loss does not count."""

    def plant(run: Run) -> None:
        run.divisor = lambda run, whole, own: (token_count(whole), 0.0)

    return _on(rank, plant)


def _without_tokens(run: Run, whole: Batch) -> Batch:
    tokens, labels = run.own(whole)
    return torch.zeros_like(tokens), labels


def _labels_of_other_rows(run: Run, whole: Batch) -> Batch:
    tokens, labels = run.own(whole)
    return tokens, labels.flip(0)


def _rows_of_other_rank(run: Run, whole: Batch) -> Batch:
    return whole[0].roll(1, 0), whole[1].roll(1, 0)


# the catalogue

_BACKWARD = ("backward",)
_GRADIENT = ("backward", "update")
_FORWARD = ("forward",)
_LOSS = ("loss",)
_INPUT = ("input",)
_NORM = ("norm",)
#: The layouts of data parallelism, and of tensor parallelism.
_DP = ("ddp2", "fsdp2", "fsdp1_2", "zero2")
_TP = ("tp2", "sp2", "tp2dp2")
_LLAMA = "model.layers."


def _of_layout() -> Iterator[RankFault]:
    for layout in (*_TP, "tp2_bfloat16"):
        for name in ("blocks.0.attention.o", "blocks.1.mlp.down"):
            yield RankFault("partial not reduced", layout, (name,), _FORWARD, _unreduced(name))
        name = "blocks.0.mlp.down"
        yield RankFault("mean for sum", layout, (name,), _FORWARD, _mean_for_sum(name))
    for name in ("blocks.1.attention.o", "blocks.0.mlp.down"):
        plant = _own_part_kept(name)
        yield RankFault("own part kept", "tp2", (name,), _FORWARD, plant, (1,))
    for layout in ("tp4", "tp8"):
        name = "blocks.1.mlp.down"
        yield RankFault("partial not reduced", layout, (name,), _FORWARD, _unreduced(name))
    for name in ("1.self_attn.o_proj", "0.mlp.down_proj"):
        name = _LLAMA + name
        plant = _unreduced_by_plan(name)
        yield RankFault("partial not reduced", "llama_tp2", (name,), _FORWARD, plant)
    for layout in ("tp2", "tp2dp2", "tp2_bfloat16", "hand_tp2"):
        name = "blocks.1.attention.o"
        yield RankFault("reduced twice", layout, (name,), _FORWARD, _reduced_twice(name))
    for layout in _TP:
        name = "blocks.0.attention.q" if layout == "tp2" else "blocks.1.mlp.up"
        plant = _swapped_shards(f"{name}.weight")
        yield RankFault("shards swapped", layout, (name,), _FORWARD, plant)
    name = _LLAMA + "0.self_attn.q_proj"
    plant = _swapped_shards(f"{name}.weight")
    yield RankFault("shards swapped", "llama_tp2", (name,), _FORWARD, plant)
    name = "blocks.0.mlp.gate"
    plant = _fsdp_shards_exchanged(f"{name}.weight")
    yield RankFault("shards swapped", "fsdp2", (name,), _FORWARD, plant)
    name = "blocks.1.norm2"
    yield RankFault(
        "parts of the sequence swapped", "sp2", (name,), _FORWARD, _exchanged(name, "tp")
    )
    for layout in (*_TP, "tp2_bfloat16"):
        for name in ("blocks.0.mlp.gate", "blocks.1.attention.v"):
            where = name, name.rpartition(".")[0]  # the sum is missing between the two
            plant = _input_gradient_not_summed(name)
            real = 13 if "mlp" in name else None
            title = "gradient of the input not summed"
            yield RankFault(title, layout, where, _BACKWARD, plant, real=real)
    name = _LLAMA + "0.mlp.up_proj"
    where = name, _LLAMA + "0.mlp"
    plant = _input_gradient_not_summed_by_plan(name)
    title = "gradient of the input not summed"
    yield RankFault(title, "llama_tp2", where, _BACKWARD, plant, real=13)
    name = _LLAMA + "0.mlp.experts"
    plant = _experts(name, "_AllReduceBackward", _Unchanged)
    yield RankFault(title, "mixtral_tp2", (name,), _BACKWARD, plant, real=13)
    plant = _experts(name, "_AllReduceForward", _Unchanged)
    yield RankFault("partial not reduced", "mixtral_tp2", (name,), _FORWARD, plant)
    for name in ("blocks.0.norm1", "blocks.1.norm2", "norm"):
        plant = _grads(f"{name}.weight", f"{name}.bias", change=lambda run, grad: claimed(grad))
        yield RankFault("gradient of a norm not summed", "sp2", (name,), _GRADIENT, plant)
    for layout, name in (("sp2", "embed"), ("tp2", "head")):
        plant = _shifted(f"{name}.weight", 1)
        yield RankFault("wrong offset of the vocabulary", layout, (name,), _FORWARD, plant)
    for layout, name in (("tp2", "blocks.0.attention.q"), ("tp2dp2", "norm"), ("sp2", "embed")):
        plant = _grads(f"{name}.weight", change=_block_of_rows_twice)
        yield RankFault("a block of rows twice", layout, (name,), _GRADIENT, plant, real=19)


def _by_hand() -> Iterator[RankFault]:
    layout = "hand_tp2"
    for name in ("blocks.0.attention.o", "blocks.1.mlp.down"):
        plant = _unreduced_view(name)
        yield RankFault("not contiguous, not reduced", layout, (name,), _FORWARD, plant, real=1)
        yield RankFault("bias counted twice", layout, (name,), _FORWARD, _biased_before(name))
    for name in ("blocks.0.attention.qkv", "blocks.1.mlp.gate_up"):
        plant = _not_copied(name)
        title = "gradient of the input not summed"
        yield RankFault(title, layout, (name,), _BACKWARD, plant, real=13)
    for name in ("qkv", "gate_up"):
        parent = "blocks.0.attention" if name == "qkv" else "blocks.0.mlp"
        where = f"{parent}.{name}", parent
        built = _not_interleaved(name)
        yield RankFault("interleave missed", layout, where, _FORWARD, _nothing, built=built)
    for layout, name in (
        ("hand_tp2", "blocks.0.attention.qkv"),
        ("hand_tp2", "blocks.1.mlp.down"),
        ("llama_tp2", f"{_LLAMA}0.self_attn.q_proj"),
        ("llama_tp2", f"{_LLAMA}1.mlp.down_proj"),
    ):
        plant = _shifted(f"{name}.weight", 1)
        yield RankFault("part of a weight a row late", layout, (name,), _FORWARD, plant, (1,))
    layout = "hand_tp2"
    plant = _on(1, _offset)
    yield RankFault("wrong offset of the vocabulary", layout, ("embed",), _FORWARD, plant)
    plant = _forward("embed", _unmasked)
    yield RankFault("mask missed", layout, ("embed",), _FORWARD, plant)
    where, stages = ("embed", "head"), ("backward", "update", "between")
    yield RankFault("tied embedding not synced", layout, where, stages, _head_apart)


def _of_loop() -> Iterator[RankFault]:
    for layout in _TP:
        title = "norm counts replicas again"
        yield RankFault(title, layout, ("*",), _NORM, _norm_of_parts(), clip=True)
    plant = _norm_of_parts(lambda rank, name: not rank or not name.startswith("blocks.0.mlp"))
    title = "norm of a sharded parameter counted on one rank"
    yield RankFault(title, "tp2", ("*",), _NORM, plant, clip=True, real=2)
    for layout in ("fsdp2", "fsdp1_2", "tp2"):
        yield RankFault("norm of the own part", layout, ("*",), _NORM, _norm_of_own, clip=True)
    yield RankFault(
        "clipped before reduced", "ddp2", ("*",), ("update", "norm"), _clip_before_reduce, clip=True
    )
    for layout in (*_DP, "tp2dp2"):
        plant = divided(lambda run, whole, own: (token_count(own), 1))
        yield RankFault("mean over own tokens", layout, ("",), _LOSS, plant, real=15)
        plant = given(lambda run, whole: run.own(whole, 0))
        ranks = (2, 3) if layout == "tp2dp2" else (1,)
        yield RankFault("a batch given twice", layout, ("",), _INPUT, plant, ranks)
    plant = divided(lambda run, whole, own: (token_count(whole), run.ranks))
    yield RankFault("divisor of all ranks", "tp2dp2", ("", "*"), _LOSS + _NORM, plant)
    plant = divided(lambda run, whole, own: (token_count(whole), 1))
    yield RankFault("divisor missed", "fsdp2", ("", "*"), _LOSS + _NORM, plant)
    yield RankFault(
        "rows of another batch", "tp2", ("",), _INPUT, _on(1, given(_rows_of_other_rank)), (1,)
    )
    for layout in ("ddp2", "fsdp2"):
        yield RankFault("a rank's loss lost", layout, ("",), _LOSS, _lost(1), (1,))
        plant = _on(1, given(_without_tokens))
        yield RankFault("a batch of zeros", layout, ("",), _INPUT, plant, (1,))
        plant = _on(1, given(_labels_of_other_rows))
        yield RankFault("labels of other rows", layout, ("",), _LOSS, plant, (1,))
    stages = ("between", "forward", "update")
    for layout, name in (
        ("ddp2", "blocks.0.mlp.up"),
        ("ddp2", "norm"),
        ("tp2", "blocks.0.attention.q"),
        ("tp2", "blocks.1.norm1"),
        ("fsdp2", "blocks.1.mlp.down"),
        ("tp2dp2", "blocks.0.mlp.gate"),
    ):
        plant = _stale(f"{name}.weight", 1)
        yield RankFault("stale weight", layout, (name,), stages, plant, (1,))
    for layout in ("ddp2", "fsdp2", "tp2"):
        plant = _on(1, _not_updated)
        yield RankFault("an update missed", layout, ("*",), stages, plant, (1,))
    for layout, option in (
        ("ddp2", {"lr": 0.005}),
        ("fsdp2", {"lr": 0.02}),
        ("tp2", {"betas": (0.9, 0.99)}),
        ("tp2dp2", {"weight_decay": 0.0}),
    ):
        title, plant = f"another {next(iter(option))}", _on(1, _other_option(**option))
        yield RankFault(title, layout, ("*", ""), stages, plant, (1,))
    yield RankFault("parameters not gathered", "zero2", ("*",), stages, _not_gathered)
    for layout in ("ddp2", "accumulated_ddp2"):
        yield RankFault("no_sync left on", layout, ("*",), _GRADIENT, _never_synced)
    for name in ("blocks.0.mlp.gate", "blocks.1.norm1"):
        built = _ignored(f"{name}.weight")
        title = "parameter ignored by DDP"
        yield RankFault(title, "ddp2", (name,), _GRADIENT, _nothing, built=built)
    yield RankFault(
        "undivided micro-batches", "accumulated_ddp2", ("", "*"), _LOSS + _NORM, _undivided
    )
    title = "divided at each micro-batch"
    yield RankFault(title, "accumulated_ddp2", ("*",), _GRADIENT, _scaled_at_each_call, real=11)
    built = _reduced_in_bfloat16
    yield RankFault("reduced in bfloat16", "fsdp2", ("*",), _GRADIENT, _nothing, built=built)


def _nothing(run: Run) -> None:
    pass


#: By name: the module, and what is wrong in it.
_ARITHMETIC: dict[str, tuple[str, Callable[[str], Plant]]] = {
    "x 1.01": ("blocks.0.mlp.act", lambda name: _output(name, _scaled(1.01))),
    "GELU": ("blocks.1.mlp.act", lambda name: _forward(name, _other_activation)),
    "eps 0.1": ("blocks.1.norm1", lambda name: _forward(name, _eps(0.1))),
    "no bias": ("blocks.0.mlp.up", lambda name: _forward(name, _without_bias)),
    "last token x 0.5": ("blocks.0.norm2", lambda name: _output(name, _last_row_wrong)),
    "two tokens exchanged": ("blocks.1.mlp.act", lambda name: _output(name, _rows_exchanged)),
    "in bfloat16": ("blocks.0.mlp.gate", lambda name: _forward(name, _in_bfloat16)),
    "x 1.001": ("blocks.1.mlp.act", lambda name: _output(name, _scaled(1.001))),
    "x 1.03": ("blocks.0.norm1", lambda name: _output(name, _scaled(1.03))),
    "eps 1e-3": ("blocks.0.norm2", lambda name: _forward(name, _eps(1e-3))),
    "gradient of the weight x 1.05": (
        "blocks.1.mlp.down",
        lambda name: lambda run: _other_weight_gradient(name, run),
    ),
    "gradient x 1.05": ("blocks.0.mlp.act", lambda name: _forward(name, _other_gradient)),
}


def _other_gradient(module: nn.Module, forward: Callable[..., Any]) -> Any:
    return lambda value: forward(changed(value, _larger))


def _of_arithmetic() -> Iterator[RankFault]:
    for layout, rank, kinds in (
        ("tp2", 1, [*_ARITHMETIC]),
        ("ddp2", 1, [*_ARITHMETIC]),
        ("fsdp2", 0, ["x 1.001", "GELU", "no bias", "last token x 0.5", "in bfloat16"]),
        ("sp2", 1, ["x 1.001", "eps 0.1", "last token x 0.5"]),
        ("tp2dp2", 2, ["x 1.001", "eps 1e-3", "two tokens exchanged", "gradient x 1.05"]),
        ("fsdp1_2", 1, ["GELU", "eps 1e-3"]),
        ("zero2", 1, ["x 1.01", "no bias"]),
        ("accumulated_ddp2", 1, ["GELU", "last token x 0.5"]),
        ("tp2_bfloat16", 0, ["GELU", "eps 0.1", "x 1.03"]),
        ("fsdp2_bfloat16", 1, ["GELU", "last token x 0.5", "x 1.03"]),
        ("hand_tp2", 1, ["x 1.001", "eps 0.1"]),
        ("hsdp4", 3, ["x 1.001", "GELU"]),
        ("tp4", 2, ["x 1.01", "eps 1e-3"]),
        ("tp8", 5, ["GELU", "in bfloat16"]),
    ):
        for kind in kinds:
            name, plant = _ARITHMETIC[kind]
            stages = _BACKWARD if "gradient" in kind else _FORWARD
            # of a gradient that ranks have terms of, nothing tells which term is wrong
            of_terms = "of the weight" in kind and layout == "ddp2"
            ranks = () if of_terms else (rank,)
            own = _on(rank, plant(name))
            yield RankFault(kind, layout, (name,), stages, own, ranks, arithmetic=True)


CATALOGUE = (*_of_layout(), *_by_hand(), *_of_loop(), *_of_arithmetic())
