"""Sound trainings on images: classifiers, autoencoders, contrastive and distilled models,
diffusion.
"""

from __future__ import annotations

import copy
import math
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
    draw,
    epochs,
    images,
    mlp,
    sound,
)


@sound("MNIST's example: Adadelta, a rate by epochs, a test after each")
def mnist() -> Loop:
    x, y = images(960)
    model = nn.Sequential(
        *(
            nn.Conv2d(1, 8, 3),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
        ),
        *(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 6), nn.LogSoftmax(1)),
    )
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    data = torch.utils.data.TensorDataset(x[:800], y[:800])
    train = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    test = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x[800:], y[800:]), batch_size=80
    )
    yield Parts(model, optimizer, scheduler)
    for _ in range(4):
        model.train()
        for a, b in train:
            optimizer.zero_grad()
            functional.nll_loss(model(a), b).backward()
            optimizer.step()
            yield None
        model.eval()
        with torch.no_grad():
            for a, b in test:
                functional.nll_loss(model(a), b, reduction="sum").item()
        scheduler.step()


class _VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.mean, self.log_variance = (
            nn.Linear(144, 64),
            nn.Linear(64, 8),
            nn.Linear(64, 8),
        )
        self.fc3, self.fc4 = nn.Linear(8, 64), nn.Linear(64, 144)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        h = functional.relu(self.fc1(x.flatten(1)))
        mean, log_variance = self.mean(h), self.log_variance(h)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return torch.sigmoid(self.fc4(functional.relu(self.fc3(z)))), mean, log_variance


@sound("VAE's example: sums over a batch, the KL divergence warmed up")
def vae() -> Loop:
    model = _VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    yield Parts(model, optimizer)
    for step, (x,) in enumerate(epochs(digits(), size=32)):
        optimizer.zero_grad()
        seen, mean, log_variance = model(x)
        kl = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        loss = (
            functional.binary_cross_entropy(seen, x.flatten(1), reduction="sum")
            + min(1.0, step / 100) * kl
        )
        loss.backward()
        optimizer.step()
        yield None


class _Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128, 32),
        )
        self.head = nn.Sequential(nn.Linear(64, 32), nn.ReLU(inplace=True), nn.Linear(32, 1))

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.head(torch.cat([self.trunk(one), self.trunk(other)], 1)))


@sound("siamese's example: pairs, Adadelta")
def siamese() -> Loop:
    x, y = images(classes=3)
    model = _Siamese()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 40, gamma=0.7)
    yield Parts(model, optimizer, scheduler)
    for _ in range(STEPS):
        (a, la), (b, lb) = draw(x, y), draw(x, y)
        optimizer.zero_grad()
        functional.binary_cross_entropy(model(a, b).squeeze(), (la == lb).float()).backward()
        optimizer.step()
        scheduler.step()
        yield None


@sound("a triplet loss that comes to 0")
def triplet() -> Loop:
    x, y = images(classes=3)
    model = nn.Sequential(nn.Flatten(), mlp(64, 64, 16))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    yield Parts(model, optimizer)
    for _ in range(STEPS):
        chosen = torch.randint(0, 3, (16,))
        anchor, same, other = (
            torch.stack(
                [x[y == int(k)][torch.randint(0, int((y == int(k)).sum()), ())] for k in kinds]
            )
            for kinds in (chosen, chosen, (chosen + 1) % 3)
        )
        optimizer.zero_grad()
        functional.triplet_margin_loss(
            model(anchor), model(same), model(other), margin=0.5
        ).backward()
        optimizer.step()
        yield None


@sound("segmentation, with borders that are ignored")
def segmentation() -> Loop:
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(
            nn.Conv2d(16, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 3, 2, 2),
        ),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, STEPS, 0.9)
    x = digits()
    y = (x[:, 0] > 0.3).long() + (x[:, 0] > 0.9).long()
    y[:, 0] = y[:, -1] = 255
    yield Parts(model, optimizer, scheduler)
    for a, b in epochs(x + 0.1 * torch.randn_like(x), y):
        optimizer.zero_grad()
        functional.cross_entropy(
            model(a), b, ignore_index=255, weight=torch.tensor([0.2, 1.0, 1.0])
        ).backward()
        optimizer.step()
        scheduler.step()
        yield None


