"""Commands that run scripts, in fresh processes: how we get in, and what the command makes of the
script's end.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import accucompare as ac
from accucompare.scripts.handshake import Claim, claim
from accucompare.scripts.plan import Action, Plan
from tests.conftest import ROOT, Run
from tests.forkserver import with_torch
from tests.scripts.forked import UNEDITED, run

COMMAND = [sys.executable, "-m", "accucompare"]


def environment(**variables: str) -> dict[str, str]:
    path = os.pathsep.join([variables.pop("PYTHONPATH", ""), str(ROOT)]).strip(os.pathsep)
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables}


def test_a_rank_is_another_process_s_while_that_one_says_who_it_is(tmp_path: Path) -> None:
    own = Claim(pid=2, within=[], trains=True)
    (tmp_path / "rank0.claim").touch()
    may, note = claim(tmp_path, 0, own)
    assert (may, note) == (
        False,
        "another process was rank 0 before this one, and is the one that was looked at",
    )
    assert claim(tmp_path, 1, own) == (True, "")


def test_a_script_is_captured_by_its_command_and_keeps_its_output_and_the_machines_own_start(
    tmp_path: Path,
) -> None:
    for name in ("sitecustomize", "usercustomize"):
        (tmp_path / f"{name}.py").write_text(f"import builtins\nbuiltins.{name} = True\n")
    start = (
        "import builtins, runpy, sys\nprint(builtins.sitecustomize, hasattr(builtins,"
        f" 'usercustomize'), sys.path[1:2] == [{str(tmp_path)!r}])\n"
    )
    script = tmp_path / "script.py"
    script.write_text(
        f"{start}runpy.run_path({str(UNEDITED / 'loop.py')!r}, run_name='__main__')\nsys.exit(3)\n"
    )
    (tmp_path / "start.py").write_text(start)
    variables = environment(
        PYTHONPATH=str(tmp_path), TORCH_DEVICE_BACKEND_AUTOLOAD="0", PYTHONNOUSERSITE=""
    )
    begun = subprocess.run(
        [sys.executable, tmp_path / "start.py"], env=variables, capture_output=True, text=True
    )
    plain = begun.stdout + run(tmp_path, UNEDITED / "loop.py", "--lr", "1").out
    command = [
        *COMMAND,
        "capture",
        "--out",
        "golden",
        "--steps",
        "0,3",
        "--",
        sys.executable,
        script,
        "--lr",
        "1",
    ]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stdout == plain
    assert "captured 2 steps" in done.stderr
    assert done.stdout.startswith("True ")
    # the compiler knows PyTorch's own __call__, and no hook is left
    assert "True\n0 True\n" in done.stdout
    with ac.open_bundle(tmp_path / "golden") as bundle:
        assert bundle.complete


def test_no_model_is_trouble_with_what_was_seen(cli: Run, tmp_path: Path) -> None:
    done = cli("capture", "--", sys.executable, "-c", "print('hello')", PYTHONPATH=str(ROOT))
    assert done.returncode == 2
    assert done.stdout == "hello\n"
    assert "no process of the command imported torch" in done.stderr
    assert not (tmp_path / "captured").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["capture", "--device", "npu", "--", "true"], "the script chooses its device"),
        (["capture", "case.py", "--", "true"], "give a case, or a command after --"),
        (["capture", "--"], "after -- give the command"),
        (["capture", "--model", "Net", "case.py"], "--model: is for a script"),
        (["watch", "--hf32", "--", "true"], "the script sets its device's flags"),
        (["run", "--list"], "give the command after --"),
        (["capture", "--", "no-such-command"], "no-such-command: cannot be run"),
    ],
)
def test_what_does_not_go_together_is_refused(cli: Run, arguments: list[str], message: str) -> None:
    done = cli(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_signal_goes_to_the_script_which_decides(tmp_path: Path) -> None:
    (tmp_path / "golden").mkdir()
    script = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *a: sys.exit(7));"
        " print('up', flush=True); time.sleep(60)"
    )
    command = [*COMMAND, "capture", "--out", "golden", "--", sys.executable, "-c", script]
    running = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "up\n"
    running.send_signal(signal.SIGTERM)
    running.communicate()
    assert running.returncode == 7


def test_ctrl_c_ends_the_script_as_in_a_shell(tmp_path: Path) -> None:
    command = [
        *COMMAND,
        "capture",
        "--",
        sys.executable,
        "-c",
        "import time; print('up', flush=True); time.sleep(60)",
    ]
    running = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "up\n"
    os.killpg(running.pid, signal.SIGINT)  # as a terminal sends it, to all of its processes
    running.communicate()
    assert running.returncode == 130


@pytest.mark.parametrize("flag", ["-I", "-E"])
def test_python_that_does_not_read_pythonpath_is_told(tmp_path: Path, flag: str) -> None:
    command = [
        *COMMAND,
        "capture",
        "--out",
        "golden",
        "--",
        sys.executable,
        flag,
        "-c",
        "print('ran')",
    ]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "ran\n")
    assert "`python -I` and `-E` do not read PYTHONPATH" in done.stderr


def test_nothing_of_ours_is_loaded_by_an_import_of_torch() -> None:
    """An entry point of torch's would break every import of torch once the package's folder is
    moved.
    """
    assert "torch.backends" not in (ROOT / "pyproject.toml").read_text()


CELLS = (
    (
        "import torch\ntorch.manual_seed(0)\nnet = torch.nn.Linear(3, 2)\noptimizer ="
        " torch.optim.SGD(net.parameters(), 0.1)"
    ),
    (
        "for step in range(3):\n    optimizer.zero_grad()\n    net(torch.ones(2,"
        " 3)).square().sum().backward()\n    optimizer.step()"
    ),
    "print(net.weight.sum().item().hex())",
)


@pytest.mark.skipif(
    not (find_spec("papermill") and find_spec("ipykernel")),
    reason="papermill or ipykernel is not installed",
)
def test_a_notebook_is_captured_through_papermill_with_the_result_of_a_script(
    tmp_path: Path,
) -> None:
    cells = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": str(at),
            "metadata": {},
            "outputs": [],
            "source": source,
        }
        for at, source in enumerate(CELLS)
    ]
    kernel = {"name": "python3", "display_name": "python3", "language": "python"}
    notebook = {
        "cells": cells,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (tmp_path / "in.ipynb").write_text(json.dumps(notebook))
    papermill = [sys.executable, "-m", "papermill", "in.ipynb", "out.ipynb", "--no-progress-bar"]
    command = [*COMMAND, "capture", "--out", "golden", "--steps", "0,2", "--", *papermill]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(IPYTHONDIR=str(tmp_path)),
        capture_output=True,
        text=True,
    )
    plain = run(tmp_path, "\n".join(CELLS), plan={"out": str(tmp_path / "plain"), "steps": "0,2"})
    assert done.returncode == 0, done.stderr
    assert plain.out.strip() in (tmp_path / "out.ipynb").read_text()
    assert ac.diff(tmp_path / "golden", plain.bundle).answer.value == "identical"


@pytest.fixture(scope="module")
def by_torchrun(
    tmp_path_factory: pytest.TempPathFactory, python: list[str]
) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = tmp_path_factory.mktemp("torchrun")
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
        "--no-python",
        *python,
        UNEDITED / "distributed.py",
    ]
    command = [*COMMAND, "capture", "--out", "golden", "--steps", "0,2", "--", *torchrun]
    return (
        subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True),
        folder / "golden",
    )


def test_torchrun_writes_its_ranks_into_one_bundle(
    by_torchrun: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    done, golden = by_torchrun
    assert (done.returncode, "captured 2 steps of 2 ranks" in done.stderr) == (0, True)
    with ac.open_bundle(golden) as bundle:
        assert bundle.complete
        assert bundle.manifest.ranks == 2


#: Runs a script as torchrun does, but in two forks of this process; under a plan, if its path is
# given, too.
TWO_RANKS = """
import atexit, os, runpy, sys
from torch.distributed import TCPStore

