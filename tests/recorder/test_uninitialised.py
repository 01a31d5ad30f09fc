"""Memory that nobody has written into, handed to a module as a place for its results."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.compare.decide import Answer
from accucompare.compare.rows.rows import Reason

CASE = """
import itertools
import torch
from accucompare import Case
from tests.recorder.test_uninitialised import Outer


def case():
    torch.manual_seed(0)
    return Case(Outer().eval(), torch.randn(4, 8))
"""

_found = itertools.count(1)


class Into(nn.Module):
    """Writes its result into a buffer that it is given."""

    def forward(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x, out=out)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.into = nn.Linear(8, 8), Into()

    def forward(self, x: torch.Tensor) -> Any:
        x = self.fc(x)
        # what happens to lie there
        return self.into(x, torch.empty_like(x).fill_(float(next(_found)) ** 9))


@pytest.mark.parametrize("repeat", [1, 2])
def test_it_is_no_culprit_for_golden_is_captured_twice_where_it_is_not_reproduced(
    repeat: int, tmp_path: Path
) -> None:
    (tmp_path / "into.py").write_text(CASE)
    comparison = ac.locate(
        tmp_path / "into.py",
        "cpu",
        out=tmp_path / "locate",
        options=ac.LocateOptions(repeat=repeat),
    )
    row = next(
        row
        for row in comparison.rows
        if row.golden is not None and (row.golden.name, row.golden.path) == ("into", "1")
    )
    assert row.verdict.reason is Reason.NOT_DETERMINISTIC
    assert not comparison.culprits
    assert not comparison.passed


class Drawn(nn.Module):
    """Adds what no seed decides."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + next(_found) * 37 % 101


class Behind(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.drawn, self.fc, self.scale = Drawn(), nn.Linear(8, 8), scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc(self.drawn(x))
        return x * self.scale if x.dtype is torch.bfloat16 else x


@pytest.mark.parametrize(("scale", "expected"), [(1.0, Answer.NOT_SURE), (1.5, Answer.BUG)])
def test_a_fault_behind_what_golden_does_not_hold_steady_is_a_bug(
    scale: float, expected: Answer, tmp_path: Path
) -> None:
    """Golden's own captures differ from there on, and the candidate was given what the first one
    had.
    """
    x = torch.linspace(-1, 1, 512).view(64, 8)
    golden = tmp_path / "golden"
    for out, fault in (
        (golden, scale),
        (golden / "repeat1", scale),
        (tmp_path / "candidate", scale),
        (tmp_path / "baseline", 1.0),
    ):
        torch.manual_seed(0)
        half = out.parent == tmp_path and out != golden
        model = Behind(fault).to(torch.bfloat16)
        model = model if half else model.float()
        with ac.capture(model, out, feed=golden if half else None):
            model(x.to(torch.bfloat16) if half else x.bfloat16().float())
    comparison = ac.diff(golden, tmp_path / "candidate", baseline=tmp_path / "baseline")
    assert comparison.answer is expected
    assert [culprit.name for culprit in comparison.culprits] == [""] * (scale != 1.0)
