"""Terminal, JSON, workbook and exit code give one answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest
import torch
from torch import nn

import accucompare as ac
from tests.combinations import once
from tests.conftest import Run


def train(
    out: Path,
    fault: Callable[[nn.Sequential, Any], object] | None = None,
    feed: Path | None = None,
    mode: str = "tensors",
) -> Path:
    """Two steps. ``fault`` is called with model and optimizer after each update."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with ac.capture(model, out, record=mode, feed=feed) as session:
        for _ in range(2):
            model(torch.randn(6, 8)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                if fault is not None:
                    fault(model, optimizer)
            session.step()
    return out


def rate(model: nn.Sequential, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = 0.02


def state(model: nn.Sequential, optimizer: Any) -> None:
    optimizer.state[model[0].weight]["exp_avg"].zero_()


def weights(model: nn.Sequential, optimizer: Any) -> None:
    model[2].weight.data.mul_(0.5)  # type: ignore[operator, union-attr]


def buffer(model: nn.Sequential, optimizer: Any) -> None:
    model[1].running_var.data.mul_(1.5)  # type: ignore[operator, union-attr]


def cleared(model: nn.Sequential, optimizer: Any) -> None:
    model[0].bias.grad = None


FAULTS = (None, rate, state, weights, buffer, cleared)
KINDS = ("free", "fed", "stats", "digest", "sketch", "given")


@pytest.mark.parametrize(
    ("fault", "kind"), [*once(FAULTS, KINDS), *once(FAULTS, (*KINDS[1:], KINDS[0]))]
)
def test_every_report_gives_the_answer_of_the_exit_code(
    tmp_path: Path, cli: Run, fault: Callable[[nn.Sequential, Any], object] | None, kind: str
) -> None:
    mode = kind if kind in ("stats", "digest", "sketch") else "tensors"
    golden = train(tmp_path / "golden", mode=mode)
    train(tmp_path / "candidate", fault, golden if kind == "fed" else None, mode)
    limits = ["--atol", "10"] if kind == "given" else []
    done = cli(
        "diff",
        "golden",
        "candidate",
        *limits,
        "--json",
        "out.json",
        "--report",
        "out.xlsx",
        COLUMNS="500",
    )
    written = json.loads((tmp_path / "out.json").read_text())
    assert (
        done.returncode
        == written["exit_code"]
        == ac.diff(golden, tmp_path / "candidate", atol=10 if limits else None).exit_code
    )
    assert written["conclusion"] in done.stdout
    assert written["verdict"] in done.stdout
    cells = [
        str(cell)
        for row in openpyxl.load_workbook(tmp_path / "out.xlsx", read_only=True)[
            "Summary"
        ].iter_rows(values_only=True)
        for cell in row
    ]
    assert any(written["conclusion"] in cell for cell in cells)
    assert any(written["verdict"] in cell for cell in cells)
    if fault not in (None, cleared) and not limits:
        assert done.returncode == 1
    if fault is None:
        assert done.returncode == 0