store = TCPStore(
    "127.0.0.1", 0, is_master=True, wait_for_workers=False
)  # here, so that nobody else takes the port
for rank in "01":
    if not os.fork():
        os.environ.update(
            RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port)
        )
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        if len(sys.argv) > 2:
            from accucompare.scripts.script import begin

            begin(sys.argv[2])
        runpy.run_path(sys.argv[1], run_name="__main__")
        atexit._run_exitfuncs()
        os._exit(0)
for rank in "01":
    os.wait()
"""


def test_ranks_compute_and_record_the_same_however_they_are_started(
    by_torchrun: tuple[subprocess.CompletedProcess[str], Path], python: list[str], tmp_path: Path
) -> None:
    plain = with_torch()(
        TWO_RANKS, UNEDITED / "distributed.py", cwd=tmp_path, variables=environment()
    )
    command = [
        *COMMAND,
        "capture",
        "--out",
        "spawned",
        "--steps",
        "0,2",
        "--",
        *python,
        UNEDITED / "spawned.py",
    ]
    spawned = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert spawned.returncode == 0
    printed = [sorted(each.stdout.splitlines()) for each in (plain, by_torchrun[0], spawned)]
    assert len(printed[0]) == 2
    assert printed[0] == printed[1] == printed[2]
    assert ac.diff(by_torchrun[1], tmp_path / "spawned").answer.value == "identical"


def test_locate_runs_a_script_without_accelerators_and_again_fed(
    cli: Run, python: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as a device's own operator may have it
    fault = 'x * (1.05 if os.environ.get("CUDA_VISIBLE_DEVICES", "all") else 1)'
    script = (
        (UNEDITED / "loop.py")
        .read_text()
        .replace("self.inner(x)", f"self.inner({fault})")
        .replace("import sys", "import os\nimport sys")
    )
    (tmp_path / "script.py").write_text(script)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    done = cli("locate", "--device", "cpu", "-q", "--", *python, "script.py")
    assert done.returncode == 1, done.stderr
    assert "bug: (root) (glue, before inner)" in done.stdout


def test_a_script_that_is_fed_draws_its_random_numbers_under_goldens_seed(
    cli: Run, python: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nfrom torch import nn\nnet = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3),"
        " nn.Linear(16, 4))\noptimizer = torch.optim.SGD(net.parameters(),"
        " 0.1)\nnet(torch.randn(32, 8)).square().mean().backward()\noptimizer.step()\n"
    )
    golden = run(tmp_path, script, plan={"seed": 5}).bundle
    options = ("--device", "cpu", "--golden", str(golden), "--report", "none")
    done = cli("locate", *options, "--", *python, script)
    assert (done.returncode, done.stdout.partition(" ")[0]) == (0, "IDENTICAL"), done.stderr


def test_the_commands_of_a_scripts_baseline_can_be_typed_and_judge_rounding_as_such(
    cli: Run, python: list[str], tmp_path: Path
) -> None:
    """On a CPU, torch sums the gradients of a LayerNorm's weight and bias in the half type."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nimport torch\nfrom torch import nn\ndtype = getattr(torch,"
        " sys.argv[1])\ntorch.manual_seed(0)\nnet = nn.Sequential(nn.LayerNorm(8), nn.Linear(8,"
        " 4)).to(dtype)\noptimizer = torch.optim.SGD(net.parameters(), 0.1)\nnet(torch.randn(256,"
        " 8).to(dtype)).float().square().sum().backward()\noptimizer.step()\n"
    )
    golden, lowered = ([*python, str(script), dtype] for dtype in ("float32", "bfloat16"))
    assert cli("capture", "--out", "golden", "--", *golden).returncode == 0
    options = ("--device", "cpu", "--golden", "golden", "--report", "none")
    found = cli("locate", *options, "--", *lowered)
    told = found.stderr.partition("compute in bfloat16 on the CPU: ")[2].splitlines()[0]
    capture, _, diff = (
        shlex.split(part)[1:] for part in told.replace(" COMMAND, then ", "|,|").split("|")
    )
    assert cli(*capture, *lowered).returncode == 0
    judged = cli(*diff, "--report", "none", "-q")
    assert (judged.returncode, judged.stdout.partition(" ")[0]) == (0, "PASS"), judged.stdout


