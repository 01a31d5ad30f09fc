"""Faults that say nothing are seen by the check that is for them, in real trainings; what looks
like one and is sound is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional

import accucompare as ac
from accucompare.findings.analysis.analysis import read_logs
from accucompare.findings.checklist.checks import CheckOutcome, CheckStatus
from accucompare.findings.checklist.health_checklist import judge_log

STEPS, BATCH, CLASSES, IDS = 36, 8, 4, 12
#: Enough for all checks but one, which waits for more labels.
FEWER = 24


class Program(NamedTuple):
    """What is watched, and one step of it."""

    model: nn.Module
    optimizer: Any
    step: Callable[[int], Any]


Build = Callable[[], Program]


def outcome(build: Build, check: str, out: Path) -> CheckOutcome:
    """What a check says of a program of some steps, which an error may end."""
    torch.manual_seed(0)
    program = build()
    try:
        with ac.watch(
            program.model,
            program.optimizer,
            out=out,
            on_finding="warn",
            quiet=True,
            look=ac.LookAt(frames=0, checks_every=3),
        ) as watch:
            for step in range(STEPS if check == "one-class" else FEWER):
                program.step(step)
                watch.step()
    except (IndexError, ValueError, KeyboardInterrupt):
        pass
    return next(
        each.outcome for each in judge_log(read_logs(out)).results if each.check.id == check
    )


def net(outputs: int = CLASSES) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, outputs))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(BATCH, 6), torch.randint(0, CLASSES, (BATCH,))


def adam(*models: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        [parameter for model in models for parameter in model.parameters()], 1e-3
    )


def trained(
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    model: nn.Module | None = None,
    data: Callable[[], tuple[torch.Tensor, torch.Tensor]] = batch,
) -> Program:
    """A plain loop with this loss of the model's output and the labels."""
    model = model or net()
    optimizer = adam(model)

    def step(number: int) -> None:
        inputs, labels = data()
        optimizer.zero_grad()
        loss(model(inputs), labels).backward()
        optimizer.step()

    return Program(model, optimizer, step)


def one_output(loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Program:
    """A regression: the target has the shape (B,)."""
    return trained(lambda output, labels: loss(output, labels.float()), net(1))


def ends(loss: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]) -> Program:
    """A loop whose loss is told the number of the step."""
    numbers = iter(range(STEPS))
    return trained(lambda output, labels: loss(output, labels, next(numbers)))


FAULTS: list[tuple[str, str, Build]] = []
SOUND: list[tuple[str, str, Build]] = []


def fault(check: str) -> Callable[[Build], Build]:
    return lambda build: FAULTS.append((build.__name__, check, build)) or build


def sound(check: str) -> Callable[[Build], Build]:
    return lambda build: SOUND.append((build.__name__, check, build)) or build


# what functions of the loss are given


def of_softmax(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.softmax(-1), labels)


TWICE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "softmax": of_softmax,
    "softmax, transposed twice": lambda output, labels: functional.cross_entropy(
        output.T.softmax(0).T, labels
    ),
    "softmax, in a module, smoothed": lambda output, labels: nn.CrossEntropyLoss(
        label_smoothing=0.1
    )(nn.Softmax(-1)(output), labels),
    "softmax, in float64": lambda output, labels: functional.cross_entropy(
        output.softmax(-1).double(), labels
    ),
    "softmax, with probabilities for targets": lambda output, labels: functional.cross_entropy(
        output.softmax(-1), functional.one_hot(labels, CLASSES).float()
    ),
    "sigmoid": lambda output, labels: functional.cross_entropy(output.sigmoid(), labels),
    "relu": lambda output, labels: functional.cross_entropy(output.relu(), labels),
    "tanh": lambda output, labels: functional.cross_entropy(output.tanh(), labels),
    "sigmoid before a sigmoid": lambda output, labels: functional.binary_cross_entropy_with_logits(
        output.sigmoid(), functional.one_hot(labels, CLASSES).float()
    ),
    "probabilities for logarithms": lambda output, labels: functional.nll_loss(
        output.softmax(-1), labels
    ),
    "logits for logarithms": functional.nll_loss,
}
for name, given in TWICE.items():
    FAULTS.append((name, "loss-input", lambda given=given: trained(given)))

