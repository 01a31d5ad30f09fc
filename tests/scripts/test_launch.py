"""Commands that run scripts, in fresh processes: how we get in, and what the command makes of the script's end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import accucompare as ac
from accucompare.scripts.plan import Action, Plan
from tests.conftest import ROOT, Run
from tests.forkserver import with_torch
from tests.scripts.forked import UNEDITED

COMMAND = [sys.executable, "-m", "accucompare"]


def environment(**variables: str) -> dict[str, str]:
    path = os.pathsep.join([variables.pop("PYTHONPATH", ""), str(ROOT)]).strip(os.pathsep)
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables}


def test_a_script_is_captured_by_its_command_and_keeps_its_output_and_the_machines_own_start(tmp_path: Path) -> None:
    for name in ("sitecustomize", "usercustomize"):
        (tmp_path / f"{name}.py").write_text(f"import builtins\nbuiltins.{name} = True\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import builtins, runpy, sys\n"
        f"print(builtins.sitecustomize, hasattr(builtins, 'usercustomize'), sys.path[1:2] == [{str(tmp_path)!r}])\n"
        f"runpy.run_path({str(UNEDITED / 'loop.py')!r}, run_name='__main__')\nsys.exit(3)\n"
    )
    variables = environment(PYTHONPATH=str(tmp_path), TORCH_DEVICE_BACKEND_AUTOLOAD="0", PYTHONNOUSERSITE="")
    plain = subprocess.run([sys.executable, script, "--lr", "1"], env=variables, capture_output=True, text=True)
    command = [*COMMAND, "capture", "--out", "golden", "--steps", "0,3", "--", sys.executable, script, "--lr", "1"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stdout == plain.stdout
    assert "captured 2 steps" in done.stderr
    assert done.stdout.startswith("True ")
    assert "True\n0 True\n" in done.stdout  # the compiler knows PyTorch's own __call__, and no hook is left
    with ac.open_bundle(tmp_path / "golden") as bundle:
        assert bundle.complete


def test_torch_itself_lets_us_in_through_the_entry_point(tmp_path: Path) -> None:
    info = tmp_path / "site" / "accucompare_entry-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: accucompare-entry\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torch.backends]\nours = accucompare.scripts.entry:autoload\n")
    Plan(action=Action.LIST, folder=str(tmp_path)).write(tmp_path / "plan")
    variables = environment(PYTHONPATH=str(tmp_path / "site"), ACCUCOMPARE_SCRIPT=str(tmp_path / "plan"), TORCH_DEVICE_BACKEND_AUTOLOAD="1")
    subprocess.run([sys.executable, "-c", "import torch; torch.nn.Linear(2, 2)(torch.ones(2))"], env=variables, check=True)
    (hand,) = tmp_path.glob("*.json")
    assert '"way":"entry point"' in hand.read_text()
    assert '"name":"Linear"' in hand.read_text()


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
    script = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *a: sys.exit(7)); print('up', flush=True); time.sleep(60)"
    command = [*COMMAND, "capture", "--out", "golden", "--", sys.executable, "-c", script]
    running = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "up\n"
    running.send_signal(signal.SIGTERM)
    running.communicate()
    assert running.returncode == 7


@pytest.fixture(scope="module")
def by_torchrun(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = tmp_path_factory.mktemp("torchrun")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", UNEDITED / "distributed.py"]
    command = [*COMMAND, "capture", "--out", "golden", "--steps", "0,2", "--", *torchrun]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True), folder / "golden"


def test_torchrun_writes_its_ranks_into_one_bundle(by_torchrun: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, golden = by_torchrun
    assert (done.returncode, "captured 4 steps" in done.stderr) == (0, True)
    with ac.open_bundle(golden) as bundle:
        assert bundle.complete
        assert bundle.manifest.ranks == 2


#: Runs distributed.py as torchrun does, but in two forks of this process.
TWO_RANKS = """
import os, runpy, socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    port = str(server.getsockname()[1])
for rank in "01":
    if not os.fork():
        os.environ.update(RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        runpy.run_path(sys.argv[1], run_name="__main__")
        os._exit(0)
for rank in "01":
    os.wait()
"""


def test_ranks_compute_and_record_the_same_however_they_are_started(
    by_torchrun: tuple[subprocess.CompletedProcess[str], Path], tmp_path: Path
) -> None:
    plain = with_torch()(TWO_RANKS, UNEDITED / "distributed.py", cwd=tmp_path, variables=environment())
    command = [*COMMAND, "capture", "--out", "spawned", "--steps", "0,2", "--", sys.executable, UNEDITED / "spawned.py"]
    spawned = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert spawned.returncode == 0
    printed = [sorted(each.stdout.splitlines()) for each in (plain, by_torchrun[0], spawned)]
    assert len(printed[0]) == 2
    assert printed[0] == printed[1] == printed[2]
    assert ac.diff(by_torchrun[1], tmp_path / "spawned").answer.value == "identical"
