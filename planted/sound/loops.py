"""Sound trainings of one small model, by all kinds of optimizers, schedules, precisions and
loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from planted.sound.catalogue import STEPS, Loop, Net, Parts, epochs, images, mlp, points, sound

Schedule = Callable[[torch.optim.Optimizer], Any]


def _plain(
    optimizer: Callable[[nn.Module], Any],
    schedule: Schedule = lambda optimizer: None,
    clip: float | None = None,
) -> Loop:
    x, y = images()
    model = Net()
    made = optimizer(model)
    scheduler = schedule(made)
    yield Parts(model, made, scheduler)
    for a, b in epochs(x, y):
        made.zero_grad()
        functional.cross_entropy(model(a), b).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        made.step()
        if scheduler is not None:
            scheduler.step()
        yield None


@sound("one cycle of the learning rate")
def one_cycle() -> Loop:
    def schedule(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.4, STEPS + 1)

    yield from _plain(
        lambda model: torch.optim.SGD(
            model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
        ),
        schedule,
    )


@sound("a cosine that begins again")
def restarts() -> Loop:
    def schedule(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 30, 2, 1e-5)

    yield from _plain(
        lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), schedule
    )


@sound("a cyclic rate")
def cyclic() -> Loop:
    def schedule(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.CyclicLR(
            optimizer, 1e-4, 1e-2, 5, mode="exp_range", gamma=0.999, cycle_momentum=False
        )

    yield from _plain(lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3), schedule)


@sound("a warm-up by epochs, from a hundredth")
def warm_up_by_epochs() -> Loop:
    x, y = images()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, 1.0, 2)
    rest = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, rest], [2])
    yield Parts(model, optimizer, scheduler)
    for step, (a, b) in enumerate(epochs(x, y), 1):
        optimizer.zero_grad()
        functional.cross_entropy(model(a), b).backward()
        optimizer.step()
        if step % 40 == 0:
            scheduler.step()
        yield None


@sound("a schedule by epochs, in a first epoch that is long")
def long_epoch() -> Loop:
    x, y = images(4000)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
    yield Parts(model, optimizer, scheduler)
    for a, b in epochs(x, y, size=8, steps=300):
        optimizer.zero_grad()
        functional.cross_entropy(model(a), b).backward()
        optimizer.step()
        yield None


@sound("a warm-up, and then a rate that falls where the loss stays")
def plateau() -> Loop:
    x, y = images()
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 10)
    falls = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
    yield Parts(model, optimizer, [warm, falls])
    total = 0.0
    for step, (a, b) in enumerate(epochs(x, y), 1):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
        total += loss.item()
        if step < 11:
            warm.step()
        elif step % 20 == 0:
            falls.step(total)
            total = 0.0
        yield None


@sound("a linear decay to 0, weight decay 0.1 on everything")
def decayed() -> Loop:
    yield from _plain(
        lambda model: torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1),
        lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS),
        clip=1.0,
    )


@sound("Adafactor")
def adafactor() -> Loop:
    yield from _plain(lambda model: torch.optim.Adafactor(model.parameters(), lr=0.02))


@sound("RMSprop with momentum, centred")
def rmsprop() -> Loop:
    yield from _plain(
        lambda model: torch.optim.RMSprop(
            model.parameters(), lr=1e-3, momentum=0.9, centered=True, eps=1e-3
        )
    )


@sound("NAdam, and clipping that always acts")
def nadam() -> Loop:
    yield from _plain(lambda model: torch.optim.NAdam(model.parameters(), lr=2e-3), clip=0.01)


@sound("Adam with a large eps")
def large_eps() -> Loop:
    yield from _plain(lambda model: torch.optim.Adam(model.parameters(), lr=0.05, eps=0.1))


@sound("Rprop on all data")
def rprop() -> Loop:
    x, y = points(128)
    model = mlp(16, 32, 4, act=nn.Tanh)
    optimizer = torch.optim.Rprop(model.parameters(), lr=1e-3)
    yield Parts(model, optimizer)
    for _ in range(STEPS):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        yield None


class _Lion(torch.optim.Optimizer):
    """The sign of a momentum."""

    def __init__(self, parameters: Iterable[Any], lr: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is None:
                    continue
                momentum = self.state[each].setdefault("exp_avg", torch.zeros_like(each))
                each.mul_(1 - group["lr"] * group["weight_decay"])
                each.add_((0.9 * momentum + 0.1 * each.grad).sign(), alpha=-group["lr"])
                momentum.lerp_(each.grad, 0.01)


@sound("Lion: signs, weight decay 0.2")
def lion() -> Loop:
    yield from _plain(lambda model: _Lion(model.parameters(), 5e-4, 0.2))


class _Orthogonal(torch.optim.Optimizer):
    """As Muon: the momentum of each matrix made orthogonal."""

    def __init__(self, parameters: Iterable[Any], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for each in group["params"]:
                momentum = self.state[each].setdefault("momentum_buffer", torch.zeros_like(each))
                momentum.mul_(0.95).add_(each.grad)
                x = momentum.flatten(1) / (momentum.norm() + 1e-7)
                for _ in range(5):
                    product = x @ x.T
                    x = 3.4445 * x + (-4.775 * product + 2.0315 * product @ product) @ x
                each.add_(
                    x.view_as(each), alpha=-group["lr"] * max(1, x.shape[0] / x.shape[1]) ** 0.5
                )


@sound("Muon for matrices, AdamW for the rest")
def muon() -> Loop:
    x, y = images()
    model = Net()
    matrices = [each for each in model.parameters() if each.dim() > 1]
    optimizers = [
        _Orthogonal(matrices, 0.02),
        torch.optim.AdamW([each for each in model.parameters() if each.dim() < 2], lr=1e-3),
    ]
    yield Parts(model, optimizers)
    for a, b in epochs(x, y):
        model.zero_grad()
        functional.cross_entropy(model(a), b).backward()
        for optimizer in optimizers:
            optimizer.step()
        yield None


@sound("SAM: two backwards, the first to go uphill")
def uphill() -> Loop:
    x, y = images()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    yield Parts(model, optimizer)
    for a, b in epochs(x, y):
        functional.cross_entropy(model(a), b).backward()
        with torch.no_grad():
            grads = [
                each.grad.clone() if each.grad is not None else torch.zeros_like(each)
                for each in model.parameters()
            ]
            size = torch.stack([grad.norm() for grad in grads]).norm()
            for each, grad in zip(model.parameters(), grads, strict=True):
                each.add_(grad, alpha=0.05 / float(size))
        optimizer.zero_grad()
        functional.cross_entropy(model(a), b).backward()
        with torch.no_grad():
            for each, grad in zip(model.parameters(), grads, strict=True):
                each.sub_(grad, alpha=0.05 / float(size))
        optimizer.step()
        optimizer.zero_grad()
        yield None


@sound("noise added to clipped gradients of single samples")
def private() -> Loop:
    x, y = points()
    model = mlp(16, 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    yield Parts(model, optimizer)
    for a, b in epochs(x, y):
        optimizer.zero_grad()
        functional.cross_entropy(model(a), b).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for each in model.parameters():
            assert each.grad is not None
            each.grad += 0.05 * torch.randn_like(each.grad)
        optimizer.step()
        yield None


@sound("gradients of two tasks that are put in place by hand")
def surgery() -> Loop:
    x, y = points()
    model = mlp(16, 32, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    yield Parts(model, optimizer)
    for a, b in epochs(x, y):
        output = model(a)
        losses = (
            functional.cross_entropy(output[:, :4], b),
            functional.mse_loss(output[:, 4], a[:, 0]),
        )
        one, other = (
            torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            for loss in losses
        )
        along = sum(float((p * q).sum()) for p, q in zip(one, other, strict=True)) / sum(
            float(q.square().sum()) for q in other
        )
        for each, p, q in zip(model.parameters(), one, other, strict=True):
            each.grad = p + q - min(along, 0.0) * q
        optimizer.step()
        yield None


@sound("four micro-batches in an update, each of them a step of the watch")
def micro_batches() -> Loop:
    x, y = images()
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    yield Parts(model, optimizer)
    for step, (a, b) in enumerate(epochs(x, y, size=8, steps=400), 1):
        (functional.cross_entropy(model(a), b) / 4).backward()
        if step % 4 == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        yield None


def _scaled(
    first: float,
    clip: bool,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = functional.cross_entropy,
) -> Loop:
    x, y = images()
    model = nn.Sequential(nn.Flatten(), mlp(64, 64, 64, 6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=first, growth_interval=40)
    yield Parts(model, optimizer, scaler=scaler)
    for a, b in epochs(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            value = loss(model(a), b)
        scaler.scale(value).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        yield None


@sound("float16 autocast with a loss scale, clipped")
def scaled() -> Loop:
    yield from _scaled(65536.0, clip=True)


@sound("float16 autocast, a loss scale that begins at 2**32")
def scaled_from_above() -> Loop:
    yield from _scaled(2.0**32, clip=False)


@sound("float16 autocast, a margin that all samples come to keep: the loss is 0")
def scaled_margin() -> Loop:
    yield from _scaled(
        1024.0,
        clip=False,
        loss=lambda logits, labels: functional.multi_margin_loss(logits, labels, margin=0.5),
    )


@sound("float16 attention whose mask is the lowest number, with a loss scale")
def scaled_attention() -> Loop:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.head = (nn.Linear(16, 16) for _ in range(4))
            self.scores = _Scores()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.head(
                self.scores(self.q(x), self.k(x)).softmax(-1).to(x.dtype) @ self.v(x).to(x.dtype)
            )
            return y

    model = Masked()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", growth_interval=40)
    yield Parts(model, optimizer, scaler=scaler)
    for _ in range(STEPS):
        x = torch.randn(8, 12, 16)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = functional.mse_loss(model(x).float(), x.cumsum(1) / torch.arange(1, 13)[:, None])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        yield None


class _Scores(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(later, torch.finfo(scores.dtype).min)


@sound("groups of which one has a rate of 0 for a while, others smaller ones")
def discriminative() -> Loop:
    x, y = images()
    model = Net()
    groups = [
        {"params": model.features[:3].parameters(), "lr": 0.0},
        {"params": model.features[3:].parameters(), "lr": 1e-3},
    ]
    optimizer = torch.optim.Adam([*groups, {"params": model.head.parameters(), "lr": 3e-3}])
    yield Parts(model, optimizer)
    for step, (a, b) in enumerate(epochs(x, y)):
        if step == 100:
            optimizer.param_groups[0]["lr"] = 5e-4
        optimizer.zero_grad()
        functional.cross_entropy(model(a), b).backward()
        optimizer.step()
        yield None
