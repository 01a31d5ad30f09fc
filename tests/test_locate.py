"""``accucompare locate``: rounding, or a bug, and where."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import accucompare as ac
from accucompare.bundle.reading.reader import open_bundle
from tests.compare.builder import edit_manifest
from tests.conftest import ROOT, Run

NET = """
import torch
from torch import nn
from accucompare import Case

class Block(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.q, self.k, self.norm, self.scale = (
            nn.Linear(32, 32),
            nn.Linear(32, 32),
            nn.LayerNorm(32),
            scale,
        )
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

def case(scales=(32**-0.5,) * 3, eps=1e-5):
    model = Net(scales).eval()
    model.blocks[2].norm.eps = eps
    return Case(model, torch.randn(2, 16, 32))

def unscaled():
    return case((32**-0.5, 1.0, 32**-0.5))

def two_faults():
    return case((1.0, 32**-0.5, 32**-0.5), eps=0.3)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


def located(
    cli: Run, folder: Path, *options: str | Path, named: bool = True, report: bool = False
) -> dict[str, Any]:
    """What ``locate`` finds on the CPU, as JSON, with exit code and output; ``named``: with
    golden's case on the command line; ``report``: with the workbook, which takes longer than many
    a diff.
    """
    if not report:
        options = (*options, "--report", "none")
    if named and "--golden" in options and "--golden-case" not in options:
        with open_bundle(folder / options[options.index("--golden") + 1]) as bundle:
            options = (*options, "--golden-case", bundle.manifest.case)
    done = cli(
        "locate",
        *options,
        "--device",
        "cpu",
        "--json",
        "found.json",
        "--overwrite",
        cwd=folder,
        OMP_NUM_THREADS="1",
    )
    assert "Traceback" not in done.stderr
    found = json.loads((folder / "found.json").read_text()) if done.returncode != 2 else {}
    return {**found, "code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


def golden(cli: Run, folder: Path, *options: str, out: str = "golden") -> None:
    done = cli("capture", "net.py", "--out", out, *options, cwd=folder, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("dtype", "conclusion"), [("float32", "identical"), ("bfloat16", "rounding")]
)
def test_without_a_bug_it_is_rounding(cli: Run, folder: Path, dtype: str, conclusion: str) -> None:
    found = located(cli, folder, "net.py", "--dtype", dtype, report=dtype == "bfloat16")
    assert (found["code"], found["conclusion"].partition(";")[0], found["culprits"]) == (
        0,
        conclusion,
        [],
    )
    assert (folder / "reports" / "locate.xlsx").is_file() is (dtype == "bfloat16")
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
    assert {culprit["place"] for culprit in found["culprits"]} == {
        "blocks.0 (glue, before out)",
        "blocks.2.norm",
    }


def test_a_case_that_only_golden_names_is_not_run(cli: Run, folder: Path) -> None:
    """Nor is the candidate's own taken for it: a baseline of that would have the same bug."""
    golden(cli, folder)
    found = located(cli, folder, "net.py:unscaled", "--golden", "golden", named=False)
    assert (
        "no baseline: golden was captured from net.py, and what a bundle names is not run"
        in found["stderr"]
    )
    assert "name that case with --golden-case" in found["stderr"]
    assert found["code"] == 1
    assert found["culprits"][0]["place"] == "blocks.1 (glue, before out)"


@pytest.mark.parametrize("case", ["golden/evil.py:case", "--help", "../net.py", "os:system"])
def test_nothing_that_golden_says_is_run_or_taken_for_an_option(
    cli: Run, folder: Path, case: str
) -> None:
    golden(cli, folder)
    for place in (folder / "golden" / "evil.py", folder / "evil.py"):
        place.write_text("open('RUN', 'w')\nfrom net import case\n")
    edit_manifest(folder / "golden", lambda manifest: manifest["environment"].update(case=case))
    for python in ((), ("--golden-python", sys.executable)):
        found = located(
            cli, folder, "net.py", "--golden", "golden", "--dtype", "bfloat16", *python, named=False
        )
        assert "no baseline: golden was captured from" in found["stderr"]
        assert not (folder / "RUN").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["golden/evil.py"], "CASE golden/evil.py: lies in golden golden"),
        (
            ["net.py", "--golden-case", "golden/evil.py:case"],
            "lies in golden golden, and a bundle holds no code",
        ),
    ],
)
def test_a_case_inside_golden_is_refused(
    cli: Run, folder: Path, arguments: list[str], said: str
) -> None:
    golden(cli, folder)
    (folder / "golden" / "evil.py").write_text("open('RUN', 'w')\nfrom net import case\n")
    found = located(cli, folder, *arguments, "--golden", "golden", named=False)
    assert (found["code"], (folder / "RUN").exists()) == (2, False)
    assert said in found["stderr"]


