"""Gradients and updates that only one side has: they are named where they begin."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import accucompare as ac


class _Kernel(nn.Linear):
    """As one whose backward is left out."""

    fault = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight.detach() if self.fault == "weight" else self.weight
        return nn.functional.linear(x.detach() if self.fault == "input" else x, weight, self.bias)


class _Net(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.first, self.kernel, self.last = nn.Linear(8, 8), _Kernel(8, 8), nn.Linear(8, 4)
        self.encoder = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.fault = self.kernel.fault = fault

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.first(x)
        a, b = self.encoder(h), self.encoder(h.roll(1, 0))
        b = b.detach() if self.fault == "branch" else b
        y = self.kernel(a + b)
        part = (a * b).mean()
        return self.last(
            y.detach() if self.fault == "cut" else y
        ), part.detach() if self.fault == "part" else part


def run(out: Path, fault: str = "", feed: Path | None = None) -> Path:
    torch.manual_seed(0)
    model = _Net(fault)
    model.encoder[0].weight.requires_grad_(fault != "frozen")  # type: ignore[union-attr, operator]
    held = [
        each for name, each in model.named_parameters() if fault != "held" or name != "last.weight"
    ]
    optimizer = torch.optim.AdamW(held, 1e-2)
    inputs = torch.randn(2, 6, 8)
    with ac.capture(model, out, feed=feed, overwrite=True) as session:
        for step, batch in enumerate(inputs):
            outputs, part = model(batch)
            (outputs.square().mean() + part).backward()
            if fault == "dropped":
                model.last.bias.grad = None
            if fault != "left out" or step:
                optimizer.step()
            optimizer.zero_grad()
            session.step()
    return out


PLACES = {
    "cut": "(root) (glue, before last)",
    "part": "(root) (glue, at its end)",
    "branch": "the backward of (root) (glue, behind encoder)",
    "input": "the backward of kernel, gradient of input 0",
    "weight": "the backward of kernel, gradient of weight",
    "frozen": "the backward of encoder.0 call 1, gradient of weight",
    "dropped": "the sum of the gradients of last.bias",
    "held": "the update of last.weight",
    "left out": "the whole update",
}


@pytest.mark.parametrize("fed", [True, False])
@pytest.mark.parametrize("fault", PLACES)
def test_what_the_candidate_lacks_is_named_where_it_begins(
    fault: str, fed: bool, tmp_path: Path
) -> None:
    golden = run(tmp_path / "golden")
    comparison = ac.diff(golden, run(tmp_path / "candidate", fault, golden if fed else None))
    assert str(comparison.conclusion).startswith(f"bug: {PLACES[fault]}")
    assert "golden" in str(comparison.conclusion)
    if fed:
        assert [culprit.place for culprit in comparison.culprits] == [PLACES[fault]]


@pytest.mark.parametrize("fault", ["cut", "input", "frozen", "held", "left out"])
def test_what_golden_lacks_is_named_likewise(fault: str, tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", fault)
    comparison = ac.diff(golden, run(tmp_path / "candidate", "", golden))
    assert str(comparison.conclusion).startswith(f"bug: {PLACES[fault]}")


@pytest.mark.parametrize("fault", PLACES)
def test_what_both_sides_lack_is_no_difference(fault: str, tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", fault)
    comparison = ac.diff(golden, run(tmp_path / "candidate", fault, golden))
    assert comparison.passed, comparison.conclusion
    assert not comparison.unmatched()