ONCE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "logits between 0 and 1": lambda output, labels: functional.cross_entropy(
        output.clamp(0, 1), labels
    ),
    "distillation": lambda output, labels: (
        functional.kl_div(
            (output / 2).log_softmax(-1),
            torch.randn(BATCH, CLASSES).softmax(-1),
            reduction="batchmean",
        )
        + functional.cross_entropy(output, torch.randn(BATCH, CLASSES).softmax(-1))
    ),
    "a softcap": lambda output, labels: functional.cross_entropy(30 * (output / 30).tanh(), labels),
    "log_softmax and nll_loss": lambda output, labels: functional.nll_loss(
        output.log_softmax(-1), labels
    ),
    "a logarithm and nll_loss": lambda output, labels: functional.nll_loss(
        (output.softmax(-1) + 1e-8).log(), labels
    ),
    "sigmoid and binary_cross_entropy": lambda output, labels: (
        functional.binary_cross_entropy(
            output.sigmoid(), functional.one_hot(labels, CLASSES).float()
        )
        + 0 * functional.cross_entropy(output, labels)
    ),
    "gates before the last product": lambda output, labels: functional.cross_entropy(
        output.sigmoid() * output, labels
    ),
}
for name, given in ONCE.items():
    SOUND.append((name, "loss-input", lambda given=given: trained(given)))


def in_autocast(
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def computed(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss(output.bfloat16(), target)

    return computed


APART: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mse_loss": functional.mse_loss,
    "smooth_l1_loss": functional.smooth_l1_loss,
    "huber_loss, summed": lambda output, target: functional.huber_loss(
        output, target, reduction="sum"
    ),
    "l1_loss": functional.l1_loss,
    "mse_loss of (B,) and (B, 1)": lambda output, target: functional.mse_loss(
        output.squeeze(-1), target[:, None]
    ),
    "mse_loss in autocast": in_autocast(functional.mse_loss),
    "l1_loss in autocast": in_autocast(functional.l1_loss),
    "mse_loss in half": lambda output, target: functional.mse_loss(
        output.bfloat16(), target.bfloat16()
    ),
    "by hand": lambda output, target: (output - target).pow(2).mean(),
    "by hand, the target first": lambda output, target: (target - output).abs().mean(),
    "by hand, (B,) and (B, 1)": lambda output, target: (
        (output.squeeze(-1) - target[:, None]).square().sum().sqrt()
    ),
}
for name, given in APART.items():
    FAULTS.append((name, "loss-shape", lambda given=given: one_output(given)))

TOGETHER: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "one shape": lambda output, target: functional.mse_loss(output.squeeze(-1), target),
    "one shape in autocast": in_autocast(
        lambda output, target: functional.mse_loss(output.squeeze(-1), target)
    ),
    "two numbers": lambda output, target: functional.mse_loss(output.mean(), target.mean()),
    "one target for all": lambda output, target: functional.mse_loss(
        output, torch.tensor([1.0]).expand(1)
    ),
    "quantiles": lambda output, target: (
        (torch.cat([output, output + 1, output + 2], 1) - target[:, None]).abs().mean()
    ),
    "each prediction with each target, as asked": lambda output, target: (
        (output.squeeze(-1)[:, None] - target[None]).abs().mean()
    ),
    "each prediction with each other": lambda output, target: (
        (output - output.T).relu().mean() + functional.mse_loss(output, target[:, None])
    ),
    "a batch of one": lambda output, target: functional.mse_loss(output[:1], target[:1]),
}
for name, given in TOGETHER.items():
    SOUND.append((name, "loss-shape", lambda given=given: one_output(given)))


# labels


def of_one_class(count: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 6), torch.full((count,), 2)


def of_all_classes(count: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 6), torch.randint(0, CLASSES, (count,))


@fault("one-class")
def all_labels_are_one_class() -> Program:
    return trained(functional.cross_entropy, data=of_one_class)


@fault("one-class")
def all_labels_of_a_binary_cross_entropy_are_one() -> Program:
    return trained(
        lambda output, labels: functional.binary_cross_entropy_with_logits(
            output[:, 0], torch.ones(32)
        ),
        net(1),
        of_one_class,
    )


