"""Captures that are stopped at any point, and user code that ends the process itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import accucompare as ac
from accucompare.recorder.recording import making
from tests.attacks.conftest import Command
from tests.compare.builder import item, write
from tests.conftest import ROOT, Run

#: Overwrites the bundle `b` once for each call of the system that changes files, and is stopped at
# that call.
STOPPED = """
import os, signal, shutil, sys
from pathlib import Path
from accucompare.bundle.writing.lock import locked
from accucompare.bundle.format.manifest import Manifest, holds_bundle
from accucompare.bundle.reading.reader import open_bundle
from accucompare.bundle.writing.directory import (
    forget_previous,
    prepare_directory,
    restore_previous,
)
from accucompare.bundle.writing.writer import BundleWriter
from accucompare.errors import BundleError
from tests.compare.builder import item, write

number, golden, here = int(sys.argv[1]), Path("golden"), Path("b")
CHANGES = {"os.rename", "os.mkdir", "os.rmdir", "os.remove"}

def overwrite(value):
    with locked(here):
        prepare_directory(here, overwrite=True)
        write(here, [item("fc", [value])])
        forget_previous(here)

def stopped_at(call):
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] != 0
    left = [call]

    def count(event, arguments):
        if event in CHANGES:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), number)

    sys.addaudithook(count)
    overwrite(2.0)
    os._exit(0)

def values(path):
    with open_bundle(path) as bundle:
        return [bundle.load(record.name).tolist() for record in bundle.records()]

call = 0
while True:
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(golden, here)
    if not stopped_at(call):
        break
    if not holds_bundle(here):
        try:
            open_bundle(here)
        except BundleError as error:
            assert "the one that was to be overwritten is in b/.previous" in str(error), error
        restore_previous(here)
    found = values(here)
    assert [1.0] in found or [2.0] in found or [1.0] in values(here / ".previous"), call
    overwrite(3.0)  # the next run needs nothing but --overwrite
    assert values(here) == [[3.0]], call
    assert sorted(path.name for path in here.iterdir()) == ["manifest.json", "mine.txt", "rank0"], (
        call
    )
    call += 1
print(call)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_a_bundle_that_was_being_overwritten_is_never_lost_and_never_in_the_way(
    tmp_path: Path, number: signal.Signals
) -> None:
    write(tmp_path / "golden", [item("fc", [1.0])])
    (tmp_path / "golden" / "mine.txt").write_text("mine")
    command = [sys.executable, "-c", STOPPED, str(int(number))]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


# User code that ends the process, in the case's own functions

CASE = """
import os, signal, sys
import torch
from torch import nn
from accucompare import Case

class Ending(nn.Module):
    def __init__(self, end):
        super().__init__()
        self.end, self.fc, self.calls = end, nn.Linear(3, 3), 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 2:
            self.end()
        return self.fc(x)

def case(of_model, of_loss=lambda: None, of_optimizer=lambda: None):
    class Optimizer(torch.optim.SGD):
        def step(self, closure=None):
            of_optimizer()

    def loss(y):
        of_loss()
        return y.sum()

    model = Ending(of_model)
    return Case(
        model, [torch.ones(2, 3)] * 3, loss=loss, optimizer=Optimizer(model.parameters(), 0.1)
    )
"""
ENDS = {
    "sys.exit(0)": "sys.exit(0)",
    "sys.exit()": "sys.exit()",
    "sys.exit(1)": "sys.exit(1)",
    "a text": "sys.exit('enough')",
}
PLACES = ["of_model", "of_loss", "of_optimizer"]


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("verb", ["capture", "watch", "locate"])
def test_an_exit_of_the_users_code_is_trouble(
    command: Command, tmp_path: Path, verb: str, place: str, end: str
) -> None:
    arguments = (
        f"{place}=lambda: {end}" if place == "of_model" else f"lambda: None, {place}=lambda: {end}"
    )
    source = f"{CASE}\nmake = case\ndef case():\n    return make({arguments})\n"
    (tmp_path / f"{verb}_{place}.py").write_text(source)
    options = {
        "capture": ["--device", "cpu"],
        "watch": ["--device", "cpu"],
        "locate": ["--device", "cpu"],
    }[verb]
    done = command(verb, f"{verb}_{place}.py", *options, "--out", "out", "-q")
    assert done.code == 2
    assert "SystemExit" in done.err
    if verb == "watch":
        assert "What was watched until then: accucompare overflow out" in done.err
        assert command("overflow", "out").code == 2
    else:
        bundle = "out/golden" if verb == "locate" else "out"
        assert f"hat was recorded until then is in {bundle}, marked incomplete" in done.err
        with ac.open_bundle(tmp_path / bundle) as opened:
            assert opened.manifest.stopped is not None
            assert opened.manifest.stopped["error"].startswith("SystemExit")
            assert opened.steps() or place == "of_optimizer"


