"""What the package says goes through Python's logging; the commands decide what of it is shown."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest

import accucompare as ac
from accucompare.cli import cli as group
from tests.compare.builder import item, write
from tests.conftest import Run

PACKAGE = Path(ac.__file__).parent
#: Files that print: they are what a user runs, and their output is the answer.
PROGRAMS = {"__main__.py", "reproduce/reproducer.py", "reproduce/reproducer_script.py"}
#: Files that warn by ``warnings``, since the user's code is what should be changed: the model
# gives NaN.
WARNING = {"watcher/watch/reporting.py"}


LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@pytest.fixture
def speaking() -> Iterator[None]:
    """A command that logs at every level."""

    @group.command("speak")
    @click.option("-q", "--quiet", is_flag=True)
    def speak(quiet: bool) -> int:
        logger = logging.getLogger("accucompare.somewhere")
        for level in LEVELS:
            logger.log(getattr(logging, level), "at %s\x1b[31m", level)
        return 0

    yield
    del group.commands["speak"]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([], "accucompare: at WARNING\\x1b[31m\naccucompare: at ERROR\\x1b[31m\n"),
        (["--quiet"], "accucompare: at ERROR\\x1b[31m\n"),
        (
            ["--debug"],
            "".join(
                f"accucompare: accucompare.somewhere: at {each}\\x1b[31m\n"
                for each in ("DEBUG", "INFO", "WARNING", "ERROR")
            ),
        ),
    ],
)
def test_a_command_shows_warnings_with_quiet_errors_with_debug_everything(
    arguments: list[str], shown: str, speaking: None, cli: Run
) -> None:
    done = cli("speak", *arguments)
    assert (done.stdout, done.stderr) == ("", shown)


def test_a_command_leaves_logging_as_it_was(
    speaking: None, cli: Run, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("accucompare")
    before = logger.level, logger.propagate, logger.handlers[:]
    cli("speak", "--debug")
    assert (logger.level, logger.propagate, logger.handlers) == before
    logger.warning("still heard")
    assert caplog.messages == ["still heard"]


def test_a_library_user_hears_nothing_of_what_went_well(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    bundle = write(tmp_path / "golden", [item("fc", np.ones(3))])
    with caplog.at_level(logging.DEBUG, "accucompare"):
        ac.diff(bundle, bundle)
    assert [(record.name, record.levelname) for record in caplog.records] == [
        ("accucompare.api", "DEBUG")
    ]
    assert capfd.readouterr() == ("", "")


def calls(file: Path) -> set[str]:
    """What a file calls, of ``print`` and ``warnings.warn``."""
    text, names = file.read_text(), {"print", "warnings.warn"}
    if not any(f"{name}(" in text for name in names):
        return set()
    nodes = ast.walk(ast.parse(text))
    return {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)} & names


def test_nothing_prints_or_warns_where_logging_is_meant() -> None:
    found = {file.relative_to(PACKAGE).as_posix(): calls(file) for file in PACKAGE.rglob("*.py")}
    assert {name for name, called in found.items() if "print" in called} <= PROGRAMS
    assert {name for name, called in found.items() if "warnings.warn" in called} == WARNING
