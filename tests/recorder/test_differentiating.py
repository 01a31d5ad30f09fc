"""Models that ask autograd for gradients in their own forward: force fields, physics-informed
networks.
"""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.devices import DeviceName
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session.case_capture import capture_case
from tests.recorded import Opened

CPU = DeviceName("cpu")


class Forces(nn.Module):
    """An energy of positions, and the forces: its negative gradient."""

    def __init__(self, around: Any = contextlib.nullcontext) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)
        self.around = around

    def forward(self, positions: torch.Tensor) -> Any:
        with self.around():
            positions.requires_grad_(True)
            energy = self.last(self.act(self.first(positions))).sum()
            (gradient,) = torch.autograd.grad(energy, positions, create_graph=True)
        return {"energy": energy, "forces": -gradient}


class Outer(nn.Module):
    """Differentiates what a child made of positions that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 8), nn.Softplus(), nn.Linear(8, 1))

    def forward(self, positions: torch.Tensor) -> Any:
        energy = self.inner(positions).sum()
        first = torch.autograd.grad(energy, positions, create_graph=True)[0]
        second = torch.autograd.grad(first.sum(), positions)[0]
        return first, second


def capture(model: nn.Module, out: Path, x: torch.Tensor, feed: Path | None = None) -> Path:
    with ac.capture(model, out, feed=ac.FedWith(feed, force=feed is not None)):
        model(x)
    return out


@pytest.mark.parametrize(
    "around", [contextlib.nullcontext, torch.enable_grad], ids=["gradients on", "turned on inside"]
)
def test_a_force_field_fed_from_itself_gives_the_same_bits(around: Any, tmp_path: Path) -> None:
    model, x = Forces(around), torch.randn(4, 3)
    golden = capture(model, tmp_path / "golden", x.clone())
    assert ac.diff(golden, capture(model, tmp_path / "fed", x.clone(), golden)).passed


def test_a_second_derivative_with_respect_to_what_the_caller_gave_is_fed(tmp_path: Path) -> None:
    model, x = Outer(), torch.randn(4, 3, requires_grad=True)
    golden = capture(model, tmp_path / "golden", x)
    comparison = ac.diff(golden, capture(model, tmp_path / "fed", x, golden))
    assert comparison.passed
    assert {
        row.golden.path for row in comparison.rows if row.golden is not None and not row.golden.name
    } >= {"0", "1"}


def test_gradients_are_those_at_goldens_values(tmp_path: Path, opened: Opened) -> None:
    model, x = Forces(), torch.randn(4, 3)
    golden = capture(model, tmp_path / "golden", x.clone())
    # other positions arrive; golden's are handed on
    fed = opened(capture(model, tmp_path / "fed", x + 1, golden))
    np.testing.assert_array_equal(
        fed.load("", path="forces"), opened(golden).load("", path="forces")
    )


def test_a_fault_in_a_force_field_is_found(tmp_path: Path) -> None:
    model, x = Forces(), torch.randn(4, 3)
    faulty = copy.deepcopy(model)
    with torch.no_grad():
        faulty.last.weight.mul_(1.1)
    golden = capture(model, tmp_path / "golden", x.clone())
    comparison = ac.diff(golden, capture(faulty, tmp_path / "fed", x.clone(), golden))
    assert not comparison.passed
    assert comparison.culprits[0].name == "last"


def test_where_golden_needed_no_gradients_a_fed_capture_keeps_none(tmp_path: Path) -> None:
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    golden = capture(model, tmp_path / "golden", x)
    with ac.capture(model, tmp_path / "fed", feed=golden):
        assert not model(x).requires_grad


CASE = """
import torch
from accucompare import Case
from tests.recorder.test_differentiating import Forces


def case():
    torch.manual_seed(0)
    return Case(Forces(), torch.randn(4, 3){loss})
"""


@pytest.mark.parametrize(
    "loss", ["", ", loss=lambda out: out['forces'].square().sum()"], ids=["no loss", "loss"]
)
def test_a_case_of_a_force_field_is_captured_and_fed(loss: str, tmp_path: Path) -> None:
    (tmp_path / "forces.py").write_text(CASE.format(loss=loss))
    target = str(tmp_path / "forces.py")
    golden = capture_case(target, tmp_path / "golden", CPU)
    assert ac.diff(
        golden, capture_case(target, tmp_path / "fed", CPU, CaptureOptions(feed=golden))
    ).passed