@pytest.mark.parametrize("place", ["module", "forward", "thread"])
@pytest.mark.parametrize("verb", ["capture", "watch", "locate"])
def test_os_exit_of_the_users_code_is_trouble(
    forked: Run, tmp_path: Path, verb: str, place: str
) -> None:
    thread = (
        "import threading\ndef end():\n    thread = threading.Thread(target=os._exit, args=(0,))\n "
        "   thread.start()\n    thread.join()\n"
    )
    ends = {
        "module": "os._exit(0)",
        "forward": "make = case\ndef case():\n    return make(lambda: os._exit(0))",
    }
    ends["thread"] = f"make = case\n{thread}def case():\n    return make(end)"
    (tmp_path / "leaving.py").write_text(f"{CASE}\n{ends[place]}\n")
    done = forked(verb, "leaving.py", "--device", "cpu", "--out", "out", "-q")
    assert done.returncode == 2
    if verb == "capture" and place != "module":
        with ac.open_bundle(tmp_path / "out") as bundle:
            assert not bundle.complete


@pytest.mark.parametrize("verb", ["capture", "watch", "locate"])
def test_an_interrupt_in_the_users_code_stays_130(
    command: Command, tmp_path: Path, verb: str
) -> None:
    (tmp_path / f"{verb}_interrupted.py").write_text(
        f"{CASE}\nmake = case\ndef stop():\n    raise KeyboardInterrupt\ndef case():\n    return"
        " make(stop)\n"
    )
    done = command(verb, f"{verb}_interrupted.py", "--device", "cpu", "--out", "out", "-q")
    assert done.code == 130
    assert "accucompare: interrupted; " in done.err


def test_an_interrupt_while_a_dataclass_is_made_is_130(process: Run, tmp_path: Path) -> None:
    """CPython 3.11's ``python -m`` ends by SIGINT after an interrupt that left an ``exec`` of text,
    even one that was caught.
    """
    (tmp_path / "of_text.py").touch()
    (tmp_path / "torch.py").write_text('exec("raise KeyboardInterrupt")')
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    done = process("capture", "of_text.py", "--out", "out", PYTHONPATH=path)
    assert (done.returncode, done.stderr.strip()) == (130, "accucompare: interrupted")


@pytest.mark.parametrize("end", ["sys.exit(0)", "raise SystemExit"])
@pytest.mark.parametrize("place", ["module", "class"])
def test_an_exit_while_the_case_is_made_is_trouble(
    command: Command, tmp_path: Path, place: str, end: str
) -> None:
    body = f"import sys\n{end}" if place == "module" else f"import sys\ndef case():\n    {end}"
    (tmp_path / f"ending_{place}_{len(end)}.py").write_text(body)
    done = command("capture", f"ending_{place}_{len(end)}.py", "--out", "out")
    assert done.code == 2
    assert "SystemExit" in done.err


def test_an_interrupted_overwriting_says_where_the_earlier_bundle_is(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "overwriting.py").write_text(
        f"{CASE}\nmake = case\ndef stop():\n    raise KeyboardInterrupt\n"
        "def bad():\n    return make(stop)\ndef case():\n    return make(int)\n"
    )
    assert command("capture", "overwriting.py", "--out", "out").code == 0
    done = command("capture", "overwriting.py:bad", "--out", "out", "--overwrite")
    assert done.code == 130
    assert "the bundle that it was to replace is in out/.previous" in done.err


def test_a_capture_that_could_not_record_a_call_is_trouble(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unrecorded.py").write_text(
        f"{CASE}\nmake = case\ndef case():\n    return make(int)\n"
    )

    def explode(*_: Any) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setattr(making, "to_host", explode)
    done = command("capture", "unrecorded.py", "--out", "out", "--repeat", "2")
    assert done.code == 2
    assert "captured 3 steps" in done.out
    assert done.err.startswith(
        "accucompare: out: is incomplete: 18 module call(s) could not be recorded; the first: "
    )
    assert "RuntimeError: no memory" in done.err
