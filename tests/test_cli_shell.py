"""The command line in a shell: completion, help in groups, options from the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest

from accucompare.cli import cli as commands
from tests.compare.builder import item, write
from tests.conftest import ROOT, Run

DRAW = np.random.default_rng(5).normal(size=(8, 8)).astype(np.float32)


@pytest.fixture
def bundles(tmp_path: Path) -> Path:
    """Two bundles that differ by 1e-2 in one layer of two."""
    write(tmp_path / "golden", [item("fc", DRAW), item("norm", DRAW)])
    write(tmp_path / "npu", [item("fc", DRAW * np.float32(1.01)), item("norm", DRAW)])
    return tmp_path


# Completion


def test_bash_completes_commands_options_values_and_files(tmp_path: Path, cli: Run) -> None:
    """In a real bash, with the script that the command prints."""
    script = cli("completion", "bash").stdout
    program = tmp_path / "bin" / "accucompare"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m accucompare "$@"\n')
    program.chmod(0o755)
    ask = """
    ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
      _accucompare_completion accucompare; echo "${COMPREPLY[*]}"; }
    compopt() { echo -n "$2"; }
    ask accucompare dif
    ask accucompare diff --to
    ask accucompare capture --mode st
    ask accucompare capture ca
    """
    environment = {
        **os.environ,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        ["bash", "--norc", "-c", script + ask],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["diff", "--tolerances", "stats", "default"]
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("shell", "part"),
    [("zsh", "#compdef accucompare"), ("fish", "complete --no-files --command accucompare")],
)
def test_each_shell_has_its_script(shell: str, part: str, cli: Run) -> None:
    done = cli("completion", shell)
    assert done.returncode == 0
    assert part in done.stdout
    assert f"_ACCUCOMPARE_COMPLETE={shell}_complete" in done.stdout


# Help


@pytest.mark.parametrize("name", commands.commands)
def test_every_option_is_in_one_group_of_the_help_and_its_lines_fit(name: str, cli: Run) -> None:
    text = cli(name, "--help").stdout
    begun = [
        line.split()[:2]
        for line in text.partition("\n  Examples:")[0].splitlines()
        if line.startswith("  -")
    ]
    shown = [
        part.rstrip(",").partition("/")[0]
        for parts in begun
        for part in parts
        if part.startswith("-")
    ]
    for option in commands.commands[name].params:
        if isinstance(option, click.Option):
            assert shown.count(option.opts[-1]) == 1
    assert max(map(len, text.partition("\n  Examples:")[0].splitlines())) <= 100


def test_groups_come_in_one_order(cli: Run) -> None:
    lines = cli("capture", "--help").stdout.splitlines()
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles == [
        "What to run:",
        "What to record:",
        "Which layers:",
        "Where to write:",
        "Other options:",
    ]
    overview = cli("--help").stdout
    assert (
        overview.index("Record and compare:")
        < overview.index("  diff ")
        < overview.index("Watch a training:")
        < overview.index("  overflow ")
    )


# Variables


def test_a_variable_stands_for_an_option_and_the_command_line_wins(bundles: Path, cli: Run) -> None:
    assert cli("diff", "golden", "npu").returncode == 1
    assert cli("diff", "golden", "npu", ACCUCOMPARE_DIFF_REL_L2="0.1").returncode == 0
    assert (
        cli("diff", "golden", "npu", "--rel-l2", "1e-3", ACCUCOMPARE_DIFF_REL_L2="0.1").returncode
        == 1
    )
    only = cli(
        "diff", "golden", "npu", ACCUCOMPARE_DIFF_ONLY="norm other", ACCUCOMPARE_DIFF_QUIET="1"
    )
    assert (only.returncode, len(only.stdout.splitlines())) == (0, 1)


def test_a_variable_is_called_as_its_option_is_typed(bundles: Path, cli: Run) -> None:
    cli(
        "diff",
        "golden",
        "npu",
        ACCUCOMPARE_DIFF_JSON="x.json",
        ACCUCOMPARE_DIFF_REPORT="x.xlsx:y.xlsx",
    )
    assert {path.name for path in bundles.iterdir()} == {
        "golden",
        "npu",
        "x.json",
        "x.xlsx",
        "y.xlsx",
    }


def test_what_the_package_uses_itself_is_no_option(bundles: Path, cli: Run) -> None:
    assert cli("verify", "npu", ACCUCOMPARE_KERNEL="numpy", ACCUCOMPARE_SCRIPT="").returncode == 0


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("ACCUCOMPARE_DIFF_ATOL", "lots", "'lots' is not a valid float"),
        ("ACCUCOMPARE_DIFF_VERIFY", "maybe", "'maybe' is not a valid boolean"),
        ("ACCUCOMPARE_DIFF_ATOL", "-1", "atol must be a finite number that is not negative"),
        ("ACCUCOMPARE_DIFF_REPORT", "x.doc", "must end in .xlsx"),
        ("ACCUCOMPARE_DIFF_ATOLL", "1", "no option of `accucompare diff` has this variable"),
        ("ACCUCOMPARE_DEBUG", "maybe", "'maybe' is not a valid boolean"),
    ],
)
def test_what_is_wrong_in_a_variable_is_told_with_its_name(
    variable: str, value: str, told: str, bundles: Path, cli: Run
) -> None:
    done = cli("diff", "golden", "npu", **{variable: value})
    assert done.returncode == 2
    assert variable in done.stderr
    assert told in done.stderr


def test_of_a_script_a_variable_counts_as_given(tmp_path: Path, cli: Run) -> None:
    done = cli("capture", "--", "python", "train.py", ACCUCOMPARE_CAPTURE_DEVICE="npu")
    assert done.returncode == 2
    assert "--device: the script chooses its device" in done.stderr
    assert "ACCUCOMPARE_CAPTURE_DEVICE" in done.stderr


def test_debug_can_be_switched_on_by_a_variable(tmp_path: Path, cli: Run) -> None:
    assert "Traceback" in cli("diff", "nowhere", "nowhere", ACCUCOMPARE_DEBUG="1").stderr
    assert "Traceback" not in cli("diff", "nowhere", "nowhere", ACCUCOMPARE_DEBUG="0").stderr
