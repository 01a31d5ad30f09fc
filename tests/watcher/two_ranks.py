"""What test_distributed.py lets two processes do: ``two_ranks.py OUT``, with the variables that
torchrun sets.

Each check leaves its logs in ``OUT/<check>/``, and what each rank saw in
``OUT/<check>-<rank>.json``. At last rank 1 ends with an error."""

from __future__ import annotations

import contextlib
import copy
import datetime
import functools
import io
import json
import os
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

import accucompare as ac
from accucompare.cli import main
from accucompare.findings.log.log import read_log
from accucompare.watcher.watch.watch_context import Watch
from tests.asked import looking

try:
    from torch.distributed.fsdp import fully_shard  # of torch 2.6
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor  # of torch 2.5
except ImportError:
    from torch.distributed._composable.fsdp import fully_shard  # type: ignore[no-redef]
    from torch.distributed._tensor import DTensor, Shard, distribute_tensor  # type: ignore[no-redef]


class Spoilt(torch.autograd.Function):
    """Passes on what it is given, and makes its gradient NaN."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * float("nan")


class Talks(torch.autograd.Function):
    """Passes on what it is given, and asks the other rank in the ``forward``, or in the
    ``backward`` alone.
    """

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, when: str) -> torch.Tensor:
        ctx.when = when
        if when == "forward":
            dist.all_reduce(torch.zeros(()))
        return values.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        if ctx.when == "backward":
            dist.all_reduce(torch.zeros(()))
        return grad.clone(), None


class Layer(nn.Module):
    """A linear layer that goes wrong when told to: in the ``gradient`` of its weight, ``forward``,
    or in an output that nobody uses.

    It ``talks`` to the other rank in the forward or the backward, if told so.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4) / 2)
        self.bias = nn.Parameter(torch.zeros(4))
        self.spoil = self.talks = ""

    def forward(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = Talks.apply(values, self.talks) if self.talks else values
        weight = Spoilt.apply(self.weight) if self.spoil == "gradient" else self.weight
        output, unused = values @ weight + self.bias, values.detach().abs() + 1
        if self.spoil in ("forward", "unused"):
            unused = (-unused).log()  # of what is negative: NaN
        return (output + unused if self.spoil == "forward" else output), unused


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = Layer(), nn.Dropout(0.2), Layer()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values, _ = self.first(values)
        values, _ = self.second(self.drop(values).relu())
        return values


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def train(
    model: nn.Module,
    watch: Watch | None,
    spoil: str,
    accumulate: bool = False,
    steps: int = 3,
    clip: bool = False,
) -> None:
    """Steps of SGD, each rank with data of its own; in the middle one, something goes wrong on rank
    1.
    """
    rank = dist.get_rank()
    layer = [module for module in model.modules() if isinstance(module, Layer)][-1]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    random = torch.Generator().manual_seed(1 + rank)
    torch.manual_seed(7 + rank)
    for step in range(steps):
        for first in (True, False) if accumulate else (False,):
            bad = spoil if rank == 1 and step == 1 and first is accumulate else ""
            layer.spoil = bad
            values = torch.randn(3, 4, generator=random)
            if bad == "input":
                values[0, 0] = float("nan")
            with model.no_sync() if first else contextlib.nullcontext():  # type: ignore[operator]
                model(values).pow(2).mean().backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if watch is not None:
            watch.step()


def parameters(model: nn.Module) -> list[torch.Tensor]:
    """This rank's part of each."""
    found = [parameter.detach() for parameter in model.parameters()]
    return [(each.to_local() if isinstance(each, DTensor) else each).clone() for each in found]


def trained(
    name: str, wrap: Callable[[Net], nn.Module], spoil: str = "", **how: Any
) -> dict[str, Any]:
    """Train with a watch and without, and say what the watch found, and whether the parameters are
    the same.
    """
    plain, model = wrap(net()), wrap(net())
    try:
        train(plain, None, spoil, **how)
    except RuntimeError as error:  # an older torch's FSDP asks more of gloo than it has
        return {"skip": str(error)}
    with ac.watch(model, out=OUT / name, on_finding="snapshot", quiet=True) as watch:
        train(model, watch, spoil, **how)
    pairs = zip(parameters(plain), parameters(model), strict=True)
    return {
        "same": all(torch.equal(one.nan_to_num(7), other.nan_to_num(7)) for one, other in pairs)
    }


def fsdp2(model: Net) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    fully_shard(model.first, mesh=mesh)
    fully_shard(model.second, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp1(model: Net) -> nn.Module:
    """Each layer sharded by itself, as it is usually done, under the parameters' own names."""
    policy = ModuleWrapPolicy({Layer})
    return FullyShardedDataParallel(
        model, device_id=torch.device("cpu"), auto_wrap_policy=policy, use_orig_params=True
    )


def fsdp1_flat(model: Net) -> nn.Module:
    """Only one parameter is left, whose name says nothing."""
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def talking(when: str, model: Net) -> nn.Module:
    model.second.talks = when
    return DistributedDataParallel(model)


def with_megatron(model: Net) -> nn.Module:
    """A model of a program that has imported Megatron, for whatever."""
    sys.modules["megatron.core"] = types.ModuleType("megatron.core")
    return DistributedDataParallel(model)


def raised(
    name: str, wrap: Callable[[Net], nn.Module], spoil: str, clip: bool = False, **options: Any
) -> dict[str, Any]:
    """What each rank raises, and whether it has updated with it."""
    model = wrap(net())
    seen: dict[str, Any] = {}
    try:
        with ac.watch(model, **looking(out=OUT / name, quiet=True, **options)) as watch:
            train(model, watch, spoil, clip=clip)
    except ac.NonFiniteError as error:
        seen |= {"raised": str(error), "step": watch.step_number}
    finite = all(bool(each.isfinite().all()) for each in parameters(model))
    return {**seen, "finite": finite, "same": True}


class Summed(nn.Module):
    """Its output is the sum of all ranks' parts, as a row-parallel layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.spoil = False

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        output = self.inner(values).detach()
        output = (output - output) / 0 if self.spoil else output
        dist.all_reduce(output)
        return output


def tensor_parallel(name: str) -> dict[str, Any]:
    """The part of rank 1 is NaN; rank 0 is given it by the sum."""
    model = nn.Sequential(nn.Linear(4, 4), Summed(), nn.ReLU())
    model[1].spoil = dist.get_rank() == 1
    with ac.watch(model, out=OUT / name, on_finding="warn", quiet=True) as watch:
        model(torch.ones(2, 4))
        watch.step()
    return {"same": True}


def coordinates(name: str, model: nn.Module, **options: Any) -> dict[str, int]:
    with ac.watch(model, **looking(out=OUT / name, quiet=True, **options)):
        pass
    return read_log(OUT / name / f"rank{dist.get_rank()}.jsonl")[-1][0].coordinates  # type: ignore[union-attr]


def places() -> dict[str, Any]:
    """The coordinates by every way in which they can be known."""
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("pp", "tp"))
    found = {"none": coordinates("places", net()), "mesh": coordinates("places", net(), mesh=mesh)}
    sharded = net()
    sharded.first.weight = nn.Parameter(
        distribute_tensor(sharded.first.weight.detach(), init_device_mesh("cpu", (2,)), [Shard(0)])
    )
    found["dtensor"] = coordinates("places", sharded)
    megatron: Any = types.ModuleType("megatron.core.parallel_state")
    megatron.get_tensor_model_parallel_rank = lambda: rank
    megatron.get_pipeline_model_parallel_rank = lambda: 0
    megatron.get_data_parallel_rank = lambda: 3
    megatron.get_context_parallel_rank = lambda: _uninitialised()
    sys.modules["megatron.core.parallel_state"] = megatron
    try:
        found["megatron"] = coordinates("places", net())
    finally:
        del sys.modules["megatron.core.parallel_state"]
    return found


def _uninitialised() -> int:
    raise AssertionError("context parallel group is not initialized")


def case() -> ac.Case:
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return ac.Case(
        model,
        [torch.randn(3, 4)] * 2,
        loss=lambda output: output.pow(2).mean(),
        optimizer=optimizer,
    )


def command_line(name: str) -> dict[str, Any]:
    """``torchrun … -m accucompare watch``, as far as it goes on in each process."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(["watch", f"{__file__}:case", "--out", str(OUT / name)])
    return {"printed": out.getvalue()}


def fail() -> None:
    """Both raise: rank 1 what it has found, rank 0 that another has, before it updates."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    model = DistributedDataParallel(net())
    with ac.watch(model, out=OUT / "raised", mesh=mesh) as watch:
        train(model, watch, "gradient")


CHECKS: dict[str, Callable[[str], dict[str, Any]]] = {
    "alone": lambda name: trained(name, copy.deepcopy, "gradient"),
    "ddp": lambda name: trained(name, DistributedDataParallel, "gradient"),
    "ddp-input": lambda name: trained(name, DistributedDataParallel, "input"),
    "ddp-forward": lambda name: trained(name, DistributedDataParallel, "forward"),
    "ddp-unused": lambda name: trained(name, DistributedDataParallel, "unused"),
    "ddp-accumulated": lambda name: trained(
        name, DistributedDataParallel, "gradient", accumulate=True
    ),
    **{
        f"{wrap.__name__}-{spoil or 'clean'}": lambda name, wrap=wrap, spoil=spoil: trained(
            name, wrap, spoil
        )
        for wrap in (fsdp2, fsdp1, fsdp1_flat)
        for spoil in ("", "gradient", "forward")
    },
    "ddp-raised": lambda name: raised(name, DistributedDataParallel, "gradient"),
    "ddp-unused-agreed": lambda name: raised(name, DistributedDataParallel, "unused", agree=True),
    "fsdp2-agreed": lambda name: raised(name, fsdp2, "unused", agree=True),
    "ddp-clipped": lambda name: raised(name, DistributedDataParallel, "gradient", clip=True),
    "megatron": lambda name: raised(name, with_megatron, "gradient"),
    "plain": lambda name: raised(name, copy.deepcopy, "forward"),
    **{
        f"talks-{when}": lambda name, when=when: raised(
            name, functools.partial(talking, when), "gradient"
        )
        for when in ("forward", "backward")
    },
    "tensor-parallel": tensor_parallel,
    "places": lambda name: places(),
    "command": command_line,
}

if __name__ == "__main__":
    OUT = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank, ranks = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    dist.init_process_group(
        "gloo", f"file://{OUT}/store", datetime.timedelta(minutes=30), world_size=ranks, rank=rank
    )
    for name, check in CHECKS.items():
        (OUT / f"{name}-{dist.get_rank()}.json").write_text(json.dumps(check(name)))
        dist.barrier()
    fail()
