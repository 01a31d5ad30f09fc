"""`accucompare watch`, in real processes: what a user types, reads, and gets back as exit code."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import openpyxl
import pytest

from accucompare.cli.watch import _bare_warnings
from accucompare.errors import NonFiniteWarning
from accucompare.findings.log.events import End, Event, Finding, Frames, Step, WatchStart
from accucompare.findings.log.log import read_log
from accucompare.report.watch_words import said
from tests.conftest import ROOT, Run
from tests.forkserver import CLI, SCRIPT, with_torch

CASE = """
import os, signal, torch
from torch import nn
from accucompare import Case

class Log(nn.Module):
    def forward(self, x):
        return torch.log(x)

class Net(nn.Module):
    def __init__(self, raises):
        super().__init__()
        self.up, self.log, self.down = nn.Linear(6, 12), Log(), nn.Linear(12, 3)
        self.raises = raises

    def forward(self, x):
        if self.raises and x.max() > 50:
            raise ValueError("that is too large\\nmuch too large")
        y = self.up(x)
        return self.down(self.log(y.abs() + 1 if x.max() < 50 else -y.abs()))

def training(large=(), steps=3, loss=True, raises=False):
    torch.manual_seed(0)
    model = Net(raises)
    inputs = [torch.rand(4, 6) + (100 if step in large else 0) for step in range(steps)]
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    if not loss:
        return Case(model, inputs)
    return Case(model, inputs, lambda output: output.float().pow(2).mean(), optimizer)

def case():
    return training((1,))

def clean():
    return training()

def interrupted():
    case = training()
    steps = iter(range(3))
    def stop(*_):
        if next(steps) == 1:
            os.kill(os.getpid(), signal.SIGINT)
    case.model.up.register_forward_hook(stop)
    return case

def without_loss():
    return training(loss=False)

def raising():
    return training((2,), raises=True)

def detached():
    case = training()
    case.loss = lambda output: torch.tensor(output.mean().item(), requires_grad=True)
    return case

def near():
    case = training()
    case.model.down.bias.data.fill_(3e4)
    return case
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watch")
    (folder / "case.py").write_text(CASE)
    shutil.copytree(ROOT / "fixtures", folder / "fixtures", ignore=shutil.ignore_patterns("simnpu"))
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    """Runs a command in the folder, in a process that is forked from one that has imported
    torch."""
    return lambda *arguments: with_torch()(
        CLI, *arguments, cwd=folder, variables={**os.environ, "COLUMNS": "100"}
    )


@pytest.fixture(scope="module")
def planted(run: Run) -> subprocess.CompletedProcess[str]:
    """A watch of a case with a NaN."""
    return run("watch", "--out", "planted")


def log(folder: Path, out: str) -> list[Event]:
    """The last run in a log."""
    return read_log(folder / out / "rank0.jsonl")[-1]


def origins(events: list[Event]) -> list[Finding]:
    return [event for event in events if isinstance(event, Finding) and event.origin]


def steps(events: list[Event]) -> list[int]:
    return [event.step for event in events if isinstance(event, Step)]


def reason(events: list[Event]) -> str:
    assert isinstance(events[-1], End)
    return said(events[-1].reason)


def test_a_training_that_stays_finite(folder: Path, run: Run) -> None:
    done = run("watch", "fixtures/gpt2.py:training", "--steps", "3", "--out", "gpt2")
    first, more, *checklist = done.stdout.splitlines()
    assert (done.returncode, first, more) == (
        0,
        "FINITE  gpt2: everything was finite in 3 watched steps",
        "more: accucompare overflow gpt2",
    )
    assert (checklist[0].split()[0], checklist[-1]) == (
        "checklist:",
        "all checks: accucompare health gpt2",
    )
    events = log(folder, "gpt2")
    assert (steps(events), reason(events)) == ([0, 1, 2], "finished")
    assert all(
        isinstance(step.grad_norm, float) and step.grad_norm > 0
        for step in events
        if isinstance(step, Step)
    )


