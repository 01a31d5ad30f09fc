"""Memory that nobody has written into, handed to a module as a place for its results."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from accucompare.compare.rows import Reason
from accucompare.devices import DeviceName
from accucompare.locate import Setup, locate

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
        return self.into(x, torch.empty_like(x).fill_(float(next(_found)) ** 9))  # what happens to lie there


@pytest.mark.parametrize("repeat", [1, 2])
def test_it_is_no_culprit_where_golden_is_captured_twice(repeat: int, tmp_path: Path) -> None:
    (tmp_path / "into.py").write_text(CASE)
    comparison = locate(Setup(str(tmp_path / "into.py"), DeviceName("cpu"), out=tmp_path / "locate"), repeat=repeat)
    row = next(row for row in comparison.rows if row.golden is not None and (row.golden.name, row.golden.path) == ("into", "1"))
    if repeat == 1:
        assert row.verdict.reason is Reason.GLUE  # nothing tells it from a bug
    else:
        assert row.verdict.reason is Reason.NOT_DETERMINISTIC
        assert not comparison.culprits
        assert not comparison.passed
