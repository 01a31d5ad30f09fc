"""A run whose loss stays NaN is paused, and a run that goes on from the saved state computes what
one without the bad data would have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.errors import UsageError, WatchEndedError
from accucompare.findings.analysis.analysis import read_logs
from accucompare.findings.log.events import Ending
from tests.asked import looking
from tests.conftest import Run

BAD, LAST = 5, 9


class Training:
    """Dropout, batch norm and momentum: each has a state of its own that a step changes."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.scaler = torch.amp.GradScaler("cpu", enabled=False)

    def steps(
        self, watch: Any, first: int, last: int, spoil: Callable[[int], float] = lambda step: 1.0
    ) -> None:
        for step in range(first, last):
            x = torch.randn(4, 6)  # so that the data, too, come from torch's generator
            self.optimizer.zero_grad()
            loss = self.model(x).square().mean() * spoil(step)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            if watch is not None:
                watch.step()

    def watched(self, out: Path, **options: Any) -> Any:
        return ac.watch(
            self.model,
            **looking(
                optimizer=self.optimizer,
                scheduler=self.scheduler,
                scaler=self.scaler,
                out=out,
                on_finding="warn",
                quiet=True,
                **options,
            ),
        )

    def numbers(self) -> list[torch.Tensor]:
        state = self.optimizer.state_dict()["state"].values()
        return [
            *self.model.state_dict().values(),
            *(value for entry in state for value in entry.values()),
        ]


def lost(step: int) -> float:
    return float("nan") if step >= BAD else 1.0


@pytest.mark.parametrize(
    "scaled", [False, True], ids=["spoilt by the update", "whose update a scaler skips"]
)
@pytest.mark.filterwarnings("ignore")
def test_a_run_goes_on_from_the_saved_state_with_the_same_bits(
    scaled: bool, tmp_path: Path
) -> None:
    def training() -> Training:
        made = Training()
        if scaled:
            made.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
        return made

    paused = training()
    with (
        pytest.raises(WatchEndedError, match="3 steps running, up to step 7"),
        paused.watched(tmp_path, pause_after=3) as watch,
    ):
        paused.steps(watch, 0, LAST, lost)
    state = tmp_path / f"state-before-step{BAD}"
    end = read_logs(tmp_path).ranks[0].end
    assert end is not None
    assert (end.ending, end.state) == (Ending.PAUSED, str(state))
    plain = training()
    plain.steps(None, 0, LAST)
    again = training()
    torch.rand(7)
    with again.watched(tmp_path / "again", like=state) as watch:
        assert watch.step_number == BAD
        again.steps(watch, BAD, LAST)
    assert all(
        torch.equal(mine, theirs)
        for mine, theirs in zip(again.numbers(), plain.numbers(), strict=True)
    )
    assert again.scheduler.get_last_lr() == plain.scheduler.get_last_lr()
    assert again.scaler.state_dict() == plain.scaler.state_dict()
    assert [step.step for step in read_logs(tmp_path / "again").ranks[0].steps] == list(
        range(BAD, LAST)
    )


@pytest.mark.filterwarnings("ignore")
def test_a_loss_that_is_finite_again_lets_the_run_go_on_and_leaves_no_state(tmp_path: Path) -> None:
    numbers = []
    for watched in (True, False):
        training = Training()
        training.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)  # which skips the bad updates
        with (
            training.watched(tmp_path, pause_after=3) if watched else contextlib.nullcontext()
        ) as watch:
            training.steps(
                watch, 0, LAST, lambda step: float("inf") if step in (2, 3, 5, 6) else 1.0
            )
        numbers.append(training.numbers())
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*numbers, strict=True))
    assert not list(tmp_path.glob("state-*"))


@pytest.mark.filterwarnings("ignore")
def test_the_batch_of_the_first_bad_step_is_saved(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    batch = torch.full((2, 3), float("nan"))
    with (
        contextlib.suppress(WatchEndedError),
        ac.watch(model, out=tmp_path, on_finding="warn", pause_after=1) as watch,
    ):
        model(batch).sum().backward()
        watch.step()
    with ac.open_bundle(tmp_path / "state-before-step0") as bundle:
        (record,) = (each for each in bundle.state() if each.role.value == "case_input")
        assert np.array_equal(
            bundle.raw(record).view("float32").reshape(record.shape), batch.numpy(), equal_nan=True
        )


@pytest.mark.filterwarnings("ignore")
def test_a_case_is_paused_and_goes_on_by_two_commands(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "case.py").write_text(
        "import os, torch\nfrom accucompare import Case\ndef case():\n    model ="
        " torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.5))\n    inputs ="
        " [torch.full((2, 3), float(step)) for step in range(6)]\n    if os.environ.get('SPOILT'):"
        " inputs[3:] = [each * float('nan') for each in inputs[3:]]\n    return Case(model, inputs,"
        " loss=lambda y: y.sum(), optimizer=torch.optim.Adam(model.parameters()))\n"
    )
    paused = cli("watch", "case.py", "--pause-after", "2", SPOILT="1")
    assert "paused after step 4" in paused.stdout
    again = cli(
        "watch", "case.py", "--like", "watch/state-before-step3", "--steps", "2", "--out", "again"
    )
    assert again.returncode == 0, again.stderr
    assert [step.step for step in read_logs(tmp_path / "again").ranks[0].steps] == [3, 4]


@pytest.mark.parametrize("options", [{"on_finding": "raise"}, {"every": 2}, {"checks_every": 0}])
def test_what_cannot_be_paused_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pause_after: needs"):
        ac.watch(
            nn.Linear(1, 1),
            **looking(out=tmp_path, **{"on_finding": "warn", "pause_after": 3, **options}),
        )
