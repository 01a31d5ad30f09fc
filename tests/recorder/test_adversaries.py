"""Two models that train against each other: gradients that one side computes and nobody takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import accucompare as ac
from tests.asked import grouped
from tests.recorder.habits import values


class Adversaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.maker = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        self.judge = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor, judges: bool) -> torch.Tensor:
        made: torch.Tensor = (self.judge if judges else self.maker)(x)
        return made


def trained(
    out: Path,
    feed: Path | None = None,
    steps: int = 3,
    freezes: bool = False,
    detaches: bool = True,
    zeroes: bool = True,
) -> Path:
    model = Adversaries()
    for_maker, for_judge = (
        torch.optim.SGD(each.parameters(), 0.1) for each in (model.maker, model.judge)
    )
    with ac.capture(model, out, **grouped(feed=feed)) as session:
        for _ in range(steps):
            model.judge.requires_grad_(True)
            if zeroes:
                for_judge.zero_grad()
            made = model(values(2, 4).cos(), False)
            real = functional.softplus(-model(values(2, 4), True)).mean()
            made = model(made.detach() if detaches else made, True)
            (real + functional.softplus(made).mean()).backward()
            for_judge.step()
            model.judge.requires_grad_(not freezes)
            for_maker.zero_grad()
            functional.softplus(-model(model(values(2, 4), False), True)).mean().backward()
            for_maker.step()
            session.step()
    return out


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("other", ["freezes", "detaches"])
def test_gradients_that_are_zeroed_before_an_update_need_not_be_on_both_sides(
    other: str, fed: bool, tmp_path: Path
) -> None:
    golden = trained(tmp_path / "golden")
    feed = golden if fed else None
    trained(tmp_path / "right", feed, **{other: other == "freezes"})
    assert ac.diff(golden, tmp_path / "right").exit_code == 0
    trained(tmp_path / "wrong", feed, **{other: other == "freezes"}, zeroes=False)
    assert ac.diff(golden, tmp_path / "wrong").exit_code == 1


def test_gradients_of_one_side_that_no_update_in_the_steps_would_take_are_not_sure(
    tmp_path: Path,
) -> None:
    golden = trained(tmp_path / "golden", steps=1)
    comparison = ac.diff(golden, trained(tmp_path / "frozen", steps=1, freezes=True))
    assert comparison.exit_code == 2
    assert "capture one more step on both sides" in comparison.conclusion


class Masked(nn.Module):
    """Returns what a dropout that drops nothing gave, and so what its linear layer gave; the caller
    writes into it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.made = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0))
        self.last, self.mask = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.made(x)
        hidden[torch.arange(8).reshape(2, 4) % 5 == 0] = self.mask
        made: torch.Tensor = self.last(hidden)
        return made


def test_the_gradient_of_an_output_that_is_written_over_may_be_one_sides_alone(
    tmp_path: Path,
) -> None:
    for name, feed in (("golden", None), ("fed", tmp_path / "golden")):
        with ac.capture(model := Masked(), tmp_path / name, **grouped(feed=feed)):
            model(values(2, 4, 4)).square().mean().backward()
    assert ac.diff(tmp_path / "golden", tmp_path / "fed").exit_code == 0