@fault("one-class")
def a_cross_entropy_over_one_output() -> Program:
    return trained(lambda output, labels: functional.cross_entropy(output, labels * 0), net(1))


@sound("one-class")
def ten_batches_of_one_class_at_first() -> Program:
    numbers = iter(range(STEPS))
    return trained(
        functional.cross_entropy,
        data=lambda: of_one_class() if next(numbers) < 10 else of_all_classes(),
    )


@sound("one-class")
def a_rare_class_that_has_not_come_yet() -> Program:
    return trained(functional.cross_entropy, data=lambda: of_one_class(27))


@sound("one-class")
def two_domains_told_apart_by_one_classifier() -> Program:
    def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        here, there = torch.zeros(16, dtype=torch.long), torch.ones(16, dtype=torch.long)
        return functional.cross_entropy(output[:16], here) + functional.cross_entropy(
            output[16:], there
        )

    return trained(loss, data=of_all_classes)


@sound("one-class")
def a_discriminator_with_a_backward_for_each_side() -> Program:
    model = net(1)
    optimizer = adam(model)

    def step(number: int) -> None:
        optimizer.zero_grad()
        for side in (torch.ones(32), torch.zeros(32)):
            functional.binary_cross_entropy_with_logits(
                model(torch.randn(32, 6))[:, 0], side
            ).backward()
        optimizer.step()

    return Program(model, optimizer, step)


@sound("one-class")
def contrastive_learning_whose_first_one_is_right() -> Program:
    def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        output = functional.normalize(output)
        logits = (
            torch.cat(
                [
                    (output * output.roll(1, 0).detach()).sum(1, keepdim=True),
                    output @ torch.randn(CLASSES, 9),
                ],
                1,
            )
            / 0.1
        )
        return functional.cross_entropy(logits, torch.zeros(32, dtype=torch.long))

    return trained(loss, data=of_all_classes)


@sound("one-class")
def a_discriminator_of_true_and_false() -> Program:
    def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        one, other = output[:16, 0], output[16:, 0]
        true = functional.binary_cross_entropy_with_logits(one, torch.ones(16))
        return true + functional.binary_cross_entropy_with_logits(other, torch.zeros(16))

    return trained(loss, net(1), of_all_classes)


class Words(nn.Module):
    """Says the next word; 0 is padding."""

    def __init__(self, classes: int = IDS, padding: int | None = 0) -> None:
        super().__init__()
        self.embed = nn.Embedding(IDS, 8, padding_idx=padding)
        self.head = nn.Linear(8, classes)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.embed(ids))
        return logits


def texts() -> tuple[torch.Tensor, torch.Tensor]:
    """Texts of different lengths, and what follows each word."""
    ids = torch.randint(1, IDS, (BATCH, 10))
    ids[torch.arange(10) >= torch.randint(3, 9, (BATCH, 1))] = 0
    return ids[:, :-1], ids[:, 1:]


def flat(output: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), labels.flatten(), **options)


@fault("padding-in-loss")
def padding_is_learnt() -> Program:
    return trained(flat, Words(), texts)


@fault("padding-in-loss")
def padding_is_learnt_with_classes_in_the_middle() -> Program:
    return trained(
        lambda output, labels: functional.cross_entropy(output.transpose(1, 2), labels),
        Words(),
        texts,
    )


@sound("padding-in-loss")
def padding_is_ignored() -> Program:
    return trained(lambda output, labels: flat(output, labels, ignore_index=0), Words(), texts)


@sound("padding-in-loss")
def padding_is_masked_afterwards() -> Program:
    return trained(
        lambda output, labels: (
            flat(output, labels, reduction="none") * (labels.flatten() != 0)
        ).mean(),
        Words(),
        texts,
    )


@sound("padding-in-loss")
def padding_weighs_nothing() -> Program:
    weights = torch.ones(IDS)
    weights[0] = 0
    return trained(lambda output, labels: flat(output, labels, weight=weights), Words(), texts)


