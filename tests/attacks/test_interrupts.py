"""Ctrl-C at any point of any command: exit code 130, one line that is true, nothing broken or left
behind, and the command runs again.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from accucompare.bundle.reading.reader import open_bundle
from accucompare.errors import AccucompareError
from tests.conftest import ROOT
from tests.forkserver import with_torch, without_torch

CASE = """
import torch
from torch import nn
from accucompare import Case

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.down(Square.apply(self.up(x)))

def case():
    model = Net()
    return Case(
        model,
        [torch.randn(2, 3)] * 2,
        loss=torch.sum,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
    )
"""
#: Runs a command, and interrupts it at one of its calls of our functions; 0 for none. The number
# of calls is left in a file.
INTERRUPTED = """
import inspect, os, signal, sys
from pathlib import Path
from accucompare.cli import main

place, calls = int(sys.argv.pop(1)), 0

def count(frame, event, argument):
    global calls
    ours = frame.f_globals.get("__name__", "").startswith("accucompare.")
    if (
        event == "call" and ours and not frame.f_code.co_flags & inspect.CO_GENERATOR
    ):  # Python drops what is raised while it closes one
        calls += 1
        if calls == place:
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGINT)

sys.setprofile(count)
try:
    main()
finally:
    sys.setprofile(None)
    Path("calls").write_text(str(calls))
"""
COMMANDS = {
    "capture": "capture case.py --out golden --overwrite --with-baseline bfloat16",
    "diff": "diff golden candidate --report r.html --json r.json",
    "locate": "locate case.py --device cpu --golden golden --report r.html --overwrite",
    "watch": "watch case.py --out log",
    "health": "health log --report r.html",
    "overflow": "overflow log --report r.html",
    "gradcheck": "gradcheck case.py",
    "show": "show golden up --save up.npy",
    "verify": "verify golden",
    "import": "import dump --from folder --name-pattern {name}.{role} --out candidate --overwrite",
    "export": "export golden.json --to model-explorer --out r.graph.json",
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what the commands need."""
    folder = tmp_path_factory.mktemp("interrupts")
    (folder / "case.py").write_text(CASE)
    (folder / "dump").mkdir()
    np.save(folder / "dump" / "up.output.npy", np.ones((2, 4), np.float32))
    for command in (
        "capture case.py --out golden",
        "capture case.py --out candidate --dtype bfloat16",
        "watch case.py --out log",
        "diff golden golden --report none --json golden.json",
    ):
        run(folder, 0, command)
    return folder


def run(folder: Path, place: int, command: str) -> subprocess.CompletedProcess[str]:
    return with_torch()(
        INTERRUPTED,
        str(place),
        *command.split(),
        cwd=folder,
        variables={**os.environ, "COLUMNS": "100"},
    )


def holds_whole_bundle(folder: Path) -> bool:
    try:
        with open_bundle(folder) as bundle:
            return bundle.complete
    except AccucompareError:
        return False


@pytest.mark.parametrize("verb", COMMANDS)
def test_an_interrupt_breaks_nothing(verb: str, prepared: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    shutil.copytree(prepared, here)
    undisturbed = run(here, 0, COMMANDS[verb]).returncode
    calls = int((here / "calls").read_text())
    for place in (10, calls // 4, 3 * calls // 4):
        shutil.rmtree(here)
        shutil.copytree(prepared, here)
        done = run(here, place, COMMANDS[verb])
        assert done.returncode == 130, done.stderr
        assert "Traceback" not in done.stderr
        assert done.stderr.splitlines()[-1].startswith("accucompare: interrupted")
        for kept in ("golden", "candidate"):
            assert holds_whole_bundle(here / kept) or holds_whole_bundle(here / kept / ".previous")
        for told in re.findall(r"until then is in (\S+), marked incomplete", done.stderr):
            assert not open_bundle(here / told).complete
        left = [
            path.name
            for path in here.rglob("*")
            if path.suffix == ".part" or path.name.startswith((".baseline", "accucompare"))
        ]
        assert left == []
    assert run(here, 0, COMMANDS[verb]).returncode == undisturbed


#: Interrupts `diff` at a line of zipfile. Python 3.11 has it in one file, 3.12 in a directory.
IN_ZIPFILE = """
import os, signal, sys, zipfile
from accucompare.cli import main

function, number = sys.argv.pop(1), int(sys.argv.pop(1))

def trace(frame, event, argument):
    if event == "call":
        ours = frame.f_globals.get("__name__", "").startswith("zipfile")
        return trace if ours and frame.f_code.co_name == function else None
    global number
    number -= 1
    if number == 0:
        sys.settrace(None)
        os.kill(os.getpid(), signal.SIGINT)
    return trace

sys.settrace(trace)
main()
"""


@pytest.mark.parametrize("function", ["write", "close", "_open_to_write"])
@pytest.mark.parametrize("line", [3, 9, 60])
def test_a_workbook_half_written_does_not_complain(
    function: str, line: int, prepared: Path, tmp_path: Path
) -> None:
    report = tmp_path / "x.xlsx"
    diff = ["diff", prepared / "golden", prepared / "candidate", "--report", report]
    done = without_torch()(
        IN_ZIPFILE, function, str(line), *diff, cwd=tmp_path, variables=os.environ
    )
    assert (done.returncode, [*tmp_path.iterdir()]) == (130, []), done.stderr
    assert done.stderr.strip() == f"accucompare: interrupted; {report} is not written"


@pytest.mark.parametrize(
    "module", ["click", "accucompare.cli", "accucompare.cli.help", "accucompare.errors"]
)
@pytest.mark.parametrize("start", ["from accucompare.__main__ import main; main()", "-m"])
def test_an_interrupt_while_the_program_is_loaded_is_no_traceback(
    start: str, module: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {module!r}:\n"
        "            sys.meta_path.remove(self)\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
    )
    arguments = ["-m", "accucompare", "--version"] if start == "-m" else ["-c", start]
    variables = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, *arguments], env=variables, cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (130, "accucompare: interrupted\n")
