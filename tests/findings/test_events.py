"""The log of a watch: what is written is read, and what is damaged is named."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from accucompare.errors import UsageError
from accucompare.findings.log.events import Cause, Frames
from accucompare.findings.log.log import read_log
from accucompare.findings.log.vital_events import number
from tests.findings.logs import (
    NASTY,
    encoded,
    end,
    found,
    passed,
    seen,
    start,
    step,
    training,
    write,
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    events = training()
    assert read_log(write(tmp_path / "rank0.jsonl", *events)) == [events]


def test_runs_of_one_log_are_told_apart(tmp_path: Path) -> None:
    log = write(tmp_path / "log", start(), step(0), end(), start(model="Other"), found())
    assert [run[0] for run in read_log(log)] == [start(), start(model="Other")]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -1.5, 1e308])
def test_numbers_that_json_lacks_come_back(value: float) -> None:
    again = msgspec.json.decode(msgspec.json.encode(seen(low=number(value))), type=type(seen()))
    assert repr(float(again.low)) == repr(value)


@pytest.mark.parametrize("cut", range(2, 60, 7))
def test_a_last_line_that_is_cut_is_left_out(tmp_path: Path, cut: int) -> None:
    log = tmp_path / "log"
    log.write_bytes(encoded(start(), step(0), found())[:-cut])
    assert read_log(log) == [[start(), step(0)]]


def test_a_line_cut_before_another_run_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(
        encoded(start(), step(0)) + encoded(found())[:30] + b"\n" + encoded(start(), end())
    )
    assert read_log(log) == [[start(), step(0)], [start(), end()]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "holds no events"),
        (b'{"event":"start"', "holds no events"),
        (b"nonsense\n", "line 1: is no event"),
        (encoded(step(0)), "does not begin with a start"),
        (encoded(start()) + b"{}\n" + encoded(step(0)), "line 2: is no event"),
        (
            encoded(start()) + b'{"event":"step","step":0,"finite":true,"grad_norm":"big"}\n',
            "line 2: is no event",
        ),
        (b"\xff\xfe\n", "line 1: is no event"),
        (b"[" * 100_000 + b"\n", "line 1: is no event"),
    ],
)
def test_what_is_no_log_is_said_with_its_line(tmp_path: Path, content: bytes, said: str) -> None:
    log = tmp_path / "log"
    log.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        read_log(log)


@pytest.mark.parametrize("name", NASTY)
def test_names_come_back_as_they_were(tmp_path: Path, name: str) -> None:
    (run,) = read_log(write(tmp_path / "log", start(), found(name), Frames(0, []), passed(name)))
    assert run == [start(), found(name), Frames(0, []), passed(name)]


def test_a_finding_stays_as_it_was_found() -> None:
    finding = found(notes=["a"])
    later = finding.passing_on("b")
    assert (finding.origin, finding.notes, later.origin, later.cause, later.notes) == (
        True,
        ["a"],
        False,
        Cause.INPUTS,
        ["a", "b"],
    )
    with pytest.raises(AttributeError):
        finding.step = 1  # type: ignore[misc]
