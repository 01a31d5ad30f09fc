"""Each option of the command line is declared in one place, and gives the command what it chooses
from.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest

from accucompare.asked import AskedOfCapture, AskedOfWatch, LocateOptions
from accucompare.cli import cli, options
from accucompare.selection import FloatType, Level, Mode, OnFinding, Precision, RoundedType
from tests.conftest import Run

CLI = Path(options.__file__).parent


def declared(file: Path) -> list[tuple[str, ...]]:
    """The names of each option that a file declares: its flag, and the parameter, if that is named
    otherwise.
    """
    calls = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
    made = [call for call in calls if ast.unparse(call.func) in ("click.option",)]
    return [
        names
        for call in made
        if (names := tuple(str(each.value) for each in call.args if isinstance(each, ast.Constant)))
    ]


def test_each_option_is_declared_once() -> None:
    again = {
        names: times for names, times in Counter(declared(CLI / "options.py")).items() if times > 1
    }
    assert not again


@pytest.mark.parametrize(
    ("name", "asked"),
    [("capture", AskedOfCapture), ("watch", AskedOfWatch), ("locate", LocateOptions)],
)
def test_a_field_is_an_option_with_its_help_and_its_default(name: str, asked: Any) -> None:
    command = cli.commands[name]
    parent = click.Context(cli, **cli.context_settings)
    given = command.make_context(name, ["--device", "cpu"], parent=parent).params
    helped = {each.name: each.help for each in command.params if isinstance(each, click.Option)}
    assert {each.name: (helped[each.name], given[each.name]) for each in fields(asked)} == {
        each.name: (each.metadata["help"], each.default) for each in fields(asked)
    }


def test_commands_declare_no_options_of_their_own() -> None:
    own = {file.name: declared(file) for file in CLI.glob("*.py") if file.name != "options.py"}
    assert {name: found for name, found in own.items() if found} == {"group.py": [("--debug",)]}


@pytest.mark.parametrize(
    ("command", "name", "value", "given"),
    [
        ("capture", "mode", "stats", Mode.STATS),
        ("capture", "level", "op", Level.OP),
        ("capture", "dtype", "float64", FloatType.FLOAT64),
        ("capture", "round_weights", "float16", RoundedType.FLOAT16),
        ("capture", "emulate", "hf32", Precision.HF32),
        ("watch", "on_finding", "snapshot", OnFinding.SNAPSHOT),
        ("watch", "level", "module", Level.MODULE),
    ],
)
def test_a_command_is_given_what_was_chosen(
    command: str, name: str, value: str, given: object
) -> None:
    context = cli.commands[command].make_context(
        command,
        [f"--{name.replace('_', '-')}", value],
        parent=click.Context(cli, **cli.context_settings),
    )
    assert context.params[name] is given
    assert str(context.params[name]) == value


def test_locate_computes_in_no_type_that_only_a_capture_has() -> None:
    with pytest.raises(
        click.BadParameter, match="'float64' is not one of 'float32', 'bfloat16', 'float16'"
    ):
        cli.commands["locate"].make_context(
            "locate",
            ["--device", "cpu", "--dtype", "float64"],
            parent=click.Context(cli, **cli.context_settings),
        )


def test_locate_asks_for_the_device() -> None:
    with pytest.raises(click.MissingParameter) as raised:
        cli.commands["locate"].make_context(
            "locate", [], parent=click.Context(cli, **cli.context_settings)
        )
    assert raised.value.param is not None
    assert raised.value.param.name == "device"


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "arguments", [["doctor", "--timeout"], ["watch", "case.py", "--near"]], ids=" ".join
)
def test_a_number_in_a_range_is_finite(cli: Run, arguments: list[str], value: str) -> None:
    done = cli(*arguments, value)
    assert done.returncode == 2
    assert (
        f"Invalid value for '{arguments[-1]}': {value} is no" in done.stderr
        or f"{value} is not in the range" in done.stderr
    )
