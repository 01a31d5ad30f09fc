"""Four small trainings for the checklist: a GPT-2, a CNN, an LSTM and a mixture of experts; the
loop, and what a fault may change in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

#: Of a run, and of an epoch: the steps after which the loader has given every sample once.
STEPS, EPOCH = 300, 40
_BATCH = 16
_CLASSES, _WORDS, _LENGTH, _PAD = 6, 40, 12, 0


@dataclass
class Training:
    """A training, and all that a fault may change.

    Attributes:
        model: in train mode.
        batches: of one epoch, what the model is called with, and the labels.
        loss: of an output and labels.
        optimizer, scheduler, scaler: as in any loop.
        autocast: whether the forward and the loss run in bfloat16 autocast.
        clip: the largest norm of all gradients together; ``None``: they are not clipped.
        shuffled: whether each epoch has an order, and a composition of batches, of its own.
        begins_anew: whether the loader is begun in each step.
        zero_grad: whether gradients are cleared behind an update.
        schedule_steps: how often the scheduler is stepped behind each update.
        unscales: whether gradients are unscaled before they are clipped.
        updates: of a step, whether the optimizer is stepped in it.
        before_step, before_loss, before_clip, before_update, after_update: what a fault does there,
            given the training and the step.
        given: what becomes of a batch before the model is called: of the step, the arguments and
            the labels.
        losses: what becomes of a loss: of the step.
    """

    model: nn.Module
    samples: list[torch.Tensor]
    arguments: Callable[[list[torch.Tensor]], tuple[dict[str, Any], torch.Tensor]]
    loss: Callable[[Any, torch.Tensor], torch.Tensor]
    optimizer: torch.optim.Optimizer
    scheduler: Any = None
    scaler: Any = None
    autocast: bool = False
    clip: float | None = 1.0
    shuffled: bool = True
    begins_anew: bool = False
    zero_grad: bool = True
    schedule_steps: int = 1
    unscales: bool = True
    updates: Callable[[int], bool] = lambda step: True
    before_step: list[Callable[[Training, int], Any]] = field(default_factory=list)
    before_clip: list[Callable[[Training, int], Any]] = field(default_factory=list)
    before_update: list[Callable[[Training, int], Any]] = field(default_factory=list)
    after_update: list[Callable[[Training, int], Any]] = field(default_factory=list)
    given: list[Callable[[int, dict[str, Any], torch.Tensor], Any]] = field(default_factory=list)
    losses: list[Callable[[int, torch.Tensor], torch.Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._order = torch.Generator()
        places: Any = range(EPOCH * _BATCH)
        self._loader: Any = torch.utils.data.DataLoader(
            places, _BATCH, shuffle=True, generator=self._order
        )
        self._batches: Iterator[torch.Tensor] = iter(())
        self._drawn: tuple[int, torch.Tensor] | None = (
            None  # the last step, and what the loader gave in it
        )

    def batch(self, step: int) -> tuple[dict[str, Any], torch.Tensor]:
        """What the loader gives in a step."""
        if self._drawn is None or self._drawn[0] != step:
            chosen = None if self.begins_anew else next(self._batches, None)
            if chosen is None:
                self._order.manual_seed(step // EPOCH if self.shuffled else 0)
                self._batches = iter(self._loader)
                chosen = next(self._batches)
            self._drawn = step, chosen
        chosen = self._drawn[1]
        arguments, labels = self.arguments([part[chosen] for part in self.samples])
        for change in self.given:
            change(step, arguments, labels)
        return arguments, labels

    def run(self, end_step: Callable[[], None], steps: int = STEPS) -> None:
        """Train, and call ``end_step`` at the end of each step."""
        for step in range(steps):
            for act in self.before_step:
                act(self, step)
            arguments, labels = self.batch(step)
            with (
                torch.autocast("cpu", torch.bfloat16) if self.autocast else contextlib.nullcontext()
            ):
                loss = self.loss(self.model(**arguments), labels)
            for change in self.losses:
                loss = change(step, loss)
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
            self._update(step)
            end_step()

    def _update(self, step: int) -> None:
        for act in self.before_clip:
            act(self, step)
        if self.scaler is not None and self.unscales:
            self.scaler.unscale_(self.optimizer)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        for act in self.before_update:
            act(self, step)
        if self.updates(step):
            if self.scaler is None:
                self.optimizer.step()
            else:
                self.scaler.step(self.optimizer)
                self.scaler.update()
        for act in self.after_update:
            act(self, step)
        for _ in range(self.schedule_steps if self.scheduler is not None else 0):
            self.scheduler.step()
        if self.zero_grad:
            self.optimizer.zero_grad()


class _Net(nn.Module):
    """Convolutions with batch norm, and a classifier with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1, self.act1 = (
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
        )
        self.conv2, self.norm2, self.act2 = nn.Conv2d(8, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU()
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(8 * 16, _CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act1(self.norm1(self.conv1(x)))
        x = self.act2(self.norm2(self.conv2(x)))
        logits: torch.Tensor = self.head(self.dropout(x.flatten(1)))
        return logits


class _Reader(nn.Module):
    """An LSTM that says the class of a sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(_WORDS, 24), nn.LSTM(24, 32, batch_first=True)
        self.dropout, self.norm, self.head = (
            nn.Dropout(0.1),
            nn.LayerNorm(32),
            nn.Linear(32, _CLASSES),
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):  # not every processor has an LSTM in bfloat16
            output, _ = self.lstm(self.embed(ids))
        logits: torch.Tensor = self.head(self.norm(self.dropout(output.mean(-2))))
        return logits


class _Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(24, 32), nn.GELU(), nn.Linear(32, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(self.act(self.up(x)))
        return y


class _Mixture(nn.Module):
    """A layer of three experts, of which a router takes two."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(20, 24)
        self.routers = nn.ModuleList(nn.Linear(24, 3) for _ in range(1))
        self.norms = nn.ModuleList(nn.LayerNorm(24) for _ in range(1))
        self.layers = nn.ModuleList(nn.ModuleList(_Expert() for _ in range(3)) for _ in range(1))
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(24, _CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for router, norm, experts in zip(self.routers, self.norms, self.layers, strict=True):
            assert isinstance(experts, nn.ModuleList)
            inside = norm(x)
            weights = router(inside).softmax(-1)
            chosen = weights >= weights.topk(2, -1).values[..., -1:]
            parts = [
                expert(inside) * (weights * chosen)[..., index, None]
                for index, expert in enumerate(experts)
            ]
            x = x + torch.stack(parts).sum(0)
        logits: torch.Tensor = self.head(self.dropout(x))
        return logits


def _cross_entropy(output: Any, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output, labels)


def _sentences(count: int) -> torch.Tensor:
    """Sentences of a small grammar: a word is mostly followed by its double."""
    ids = torch.randint(2, _WORDS, (count, _LENGTH))
    for place in range(1, _LENGTH):
        follows = (ids[:, place - 1] * 2) % (_WORDS - 2) + 2
        ids[:, place] = torch.where(torch.rand(count) < 0.8, follows, ids[:, place])
    return ids


def gpt2() -> Training:
    """A GPT-2 that predicts the next word; sentences end early, and are padded on the right."""
    from transformers import GPT2Config, GPT2LMHeadModel

    options: dict[str, Any] = {
        "n_layer": 2,
        "n_embd": 32,
        "n_head": 2,
        "n_positions": 16,
        "bos_token_id": 1,
        "eos_token_id": 1,
        "pad_token_id": _PAD,
        "loss_type": "ForCausalLM",
    }
    model = GPT2LMHeadModel(GPT2Config(vocab_size=_WORDS, **options)).train()
    ids = _sentences(EPOCH * _BATCH)
    lengths = torch.randint(6, _LENGTH + 1, (len(ids),))
    mask = (torch.arange(_LENGTH) < lengths[:, None]).long()
    ids = torch.where(mask.bool(), ids, _PAD)

    def arguments(parts: list[torch.Tensor]) -> tuple[dict[str, Any], torch.Tensor]:
        ids, mask = parts
        labels = torch.where(mask.bool(), ids, -100)
        return {
            "input_ids": ids.clone(),
            "attention_mask": mask.clone(),
            "labels": labels,
            "use_cache": False,
        }, labels

    return _training(model, [ids, mask], arguments, lambda output, labels: output.loss)


def cnn() -> Training:
    """A CNN that tells patterns apart."""
    labels = torch.randint(0, _CLASSES, (EPOCH * _BATCH,))
    images = torch.randn(_CLASSES, 1, 8, 8)[labels] + 0.7 * torch.randn(len(labels), 1, 8, 8)
    return _training(
        _Net(),
        [images, labels],
        lambda parts: ({"x": parts[0].clone()}, parts[1].clone()),
        _cross_entropy,
    )


def lstm() -> Training:
    """An LSTM that tells by which word sentences begin."""
    ids = _sentences(EPOCH * _BATCH)
    labels = ids[:, 0] % _CLASSES
    return _training(
        _Reader(),
        [ids, labels],
        lambda parts: ({"ids": parts[0].clone()}, parts[1].clone()),
        _cross_entropy,
    )


def moe() -> Training:
    """A mixture of experts that tells clusters apart."""
    labels = torch.randint(0, _CLASSES, (EPOCH * _BATCH,))
    points = torch.randn(_CLASSES, 20)[labels] + torch.randn(len(labels), 20)
    return _training(
        _Mixture(),
        [points, labels],
        lambda parts: ({"x": parts[0].clone()}, parts[1].clone()),
        _cross_entropy,
    )


MODELS: dict[str, Callable[[], Training]] = {"lstm": lstm, "cnn": cnn, "moe": moe, "gpt2": gpt2}
#: How a model computes, by name.
PRECISIONS = {"float32": False, "bfloat16": True}


def make(model: str, precision: str, seed: int = 0) -> Training:
    """A training of one of ``MODELS`` in one of ``PRECISIONS``."""
    torch.manual_seed(seed)
    training = MODELS[model]()
    training.autocast = PRECISIONS[precision]
    return training


def _training(
    model: nn.Module,
    samples: list[torch.Tensor],
    arguments: Callable[[list[torch.Tensor]], tuple[dict[str, Any], torch.Tensor]],
    loss: Callable[[Any, torch.Tensor], torch.Tensor],
) -> Training:
    """With AdamW, of which biases and norms are not decayed, a warm-up and a cosine decay."""
    optimizer = torch.optim.AdamW(groups(model), lr=2e-3)
    scheduler = warm_up_and_cosine(optimizer, STEPS)
    return Training(model, samples, arguments, loss, optimizer, scheduler)


def groups(model: nn.Module, decay: float = 0.01) -> list[dict[str, Any]]:
    """Matrices are decayed; biases and norms are not."""
    parameters = list(model.parameters())
    return [
        {"params": [each for each in parameters if each.dim() > 1], "weight_decay": decay},
        {"params": [each for each in parameters if each.dim() < 2], "weight_decay": 0.0},
    ]


def by_sgd(training: Training) -> None:
    """SGD with momentum, a constant rate, and no clipping."""
    training.optimizer = torch.optim.SGD(
        training.model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4
    )
    training.scheduler, training.clip = None, None


def by_default(training: Training) -> None:
    """AdamW as torch makes it, and no clipping: biases and norms are decayed by 0.01."""
    training.optimizer = torch.optim.AdamW(training.model.parameters())
    training.scheduler, training.clip = None, None


def by_one_cycle(training: Training) -> None:
    """One cycle of the learning rate."""
    training.scheduler = torch.optim.lr_scheduler.OneCycleLR(training.optimizer, 4e-3, STEPS + 1)


def with_a_scaler(training: Training) -> None:
    """A loss scaler, whose first scales are too large for nothing."""
    training.scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=50)


#: What else sound trainings are made with.
VARIANTS: dict[str, Callable[[Training], None]] = {
    "": lambda training: None,
    "SGD": by_sgd,
    "AdamW as it is": by_default,
    "one cycle": by_one_cycle,
    "scaler": with_a_scaler,
}


def warm_up_and_cosine(optimizer: torch.optim.Optimizer, steps: int) -> Any:
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 20)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 20)
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, decay], [20])
