"""What a watch writes for the checklist: real faults in real trainings are seen, a sound one is
left alone.
"""

from __future__ import annotations

import functools
import math
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import accucompare as ac
from accucompare.findings.analysis.analysis import Analysis, read_logs
from accucompare.findings.checklist.checks import CheckStatus
from accucompare.findings.checklist.health_checklist import Health, judge_log
from accucompare.live.autograd import Parameter
from accucompare.report.watch_words import said
from accucompare.watcher.looking import Meter
from accucompare.watcher.vitals.update_vitals import UpdateVitals
from tests.asked import looking

STEPS = 16


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.act = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU()
        self.drop, self.spare = (
            nn.Dropout(0.2),
            nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)]),
        )
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.act(self.norm(self.up(x)))
        for layer in self.spare:
            y = y + layer(y)
        logits: torch.Tensor = self.head(self.drop(y))
        return logits


class Loop:
    """A sound training; a test changes one thing of it."""

    def __init__(self) -> None:
        self.model = Net()
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.scheduler: Any = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 50)
        self.scaler: Any = None
        self.zero_grad: Callable[[], Any] | None = self.optimizer.zero_grad
        self.loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = functional.cross_entropy
        self.before: Callable[[int], Any] = lambda step: None
        self.between: Callable[[int], Any] = lambda step: None
        self.steps = STEPS

    def run(self, watch: Any) -> None:
        for step in range(self.steps):
            self.before(step)
            x = torch.randn(8, 6)
            loss = self.loss(self.model(x), (x[:, 0] > 0).long())
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
            self.between(step)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            if self.scaler is None:
                self.optimizer.step()
            else:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            self.scheduler.step()
            if self.zero_grad is not None:
                self.zero_grad()
            watch.step()


def watched(
    out: Path, spoil: Callable[[Loop], None] = lambda loop: None, **options: Any
) -> tuple[Analysis, Health]:
    torch.manual_seed(0)
    loop = Loop()
    spoil(loop)
    given = {
        "scheduler": loop.scheduler,
        "scaler": loop.scaler,
        "on_finding": "warn",
        "frames": 0,
        "quiet": True,
        "checks_every": 4,
    }
    with ac.watch(
        loop.model, **looking(optimizer=loop.optimizer, out=out, **{**given, **options})
    ) as watch:
        loop.run(watch)
    ranks = read_logs(out)
    return ranks.ranks[0], judge_log(ranks)


FAULTS: dict[str, tuple[str, Callable[[Loop], None]]] = {}


def fault(check: str) -> Callable[[Callable[[Loop], None]], None]:
    def add(spoil: Callable[[Loop], None]) -> None:
        FAULTS[spoil.__name__] = check, spoil

    return add


@fault("zero-grad")
def zero_grad_is_forgotten(loop: Loop) -> None:
    loop.zero_grad = None


@fault("in-no-optimizer")
def the_head_is_in_no_optimizer(loop: Loop) -> None:
    loop.optimizer.param_groups[0]["params"] = [
        each for name, each in loop.model.named_parameters() if not name.startswith("head")
    ]


@fault("without-gradient")
def a_detach_cuts_the_graph(loop: Loop) -> None:
    loop.model.drop.register_forward_pre_hook(lambda module, args: (args[0].detach(),))


@fault("dead-units")
def a_norm_s_bias_leaves_no_unit_alive(loop: Loop) -> None:
    loop.model.norm.bias.data.fill_(-50)


@fault("shared-by-mistake")
def one_layer_stands_twice_in_a_list(loop: Loop) -> None:
    loop.model.spare[1] = loop.model.spare[0]


@fault("training-mode")
def evaluation_is_not_left(loop: Loop) -> None:
    loop.before = lambda step: loop.model.eval() if step == 12 else None


@fault("evaluation-mode")
def an_evaluation_runs_in_training(loop: Loop) -> None:
    loop.before = torch.no_grad()(
        lambda step: loop.model(torch.randn(4, 6)) if step in (6, 12) else None
    )


@fault("drawn-behind")
def a_module_draws_with_python(loop: Loop) -> None:
    loop.model.drop.register_forward_pre_hook(
        lambda module, args: (args[0] * (1 + random.random()),)
    )


@fault("loss-type")
def the_loss_is_computed_in_bfloat16(loop: Loop) -> None:
    loop.loss = lambda output, labels: functional.cross_entropy(output.bfloat16(), labels)


@fault("labels-ignored")
def all_labels_are_ignored(loop: Loop) -> None:
    loop.loss = lambda output, labels: functional.cross_entropy(
        output, torch.full_like(labels, -100), reduction="sum"
    )


@fault("schedule-steps")
def the_scheduler_is_stepped_twice(loop: Loop) -> None:
    loop.between = lambda step: loop.scheduler.step()


@fault("schedule-order")
def the_scheduler_is_stepped_first(loop: Loop) -> None:
    loop.between = lambda step: loop.scheduler.step() if step == 0 else None


