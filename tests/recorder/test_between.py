"""What something other than an update changes between two steps of training, on one side or on
both.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.bundle.format.records import Role
from accucompare.compare.decide import Answer
from accucompare.compare.origins.sites import Stage
from accucompare.compare.rows.rows import Status
from tests.asked import grouped
from tests.combinations import pairwise

#: Changes the model at the end of a step, which has this number.
Change = Callable[[nn.Sequential, list[torch.Tensor], int], object]


def _halve(model: nn.Sequential, average: list[torch.Tensor], step: int) -> None:
    model[1].weight.mul_(0.5)  # type: ignore[union-attr, operator]


def _halve_unseen(model: nn.Sequential, average: list[torch.Tensor], step: int) -> None:
    """As PyTorch does not count it."""
    model[1].weight.data.mul_(0.5)  # type: ignore[union-attr, operator]


def _clamp(model: nn.Sequential, average: list[torch.Tensor], step: int) -> None:
    for parameter in model.parameters():
        parameter.clamp_(-0.2, 0.2)


def _average(model: nn.Sequential, average: list[torch.Tensor], step: int) -> None:
    for each, parameter in zip(average, model.parameters(), strict=True):
        each.lerp_(parameter.to(each.dtype), 0.5)
        parameter.copy_(each)


def _at_the_end(model: nn.Sequential, average: list[torch.Tensor], step: int) -> None:
    if step == 1:
        _halve_unseen(model, average, step)


def _in_and_out(model: nn.Sequential, average: list[torch.Tensor], step: int) -> None:
    """What an optimizer does that keeps an average of the weights: to evaluate, and back."""
    for each, parameter in zip(average, model.parameters(), strict=True):
        parameter.lerp_(each.to(parameter.dtype), 0.3)
        parameter.lerp_(each.to(parameter.dtype), 1 - 1 / 0.7)


def _nothing(model: nn.Sequential, average: list[torch.Tensor], step: int) -> None:
    pass


def run(
    out: Path,
    change: Change = _nothing,
    feed: Path | None = None,
    dtype: torch.dtype = torch.float32,
    after: bool = False,
    **options: Any,
) -> Path:
    """Two steps. ``after``: the change comes after the step has ended, and before the next."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    average = [parameter.detach().float().clone() for parameter in model.parameters()]
    inputs = torch.randn(2, 5, 8).to(dtype)
    with ac.capture(model, out, **grouped(feed=feed, overwrite=True, **options)) as session:
        for step, batch in enumerate(inputs):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if after:
                session.step()
            with torch.no_grad():
                change(model, average, step)
            if not after:
                session.step()
    return out


@pytest.mark.parametrize(
    ("side", "change", "fed"),
    pairwise(
        ("golden", "candidate"),
        (_halve, _halve_unseen, _clamp, _average, _at_the_end),
        (True, False),
    ),
)
def test_what_the_loop_changes_on_one_side_alone_is_the_first_culprit(
    side: str, change: Change, fed: bool, tmp_path: Path
) -> None:
    golden = run(tmp_path / "golden", change if side == "golden" else _nothing)
    candidate = run(
        tmp_path / "candidate", change if side == "candidate" else _nothing, golden if fed else None
    )
    comparison = ac.diff(golden, candidate)
    assert str(comparison.conclusion).startswith("bug: ")
    assert comparison.culprits[0].stage is Stage.BETWEEN
    step = 1 if change is _at_the_end else 0
    if not fed or side == "candidate":
        assert f"after the update of step {step} something else changed" in str(
            comparison.conclusion
        )


