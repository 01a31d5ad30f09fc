"""What a reproducer's script answers, of a value that shows again or does not, and of everything
that may be wrong with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from accucompare.findings.log.events import Site, TensorRange
from accucompare.reproduce.reproducer import Reproducer
from tests.compare.builder import edit_manifest
from tests.reproduce.reproduced import INF, NAN, Around, PassesOn, poisoned, run_here, save, take


@pytest.fixture
def finite(tmp_path: Path) -> Path:
    """A script of a call that gives finite values here."""
    return save(take(nn.Linear(2, 1), "", torch.ones(2)), tmp_path / "r")[0]


def test_all_finite_exits_0(finite: Path) -> None:
    ran = run_here(finite, "cpu")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "It does not show: everything is finite on cpu." in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tpu"], "must be cpu, cuda"),
        (["cpu", "7"], "takes one device at most"),
        (["cuda:77"], "cuda"),
    ],
)
def test_a_wrong_device_exits_2(arguments: list[str], message: str, finite: Path) -> None:
    ran = run_here(finite, *arguments)
    assert ran.returncode == 2
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_device_that_is_not_here_gives_way_to_the_cpu(finite: Path) -> None:
    edit_manifest(
        finite.with_suffix(""),
        lambda manifest: manifest["capture"]["reproducer"].update(device="npu:3"),
    )
    ran = run_here(finite)
    assert ran.returncode == 0, ran.stderr
    assert "it was found on npu:3, which is not here; this is the CPU" in ran.stdout


def test_without_its_package_it_exits_2(finite: Path, tmp_path: Path) -> None:
    (tmp_path / "empty" / "accucompare").mkdir(parents=True)
    (tmp_path / "empty" / "accucompare" / "__init__.py").write_text("raise ImportError('not here')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "empty")}
    ran = subprocess.run(
        [sys.executable, finite], cwd="/", env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 2
    assert "this needs torch and accucompare: not here" in ran.stderr


def _remove(stem: Path) -> None:
    stem.rename(stem.with_name("elsewhere"))


def _flip(stem: Path) -> None:
    path = stem / "rank0" / "state.npz"
    content = bytearray(path.read_bytes())
    content[4000] ^= 1  # in the random state, which is 5,056 bytes long
    path.write_bytes(content)


def _other(stem: Path) -> None:
    edit_manifest(stem, lambda manifest: manifest["capture"].pop("reproducer"))


def _malformed(stem: Path) -> None:
    edit_manifest(stem, lambda manifest: manifest["capture"]["reproducer"].update(grad_enabled=3))


def _no_inputs(stem: Path) -> None:
    edit_manifest(stem, lambda manifest: manifest["capture"].update(inputs=[{"list": 3}]))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_remove, "not a bundle"),
        (_flip, "corrupt"),
        (_other, "no reproducer"),
        (_malformed, "malformed"),
        (_no_inputs, "inputs are malformed"),
    ],
)
def test_a_damaged_bundle_exits_2(
    damage: Callable[[Path], None], message: str, finite: Path
) -> None:
    damage(finite.with_suffix(""))
    ran = run_here(finite)
    assert ran.returncode == 2
    assert message in ran.stderr
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("nn.Linear(3, 1)", "whose 'weight' is [1, 3] and not [1, 2]"),
        ("nn.Linear(2, 1, bias=False)", "made a Linear that lacks 'bias'"),
        ("nn.Bilinear(2, 1, 1).requires_grad_(False)", "whose 'weight' is"),
        ("nn.BatchNorm1d(1)", "that has, but the saved one had not, 'num_batches_tracked'"),
        ("3", "must make the module"),
        ("1 / 0", "cannot be built here: ZeroDivisionError"),
    ],
)
def test_a_module_that_does_not_fit_exits_2(
    made: str, message: str, finite: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = Reproducer.open(finite).main(lambda: eval(made, {"nn": nn}), [])
    assert code == 2
    assert message in capsys.readouterr().err


def test_a_module_that_raises_exits_2(finite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def build() -> nn.Module:
        module = nn.Linear(2, 1)
        module.register_forward_pre_hook(
            lambda module, args: (_ for _ in ()).throw(RuntimeError("no luck"))
        )
        return module

    assert Reproducer.open(finite).main(build, []) == 2
    assert "the module raised RuntimeError: no luck" in capsys.readouterr().err


def test_a_gradient_without_a_graph_exits_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = take(nn.Linear(2, 1), "", torch.ones(2), backward=True)
    taken.snapshot.module.requires_grad_(False)
    script, _ = save(taken, tmp_path / "r")
    assert Reproducer.open(script).main(lambda: nn.Linear(2, 1), []) == 2
    assert "has no gradient here, but one was saved" in capsys.readouterr().err


def test_what_is_made_between_the_children_is_looked_for_there(tmp_path: Path) -> None:
    taken = take(Around(), "", torch.zeros(1, 4))
    script, _ = save(taken, tmp_path / "r", site=Site.GLUE, near="before norm")
    ran = run_here(script)
    assert ran.returncode == 1
    assert "It shows again: 4 NaN of 4 values in the input 0 of norm" in ran.stdout


def test_what_is_hidden_inside_is_said_but_does_not_count(tmp_path: Path) -> None:
    script, _ = save(take(Around(), "", torch.zeros(1, 4)), tmp_path / "r")
    ran = run_here(script)
    assert ran.returncode == 0
    assert "Inside, input 0 of norm holds 4 NaN of 4 values, but not what comes out." in ran.stdout


def test_a_bad_weight_that_was_not_used_still_shows(tmp_path: Path) -> None:
    model = nn.Embedding(3, 2)
    poisoned(model.weight)
    taken = take(model, "", torch.tensor([1]))
    script, _ = save(taken, tmp_path / "r", site=Site.WEIGHTS)
    assert Reproducer.open(script).main(lambda: nn.Embedding(3, 2), []) == 1


def test_saturation_is_shown_only_where_it_was_found(tmp_path: Path) -> None:
    taken = take(nn.Identity(), "", torch.full((2,), 65504.0).half())
    (tmp_path / "a").mkdir()
    assert (
        Reproducer.open(save(taken, tmp_path / "r", kinds=["saturated"])[0]).main(nn.Identity, [])
        == 1
    )
    assert (
        Reproducer.open(save(taken, tmp_path / "r", kinds=["+Inf"])[0]).main(nn.Identity, []) == 0
    )


def test_without_the_outputs_gradient_the_script_does_not_say_that_all_is_well(
    tmp_path: Path,
) -> None:
    taken = take(nn.Linear(2, 1), "", torch.ones(2), backward=True)
    taken.snapshot.grads = {"": taken.snapshot.grads[""].to_sparse()}
    script, finding = save(taken, tmp_path / "r")
    assert finding.reproducer_notes == ["grad. could not be saved (a sparse tensor)"]
    ran = run_here(script)
    assert ran.returncode == 2
    assert "no gradient of the module's output was saved" in ran.stdout


def test_a_bad_gradient_from_the_loss_is_shown(tmp_path: Path) -> None:
    taken = take(nn.Linear(2, 1), "", torch.ones(2), backward=True)
    taken.snapshot.grads[""].fill_(NAN)
    assert run_here(save(taken, tmp_path / "r", site=Site.LOSS)[0]).returncode == 1


def test_a_bad_input_of_the_model_is_shown(tmp_path: Path) -> None:
    ran = run_here(
        save(take(nn.Identity(), "", torch.tensor([INF])), tmp_path / "r", site=Site.INPUT)[0]
    )
    assert ran.returncode == 1
    assert "It shows again: 1 +Inf of 1 values in the input 0" in ran.stdout


def test_only_the_output_that_was_bad_is_judged(tmp_path: Path) -> None:
    """One that passes a legal mask on is not."""
    taken = take(PassesOn(), "", torch.ones(2), torch.tensor([0.0, -INF]))
    seen = TensorRange("output", "0", "float32", (2,), "nan", "nan", None, 1, 0)
    assert run_here(save(taken, tmp_path / "r", tensors=[seen])[0]).returncode == 0
