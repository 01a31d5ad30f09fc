"""Captures that are stopped at any point, and user code that ends the process itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compare.builder import item, write
from tests.conftest import ROOT

#: Overwrites the bundle `b` once for each call of the system that changes files, and is stopped at that call.
STOPPED = """
import os, signal, shutil, sys
from pathlib import Path
from accucompare.bundle.lock import locked
from accucompare.bundle.manifest import Manifest, holds_bundle
from accucompare.bundle.reader import open_bundle
from accucompare.bundle.writer import BundleWriter, forget_previous, prepare_directory, restore_previous
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
    assert sorted(path.name for path in here.iterdir()) == ["manifest.json", "mine.txt", "rank0"], call
    call += 1
print(call)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_a_bundle_that_was_being_overwritten_is_never_lost_and_never_in_the_way(tmp_path: Path, number: signal.Signals) -> None:
    write(tmp_path / "golden", [item("fc", [1.0])])
    (tmp_path / "golden" / "mine.txt").write_text("mine")
    command = [sys.executable, "-c", STOPPED, str(int(number))]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
