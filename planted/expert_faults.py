"""Faults of experts that are spread over ranks, planted as user code would contain them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from fixtures.parallel import Layout
from planted.expert_models import EXPERTS, Moe, Router, StackedExperts, divide, exchanged, spread
from planted.rank_faults import Plant, RankFault
from planted.rank_training import Run
from planted.training_faults import changed, wrap

_FORWARD, _BACKWARD, _GRADIENT = ("forward",), ("backward",), ("backward", "update")
_MOE = "blocks.1.mlp"


def _on(rank: int, plant: Plant) -> Plant:
    def on_rank(run: Run) -> None:
        if run.rank == rank:
            plant(run)

    return on_rank


def _moe(change: Callable[[Moe], None], name: str = _MOE) -> Plant:
    return lambda run: change(run.module(name))


def _router(change: Callable[[Router], None]) -> Plant:
    return _moe(lambda moe: change(moe.router))


def _expert(number: int, change: Callable[[Any], None]) -> Plant:
    """Change one expert, on the rank that has it."""

    def plant(run: Run) -> None:
        each = EXPERTS // run.ranks
        if run.rank == number // each:
            experts = run.module(f"{_MOE}.experts")
            held = [one for one in experts.children() if one is not None]
            change(held[number % each])

    return plant


def _weight(module: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with torch.no_grad():
        module.weight.copy_(change(module.weight))


def _gelu(expert: Any) -> None:
    expert.act.forward = functional.gelu


def _without_bias(expert: Any) -> None:
    linear = expert.down
    linear.forward = lambda x: functional.linear(x, linear.weight, linear.bias * 0.0)


def _in_bfloat16(expert: Any) -> None:
    linear = expert.up
    linear.forward = lambda x: functional.linear(
        x.bfloat16(), linear.weight.bfloat16(), linear.bias.bfloat16()
    ).to(x.dtype)


def _input_smaller(router: Router) -> None:
    wrap(router, lambda forward: lambda x: forward(x * 0.97))


def _scores_in_bfloat16(router: Router) -> None:
    router.scores = lambda x: functional.linear(  # type: ignore[method-assign]
        x.bfloat16(), router.weight.bfloat16()
    ).to(x.dtype)


def _neighbours(moe: Moe) -> None:
    """Each expert of a rank computes with the rows of the next one."""
    computed: Any = moe.experts.computed

    def wrong(rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        parts = [*torch.split(rows, counts.tolist())]
        moved = parts[1:] + parts[:1]
        found = computed(torch.cat(moved), counts.roll(-1))
        back = [*torch.split(found, counts.roll(-1).tolist())]
        return torch.cat(back[-1:] + back[:-1])

    moe.experts.computed = wrong  # type: ignore[assignment]


def _not_sorted(moe: Moe) -> None:
    """The rows of the ranks are not put into the order of experts."""
    computed: Any = moe.experts.computed

    def wrong(rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        order = torch.arange(len(rows)).roll(2)
        found: torch.Tensor = computed(rows[order], counts)[order.argsort()]
        return found

    moe.experts.computed = wrong  # type: ignore[assignment]


def _combined(change: Callable[..., torch.Tensor]) -> Callable[[Moe], None]:
    def plant(moe: Moe) -> None:
        combined = moe.combined
        moe.combined = lambda *args: change(combined, *args)  # type: ignore[method-assign]

    return plant


def _other_order(combined: Any, tokens: Any, found: Any, order: Any, weights: Any) -> torch.Tensor:
    return combined(tokens, found, order.roll(1), weights)


def _without_weights(
    combined: Any, tokens: Any, found: Any, order: Any, weights: Any
) -> torch.Tensor:
    return combined(tokens, found, order, weights * 0.0 + 0.5)


def _uncalled(mlp: Any, x: torch.Tensor) -> torch.Tensor:
    """What a module would give; nothing of it is called, so that nothing is recorded."""
    gate, up, down = mlp.gate, mlp.up, mlp.down
    inner = functional.silu(functional.linear(x, gate.weight)) * functional.linear(
        x, up.weight, up.bias
    )
    return functional.linear(inner, down.weight, down.bias)


def _shared_twice(moe: Moe) -> None:
    combined: Any = moe.combined

    def wrong(tokens: torch.Tensor, *rest: Any) -> torch.Tensor:
        found: torch.Tensor = combined(tokens, *rest)
        return found + _uncalled(moe.shared, tokens)

    moe.combined = wrong  # type: ignore[method-assign,assignment]


class _Lost(torch.autograd.Function):
    """Rows that are exchanged, and whose gradients are not."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, sent: list[int], got: list[int], group: Any) -> Any:
        ctx.sizes = sent, got, group
        return exchanged(rows, sent, got, group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        sent, got, group = ctx.sizes
        found = exchanged(grads[0], got, sent, group)
        own = dist.get_rank(group)
        mask = torch.arange(len(sent)).repeat_interleave(torch.tensor(sent)) == own
        return found * mask[:, None], None, None, None


def _gradient_stays(moe: Moe) -> None:
    lost: Any = _Lost.apply
    moe.sent = lambda *args: lost(*args, moe.group)  # type: ignore[method-assign]


def _results_stay(moe: Moe) -> None:
    lost: Any = _Lost.apply
    moe.returned = lambda *args: lost(*args, moe.group)  # type: ignore[method-assign]


def _splits_swapped(moe: Moe) -> None:
    """What comes back from the ranks is taken in another order."""
    returned = moe.returned

    def wrong(rows: torch.Tensor, sent: list[int], got: list[int]) -> torch.Tensor:
        found = returned(rows, sent, got)
        return torch.cat([*torch.split(found, got)][::-1])

    moe.returned = wrong  # type: ignore[method-assign]


def _stale(number: int) -> Plant:
    """An expert's update does not arrive."""

    def plant(run: Run) -> None:
        def hold(expert: Any) -> None:
            kept = [each.detach().clone() for each in expert.parameters()]

            def back(run: Run, step: int) -> None:
                with torch.no_grad():
                    for each, value in zip(expert.parameters(), kept, strict=True):
                        each.copy_(value)

            run.after_update.append(back)

        _expert(number, hold)(run)

    return plant


def _divided_by(factor: float) -> Plant:
    def plant(run: Run) -> None:
        for each in run.module(f"{_MOE}.experts").parameters():
            divide(each, factor)

    return plant


def _ignored(*names: str) -> Callable[[Layout], Layout]:
    """DDP is told to ignore further parameters."""

    def built(layout: Layout) -> Layout:
        def wrong(model: nn.Module, mesh: Any) -> nn.Module:
            found: Any = spread(model, mesh).module
            ddp: Any = nn.parallel.DistributedDataParallel
            apart = [
                f"{name}.experts.{own}"
                for name, module in found.named_modules()
                if isinstance(module, Moe)
                for own, _ in module.experts.named_parameters()
            ]
            ddp._set_params_and_buffers_to_ignore_for_model(found, [*apart, *names])
            return ddp(found)

        return replace(layout, spread=wrong)

    return built


def _nothing(run: Run) -> None:
    pass


def _one_stacked(run: Run) -> None:
    """One of the stacked experts computes with another activation."""
    experts: StackedExperts = run.module(f"{_MOE}.experts")

    def wrong(rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        parts = torch.split(rows, counts.tolist())
        return torch.cat(
            [
                functional.linear(
                    (functional.gelu if number == 1 else functional.silu)(
                        functional.linear(part, experts.up[number])
                    ),
                    experts.down[number],
                )
                for number, part in enumerate(parts)
            ]
        )

    experts.forward = wrong  # type: ignore[method-assign]


def _of_experts() -> Iterator[RankFault]:
    stages: tuple[str, ...]
    where: tuple[str, ...]
    inside: tuple[str, ...]
    router = f"{_MOE}.router"
    for layout in ("experts_ep2", "named_ep2", "stacked_ep2"):
        for title, change, stages in (
            ("experts' neighbours", _neighbours, _FORWARD),
            ("rows not sorted by expert", _not_sorted, _FORWARD),
            ("combined in another order", _combined(_other_order), _FORWARD),
            ("combined without weights", _combined(_without_weights), _FORWARD),
            ("all-to-all splits swapped", _splits_swapped, _FORWARD),
            ("shared expert added twice", _shared_twice, _FORWARD),
        ):
            yield RankFault(title, layout, (_MOE,), stages, _on(1, _moe(change)), (1,))
        plant = _on(1, _moe(lambda moe: setattr(moe, "capacity", 3)))
        yield RankFault("tokens dropped", layout, (_MOE,), _FORWARD, plant)
        for title, own in (
            ("router's weights x 1.01", lambda each: _weight(each, lambda weight: weight * 1.01)),
            ("router's input x 0.97", _input_smaller),
            ("routed in bfloat16", _scores_in_bfloat16),
            ("weights not normalised", lambda each: setattr(each, "normalised", False)),
            ("one expert for two", lambda each: setattr(each, "chosen", 1)),
        ):
            stages = ("forward", "between", "update") if "weights x" in title else _FORWARD
            yield RankFault(title, layout, (router,), stages, _on(1, _router(own)), (1,))
        plant = _router(lambda each: setattr(each, "balance", each.balance / 2))
        yield RankFault("half of the balancing loss", layout, (router,), _BACKWARD, plant)
        title = "gradient of the tokens not exchanged"
        yield RankFault(title, layout, (_MOE,), _BACKWARD, _moe(_gradient_stays), real=13)
        title = "gradient of the results not exchanged"
        yield RankFault(title, layout, (_MOE,), _BACKWARD, _moe(_results_stay))
        inside = (f"{_MOE}.experts",)
        if layout != "stacked_ep2":
            inside = tuple(
                f"{_MOE}.experts.{number}.{part}"
                for number in range(EXPERTS)
                for part in ("up", "down")
            )
        for title, factor in (("divided again", 2.0), ("not divided", 0.5)):
            name = f"experts' gradients {title}"
            yield RankFault(name, layout, inside, _GRADIENT, _divided_by(factor))
        built = _ignored(f"{router}.weight")
        title = "router's gradient not reduced"
        yield RankFault(title, layout, (router,), _GRADIENT, _nothing, built=built)
    yield RankFault(
        "GELU in one of the stack",
        "stacked_ep2",
        (f"{_MOE}.experts",),
        _FORWARD,
        _on(1, _one_stacked),
        (1,),
        arithmetic=True,
    )
    for title, part, change in (
        ("GELU", "act", _gelu),
        ("no bias", "down", _without_bias),
        ("in bfloat16", "up", _in_bfloat16),
        (
            "gradient x 1.05",
            "act",
            lambda each: wrap(
                each.act, lambda forward: lambda x: forward(changed(x, lambda grad: grad * 1.05))
            ),
        ),
    ):
        where = (f"{_MOE}.experts.4.{part}",)
        stages = _BACKWARD if "gradient" in title else _FORWARD
        plant = _expert(4, change)
        yield RankFault(title, "named_ep2", where, stages, plant, (1,), arithmetic=True)
    where = tuple(f"{_MOE}.experts.4.{part}" for part in ("up", "down"))
    stages = ("between", "forward", "update")
    yield RankFault("stale expert", "named_ep2", where, stages, _stale(4), (1,))


EXPERT_FAULTS = (*_of_experts(),)
