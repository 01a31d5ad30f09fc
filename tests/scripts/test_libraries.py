"""Scripts that let a library run the loop: each is run once plainly and once captured,
unedited."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import accucompare as ac
from tests.scripts.forked import LIBRARIES, UNEDITED, Ran, run, with_libraries


@dataclass(frozen=True)
class Script:
    """A script of ``unedited/``: what it needs, what is found in it, and how often the model is
    called in a step.
    """

    file: str
    needs: str
    model: str
    calls: int
    timed: bool = False  # whether it prints how long it took


DIFFUSED = Script("diffused.py", "diffusers", "UNet2DModel", 1)
SCRIPTS = [
    Script("trained_by_trainer.py", "accelerate", "GPT2LMHeadModel", 2, timed=True),
    Script("accelerated.py", "accelerate", "Sequential", 2),
    Script("lightning_fit.py", "pytorch_lightning", "Lit", 0),
    DIFFUSED,
    Script("fine_tuned.py", "trl", "GPT2LMHeadModel", 2, timed=True),
]


@dataclass(frozen=True)
class Runs:
    script: Script
    plain: Ran
    captured: Ran


@pytest.fixture(scope="module", params=SCRIPTS, ids=lambda script: script.file)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    script: Script = request.param
    if not LIBRARIES[script.needs]:
        pytest.skip(f"{script.needs} is not installed")
    folder = tmp_path_factory.mktemp("library")

    def ran(out: str) -> Ran:
        plan = {"out": str(folder / out), "steps": "0,2"} if out else None
        return run(
            folder, UNEDITED / script.file, str(folder / "output"), plan=plan, server=with_libraries
        )

    return Runs(script, ran(""), ran("golden"))


def test_it_prints_and_computes_what_it_does_without(runs: Runs) -> None:
    plain, captured = (
        (each.out.splitlines()[-1] if runs.script.timed else each.out)
        for each in (runs.plain, runs.captured)
    )
    assert captured == plain
    assert runs.captured.err == runs.plain.err
    assert (runs.captured.code, runs.captured.seen[0].error) == (0, None)


def test_the_trained_model_is_captured_and_no_other(runs: Runs) -> None:
    (seen,) = runs.captured.seen
    assert [model.name for model in seen.models if model.chosen] == [runs.script.model]
    assert not [
        model.name for model in seen.models if model.trained_by and not (model.chosen or model.part)
    ]
    assert seen.recorded == [0, 2]
    with ac.open_bundle(runs.captured.bundle) as bundle:
        assert bundle.complete
        of_model = {
            record.call
            for record in bundle.records()
            if record.name == "" and record.role.value == "output" and not record.step
        }
        assert len(of_model) == runs.script.calls
        assert any(record.role.value == "param_update" for record in bundle.records())


@pytest.mark.parametrize("runs", [DIFFUSED], indirect=True)
def test_two_captures_are_identical(runs: Runs, tmp_path: Path) -> None:
    """Of the script that draws most random numbers."""
    plan = {"out": str(tmp_path / "again"), "steps": "0,2"}
    script = UNEDITED / DIFFUSED.file
    again = run(tmp_path, script, str(tmp_path / "output"), plan=plan, server=with_libraries)
    comparison = ac.diff(runs.captured.bundle, again.bundle)
    assert comparison.answer.value == "identical"
    assert comparison.rows
