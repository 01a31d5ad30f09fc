"""``accucompare locate`` in an environment that computes something else of the same files; and
where golden's own values say little.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from accucompare.bundle.reading.reader import open_bundle
from tests.conftest import Run
from tests.test_locate import golden, located

KERNEL = """
import os
from pathlib import Path
import torch
from torch import nn
from accucompare import Case

AT_IMPORT = float(os.environ.get("KERNEL_AT_IMPORT", "1"))
torch.scale_of_tests = lambda: 1.0

def factor():
    file = Path("kernel.txt")  # as another build of a library, whose Python files are the same
    called = float(os.environ.get("KERNEL", "1"))
    return (
        AT_IMPORT
        * called
        * float(file.read_text() if file.exists() else 1)
        * getattr(torch, "patched_in_tests", 1.0)
    )

class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.factor = backward
        return Half.computed(x, forward)

    @staticmethod
    def backward(ctx, grad):
        return Half.computed(grad, ctx.factor), None, None

    @staticmethod
    def computed(x, factor):
        y = x * 0.5
        y[..., 48:] *= factor
        return y

class Gate(nn.Module):
    def __init__(self, trained):
        super().__init__()
        self.trained = trained

    def forward(self, x):
        return Half.apply(x, 1.0, factor()) if self.trained else Half.apply(x, factor(), 1.0)

def model(trained=False):
    return nn.Sequential(nn.Linear(64, 64), Gate(trained), nn.Linear(64, 64))

def case():
    return Case(model().eval(), torch.randn(32, 64))

def training():
    return Case(model(True), torch.randn(32, 64), loss=lambda y: y.square().mean())
"""
KERNEL = KERNEL.replace("torch.scale_of_tests = lambda: 1.0\n", "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(KERNEL)
    return tmp_path


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("way", ["variable", "variable at import", "library", "patch"])
def test_an_environment_that_computes_something_else_of_the_same_files_is_named(
    cli: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, way: str, dtype: str
) -> None:
    """The baseline that is made beside the candidate has the fault, too, so the two agree."""
    golden(cli, folder)
    match way:
        case "variable":
            monkeypatch.setenv("KERNEL", "1.03")
        case "variable at import":
            monkeypatch.setenv("KERNEL_AT_IMPORT", "1.03")
        case "library":
            (folder / "kernel.txt").write_text("1.03")
        case "patch":
            import torch

            monkeypatch.setattr(torch, "patched_in_tests", 1.03, raising=False)
    found = located(cli, folder, "net.py", "--golden", "golden", "--dtype", dtype)
    assert (found["code"], found["answer"], found["culprits"][0]["place"]) == (1, "bug", "1")
    assert (
        "the candidate's environment does not compute golden's own values, also in float32: 1"
        " output" in found["conclusion"]
    )


def test_so_is_a_backward(cli: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = cli(
        "capture", "net.py:training", "--out", "golden", "--round-weights", "bfloat16", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    options = ("net.py:training", "--golden", "golden", "--dtype", "bfloat16")
    assert located(cli, folder, *options)["conclusion"] == "rounding"
    monkeypatch.setenv("KERNEL", "1.03")
    found = located(cli, folder, *options)
    assert found["code"] == 1
    assert found["conclusion"].startswith("bug: the backward of 1, gradient of input 0")
    assert (
        "does not compute golden's own values, also in float32: 1 grad_input.0"
        in found["conclusion"]
    )


def test_the_proof_stays_with_the_baseline_and_goes_with_it(
    cli: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A diff by hand uses it, and a baseline that is captured anew has none."""
    golden(cli, folder)
    monkeypatch.setenv("KERNEL", "1.03")
    found = located(cli, folder, "net.py", "--golden", "golden", "--dtype", "bfloat16")
    by_hand = (
        "diff",
        "golden",
        "locate/candidate",
        "--baseline",
        "locate/baseline",
        "--report",
        "none",
    )
    done = cli(*by_hand, cwd=folder)
    assert (done.returncode, found["conclusion"] in done.stdout) == (1, True)
    golden(
        cli, folder, "--feed", "golden", "--dtype", "bfloat16", "--overwrite", out="locate/baseline"
    )
    assert not (folder / "locate" / "baseline" / "proof").exists()
    assert cli(*by_hand, cwd=folder).returncode == 0


