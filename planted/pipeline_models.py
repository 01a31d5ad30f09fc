"""The decoder of ``fixtures.parallel`` with more blocks, cut into the stages of pipelines.

Each layout cuts and names its stages in one of the usual ways; microbatches are single rows, so
that each has another number of tokens.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fixtures.parallel import Block, Decoder, Layout, loss_of, tensor_parallel

BLOCKS = 4


def deep_model(dtype: torch.dtype = torch.float32, seed: int = 5, tied: bool = False) -> Decoder:
    """The model before it is cut: on every rank the same; ``tied``: its head is its embedding."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Decoder(BLOCKS)
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):  # as after some training: no two are equal
                parameter.data += 0.1 * torch.randn_like(parameter)
        if tied:
            model.head.weight = model.embed.weight
        return model.to(dtype)


class Kept(nn.Module):
    """A stage that keeps some layers of the model, under the model's own names."""

    def __init__(self, model: Decoder, blocks: range) -> None:
        super().__init__()
        self.embed = model.embed if 0 in blocks else None
        self.blocks = nn.ModuleDict({str(number): model.blocks[number] for number in blocks})
        self.norm = model.norm if BLOCKS - 1 in blocks else None
        self.head = model.head if BLOCKS - 1 in blocks else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embed is not None:
            x = self.embed(x)
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None or self.norm is None else self.head(self.norm(x))


class Counted(nn.Module):
    """A stage whose layers are counted from 0."""

    def __init__(self, model: Decoder, blocks: range) -> None:
        super().__init__()
        if 0 in blocks:
            self.embed = model.embed
        self.layers = nn.ModuleList(model.blocks[number] for number in blocks)
        if BLOCKS - 1 in blocks:
            self.norm, self.head = model.norm, model.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if hasattr(self, "embed"):
            x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)) if hasattr(self, "head") else x


