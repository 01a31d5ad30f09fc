"""A decoder whose ranks share out the *sequence*, by hand, in the usual ways: keys and values
gathered, passed around a ring, or heads exchanged for tokens (Ulysses).

``torch.distributed.tensor.experimental.context_parallel`` has no attention for CPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fixtures.parallel import GROUPS, HEADS, INNER, PADDING, ROWS, VOCABULARY, WIDTH, Layout
from planted.sharded_layers import Column, Row, applied

LENGTH = 16
#: How many tokens of each row are real: a part of the sequence may hold padding alone.
LENGTHS = (16, 7, 13, 5)
_EACH = WIDTH // HEADS
_HIDDEN = -1e30  # the score of a key that is not looked at

#: What the model is given, and the labels at last.
Batch = tuple[torch.Tensor, ...]


def context_batch(step: int) -> Batch:
    """A step's tokens, positions, mask of real tokens, and labels; of shape (ROWS, LENGTH)."""
    made = torch.Generator().manual_seed(100 + step)
    tokens = torch.randint(1, VOCABULARY, (ROWS, LENGTH), generator=made)
    labels = torch.full_like(tokens, -100)
    real = torch.zeros_like(tokens, dtype=torch.bool)
    for row, length in enumerate(LENGTHS):
        tokens[row, length:] = PADDING
        labels[row, : length - 1] = tokens[row, 1:length]
        real[row, :length] = True
    return tokens, torch.arange(LENGTH).expand(ROWS, -1).contiguous(), real, labels


class Gathered(torch.autograd.Function):
    """The parts of a sequence side by side; each rank gets the sum of its part's gradients."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        parts = [torch.empty_like(value) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, value.contiguous(), group=group)
        return torch.cat(parts, -2)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        whole = grads[0].contiguous().clone()
        dist.all_reduce(whole, group=ctx.group)
        parts = whole.chunk(dist.get_world_size(ctx.group), -2)
        return parts[dist.get_rank(ctx.group)].contiguous(), None


class HeadsForTokens(torch.autograd.Function):
    """Of (rows, heads, tokens, width): all tokens of some heads, for some tokens of all heads."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return exchanged(value, group, 1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return exchanged(grads[0], ctx.group, 2, 1), None


class TokensForHeads(torch.autograd.Function):
    """The way back of ``HeadsForTokens``."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return exchanged(value, group, 2, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return exchanged(grads[0], ctx.group, 1, 2), None


def exchanged(value: torch.Tensor, group: Any, cut: int, joined: int) -> torch.Tensor:
    """An all-to-all: parts along one axis go to the ranks, which join them along another."""
    sent = torch.stack(value.chunk(dist.get_world_size(group), cut)).contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return torch.cat([*received], joined)


class Passed(torch.autograd.Function):
    """What the rank before has; the gradient goes back to it."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return _passed(value, group, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _passed(grads[0], ctx.group, -1), None


def _passed(value: torch.Tensor, group: Any, by: int) -> torch.Tensor:
    """What the rank ``by`` places before has."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    received = torch.empty_like(value, memory_format=torch.contiguous_format)
    ways = [
        dist.P2POp(dist.isend, value.contiguous(), _global(group, (rank + by) % ranks), group),
        dist.P2POp(dist.irecv, received, _global(group, (rank - by) % ranks), group),
    ]
    for work in dist.batch_isend_irecv(ways):
        work.wait()
    return received


def _global(group: Any, rank: int) -> int:
    return dist.get_global_rank(group, rank)


class PartOfAttention(nn.Module):
    """Attention to some of the keys, with the logarithm of the sum that it was divided by."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        times = q.shape[1] // k.shape[1]
        k, v = (each.repeat_interleave(times, 1) for each in (k, v))
        scores = (q @ k.transpose(-1, -2)).float() * _EACH**-0.5
        scores = scores.masked_fill(~seen[:, None], _HIDDEN)
        total = scores.logsumexp(-1, keepdim=True)
        return (scores - total).exp().to(v.dtype) @ v, total