@sound("padding-in-loss")
def what_ends_a_text_is_padding_too() -> Program:
    def packed() -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.randint(1, IDS, (BATCH, 10))
        ids[:, 3::4] = 0
        return ids[:, :-1], ids[:, 1:]

    return trained(flat, Words(), packed)


@sound("padding-in-loss")
def tags_of_words() -> Program:
    return trained(
        flat, Words(CLASSES), lambda: (texts()[0], torch.randint(0, CLASSES, (BATCH, 9)) // 3)
    )


# steps that an error ends


def in_step(step: int, found: int, labels: torch.Tensor, label: int) -> torch.Tensor:
    return labels.index_fill(0, torch.tensor([2]), label) if step == found else labels


@fault("labels-range")
def a_label_that_is_no_class_ends_the_run() -> Program:
    return ends(
        lambda output, labels, step: functional.cross_entropy(
            output, in_step(step, 20, labels, CLASSES)
        )
    )


@fault("labels-range")
def a_label_below_zero_ends_the_run() -> Program:
    return ends(
        lambda output, labels, step: nn.NLLLoss()(
            output.log_softmax(-1), in_step(step, 0, labels, -1)
        )
    )


@fault("labels-range")
def an_id_beyond_the_embedding_ends_the_run() -> Program:
    numbers = iter(range(STEPS))
    return trained(
        flat,
        Words(padding=None),
        lambda: (texts()[0] + (4 if next(numbers) == 7 else 0), texts()[1]),
    )


@sound("labels-range")
def ignored_labels() -> Program:
    return ends(
        lambda output, labels, step: functional.cross_entropy(
            output, in_step(step, step, labels, -100)
        )
    )


@sound("labels-range")
def another_error_ends_the_run() -> Program:
    return ends(
        lambda output, labels, step: functional.cross_entropy(
            output[: 4 if step == 9 else BATCH], labels
        )
    )


@fault("ended")
def an_error_ends_the_run() -> Program:
    return another_error_ends_the_run()


@sound("ended")
def a_user_ends_the_run() -> Program:
    program = trained(functional.cross_entropy)

    def step(number: int) -> None:
        program.step(number)
        if number == 20:
            raise KeyboardInterrupt

    return program._replace(step=step)


@sound("ended")
def nothing_ends_the_run() -> Program:
    return trained(functional.cross_entropy)


# updates that change nothing, and optimizers of something else


@fault("without-gradient")
def a_loss_is_made_anew_of_its_number() -> Program:
    return trained(
        lambda output, labels: torch.tensor(
            functional.cross_entropy(output, labels).item(), requires_grad=True
        )
    )


@fault("update-skipped")
def a_detached_loss_moves_no_weight() -> Program:
    return trained(
        lambda output, labels: functional.cross_entropy(output, labels).detach().requires_grad_()
    )


@fault("update-skipped")
def gradients_are_cleared_before_the_update() -> Program:
    model = net()
    optimizer = adam(model)

    def step(number: int) -> None:
        inputs, labels = batch()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.zero_grad()
        optimizer.step()

    return Program(model, optimizer, step)


@sound("update-skipped")
def a_rate_that_begins_at_zero() -> Program:
    program = trained(functional.cross_entropy)
    rise = torch.optim.lr_scheduler.LambdaLR(program.optimizer, lambda step: step / STEPS)
    return program._replace(step=lambda number: (program.step(number), rise.step()))


@sound("without-gradient")
def gradients_made_by_hand() -> Program:
    """Evolution: without a backward."""
    model = net()
    optimizer = adam(model)

    def step(number: int) -> None:
        with torch.no_grad():
            model(batch()[0])
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()

    return Program(model, optimizer, step)


@fault("without-gradient")
def weights_are_tied_behind_the_optimizer() -> Program:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, CLASSES))
    program = trained(functional.cross_entropy, model)
    model[2].weight = model[0].weight
    return program


@fault("in-no-optimizer")
def the_head_is_exchanged_behind_the_optimizer() -> Program:
    model = net()
    program = trained(functional.cross_entropy, model)
    model[2] = nn.Linear(16, CLASSES)
    return program