@fault("schedule-applied")
def the_scheduler_is_of_another_optimizer(loop: Loop) -> None:
    loop.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
        torch.optim.AdamW(loop.model.parameters(), 1e-3), 50
    )


@fault("gradients-grow")
def gradients_are_multiplied_before_the_update(loop: Loop) -> None:
    loop.loss = lambda output, labels: functional.cross_entropy(output, labels) / 100
    loop.between = lambda step: [each.grad.mul_(4) for each in loop.model.parameters()]


@fault("state-restored")
def the_optimizer_s_state_is_lost(loop: Loop) -> None:
    for _ in range(20):
        loop.scheduler.step()


@fault("clip-before-unscale")
def gradients_are_clipped_before_they_are_unscaled(loop: Loop) -> None:
    loop.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)


@fault("frozen-with-gradient")
def a_layer_is_frozen_with_its_gradient(loop: Loop) -> None:
    loop.before = lambda step: loop.model.up.requires_grad_(step < 12)
    loop.zero_grad = lambda: loop.optimizer.zero_grad(set_to_none=False)


@fault("buffers")
def a_running_variance_leaves_its_range(loop: Loop) -> None:
    loop.steps, calls = 40, iter(range(40))
    loop.model.up.register_forward_hook(
        lambda module, args, output: output * 1e4 if next(calls) >= 32 else output
    )


@fault("update-skipped")
def the_rate_is_too_small_for_any_weight(loop: Loop) -> None:
    loop.optimizer.param_groups[0]["lr"] = loop.scheduler.base_lrs[0] = 1e-30


@fault("label-smoothing")
def the_smoothing_is_what_the_label_shall_keep(loop: Loop) -> None:
    loop.loss = functools.partial(functional.cross_entropy, label_smoothing=0.9)


class Timed(Net):
    """Is given time steps, as a diffusion model is."""

    def __init__(self) -> None:
        super().__init__()
        self.time = Time()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.time(
            torch.arange(0, 800, 100, device=x.device).to(torch.bfloat16)
        )


class Time(nn.Module):
    def forward(self, timesteps: torch.Tensor) -> torch.Tensor:
        return (timesteps.float() / 1000).sin()[:, None]


@fault("autocast-types")
def time_steps_are_cast_to_bfloat16(loop: Loop) -> None:
    loop.model = Timed()
    loop.optimizer = torch.optim.AdamW(loop.model.parameters(), 1e-3)
    loop.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(loop.optimizer, 50)
    loop.zero_grad = loop.optimizer.zero_grad


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_training_is_seen(name: str, tmp_path: Path) -> None:
    check, spoil = FAULTS[name]
    _, health = watched(tmp_path, spoil)
    found = {each.check.id: each for each in health.results}[check]
    assert found.status in (CheckStatus.WARN, CheckStatus.FAIL), found.outcome


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, Health]:
    return watched(tmp_path_factory.mktemp("sound"))


def test_a_sound_training_is_left_alone(sound: tuple[Analysis, Health]) -> None:
    assert [
        (each.check.id, said(each.outcome.measured))
        for each in sound[1].of(CheckStatus.WARN, CheckStatus.FAIL)
    ] == []
    assert not [warning for warning in sound[0].warnings if "not looked at" in said(warning.text)]


def test_what_is_written_is_what_was_there(tmp_path: Path) -> None:
    """Against numbers computed beside the watch."""
    weights, steps, losses = [], [], []

    def record(loop: Loop) -> None:
        def begin(step: int) -> None:
            weights.append(loop.model.head.weight.detach().clone())

        def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            losses.append(functional.cross_entropy(output, labels))
            return losses[-1]

        loop.before, loop.loss = begin, loss
        steps.append(loop)

    run, _ = watched(tmp_path, record)
    names = [each.name for each in run.setups[-1].parameters]
    at = names.index("head.weight")
    fifth = run.vitals[4]
    added = weights[5] - weights[4]
    assert fifth.layers["weight"][at] == pytest.approx(weights[4].norm().item(), rel=1e-6)
    assert fifth.layers["update"][at] == pytest.approx(
        (added.norm() / weights[4].norm()).item(), rel=1e-5
    )
    assert [each.loss for each in run.vitals] == pytest.approx([loss.item() for loss in losses])
    assert fifth.lr["AdamW.0"] == pytest.approx(1e-3 * (1 + math.cos(math.pi * 4 / 50)) / 2)