def test_a_change_between_two_steps_is_told_as_such(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", after=True)
    comparison = ac.diff(golden, run(tmp_path / "candidate", _halve, golden, after=True))
    expected = "bug: between step 0 and 1 something else changed 1.weight, in the candidate alone"
    assert str(comparison.conclusion) == expected


@pytest.mark.parametrize(
    ("fed", "change", "dtype"),
    pairwise(
        (True, False), (_halve, _clamp, _average, _in_and_out), (torch.float32, torch.bfloat16)
    ),
)
def test_what_the_loop_changes_alike_on_both_sides_is_no_difference(
    fed: bool, change: Change, dtype: torch.dtype, tmp_path: Path
) -> None:
    golden = run(tmp_path / "golden", change)
    comparison = ac.diff(
        golden, run(tmp_path / "candidate", change, golden if fed else None, dtype)
    )
    assert comparison.passed, comparison.conclusion
    assert any(
        row.record is not None and row.record.role is Role.PARAM_CHANGED for row in comparison.rows
    )


def test_a_change_that_is_no_more_than_rounding_is_none_and_is_told(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden")
    comparison = ac.diff(golden, run(tmp_path / "candidate", _in_and_out, golden))
    assert comparison.passed
    assert "could not be compared" in str(comparison.conclusion)


def test_two_sides_that_change_a_parameter_in_two_ways_differ(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", _halve)
    comparison = ac.diff(golden, run(tmp_path / "candidate", _average, golden))
    assert {culprit.stage for culprit in comparison.culprits} == {Stage.BETWEEN}


def test_without_tensors_a_change_is_seen_too(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", mode="digest")
    comparison = ac.diff(golden, run(tmp_path / "candidate", _halve, mode="digest"))
    assert (
        comparison.culprits[0].place == "after the update of step 0 something else changed 1.weight"
    )


def test_one_row_that_is_scaled_after_the_last_forward_is_seen(tmp_path: Path) -> None:
    def look(out: str, scale: float) -> Path:
        torch.manual_seed(0)
        model = nn.Linear(8, 5000).eval()
        with torch.no_grad(), ac.capture(model, tmp_path / out):
            model(torch.ones(1, 8))
            model.weight.data[777] *= scale
        return tmp_path / out

    golden = look("golden", 1.0)
    assert ac.diff(golden, look("same", 1.0)).passed
    assert not ac.diff(golden, look("other", 1.01)).passed


def test_updates_of_steps_that_are_not_recorded_are_no_change(tmp_path: Path) -> None:
    comparison = ac.diff(
        run(tmp_path / "golden", steps=[1]), run(tmp_path / "candidate", steps=[1])
    )
    assert not any(
        row.record is not None and row.record.role is Role.PARAM_CHANGED for row in comparison.rows
    )
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ac.capture(model, tmp_path / "some", steps=[0, 2]) as session:
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            session.step()
    with ac.open_bundle(tmp_path / "some") as bundle:
        assert not any(record.role is Role.PARAM_CHANGED for record in bundle.records())


def _by_hand(model: nn.ModuleDict, rate: float) -> None:
    for parameter in model["own"].parameters():
        assert parameter.grad is not None
        parameter.sub_(rate * parameter.grad)


def _average_of(model: nn.ModuleDict, rate: float) -> None:
    for each, own in zip(model["other"].parameters(), model["own"].parameters(), strict=True):
        each.lerp_(own, rate)


def _average_unseen(model: nn.ModuleDict, rate: float) -> None:
    for each, own in zip(model["other"].parameters(), model["own"].parameters(), strict=True):
        each.data.lerp_(own, rate)


def _average_anew(model: nn.ModuleDict, rate: float) -> None:
    for each, own in zip(model["other"].parameters(), model["own"].parameters(), strict=True):
        each.data = each.data.lerp(own, rate)


class _Two(nn.Module):
    """One part is trained, the other is not, by an optimizer at least."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(
            {
                name: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
                for name in ("own", "other")
            }
        )
        self.parts["other"].requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts["own"](x) - self.parts["other"](x)


#: Changes parameters that no optimizer has, by so much.
Hand = Callable[[nn.ModuleDict, float], object]


def run_by_hand(
    out: Path,
    change: Hand,
    rates: tuple[float, ...],
    feed: Path | None = None,
    dtype: torch.dtype = torch.float32,
    again: bool = False,
) -> Path:
    """A step for each rate. ``again``: the model is called once more after the update."""
    torch.manual_seed(0)
    model = _Two().to(dtype)
    optimizer = (
        None if change is _by_hand else torch.optim.SGD(model.parts["own"].parameters(), 0.1)
    )
    inputs = torch.randn(len(rates), 5, 8).to(dtype)
    with ac.capture(
        model, out, overwrite=True, feed=ac.FedWith(feed, force=dtype is not torch.float32)
    ) as session:
        for batch, rate in zip(inputs, rates, strict=True):
            model(batch).square().mean().backward()
            if optimizer is not None:
                optimizer.step()
            if again:
                model(batch)
            with torch.no_grad():
                change(model.parts, rate)
            model.zero_grad()
            session.step()
    return out


_HANDS: list[Hand] = [_by_hand, _average_of, _average_unseen, _average_anew]


@pytest.mark.parametrize(
    ("rates", "change", "fed", "again"),
    pairwise(((0.5,), (0.5, 0.5, 0.5)), _HANDS, (True, False), (False, True)),
)
def test_what_a_loop_makes_of_parameters_in_the_last_step_without_an_optimizer_is_compared(
    rates: tuple[float, ...], change: Hand, fed: bool, again: bool, tmp_path: Path
) -> None:
    golden = run_by_hand(tmp_path / "golden", change, rates, again=again)
    for wrong in (0.25, 0.0):  # another rate, or nothing done
        candidate = run_by_hand(
            tmp_path / "candidate",
            change,
            (*rates[:-1], wrong),
            golden if fed else None,
            again=again,
        )
        comparison = ac.diff(golden, candidate)
        assert comparison.culprits[0].stage is Stage.BETWEEN
        assert f"step {len(rates) - 1}" in comparison.culprits[0].place
        assert "#" not in comparison.conclusion


@pytest.mark.parametrize(
    ("fed", "change", "dtype"), pairwise((True, False), _HANDS, (torch.float32, torch.bfloat16))
)
def test_what_a_loop_makes_of_them_alike_is_no_difference(
    fed: bool, change: Hand, dtype: torch.dtype, tmp_path: Path
) -> None:
    golden = run_by_hand(tmp_path / "golden", change, (0.01, 0.5, 0.001))
    candidate = run_by_hand(
        tmp_path / "candidate", change, (0.01, 0.5, 0.001), golden if fed else None, dtype
    )
    comparison = ac.diff(golden, candidate)
    assert comparison.passed, comparison.conclusion
    assert any(
        row.record is not None
        and row.record.role is Role.PARAM_CHANGED
        and row.golden
        and row.candidate
        for row in comparison.rows
    )


@pytest.mark.parametrize("change", _HANDS)
def test_a_fed_capture_goes_on_with_what_goldens_loop_has_made(
    change: Hand, tmp_path: Path
) -> None:
    golden = run_by_hand(tmp_path / "golden", change, (0.5, 0.5, 0.5))
    comparison = ac.diff(
        golden, run_by_hand(tmp_path / "candidate", change, (0.25, 0.5, 0.5), golden)
    )
    failing = {
        row.record.step
        for row in comparison.rows
        if row.status is Status.FAIL and row.record is not None
    }
    assert failing == {0}


@pytest.mark.parametrize("change", [_by_hand, _average_of])
def test_a_half_type_is_no_reason_for_changes_that_are_not_made_at_all(
    change: Hand, tmp_path: Path
) -> None:
    golden = run_by_hand(tmp_path / "golden", change, (0.5,))
    comparison = ac.diff(
        golden, run_by_hand(tmp_path / "candidate", change, (0.0,), dtype=torch.bfloat16)
    )
    assert not comparison.passed


@pytest.mark.parametrize(
    ("trained", "fed", "after"), pairwise((True, False), (True, False), (2, 3))
)
def test_a_change_after_any_step_is_seen(
    trained: bool, fed: bool, after: int, tmp_path: Path
) -> None:
    def run_three(out: Path, wrong: bool, feed: Path | None = None) -> Path:
        torch.manual_seed(0)
        model = _Two()
        optimizer = torch.optim.SGD(model.parts["own"].parameters(), 0.1)
        with ac.capture(model, out, feed=feed, overwrite=True) as session:
            for step in range(4):
                model(torch.ones(2, 8)).square().mean().backward()
                optimizer.step()
                session.step()
                if wrong and step == after:
                    next(model.parts["own" if trained else "other"].parameters()).data.mul_(0.5)
        return out

    for wrong in (False, True):
        golden = run_three(tmp_path / "golden", wrong)
        feed = golden if fed else None
        comparison = ac.diff(golden, run_three(tmp_path / "candidate", not wrong, feed))
        assert (
            comparison.culprits[0].place == f"between step {after} and {after + 1} something else"
            f" changed parts.{'own' if trained else 'other'}.0.weight"
        )
        assert ac.diff(golden, run_three(tmp_path / "same", wrong, feed)).answer is Answer.IDENTICAL


def test_what_is_made_between_steps_of_values_in_a_half_type_has_its_limit(tmp_path: Path) -> None:
    def averaged(out: str, dtype: torch.dtype) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).to(dtype)
        model.register_buffer("mean", torch.zeros(64))
        with torch.no_grad(), ac.capture(model, tmp_path / out) as session:
            for _ in range(2):
                output = model(torch.ones(4, 64, dtype=dtype))
                session.step()
                model.mean.lerp_(output.float().mean(0), 0.5)
        return tmp_path / out

    comparison = ac.diff(averaged("golden", torch.float32), averaged("half", torch.bfloat16))
    assert comparison.exit_code == 0, comparison.conclusion


def test_what_the_last_step_leaves_behind_is_compared_without_a_training_too(
    tmp_path: Path,
) -> None:
    def called(out: str, change: Callable[[nn.Module], object], **options: Any) -> Path:
        torch.manual_seed(0)
        model = nn.BatchNorm1d(4).eval()
        with torch.no_grad(), ac.capture(model, tmp_path / out, **options) as session:
            for step in range(2):
                model(torch.ones(3, 4))
                session.step()
                if step == options.get("steps", 2) - 1:
                    change(model)
        return tmp_path / out

    golden = called("golden", lambda model: None)
    for name, change, code in (
        ("weight", lambda model: model.weight.copy_(model.weight.clone()), 0),  # as it was
        ("weight", lambda model: model.weight.clamp_(max=0.5), 1),
        ("weight", lambda model: model.weight.data.mul_(0.5), 1),
        ("running_mean", lambda model: model.running_mean.data.add_(1.0), 1),
    ):
        after = called(name, lambda model, change=change: change(model), overwrite=True)
        assert ac.diff(golden, after).exit_code == code
    with ac.open_bundle(after) as bundle:
        assert [entry.step for entry in bundle.manifest.run_steps] == [0, 1]
        assert [each.path for each in bundle.records() if each.step == 2] == [name]
    ran_on = called("ran_on", lambda model: model.running_mean.data.add_(1.0), steps=1)
    comparison = ac.diff(called("one", lambda model: model(torch.ones(3, 4)), steps=1), ran_on)
    assert comparison.answer is Answer.IDENTICAL
