"""What takes seconds to make, made by one of the test processes for all of them."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forkserver import ROOT, with_torch


def folder_for_all(factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder that all test processes share."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    return folder


@contextlib.contextmanager
def locked_for_all(folder: Path) -> Iterator[None]:
    """One process at a time."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def made_once(factory: pytest.TempPathFactory, name: str, program: str, *arguments: str) -> Path:
    """A folder in which one test process has run a program, which is given the folder first."""
    folder = folder_for_all(factory, name)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    variables = {**os.environ, "PYTHONPATH": path}
    with locked_for_all(folder):
        if not (folder / "made").exists():
            done = with_torch()(program, folder, *arguments, cwd=folder, variables=variables)
            assert done.returncode == 0, done.stderr
            (folder / "made").touch()
    return folder
