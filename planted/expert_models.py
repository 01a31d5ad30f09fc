"""A decoder with a mixture of experts in each block, and experts that are spread over ranks.

Each rank has its own rows of the batch and some of the experts. Tokens travel to their experts and
back by an all-to-all, so an expert's rows lie in another order than one device has them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from fixtures.parallel import INNER, WIDTH, Decoder, Layout, Mlp

EXPERTS, CHOSEN = 6, 2
#: The share of the loss that balances the experts.
_BALANCE = 0.05


class AllToAll(torch.autograd.Function):
    """Rows sent to the ranks of a group; their gradients go back."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, sent: list[int], got: list[int], group: Any) -> Any:
        ctx.sizes = sent, got, group
        return exchanged(rows, sent, got, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        sent, got, group = ctx.sizes
        return exchanged(grads[0], got, sent, group), None, None, None


def exchange(rows: torch.Tensor, sent: list[int], got: list[int], group: Any) -> torch.Tensor:
    """As ``AllToAll``."""
    apply: Any = AllToAll.apply
    found: torch.Tensor = apply(rows, sent, got, group)
    return found


def exchanged(rows: torch.Tensor, sent: list[int], got: list[int], group: Any) -> torch.Tensor:
    found = rows.new_empty(sum(got), *rows.shape[1:])
    dist.all_to_all_single(found, rows.contiguous(), got, sent, group=group)
    return found


class _Balanced(torch.autograd.Function):
    """The value itself; a loss beside it is given the gradient of a loss."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, loss: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale, ctx.like = scale, loss
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], torch.full_like(ctx.like, ctx.scale), None


class Router(nn.Module):
    """The experts of each token.

    Attributes:
        chosen: how many.
        normalised: whether a token's weights add up to one.
        group: of the ranks that share out the batch; ``None`` on one device.
        balance: the scale of the balancing loss.
    """

    group: Any = None
    chosen, normalised, balance = CHOSEN, True, _BALANCE

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH) * 0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = self.scores(x)
        probabilities = logits.float().softmax(-1)
        weights, experts = probabilities.topk(self.chosen, -1)
        if self.normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        counts = functional.one_hot(experts, EXPERTS).sum((0, 1)).float()
        tokens, ranks = len(x), 1
        if self.group is not None:
            ranks = dist.get_world_size(self.group)
            dist.all_reduce(counts, group=self.group)
        shares = counts / counts.sum()
        loss = EXPERTS * (shares * probabilities.sum(0)).sum() / (tokens * ranks)
        weights = _Balanced.apply(weights, loss, self.balance * ranks)
        return logits, weights.to(x.dtype), experts

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight)


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, INNER)
        self.act = nn.SiLU()
        self.down = nn.Linear(INNER, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.up(x)))


class Experts(nn.ModuleList):
    """One module an expert; on ranks, those of the rank, numbered from 0."""

    def __init__(self) -> None:
        super().__init__(Expert() for _ in range(EXPERTS))

    def computed(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Args: ``rows``: sorted by expert; ``counts``: how many each one has."""
        parts = torch.split(rows, counts.tolist())
        return torch.cat([expert(part) for expert, part in zip(self, parts, strict=True)])

    def keep(self, first: int, count: int) -> nn.Module:
        """Keep this rank's experts."""
        del self[first + count :]
        del self[:first]
        return self


class NamedExperts(Experts):
    """As DeepSeek's: on ranks, each expert keeps its number, and the others are ``None``."""

    def computed(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        held = [expert for expert in self if expert is not None]
        parts = torch.split(rows, counts.tolist())
        return torch.cat([expert(part) for expert, part in zip(held, parts, strict=True)])

    def keep(self, first: int, count: int) -> nn.Module:
        for number in range(len(self)):
            if not first <= number < first + count:
                self._modules[str(number)] = None  # type: ignore[assignment]
        return self


class StackedExperts(nn.Module):
    """All experts' weights in one tensor each."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH) * WIDTH**-0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER) * INNER**-0.5)

    def forward(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        parts = torch.split(rows, counts.tolist())
        return torch.cat(
            [
                functional.linear(functional.silu(functional.linear(part, up)), down)
                for part, up, down in zip(parts, self.up, self.down, strict=True)
            ]
        )

    def computed(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        return self(rows, counts)

    def keep(self, first: int, count: int) -> nn.Module:
        for name, parameter in [*self.named_parameters()]:
            setattr(self, name, nn.Parameter(parameter.data[first : first + count].clone()))
        return self


class Moe(nn.Module):
    """Each token's experts, weighted, and one that all tokens share.

    Attributes:
        group: of the ranks that share out the experts; ``None`` on one device.
        capacity: the most tokens that a rank sends to an expert; the others are dropped.
    """

    group: Any = None
    capacity: int | None = None

    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        self.router = Router()
        self.experts = experts
        self.shared = Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, -2)
        _, weights, chosen = self.router(tokens)
        order = self.sorted(chosen.flatten())
        counts = chosen.flatten()[order].bincount(minlength=EXPERTS)
        rows = tokens[order // chosen.shape[-1]]
        found = self.through_experts(rows, counts)
        mixed = self.combined(tokens, found, order, weights).view_as(x)
        return self.shared(x) + mixed

    def sorted(self, chosen: torch.Tensor) -> torch.Tensor:
        """The choices' places by expert; those over the capacity are left out."""
        order = chosen.argsort(stable=True)
        if self.capacity is None:
            return order
        parts = torch.split(order, chosen.bincount(minlength=EXPERTS).tolist())
        return torch.cat([part[: self.capacity] for part in parts])

    def through_experts(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        if self.group is None:
            return self.experts.computed(rows, counts)  # type: ignore[operator]
        ranks = dist.get_world_size(self.group)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        sent, got = counts.view(ranks, -1).sum(-1).tolist(), arriving.view(ranks, -1)
        rows = self.sent(rows, sent, got.sum(-1).tolist())
        # from the order of ranks to that of experts
        pieces = torch.arange(got.numel()).view(ranks, -1)
        of = pieces.flatten().repeat_interleave(arriving)
        by_expert = (of % pieces.shape[1]).argsort(stable=True)
        found = self.experts.computed(rows[by_expert], got.sum(0))  # type: ignore[operator]
        back = torch.empty_like(by_expert)
        back[by_expert] = torch.arange(len(by_expert))
        return self.returned(found[back], got.sum(-1).tolist(), sent)

    def sent(self, rows: torch.Tensor, sent: list[int], got: list[int]) -> torch.Tensor:
        return exchange(rows, sent, got, self.group)

    def returned(self, rows: torch.Tensor, sent: list[int], got: list[int]) -> torch.Tensor:
        return exchange(rows, sent, got, self.group)

    def combined(
        self, tokens: torch.Tensor, found: torch.Tensor, order: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        own = found * weights.flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, order // weights.shape[-1], own)


_KINDS = {"experts": Experts, "named": NamedExperts, "stacked": StackedExperts}


def moe_model(kind: str, dtype: torch.dtype = torch.float32, seed: int = 5) -> Decoder:
    """The model before it is spread: on every rank the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Decoder()
        for block in model.blocks:
            block.mlp = Moe(_KINDS[kind]())
        return model.to(dtype)


def spread(model: nn.Module, mesh: Any) -> nn.Module:
    """Keep this rank's experts; all other gradients are averaged by DDP.

    Of a mesh of two dimensions, the first one's ranks hold the same experts."""
    names = mesh.mesh_dim_names
    group = mesh.get_group(names[-1])
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    replicas = mesh.get_group(names[0]) if len(names) > 1 else None
    apart = []
    for name, module in model.named_modules():
        if isinstance(module, Moe):
            module.group, module.router.group = group, dist.group.WORLD
            module.experts.keep(rank * EXPERTS // ranks, EXPERTS // ranks)  # type: ignore[operator]
            for own, parameter in module.experts.named_parameters():
                apart.append(f"{name}.experts.{own}")
                divide(parameter, mesh.size(), replicas)
    ddp: Any = nn.parallel.DistributedDataParallel
    ddp._set_params_and_buffers_to_ignore_for_model(model, apart)
    return ddp(model)


def divide(parameter: nn.Parameter, ranks: float, replicas: Any = None) -> None:
    """An expert's gradient is the sum over the tokens of a group of ranks: make it the mean over
    all ranks. ``replicas``: the group of those that hold the same expert."""

    def mean(grad: torch.Tensor) -> torch.Tensor:
        grad = grad / ranks
        if replicas is not None:
            dist.all_reduce(grad, group=replicas)
        return grad

    hook: Any = parameter.register_hook
    hook(mean)


#: On one device, and spread over ranks.
EXPERT_LAYOUTS = {
    **{f"{kind}_one": Layout() for kind in _KINDS},
    **{f"{kind}_ep2": Layout({"dp": 2}, spread) for kind in _KINDS},
    "experts_ep2dp2": Layout({"dp_replicate": 2, "dp_shard": 2}, spread),
    "stacked_ep2dp2": Layout({"dp_replicate": 2, "dp_shard": 2}, spread),
}

#: The kind of experts, by the layout on one device.
MOE_KINDS = {f"{kind}_one": kind for kind in _KINDS}