class CoreAttention(nn.Module):
    """Causal attention of the ranks' parts of a sequence.

    Attributes:
        group: ``None`` if the sequence is whole.
        way: ``"gather"``, ``"ring"`` or ``"heads"``.
        order: of the tokens that all ranks have together, in the whole sequence.
    """

    group: Any = None
    way = ""
    order: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.part = PartOfAttention()

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        positions: torch.Tensor,
        real: torch.Tensor,
    ) -> torch.Tensor:
        if self.way == "ring":
            return self.around(q, k, v, positions, real)
        keys, known = positions, real
        if self.group is not None:
            keys, known = self.gathered(positions), self.gathered(real)
        if self.way == "gather":
            k, v = self.joined(k), self.joined(v)
        if self.way == "heads":
            ranks = dist.get_world_size(self.group)
            if k.shape[1] % ranks:
                k, v = (each.repeat_interleave(ranks // each.shape[1], 1) for each in (k, v))
            q, k, v = (self.scattered(each) for each in (q, k, v))
            positions = keys
        mixed: torch.Tensor = self.part(q, k, v, self.seen(positions, keys, known))[0]
        return self.back(mixed) if self.way == "heads" else mixed

    def seen(self, queries: torch.Tensor, keys: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Which keys each query looks at."""
        return (keys[:, None] <= queries[..., None]) & real[:, None]

    def joined(self, value: torch.Tensor) -> torch.Tensor:
        return self.natural(applied(Gathered, value, self.group))

    def scattered(self, value: torch.Tensor) -> torch.Tensor:
        return self.natural(applied(HeadsForTokens, value, self.group))

    def back(self, value: torch.Tensor) -> torch.Tensor:
        return applied(TokensForHeads, value, self.group)

    def gathered(self, value: torch.Tensor) -> torch.Tensor:
        """Positions, or a mask, of all ranks' tokens."""
        numbers = value.long()[..., None]
        return self.natural(applied(Gathered, numbers, self.group))[..., 0].to(value.dtype)

    def natural(self, value: torch.Tensor) -> torch.Tensor:
        """All ranks' tokens, in the order of the whole sequence."""
        return value.index_select(-2, self.order)

    def around(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        positions: torch.Tensor,
        real: torch.Tensor,
    ) -> torch.Tensor:
        """Keys and values go around; the parts of the attention are added as they come."""
        held, at = torch.stack([k, v]), torch.stack([positions, real.long()])
        found, total = self.part(q, k, v, self.seen(positions, positions, real))
        for _ in range(1, dist.get_world_size(self.group)):
            held, at = self.passed(held), self.passed(at)
            own, sums = self.part(q, *held, self.seen(positions, at[0], at[1].bool()))
            found, total = self.merged(found, total, own, sums)
        return found

    def passed(self, value: torch.Tensor) -> torch.Tensor:
        return applied(Passed, value, self.group)

    def merged(
        self, found: torch.Tensor, total: torch.Tensor, own: torch.Tensor, sums: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        both = torch.logaddexp(total, sums)
        mixed = found * (total - both).exp() + own * (sums - both).exp()
        return mixed.to(found.dtype), both


class Rotary(nn.Module):
    """The rotations of each token's position."""

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        speeds = 100.0 ** (-torch.arange(0, _EACH, 2) / _EACH)
        angles = positions[..., None] * speeds
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin()


def _turned(value: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cos, sin = (each[:, None].to(value.dtype) for each in turns)
    first, second = value.chunk(2, -1)
    return value * cos + torch.cat([-second, first], -1) * sin


class ContextAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = Column(WIDTH, WIDTH)
        # a bias of the keys has almost no gradient
        self.k = Column(WIDTH, GROUPS * _EACH, bias=False)
        self.v = Column(WIDTH, GROUPS * _EACH)
        self.core = CoreAttention()
        self.o = Row(WIDTH, WIDTH)

    def forward(
        self, x: torch.Tensor, turns: Any, positions: torch.Tensor, real: torch.Tensor
    ) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = (
            each(x).view(rows, length, -1, _EACH).transpose(1, 2)
            for each in (self.q, self.k, self.v)
        )
        mixed = self.core(_turned(q, turns), _turned(k, turns), v, positions, real)
        return self.o(mixed.transpose(1, 2).reshape(rows, length, -1))


class ContextMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Column(WIDTH, INNER, bias=False)
        self.up = Column(WIDTH, INNER)
        self.act = nn.SiLU()
        self.down = Row(INNER, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


class ContextBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = ContextAttention()
        self.dropout = nn.Dropout(0.0)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = ContextMlp()

    def forward(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norm1(x), *rest))
        return x + self.mlp(self.norm2(x))


class ContextDecoder(nn.Module):
    """A decoder with rotary positions.

    Attributes:
        own: the positions of this rank's tokens, where the caller gives none.
    """

    own: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.arange(LENGTH)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.rotary = Rotary()
        self.blocks = nn.ModuleList(ContextBlock() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor | None = None,
        real: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if positions is None:
            positions = self.own.expand(len(tokens), -1)
        if real is None:
            real = torch.ones_like(tokens, dtype=torch.bool)
        x, turns = self.embed(tokens), self.rotary(positions)
        for block in self.blocks:
            x = block(x, turns, positions, real)
        return self.head(self.norm(x))


@dataclass(frozen=True)
class ContextLayout(Layout):  # type: ignore[misc]
    """A layout of which ranks along ``cp`` hold a part of the sequence.

    Attributes:
        way: of ``CoreAttention``.
        zigzag: whether each has a chunk from the front and its mirror from the back.
        ids: whether the model is given positions and mask, too.
    """

    way: str = "gather"
    zigzag: bool = False
    ids: bool = False

    @property
    def parts(self) -> int:
        """Among how many ranks a sequence is shared out."""
        return int(self.mesh.get("cp", 1))

    @property
    def data_ranks(self) -> int:
        return int(super().data_ranks * self.parts)

    def data_rank(self, mesh: Any) -> int:
        along = mesh.get_local_rank("cp") if "cp" in self.mesh else 0
        return int(super().data_rank(mesh) * self.parts + along)

    def tokens(self, part: int) -> torch.Tensor:
        """Where a part's tokens are in the sequence."""
        if not self.zigzag:
            return torch.arange(LENGTH).chunk(self.parts)[part]
        chunks = torch.arange(LENGTH).chunk(2 * self.parts)
        return torch.cat([chunks[part], chunks[-1 - part]])

    def own(self, whole: Any, place: int) -> Any:
        rows, part = divmod(place, self.parts)
        each = ROWS // super().data_ranks
        held = [
            value[rows * each : (rows + 1) * each, self.tokens(part)].contiguous()
            for value in whole
        ]
        return (*held,) if self.ids else (held[0], held[-1])

    def whole_batch(self, step: int) -> Any:
        return context_batch(step)


def by_context(model: nn.Module, mesh: Any, layout: ContextLayout) -> nn.Module:
    """The model of a rank that has a part of the sequence, and perhaps of the weights."""
    group = mesh.get_group("cp")
    model.own = layout.tokens(mesh.get_local_rank("cp"))
    order = torch.cat([layout.tokens(part) for part in range(layout.parts)]).argsort()
    for module in model.modules():
        if isinstance(module, CoreAttention):
            module.group, module.way, module.order = group, layout.way, order
        if "tp" in layout.mesh and isinstance(module, (Column, Row)):
            ranks, rank = layout.mesh["tp"], mesh.get_local_rank("tp")
            module.group = mesh.get_group("tp")
            for name, parameter in [*module.named_parameters()]:
                if isinstance(module, Column) or name == "weight":
                    held = parameter.data.chunk(ranks, int(isinstance(module, Row)))[rank]
                    setattr(module, name, nn.Parameter(held.clone()))
    data = group if "tp" in layout.mesh else None
    return nn.parallel.DistributedDataParallel(model, process_group=data)


def _layout(mesh: dict[str, int], way: str, **options: Any) -> ContextLayout:
    made = ContextLayout(mesh, way=way, **options)
    return ContextLayout(mesh, lambda model, own: by_context(model, own, made), way=way, **options)


def context_model(dtype: torch.dtype = torch.float32, seed: int = 5) -> ContextDecoder:
    """The model before it is spread: on every rank the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ContextDecoder().to(dtype)


#: ``_ids``: the model is given positions and a mask of padding, too.
CONTEXT_LAYOUTS: dict[str, Layout] = {
    "context_one": ContextLayout(),
    "context_ids_one": ContextLayout(ids=True),
    "cp2": _layout({"cp": 2}, "gather"),
    "cp2_zigzag": _layout({"cp": 2}, "gather", zigzag=True),
    "cp2_bfloat16": _layout({"cp": 2}, "gather", zigzag=True, dtype=torch.bfloat16),
    "ring2_ids": _layout({"cp": 2}, "ring", zigzag=True, ids=True),
    "ring4": _layout({"cp": 4}, "ring", zigzag=True),
    "ulysses2_ids": _layout({"cp": 2}, "heads", ids=True),
    "ulysses4": _layout({"cp": 4}, "heads"),
    "dp2cp2_ids": _layout({"dp": 2, "cp": 2}, "ring", zigzag=True, ids=True),
    "cp2tp2": _layout({"cp": 2, "tp": 2}, "gather", zigzag=True),
}