@sound("without-gradient")
def a_loss_with_parameters_of_its_own() -> Program:
    model, scale = net(), nn.Linear(CLASSES, CLASSES)
    optimizer = adam(model, scale)

    def step(number: int) -> None:
        inputs, labels = batch()
        optimizer.zero_grad()
        functional.cross_entropy(scale(model(inputs)), labels).backward()
        optimizer.step()

    return Program(model, optimizer, step)


@sound("without-gradient")
def layers_frozen_on_purpose() -> Program:
    model = net()
    model[0].requires_grad_(False)
    return trained(functional.cross_entropy, model)


@sound("frozen-with-gradient")
def frozen_layers_in_the_optimizer() -> Program:
    return layers_frozen_on_purpose()


@sound("without-gradient")
def weights_tied_before_the_optimizer() -> Program:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, CLASSES))
    model[2].weight = model[0].weight
    return trained(functional.cross_entropy, model)


@fault("state-restored")
def an_optimizer_made_anew_in_each_step() -> Program:
    model = net()

    def step(number: int) -> None:
        optimizer = adam(model)
        inputs, labels = batch()
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return Program(model, None, step)


def changed(*optimizers: Callable[[Any], torch.optim.Optimizer]) -> Program:
    """A loop that takes the next optimizer every few steps."""
    model = net()
    held: list[torch.optim.Optimizer] = []

    def step(number: int) -> None:
        if number % 6 == 0 and number // 6 < len(optimizers):
            held.append(optimizers[number // 6](model.parameters()))
            if number and isinstance(held[-1], torch.optim.RAdam):
                held[-1].load_state_dict(held[-2].state_dict())
        inputs, labels = batch()
        held[-1].zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        held[-1].step()

    return Program(model, None, step)


@fault("state-restored")
def an_optimizer_made_anew_in_each_epoch() -> Program:
    return changed(*[lambda parameters: torch.optim.SGD(parameters, 1e-2, momentum=0.9)] * 6)


@sound("state-restored")
def another_optimizer_for_the_second_half() -> Program:
    return changed(
        torch.optim.AdamW, lambda parameters: torch.optim.SGD(parameters, 1e-2, momentum=0.9)
    )


@sound("state-restored")
def an_optimizer_without_state_made_anew() -> Program:
    return changed(*[lambda parameters: torch.optim.SGD(parameters, 1e-2)] * 6)


@sound("state-restored")
def an_optimizer_made_anew_that_is_given_the_state() -> Program:
    return changed(*[torch.optim.RAdam] * 6)


# what becomes of gradients


def accumulating(clear: Callable[[int], bool], of: int = 3, step_each: bool = True) -> Program:
    """Micro-batches; ``clear``: of the number of one, whether gradients are cleared behind it."""
    model = net()
    optimizer = adam(model)

    def micro(number: int) -> None:
        inputs, labels = batch()
        (functional.cross_entropy(model(inputs), labels) / of).backward()
        if number % of == of - 1:
            optimizer.step()
        if clear(number):
            optimizer.zero_grad()

    def step(number: int) -> None:
        for each in [number] if step_each else range(of):
            micro(each)

    return Program(model, optimizer, step)


@fault("zero-grad")
def gradients_are_cleared_at_each_micro_batch() -> Program:
    return accumulating(lambda number: True)


@fault("zero-grad")
def gradients_are_cleared_at_each_of_two_micro_batches_in_a_step() -> Program:
    return accumulating(lambda number: True, 2, False)


@fault("zero-grad")
def gradients_are_set_to_zero_at_each_micro_batch() -> Program:
    program = accumulating(lambda number: False)
    program.optimizer.zero_grad()

    def step(number: int) -> None:
        program.step(number)
        program.optimizer.zero_grad(set_to_none=False)

    return program._replace(step=step)


@sound("zero-grad")
def gradients_are_cleared_behind_the_update() -> Program:
    return accumulating(lambda number: number % 3 == 2)


@sound("zero-grad")
def a_batch_is_dropped_now_and_then() -> Program:
    model = net()
    optimizer = adam(model)

    def step(number: int) -> None:
        inputs, labels = batch()
        functional.cross_entropy(model(inputs), labels).backward()
        if number % 10 != 9:
            optimizer.step()
        optimizer.zero_grad()

    return Program(model, optimizer, step)


@sound("zero-grad")
def training_against_an_attack() -> Program:
    model = net()
    optimizer = adam(model)

    def step(number: int) -> None:
        inputs, labels = batch()
        inputs.requires_grad_()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.zero_grad()
        functional.cross_entropy(
            model((inputs + 0.1 * inputs.grad.sign()).detach()), labels
        ).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Program(model, optimizer, step)


@sound("zero-grad")
def derivatives_by_the_inputs_in_the_loss() -> Program:
    model = net(1)
    optimizer = adam(model)

    def step(number: int) -> None:
        inputs = torch.randn(BATCH, 6, requires_grad=True)
        (slope,) = torch.autograd.grad(model(inputs).tanh().sum(), inputs, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), inputs, create_graph=True)
        optimizer.zero_grad()
        (slope + bend).square().mean().backward()
        optimizer.step()

    return Program(model, optimizer, step)


@sound("zero-grad")
def sharpness_aware_minimisation() -> Program:
    model = net()
    optimizer = adam(model)

    def step(number: int) -> None:
        inputs, labels = batch()
        functional.cross_entropy(model(inputs), labels).backward()
        gradients = [0.05 * parameter.grad for parameter in model.parameters()]
        with torch.no_grad():
            torch._foreach_add_(list(model.parameters()), gradients)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), gradients)
        optimizer.step()
        optimizer.zero_grad()

    return Program(model, optimizer, step)