def test_updates_too_small_for_their_squares_are_measured_in_float64(tmp_path: Path) -> None:
    """Against what the update is by definition: with plain SGD, the rate times the gradient."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        model.weight.mul_(1e-22)
    optimizer = torch.optim.SGD(model.parameters(), 1e-25, momentum=0.9)
    with ac.watch(
        model, optimizer, out=tmp_path, look=ac.LookAt(frames=0, checks_every=1)
    ) as watch:
        before = model.weight.detach().double()
        model(torch.full((2, 4), 1e-3)).sum().backward()
        assert model.weight.grad is not None
        norm = model.weight.grad.double().norm().item()
        optimizer.step()
        watch.step()
    (vitals,) = read_logs(tmp_path).ranks[0].vitals
    assert vitals.layers["update"] == [pytest.approx(1e-25 * norm / before.norm().item(), rel=0.05)]


@pytest.mark.parametrize("value", [math.inf, 1e300])
def test_weights_beyond_all_squares_warn_of_nothing(value: float) -> None:
    weight = nn.Parameter(torch.full((3,), value, dtype=torch.float64))
    optimizer, meter, vitals = torch.optim.SGD([weight], 1.0), Meter(), UpdateVitals()
    weight.grad = torch.ones_like(weight)
    own = [Parameter("weight", "weight", "", weight)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vitals.begin(optimizer, own, meter, closely=True)
        optimizer.step()
        vitals.end(optimizer, own, meter)
    assert vitals.sizes["weight"].low == math.inf


def test_labels_that_count_are_told_apart_whatever_the_default_type(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 24, dtype=torch.float32)
    labels = torch.tensor([0, 12, -100, 23])
    torch.set_default_dtype(torch.bfloat16)
    try:
        with ac.watch(
            model, out=tmp_path, on_finding="warn", quiet=True, look=ac.LookAt(frames=0)
        ) as watch:
            functional.cross_entropy(
                model(torch.randn(4, 6, dtype=torch.float32)), labels
            ).backward()
            watch.step()
    finally:
        torch.set_default_dtype(torch.float32)
    (vitals,) = read_logs(tmp_path).ranks[0].vitals
    assert [(each.count, each.present) for each in vitals.labels] == [(3, 1 | 1 << 12 | 1 << 23)]


class Stream(torch.utils.data.IterableDataset[torch.Tensor]):
    """Gives more than it says, as one that is sharded by hand may."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.randn(3, 6))


def test_a_loader_of_a_stream_is_not_asked_for_its_length(tmp_path: Path) -> None:
    """Else it would warn of each batch beyond that."""
    model, loader = nn.Linear(6, 2), torch.utils.data.DataLoader(Stream())
    with (
        warnings.catch_warnings(),
        ac.watch(model, out=tmp_path, quiet=True, look=ac.LookAt(frames=0)) as watch,
    ):
        warnings.simplefilter("error")
        for _ in range(2):
            for x in loader:
                model(x).sum().backward()
                watch.step()
    found = [each.loaded for each in read_logs(tmp_path).ranks[0].vitals]
    assert [(each.number, each.begun, each.batches) for each in found if each is not None] == [
        (0, 1, 0)
    ] * 3 + [(0, 2, 0)] * 3


def test_what_shows_nothing_is_left_out(tmp_path: Path) -> None:
    """One number is its own extrema, scores that are no log-probabilities have no entropy, and no
    label is no reason to give up.
    """
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))

    def loss_of(step: int, hidden: torch.Tensor) -> torch.Tensor:
        if step == 0:
            return functional.nll_loss(hidden, torch.tensor([1]))
        return (
            functional.cross_entropy(hidden[:0], torch.empty(0, dtype=torch.long)).nan_to_num()
            + hidden.sum()
        )

    with ac.watch(
        model, out=tmp_path, on_finding="warn", quiet=True, look=ac.LookAt(frames=0, checks_every=1)
    ) as watch:
        for step in range(2):
            output = model(torch.ones(1, 3))
            (loss_of(step, model[0](torch.ones(1, 3))) + output.sum()).backward()
            watch.step()
    run = read_logs(tmp_path).ranks[0]
    assert [list(each.outputs) for each in run.vitals] == [["0"], ["0"]]
    assert [None if each.targets is None else each.targets.entropy for each in run.vitals] == [
        None,
        None,
    ]
    assert all(each.loss is not None for each in run.vitals)
    assert not [warning for warning in run.warnings if "not looked at" in said(warning.text)]


def test_the_generators_that_the_data_draws_from_are_noted(tmp_path: Path) -> None:
    def draw(loop: Loop) -> None:
        loop.steps, loop.before = 3, lambda step: random.random()

    random.seed(0)
    watched(tmp_path, draw)
    random.seed(1)
    run, health = watched(tmp_path, draw)
    assert [each.drawn_between for each in run.vitals] == [[], ["python"], ["python"]]
    assert {each.check.id: each.status for each in health.results}[
        "seeded-others"
    ] is CheckStatus.WARN


def test_without_the_checklist_nothing_is_written_for_it(tmp_path: Path) -> None:
    run, health = watched(tmp_path, checks_every=0)
    assert (run.vitals, run.setups) == ([], [])
    assert {each.check.id: each.status for each in health.results}[
        "zero-grad"
    ] is CheckStatus.NOT_LOOKED_AT


def test_two_runs_of_one_seed_are_compared(tmp_path: Path) -> None:
    def short(loop: Loop) -> None:
        loop.steps = 2

    watched(tmp_path, short)
    _, health = watched(tmp_path, short)
    assert {each.check.id: each.status for each in health.results}[
        "same-first-step"
    ] is CheckStatus.PASS
