"""The training of ``fixtures.parallel``, with a place for each fault that user code may have."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import accucompare as ac
from fixtures.parallel import Layout, loss_of, transformer, whole_model
from planted.context_models import context_model
from planted.expert_models import MOE_KINDS, moe_model
from planted.megatron_models import (
    MegatronLayout,
    leave_groups,
    megatron_model,
    megatron_optimizer,
    megatron_step,
)
from planted.pipeline_models import Pipeline, PipelineLayout, deep_model
from planted.rank_models import ALL_LAYOUTS, fused_model, ones

#: What the model is given, tokens first; and the labels at last.
Batch = tuple[torch.Tensor, ...]


@dataclass
class Run:
    """A rank's training, which a fault changes before it begins.

    Attributes:
        layout: of ``fixtures.parallel``.
        rank, ranks: of this process.
        mesh: ``None`` on one device.
        model: spread.
        clip: the largest norm of all gradients together; not clipped if ``None``.
        batch: makes of a step's whole batch this rank's.
        divisor: makes of a step's whole batch, and this rank's, what the sum of the loss is divided
            by, and multiplied with.
        unsynced: whether a backward keeps DDP from reducing the gradients, by the step and whether
            it is the step's last one.
        updates: whether a step's update is made.
        before_update, after_update: what else the loop does, given the step.
        first: the number of the first batch.
        norm: the norm of all gradients, of the whole model.
        pipeline: what runs the model, if it is a stage of a pipeline.
    """

    layout: Layout
    rank: int
    ranks: int
    mesh: Any
    model: nn.Module
    optimizer: Any = None
    clip: float | None = None
    batch: Callable[[Run, int, Batch], Batch] = field(
        default=lambda run, step, whole: run.own(whole)
    )
    divisor: Callable[[Run, Batch, Batch], tuple[int, float]] = field(
        default=lambda run, whole, own: (token_count(whole), run.layout.data_ranks)
    )
    unsynced: Callable[[int, bool], bool] = field(default=lambda step, last: not last)
    updates: Callable[[int], bool] = field(default=lambda step: True)
    before_update: list[Callable[[Run, int], None]] = field(default_factory=list)
    after_update: list[Callable[[Run, int], None]] = field(default_factory=list)
    first: int = 0
    norm: Callable[[Run], float] = field(default=lambda run: whole_norm(run))
    pipeline: Pipeline | None = None

    @property
    def place(self) -> int:
        """Among those that share out the rows."""
        place: int = self.layout.data_rank(self.mesh)
        return place

    def along(self, name: str) -> int:
        return int(self.mesh.get_local_rank(name))

    def group(self, name: str) -> Any:
        return self.mesh.get_group(name)

    def own(self, whole: Batch, place: int | None = None) -> Batch:
        """A place's part of a batch; by default this rank's."""
        found: Batch = self.layout.own(whole, self.place if place is None else place)
        return found

    def module(self, name: str) -> Any:
        """A module by the name that it has on one device."""
        if self.pipeline is not None:
            return self.pipeline.named[name]
        return next(module for known, module in self.model.named_modules() if plain(known) == name)

    def parameter(self, name: str) -> Any:
        if self.pipeline is not None:
            module, _, leaf = name.rpartition(".")
            return getattr(self.module(module), leaf)
        return next(each for known, each in self.model.named_parameters() if plain(known) == name)


def plain(name: str) -> str:
    """A name without those of the modules that DDP and FSDP1 wrap around the model."""
    return ".".join(
        part for part in name.split(".") if part not in ("module", "_fsdp_wrapped_module")
    )


def train(
    name: str,
    out: Path,
    plant: Sequence[Callable[[Run], None]] = (),
    *,
    steps: int = 2,
    seed: int = 5,
    clip: float | None = None,
    dtypes: Sequence[torch.dtype] = (),
    built: Callable[[Layout], Layout] = lambda layout: layout,
    **recorded: Any,
) -> None:
    """Train as a layout says, under a capture. All ranks of the process group call it.

    Args:
        plant: what puts faults into the run, before its optimizer is made.
        seed: of the weights and the batches.
        dtypes: to which the weights are rounded in turn; by default the layout's.
        built: changes how it is spread.
        recorded: options of the capture.
    """
    layout = built(ALL_LAYOUTS[name])
    dtypes = dtypes or [layout.dtype]
    mesh = _mesh(layout)
    ranks = layout.ranks
    rank = dist.get_rank() if ranks > 1 else 0
    if isinstance(layout, MegatronLayout):
        model: Any = megatron_model(layout, dtypes, seed)
    elif kind := layout.transformer:
        model = transformer(kind, out.parent / f"weights-{kind}", ranks, layout.experts)
        model = _rounded(model, dtypes)
    else:
        model = layout.spread(_rounded(_MODELS[ones(name)](seed=seed), dtypes), mesh)
    run = Run(layout, rank, ranks, mesh, model, clip=clip, first=10 * seed)
    if isinstance(layout, PipelineLayout):
        run.pipeline = Pipeline(layout, model, mesh)
    for each in plant:
        each(run)
    if run.optimizer is None and isinstance(layout, MegatronLayout):
        run.optimizer = megatron_optimizer(layout, clip)(model)
    run.optimizer = run.optimizer or layout.optimizer(model)
    # Megatron's optimizers are none of PyTorch's, but found when they step
    loop = None if isinstance(layout, MegatronLayout) else run.optimizer
    try:
        with ac.capture(model, str(out), overwrite=True, loop=loop, **recorded) as session:
            for step in range(steps):
                _step(run, step)
                session.step()
    finally:
        if isinstance(layout, MegatronLayout):
            leave_groups()


#: Makes the whole model, by the layout on one device.
_MODELS: dict[str, Callable[..., Any]] = {
    "one": whole_model,
    "fused_one": fused_model,
    "context_one": context_model,
    "context_ids_one": context_model,
    "deep_one": deep_model,
    "tied_one": functools.partial(deep_model, tied=True),
    **{name: functools.partial(moe_model, kind) for name, kind in MOE_KINDS.items()},
}


def _rounded(model: nn.Module, dtypes: Sequence[torch.dtype]) -> nn.Module:
    for dtype in dtypes:
        model = model.to(dtype)
    return model


def _step(run: Run, step: int) -> None:
    whole = run.layout.whole_batch(run.first + step)
    own = run.batch(run, step, whole)
    if isinstance(run.layout, MegatronLayout):
        megatron_step(run, own)
    else:
        count, ranks = run.divisor(run, whole, own)
        if run.pipeline is None:
            _accumulate(run, step, own, count, ranks)
        else:
            run.pipeline.step(own[0], own[-1], count, ranks)
        if run.clip is not None:
            norm = torch.tensor(run.norm(run))
            nn.utils.clip_grads_with_norm_(run.model.parameters(), run.clip, norm, foreach=False)
    for each in run.before_update:
        each(run, step)
    if run.updates(step):
        run.optimizer.step()
    for each in run.after_update:
        each(run, step)
    run.optimizer.zero_grad()


def _accumulate(run: Run, step: int, own: Batch, count: int, ranks: float) -> None:
    """Forwards and backwards of a rank's rows."""
    parts = [*zip(*(each.chunk(run.layout.micro) for each in own), strict=True)]
    for number, (*given, labels) in enumerate(parts):
        quiet = run.unsynced(step, number == len(parts) - 1)
        no_sync: Any = getattr(run.model, "no_sync", contextlib.nullcontext)
        with no_sync() if quiet else contextlib.nullcontext():
            found = run.model(*given)
            logits = getattr(found, "logits", found)
            loss_of(logits, labels, count, ranks).backward()


def whole_norm(run: Run) -> float:
    """The norm of all gradients, each element counted once."""
    total = 0.0
    for parameter in run.model.parameters():
        grad = parameter.grad
        if grad is not None:
            full: torch.Tensor = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
            total += float(full.double().square().sum())
    if type(run.model).__name__ == "FullyShardedDataParallel":  # its gradients are no DTensors
        sums = torch.tensor(total)
        dist.all_reduce(sums)
        total = float(sums)
    return math.sqrt(total)


def token_count(batch: Batch) -> int:
    return int((batch[-1] != -100).sum())


def _mesh(layout: Layout) -> Any:
    """The layout's mesh, made once in a process."""
    if not layout.mesh:
        return None
    from torch.distributed.device_mesh import init_device_mesh

    key = (*layout.mesh.items(),)
    if key not in _MESHES:
        _MESHES[key] = init_device_mesh(
            "cpu", (*layout.mesh.values(),), mesh_dim_names=(*layout.mesh.keys(),)
        )
    return _MESHES[key]


_MESHES: dict[Any, Any] = {}
