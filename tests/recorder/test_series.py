"""The numbers of each step of training that a capture keeps in its manifest."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.bundle.format.manifest import Manifest, StepSeries
from accucompare.errors import BundleError, UsageError
from tests.compare.builder import edit_manifest
from tests.recorder.trained import MODELS, train

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def series(path: Path) -> list[StepSeries]:
    with ac.open_bundle(path) as bundle:
        return bundle.manifest.series


def norm_of(grads: Any) -> float:
    """An independent reference: by NumPy, in float64."""
    return math.sqrt(sum(float(np.square(grad.detach().double().numpy()).sum()) for grad in grads))


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 4)


@pytest.mark.parametrize("name", ["tied", "recurrent"])
def test_a_step_has_its_loss_norm_and_learning_rate(name: str, tmp_path: Path) -> None:
    norms: list[float] = []
    _, losses = train(
        name,
        tmp_path / "golden",
        2,
        before_update=lambda model: norms.append(norm_of(p.grad for p in model.parameters())),
    )
    found = series(tmp_path / "golden")
    assert [entry.step for entry in found] == [0, 1]
    assert [entry.losses for entry in found] == [(loss,) for loss in losses]
    assert [entry.grad_norm for entry in found] == pytest.approx(norms, rel=1e-12)
    assert [entry.lr for entry in found] == [{"AdamW.0": 1e-3}] * 2
    assert [entry.updates for entry in found] == [1, 1]
    assert [(entry.clipped_norm, entry.loss_scale, entry.skipped) for entry in found] == [
        (None, None, False)
    ] * 2


def test_a_capture_without_a_backward_has_no_series(tmp_path: Path) -> None:
    with ac.capture(linear(), tmp_path / "golden") as session, torch.no_grad():
        pass
    with ac.capture(linear(), tmp_path / "other"):
        linear()(X)
    assert series(tmp_path / "golden") == series(tmp_path / "other") == []
    assert session.step_number == 0


def test_the_series_is_kept_where_no_gradient_is(tmp_path: Path) -> None:
    _, losses = train("recurrent", tmp_path / "golden", 1, backward=False, mode="stats")
    (entry,) = series(tmp_path / "golden")
    assert entry.losses == (losses[0],)
    assert entry.grad_norm is not None
    assert entry.weights is None


def test_the_norm_is_the_same_whatever_is_recorded(tmp_path: Path) -> None:
    train("tied", tmp_path / "all", 1)
    train("tied", tmp_path / "some", 1, only="embed")
    train("tied", tmp_path / "none", 1, roles="series")
    entries = [series(tmp_path / name)[0] for name in ("all", "some", "none")]
    assert entries[0].grad_norm == entries[1].grad_norm == entries[2].grad_norm
    assert entries[0].batch == entries[1].batch == entries[2].batch
    assert entries[0].weights == entries[1].weights != entries[2].weights


CLIPPING: dict[str, Callable[[nn.Module], Any]] = {
    "clip_grad_norm_": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.01),
    "clip_grad_value_": lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.001),
}


@pytest.mark.parametrize("how", CLIPPING)
def test_norms_before_and_after_clipping(how: str, tmp_path: Path) -> None:
    norms: list[float] = []

    def clip(model: nn.Module) -> None:
        norms.append(norm_of(p.grad for p in model.parameters()))
        CLIPPING[how](model)
        norms.append(norm_of(p.grad for p in model.parameters()))

    train("recurrent", tmp_path / "golden", before_update=clip)
    (entry,) = series(tmp_path / "golden")
    assert (entry.grad_norm, entry.clipped_norm) == pytest.approx(tuple(norms), rel=1e-12)
    assert norms[1] < norms[0] / 2


@pytest.mark.skipif(not hasattr(nn.utils, "clip_grads_with_norm_"), reason="from torch 2.6 on")
def test_a_norm_that_is_only_looked_at_clips_nothing(tmp_path: Path) -> None:
    train(
        "recurrent",
        tmp_path / "golden",
        before_update=lambda m: nn.utils.get_total_norm([p.grad for p in m.parameters()]),
    )  # type: ignore
    (entry,) = series(tmp_path / "golden")
    assert entry.clipped_norm is None


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaled_step_has_its_own_loss_and_norm_and_the_scale(fused: bool, tmp_path: Path) -> None:
    model, scaler = linear(), torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, fused=fused)
    with ac.capture(model, tmp_path / "golden"):
        loss = model(X).square().sum()
        (scaler.scale(loss) / 2).backward()
        expected = norm_of(p.grad for p in model.parameters()) / 1024
        scaler.step(optimizer)
        scaler.update()
    (entry,) = series(tmp_path / "golden")
    assert entry.losses == (loss.item() / 2,)
    assert entry.loss_scale == 1024
    assert entry.grad_norm == pytest.approx(expected, rel=1e-6)
    assert (entry.updates, entry.skipped) == (1, False)


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_says_so_and_counts_no_update(fused: bool, tmp_path: Path) -> None:
    model, scaler = linear(), torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, fused=fused)
    with ac.capture(model, tmp_path / "golden") as session:
        for x in (X * math.inf, X):
            scaler.scale(model(x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            session.step()
    found = series(tmp_path / "golden")
    assert [(entry.updates, entry.skipped, entry.loss_scale) for entry in found] == [
        (0, True, 1024.0),
        (1, False, 512.0),
    ]
    assert found[0].lr == {"AdamW.0": 0.1}


def test_a_scaler_of_another_class_is_told(tmp_path: Path) -> None:
    class Scaler:
        def scale(self, loss: torch.Tensor) -> torch.Tensor:
            return loss * 8

        def get_scale(self) -> float:
            return 8.0

        def step(self, optimizer: torch.optim.Optimizer) -> None:
            return None

    model, scaler = linear(), Scaler()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ac.capture(model, tmp_path / "golden", loop=ac.Loop(optimizer, scaler=scaler)):
        loss = model(X).square().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
    (entry,) = series(tmp_path / "golden")
    assert (entry.losses, entry.loss_scale, entry.skipped) == (
        (pytest.approx(loss.item()),),
        8.0,
        True,
    )
    assert "__wrapped__" not in vars(Scaler.scale)


def test_micro_batches_have_each_its_loss_and_one_norm(tmp_path: Path) -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    with ac.capture(model, tmp_path / "golden"):
        for part in (X, X * 2, X * 3):
            loss = model(part).square().mean() / 3
            loss.backward()
            losses.append(loss.item())
        expected = norm_of(p.grad for p in model.parameters())
        optimizer.step()
    (entry,) = series(tmp_path / "golden")
    assert entry.losses == tuple(losses)
    assert entry.grad_norm == pytest.approx(expected, rel=1e-12)


def test_two_optimizers_of_one_class_are_told_apart(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizers = [
        torch.optim.SGD(part.parameters(), lr) for part, lr in zip(model, (0.1, 0.2), strict=True)
    ]
    with ac.capture(model, tmp_path / "golden"):
        model(X).sum().backward()
        expected = norm_of(p.grad for p in model.parameters())
        for optimizer in optimizers:
            optimizer.step()
    (entry,) = series(tmp_path / "golden")
    assert entry.lr == {"SGD.0": 0.1, "SGD#2.0": 0.2}
    assert entry.updates == 2
    assert entry.grad_norm == pytest.approx(expected, rel=1e-12)


def test_batch_and_weights_change_with_the_data_and_the_weights_alone(tmp_path: Path) -> None:
    def once(out: Path, x: torch.Tensor, by: float = 0.0) -> StepSeries:
        model = nn.Sequential(linear(), nn.Linear(4, 1))
        model[1].requires_grad_(False)
        with torch.no_grad():
            nn.init.ones_(model[1].weight).add_(by)
            nn.init.zeros_(model[1].bias)
        optimizer = torch.optim.SGD(model[0].parameters(), 0.1)
        with ac.capture(model, out):
            model(x).sum().backward()
            optimizer.step()
        return series(out)[0]

    first, again = once(tmp_path / "0", X), once(tmp_path / "1", X)
    other_data, other_weights = once(tmp_path / "2", X + 1), once(tmp_path / "3", X, 1e-3)
    assert (first.batch, first.weights) == (again.batch, again.weights)
    assert other_data.batch != first.batch
    assert other_data.weights == first.weights
    assert other_weights.batch == first.batch
    assert other_weights.weights != first.weights  # of a frozen parameter, too


def test_weights_that_are_written_into_uncounted_change_their_digest(tmp_path: Path) -> None:
    model = nn.Sequential(linear(), linear())
    optimizer = torch.optim.SGD(model[0].parameters(), 0.0)
    with ac.capture(model, tmp_path / "golden") as session:
        for _ in range(3):
            model(X).sum().backward()
            optimizer.step()
            model[1].weight.data.mul_(2)  # as a broadcast from the rank that steps it
            session.step()
    first, second, third = series(tmp_path / "golden")
    assert len({first.weights, second.weights, third.weights}) == 3


def test_losses_and_norms_that_are_not_finite_survive(tmp_path: Path) -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ac.capture(model, tmp_path / "golden") as session:
        for factor in (math.inf, math.nan):
            (model(X).square().sum() * factor).backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step()
    found = series(tmp_path / "golden")
    assert found[0].losses == (math.inf,)
    assert math.isnan(found[1].losses[0])
    assert math.isnan(found[1].grad_norm or 0)


def test_a_gradient_asked_for_inside_the_model_is_no_loss(tmp_path: Path) -> None:
    class Force(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy = linear()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.requires_grad_()
            return torch.autograd.grad(self.energy(x).square().sum(), x, create_graph=True)[0]

    model = Force()
    with ac.capture(model, tmp_path / "golden"):
        loss = model(X.clone()).square().sum()
        loss.backward()
    (entry,) = series(tmp_path / "golden")
    assert entry.losses == (loss.item(),)


@pytest.mark.parametrize("name", MODELS)
def test_training_gives_the_same_bits_with_a_series(name: str, tmp_path: Path) -> None:
    def clip(model: nn.Module) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    # whose dropout draws the same
    plain, losses = train(
        name, tmp_path / "forward", 3, backward=False, mode="stats", before_update=clip
    )
    with_series, others = train(name, tmp_path / "series", 3, roles="series", before_update=clip)
    assert losses == others
    assert all(
        torch.equal(one, other)
        for one, other in zip(plain.parameters(), with_series.parameters(), strict=True)
    )


def test_a_series_of_many_steps_is_a_few_kilobytes(tmp_path: Path) -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    with ac.capture(model, tmp_path / "golden", record=ac.Recorded(roles="series")) as session:
        for _ in range(100):
            model(X).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step()
    assert len(series(tmp_path / "golden")) == 100
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 60_000
    assert not list(tmp_path.rglob("*.npz"))


def test_an_optimizer_that_holds_no_parameter_of_the_model_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match=r"the SGD holds no parameter of the model"),
        ac.capture(linear(), tmp_path / "golden", loop=torch.optim.SGD(linear().parameters(), 0.1)),
    ):
        pass
    assert not (tmp_path / "golden").exists()


@pytest.mark.parametrize(
    "damage",
    [
        [{"step": -1}],
        [{"step": 0, "losses": "1"}],
        [{"step": 1}, {"step": 0}],
        [{"step": 0}, {"step": 0}],
        {"step": 0},
        [{}],
    ],
)
def test_a_damaged_series_is_a_damaged_bundle(damage: Any, tmp_path: Path) -> None:
    train("recurrent", tmp_path / "golden", 1, roles="series")
    path = tmp_path / "golden" / "manifest.json"
    edit_manifest(path.parent, lambda manifest: manifest.update(series=damage))
    with pytest.raises(BundleError, match="damaged"):
        Manifest.read(path)


def test_a_manifest_without_a_series_reads(tmp_path: Path) -> None:
    train("recurrent", tmp_path / "golden", 1, roles="series")
    edit_manifest(tmp_path / "golden", lambda manifest: manifest.pop("series"))
    assert Manifest.read(tmp_path / "golden" / "manifest.json").series == []