def test_a_sharded_model_is_captured_by_all_ranks_and_computes_what_it_does_without(
    tmp_path: Path,
) -> None:
    plan = Plan(
        action=Action.CAPTURE, folder=str(tmp_path), out=str(tmp_path / "golden"), steps="0,2"
    )
    plan.write(tmp_path / "plan")
    plain, captured = (
        with_torch()(
            TWO_RANKS, UNEDITED / "sharded.py", *arguments, cwd=tmp_path, variables=environment()
        )
        for arguments in ((), (tmp_path / "plan",))
    )
    assert len(plain.stdout.splitlines()) == 2
    assert sorted(captured.stdout.splitlines()) == sorted(plain.stdout.splitlines())
    with ac.open_bundle(tmp_path / "golden") as bundle:
        assert bundle.complete
        assert (bundle.manifest.ranks, {entry.step for _, entry in bundle.steps()}) == (2, {0, 2})


_TRAIN = """
import os, signal, subprocess, sys

def train(width, steps=4, then=lambda: None):
    import torch
    model = torch.nn.Linear(width, width)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        model(torch.ones(1, width)).sum().backward()
        optimizer.step()
    then()

def forked():
    if os.fork() == 0:
        train(3)
        os._exit(0)
    os.wait()

def started():
    subprocess.run([*sys.argv[1:], "started.py"], check=True)
"""


