"""The loss scale: which skipped updates are normal, and which are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.errors import NonFiniteError
from accucompare.findings.analysis.analysis import MANY_IN_A_ROW, Scaling, read_logs
from accucompare.findings.log import remark
from accucompare.findings.log.events import ScaleChange, Step
from accucompare.report.watch_words import said
from accucompare.watcher.watch.running_watch import Watch
from tests.asked import looking
from tests.watcher.watched import events


def test_a_scale_that_stays_is_not_written_down() -> None:
    assert Scaling(2.0).end_step(0, 2.0, False, "") is None


def test_a_scale_that_grows_is_written_down_and_no_alarm() -> None:
    event = Scaling(2.0).end_step(3, 4.0, False, "")
    assert event == ScaleChange(
        3, 4.0, False, 0, False, remark("scale-went", before=2.0, after=4.0)
    )
    assert said(event.text) == "the loss scale went from 2 to 4"


def test_an_occasional_overflow_is_said_to_be_normal() -> None:
    event = Scaling(65536.0).end_step(0, 32768.0, True, "fc, backward")
    assert event is not None
    assert (event.skipped, event.in_a_row, event.alarm) == (True, 1, False)
    assert (
        said(event.text)
        == "gradients overflowed in fc, backward, and the update was skipped; the loss scale went"
        " from 65536 to 32768; this is normal now and then"
    )


def test_many_in_a_row_are_an_alarm_and_one_good_step_begins_anew() -> None:
    scaling, scale = Scaling(2.0**40), 2.0**40
    alarms = []
    for step in range(-3, MANY_IN_A_ROW * 2):
        skipped = step not in (-1, MANY_IN_A_ROW)  # the first ones find the scale to begin with
        scale = scale / 2 if skipped else scale
        event = scaling.end_step(step, scale, skipped, "")
        alarms.append(event is not None and event.alarm)
    assert [step for step, alarm in enumerate(alarms, -3) if alarm] == [MANY_IN_A_ROW - 1]


def test_a_scale_that_begins_far_too_high_is_no_alarm_until_it_is_found() -> None:
    scaling = Scaling(2.0**32)
    events = [scaling.end_step(step, 2.0 ** (31 - step), True, "") for step in range(31)]
    assert [event.alarm for event in events if event] == [False] * 31
    last = scaling.end_step(31, 1.0, True, "")
    assert last is not None
    assert last.alarm


@pytest.mark.parametrize(("scale", "alarm"), [(2.0, False), (1.0, True), (0.5, True)])
def test_a_scale_that_is_down_to_1_is_an_alarm(scale: float, alarm: bool) -> None:
    event = Scaling(scale * 2).end_step(0, scale, True, "")
    assert event is not None
    assert event.alarm is alarm
    assert ("the loss scale is down to 1: this is not normal" in said(event.text)) is alarm


def test_skipped_updates_without_a_scaler_are_counted() -> None:
    scaling = Scaling(None)
    events = [scaling.end_step(step, None, True, "") for step in range(MANY_IN_A_ROW)]
    assert [event.alarm for event in events if event] == [False] * (MANY_IN_A_ROW - 1) + [True]


def _train(
    tmp_path: Path, factors: list[float], init_scale: float = 2.0**20, **options: Any
) -> tuple[Watch, list[torch.Tensor]]:
    """A model whose gradient passes through float16, where ``scale * factor`` overflows from 65520
    on.
    """
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=100)
    weights = []
    with ac.watch(
        model, **looking(optimizer=optimizer, scaler=scaler, out=tmp_path, quiet=True, **options)
    ) as watch:
        for factor in factors:
            scaler.scale(model(torch.ones(1, 2)).half().float().sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            watch.step()
            weights.append(model.weight.detach().clone())
    return watch, weights


def test_overflows_until_the_scale_fits_are_no_finding(tmp_path: Path) -> None:
    watch, weights = _train(tmp_path, [1.0] * 7)
    assert watch.findings == []
    assert watch.scales == [2.0**power for power in (19, 18, 17, 16, 15, 15, 15)]
    scaled = events(watch, ScaleChange)
    assert [(event.step, event.skipped, event.in_a_row, event.alarm) for event in scaled] == [
        (n, True, n + 1, False) for n in range(5)
    ]
    assert torch.equal(weights[0], weights[4])
    assert not torch.equal(weights[4], weights[5])


def test_a_step_that_was_skipped_is_not_called_finite_and_is_no_difference(tmp_path: Path) -> None:
    watch, _ = _train(tmp_path, [1.0] * 6)
    steps = events(watch, Step)
    assert [(step.grad_norm == "inf", step.finite, step.skipped) for step in steps] == [
        (True, False, True)
    ] * 5 + [(False, True, False)]
    assert read_logs(tmp_path).unexplained == []


def test_overflows_at_any_scale_end_the_loop(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError) as raised:
        _train(tmp_path, [float("inf")] * 30, init_scale=2.0**5)
    assert raised.value.finding.step == 4  # 16, 8, 4, 2, 1


def test_many_overflows_in_a_row_end_the_loop(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError) as raised:
        _train(tmp_path, [1.0] + [float("inf")] * 30, init_scale=2.0**14)
    assert raised.value.finding.step == MANY_IN_A_ROW


def test_training_is_the_same_with_a_watch_and_without(tmp_path: Path) -> None:
    torch.manual_seed(1)
    _, watched = _train(tmp_path, [1.0, 1e9, 1.0, 1.0], init_scale=2.0**12)
    torch.manual_seed(1)
    _, idle = _train(tmp_path / "idle", [1.0, 1e9, 1.0, 1.0], init_scale=2.0**12, every=1000)
    assert all(map(torch.equal, watched, idle))


def test_an_update_skipped_in_an_idle_step_is_not_told_of_the_next(tmp_path: Path) -> None:
    watch, _ = _train(tmp_path, [1.0, 1e9, 1.0], init_scale=2.0**12, every=2)
    assert [event.step for event in events(watch, ScaleChange) if event.skipped] == []


def test_a_scaler_that_is_switched_off_is_as_none(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with ac.watch(
        model, ac.Loop(scaler=torch.amp.GradScaler("cpu", enabled=False)), out=tmp_path, quiet=True
    ) as watch:
        model(torch.ones(1, 2)).sum().backward()
        watch.step()
    assert watch.scales == []