def test_health_shows_every_check_and_writes_it_down(folder: Path, run: Run) -> None:
    run("watch", "fixtures/gpt2.py:training", "--steps", "3", "--out", "checked")
    done = run(
        "health",
        "checked",
        "--json",
        "health.json",
        "--report",
        "health.xlsx",
        "--threshold",
        "loss-spike=20",
    )
    written = json.loads((folder / "health.json").read_text())
    # the fixture trains in evaluation mode
    assert (done.returncode, written["status"]) == (1, "WARN")
    assert [each["id"] for each in written["checks"] if each["status"] == "WARN"] == [
        "training-mode"
    ]
    assert "[loss-spike=20, " in done.stdout
    assert all(f" {each['id']}: " in done.stdout for each in written["checks"])
    sheet = openpyxl.load_workbook(folder / "health.xlsx")["Health"]
    assert {row[1].value for row in sheet.iter_rows(min_row=3)} >= {
        each["id"] for each in written["checks"]
    }
    run("overflow", "checked")
    assert (
        "Health" in openpyxl.load_workbook(folder / "reports" / "checked-overflow.xlsx").sheetnames
    )


def test_a_log_without_steps_is_trouble_for_health(run: Run) -> None:
    done = run("health", "nowhere")
    assert (done.returncode, done.stdout) == (2, "")


def test_health_says_that_only_forwards_were_seen(folder: Path, run: Run) -> None:
    run("watch", "case.py:without_loss", "--out", "forwards")
    done = run("health", "forwards", "--json", "forwards.json")
    checks = {
        each["id"]: each for each in json.loads((folder / "forwards.json").read_text())["checks"]
    }
    said = "only forwards without gradients were seen, which this does not look at"
    assert f"input-finite: {said}" in done.stdout
    assert checks["drawn-behind"]["measured"] == said
    assert "the model was not called" not in done.stdout


@pytest.mark.parametrize("more", [["case.py:clean"], ["--", sys.executable, "no.py"]])
@pytest.mark.parametrize("out", ["bundle", "bundle/below"])
def test_a_watch_does_not_write_into_a_bundle(
    folder: Path, run: Run, out: str, more: list[str]
) -> None:
    run("capture", "case.py:clean", "--out", "bundle", "--overwrite")
    held = sorted((folder / "bundle").rglob("*"))
    done = run("watch", "--out", out, *more)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"accucompare: --out {out}/rank0.jsonl: lies in the bundle {folder / 'bundle'};"
        " choose another --out\n"
    )
    assert sorted((folder / "bundle").rglob("*")) == held


def test_a_nan_is_answered_with_place_operator_and_line(
    planted: subprocess.CompletedProcess[str],
) -> None:
    lines = planted.stdout.splitlines()
    assert planted.returncode == 1
    assert lines[0].startswith("NOT FINITE  planted: 1 origin, ")
    assert lines[1] == "NaN in log (Log), forward, step 1"
    assert lines[2].startswith(
        "  made inside by aten.log.default at case.py:8: what went in was finite; gradients not"
        " finite: "
    )
    assert "more: accucompare overflow planted" in lines


def test_the_last_calls_are_shown_on_standard_error(
    planted: subprocess.CompletedProcess[str],
) -> None:
    assert "the last 2 calls, as they ended" in planted.stderr
    assert [line.split() for line in planted.stderr.splitlines() if "◀ here" in line] == [
        ["4", "log", "Log", "◀", "here"]
    ]
    assert max(map(len, planted.stderr.splitlines())) <= 100


def test_the_reproducer_runs_as_it_is_printed(
    planted: subprocess.CompletedProcess[str], folder: Path
) -> None:
    script = planted.stdout.partition("reproducer: ")[2].partition(";")[0]
    done = with_torch()(SCRIPT, script, cwd=folder, variables=os.environ)
    assert (done.returncode, done.stderr) == (1, "")
    assert "It shows again: 48 NaN of 48 values in the output" in done.stdout


def test_overflow_tells_the_rest(
    planted: subprocess.CompletedProcess[str], run: Run, folder: Path
) -> None:
    done = run("overflow", "planted")
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, planted.stdout.splitlines()[0])
    assert "Findings, in execution order" in done.stdout
    sheet = openpyxl.load_workbook(folder / "reports" / "planted-overflow.xlsx")["Findings"]
    assert "NOT FINITE" in str(sheet["A1"].value)