class _Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU()
        )
        self.score, self.box = nn.Conv2d(16, 1, 1), nn.Conv2d(16, 4, 1)
        nn.init.constant_(self.score.bias, -math.log(99))  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.trunk(x)
        return self.score(x)[:, 0], self.box(x).exp()


@sound("a detector: focal loss over few positives, boxes, clipped to 0.1 in each step")
def detector() -> Loop:
    model = _Detector()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [120, 160])
    x = digits()
    there = functional.max_pool2d(x, 4)[:, 0] > 0.95
    yield Parts(model, optimizer, scheduler)
    for a, b in epochs(x, there.float()):
        score, box = model(a)
        chance = score.sigmoid()
        focal = (
            functional.binary_cross_entropy_with_logits(score, b, reduction="none")
            * torch.where(b > 0, 1 - chance, chance) ** 2
        )
        boxes = ((box - 2.0).abs().sum(1) * b).sum()
        optimizer.zero_grad()
        ((focal.sum() + boxes) / b.sum().clamp(min=1)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        scheduler.step()
        yield None


@sound("SimCLR: -1e9 on the diagonal, temperature 0.1")
def simclr() -> Loop:
    x, _ = images()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), mlp(256, 64, 32)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    yield Parts(model, optimizer, scheduler)
    for (a,) in epochs(x, size=32):
        both = torch.cat(
            [a + 0.3 * torch.randn_like(a), a.flip(-1) * (0.8 + 0.4 * torch.rand(len(a), 1, 1, 1))]
        )
        z = functional.normalize(model(both), dim=1)
        scores = z @ z.T / 0.1 - 1e9 * torch.eye(len(z))
        optimizer.zero_grad()
        functional.cross_entropy(scores, torch.arange(len(z)).roll(len(a))).backward()
        optimizer.step()
        scheduler.step()
        yield None


class _CLIP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Sequential(nn.Flatten(), mlp(64, 64, 24)), nn.Embedding(40, 24)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, pixels: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        one, other = (
            functional.normalize(self.image(pixels), dim=1),
            functional.normalize(self.text(ids).mean(1), dim=1),
        )
        return self.logit_scale.exp() * one @ other.T


@sound("CLIP: a scale that is learnt, up to 100")
def clip() -> Loop:
    x, y = images(classes=40)
    model = _CLIP()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-3, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.2
    )
    yield Parts(model, optimizer)
    for a, b in epochs(x, y[:, None].expand(-1, 4).contiguous()):
        logits = model(a, b)
        target = torch.arange(len(a))
        optimizer.zero_grad()
        (
            (functional.cross_entropy(logits, target) + functional.cross_entropy(logits.T, target))
            / 2
        ).backward()
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(100))
        yield None


@sound("prototypes by a cosine, scaled by 64 with a margin")
def margins() -> Loop:
    x, y = images()
    model = nn.Sequential(nn.Flatten(), mlp(64, 64, 24))
    centres = nn.Parameter(torch.randn(6, 24))
    optimizer = torch.optim.SGD([*model.parameters(), centres], lr=0.02, momentum=0.9)
    yield Parts(model, optimizer)
    for a, b in epochs(x, y):
        cosine = functional.normalize(model(a), dim=1) @ functional.normalize(centres, dim=1).T
        optimizer.zero_grad()
        functional.cross_entropy(64 * (cosine - 0.2 * functional.one_hot(b, 6)), b).backward()
        optimizer.step()
        yield None


@sound("distillation from a frozen teacher, with small losses")
def distillation() -> Loop:
    x, y = images()
    teacher, model = Net().eval().requires_grad_(False), nn.Sequential(nn.Flatten(), mlp(64, 32, 6))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    yield Parts(model, optimizer)
    for a, b in epochs(x, y):
        with torch.no_grad():
            told = teacher(a)
        logits = model(a)
        soft = (
            functional.kl_div(
                functional.log_softmax(logits / 4, 1),
                functional.softmax(told / 4, 1),
                reduction="batchmean",
            )
            * 16
        )
        optimizer.zero_grad()
        (0.01 * (0.7 * soft + 0.3 * functional.cross_entropy(logits, b))).backward()
        optimizer.step()
        yield None


