"""Scripted and traced modules: what goes in and comes out is recorded, what happens inside is not
seen.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from tests.recorded import Glue, Record, places

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def loaded(model: nn.Module) -> Any:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(model), buffer)
    return torch.jit.load(io.BytesIO(buffer.getvalue()))


MADE: dict[str, Callable[[nn.Module], Any]] = {
    "scripted": torch.jit.script,
    "traced": lambda model: torch.jit.trace(model, torch.randn(2, 4)),
    "frozen": lambda model: torch.jit.freeze(torch.jit.script(model.eval())),
    "loaded": loaded,
}
made = pytest.mark.parametrize("make", MADE.values(), ids=MADE)


@made
def test_a_scripted_model_is_recorded_from_outside(
    make: Callable[[nn.Module], Any], record: Record
) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4)
    bundle = record(make(copy.deepcopy(model)), x)
    assert bundle.complete
    assert places(bundle) == ["#0 input 0", "#0 output"]
    np.testing.assert_allclose(bundle.load(""), model(x).detach(), rtol=1e-6)
    assert any("hide what happens inside them" in note for note in bundle.manifest.notes)


@made
def test_a_fault_in_a_scripted_part_of_a_model_is_found(
    make: Callable[[nn.Module], Any], tmp_path: Path
) -> None:
    part, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4)
    faulty = copy.deepcopy(part)
    with torch.no_grad():
        faulty[0].weight.mul_(1.1)
    for each, out, feed in (
        (part, "golden", None),
        (part, "same", "golden"),
        (faulty, "faulty", "golden"),
    ):
        model = Glue(
            lambda self, x: self.last(self.part(self.first(x))),
            first=nn.Tanh(),
            part=make(each),
            last=nn.Softmax(-1),
        )
        with (
            torch.no_grad(),
            ac.capture(
                model, tmp_path / out, feed=ac.FedWith(feed and tmp_path / feed, force=bool(feed))
            ),
        ):
            model(x)
    assert ac.diff(tmp_path / "golden", tmp_path / "same").passed
    comparison = ac.diff(tmp_path / "golden", tmp_path / "faulty")
    assert [culprit.name for culprit in comparison.culprits] == ["part"]


def test_the_hooks_are_taken_off_again(record: Record) -> None:
    model = torch.jit.script(nn.Linear(4, 4))
    record(model, torch.randn(2, 4))
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