class Wrapped(nn.Module):
    """A stage inside of another module."""

    def __init__(self, model: Decoder, blocks: range) -> None:
        super().__init__()
        self.language = nn.Module()
        self.language.decoder = Counted(model, blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.language.decoder(x)  # type: ignore[operator]


@dataclass(frozen=True)
class PipelineLayout(Layout):  # type: ignore[misc]
    """A layout whose ranks along ``pp`` have stages of the model.

    Attributes:
        stage: makes a stage of the model and its blocks.
        chunks: how many stages a rank has.
        shares: how many blocks each stage has.
        schedules: how often the schedule runs before an update.
        tied: whether the head is the embedding.
        within: how the whole model is spread over the other dimensions before it is cut.
        sharded: whether FSDP2 cuts the stages over ``dp``, and averages their gradients.
    """

    stage: Callable[[Decoder, range], nn.Module] = Kept
    chunks: int = 1
    shares: tuple[int, ...] = (2, 2)
    schedules: int = 1
    tied: bool = False
    within: Callable[[nn.Module, Any], nn.Module] = lambda model, mesh: model
    sharded: bool = False

    def stages_of(self, mesh: Any) -> list[int]:
        """The numbers of this rank's stages."""
        own = mesh.get_local_rank("pp")
        return [own + self.mesh["pp"] * number for number in range(self.chunks)]


#: The names that modules have on one device.
NAMES: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()


def cut(model: Any, mesh: Any, layout: PipelineLayout) -> nn.Module:
    """This rank's stage, or its stages in a list."""
    for name, module in layout.within(model, mesh).named_modules():
        NAMES[module] = name
    parts = []
    for number in layout.stages_of(mesh):
        first = sum(layout.shares[:number])
        parts.append(layout.stage(model, range(first, first + layout.shares[number])))
    if layout.sharded:
        from torch.distributed.fsdp import fully_shard

        for part in parts:
            for module in part.modules():
                if isinstance(module, Block):
                    fully_shard(module, mesh=mesh["dp"])
            fully_shard(part, mesh=mesh["dp"])
    return parts[0] if len(parts) == 1 else nn.ModuleList(parts)


class Pipeline:
    """A rank's part of a pipeline, which ``step`` runs with torch's schedules.

    Attributes:
        named: this rank's modules, by the names that they have on one device.
        scale_grads: torch's option.
        rows: of this rank's batch, that are given at all.
        order: changes the tokens that the first stage is given, but not the labels.
        scale: changes the loss of a microbatch.
        reduces: what follows the last backward.
    """

    def __init__(self, layout: PipelineLayout, model: Any, mesh: Any) -> None:
        self.layout, self.model, self.mesh = layout, model, mesh
        self.parts: Sequence[Any] = model if layout.chunks > 1 else [model]
        self.named = {NAMES[each]: each for each in model.modules() if each in NAMES}
        self.scale_grads = False
        self.rows = slice(None)
        self.order: Callable[[torch.Tensor], torch.Tensor] = lambda tokens: tokens
        self.scale: Callable[[torch.Tensor], torch.Tensor] = lambda loss: loss
        self.reduces = [sum_tied] if layout.tied else []
        if "dp" in layout.mesh and not layout.sharded:
            self.reduces.append(mean_over_data)
        self._count, self._ranks = 1, 1.0
        self._schedule: Any = None

    def step(self, tokens: torch.Tensor, labels: torch.Tensor, count: int, ranks: float) -> None:
        """Forwards and backwards of all microbatches."""
        if self._schedule is None:
            self._schedule = self._made()
        self._count, self._ranks = count, ranks
        own = self.layout.stages_of(self.mesh)
        runs = self.layout.schedules
        tokens, labels = tokens[self.rows], labels[self.rows]
        for given, wanted in zip(tokens.chunk(runs), labels.chunk(runs), strict=True):
            args = (self.order(given),) if 0 in own else ()
            last = {"target": wanted} if len(self.layout.shares) - 1 in own else {}
            self._schedule.step(*args, **last)
        for reduce in self.reduces:
            reduce(self)

    def _loss(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.scale(loss_of(output, labels, self._count, self._ranks))

    def _made(self) -> Any:
        from torch.distributed.pipelining import (
            PipelineStage,
            Schedule1F1B,
            ScheduleInterleaved1F1B,
        )

        stages: list[Any] = [
            PipelineStage(
                part,
                number,
                len(self.layout.shares),
                torch.device("cpu"),
                group=self.mesh.get_group("pp"),
            )
            for part, number in zip(self.parts, self.layout.stages_of(self.mesh), strict=True)
        ]
        options: dict[str, Any] = {"loss_fn": self._loss, "scale_grads": self.scale_grads}
        many = len(range(self.layout.micro)[self.rows]) // self.layout.schedules
        if self.layout.chunks > 1:
            return ScheduleInterleaved1F1B(stages, many, **options)
        return Schedule1F1B(stages[0], many, **options)


def sum_tied(pipeline: Pipeline) -> None:
    """Add up the gradients of the embedding and the head, on the first and the last stage."""
    for name, parameter in pipeline.model.named_parameters():
        if name.endswith(("embed.weight", "head.weight")):
            dist.all_reduce(parameter.grad, group=pipeline.mesh.get_group("pp"))


def mean_over_data(pipeline: Pipeline) -> None:
    """The mean of the gradients over the ranks of one stage."""
    for parameter in pipeline.model.parameters():
        dist.all_reduce(parameter.grad, group=pipeline.mesh.get_group("dp"))
        parameter.grad /= pipeline.layout.mesh["dp"]


def _layout(mesh: dict[str, int], **options: Any) -> PipelineLayout:
    made: PipelineLayout = PipelineLayout(
        mesh, lambda model, mesh: cut(model, mesh, made), **{"micro": 4, **options}
    )
    return made


PIPELINES: dict[str, Layout] = {
    "deep_one": Layout(),
    "tied_one": Layout(),
    "pp2": _layout({"pp": 2}, stage=Kept, shares=(1, 3)),
    "counted_pp2": _layout({"pp": 2}, stage=Counted),
    "wrapped_pp2": _layout({"pp": 2}, stage=Wrapped, shares=(3, 1)),
    "chunks_pp2": _layout({"pp": 2}, stage=Counted, chunks=2, shares=(1, 1, 1, 1)),
    "tied_pp2": _layout({"pp": 2}, stage=Counted, tied=True),
    "twice_pp2": _layout({"pp": 2}, stage=Counted, schedules=2),
    "pp4": _layout({"pp": 4}, stage=Counted, shares=(1, 1, 1, 1)),
    "pp2tp2": _layout({"pp": 2, "tp": 2}, stage=Counted, within=tensor_parallel),
    "pp2fsdp2": _layout({"pp": 2, "dp": 2}, stage=Counted, micro=2, sharded=True),
    "pp2dp2": _layout({"pp": 2, "dp": 2}, stage=Counted, micro=2),
}
