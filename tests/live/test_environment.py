"""The manifest says how a bundle was made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.bundle.format.manifest import Manifest
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session import Within, recording
from tests.recorded import Opened, Record


def test_the_environment_is_complete(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["accucompare", "capture", "my case.py"])
    model, options = nn.Linear(2, 2), CaptureOptions(seed=3)
    with recording(model, tmp_path / "out", options, within=Within("my case.py")):
        model(torch.ones(2))
    environment = opened(tmp_path / "out").manifest.environment
    assert environment["command"] == "accucompare capture 'my case.py'"
    assert environment["case"] == "my case.py"
    assert environment["device"]["type"] == "cpu"
    assert environment["device"]["name"]
    assert environment["versions"]["torch"] == torch.__version__
    assert {"python", "numpy", "accucompare"} <= environment["versions"].keys()
    assert environment["threads"] == torch.get_num_threads()
    assert environment["created"].endswith("+00:00")
    assert environment["random"] == "drawn on the CPU"


def test_flags_are_recorded_as_they_were(record: Record) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.use_deterministic_algorithms(True)
        torch.set_float32_matmul_precision("medium")
        flags = record(nn.ReLU(), torch.ones(2)).manifest.environment["flags"]
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision(before)
    assert flags["deterministic_algorithms"] is True
    assert flags["float32_matmul_precision"] == "medium"
    assert flags["mkldnn.enabled"] is True
    assert flags.get("mkldnn.matmul.fp32_precision", "bf16") == "bf16"  # since torch 2.9
    assert (
        record(nn.ReLU(), torch.ones(2)).manifest.environment["flags"]["deterministic_algorithms"]
        is False
    )


def test_the_git_commit_and_whether_it_was_modified(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert record(nn.ReLU(), torch.ones(2)).manifest.environment["git"] is None
    (tmp_path / "model.py").write_text("1")
    author = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "model.py"], [*author, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *command], check=True, cwd=tmp_path)
    git = record(nn.ReLU(), torch.ones(2)).manifest.environment["git"]
    assert len(git["commit"]) == 40
    assert git["modified"] is False
    (tmp_path / "model.py").write_text("2")
    assert record(nn.ReLU(), torch.ones(2)).manifest.environment["git"]["modified"] is True


def test_the_model_is_described(record: Record) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.1)).train()
    model[1].eval()
    described = record(model, torch.ones(3, 2)).manifest.model
    assert described["class"] == "torch.nn.modules.container.Sequential"
    assert described["training"] is True
    assert described["other_mode"] == ["1"]
    assert described["active_dropout"] == 1
    assert described["modules"] == {
        "": "Sequential",
        "0": "Linear",
        "1": "BatchNorm1d",
        "2": "Dropout",
    }
    assert described["dtypes"] == ["float32"]
    assert described["parameters"]["0.weight"]["shape"] == [2, 2]
    assert set(described["parameters"]["0.weight"]["digests"]) == {"float32", "float16", "bfloat16"}
    assert list(described["buffers"]) == [
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    ]


def test_dropout_in_eval_mode_or_with_no_probability_is_not_active(record: Record) -> None:
    assert (
        record(nn.Sequential(nn.Dropout(0.1)).eval(), torch.ones(1)).manifest.model[
            "active_dropout"
        ]
        == 0
    )
    assert record(nn.Dropout(0.0), torch.ones(1)).manifest.model["active_dropout"] == 0


def digests(manifest: Manifest) -> dict[str, str]:
    return {
        name: entry["digests"]["float32"] for name, entry in manifest.model["parameters"].items()
    }


def test_a_changed_weight_changes_its_digest_and_no_other(record: Record) -> None:
    model = nn.Linear(3, 3)
    before = digests(record(model, torch.ones(3)).manifest)
    with torch.no_grad():
        model.weight[1, 1] += 1e-6
    after = digests(record(model, torch.ones(3)).manifest)
    assert before["weight"] != after["weight"]
    assert before["bias"] == after["bias"]


def test_inputs_are_fingerprinted_by_step_and_place(tmp_path: Path) -> None:
    model = nn.Bilinear(2, 2, 1)
    with ac.capture(model, tmp_path / "out") as session:
        for _ in range(2):
            model(torch.ones(1, 2), input2=torch.zeros(1, 2))
            session.step()
    with ac.open_bundle(tmp_path / "out") as bundle:
        inputs = bundle.manifest.inputs
        assert {step: sorted(places) for step, places in inputs.items()} == {
            "0": ["0", "input2"],
            "1": ["0", "input2"],
        }
        assert inputs["0"] == inputs["1"]
        assert inputs["0"]["0"]["digests"] != inputs["0"]["input2"]["digests"]