def test_a_golden_case_that_is_missing_is_refused_although_golden_brings_its_baseline(
    cli: Run, folder: Path
) -> None:
    golden(cli, folder, "--with-baseline", "float32")
    found = located(cli, folder, "net.py", "--golden", "golden", "--golden-case", "missing.py:case")
    assert (
        found["code"],
        "golden_case (--golden-case) missing.py:case: there is no file missing.py"
        in found["stderr"],
    ) == (2, True)


def test_goldens_case_can_be_named(cli: Run, folder: Path) -> None:
    golden(cli, folder)
    (folder / "moved.py").write_text(NET)
    (folder / "net.py").unlink()
    found = located(
        cli, folder, "moved.py:unscaled", "--golden", "golden", "--golden-case", "moved.py"
    )
    assert "baseline: moved.py on the CPU" in found["stderr"]
    assert found["conclusion"].startswith("bug: blocks.1 (glue, before out)")


def test_a_case_of_a_module_is_found(cli: Run, folder: Path) -> None:
    (folder / "net.py").rename(folder / "located_net.py")  # a name that no other test has imported
    done = cli("capture", "located_net:case", "--out", "golden", cwd=folder)
    assert done.returncode == 0, done.stderr
    found = located(cli, folder, "located_net:unscaled", "--golden", "golden")
    assert "baseline: located_net:case on the CPU" in found["stderr"]
    assert found["code"] == 1


def test_code_that_was_edited_since_golden_is_no_rounding(cli: Run, folder: Path) -> None:
    """The baseline then has the bug, too, so that fixed limits judge."""
    golden(cli, folder)
    (folder / "net.py").write_text(NET.replace("* self.scale", ""))
    found = located(cli, folder, "net.py", "--golden", "golden")
    assert (found["code"], found["answer"], found["baseline"]) == (1, "bug", None)
    assert "does not run golden's code (net differs from golden's)" in found["refused_baseline"]
    assert found["culprits"][0]["place"].endswith("(glue, before out)")


def test_goldens_own_baseline_judges_where_the_code_is_another(cli: Run, folder: Path) -> None:
    """The small fault is far below any fixed limit in bfloat16."""
    golden(
        cli,
        folder,
        "--save-state",
        "--round-weights",
        "bfloat16",
        "--with-baseline",
        "bfloat16,float32",
    )
    kept = sum(file.stat().st_size for file in (folder / "golden" / "baselines").rglob("*"))
    (folder / "net.py").write_text(NET.replace("32**-0.5", "32**-0.5 * 1.1"))
    found = located(cli, folder, "net.py", "--golden", "golden", "--dtype", "bfloat16")
    assert "baseline: golden's own, golden/baselines/bfloat16" in found["stderr"]
    assert (found["code"], found["answer"], found["refused_baseline"]) == (1, "bug", None)
    assert {culprit["place"] for culprit in found["culprits"]} == {
        f"blocks.{number} (glue, before out)" for number in range(3)
    }
    (folder / "net.py").write_text(NET)
    found = located(cli, folder, "net.py", "--golden", "golden", "--dtype", "bfloat16")
    assert (found["code"], found["conclusion"]) == (0, "rounding")
    assert kept < 150_000  # of which the names of libraries that happen to be loaded here are some