class _Probe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = Net(16).requires_grad_(False).eval(), nn.Linear(16, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.backbone(x))
        return logits


@sound("a frozen backbone in eval, a head that is trained")
def probe() -> Loop:
    x, y = images()
    model = _Probe()
    optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-2)
    yield Parts(model, optimizer)
    for a, b in epochs(x, y):
        optimizer.zero_grad()
        functional.cross_entropy(model(a), b).backward()
        optimizer.step()
        yield None


@sound("a whole model in eval, of which only the last layer is trained")
def probe_in_eval() -> Loop:
    x, y = images()
    model = Net()
    model.requires_grad_(False).eval()
    model.head = nn.Linear(64, 6)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.05, momentum=0.9)
    yield Parts(model, optimizer)
    for a, b in epochs(x, y):
        optimizer.zero_grad()
        functional.cross_entropy(model(a), b).backward()
        optimizer.step()
        yield None


@sound("fine-tuning with batch norms in eval, and layers set free one after the other")
def unfreezing() -> Loop:
    x, y = images()
    model = Net()
    model.features.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=3e-3)
    yield Parts(model, optimizer)
    for step, (a, b) in enumerate(epochs(x, y)):
        model.train()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        if step == 60:
            model.features[3:].requires_grad_(True)
            optimizer.add_param_group({"params": list(model.features[3:].parameters()), "lr": 1e-3})
        if step == 120:
            model.features[:3].requires_grad_(True)
            optimizer.add_param_group({"params": list(model.features[:3].parameters()), "lr": 5e-4})
        optimizer.zero_grad()
        functional.cross_entropy(model(a), b).backward()
        optimizer.step()
        yield None


class _Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 16))
        self.enter, self.middle = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.leave = nn.Conv2d(16, 1, 3, padding=1)
        self.norm, self.dropout = nn.GroupNorm(4, 16), nn.Dropout(0.1)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        angles = timestep[:, None] * torch.exp(-torch.arange(8) * math.log(1e4) / 8)
        h = self.enter(x) + self.time(torch.cat([angles.sin(), angles.cos()], 1))[:, :, None, None]
        h = h + self.dropout(functional.silu(self.middle(functional.silu(self.norm(h)))))
        noise: torch.Tensor = self.leave(functional.silu(h))
        return noise


@sound("diffusion: noise at random times, a last layer of zeros, an average of the weights")
def diffusion() -> Loop:
    model = _Denoiser()
    averaged = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)
    yield Parts(model, optimizer, scheduler)
    for (x,) in epochs(2 * digits() - 1):
        times, noise = torch.randint(0, 1000, (len(x),)), torch.randn_like(x)
        share = kept[times][:, None, None, None]
        optimizer.zero_grad()
        functional.mse_loss(
            model(share.sqrt() * x + (1 - share).sqrt() * noise, times), noise
        ).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        averaged.update_parameters(model)
        yield None