@sound("zero-grad")
def gradients_of_two_tasks_put_together_by_hand() -> Program:
    model = net()
    optimizer = adam(model)

    def step(number: int) -> None:
        parts = []
        for _ in range(2):
            inputs, labels = batch()
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), labels).backward()
            parts.append([parameter.grad for parameter in model.parameters()])
        for parameter, one, other in zip(model.parameters(), *parts, strict=True):
            parameter.grad = torch.maximum(one, other)
        optimizer.step()

    return Program(model, optimizer, step)


def clipping(before: float | None, behind: float | None) -> Program:
    model = net()
    optimizer = adam(model)

    def step(number: int) -> None:
        inputs, labels = batch()
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        if before is not None:
            nn.utils.clip_grad_norm_(model.parameters(), before)
        optimizer.step()
        if behind is not None:
            nn.utils.clip_grad_norm_(model.parameters(), behind)

    return Program(model, optimizer, step)


@fault("clip-share")
def gradients_are_clipped_behind_the_update() -> Program:
    return clipping(None, 0.1)


@fault("clip-share")
def values_are_clipped_behind_the_update() -> Program:
    program = clipping(None, None)
    return program._replace(
        step=lambda number: (
            program.step(number),
            nn.utils.clip_grad_value_(program.model.parameters(), 0.1),
        )
    )


@sound("clip-share")
def gradients_are_clipped_before_the_update() -> Program:
    return clipping(1.0, None)


@sound("clip-share")
def the_norm_is_taken_behind_the_update() -> Program:
    return clipping(None, math.inf)


@sound("clip-share")
def clipped_before_and_behind() -> Program:
    return clipping(1.0, 1.0)


@fault("gradient-explodes")
def gradients_a_hundred_times_the_weights() -> Program:
    model = net()
    model[2].weight.data *= 1e-6
    program = trained(functional.cross_entropy, model)
    for group in program.optimizer.param_groups:
        group["lr"] = 1e-9
    return program


@sound("gradient-explodes")
def a_weight_that_begins_at_zero() -> Program:
    model = net()
    nn.init.zeros_(model[2].weight)
    return trained(functional.cross_entropy, model)


# what the model is given


def images(scaled: bool) -> tuple[torch.Tensor, torch.Tensor]:
    bytes_ = torch.randint(0, 256, (BATCH, 1, 8, 8)).float()
    bytes_[0, 0, 0, :2] = torch.tensor([0.0, 255.0])
    return bytes_ / 255 if scaled else bytes_, torch.randint(0, CLASSES, (BATCH,))


def convolutional(*first: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        *first, nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES)
    )


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 255


@fault("input-range")
def bytes_come_to_the_first_layer() -> Program:
    return trained(functional.cross_entropy, convolutional(), lambda: images(False))