def test_the_sample_in_the_documentation_is_what_is_printed(run: Run) -> None:
    """But for what `…` stands for, and for numbers, which another processor and another release of
    transformers may change."""
    page = (ROOT / "docs" / "nan.md").read_text()
    sample = page.partition("$ accucompare watch fixtures/gpt2.py:overflowing --dtype float16\n")[
        2
    ].partition("```")[0]
    done = run("watch", str(ROOT / "fixtures" / "gpt2.py:overflowing"), "--dtype", "float16")
    assert done.returncode == 1
    told, printed = (re.sub(r"\d+(\.\d+)?", "N", each) for each in (sample, done.stdout))
    assert re.fullmatch(".*".join(map(re.escape, told.split("…"))), printed, re.DOTALL), printed


def test_ctrl_c_says_in_which_step_and_leaves_a_log(folder: Path, run: Run) -> None:
    done = run("watch", "case.py:interrupted", "--out", "stopped")
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert (
        "accucompare: interrupted; stopped in step 1; what was watched until then: accucompare"
        " overflow stopped" in done.stderr
    )
    events = log(folder, "stopped")
    assert (steps(events), reason(events)) == ([0], "interrupted")


def test_a_case_without_a_loss_says_so(run: Run) -> None:
    done = run("watch", "case.py:without_loss", "--out", "without")
    assert done.returncode == 0
    assert "the case has no loss: only its forward was watched" in done.stdout


def test_warnings_come_with_the_verdict(run: Run) -> None:
    done = run("watch", "case.py:near", "--dtype", "float16", "--steps", "1", "--out", "near")
    assert "; 1 warning\n" in done.stdout or " warnings\n" in done.stdout
    assert "down (Linear): values up to 3e+04 come near the limit of float16" in done.stdout
    assert done.stderr == ""


def test_on_finding_warn_goes_on(run: Run, folder: Path) -> None:
    done = run("watch", "--on-finding", "warn", "--out", "warned")
    events = log(folder, "warned")
    assert (done.returncode, steps(events), reason(events)) == (1, [0, 1, 2], "finished")
    # the weights of step 2 are what was found in step 1
    assert [found.step for found in origins(events)] == [1]
    assert [found.reproducer for found in origins(events)] == [""]
    assert "accucompare: NaN in log (Log), forward, step 1" in done.stderr
    assert "UserWarning" not in done.stderr


def test_on_finding_snapshot_saves_and_goes_on(run: Run, folder: Path) -> None:
    done = run("watch", "--on-finding", "snapshot", "--out", "snapshot", "--quiet")
    events = log(folder, "snapshot")
    assert (done.returncode, done.stderr, steps(events)) == (1, "", [0, 1, 2])
    assert (folder / "snapshot" / origins(events)[0].reproducer).is_file()


def test_abort_after_step(run: Run, folder: Path) -> None:
    done = run("watch", "case.py:clean", "--abort-after-step", "1", "--out", "aborted")
    events = log(folder, "aborted")
    assert (done.returncode, steps(events), reason(events)) == (
        0,
        [0, 1],
        "stopped after step 1, as asked",
    )
    assert "stopped after step 1, as asked" in done.stdout


def test_trace_step_shows_every_call(run: Run, folder: Path) -> None:
    done = run(
        "watch", "case.py:clean", "--trace-step", "0", "--trace-step", "2", "--out", "traced"
    )
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if line.startswith("step ")] == [
        f"step {step}: all 8 calls, as they ended" for step in (0, 2)
    ]
    traced = [event for event in log(folder, "traced") if isinstance(event, Frames)]
    assert [(frames.step, frames.traced) for frames in traced] == [(0, True), (2, True)]
    assert {frame.name for frame in traced[0].frames} == {"", "up", "log", "down"}


def test_every_watches_less(run: Run, folder: Path) -> None:
    done = run("watch", "case.py:clean", "--steps", "6", "--every", "3", "--out", "every")
    assert (done.returncode, steps(log(folder, "every"))) == (0, [0, 3])


def test_dtype(run: Run, folder: Path) -> None:
    done = run("watch", "--dtype", "float16", "--out", "half")
    found = origins(log(folder, "half"))[0]
    assert (done.returncode, found.name, {seen.dtype for seen in found.tensors}) == (
        1,
        "log",
        {"float16"},
    )


