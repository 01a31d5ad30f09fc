"""Large members, written past the page cache where that can be done."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from accucompare.bundle.writing import archive_writer
from accucompare.bundle.writing.archive_writer import PAGE, WORTH_IT, ArchiveWriter, Rates

pytestmark = pytest.mark.skipif(
    not hasattr(os, "O_DIRECT"), reason="this system always writes through its page cache"
)


@pytest.fixture(autouse=True)
def rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_writer, "_rates", {})


def in_pages(values: np.ndarray, shift: int = 0) -> np.ndarray:
    """The same values in memory that begins at a page, or ``shift`` bytes after one."""
    memory = np.frombuffer(mmap.mmap(-1, values.nbytes + PAGE), np.uint8)
    found = memory[shift : shift + values.nbytes].view(values.dtype)
    found[:] = values
    return found


LARGE = np.arange(WORTH_IT // 4 + 333, dtype=np.float32)  # its end is no whole page
ARRAYS = {"small": np.arange(5), "large": LARGE, "next": np.arange(7.0), "last": LARGE[::-1].copy()}


def written(path: Path, shift: int = 0) -> Path:
    writer = ArchiveWriter(path)
    try:
        for name, array in ARRAYS.items():
            writer.add(name, in_pages(array, shift))
    except OSError:
        writer.discard()
        raise
    writer.finish()
    return path


def calls_of_write(monkeypatch: pytest.MonkeyPatch, error: int = 0) -> list[int]:
    """The lengths that ``os.write`` gets; it fails with ``error``, if given."""
    lengths: list[int] = []
    real = os.write

    def write(file: int, data: memoryview) -> int:
        lengths.append(len(data))
        if error:
            raise OSError(error, os.strerror(error))
        return real(file, data)

    monkeypatch.setattr(os, "write", write)
    return lengths


def test_the_file_is_the_same_past_the_cache_and_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rates, "prefer_past", lambda self: True)
    calls = calls_of_write(monkeypatch)
    past = written(tmp_path / "past.npz").read_bytes()
    assert calls == [LARGE.nbytes // PAGE * PAGE] * 2
    assert written(tmp_path / "shifted.npz", shift=64).read_bytes() == past
    assert len(calls) == 2  # no disk takes memory that begins anywhere
    with np.load(tmp_path / "past.npz") as loaded:
        assert all(np.array_equal(loaded[name], array) for name, array in ARRAYS.items())


@pytest.mark.parametrize("error", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_that_refuses_is_written_through_and_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    whole = written(tmp_path / "whole.npz").read_bytes()
    calls = calls_of_write(monkeypatch, error)
    assert written(tmp_path / "a.npz").read_bytes() == whole
    assert len(calls) == 1


def test_a_full_disk_is_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls_of_write(monkeypatch, errno.ENOSPC)
    with pytest.raises(OSError, match="No space left") as caught:
        written(tmp_path / "a.npz")
    assert caught.value.filename == str(tmp_path / "a.npz")


def measured(past: float, through: float | None = None) -> Rates:
    """Of a disk that took so many bytes a second."""
    rates = Rates()
    rates.note_past(1 << 30, (1 << 30) / past)
    if through is not None:
        rates.note_through(1 << 30, (1 << 30) / through)
    return rates


def test_a_disk_is_written_past_the_cache_unless_the_cache_is_faster_and_the_disk_slow() -> None:
    assert Rates().prefer_past()
    assert measured(past=600e6, through=5e9).prefer_past()
    assert not measured(past=400e6).prefer_past()  # the cache may be faster
    assert not measured(past=400e6, through=2e9).prefer_past()
    assert measured(past=400e6, through=300e6).prefer_past()  # it is full


def test_one_write_that_had_to_wait_changes_little() -> None:
    rates = measured(past=2e9)
    rates.note_past(1 << 20, 0.01)
    assert rates.prefer_past()
