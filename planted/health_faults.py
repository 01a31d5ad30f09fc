"""Faults that the checklist must see: each changes one thing in a training, and names the checks of
which one must complain.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from planted import health_silent as health_silent  # which adds its own
from planted.health_models import STEPS, Training, groups
from planted.health_planting import FAULTS as FAULTS
from planted.health_planting import ONCE, at, fault, first, head, renew, trained

# data


@fault("a NaN in one batch", "input-finite", places="cnn float32, moe bfloat16")
def _(training: Training) -> None:
    training.given.append(
        lambda step, given, labels: (
            given["x"].view(-1)[:1].fill_(math.nan) if step == ONCE else None
        )
    )


@fault("inputs that were not normalised", "input-range", places="cnn bfloat16")
def _(training: Training) -> None:
    training.given.append(lambda step, given, labels: given["x"].mul_(2e5))


@fault("one sample stacked into each batch", "input-constant", places="cnn float32")
def _(training: Training) -> None:
    training.given.append(lambda step, given, labels: given["x"].copy_(given["x"][:1].clone()))


@fault("inputs that change their type", "input-type", places="moe bfloat16")
def _(training: Training) -> None:
    def change(step: int, given: dict[str, Any], labels: torch.Tensor) -> None:
        if step >= ONCE:
            given["x"] = given["x"].bfloat16()

    training.given.append(change)


@fault("all labels of a batch ignored", "labels-ignored", places="cnn bfloat16")
def _(training: Training) -> None:
    training.given.append(lambda step, given, labels: labels.fill_(-100) if step == ONCE else None)


@fault("the loader's iterator made anew in each step", "batch-repeated", places="lstm float32")
def _(training: Training) -> None:
    training.begins_anew, training.shuffled = True, False


@fault("each epoch in the same order", "order-repeated", places="gpt2 bfloat16")
def _(training: Training) -> None:
    training.shuffled = False


@fault("rows of padding alone", "padding-rows", places="gpt2 float32")
def _(training: Training) -> None:
    def change(step: int, given: dict[str, Any], labels: torch.Tensor) -> None:
        given["attention_mask"][0] = 0
        given["input_ids"][0] = 0
        labels[0] = -100

    training.given.append(change)


@fault("a mask that keeps the padding", "mask-padding", places="gpt2 bfloat16")
def _(training: Training) -> None:
    training.given.append(lambda step, given, labels: given["attention_mask"].fill_(1))


@fault("a batch of one sample, squeezed", "input-shape", places="moe float32")
def _(training: Training) -> None:
    def squeezed(step: int) -> tuple[dict[str, Any], torch.Tensor]:
        given, labels = batch(step)
        return ({"x": given["x"][0]}, labels[0]) if step == ONCE else (given, labels)

    batch = training.batch
    training.batch = squeezed  # type: ignore[method-assign]


# randomness


@fault("layers dropped by Python's random", "drawn-behind", places="lstm bfloat16")
def _(training: Training) -> None:
    first(training, nn.Dropout).register_forward_hook(
        lambda module, args, output: output * (random.random() < 0.9)
    )


@fault("no seed", "seeded", places="lstm float32")
def _(training: Training) -> None:
    torch.manual_seed(67280421310721)  # what torch's generator begins with


# model


@fault("a layer that the optimizer does not hold", "in-no-optimizer", places="cnn float32")
def _(training: Training) -> None:
    left = {id(parameter) for parameter in list(training.model.children())[-2].parameters()}
    left |= {id(parameter) for parameter in list(training.model.parameters())[-2:]}
    for group in training.optimizer.param_groups:
        group["params"] = [each for each in group["params"] if id(each) not in left]


@fault("a detach in the middle", "without-gradient", places="lstm float32, moe bfloat16")
def _(training: Training) -> None:
    first(training, nn.Dropout).register_forward_pre_hook(lambda module, args: (args[0].detach(),))


@fault("units that are dead from the beginning", "dead-units", places="cnn float32, gpt2 float32")
def _(training: Training) -> None:
    layer: Any = training.model.get_submodule(
        "norm1" if hasattr(training.model, "norm1") else "transformer.h.0.mlp.c_fc"
    )
    with torch.no_grad():
        layer.bias.fill_(-50)


@fault("[layer] * n", "shared-by-mistake", places="gpt2 float32")
def _(training: Training) -> None:
    layers: Any = training.model.get_submodule(
        "transformer.h" if hasattr(training.model, "transformer") else "layers.0"
    )
    layers[1] = layers[0]
    renew(training)


@fault("in evaluation since an evaluation", "training-mode", places="cnn bfloat16")
def _(training: Training) -> None:
    training.before_step.append(at(ONCE, lambda training: training.model.eval()))


@fault("never in training", "training-mode", places="gpt2 float32")
def _(training: Training) -> None:
    training.model.eval()


@fault("evaluated in training mode", "evaluation-mode", places="moe bfloat16")
def _(training: Training) -> None:
    def evaluate(training: Training, step: int) -> None:
        if step % 50 == 49:
            with torch.no_grad():
                training.model(**training.batch(step)[0])

    training.after_update.append(evaluate)


@fault(
    "frozen, and updated by what is left of its gradient",
    "frozen-with-gradient",
    places="lstm float32",
)
def _(training: Training) -> None:
    def freeze(training: Training, step: int) -> None:
        if step == ONCE:
            training.model.get_submodule("embed").requires_grad_(False)

    training.after_update.append(freeze)
    training.zero_grad = False
    training.before_step.append(
        lambda training, step: training.optimizer.zero_grad(set_to_none=False)
    )


@fault("a layer multiplied by 0", "without-gradient", "output-constant", places="cnn float32")
def _(training: Training) -> None:
    layer = training.model.get_submodule(
        "conv2" if hasattr(training.model, "conv2") else "layers.0.1.up"
    )
    layer.register_forward_pre_hook(lambda module, args: (args[0] * 0,))


@fault("running statistics out of range", "buffers", places="cnn float32")
def _(training: Training) -> None:
    training.given.append(
        lambda step, given, labels: given["x"].mul_(1e3) if step >= ONCE else None
    )


# precision


@fault("weights in bfloat16 that small updates do not change", "update-lost", places="moe float32")
def _(training: Training) -> None:
    training.model.bfloat16()
    training.scheduler, training.clip = None, None
    training.optimizer = torch.optim.AdamW(groups(training.model), lr=2e-5)
    training.given.append(
        lambda step, given, labels: given.update(
            {name: _narrowed(value) for name, value in given.items()}
        )
    )


def _narrowed(value: Any) -> Any:
    return (
        value.bfloat16() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
    )


@fault("a loss in bfloat16", "loss-type", places="cnn bfloat16")
def _(training: Training) -> None:
    def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return nn.functional.cross_entropy(output.bfloat16(), labels)

    training.loss = loss


@fault("logits without a temperature", "entropy", places="moe float32, lstm bfloat16")
def _(training: Training) -> None:
    head(training).register_forward_hook(lambda module, args, output: output * 300)


@fault(
    "gradients that overflow at any loss scale",
    "scale-falling",
    "scale-at-one",
    places="cnn float32",
)
def _(training: Training) -> None:
    training.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    training.before_clip.append(
        lambda training, step: trained(training)[0].grad.mul_(math.inf) if step >= ONCE else None
    )


@fault("a loss scale and gradients that are zero", "scale-growing", places="moe float32")
def _(training: Training) -> None:
    training.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=20)
    training.losses.append(lambda step, loss: loss.detach() + loss * 0)


# optimizer


@fault(
    "a gradient that vanishes",
    "gradient-vanishes",
    "second-moment",
    places="gpt2 float32, cnn bfloat16",
)
def _(training: Training) -> None:
    weight: Any = next(
        parameter for parameter in training.model.parameters() if parameter.dim() > 1
    )
    weight.register_hook(lambda grad: grad * 1e-7)


@fault(
    "a learning rate a hundred times too high", "update-ratio", places="gpt2 bfloat16, lstm float32"
)
def _(training: Training) -> None:
    _rate(training, 0.3)


@fault("a learning rate a million times too low", "update-ratio", places="lstm bfloat16")
def _(training: Training) -> None:
    _rate(training, 2e-9)


def _rate(training: Training, rate: float) -> None:
    training.scheduler = None
    for group in training.optimizer.param_groups:
        group["lr"] = rate


@fault("zero_grad forgotten", "zero-grad", places="cnn float32, gpt2 bfloat16")
def _(training: Training) -> None:
    training.zero_grad = False


@fault("updates left out", "update-skipped", places="moe bfloat16")
def _(training: Training) -> None:
    training.updates = lambda step: step % 10 != 9


@fault("weight decay on everything", "decay-of-biases", places="cnn bfloat16")
def _(training: Training) -> None:
    for group in training.optimizer.param_groups:
        group["weight_decay"] = 0.5


@fault("an optimizer whose state was not restored", "state-restored", places="lstm float32")
def _(training: Training) -> None:
    training.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(training.optimizer, 2000)
    for _ in range(700):
        training.scheduler.step()


@fault("a loss divided by a million", "second-moment", places="moe float32")
def _(training: Training) -> None:
    training.losses.append(lambda step, loss: loss / 1e6)


# schedule and clipping


@fault("a linear decay that ends too early", "lr-range", places="cnn float32")
def _(training: Training) -> None:
    _schedule(training, lambda step: 1 - step / 200)


@fault("a warm-up that ends below the decay", "lr-jump", places="gpt2 float32")
def _(training: Training) -> None:
    _schedule(training, lambda step: step / 1000 if step < 50 else 1 - step / STEPS)


@fault("a cosine for a third of the steps", "lr-length", places="moe bfloat16")
def _(training: Training) -> None:
    training.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(training.optimizer, STEPS // 3)


@fault("a scheduler stepped twice", "schedule-steps", "lr-length", places="lstm float32")
def _(training: Training) -> None:
    training.schedule_steps = 2


@fault("a scheduler that is never stepped", "schedule-steps", places="cnn bfloat16")
def _(training: Training) -> None:
    training.schedule_steps = 0


@fault("a scheduler stepped before the optimizer", "schedule-order", places="moe float32")
def _(training: Training) -> None:
    training.schedule_steps = 0
    training.before_step.append(lambda training, step: training.scheduler.step())


@fault("a scheduler of another optimizer", "schedule-applied", places="gpt2 float32")
def _(training: Training) -> None:
    training.optimizer = torch.optim.AdamW(groups(training.model), lr=2e-3)


def _schedule(training: Training, factor: Callable[[int], float]) -> None:
    training.optimizer = torch.optim.AdamW(groups(training.model), lr=2e-3)
    training.scheduler = torch.optim.lr_scheduler.LambdaLR(training.optimizer, factor)


@fault("clipping to next to nothing", "clip-share", places="lstm float32")
def _(training: Training) -> None:
    training.clip = 1e-6


@fault("clipping before the loss scale is taken out", "clip-before-unscale", places="cnn float32")
def _(training: Training) -> None:
    training.scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    training.unscales = False


@fault("gradients multiplied where they should be divided", "gradients-grow", places="moe float32")
def _(training: Training) -> None:
    training.clip = None
    training.before_update.append(
        lambda training, step: [each.grad.mul_(4) for each in trained(training)]
    )


# run


@fault("a loss that is NaN from a step on", "loss-finite", places="lstm float32")
def _(training: Training) -> None:
    training.losses.append(lambda step, loss: loss + math.nan if step >= 290 else loss)


@fault("weights spoilt in one step", "loss-spike", "norm-spike", places="gpt2 float32, moe float32")
def _(training: Training) -> None:
    def spoil(training: Training) -> None:
        with torch.no_grad():
            for parameter in training.model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(-4)

    training.before_step.append(at(2 * ONCE - 100, spoil))


@fault(
    "one gradient a thousand times too large, unclipped",
    "norm-spike",
    places="cnn float32, lstm bfloat16",
)
def _(training: Training) -> None:
    training.clip = None
    training.losses.append(lambda step, loss: loss * 1000 if step == ONCE else loss)


@fault("the sign of the loss", "loss-trend", "loss-finite", places="cnn float32")
def _(training: Training) -> None:
    training.before_clip.append(
        lambda training, step: [each.grad.neg_() for each in trained(training)]
    )
