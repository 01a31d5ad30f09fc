"""Warnings of what is not yet wrong: near the limit, underflow."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.findings.log.events import Alert
from accucompare.report.watch_words import said
from tests.asked import looking
from tests.watcher.watched import Glue, events


def _warnings(
    model: nn.Module, *inputs: Any, out: Path, backward: bool = False, **options: Any
) -> list[Alert]:
    with ac.watch(
        model, **looking(out=out, **{"quiet": True, "on_finding": "warn", **options})
    ) as watch:
        for given in inputs:
            output = model(given)
            if backward:
                output.sum().backward()
            watch.step()
    found: list[Alert] = events(watch, Alert)
    return found


def _times(factor: float) -> nn.Module:
    return Glue(lambda self, x: x * factor)


@pytest.mark.parametrize(
    ("dtype", "value", "warned"),
    [
        (torch.float16, 16376.0, True),
        (torch.float16, 16368.0, False),
        (torch.float16, -30000.0, True),
        (torch.float16, 65504.0, True),
        (torch.float16, -65504.0, False),  # of which masks are made
        (torch.float16, float("inf"), False),
        (torch.bfloat16, 2e38, True),
        (torch.float32, 70000.0, False),
        (torch.complex64, 2e38, True),
    ],
)
def test_values_that_come_near_the_limit_of_their_type_are_warned_of(
    dtype: torch.dtype, value: float, warned: bool, tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Identity())
    found = _warnings(model, torch.tensor([1.0, value], dtype=dtype), out=tmp_path, frames=0)
    near = [event for event in found if event.kind == "near the limit" and event.name == "0"]
    assert bool(near) is warned
    if near:
        assert near[0].value == pytest.approx(abs(value), rel=0.01)
        assert near[0].type == "Identity"


def test_how_near_is_for_the_user_to_say(tmp_path: Path) -> None:
    x = torch.tensor([5000.0], dtype=torch.float16)
    assert not _warnings(nn.Sequential(nn.Identity()), x, out=tmp_path / "a")
    assert _warnings(nn.Sequential(nn.Identity()), x, out=tmp_path / "b", near=20)


def test_each_module_is_warned_of_once_for_each_kind(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Identity(), nn.Sequential(nn.Identity()))
    x = torch.tensor([60000.0], dtype=torch.float16)
    found = _warnings(model, x, x, x, out=tmp_path)
    assert [(event.kind, event.name, event.step) for event in found] == [
        ("near the limit", name, 0) for name in ("0", "1.0", "1", "")
    ]


def test_a_module_that_is_allowed_to_is_not_warned_of(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Identity(), _times(0.001))
    found = _warnings(model, torch.tensor([60000.0], dtype=torch.float16), out=tmp_path, allow="0")
    assert [event.name for event in found] == []


def _sinking(dtype: torch.dtype, values: list[float]) -> nn.Module:
    """A module whose output's gradient is these values."""
    given = torch.tensor(values, dtype=dtype)
    return nn.Sequential(Glue(lambda self, x: x * 1.0), Glue(lambda self, x: (x * given).float()))


def test_underflow_is_told_with_its_share(tmp_path: Path) -> None:
    x = torch.ones(4, dtype=torch.float16, requires_grad=True)
    found = _warnings(
        _sinking(torch.float16, [1.0, 0.0, 1e-7, 1e-6]), x, out=tmp_path, backward=True
    )
    assert [(event.kind, event.value) for event in found] == [("underflow", 0.75)]
    assert "50% of gradients are subnormal in float16, and 25% are zero" in said(found[0].text)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_too_small_for_eight_bits_of_exponent_are_lost_to_nobody(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    x = torch.ones(4, dtype=dtype, requires_grad=True)
    assert not _warnings(_sinking(dtype, [1.0, 0.0, 1e-39, 1e-39]), x, out=tmp_path, backward=True)


def test_gradients_under_a_loss_scale_may_be_large_and_small(tmp_path: Path) -> None:
    model, x = nn.Linear(4, 4).half(), torch.ones(2, 4, dtype=torch.float16)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=8192.0)
    with ac.watch(model, ac.Loop(optimizer, scaler=scaler), out=tmp_path, quiet=True) as watch:
        scaler.scale((model(x).float() * torch.tensor([2.0, 1e-8, 1e-10, 1e-10])).sum()).backward()
        watch.step()
    assert not events(watch, Alert)


def test_underflow_in_many_modules_is_told_once_with_their_number(tmp_path: Path) -> None:
    x = torch.ones(4, dtype=torch.float16, requires_grad=True)
    model = nn.Sequential(
        *(_times(1.0) for _ in range(9)), *_sinking(torch.float16, [1.0, 0.0, 1e-7, 1e-6])
    )
    (event,) = _warnings(model, x, out=tmp_path, backward=True)
    assert said(event.text).endswith(
        "and 25% are zero; in 10 more modules, too, 10% or more are subnormal"
    )


def test_zeros_alone_are_no_underflow(tmp_path: Path) -> None:
    assert not _warnings(
        nn.Sequential(nn.ReLU()), -torch.ones(4, dtype=torch.float16), out=tmp_path
    )


def test_gradients_that_underflow_are_warned_of(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4).half(), Glue(lambda self, x: x.float() * 1e-7))
    found = _warnings(model, torch.ones(2, 4, dtype=torch.float16), out=tmp_path, backward=True)
    assert any(
        event.kind == "underflow" and "of gradients are subnormal" in said(event.text)
        for event in found
    )


def test_one_column_that_is_subnormal_is_not_taken_for_all(tmp_path: Path) -> None:
    factors = [1e-6] * 2 + [1.0] * 8
    x = torch.ones(512, 10, dtype=torch.float16, requires_grad=True)
    found = _warnings(_sinking(torch.float16, factors), x, out=tmp_path, backward=True)
    assert found[0].value == pytest.approx(2 / 10, abs=0.02)


def test_warnings_go_to_logging_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="accucompare.watch"):
        _warnings(
            nn.Sequential(nn.Identity()),
            torch.tensor([60000.0], dtype=torch.float16),
            out=tmp_path,
            quiet=False,
        )
    assert (
        "step 0: 0 (Identity): values up to 6e+04 come near the limit of float16"
        in caplog.messages[0]
    )


def test_a_quiet_watch_warns_in_its_log_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert _warnings(
        nn.Sequential(nn.Identity()), torch.tensor([60000.0], dtype=torch.float16), out=tmp_path
    )
    assert caplog.messages == []
