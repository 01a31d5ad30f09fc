"""Writing a watch's log."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from accucompare.errors import UsageError
from accucompare.findings.log.events import End, Event, Step
from accucompare.findings.log.log import Log, read_log
from tests.compare.builder import item, write
from tests.findings.logs import NASTY, end, found, start, step


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    log = Log(tmp_path / "deep" / "rank0.jsonl")
    written: list[Event] = [start(), step(0), *(found(name) for name in NASTY), end()]
    for event in written:
        log.write(event)
    log.close()
    assert read_log(log.path) == [written]


def test_each_event_is_there_at_once(tmp_path: Path) -> None:
    log = Log(tmp_path / "rank0.jsonl")
    log.write(start())
    log.write(step(0))
    assert len(read_log(log.path)[0]) == 2
    log.close()


def test_a_run_is_added_after_the_ones_before(tmp_path: Path) -> None:
    for number in range(2):
        log = Log(tmp_path / "rank0.jsonl")
        log.write(start())
        log.write(step(number))
        log.close()
    assert [
        run[1].step for run in read_log(tmp_path / "rank0.jsonl") if isinstance(run[1], Step)
    ] == [0, 1]


def test_a_line_that_a_killed_process_left_unfinished_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    log = Log(path)
    log.write(start())
    log.write(step(0))
    log.close()
    path.write_bytes(path.read_bytes()[:-5])
    log = Log(path)
    log.write(start())
    log.close()
    assert [len(run) for run in read_log(path)] == [1, 1]


def test_a_log_that_is_nothing_but_an_unfinished_line_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(b'{"event":"sta')
    log = Log(path)
    log.write(start())
    log.close()
    assert len(read_log(path)) == 1


class _Small:
    """A disk with room for some bytes: it takes as many as it has, and then none."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def write(self, data: bytes) -> int:
        taken = bytes(data[: min(7, self._room)])
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._room -= len(taken)
        return int(self._file.write(taken))

    def close(self) -> None:
        self._file.close()


def test_an_event_that_the_disk_takes_in_parts_is_whole(tmp_path: Path) -> None:
    log = Log(tmp_path / "rank0.jsonl")
    log._file = _Small(log._file, 10**6)  # type: ignore[assignment]
    for event in (start(), end()):
        log.write(event)
    log.close()
    assert isinstance(read_log(log.path)[0][1], End)


def test_a_disk_that_is_full_in_the_middle_of_an_event_is_warned_of_and_what_was_before_can_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log(tmp_path / "rank0.jsonl")
    log.write(start())
    log._file = _Small(log._file, 20)  # type: ignore[assignment]
    log.write(step(0))
    cure = "free some space, or choose another disk"
    assert (
        log.failure
        == f"{log.path}: the log of the watch ends here (No space left on device); {cure}"
    )
    assert caplog.messages == [f"{log.failure}; the watch goes on"]
    log.write(step(1))
    assert [len(run) for run in read_log(log.path)] == [1]


@pytest.mark.parametrize("place", ["file/rank0.jsonl", "directory"])
def test_a_log_that_cannot_be_written_is_named(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()
    with pytest.raises(
        UsageError, match=r"the log of the watch cannot be written .*; .*choose another place"
    ):
        Log(tmp_path / place)


def test_after_the_end_nothing_is_written(tmp_path: Path) -> None:
    log = Log(tmp_path / "rank0.jsonl")
    log.write(start())
    log.close()
    log.close()
    log.write(end())
    assert len(read_log(log.path)[0]) == 1


@pytest.mark.parametrize("place", range(0, 60, 7))
def test_a_byte_that_is_not_utf_8_is_damage_of_its_line(tmp_path: Path, place: int) -> None:
    path = tmp_path / "rank0.jsonl"
    log = Log(path)
    for event in (start(), step(0), end()):
        log.write(event)
    log.close()
    lines = path.read_bytes().splitlines(keepends=True)
    place %= len(lines[1]) - 1
    lines[1] = lines[1][:place] + b"\xff" + lines[1][place + 1 :]
    path.write_bytes(b"".join(lines))
    with pytest.raises(UsageError, match="line 2: is no event of a watch"):
        read_log(path)


def test_a_log_is_not_written_into_a_bundle(tmp_path: Path) -> None:
    bundle = write(tmp_path / "golden", [item("fc1", [1.0])])
    with pytest.raises(UsageError, match=r"lies in the bundle .*golden; .* \(--out, out=\)"):
        Log(bundle / "watch" / "rank0.jsonl")
    assert not (bundle / "watch").exists()
