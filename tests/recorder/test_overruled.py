"""What the state of --like overrules is compared first, and told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import accucompare as ac


def run(out: Path, fault: str = "", like: Path | None = None) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    if fault == "mode":
        model[1][1].eval()  # type: ignore[index, union-attr]
    if fault == "gradient":
        model[0].bias.grad = torch.ones(4)
    if fault == "optimizer":
        optimizer.state[model[0].weight]["momentum_buffer"] = torch.ones(4, 4)
    with ac.capture(model, out, save_state=like is None, start=like, loop=optimizer) as session:
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        session.step()
    return out


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("mode", "the mode of 1.1"),
        ("gradient", "the gradient of 0.bias"),
        ("optimizer", "the state of optimizer 0"),
    ],
)
def test_an_all_clear_tells_what_goldens_state_has_replaced(
    fault: str, told: str, tmp_path: Path
) -> None:
    golden = run(tmp_path / "golden")
    comparison = ac.diff(golden, run(tmp_path / "candidate", fault, golden))
    assert comparison.passed
    assert f"the case has its own, which golden's replaced: {told}" in str(comparison.conclusion)


def test_a_case_that_is_as_golden_left_it_has_nothing_replaced(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden")
    comparison = ac.diff(golden, run(tmp_path / "candidate", like=golden))
    assert "replaced" not in str(comparison.conclusion)