@fault("input-range")
def bytes_come_flat_to_the_first_layer() -> Program:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))
    return trained(functional.cross_entropy, model, lambda: images(False))


@sound("input-range")
def bytes_are_scaled_by_the_loader() -> Program:
    return trained(functional.cross_entropy, convolutional(), lambda: images(True))


@sound("input-range")
def bytes_are_scaled_by_the_model() -> Program:
    return trained(functional.cross_entropy, convolutional(Scaled()), lambda: images(False))


@sound("input-range")
def bytes_are_scaled_by_a_norm() -> Program:
    return trained(
        functional.cross_entropy, convolutional(nn.BatchNorm2d(1)), lambda: images(False)
    )


def rounded(scale: float, to: torch.dtype, model: nn.Module | None = None) -> Program:
    program = trained(
        lambda output, labels: functional.cross_entropy(output.float(), labels), model
    )

    def step(number: int) -> None:
        inputs, labels = batch()
        program.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            functional.cross_entropy(program.model((scale * inputs).to(to)), labels).backward()
        program.optimizer.step()

    return program._replace(step=step)


@fault("input-type")
def large_values_in_bfloat16() -> Program:
    return rounded(1e3, torch.bfloat16)


@fault("input-type")
def large_values_in_float16() -> Program:
    return rounded(5e3, torch.float16)


@sound("input-type")
def small_values_in_bfloat16() -> Program:
    return rounded(1, torch.bfloat16)


@sound("input-type")
def large_values_in_float32() -> Program:
    return rounded(1e3, torch.float32)


@sound("input-type")
def a_model_in_bfloat16() -> Program:
    return rounded(1e3, torch.bfloat16, net().bfloat16())


@fault("dropout")
def the_share_that_is_kept_is_given_to_dropout() -> Program:
    return trained(
        functional.cross_entropy, nn.Sequential(net(16), nn.Dropout(0.95), nn.Linear(16, CLASSES))
    )


@sound("dropout")
def strong_dropout() -> Program:
    return trained(
        functional.cross_entropy, nn.Sequential(net(16), nn.Dropout(0.9), nn.Linear(16, CLASSES))
    )


def scripted_loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output, labels) + functional.nll_loss(
        output.log_softmax(-1), labels
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_loss_can_be_scripted_inside_of_a_watch_and_is_not_ours_behind_it(tmp_path: Path) -> None:
    before = torch._C._nn.cross_entropy_loss
    known = [
        each
        for each in torch.jit._builtins._get_builtin_table().values()
        if each == "aten::cross_entropy_loss"
    ]
    program = trained(lambda output, labels: torch.jit.script(scripted_loss)(output, labels))
    with ac.watch(
        program.model, program.optimizer, out=tmp_path, quiet=True, look=ac.LookAt(frames=0)
    ):
        program.step(0)
        assert torch._C._nn.cross_entropy_loss is not before
    assert torch._C._nn.cross_entropy_loss is before
    assert [
        each
        for each in torch.jit._builtins._get_builtin_table().values()
        if each == "aten::cross_entropy_loss"
    ] == known


@pytest.mark.filterwarnings("ignore:Using a target size", "ignore:Detected call of `lr_scheduler")
@pytest.mark.parametrize(
    ("check", "build"),
    [(check, build) for _, check, build in FAULTS],
    ids=[f"{check}: {name}" for name, check, _ in FAULTS],
)
def test_a_silent_fault_is_seen(check: str, build: Build, tmp_path: Path) -> None:
    found = outcome(build, check, tmp_path)
    assert found.status in (CheckStatus.WARN, CheckStatus.FAIL), found


@pytest.mark.filterwarnings("ignore:Using a target size", "ignore:Detected call of `lr_scheduler")
@pytest.mark.parametrize(
    ("check", "build"),
    [(check, build) for _, check, build in SOUND],
    ids=[f"{check}: {name}" for name, check, _ in SOUND],
)
def test_what_looks_like_a_silent_fault_and_is_sound_is_left_alone(
    check: str, build: Build, tmp_path: Path
) -> None:
    found = outcome(build, check, tmp_path)
    assert found.status in (CheckStatus.PASS, CheckStatus.NOT_LOOKED_AT), found
