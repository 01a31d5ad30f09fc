"""Disks that are full after so many bytes: real ones, that a test mounts in a name space of its
own.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest

from tests.compare.builder import item, write
from tests.forkserver import CLI, ROOT, with_torch

_MOUNT = """
import ctypes, os, sys, tempfile

tempfile.tempdir = None  # it was looked for when this process began
libc = ctypes.CDLL(None, use_errno=True)
size, folder = sys.argv[1:3]
del sys.argv[1:3]
if libc.unshare(0x00020000) or libc.mount(
    b"none", b"/", None, 1 << 14 | 1 << 18, None
):  # a private name space
    sys.exit("cannot mount")
if libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, f"size={size}".encode()):
    sys.exit("cannot mount")
"""
CASE = """
import torch
from accucompare import Case

def case():
    model = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return Case(
        model,
        [torch.randn(8, 32) for _ in range(2)],
        loss=lambda out: out.sum(),
        optimizer=optimizer,
    )
"""
SCRIPT = """
import torch

model = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    model(torch.randn(8, 32)).sum().backward()
    optimizer.step()
"""
#: Starts what runs scripts in forks, in the same name space.
_SCRIPTS = "from tests.forked_python import listen; listen(sys.argv.pop(1))\n"
Full = Callable[..., CompletedProcess[str]]


@cache
def can_mount() -> bool:
    """Whether this user may mount a disk."""
    return os.name == "posix" and hasattr(ctypes.CDLL(None), "unshare") and os.geteuid() == 0


@pytest.fixture
def full(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Full:
    """Runs a command where ``disk`` has room for so many bytes; ``TMPDIR`` is elsewhere, if it is
    not given. After ``--`` stands a script.
    """
    if not can_mount():
        pytest.skip("only root can mount a disk")
    (tmp_path / "disk").mkdir()
    (tmp_path / "case.py").write_text(CASE)
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(size: int, *arguments: str, **variables: str) -> CompletedProcess[str]:
        environment = {**os.environ, "COLUMNS": "100", "PYTHONPATH": str(ROOT), **variables}
        program, socket, script = _MOUNT, [], []
        if "--" in arguments:
            program, socket = _MOUNT + _SCRIPTS, [tmp_path_factory.mktemp("scripts") / "socket"]
            script = ["--", sys.executable, ROOT / "tests" / "forked_python.py", *socket]
            arguments, (_, name) = arguments[:-2], arguments[-2:]
            script.append(name)
        done = with_torch()(
            program + CLI,
            str(size),
            tmp_path / "disk",
            *socket,
            *arguments,
            *script,
            cwd=tmp_path,
            variables=environment,
        )
        if "cannot mount" in done.stderr:
            pytest.skip("this machine lets nobody mount a disk")
        assert "Traceback" not in done.stderr
        assert "internal error" not in done.stderr
        return done

    return run


def the_full_file(done: CompletedProcess[str]) -> str:
    """The file that a command names that could not write on a full disk."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert "raised" not in done.stderr
    assert "free some space" in done.stderr
    (found,) = {
        each[1]
        for each in re.finditer(
            r"(\S+?): (?:cannot be written|the log of the watch ends here) \(No space left",
            done.stderr,
        )
    }
    return found


_PAGE = os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize(
    ("options", "pages"),
    [
        *(("", pages) for pages in (1, 2, 3, 4, 6, 10, 20)),
        ("--mode sketch", 4),
        *(("--save-state", pages) for pages in (2, 20)),
        ("--repeat 2", 20),
    ],
)
def test_a_capture_tells_which_file_a_full_disk_has_no_room_for(
    full: Full, options: str, pages: int
) -> None:
    done = full(
        pages * _PAGE,
        "capture",
        "case.py",
        "--device",
        "cpu",
        "--out",
        "disk/golden",
        *options.split(),
    )
    assert the_full_file(done).startswith("disk/golden/")


@pytest.mark.parametrize("pages", [1, 3, 6])
def test_an_import_does(full: Full, tmp_path: Path, pages: int) -> None:
    (tmp_path / "dump").mkdir()
    for number in range(6):
        np.save(tmp_path / "dump" / f"layer{number}.output.npy", np.arange(2000.0))
    assert the_full_file(full(pages * _PAGE, "import", "dump", "--out", "disk/npu")).startswith(
        "disk/npu/"
    )


def test_a_locate_does(full: Full) -> None:
    done = full(
        6 * _PAGE,
        "locate",
        "case.py",
        "--device",
        "cpu",
        "--out",
        "disk/locate",
        "--report",
        "none",
    )
    assert the_full_file(done).startswith("disk/locate/golden/")


def test_a_watch_does(full: Full) -> None:
    assert (
        the_full_file(full(_PAGE, "watch", "case.py", "--out", "disk/watch"))
        == "disk/watch/rank0.jsonl"
    )


@pytest.mark.parametrize(
    "name", ["x.xlsx", "x.html", "--json x.json", "--json x.jsonl", "--parquet x.parquet"]
)
def test_a_report_does(full: Full, tmp_path: Path, name: str) -> None:
    for side, value in (("golden", 1.0), ("npu", 2.0)):
        write(
            tmp_path / side,
            [item(f"layer{number}", [value, float(number)]) for number in range(40)],
        )
    option, _, file = f"--report {name}".rpartition(" ")
    wanted = [*option.split()[-1:], f"disk/{file}"]
    none = [] if wanted[0] == "--report" else ["--report", "none"]
    assert the_full_file(full(_PAGE, "diff", "golden", "npu", *wanted, *none)) == f"disk/{file}"


def test_of_a_full_disk_for_temporary_files_that_is_told(full: Full, tmp_path: Path) -> None:
    write(tmp_path / "golden", [item("fc", np.arange(4000.0))])
    in_full = {"TMPDIR": str(tmp_path / "disk")}
    done = full(_PAGE, "show", "golden", "fc", "--save", "/dev/stdout", **in_full)
    assert done.returncode == 2
    cure = (
        f"{tmp_path}/disk, where temporary files wait, is full: free some space there, or set"
        " TMPDIR to another disk"
    )
    assert (
        done.stderr
        == f"accucompare: /dev/stdout: cannot be written (No space left on device); {cure}\n"
    )


@pytest.mark.parametrize("command", ["capture", "watch"])
def test_a_script_that_is_observed_on_a_full_disk_runs_on_and_the_file_is_told(
    full: Full, command: str
) -> None:
    done = full(_PAGE, command, "--out", "disk/out", "--", "train.py")
    assert "/disk/out/rank0" in the_full_file(done)
    assert "no model" not in done.stderr


def test_a_script_whose_processes_cannot_say_what_they_saw_is_told_of_the_full_disk(
    full: Full, tmp_path: Path
) -> None:
    (tmp_path / "fills.py").write_text(
        "open('disk/rest', 'wb', buffering=0).write(bytes(1 << 20))\n" + SCRIPT
    )
    done = full(
        16 * _PAGE, "capture", "--out", "out", "--", "fills.py", TMPDIR=str(tmp_path / "disk")
    )
    assert done.returncode == 2
    assert "no process of the command imported torch" not in done.stderr
    assert (
        f"{tmp_path}/disk: what the script's processes see cannot be kept there (No space left on"
        " device); set TMPDIR" in done.stderr
    )
