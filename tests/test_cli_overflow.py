"""`accucompare overflow` and the options of `accucompare watch`, in real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from openpyxl import load_workbook

from accucompare.findings.log.log import log_path
from tests.conftest import Run
from tests.findings.logs import encoded, end, found, passed, start, step, training, write


def test_a_directory_of_two_ranks_is_told_and_reported(cli: Run, tmp_path: Path) -> None:
    for rank in range(2):
        write(log_path(tmp_path / "watch", rank), *training(rank))
    done = cli("overflow", "watch")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("NOT FINITE  watch: 2 origins, 18 passed on\n")
    assert done.stdout.endswith("report: reports/watch-overflow.xlsx\n")
    assert (
        load_workbook(tmp_path / "reports" / "watch-overflow.xlsx")["Findings"]["A1"].value
        == "NOT FINITE  watch: 2 origins, 18 passed on"
    )


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (encoded(start(), step(0), end()), 0, "FINITE"),
        (encoded(start(), found(), step(0), end()), 1, "NOT FINITE"),
        (
            encoded(start(), found(), step(0), passed())[:-20],
            1,
            "NOT FINITE",
        ),  # killed while it wrote
        (encoded(start(), step(0)), 2, "no end"),
        (encoded(start(), end(5, 0)), 2, "no step was watched"),
        (encoded(start(), found(), step(0), end(), start(), step(0), end()), 0, "FINITE"),
        (b"", 2, "holds no events"),
        (b"\x00\x01", 2, "holds no events"),
        (b"PK\x03\x04 no log\n", 2, "is no event of a watch"),
    ],
)
def test_exit_codes(cli: Run, tmp_path: Path, content: bytes, code: int, said: str) -> None:
    (tmp_path / "x.jsonl").write_bytes(content)
    done = cli("overflow", "x.jsonl", "--quiet", "--report", "x.xlsx")
    assert done.returncode == code
    assert said in (done.stderr if said.startswith(("holds", "is no")) else done.stdout)
    assert len((done.stdout + done.stderr).splitlines()) == 1


@pytest.mark.parametrize("arguments", [("nothing",), (".",), ("x.jsonl", "--report", "x.csv")])
def test_bad_usage_is_one_line(cli: Run, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    write(tmp_path / "x.jsonl", start(), step(0), end())
    done = cli("overflow", *arguments)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)


def test_what_was_found_is_told_though_the_report_cannot_be_written(
    cli: Run, tmp_path: Path
) -> None:
    write(tmp_path / "x.jsonl", start(), found(), step(0), end())
    (tmp_path / "link.xlsx").symlink_to("x.jsonl/under a file.xlsx")
    done = cli("overflow", "x.jsonl", "--report", "link.xlsx")
    assert (done.returncode, done.stdout.startswith("NOT FINITE")) == (2, True)
    assert "link.xlsx: cannot be written" in done.stderr


def test_a_directory_in_place_of_the_report_is_told_before_the_work(
    cli: Run, tmp_path: Path
) -> None:
    write(tmp_path / "x.jsonl", start(), found(), step(0), end())
    (tmp_path / "taken.xlsx").mkdir()
    done = cli("overflow", "x.jsonl", "--report", "taken.xlsx")
    said = "accucompare: --report taken.xlsx: is a directory; name a file in it\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


@pytest.mark.parametrize(
    "module",
    [
        "accucompare.findings.analysis.analysis",
        "accucompare.report.watched.terminal_watch",
        "accucompare.report.watch_files.watch_workbook",
    ],
)
def test_reading_imports_no_torch(module: str) -> None:
    subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules['torch'] = None; import {module}"],
        check=True,
    )


@pytest.mark.parametrize("command", ["watch", "overflow"])
def test_help_is_instant_and_has_examples(cli: Run, command: str) -> None:
    done = cli(command, "--help")
    assert done.returncode == 0
    assert f"accucompare {command} " in done.stdout.split("Examples:")[1]
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize("module", ["accucompare.cli", "accucompare.cli.watch"])
def test_the_commands_are_there_whichever_module_is_imported_first(module: str) -> None:
    code = (
        f"import {module}, sys; from accucompare.cli import cli; assert {{'watch', 'overflow'}} <="
        " set(cli.commands)"
    )
    subprocess.run([sys.executable, "-c", f"{code}; assert 'rich' not in sys.modules"], check=True)