def test_a_baseline_is_made_by_the_python_that_has_goldens_versions(
    cli: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two releases of a library, the second with a fault: made by the second, the baseline would
    have it, too.
    """
    for version, scale in (("1", "1.0"), ("2", "1.01")):
        (folder / version).mkdir()
        (folder / version / "lib.py").write_text(
            f"import torch\n__version__ = '{version}'\n\nclass Scale(torch.nn.Module):\n    def"
            f" forward(self, x):\n        return x * {scale}\n"
        )
    (folder / "model.py").write_text(
        "import lib, torch\nfrom accucompare import Case\n\n\ndef case():\n    return"
        " Case(torch.nn.Sequential(torch.nn.Linear(64, 64), lib.Scale()).eval(), torch.randn(8,"
        " 64))\n"
    )
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH={folder / "1"}:$PYTHONPATH exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    monkeypatch.syspath_prepend(folder / "1")
    done = cli("capture", "model.py", "--out", "golden", "--save-state", cwd=folder)
    assert done.returncode == 0, done.stderr
    monkeypatch.delitem(sys.modules, "lib")
    monkeypatch.syspath_prepend(folder / "2")
    options = ["model.py", "--golden", "golden", "--dtype", "bfloat16"]
    alone = located(cli, folder, *options)
    assert "no baseline: lib is 1 in golden, 2 here" in alone["stderr"]
    assert alone["code"] == 2  # 1 % is below what fixed limits see in bfloat16
    # meant for what the user types, not for the capture that this starts
    monkeypatch.setenv("ACCUCOMPARE_CAPTURE_ONLY", "nothing")
    found = located(cli, folder, *options, "--golden-python", python)
    assert (found["code"], found["answer"], found["culprits"][0]["place"]) == (1, "bug", "1"), (
        found["stdout"]
    )


def test_a_golden_python_that_cannot_capture_is_told_at_once(cli: Run, folder: Path) -> None:
    done = cli("locate", "net.py", "--device", "cpu", "--golden-python", "/bin/false", cwd=folder)
    assert (done.returncode, done.stderr) == (
        2,
        (
            "accucompare: golden_python (--golden-python) /bin/false: cannot capture (it does"
            " not run); install"
            " accucompare[torch] there\n"
        ),
    )


def test_where_operators_cannot_be_had_the_answer_stands_and_what_to_type_is_told(
    cli: Run, folder: Path
) -> None:
    """Golden's own code is gone; the candidate's gives other values in its place, and cannot stand
    for golden.
    """
    golden(cli, folder)
    (folder / "other.py").write_text(NET)
    (folder / "net.py").unlink()
    found = located(
        cli, folder, "other.py:unscaled", "--golden", "golden", "--ops", "--quiet", named=False
    )
    assert (found["code"], found["conclusion"].partition(",")[0]) == (1, "bug: blocks.1 (glue")
    assert (
        "blocks.1 gives other values than it holds; capture it with --save-state" in found["stderr"]
    )
    commands = [
        line.partition("#")[0].split()
        for line in found["stderr"].splitlines()
        if line.startswith("  accucompare ")
    ]
    (folder / "net.py").write_text(NET)
    codes = [cli(*command[1:], cwd=folder, OMP_NUM_THREADS="1") for command in commands]
    assert [done.returncode for done in codes] == [0, 0, 1]
    assert "blocks.1: aten.mul" in codes[-1].stdout


def test_layers_can_be_left_out(cli: Run, folder: Path) -> None:
    golden(cli, folder)
    found = located(cli, folder, "net.py:two_faults", "--golden", "golden", "--skip", "blocks.0*")
    assert [culprit["place"] for culprit in found["culprits"]] == ["blocks.2.norm"]


def test_a_fed_bundle_is_no_golden(cli: Run, folder: Path) -> None:
    golden(cli, folder)
    golden(cli, folder, "--feed", "golden", out="fed")
    found = located(cli, folder, "net.py", "--golden", "fed")
    assert (found["code"], found["stdout"]) == (2, "")
    assert (
        found["stderr"]
        == "accucompare: fed: is itself fed, so it is no golden; give the bundle that it was fed"
        " with\n"
    )


@pytest.mark.parametrize("out", ["golden", "golden/inside"])
def test_nothing_is_written_into_golden(cli: Run, folder: Path, out: str) -> None:
    golden(cli, folder)
    before = sorted(folder.joinpath("golden").rglob("*"))
    found = located(cli, folder, "net.py", "--golden", "golden", "--out", out)
    assert found["code"] == 2
    assert "lies in golden golden; choose another place" in found["stderr"]
    assert sorted(folder.joinpath("golden").rglob("*")) == before


def test_the_demos_fault_is_found_in_bfloat16(cli: Run, folder: Path) -> None:
    case = f"{ROOT}/fixtures/minilm.py"
    done = cli(
        "capture",
        case,
        "--round-weights",
        "bfloat16",
        "--out",
        "golden",
        cwd=folder,
        OMP_NUM_THREADS="1",
    )
    assert done.returncode == 0, done.stderr
    found = located(cli, folder, f"{case}:faulty", "--golden", "golden", "--dtype", "bfloat16")
    (culprit,) = found["culprits"]
    assert culprit["place"] == "encoder.layer.2.attention.output.LayerNorm"


# layers that are called otherwise

PORTED = NET.replace("self.blocks", "self.layers").replace("model.blocks", "model.layers")


def ported(cli: Run, folder: Path) -> None:
    """Golden with its weights, and ``ported.py``, where ``blocks`` are called ``layers``."""
    golden(cli, folder, "--save-state")
    (folder / "ported.py").write_text(PORTED)


@pytest.mark.parametrize("given", ["blocks.*=layers.*", "auto"])
def test_a_bug_in_a_layer_that_is_called_otherwise_is_named(
    cli: Run, folder: Path, given: str
) -> None:
    ported(cli, folder)
    found = located(
        cli, folder, "ported.py:unscaled", "--golden", "golden", "--map", given, "--ops"
    )
    assert (found["code"], found["maps"]) == (1, ["blocks.*=layers.*"])
    assert found["conclusion"].startswith("bug: blocks.1 (glue, before out), excess ")
    assert "baseline: net.py on the CPU" in found["stderr"]
    assert "operators of blocks.1: golden on the CPU" in found["stderr"]
    assert (
        "locate/ops/candidate against locate/ops/golden: bug: blocks.1: aten.mul.Tensor"
        f" ({folder.name}/ported.py:" in found["stdout"]
    )


def test_a_ported_model_without_a_bug_is_rounding(cli: Run, folder: Path) -> None:
    ported(cli, folder)
    found = located(
        cli, folder, "ported.py", "--golden", "golden", "--map", "auto", "--dtype", "bfloat16"
    )
    assert (found["code"], found["conclusion"]) == (0, "rounding")


def test_the_maps_to_give_are_in_the_message(cli: Run, folder: Path) -> None:
    ported(cli, folder)
    found = located(cli, folder, "ported.py", "--golden", "golden")
    assert (found["code"], found["stdout"]) == (2, "")
    assert "golden has a parameter that the model lacks: 'blocks.0.k.bias'" in found["stderr"]
    assert "; try --map 'blocks.*=layers.*', or --map auto\n" in found["stderr"]


def test_a_map_without_golden_is_refused(cli: Run, folder: Path) -> None:
    found = located(cli, folder, "net.py", "--map", "blocks.*=layers.*")
    assert found["code"] == 2
    assert (
        "map (--map): needs golden (--golden BUNDLE); without it golden is made from the same"
        " case and has the"
        " same names" in found["stderr"]
    )


def test_a_fault_of_one_layers_backward_is_named_in_one_command(cli: Run, folder: Path) -> None:
    case = ROOT / "fixtures/gpt2.py"
    options = ("--out", "golden", "--save-state", "--round-weights", "bfloat16")
    captured = cli("capture", f"{case}:training", *options, cwd=folder)
    assert captured.returncode == 0, captured.stderr
    found = located(
        cli, folder, f"{case}:faulty_training", "--golden", "golden", "--dtype", "bfloat16"
    )
    assert found["code"] == 1
    assert found["conclusion"].startswith(
        "bug: the backward of transformer.h.1.mlp.c_fc, gradient of input 0"
    )
    sound = located(cli, folder, f"{case}:training", "--golden", "golden", "--dtype", "bfloat16")
    assert (sound["code"], sound["conclusion"]) == (0, "rounding")


LATER = """
import torch
from torch import nn
from accucompare import Case

class Doubtful(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * 1.02

def sound():
    model = nn.Sequential(
        nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4)
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 10)
    return Case(
        model,
        [torch.randn(3, 8) for _ in range(3)],
        lambda y: y.square().mean(),
        optimizer,
        scheduler,
    )

def faulty():
    case = sound()
    layer = case.model[3]
    forward = layer.forward
    layer.forward = lambda x: forward(Doubtful.apply(x))
    return case

def decayed():
    case = sound()
    case.optimizer.param_groups[0]["weight_decay"] = 0.5
    return case
"""


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ``later.py`` and a golden of its step 7."""
    from accucompare.devices import DeviceName
    from accucompare.recorder.capture_options import CaptureOptions
    from accucompare.recorder.session.case_capture import capture_case

    folder = tmp_path_factory.mktemp("later")
    (folder / "later.py").write_text(LATER)
    options = CaptureOptions(backward=True, steps="7-7", save_state=True)
    capture_case(f"{folder}/later.py:sound", folder / "golden", DeviceName("cpu"), options)
    return folder


@pytest.mark.parametrize(
    ("case", "conclusion"),
    [
        ("sound", "identical"),
        ("faulty", "bug: the backward of 3, gradient of input 0"),
        ("decayed", "bug: what the update is given of AdamW.0.weight_decay"),
    ],
)
def test_a_fault_is_named_at_a_later_step_from_goldens_state(
    case: str, conclusion: str, later: Path, cli: Run, folder: Path
) -> None:
    """Both sides begin with the state before that step: no step is run again to get there."""
    found = located(cli, folder, f"{later}/later.py:{case}", "--golden", later / "golden")
    assert found["conclusion"].startswith(conclusion)
    for name in ("candidate", "baseline"):
        with open_bundle(folder / "locate" / name) as bundle:
            assert [entry.step for _, entry in bundle.steps()] == [7]
            started = bundle.manifest.training.started
        assert started is not None
        assert (started.step, started.missing) == (7, ())


def test_a_golden_of_training_without_gradients_is_told_and_its_forward_judged(
    cli: Run, folder: Path
) -> None:
    case = f"{ROOT / 'fixtures/gpt2.py'}:training"
    captured = cli(
        "capture",
        case,
        "--out",
        "golden",
        "--save-state",
        "--round-weights",
        "bfloat16",
        "--no-backward",
        cwd=folder,
    )
    assert captured.returncode == 0, captured.stderr
    found = located(cli, folder, case, "--golden", "golden", "--dtype", "bfloat16")
    assert (
        "golden: was captured without gradients, so only the forward is judged" in found["stderr"]
    )
    assert found["conclusion"].startswith("rounding; forward only")


@pytest.mark.parametrize("option", ["--golden-case", "--golden-python"])
def test_no_report_takes_the_place_of_what_golden_is_made_with(
    cli: Run, folder: Path, option: str
) -> None:
    kept = folder / "kept.xlsx"
    kept.write_text("")
    done = cli("locate", "net.py", "--device", "cpu", option, kept, "--report", kept, cwd=folder)
    assert done.returncode == 2
    assert option in done.stderr
    assert "--report" in done.stderr
    assert not kept.read_text()


def test_python_is_given_what_the_command_finds(
    cli: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden(cli, folder)
    found = located(cli, folder, "net.py:unscaled", "--golden", "golden", "--golden-case", "net.py")
    monkeypatch.chdir(folder)
    options = ac.LocateOptions(golden_case="net.py")
    comparison = ac.locate(
        "net.py:unscaled", "cpu", golden="golden", out="in_python", options=options
    )
    assert (comparison.conclusion, comparison.exit_code) == (found["conclusion"], found["code"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dtype": "float64"}, "dtype must be one of"),
        ({"device": "tpu"}, r"device tpu \(--device\): must be"),
    ],
)
def test_python_is_told_what_makes_no_sense(folder: Path, given: dict[str, str], said: str) -> None:
    with pytest.raises(ac.AccucompareError, match=said):
        ac.locate(folder / "net.py", **{"device": "cpu", **given}, out=folder / "out")


@pytest.mark.parametrize(
    ("taken", "more"), [("candidate", []), ("baseline", []), ("ops/candidate", ["--ops"])]
)
def test_nothing_is_captured_where_a_later_bundle_would_find_its_place_taken(
    cli: Run, tmp_path: Path, taken: str, more: list[str]
) -> None:
    (tmp_path / "case.py").write_text(NET)
    (tmp_path / "locate" / taken).mkdir(parents=True)
    (tmp_path / "locate" / taken / "mine.txt").write_text("mine")
    done = cli("locate", "case.py", "--device", "cpu", "--dtype", "bfloat16", *more)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"locate/{taken}: is not empty and holds no bundle" in done.stderr
    assert not (tmp_path / "locate" / "golden").exists()
    assert not (tmp_path / "reports").exists()
