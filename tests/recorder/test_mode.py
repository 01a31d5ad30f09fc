"""Captures that keep digests and statistics instead of tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

import accucompare as ac
from accucompare.bundle.writing.memory import HostMemory
from accucompare.errors import RecordError
from tests.conftest import ROOT, Run
from tests.recorded import Glue, Record


def test_records_are_those_of_a_capture_of_tensors_without_the_members(record: Record) -> None:
    model = Glue(
        lambda self, x: (
            self.fc(x),
            self.fc(x.clone()),
            x.t(),
            3,
            "word",
            torch.eye(2).to_sparse(),
        ),
        fc=nn.Linear(3, 2),
    )
    x = torch.randn(4, 3)
    kept, left = (record(model, x, options={"mode": mode}) for mode in ("tensors", "stats"))
    assert list(left.records()) == [replace(entry, member=None) for entry in kept.records()]
    assert left.manifest.inputs == kept.manifest.inputs
    assert left.complete


def test_no_tensors_are_written(record: Record) -> None:
    bundle = record(nn.Linear(3, 2), torch.randn(4, 3), options={"mode": "stats"})
    assert np.load(bundle.path / "rank0/step0.npz").files == []
    with pytest.raises(RecordError, match=r"has no data"):
        bundle.load("")


@pytest.mark.parametrize("mode", ["tensors", "stats"])
def test_the_manifest_names_the_mode(mode: str, record: Record) -> None:
    assert record(nn.ReLU(), torch.ones(1), options={"mode": mode}).manifest.capture["mode"] == mode


def test_tensors_are_kept_unless_asked_otherwise(record: Record) -> None:
    assert record(nn.ReLU(), torch.ones(1)).manifest.capture["mode"] == "tensors"


def test_a_saved_state_keeps_its_tensors_and_the_mode_is_not_taken_over(record: Record) -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    source = record(model, x, options={"mode": "stats", "save_state": True})
    bundle = record(nn.Linear(3, 2), x, options={"like": source.path})
    assert bundle.manifest.capture["mode"] == "tensors"
    np.testing.assert_array_equal(bundle.load(""), model(x).detach().numpy())


def test_the_command_line_captures_and_shows_statistics(cli: Run, tmp_path: Path) -> None:
    done = cli("capture", f"{ROOT}/fixtures/cnn.py", "--out", "out", "--mode", "stats")
    assert (done.returncode, done.stderr) == (0, "")
    with ac.open_bundle(tmp_path / "out") as bundle:
        assert {entry.member for entry in bundle.records()} == {None}
        name = next(entry.name for entry in bundle.records() if entry.name)
    listed = cli("show", "out")
    assert listed.returncode == 0
    assert len(listed.stdout.splitlines()) > 10
    # what stands in the place of statistics that are not there
    assert "strided" not in listed.stdout
    shown = cli("show", "out", name)
    assert shown.returncode == 0
    assert "its values were not recorded (--mode stats)" in shown.stdout


def test_nothing_is_copied_but_the_inputs_of_the_model(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    take = HostMemory.take

    def counted(self: HostMemory, nbytes: int, *more: Any) -> Any:
        taken.append(nbytes)
        return take(self, nbytes, *more)

    monkeypatch.setattr(HostMemory, "take", counted)
    bundle = record(
        nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)),
        torch.randn(6000, 3),
        options={"mode": "stats"},
    )
    assert taken == [6000 * 3 * 4]
    assert len(list(bundle.records())) == 6
