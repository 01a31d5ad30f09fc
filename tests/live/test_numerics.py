"""How a capture computes: what is set for its length, and what is noted of what the device did."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare import devices
from accucompare.errors import UsageError
from accucompare.live.numerics.numerics import Numerics
from tests.asked import grouped
from tests.conftest import ROOT, Run
from tests.forkserver import with_torch


class Deterministic(nn.Module):
    """Notes whether deterministic algorithms are on, and runs an operator that has none."""

    seen: bool | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = torch.are_deterministic_algorithms_enabled()
        return x * 2


def captured(model: nn.Module, path: Path, **options: Any) -> ac.Bundle:
    with ac.capture(model, path, **grouped(**options)):
        model(torch.ones(2, 3))
    return ac.open_bundle(path)


def test_deterministic_algorithms_are_on_while_a_capture_lasts(tmp_path: Path) -> None:
    model = Deterministic()
    with captured(model, tmp_path / "golden", deterministic=True) as bundle:
        assert bundle.manifest.capture["deterministic"] is True
        assert bundle.manifest.environment["flags"]["deterministic_algorithms"] is True
    assert model.seen is True
    assert not torch.are_deterministic_algorithms_enabled()


def test_deterministic_algorithms_are_off_again_after_a_model_raised(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        captured(nn.Linear(5, 5), tmp_path / "golden", deterministic=True)
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_operator_without_deterministic_algorithm_is_noted(tmp_path: Path) -> None:
    class Puts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.put(torch.tensor([0]), torch.ones(1))

    with pytest.warns(UserWarning, match="put_"):
        captured(Puts(), tmp_path / "golden", deterministic=True).close()
    with ac.open_bundle(tmp_path / "golden") as bundle:
        assert "put_ has no deterministic implementation" in bundle.manifest.notes


@pytest.mark.parametrize("name", ["hf32", "tf32"])
def test_reduced_precision_is_refused_where_there_is_none(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match=f"--{name}: cpu has no {name.upper()}; --emulate {name} shows the error to expect",
    ):
        captured(nn.Linear(3, 3), tmp_path / "golden", **{name: True})
    assert not (tmp_path / "golden").exists()


def test_reduced_precision_may_be_forbidden_where_there_is_none(tmp_path: Path) -> None:
    with captured(nn.Linear(3, 3), tmp_path / "golden", hf32=False, tf32=False) as bundle:
        assert bundle.manifest.complete


def test_emulation_beside_another_dtype_is_refused(cli: Run, tmp_path: Path) -> None:
    done = cli("capture", f"{ROOT}/fixtures/cnn.py", "--dtype", "bfloat16", "--emulate", "bf16")
    assert done.returncode == 2
    assert (
        done.stderr
        == "accucompare: --emulate bf16: rounds what goes into float32 products; with --dtype"
        " bfloat16 there are none\n"
    )


def test_emulation_is_only_for_the_cpu(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"emulate hf32 \(--emulate\): only on the CPU; cuda computes as it does"
    ):
        Numerics(torch.device("cuda"), emulate="hf32")


def test_a_precision_of_no_known_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="emulate must be one of hf32, tf32, bf16, fp16, but is 'fp8'"
    ):
        captured(nn.Linear(3, 3), tmp_path / "golden", emulate="fp8")


def test_emulated_precision_is_in_the_manifest_with_what_it_means(tmp_path: Path) -> None:
    with captured(nn.Linear(3, 3), tmp_path / "golden", emulate="bf16") as bundle:
        assert bundle.manifest.capture["emulate"] == "bf16"
        assert any("operands rounded to bf16, on the CPU" in note for note in bundle.manifest.notes)


def test_emulation_rounds_what_goes_into_products_and_nothing_else(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU())
    captured(model, tmp_path / "golden").close()
    captured(model, tmp_path / "bf16", emulate="bf16").close()
    with ac.open_bundle(tmp_path / "bf16") as bundle:
        weight, bias = model[0].weight.detach(), model[0].bias.detach()
        product = nn.functional.linear(torch.ones(2, 3), weight.bfloat16().float(), bias)
        torch.testing.assert_close(
            torch.from_numpy(bundle.load("0")), product, rtol=1e-6, atol=1e-6
        )
        torch.testing.assert_close(
            torch.from_numpy(bundle.load("1")),
            nn.functional.gelu(torch.from_numpy(bundle.load("0"))),
            rtol=0,
            atol=0,
        )
    comparison = ac.diff(tmp_path / "golden", tmp_path / "bf16", limits=ac.Tolerance(rel_l2=1e-6))
    assert any(
        "emulated precision: golden none, candidate bf16" in finding.message
        for finding in comparison.preflight
    )


def test_dropout_agrees_with_and_without_emulation(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 3)).train()
    captured(model, tmp_path / "golden").close()
    captured(model, tmp_path / "hf32", emulate="hf32").close()
    with (
        ac.open_bundle(tmp_path / "golden") as golden,
        ac.open_bundle(tmp_path / "hf32") as emulated,
    ):
        assert (golden.load("0") == emulated.load("0")).all()


# A device that says things, in the place of the CPU


def talking(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    cpu = devices.backend("cpu")
    said = SimpleNamespace(
        **{name: getattr(cpu, name) for name in dir(cpu) if not name.startswith("_")}
    )
    for name, function in functions.items():
        setattr(said, name, function)
    monkeypatch.setattr(devices, "backend", lambda _: said)


def test_operators_that_fell_back_to_the_cpu_are_noted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talking(
        monkeypatch, unsupported=lambda: ["aten::digamma", "aten::erfc", "aten::threshold_backward"]
    )

    class Digamma(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.digamma(x)

    model = nn.Sequential(Digamma(), Digamma(), nn.Linear(3, 3), nn.ReLU())
    with ac.capture(model, tmp_path / "npu"):
        model(torch.ones(2, 3)).sum().backward()
    with ac.open_bundle(tmp_path / "npu") as bundle:
        assert bundle.manifest.notes == [
            "aten::digamma is not supported by the device and was run on the CPU",
            "aten::threshold_backward is not supported by the device and was run on the CPU",
        ]
    captured(model, tmp_path / "cpu").close()
    torch.erfc(torch.ones(1))  # nothing is caught any more


def test_a_later_capture_on_a_device_that_has_the_operator_notes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Digamma(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.digamma(x)

    with monkeypatch.context() as patched:
        talking(patched, unsupported=lambda: ["aten::digamma"])
        captured(Digamma(), tmp_path / "npu").close()
    with captured(Digamma(), tmp_path / "cpu") as bundle:
        assert bundle.manifest.notes == []


def test_random_operators_that_a_device_lacks_draw_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Poisson(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.poisson(x * 5)

    program = (
        "import sys, torch, accucompare as ac\nfrom accucompare import"
        " devices\ndevices.backend('cpu').unsupported = lambda: ['aten::poisson'] if sys.argv[1] =="
        " 'lacks' else []\nclass Poisson(torch.nn.Module):\n    def forward(self, x):\n       "
        " return torch.poisson(x * 5)\nwith ac.capture(Poisson(), sys.argv[1]):\n    ones ="
        " torch.ones(50)\n    torch.manual_seed(len(sys.argv[1]))\n   "
        " print(Poisson()(ones).sum().item())\n"
    )
    done = [
        with_torch()(program, name, cwd=tmp_path, variables=os.environ) for name in ("has", "lacks")
    ]
    assert done[0].returncode == 0, done[0].stderr
    assert done[0].stdout == done[1].stdout


def test_two_captures_in_two_threads_draw_each_their_own(tmp_path: Path) -> None:
    model = nn.Dropout(0.5).train()
    with captured(model, tmp_path / "alone", seed=1) as bundle:
        alone = bundle.load("")
    entered, go_on = threading.Event(), threading.Event()

    def beside() -> None:
        with ac.capture(model, tmp_path / "beside", seed=1):
            entered.set()
            go_on.wait()
            model(torch.ones(2, 3))

    thread = threading.Thread(target=beside)
    thread.start()
    entered.wait()
    with ac.capture(nn.Identity(), tmp_path / "later", seed=2):
        go_on.set()
        thread.join()
    with ac.open_bundle(tmp_path / "beside") as bundle:
        assert (bundle.load("") == alone).all()


def test_operators_on_functions_run_while_a_capture_lasts(tmp_path: Path) -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    with captured(Branches(), tmp_path / "golden") as bundle:
        torch.testing.assert_close(torch.from_numpy(bundle.load("")), torch.ones(2, 3).sin())


def test_a_step_in_which_the_device_overflowed_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([True, False, True])  # before the capture, after step 0, after step 1
    talking(monkeypatch, overflowed=lambda device: next(answers))
    model = nn.Linear(2, 2)
    with ac.capture(model, tmp_path / "npu") as session:
        for _ in range(2):
            model(torch.ones(1, 2))
            session.step()
    with ac.open_bundle(tmp_path / "npu") as bundle:
        assert [note for note in bundle.manifest.notes if "overflow" in note] == [
            "the device's overflow flag is up after step 1: it saturates at a type's largest value"
            " instead of giving Inf"
        ]


def test_what_goes_wrong_on_the_device_is_told_in_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def synchronize(device: torch.device) -> None:
        raise RuntimeError("the aicore execution is abnormal")

    talking(monkeypatch, synchronize=synchronize)
    with pytest.raises(RuntimeError, match="aicore"):
        captured(nn.ReLU(), tmp_path / "npu")
    with ac.open_bundle(tmp_path / "npu") as bundle:
        assert bundle.manifest.stopped is not None
        assert bundle.manifest.stopped["step"] == 0
        assert "aicore" in bundle.manifest.stopped["error"]


def test_a_model_that_moves_while_it_is_captured_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = iter([torch.device("cpu"), *[torch.device("cuda")] * 9])
    for name in ("capture_context", "start"):
        module = sys.modules[f"accucompare.recorder.session.{name}"]
        monkeypatch.setattr(module, "device_of", lambda _: next(places))
    with captured(nn.Linear(3, 3), tmp_path / "golden") as bundle:
        assert (
            "the model was called on cuda, and was on cpu when the capture began: move it before"
            in bundle.manifest.notes
        )


def test_a_capture_does_not_import_the_compiler(tmp_path: Path) -> None:
    """It takes seconds, which is long beside a small model's forward."""
    program = """
import sys, torch, accucompare as ac

for deterministic in (False, True):
    numerics = ac.Arithmetic(deterministic=deterministic)
    with ac.capture(torch.nn.Identity(), f"golden{deterministic}", numerics=numerics) as session:
        session.step()
    print(
        torch.are_deterministic_algorithms_enabled(),
        "torch._inductor" in sys.modules,
        "torch._dynamo" in sys.modules,
    )
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["False"] * 6, done.stderr


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["off", "warn", "error"])
def test_the_users_own_setting_of_determinism_is_as_before(mode: int, tmp_path: Path) -> None:
    class Sets(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.set_deterministic_debug_mode(2 - mode)
            return x

    torch.set_deterministic_debug_mode(mode)
    try:
        captured(Sets(), tmp_path / "golden", deterministic=True).close()
        assert torch.get_deterministic_debug_mode() == mode
    finally:
        torch.set_deterministic_debug_mode(0)
