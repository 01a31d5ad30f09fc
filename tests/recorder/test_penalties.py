"""Captures of several backwards: through gradients (penalties, fitted forces), and of losses."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.bundle.format.records import GRADIENT_ROLES, Role
from accucompare.bundle.reading.reader import Bundle
from accucompare.compare.origins.sites import Stage
from planted.training_faults import of_parameter
from tests.asked import grouped
from tests.recorded import Opened
from tests.recorder.habits import Habit, values


def build() -> nn.Module:
    torch.manual_seed(0)
    return Habit(
        lambda m, x: m.last(m.inner(m.first(x))),
        inner=nn.Sequential(nn.LayerNorm(4), nn.GELU(), nn.Softmax(-1)),
    )


def _here(act: Callable[[], Any]) -> Any:
    return act()


def _in_another_thread(act: Callable[[], Any]) -> Any:
    """As on a GPU, where a backward runs in a thread of the device's, which numbers what it makes
    for itself.
    """
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(act()))
    thread.start()
    thread.join()
    return found[0]


def penalised(model: nn.Module, run: Callable[[Callable[[], Any]], Any] = _here) -> None:
    x = values(2, 4).requires_grad_()
    loss = model(x).square().sum()
    (grad,) = run(lambda: torch.autograd.grad(loss, x, create_graph=True))
    (loss + (grad.norm() - 1).square()).backward()


def gradients(bundle: Bundle) -> dict[tuple[str, int, str, str], np.ndarray[Any, Any]]:
    chosen = [record for record in bundle.records() if record.role in GRADIENT_ROLES]
    return {
        (record.name, record.call, record.role.value, record.path): bundle.values(record)
        for record in chosen
    }


def trained(
    out: Path, run: Callable[[Callable[[], Any]], Any] = _here, **options: Any
) -> nn.Module:
    model = build()
    with ac.capture(model, out, **grouped(backward=True, **options)):
        penalised(model, run)
    return model


@pytest.mark.parametrize("run", [_here, _in_another_thread])
def test_fed_with_itself_every_gradient_agrees(run: Any, tmp_path: Path) -> None:
    trained(tmp_path / "golden", run)
    trained(tmp_path / "fed", run, feed=tmp_path / "golden")
    comparison = ac.diff(tmp_path / "golden", tmp_path / "fed")
    assert comparison.passed
    assert any(row.record is not None and row.record.path.endswith("#2") for row in comparison.rows)
    assert not comparison.candidate.manifest.notes


def test_gradients_are_the_same_where_the_backward_runs_in_a_thread_of_its_own(
    tmp_path: Path, opened: Opened
) -> None:
    trained(tmp_path / "here")
    trained(tmp_path / "there", _in_another_thread)
    here, there = gradients(opened(tmp_path / "here")), gradients(opened(tmp_path / "there"))
    assert here.keys() == there.keys()
    assert all(np.array_equal(here[key], there[key]) for key in here)


def test_what_calls_add_in_both_backwards_sums_up_to_what_autograd_gives(
    tmp_path: Path, opened: Opened
) -> None:
    model, plain = trained(tmp_path / "golden"), build()
    penalised(plain)
    sums: defaultdict[str, Any] = defaultdict(float)
    for record in opened(tmp_path / "golden").records():
        if record.role is Role.CALL_GRAD:
            sums[f"{record.name}.{record.path.partition('#')[0]}"] += (
                opened(tmp_path / "golden").values(record).astype(np.float64)
            )
    for (name, parameter), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert parameter.grad is not None
        assert other.grad is not None
        assert torch.equal(parameter.grad, other.grad)
        np.testing.assert_allclose(sums[name], parameter.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_a_fault_is_named(tmp_path: Path) -> None:
    trained(tmp_path / "golden")
    faulty = build()
    of_parameter("inner.0", "weight", "x 1.01", lambda grad: grad * 1.01).plant(faulty)
    with ac.capture(faulty, tmp_path / "fed", feed=tmp_path / "golden"):
        penalised(faulty)
    comparison = ac.diff(tmp_path / "golden", tmp_path / "fed")
    assert {(culprit.name, culprit.stage) for culprit in comparison.culprits} == {
        ("inner.0", Stage.BACKWARD)
    }


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8))
        self.one, self.other = nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.trunk(x)
        return self.one(h), self.other(h)


def descended(out: Path, *losses: Callable[[Any, Any], Any], feed: Path | None = None) -> Path:
    """Capture a step of a model whose losses go backward one after the other."""
    model = TwoHeads()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ac.capture(model, out, **grouped(feed=feed)):
        found = model(values(2, 4))
        for loss in losses:
            loss(*found).backward(retain_graph=True)
        optimizer.step()
    return out


def first(one: Any, other: Any) -> Any:
    return one.square().sum()


def second(one: Any, other: Any) -> Any:
    return other.exp().sum()


def both(one: Any, other: Any) -> Any:
    return first(one, other) + second(one, other)


def less_of_it(one: Any, other: Any) -> Any:
    return 0.99 * second(one, other)


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize(
    ("golden", "candidate"),
    [((both,), (second, first)), ((first, second), (both,)), ((first, second), (second, first))],
)
def test_losses_go_backward_in_any_order_one_by_one_or_together(
    golden: Any, candidate: Any, fed: bool, tmp_path: Path
) -> None:
    descended(tmp_path / "golden", *golden)
    feed = tmp_path / "golden" if fed else None
    descended(tmp_path / "right", *candidate, feed=feed)
    assert ac.diff(tmp_path / "golden", tmp_path / "right").exit_code == 0
    wrong = [less_of_it if loss is second else loss for loss in candidate]
    wrong = [first, less_of_it] if wrong == [both] else wrong
    descended(tmp_path / "wrong", *wrong, feed=feed)
    comparison = ac.diff(tmp_path / "golden", tmp_path / "wrong")
    assert comparison.exit_code == 1
    assert comparison.culprits[0].stage is (Stage.LOSS if fed else Stage.BACKWARD)