class _Momentum(nn.Module):
    """A student, and a teacher that is its average."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16)
        )
        self.teacher = copy.deepcopy(self.student)
        self.predict = mlp(16, 16, 16)

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            aim = functional.normalize(self.teacher(other), dim=1)
        return (
            2
            - 2 * (functional.normalize(self.predict(self.student(one)), dim=1) * aim).sum(1).mean()
        )


@sound("BYOL: a teacher inside of the model that follows its student")
def byol() -> Loop:
    x, _ = images()
    model = _Momentum()
    optimizer = torch.optim.Adam(
        [*model.student.parameters(), *model.predict.parameters()], lr=1e-3
    )
    yield Parts(model, optimizer)
    for (a,) in epochs(x, size=32):
        one, other = a + 0.3 * torch.randn_like(a), a + 0.3 * torch.randn_like(a)
        loss = model(one, other) + model(other, one)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(
                model.teacher.parameters(), model.student.parameters(), strict=True
            ):
                mine.lerp_(theirs, 0.01)
        yield None


@sound("mean teacher: the same model without gradients in each step, in training")
def consistency() -> Loop:
    x, y = images()
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    yield Parts(model, optimizer)
    for a, b in epochs(x, y):
        with torch.no_grad():
            aim = model(a + 0.1 * torch.randn_like(a)).softmax(1)
        logits = model(a)
        optimizer.zero_grad()
        (
            functional.cross_entropy(logits, b) + functional.mse_loss(logits.softmax(1), aim)
        ).backward()
        optimizer.step()
        yield None


@sound("adversarial training: the attack in eval, the update in train")
def attacked() -> Loop:
    x, y = images()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    yield Parts(model, optimizer)
    for a, b in epochs(x, y):
        model.eval()
        change = torch.zeros_like(a, requires_grad=True)
        for _ in range(2):
            (grad,) = torch.autograd.grad(functional.cross_entropy(model(a + change), b), change)
            change = (change + 0.05 * grad.sign()).clamp(-0.1, 0.1).detach().requires_grad_(True)
        model.train()
        optimizer.zero_grad()
        functional.cross_entropy(model(a + change.detach()), b).backward()
        optimizer.step()
        yield None


@sound("mixed labels (mixup), label smoothing, the average of weights, batch norm measured anew")
def averaged_weights() -> Loop:
    x, y = images()
    model = Net()
    averaged = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.02, anneal_epochs=20)
    yield Parts(model, optimizer, scheduler)
    for step, (a, b) in enumerate(epochs(x, y)):
        mix, order = float(torch.distributions.Beta(0.3, 0.3).sample()), torch.randperm(len(a))
        target = mix * functional.one_hot(b, 6) + (1 - mix) * functional.one_hot(b[order], 6)
        optimizer.zero_grad()
        functional.cross_entropy(
            model(mix * a + (1 - mix) * a[order]), target.float(), label_smoothing=0.1
        ).backward()
        optimizer.step()
        if step >= 100 and step % 10 == 0:
            averaged.update_parameters(model)
            scheduler.step()
        yield None
    torch.optim.swa_utils.update_bn([each for (each,) in epochs(x, steps=20)], averaged)
    torch.optim.swa_utils.update_bn([each for (each,) in epochs(x, steps=20)], model)


@sound("masked patches, whose model gives the pixels between 0 and 1")
def masked() -> Loop:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.leave, self.nothing = (
                nn.Linear(16, 32),
                nn.Linear(32, 16),
                nn.Parameter(torch.zeros(32)),
            )
            self.layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)

        def forward(self, patches: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
            h = torch.where(hidden[..., None], self.nothing, self.enter(patches))
            return (self.leave(self.layer(h)) + 0.5).clamp(0, 1)

    model = Masked()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1.5e-3, betas=(0.9, 0.95), weight_decay=0.05
    )
    x = functional.unfold(digits(), 4, stride=4).transpose(1, 2)
    yield Parts(model, optimizer)
    for (a,) in epochs(x):
        hidden = torch.rand(a.shape[:2]) < 0.6
        optimizer.zero_grad()
        functional.mse_loss(model(a, hidden)[hidden], a[hidden]).backward()
        optimizer.step()
        yield None


def flow(width: int) -> Any:
    return mlp(width, 32, 2 * width, act=nn.Tanh)


@sound("a normalising flow, whose loss is below 0")
def normalising_flow() -> Loop:
    layers = nn.ModuleList(flow(2) for _ in range(4))

    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total = torch.zeros(len(x))
            for number, layer in enumerate(self.layers):
                one, other = x.chunk(2, 1) if number % 2 else x.flip(1).chunk(2, 1)
                scale, shift = layer(one).chunk(2, 1)
                scale = scale.tanh()
                x = torch.cat([one, other * scale.exp() + shift], 1)
                total = total + scale.sum(1)
            return total - 0.5 * (x**2).sum(1)

    model = Flow()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    yield Parts(model, optimizer)
    for _ in range(STEPS):
        x = 0.05 * torch.randn(64, 4) + 0.1 * torch.randint(0, 2, (64, 1))
        optimizer.zero_grad()
        (-model(x).mean()).backward()
        optimizer.step()
        yield None
