"""Captures of models whose forward is run again in the backward: activation checkpointing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import checkpoint as checkpointing
from torch.utils.checkpoint import checkpoint

import accucompare as ac
from accucompare.bundle.format.records import GRADIENT_ROLES
from accucompare.bundle.reading.reader import Bundle
from accucompare.compare.origins.sites import Stage
from planted.training_faults import of_input
from tests.asked import grouped
from tests.recorded import Opened
from tests.recorder.habits import Habit, values

REENTRANT = pytest.mark.parametrize("reentrant", [False, True], ids=["not reentrant", "reentrant"])


def build(reentrant: bool | None, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A model with a part that is run twice, and calls one module twice; ``reentrant``: how it is
    checkpointed, ``None`` if it is not.
    """

    def forward(model: Any, x: torch.Tensor) -> Any:
        hidden = model.first(x)
        for _ in range(2):

            def part(hidden: torch.Tensor) -> torch.Tensor:
                return torch.tanh(model.twice(hidden)) * model.inner(model.twice(hidden))  # type: ignore[no-any-return]

            hidden = (
                part(hidden)
                if reentrant is None
                else checkpoint(part, hidden, use_reentrant=reentrant)
            )
        return model.last(hidden)

    torch.manual_seed(0)
    return Habit(
        forward,
        twice=nn.Linear(4, 4),
        inner=nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Tanh()),
    ).to(dtype)


def capture(model: nn.Module, out: Path, **options: Any) -> Path:
    with ac.capture(model, out, **grouped(backward=True, **options)):
        model(values(2, 4).to(next(model.parameters()).dtype)).square().sum().backward()
    return out


def gradients(bundle: Bundle) -> dict[tuple[str, int, str, str], np.ndarray[Any, Any]]:
    chosen = [record for record in bundle.records() if record.role in GRADIENT_ROLES]
    return {
        (record.name, record.call, record.role.value, record.path): bundle.values(record)
        for record in chosen
    }


def same(one: Bundle, other: Bundle) -> bool:
    ours, theirs = gradients(one), gradients(other)
    return ours.keys() == theirs.keys() and all(
        np.array_equal(ours[key], theirs[key]) for key in ours
    )


@REENTRANT
def test_the_gradients_recorded_are_those_of_a_model_without_it(
    reentrant: bool, tmp_path: Path, opened: Opened
) -> None:
    plain, other = (
        capture(build(None), tmp_path / "plain"),
        capture(build(reentrant), tmp_path / "other"),
    )
    assert same(opened(plain), opened(other))
    assert {record.parent for record in opened(other).records() if record.name == "inner"} == {
        ("", 0)
    }


@REENTRANT
def test_what_is_run_again_is_fed_as_it_was_the_first_time(
    reentrant: bool, tmp_path: Path, opened: Opened
) -> None:
    golden = capture(build(reentrant), tmp_path / "golden")
    # whose forward differs from golden's
    plain = capture(build(None, torch.bfloat16), tmp_path / "plain", feed=golden)
    other = capture(build(reentrant, torch.bfloat16), tmp_path / "other", feed=golden)
    assert same(opened(plain), opened(other))
    assert not opened(other).manifest.notes


@REENTRANT
def test_a_fault_in_the_backward_of_what_is_run_again_is_named(
    reentrant: bool, tmp_path: Path
) -> None:
    golden, faulty = capture(build(reentrant), tmp_path / "golden"), build(reentrant)
    of_input("inner.0", "x 1.01").plant(faulty)
    comparison = ac.diff(golden, capture(faulty, tmp_path / "fed", feed=golden))
    assert {(culprit.name, culprit.stage) for culprit in comparison.culprits} == {
        ("inner.0", Stage.BACKWARD)
    }


def test_nothing_of_checkpointing_stays_changed(tmp_path: Path) -> None:
    before = checkpointing._CheckpointFrame, checkpointing.CheckpointFunction.forward  # type: ignore[attr-defined]
    capture(build(False), tmp_path / "golden")
    assert (checkpointing._CheckpointFrame, checkpointing.CheckpointFunction.forward) == before  # type: ignore[attr-defined]


def test_checkpointing_by_other_code_is_told(tmp_path: Path, opened: Opened) -> None:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, run: Any) -> torch.Tensor:
            ctx.run, ctx.x = run, x.detach().requires_grad_()
            with torch.no_grad():
                return run(x)  # type: ignore[no-any-return]

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            with torch.enable_grad():
                output = ctx.run(ctx.x)
            return torch.autograd.grad(output, ctx.x, grads)[0], None

    model = Habit(lambda m, x: m.last(Own.apply(m.first(x), m.other)), other=nn.Linear(4, 4))
    notes = opened(capture(model, tmp_path / "golden")).manifest.notes
    assert [
        note
        for note in notes
        if note.startswith("modules were called in a backward, and not by torch.utils.checkpoint")
    ]
