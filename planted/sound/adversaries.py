"""Sound trainings of several networks, or with an environment: adversarial ones, and reinforcement
learning.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from planted.sound.catalogue import (
    STEPS,
    Loop,
    Net,
    Parts,
    digits,
    epochs,
    images,
    mlp,
    points,
    sound,
)


class _Maker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            *(nn.ConvTranspose2d(12, 24, 3, 1, 0, bias=False), nn.BatchNorm2d(24), nn.ReLU(True)),
            *(nn.ConvTranspose2d(24, 12, 4, 2, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU(True)),
            *(nn.ConvTranspose2d(12, 1, 4, 2, 1, bias=False), nn.Tanh()),
        )

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        image: torch.Tensor = self.main(noise)
        return image


class _Judge(nn.Module):
    def __init__(self, norm: bool = True) -> None:
        super().__init__()
        self.main = nn.Sequential(
            *(nn.Conv2d(1, 12, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)),
            *(
                nn.Conv2d(12, 24, 4, 2, 1, bias=False),
                nn.BatchNorm2d(24) if norm else nn.Identity(),
                nn.LeakyReLU(0.2),
            ),
            nn.Conv2d(24, 1, 3, 1, 0, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score: torch.Tensor = self.main(x).flatten()
        return score


def _pair(norm: bool = True) -> tuple[nn.Module, nn.Module]:
    made = _Maker(), _Judge(norm)
    for module in (each for model in made for each in model.modules()):
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.normal_(module.weight, 0.0, 0.02)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1.0, 0.02)
    return made


def _dcgan(parts: Callable[..., Parts]) -> Loop:
    maker, judge = _pair()
    judged, made = (
        torch.optim.Adam(each.parameters(), lr=1e-3, betas=(0.5, 0.999)) for each in (judge, maker)
    )
    yield parts(maker, judge, made, judged)
    for (real,) in epochs(2 * digits() - 1):
        judge.zero_grad()
        functional.binary_cross_entropy_with_logits(judge(real), torch.ones(len(real))).backward()
        fake = maker(torch.randn(len(real), 12, 1, 1))
        functional.binary_cross_entropy_with_logits(
            judge(fake.detach()), torch.zeros(len(real))
        ).backward()
        judged.step()
        maker.zero_grad()
        functional.binary_cross_entropy_with_logits(judge(fake), torch.ones(len(real))).backward()
        made.step()
        yield None


@sound("DCGAN, its discriminator watched")
def dcgan_judge() -> Loop:
    yield from _dcgan(lambda maker, judge, made, judged: Parts(judge, judged))


@sound("DCGAN, its generator watched")
def dcgan_maker() -> Loop:
    yield from _dcgan(lambda maker, judge, made, judged: Parts(maker, made))


@sound("DCGAN, both watched")
def dcgan_both() -> Loop:
    yield from _dcgan(
        lambda maker, judge, made, judged: Parts(nn.ModuleList([maker, judge]), [made, judged])
    )


def _wgan(parts: Callable[..., Parts]) -> Loop:
    maker, judge = _pair(norm=False)
    judged, made = (
        torch.optim.Adam(each.parameters(), lr=1e-3, betas=(0.0, 0.9)) for each in (judge, maker)
    )
    yield parts(maker, judge, made, judged)
    for step, (real,) in enumerate(epochs(2 * digits() - 1)):
        judge.requires_grad_(True)
        judged.zero_grad()
        with torch.no_grad():
            fake = maker(torch.randn(len(real), 12, 1, 1))
        mix = torch.rand(len(real), 1, 1, 1)
        between = (mix * real + (1 - mix) * fake).requires_grad_(True)
        (grad,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        penalty = (grad.flatten(1).norm(dim=1) - 1).square().mean()
        (judge(fake).mean() - judge(real).mean() + 10 * penalty).backward()
        judged.step()
        if step % 5 == 4:
            judge.requires_grad_(False)
            made.zero_grad()
            (-judge(maker(torch.randn(len(real), 12, 1, 1))).mean()).backward()
            made.step()
        yield None


@sound("WGAN with a gradient penalty, its critic watched")
def wgan_judge() -> Loop:
    yield from _wgan(lambda maker, judge, made, judged: Parts(judge, judged))


@sound("WGAN with a gradient penalty, both watched")
def wgan_both() -> Loop:
    yield from _wgan(
        lambda maker, judge, made, judged: Parts(nn.ModuleList([maker, judge]), [made, judged])
    )


@sound("WGAN with clipped weights")
def wgan_clipped() -> Loop:
    maker, judge = _pair(norm=False)
    judged, made = (torch.optim.RMSprop(each.parameters(), lr=1e-3) for each in (judge, maker))
    yield Parts(judge, judged)
    for step, (real,) in enumerate(epochs(2 * digits() - 1)):
        judged.zero_grad()
        fake = maker(torch.randn(len(real), 12, 1, 1))
        (judge(fake.detach()).mean() - judge(real).mean()).backward()
        judged.step()
        with torch.no_grad():
            for parameter in judge.parameters():
                parameter.clamp_(-0.03, 0.03)
        if step % 5 == 4:
            made.zero_grad()
            (-judge(fake).mean()).backward()
            made.step()
        yield None


@sound("a GAN in autocast: real images in float32, made ones in bfloat16")
def gan_autocast() -> Loop:
    maker, judge = _pair()
    judged, made = (
        torch.optim.Adam(each.parameters(), lr=1e-3, betas=(0.5, 0.999)) for each in (judge, maker)
    )
    yield Parts(judge, judged)
    for (real,) in epochs(2 * digits() - 1):
        judged.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            fake = maker(torch.randn(len(real), 12, 1, 1))
            loss = (
                functional.relu(1 - judge(real)).mean()
                + functional.relu(1 + judge(fake.detach())).mean()
            )
        loss.backward()
        judged.step()
        made.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = -judge(fake).mean()
        loss.backward()
        made.step()
        yield None


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return -grad


@sound("domains made alike by a reversed gradient")
def domains() -> Loop:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.classes, self.domain = (
                mlp(16, 32, 32),
                nn.Linear(32, 4),
                mlp(32, 16, 2),
            )

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            h = self.trunk(x).relu()
            return self.classes(h), self.domain(_Reverse.apply(h))

    x, y = points()
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    yield Parts(model, optimizer)
    for a, b in epochs(x, y):
        source, _ = model(a)
        other = a.flip(0) + 0.5
        logits = torch.cat([model(a)[1], model(other)[1]])
        optimizer.zero_grad()
        (
            functional.cross_entropy(source, b)
            + 0.3 * functional.cross_entropy(logits, torch.arange(2).repeat_interleave(len(a)))
        ).backward()
        optimizer.step()
        yield None


class _Pole:
    """A pole on a cart, as in the examples of reinforcement learning; in float64."""

    def __init__(self) -> None:
        self.state = torch.zeros(4)
        self.steps = 0

    def reset(self) -> torch.Tensor:
        self.state, self.steps = 0.1 * torch.rand(4) - 0.05, 0
        return self.state

    def step(self, action: int) -> tuple[torch.Tensor, float, bool]:
        x, v, angle, turning = self.state.double().tolist()
        force = 10.0 if action else -10.0
        import math

        cos, sin = math.cos(angle), math.sin(angle)
        push = (force + 0.05 * turning**2 * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        move = push - 0.05 * turn * cos / 1.1
        self.state = torch.tensor(
            [x + 0.02 * v, v + 0.02 * move, angle + 0.02 * turning, turning + 0.02 * turn]
        )
        self.steps += 1
        x, _, angle, _ = self.state.tolist()
        return self.state, 1.0, abs(x) > 2.4 or abs(angle) > 0.21 or self.steps >= 60


def _returns(rewards: list[float]) -> torch.Tensor:
    total, found = 0.0, list[float]()
    for reward in reversed(rewards):
        total = reward + 0.99 * total
        found.insert(0, total)
    returns = torch.tensor(found)
    return (returns - returns.mean()) / (returns.std() + 1e-6)


@sound("REINFORCE: an episode in a step, the policy called for one state at a time")
def reinforce() -> Loop:
    policy = nn.Sequential(
        nn.Linear(4, 32), nn.Dropout(0.6), nn.ReLU(), nn.Linear(32, 2), nn.Softmax(-1)
    )
    optimizer, world = torch.optim.Adam(policy.parameters(), lr=1e-2), _Pole()
    yield Parts(policy, optimizer)
    for _ in range(45):
        state, done, chances, rewards = world.reset(), False, [], []
        while not done:
            choice = torch.distributions.Categorical(policy(state[None]))
            action = choice.sample()
            chances.append(choice.log_prob(action))
            state, reward, done = world.step(int(action))
            rewards.append(reward)
        optimizer.zero_grad()
        (-torch.cat(chances) * _returns(rewards)).sum().backward()
        optimizer.step()
        yield None


class _ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.actor, self.critic = nn.Linear(4, 64), nn.Linear(64, 2), nn.Linear(64, 1)

    def forward(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.trunk(state).relu()
        return self.actor(h).softmax(-1), self.critic(h)


@sound("actor and critic: a rate of 3e-2, states without an axis of samples")
def actor_critic() -> Loop:
    model, world = _ActorCritic(), _Pole()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    yield Parts(model, optimizer)
    for _ in range(45):
        state, done, chances, values, rewards = world.reset(), False, [], [], []
        while not done:
            chance, value = model(state)
            choice = torch.distributions.Categorical(chance)
            action = choice.sample()
            chances.append(choice.log_prob(action))
            values.append(value)
            state, reward, done = world.step(int(action))
            rewards.append(reward)
        returns, values_ = _returns(rewards), torch.cat(values)
        optimizer.zero_grad()
        loss = (
            -torch.stack(chances) * (returns - values_.detach())
        ).sum() + functional.smooth_l1_loss(values_, returns, reduction="sum")
        loss.backward()
        optimizer.step()
        yield None


@sound("DQN: a replay memory, a target that is renewed, the loss rises from 0")
def dqn() -> Loop:
    model, world = mlp(4, 64, 64, 2), _Pole()
    target = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True)
    memory: list[tuple[torch.Tensor, int, float, torch.Tensor, bool]] = []
    state = world.reset()
    yield Parts(model, optimizer)
    for step in range(260):
        with torch.no_grad():
            action = (
                int(model(state[None]).argmax())
                if float(torch.rand(())) > max(0.1, 1 - step / 200)
                else int(torch.randint(0, 2, ()))
            )
        following, reward, done = world.step(action)
        memory.append((state, action, reward, following, done))
        state = world.reset() if done else following
        if len(memory) < 32:
            continue
        chosen = [memory[int(at)] for at in torch.randint(0, len(memory), (32,))]
        states, next_states = (
            torch.stack([each[0] for each in chosen]),
            torch.stack([each[3] for each in chosen]),
        )
        with torch.no_grad():
            alive = torch.tensor([not each[4] for each in chosen]).float()
            aim = torch.tensor([each[2] for each in chosen]) + 0.99 * alive * target(
                next_states
            ).amax(1)
        value = model(states).gather(1, torch.tensor([[each[1]] for each in chosen]))[:, 0]
        optimizer.zero_grad()
        functional.smooth_l1_loss(value, aim).backward()
        nn.utils.clip_grad_value_(model.parameters(), 100)
        optimizer.step()
        if step % 20 == 0:
            target.load_state_dict(model.state_dict())
        yield None


@sound("PPO: each rollout is used in several epochs")
def ppo() -> Loop:
    model, world = _ActorCritic(), _Pole()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-5)
    state = world.reset()
    yield Parts(model, optimizer)
    for _ in range(12):
        seen: list[tuple[torch.Tensor, int, float, float, bool]] = []
        with torch.no_grad():
            for _ in range(64):
                chance, value = model(state)
                action = int(torch.multinomial(chance, 1))
                following, reward, done = world.step(action)
                seen.append((state, action, float(chance[action].log()), reward, done))
                state = world.reset() if done else following
        states, actions = (
            torch.stack([each[0] for each in seen]),
            torch.tensor([each[1] for each in seen]),
        )
        before = torch.tensor([each[2] for each in seen])
        total, found = 0.0, list[float]()
        for *_, reward, done in reversed(seen):
            total = reward + 0.99 * total * (not done)
            found.insert(0, total)
        returns = torch.tensor(found)
        for _ in range(4):
            for part in torch.randperm(64).chunk(2):
                chance, value = model(states[part])
                choice = torch.distributions.Categorical(chance)
                ratio = (choice.log_prob(actions[part]) - before[part]).exp()
                gain = returns[part] - value[:, 0].detach()
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                loss = -torch.min(
                    ratio * gain, ratio.clamp(0.8, 1.2) * gain
                ).mean() + 0.5 * functional.mse_loss(value[:, 0], returns[part])
                optimizer.zero_grad()
                (loss - 0.01 * choice.entropy().mean()).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                yield None


@sound("two optimizers that take turns with one model and one batch")
def turns() -> Loop:
    x, y = images()
    model = Net()
    first = torch.optim.Adam(model.features.parameters(), lr=1e-3)
    second = torch.optim.SGD(model.head.parameters(), lr=0.05)
    schedulers = [
        torch.optim.lr_scheduler.CosineAnnealingLR(first, STEPS),
        torch.optim.lr_scheduler.ExponentialLR(second, 0.99),
    ]
    yield Parts(model, [first, second], schedulers)
    for a, b in epochs(x, y, steps=STEPS // 2):
        for optimizer, scheduler in zip((first, second), schedulers, strict=True):
            model.zero_grad()
            functional.cross_entropy(model(a), b).backward()
            optimizer.step()
            scheduler.step()
            yield None
