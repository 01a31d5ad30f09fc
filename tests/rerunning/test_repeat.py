"""``accucompare repeat``: runs that agree with themselves, and runs that do not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import accucompare as ac
from accucompare.bundle.format import Role
from accucompare.compare.reruns import NotReplayedWhy, RepeatedRuns, Replays
from accucompare.errors import UsageError
from accucompare.rerunning import repeat_runs
from tests.compare.builder import item, write
from tests.conftest import ROOT, Run

CASES = """
import os
from pathlib import Path
import torch
from torch import nn
from accucompare import Case
CALLS = Path(__file__).with_name("calls")
class Flips(nn.Module):
    \"\"\"One bit is flipped in every 5th call, over all runs.\"\"\"
    def forward(self, x):
        calls = int(CALLS.read_text()) if CALLS.exists() else 0
        CALLS.write_text(str(calls + 1))
        if calls % 5 == 3:
            x = x.clone()
            x.view(torch.int32)[0, 0] ^= 1 << 12
        return x * 1
class Scatters(nn.Module):
    \"\"\"Adds up in an order that no seed fixes.\"\"\"
    def forward(self, x):
        order = sorted(range(len(x)), key=lambda each: os.urandom(8))
        total = torch.zeros_like(x[0])
        for each in order:
            total = total + x[each]
        return total
def data():
    return [torch.randn(40, 8), torch.randn(40, 8)]
def train(middle):
    model = nn.Sequential(nn.Linear(8, 8), middle, nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    return Case(model, data(), lambda output: output.square().sum(), optimizer)
def sound():
    return train(nn.Dropout(0.3))
def flips():
    return train(Flips())
def scatters():
    return train(Scatters())
def weights():
    model = nn.Linear(8, 2)
    model.weight.data[0, 0] = int.from_bytes(os.urandom(2), "little")
    return Case(model, data())
def inputs():
    return Case(nn.Linear(8, 2), torch.rand(4, 8) + os.urandom(2)[0])
"""


@pytest.fixture
def cases(tmp_path: Path) -> str:
    (tmp_path / "repeated.py").write_text(CASES)
    return str(tmp_path / "repeated.py")


def test_a_training_with_dropout_agrees_with_itself(cases: str) -> None:
    made = ac.check_repeat(f"{cases}:sound", times=3)
    assert (made.exit_code, made.passed, made.found.first) == (0, True, None)
    assert (made.found.runs, list(made.found.steps)) == (3, [0, 1])
    assert made.found.values > 20


def test_one_flipped_bit_is_named_with_its_odds_and_replayed(cases: str) -> None:
    made = ac.check_repeat(f"{cases}:flips", times=5)
    first = made.found.first
    assert first is not None
    assert made.exit_code == 1
    # the calls 3 and 8 of all: in the second step of run 1, in the first of run 4
    assert list(made.found.odd) == [1, 4]
    assert (first.name, first.type, first.role, first.step) == ("1", "Flips", Role.OUTPUT, 0)
    assert (first.values, list(first.odd)) == (2, [4])
    assert isinstance(made.replays, Replays)
    assert made.replays.found.first is not None
    assert (made.replays.found.first.name, made.replays.step) == ("1", 0)
    assert 2 <= made.replays.found.runs <= 5


def test_sums_without_order_are_named(cases: str) -> None:
    made = ac.check_repeat(f"{cases}:scatters", times=4)
    assert made.found.first is not None
    assert (made.found.first.name, made.found.first.step) == ("1", 0)
    assert made.found.first.values > 1


def test_weights_and_inputs_without_a_seed_are_told_apart(cases: str) -> None:
    of_weights = ac.check_repeat(f"{cases}:weights", times=2)
    assert of_weights.found.first is not None
    assert of_weights.found.first.step is None
    assert of_weights.replays is NotReplayedWhy.WEIGHTS
    of_inputs = ac.check_repeat(f"{cases}:inputs", times=4)
    assert of_inputs.found.first is not None
    assert (of_inputs.found.first.name, of_inputs.found.first.role) == ("", Role.INPUT)


def test_the_rank_that_is_odd_is_named(tmp_path: Path) -> None:
    runs = RepeatedRuns()
    for number in range(3):
        values = [[0.0, 1.0], [0.0, float(number == 1)]]
        items = [
            item("fc", np.array(values[rank], "f4") + step, rank=rank, step=step)
            for rank in range(2)
            for step in range(2)
        ]
        path = write(tmp_path / str(number), items, ranks=2)
        with ac.open_bundle(path) as bundle:
            runs.add(bundle)
    found = runs.found()
    assert found.first is not None
    assert (found.first.rank, found.first.step, list(found.odd)) == (1, 0, [1])
    assert (found.ranks, found.values, found.count) == (2, 4, 2)


def test_a_type_that_is_none_is_refused(cases: str) -> None:
    with pytest.raises(UsageError, match="dtype must be one of"):
        ac.check_repeat(f"{cases}:sound", dtype="float31")


def test_an_interrupt_names_no_bundle_since_none_is_kept() -> None:
    def run(folder: Path) -> Path:
        raise KeyboardInterrupt(f"what was recorded until then is in {folder}")

    with pytest.raises(KeyboardInterrupt, match=r"^nothing of the runs is kept$"):
        repeat_runs("case.py", run, times=3)


def test_one_run_is_refused(cases: str) -> None:
    with pytest.raises(UsageError, match="at least 2"):
        ac.check_repeat(f"{cases}:sound", times=1)


def test_the_command_tells_odds_and_cure(cli: Run, cases: str) -> None:
    assert cli("repeat", f"{cases}:sound", "--times", "2").returncode == 0
    done = cli("repeat", f"{cases}:flips", "--times", "5", "--json", "repeat.json")
    assert done.returncode == 1
    assert "does not agree with itself: 2 of 5 runs, from 1 (Flips) output, step 0" in done.stdout
    assert "disagrees in replay" in done.stdout
    written = json.loads((Path(cases).parent / "repeat.json").read_text())
    assert written["found"]["first"]["name"] == "1"
    assert cli("repeat", f"{cases}:nothing").returncode == 2


SCRIPT = """
import os, sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 2)
x = torch.ones(3, 4)
if "odd" in sys.argv:
    x[0, 0] = int.from_bytes(os.urandom(2), "little")
model(x).sum().backward()
"""


@pytest.mark.parametrize(("odd", "code"), [((), 0), (("odd",), 1)])
def test_a_script_is_run_as_it_is(
    odd: tuple[str, ...], code: int, cli: Run, python: list[str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = ("repeat", "--times", "2", "--", *python, "train.py", *odd)
    done = cli(*command, PYTHONPATH=str(ROOT))
    assert done.returncode == code, done.stderr
    assert ("not replayed" in done.stdout) == bool(code)
