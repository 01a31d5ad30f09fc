"""Points of the user's own: ``accucompare.check_finite``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import accucompare as ac
from accucompare.findings.log.events import Site
from accucompare.findings.log.log import read_log
from tests.watcher.watched import Counting, Glue, origins

NAN = float("nan")


def _with_a_point(spoilt: bool = True) -> nn.Module:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        z = y * NAN if spoilt else y
        ac.check_finite(z, "after fc")
        return z.nan_to_num()

    return Glue(forward, fc=nn.Linear(2, 2))


def test_without_a_watch_it_does_nothing() -> None:
    x = torch.tensor([NAN])
    with Counting() as counting:
        ac.check_finite(x, "here")
    assert counting.reads == []
    assert x.isnan().all()


def test_a_value_that_no_output_shows_is_found_there(tmp_path: Path) -> None:
    model: Any = nn.Sequential(_with_a_point())
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        model(torch.ones(1, 2))
        watch.step()
    (found,) = watch.findings
    assert (found.name, found.site, found.near, found.kinds) == (
        "0",
        Site.POINT,
        "after fc",
        ["NaN"],
    )
    assert found.place == "0 (point, after fc)"


def test_the_operator_that_made_what_a_point_shows_is_named(tmp_path: Path) -> None:
    model: Any = nn.Sequential(_with_a_point())
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        model(torch.ones(1, 2))
        watch.step()
    (found,) = watch.findings
    assert (found.operator, found.notes) == ("aten.mul.Tensor", [])


def test_a_finite_value_is_no_finding(tmp_path: Path) -> None:
    model: Any = _with_a_point(spoilt=False)
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        model(torch.ones(1, 2))
        watch.step()
    assert watch.findings == []


def test_what_a_child_made_is_told_there_and_not_again(tmp_path: Path) -> None:
    model: Any = _with_a_point(spoilt=False)
    with torch.no_grad():
        model.fc.bias[0] = NAN
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        model(torch.ones(1, 2))
        watch.step()
    assert [found.place for found in origins(watch)] == ["fc (weights)"]


def test_outside_of_the_model_it_is_looked_at_too(tmp_path: Path) -> None:
    model: Any = nn.Linear(2, 2)
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        loss = model(torch.ones(1, 2)).sum()
        ac.check_finite(loss / 0, "the loss")
        watch.step()
    assert [(found.site, found.near) for found in watch.findings] == [(Site.POINT, "the loss")]


def test_it_waits_for_no_device(tmp_path: Path) -> None:
    model: Any = nn.Linear(2, 2)
    with (
        ac.watch(model, out=tmp_path, quiet=True, look=ac.LookAt(frames=0)),
        Counting() as counting,
    ):
        ac.check_finite(model(torch.ones(1, 2)), "here")
    assert counting.reads == []


def test_of_two_models_that_are_watched_only_the_one_whose_point_it_is_is_told(
    tmp_path: Path,
) -> None:
    student, teacher = _with_a_point(), _with_a_point(spoilt=False)
    with (
        ac.watch(student, out=tmp_path / "student", on_finding="warn", quiet=True) as one,
        ac.watch(teacher, out=tmp_path / "teacher", on_finding="warn", quiet=True) as other,
    ):
        student(torch.ones(1, 2))
        teacher(torch.ones(1, 2))
        one.step()
        other.step()
    assert [found.place for found in one.findings] == ["(root) (point, after fc)"]
    assert other.findings == []


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_point_that_checkpointing_comes_by_again_is_told_once(
    reentrant: bool, tmp_path: Path
) -> None:
    model: Any = Glue(
        lambda self, x: checkpoint(self.inner, self.first(x), use_reentrant=reentrant),
        first=nn.Linear(2, 2),
        inner=_with_a_point(),
    )
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        model(torch.ones(1, 2)).sum().backward()
        watch.step()
    assert [found.place for found in origins(watch) if found.site is Site.POINT] == [
        "inner (point, after fc)"
    ]


def test_a_label_that_is_no_string_does_not_spoil_the_log(tmp_path: Path) -> None:
    model: Any = nn.Linear(2, 2)
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        ac.check_finite(torch.tensor(NAN), 3)  # type: ignore[arg-type]
        watch.step()
    assert read_log(tmp_path / "rank0.jsonl")
    assert watch.findings[0].near == "3"


def test_nothing_listens_after_the_watch(tmp_path: Path) -> None:
    with ac.watch(nn.Linear(2, 2), out=tmp_path, quiet=True) as watch:
        pass
    ac.check_finite(torch.tensor(NAN), "later")
    assert watch.findings == []