def test_a_difference_below_the_candidates_rounding_hides_nothing(
    cli: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden(cli, folder, "--round-weights", "bfloat16")
    monkeypatch.setenv("KERNEL", "1.0001")
    assert (
        located(cli, folder, "net.py", "--golden", "golden", "--dtype", "bfloat16")["conclusion"]
        == "rounding"
    )
    monkeypatch.setenv("KERNEL", "1.005")
    found = located(cli, folder, "net.py", "--golden", "golden", "--dtype", "bfloat16")
    assert (
        found["code"],
        found["stdout"].count("does not compute golden's own values, also in float32: 1 output"),
    ) == (2, 1)


def test_golden_brings_a_baseline_that_needs_no_proof(
    cli: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden(cli, folder, "--with-baseline", "bfloat16")
    monkeypatch.setenv("KERNEL", "1.03")
    found = located(cli, folder, "net.py", "--golden", "golden", "--dtype", "bfloat16")
    assert (found["code"], found["culprits"][0]["place"], "proof" in found["stderr"]) == (
        1,
        "1",
        False,
    )


def test_a_golden_that_was_made_here_is_told(cli: Run, folder: Path) -> None:
    made_here = (
        "; golden was made here, in the candidate's environment: faults of that environment are not"
        " seen"
    )
    assert (
        located(cli, folder, "net.py", "--dtype", "bfloat16")["conclusion"]
        == f"rounding{made_here}"
    )
    golden(cli, folder, "--round-weights", "bfloat16")
    assert (
        located(cli, folder, "net.py", "--golden", "golden", "--dtype", "bfloat16")["conclusion"]
        == "rounding"
    )


NEVER_WRITTEN = """
from pathlib import Path
import torch
from torch import nn
from accucompare import Case

class Garbage(nn.Module):
    def forward(self, x):
        calls = Path("calls.txt")
        calls.write_text(calls.read_text() + "." if calls.exists() else ".")
        return x * len(calls.read_text())

def case():
    return Case(
        nn.Sequential(nn.Linear(8, 8), Garbage(), nn.Linear(8, 8)).eval(), torch.randn(4, 8)
    )
"""


@pytest.mark.parametrize("given", [True, False])
def test_values_that_golden_itself_does_not_repeat_are_no_reference(
    cli: Run, folder: Path, given: bool
) -> None:
    """As of memory that was never written: golden's own case gives others each time."""
    (folder / "net.py").write_text(NEVER_WRITTEN)
    golden(cli, folder)
    found = located(cli, folder, "net.py", *(["--golden", "golden"] if given else []))
    assert found["code"] == 2
    assert "TROUBLE" in found["stdout"]
    assert (
        "1 row(s) are not deterministic, the first 1 output (golden's value is no reference here"
        in found["stdout"]
    )


TIME = """
import torch
from torch import nn
from accucompare import Case

class Waves(nn.Module):
    divides = False  # rounds otherwise

    def forward(self, t):
        powers = torch.linspace(0, 4, 16, dtype=t.dtype)
        angle = t[:, None] / 10**powers if self.divides else t[:, None] * 10**-powers
        return torch.cat([angle.cos(), angle.sin()], -1)

class Net(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.waves, self.inner = Waves(), nn.Linear(32, 64)
        self.out, self.far, self.factor = nn.Linear(64, 64), nn.Linear(64, 64), torch.tensor(factor)

    def forward(self, time):
        inner = self.inner(self.waves(time * 1e9))
        return self.out(inner * self.factor.to(inner.dtype)) + self.far((inner + 1e5) - 1e5)

def case(factor=1.0):
    return Case(Net(factor).eval(), torch.tensor([3.501]))

def faulty():
    return case(1.05)

def divided():
    made = case()
    made.model.waves.divides = True
    return made
"""


@pytest.mark.parametrize(
    ("given", "precise", "dtype"),
    [
        (True, "float32", "bfloat16"),
        (False, "float32", "bfloat16"),
        (True, "float64", "float32"),
        (True, "float32", "float32"),
    ],
)
def test_an_ill_conditioned_place_is_rounding_and_hides_no_fault_elsewhere(
    cli: Run, folder: Path, given: bool, precise: str, dtype: str
) -> None:
    """The sine of a large number, and terms that cancel."""
    (folder / "net.py").write_text(TIME)
    rounded = ["--round-weights", dtype] if dtype == "bfloat16" else []
    golden(cli, folder, "--dtype", precise, *rounded)
    options = (
        ["--golden", "golden", "--golden-case", "net.py:case"]
        if given
        else ["--golden-case", "net.py:case"]
    )
    alike = precise == dtype
    case = "divided" if alike else "case"
    found = located(cli, folder, f"net.py:{case}", *options, "--dtype", dtype)
    assert (
        found["code"],
        f"{'1 row' if alike else '2 rows'} far off, as golden's own code is on rounded values"
        in found["conclusion"],
    ) == (0, True)
    with open_bundle(folder / "locate" / "baseline" / "conditioned") as bundle:
        options_made = bundle.manifest.options
        assert (options_made.round_feed, options_made.round_results) == (
            "float29" if alike else dtype,
            True,
        )
    found = located(cli, folder, "net.py:faulty", *options, "--dtype", dtype)
    assert (found["code"], found["culprits"][0]["place"]) == (1, "(root) (glue, before out)")
