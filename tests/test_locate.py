"""``accucompare locate``: rounding, or a bug, and where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from accucompare.bundle.reader import open_bundle
from tests.conftest import ROOT, Run

NET = """
import torch
from torch import nn
from accucompare import Case

class Block(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.q, self.k, self.norm, self.scale = nn.Linear(32, 32), nn.Linear(32, 32), nn.LayerNorm(32), scale
        self.out = nn.Linear(32, 32)
    def forward(self, x):
        h = self.norm(x)
        weights = (self.q(h) @ self.k(h).mT * self.scale).softmax(-1)
        return x + self.out(weights @ h)

class Net(nn.Module):
    def __init__(self, scales):
        super().__init__()
        self.blocks = nn.ModuleList(Block(scale) for scale in scales)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

def case(scales=(32 ** -0.5,) * 3, eps=1e-5):
    model = Net(scales).eval()
    model.blocks[2].norm.eps = eps
    return Case(model, torch.randn(2, 16, 32))

def unscaled():
    return case((32 ** -0.5, 1.0, 32 ** -0.5))

def two_faults():
    return case((1.0, 32 ** -0.5, 32 ** -0.5), eps=0.3)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


def located(cli: Run, folder: Path, *options: str | Path) -> dict[str, Any]:
    """What ``locate`` finds on the CPU, as JSON, with the exit code and what was printed."""
    done = cli("locate", *options, "--device", "cpu", "--json", "found.json", "--overwrite", cwd=folder, OMP_NUM_THREADS="1")
    assert "Traceback" not in done.stderr
    found = json.loads((folder / "found.json").read_text()) if done.returncode != 2 else {}
    return {**found, "code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


def golden(cli: Run, folder: Path, *options: str, out: str = "golden") -> None:
    done = cli("capture", "net.py", "--out", out, *options, cwd=folder, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("dtype", "conclusion"), [("float32", "identical"), ("bfloat16", "rounding")])
def test_without_a_bug_it_is_rounding(cli: Run, folder: Path, dtype: str, conclusion: str) -> None:
    found = located(cli, folder, "net.py", "--dtype", dtype)
    assert (found["code"], found["conclusion"], found["culprits"]) == (0, conclusion, [])
    assert (folder / "reports" / "locate.xlsx").is_file()
    with open_bundle(folder / "locate" / "golden") as bundle:
        assert bundle.manifest.capture["round_weights"] == (dtype if dtype == "bfloat16" else None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_bug_in_glue_is_named_with_its_place(cli: Run, folder: Path, dtype: str) -> None:
    golden(cli, folder, *(["--round-weights", dtype] if dtype == "bfloat16" else []))
    found = located(cli, folder, "net.py:unscaled", "--golden", "golden", "--dtype", dtype)
    assert found["code"] == 1
    assert found["conclusion"].startswith("bug: blocks.1 (glue, before out), excess ")
    assert "baseline: net.py on the CPU" in found["stderr"]


def test_golden_is_made_from_the_case_named_for_it(cli: Run, folder: Path) -> None:
    found = located(cli, folder, "net.py:unscaled", "--golden-case", "net.py:case")
    assert found["code"] == 1
    assert found["conclusion"].startswith("bug: blocks.1 (glue, before out), excess ")
    assert "golden: net.py:case on the CPU" in found["stderr"]
    with open_bundle(folder / "locate" / "golden") as bundle:
        assert bundle.manifest.environment["case"] == "net.py:case"


def test_two_bugs_are_both_named(cli: Run, folder: Path) -> None:
    golden(cli, folder)
    found = located(cli, folder, "net.py:two_faults", "--golden", "golden")
    assert {culprit["place"] for culprit in found["culprits"]} == {"blocks.0 (glue, before out)", "blocks.2.norm"}


def test_a_bug_is_no_rounding_though_goldens_case_is_gone(cli: Run, folder: Path) -> None:
    """A baseline of the candidate's own code would have the same bug."""
    golden(cli, folder)
    (folder / "other.py").write_text(NET)
    (folder / "net.py").unlink()
    found = located(cli, folder, "other.py:unscaled", "--golden", "golden")
    assert "no baseline: the case that golden was captured from (net.py) is not here" in found["stderr"]
    assert found["code"] == 1
    assert found["culprits"][0]["place"] == "blocks.1 (glue, before out)"


def test_goldens_case_can_be_named(cli: Run, folder: Path) -> None:
    golden(cli, folder)
    (folder / "moved.py").write_text(NET)
    (folder / "net.py").unlink()
    found = located(cli, folder, "moved.py:unscaled", "--golden", "golden", "--golden-case", "moved.py")
    assert "baseline: moved.py on the CPU" in found["stderr"]
    assert found["conclusion"].startswith("bug: blocks.1 (glue, before out)")


def test_a_case_of_a_module_is_found(cli: Run, folder: Path) -> None:
    done = cli("capture", "net:case", "--out", "golden", cwd=folder)
    assert done.returncode == 0, done.stderr
    found = located(cli, folder, "net:unscaled", "--golden", "golden")
    assert "baseline: net:case on the CPU" in found["stderr"]
    assert found["code"] == 1


def test_code_that_was_edited_since_golden_is_no_rounding(cli: Run, folder: Path) -> None:
    """The baseline then has the bug, too."""
    golden(cli, folder)
    (folder / "net.py").write_text(NET.replace("* self.scale", ""))
    found = located(cli, folder, "net.py", "--golden", "golden")
    assert found["code"] == 2
    assert "TROUBLE  locate/candidate against golden: the baseline's code is not golden's" in found["stdout"]
    assert "net has been edited" in found["stdout"].replace("\n", " ")


def test_layers_can_be_left_out(cli: Run, folder: Path) -> None:
    golden(cli, folder)
    found = located(cli, folder, "net.py:two_faults", "--golden", "golden", "--skip", "blocks.0*")
    assert [culprit["place"] for culprit in found["culprits"]] == ["blocks.2.norm"]


def test_a_fed_bundle_is_no_golden(cli: Run, folder: Path) -> None:
    golden(cli, folder)
    golden(cli, folder, "--feed", "golden", out="fed")
    found = located(cli, folder, "net.py", "--golden", "fed")
    assert (found["code"], found["stdout"]) == (2, "")
    assert found["stderr"] == "accucompare: fed: is itself fed, so it is no golden; give the bundle that it was fed with\n"


@pytest.mark.parametrize("out", ["golden", "golden/inside"])
def test_nothing_is_written_into_golden(cli: Run, folder: Path, out: str) -> None:
    golden(cli, folder)
    before = sorted(folder.joinpath("golden").rglob("*"))
    found = located(cli, folder, "net.py", "--golden", "golden", "--out", out)
    assert found["code"] == 2
    assert "lies in golden golden; choose another directory" in found["stderr"]
    assert sorted(folder.joinpath("golden").rglob("*")) == before


def test_the_demos_fault_is_found_in_bfloat16(cli: Run, folder: Path) -> None:
    case = f"{ROOT}/fixtures/minilm.py"
    done = cli("capture", case, "--round-weights", "bfloat16", "--out", "golden", cwd=folder, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    found = located(cli, folder, f"{case}:faulty", "--golden", "golden", "--dtype", "bfloat16")
    (culprit,) = found["culprits"]
    assert culprit["place"] == "encoder.layer.2.attention.output.LayerNorm"
