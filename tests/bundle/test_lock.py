"""A directory takes one capture at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from accucompare.bundle.writing.lock import locked
from accucompare.errors import CaptureError

HOLD = """
from pathlib import Path
from accucompare.bundle.writing.lock import locked
with locked(Path("b")):
    print("locked", flush=True)
    input()
"""


def test_a_directory_takes_one_capture_at_a_time_and_a_killed_one_blocks_nobody(
    tmp_path: Path,
) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "locked\n"
            with (
                pytest.raises(
                    CaptureError,
                    match=(
                        "b: another capture is writing to it; wait for its end or choose another"
                        " place"
                    ),
                ),
                locked(tmp_path / "b"),
            ):
                pass
        finally:
            other.kill()
    with locked(tmp_path / "b"):
        pass


def test_a_lock_ends_with_its_context(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="ours"), locked(tmp_path / "b"):
            raise ValueError("ours")


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("x")
    with (
        pytest.raises(
            CaptureError, match=r"b: exists and is not a directory; choose another place"
        ),
        locked(tmp_path / "b"),
    ):
        pass


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(CaptureError, match=r"file/b: cannot be written \(Not a directory\)"),
        locked(tmp_path / "file" / "b"),
    ):
        pass
