"""Files that are read by position: as many as a bundle has, and only some of them open at once."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import accucompare as ac
from accucompare.bundle.format.byte_sources import OPEN_FILES, LocalFile
from tests.compare.builder import item, write

pytestmark = pytest.mark.skipif(
    not Path("/dev/fd").is_dir(), reason="the system does not list a process's descriptors"
)


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / str(number) for number in range(3 * OPEN_FILES)]
    for number, path in enumerate(paths):
        path.write_bytes(number.to_bytes(8, "little"))
    return paths


def test_any_number_of_files_is_read_by_threads_with_some_open(files: list[Path]) -> None:
    before = descriptors()
    sources = [LocalFile(path) for path in files]
    order = np.random.default_rng(0).integers(0, len(files), 2000).tolist()
    with ThreadPoolExecutor(8) as pool:
        read = list(
            pool.map(lambda number: int.from_bytes(sources[number].read(8, 0), "little"), order)
        )
    assert read == order
    assert descriptors() - before <= OPEN_FILES + 8  # others may be open already, and close
    for source in sources:
        source.close()
    assert descriptors() <= before


def test_a_file_that_was_replaced_while_it_was_closed_is_no_more_read(files: list[Path]) -> None:
    sources = [LocalFile(path) for path in files]
    files[0].with_suffix(".new").write_bytes(b"other!!!")
    files[0].with_suffix(".new").replace(files[0])
    assert sources[0].changed()
    with pytest.raises(OSError, match="changed while it was read"):
        sources[0].read(8, 0)
    for source in sources:
        source.close()


def test_a_diff_of_many_steps_has_few_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = []
    own = LocalFile.read

    def read(self: LocalFile, count: int, offset: int) -> bytes:
        most.append(descriptors())
        return own(self, count, offset)

    sides = [
        [item("fc", [float(step), side], step=step) for step in range(OPEN_FILES)]
        for side in (1.0, 1.5)
    ]
    golden, candidate = (write(tmp_path / str(number), side) for number, side in enumerate(sides))
    before = descriptors()
    monkeypatch.setattr(LocalFile, "read", read)
    assert len(ac.diff(golden, candidate, atol=1.0).rows) == OPEN_FILES
    assert max(most) - before <= OPEN_FILES + 10