@pytest.fixture
def run_training(cli: Run, python: list[str], tmp_path: Path) -> Run:
    def run(action: str, code: str, *options: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "train.py").write_text(_TRAIN)
        (tmp_path / "script.py").write_text(f"from train import *\n{code}\n")
        (tmp_path / "started.py").write_text("from train import *\ntrain(3)\n")
        command = [*python, "script.py", *python]
        return cli(action, "--out", "out", *options, "--", *command, PYTHONPATH=str(tmp_path))

    return run


@pytest.mark.parametrize("child", ["forked()", "started()"])
def test_what_the_script_itself_trains_is_captured_though_a_process_that_it_starts_trains_before(
    child: str, run_training: Run, tmp_path: Path
) -> None:
    done = run_training("capture", f"{child}\ntrain(5)")
    assert done.returncode == 0
    assert "ran a model before; the one of" in done.stderr
    with ac.open_bundle(tmp_path / "out") as bundle:
        assert bundle.complete
        assert bundle.load("").shape == (1, 5)


def test_the_training_of_a_process_that_the_script_starts_is_captured_if_there_is_no_other(
    run_training: Run, tmp_path: Path
) -> None:
    done = run_training(
        "capture", "forked()\nimport torch\ntorch.nn.Linear(5, 5)(torch.ones(1, 5))"
    )
    assert "another process was rank 0 before this one" in done.stderr
    with ac.open_bundle(tmp_path / "out") as bundle:
        assert bundle.load("").shape == (1, 3)


@pytest.mark.parametrize("action", ["capture", "watch"])
def test_a_script_that_is_killed_is_told_with_its_steps(action: str, run_training: Run) -> None:
    code = "train(3, 3, lambda: os.kill(os.getpid(), signal.SIGKILL))"
    done = run_training(action, code, "--steps", "7")
    assert done.returncode == 128 + signal.SIGKILL
    assert "was killed after 3 steps" in done.stderr
    assert "ended after 0" not in done.stderr