def test_frames_0_shows_and_keeps_none(run: Run, folder: Path) -> None:
    done = run("watch", "--frames", "0", "--out", "frameless")
    events = log(folder, "frameless")
    assert (done.returncode, "calls" in done.stderr) == (1, False)
    assert not [event for event in events if isinstance(event, Frames)]
    assert origins(events)[0].operator == "aten.log.default"


def test_level_op_names_the_same_operator(run: Run, folder: Path) -> None:
    done = run("watch", "--level", "op", "--out", "op")
    found = origins(log(folder, "op"))[0]
    assert (done.returncode, found.operator, found.line) == (1, "aten.log.default", "case.py:8")


def test_allow(run: Run, folder: Path) -> None:
    done = run("watch", "case.py:without_loss", "--allow", "log", "--out", "allowed")
    started = log(folder, "allowed")[0]
    assert isinstance(started, WatchStart)
    assert (done.returncode, started.options["allow"]) == (0, ["log"])


def test_a_model_that_raises(run: Run, folder: Path) -> None:
    done = run("watch", "case.py:raising", "--out", "raised")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "accucompare: case.py:raising: the model raised in step 2: ValueError: that is too large …",
        "What was watched until then: accucompare overflow raised",
    ]
    assert reason(log(folder, "raised")).startswith("ValueError: that is too large")


def test_a_second_run_is_added_to_the_log_and_told(run: Run, folder: Path) -> None:
    for case, code in (("case", 1), ("clean", 0)):
        assert run("watch", f"case.py:{case}", "--out", "twice", "-q").returncode == code
    assert len(read_log(folder / "twice" / "rank0.jsonl")) == 2
    done = run("overflow", "twice", "-q")
    assert (done.returncode, done.stdout) == (
        0,
        "FINITE  twice: everything was finite in 3 watched steps\n",
    )


def test_quiet_is_one_line(run: Run) -> None:
    done = run("watch", "--out", "quiet", "-q")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        "NOT FINITE  quiet: NaN in log (Log), forward, step 1; 1 origin, 6 passed on"
    ]


def test_updates_that_move_nothing_are_in_the_headline_of_watch_and_overflow(run: Run) -> None:
    watched = run(
        "watch", "case.py:detached", "--steps", "8", "--checks-every", "1", "--out", "detached"
    )
    shown = run("overflow", "detached", "--report", "none")
    for done in (watched, shown):
        assert done.returncode == 0  # all was finite
        headline = done.stdout.splitlines()[0]
        assert headline.startswith(
            "FINITE, CHECKS FAIL  detached: everything was finite in 8 watched steps; "
        )
        assert "; but the checklist: FAIL in " in headline
    assert run("health", "detached", "-q").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("case.py:nothing",), "case.py has no callable 'nothing'"),
        (("nowhere.py",), "nowhere.py"),
        (("--device", "tpu"), "device tpu (--device): must be cpu, cuda, cuda:N, npu or npu:N"),
        (("--out", "case.py"), "cannot be written"),
        (("--kernel-dump", "dump"), "only an NPU has kernel dumps"),
    ],
)
def test_trouble_is_one_line(run: Run, arguments: tuple[str, ...], said: str) -> None:
    done = run("watch", "--out", "trouble", *arguments)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert said in done.stderr


def test_an_npu_without_its_software(cli: Run) -> None:
    done = cli("watch", "--device", "npu", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "accucompare: --device npu: torch_npu is not installed; pip install 'accucompare[npu]'\n"
    )


@pytest.mark.parametrize("command", ["watch", "overflow"])
def test_help_imports_no_torch(command: str) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from accucompare.cli import main;"
        f" main(['{command}', '--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_findings_are_shown_bare_and_warnings_of_the_users_own_with_their_source_line() -> None:
    with _bare_warnings():
        assert (
            warnings.formatwarning("accucompare: NaN", NonFiniteWarning, "case.py", 7)
            == "\naccucompare: NaN\n"
        )
        assert warnings.formatwarning("accucompare: mine", UserWarning, "case.py", 7).startswith(
            "case.py:7: UserWarning: "
        )
