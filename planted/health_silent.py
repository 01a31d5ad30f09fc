"""Faults that say nothing: the training runs, often the loss falls. Each changes one thing, as in
``health_faults``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from planted.health_models import EPOCH, Training, groups
from planted.health_planting import ONCE, fault, first, head, renew, trained

Loss = Callable[[Any, torch.Tensor], torch.Tensor]


def _of_one_output(training: Training, loss: Loss) -> None:
    """A training with one output in place of the classes."""
    training.model.head = nn.Linear(head(training).in_features, 1)
    training.loss = loss
    renew(training)


def _hot(labels: torch.Tensor) -> torch.Tensor:
    return functional.one_hot(labels, 6).float()


# what the loss is given


@fault("softmax before cross_entropy", "loss-input", places="cnn float32, lstm bfloat16")
def _(training: Training) -> None:
    training.loss = lambda output, labels: functional.cross_entropy(output.softmax(-1), labels)


@fault("a softmax at the end of the model", "loss-input", places="moe float32")
def _(training: Training) -> None:
    training.model.head = nn.Sequential(head(training), nn.Softmax(-1))
    renew(training)


@fault("relu before cross_entropy", "loss-input", places="cnn bfloat16")
def _(training: Training) -> None:
    head(training).register_forward_hook(lambda module, args, output: output.relu())


@fault(
    "sigmoid before binary_cross_entropy_with_logits",
    "loss-input",
    places="moe float32, cnn bfloat16",
)
def _(training: Training) -> None:
    training.loss = lambda output, labels: functional.binary_cross_entropy_with_logits(
        output.sigmoid(), _hot(labels)
    )


@fault("probabilities into nll_loss", "loss-input", places="lstm float32")
def _(training: Training) -> None:
    training.loss = lambda output, labels: functional.nll_loss(output.softmax(-1), labels)


@fault("logits into nll_loss", "loss-input", places="cnn float32")
def _(training: Training) -> None:
    training.loss = lambda output, labels: functional.nll_loss(output, labels)


@fault(
    "a prediction (B, 1) against a target (B,)", "loss-shape", places="moe float32, lstm bfloat16"
)
def _(training: Training) -> None:
    _of_one_output(training, lambda output, labels: functional.mse_loss(output, labels.float()))


@fault("a prediction (B,) against a target (B, 1)", "loss-shape", places="cnn float32")
def _(training: Training) -> None:
    _of_one_output(
        training,
        lambda output, labels: functional.smooth_l1_loss(
            output.squeeze(-1), labels.float()[:, None]
        ),
    )


@fault("a difference of (B, 1) and (B,), by hand", "loss-shape", places="moe bfloat16")
def _(training: Training) -> None:
    _of_one_output(training, lambda output, labels: ((output - labels.float()) ** 2).mean())


@fault("a cross entropy over one output", "one-class", places="cnn float32")
def _(training: Training) -> None:
    _of_one_output(
        training, lambda output, labels: functional.cross_entropy(output, torch.zeros_like(labels))
    )


@fault("data of one class only", "one-class", places="cnn float32, lstm bfloat16")
def _(training: Training) -> None:
    training.given.append(lambda step, given, labels: labels.fill_(3))


@fault("a binary cross entropy of one class only", "one-class", places="moe float32")
def _(training: Training) -> None:
    _of_one_output(
        training,
        lambda output, labels: functional.binary_cross_entropy_with_logits(
            output[:, 0], torch.ones(len(labels))
        ),
    )


@fault("padding in the loss", "padding-in-loss", places="gpt2 float32, gpt2 bfloat16")
def _(training: Training) -> None:
    training.given.append(lambda step, given, labels: labels.copy_(given["input_ids"]))


@fault("label smoothing of what the label keeps", "label-smoothing", places="cnn float32")
def _(training: Training) -> None:
    training.loss = lambda output, labels: functional.cross_entropy(
        output, labels, label_smoothing=0.9
    )


# what the model is given


@fault("inputs of 0 to 255", "input-range", places="cnn float32, cnn bfloat16")
def _(training: Training) -> None:
    training.given.append(
        lambda step, given, labels: given["x"].copy_(
            given["x"].mul(64).add(128).round().clamp(0, 255)
        )
    )


@fault("large values in a half type", "input-type", places="moe bfloat16")
def _(training: Training) -> None:
    training.given.append(lambda step, given, labels: given.update(x=(given["x"] * 300).bfloat16()))


@fault("an Inf in one batch", "input-finite", places="cnn bfloat16")
def _(training: Training) -> None:
    training.given.append(
        lambda step, given, labels: (
            given["x"].view(-1)[:1].fill_(math.inf) if step == ONCE else None
        )
    )


@fault("a mask that is inverted", "mask-padding", places="gpt2 float32")
def _(training: Training) -> None:
    training.given.append(
        lambda step, given, labels: given["attention_mask"].copy_(1 - given["attention_mask"])
    )


@fault("noise drawn by NumPy", "drawn-behind", places="moe float32")
def _(training: Training) -> None:
    noise = np.random.standard_normal
    first(training, nn.LayerNorm).register_forward_hook(
        lambda module, args, output: output + 0.01 * torch.tensor(noise(24)).float()
    )


# runs that die


@fault(
    "a label that is no class", "labels-range", places="cnn float32, lstm bfloat16", dies=IndexError
)
def _(training: Training) -> None:
    training.given.append(lambda step, given, labels: labels[:1].fill_(6) if step == ONCE else None)


@fault(
    "an id beyond the embedding",
    "labels-range",
    places="lstm float32, gpt2 float32",
    dies=IndexError,
)
def _(training: Training) -> None:
    training.given.append(
        lambda step, given, labels: (
            next(iter(given.values()))[:1, :1].fill_(40) if step == ONCE else None
        )
    )


@fault("a run that ends with an error", "ended", places="moe float32", dies=RuntimeError)
def _(training: Training) -> None:
    training.given.append(
        lambda step, given, labels: given.update(x=given["x"][:, :7]) if step == ONCE else None
    )


# what learns nothing


@fault(
    "a loss made anew of its number",
    "without-gradient",
    "update-skipped",
    places="cnn float32, gpt2 float32",
)
def _(training: Training) -> None:
    training.clip = None
    training.losses.append(lambda step, loss: torch.tensor(loss.item(), requires_grad=True))


@fault("a loss that is detached", "without-gradient", "update-skipped", places="moe bfloat16")
def _(training: Training) -> None:
    training.losses.append(lambda step, loss: loss.detach().requires_grad_())


@fault("a loss of which only a penalty has a gradient", "without-gradient", places="cnn bfloat16")
def _(training: Training) -> None:
    weight = head(training).weight
    training.loss = lambda output, labels: (
        functional.cross_entropy(output.detach(), labels) + 1e-3 * weight.square().sum()
    )


@fault("gradients cleared before the update", "update-skipped", places="lstm float32")
def _(training: Training) -> None:
    training.before_update.append(lambda training, step: training.optimizer.zero_grad())


@fault(
    "gradients set to zero before the update", "clip-share", "update-skipped", places="moe float32"
)
def _(training: Training) -> None:
    training.before_update.append(
        lambda training, step: training.optimizer.zero_grad(set_to_none=False)
    )


@fault("weights of zero that stay", "without-gradient", "dead-units", places="moe float32")
def _(training: Training) -> None:
    expert: Any = training.model.get_submodule("layers.0.1")
    for each in (*expert.up.parameters(), *expert.down.parameters()):
        nn.init.zeros_(each)


@fault("dropout of 0.95", "dropout", places="cnn bfloat16, lstm float32")
def _(training: Training) -> None:
    first(training, nn.Dropout).p = 0.95


# optimizers, schedules and clipping


@fault(
    "an optimizer made before weights were tied",
    "without-gradient",
    places="moe float32, moe bfloat16",
)
def _(training: Training) -> None:
    one, other = (training.model.get_submodule(f"layers.0.{number}.up") for number in (0, 1))
    one.weight = other.weight


@fault("an optimizer made before the head was exchanged", "in-no-optimizer", places="cnn float32")
def _(training: Training) -> None:
    training.model.head = nn.Linear(head(training).in_features, 6)


@fault("zero_grad at each micro-batch", "zero-grad", places="cnn float32, gpt2 bfloat16")
def _(training: Training) -> None:
    training.updates = lambda step: step % 4 == 3
    training.scheduler = None


@fault("zero_grad at each micro-batch, a step an update", "zero-grad", places="lstm float32")
def _(training: Training) -> None:
    def others(training: Training, step: int) -> None:
        for number in range(3):
            arguments, labels = training.batch((step + 7 * number) % EPOCH)
            loss: Any = training.loss(training.model(**arguments), labels)
            loss.backward()
            training.optimizer.zero_grad()

    training.before_step.append(others)


@fault("an optimizer made anew in each step", "state-restored", places="lstm float32, moe bfloat16")
def _(training: Training) -> None:
    _anew(training, 1)


@fault("an optimizer made anew in each epoch", "state-restored", places="moe float32")
def _(training: Training) -> None:
    _anew(training, EPOCH)


def _anew(training: Training, every: int) -> None:
    def make(training: Training, step: int) -> None:
        if step and step % every == 0:
            training.optimizer = torch.optim.AdamW(groups(training.model), lr=2e-3)

    training.scheduler = None
    training.before_step.append(make)


@fault("clipping behind the update", "clip-share", places="lstm float32, cnn bfloat16")
def _(training: Training) -> None:
    training.clip = None
    training.after_update.append(
        lambda training, step: nn.utils.clip_grad_norm_(training.model.parameters(), 0.1)
    )


@fault("values clipped to next to nothing", "clip-share", places="moe bfloat16")
def _(training: Training) -> None:
    training.clip = None
    training.before_update.append(
        lambda training, step: nn.utils.clip_grad_value_(training.model.parameters(), 1e-8)
    )


@fault(
    "a head with next to no weights, and a rate that leaves them so",
    "gradient-explodes",
    places="moe float32",
)
def _(training: Training) -> None:
    nn.init.normal_(head(training).weight, std=1e-5)
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=1e-9)
    training.scheduler = training.clip = None


@fault("a learning rate of 0 by integer division", "lr-range", places="lstm bfloat16")
def _(training: Training) -> None:
    training.scheduler = torch.optim.lr_scheduler.LambdaLR(
        training.optimizer, lambda step: step // 1000
    )


@fault("a decay meant for epochs in each step", "lr-range", places="cnn float32")
def _(training: Training) -> None:
    training.scheduler = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.5)


@fault(
    "gradients scaled down where the loss scale is gone already",
    "clip-share",
    "second-moment",
    places="gpt2 float32",
)
def _(training: Training) -> None:
    training.before_update.append(
        lambda training, step: [each.grad.div_(65536.0) for each in trained(training)]
    )
