"""Help with options and commands in groups, and options from environment variables.

Click has no groups of options. cloup needs its own decorators, and rich-click draws help anew."""

from __future__ import annotations

import os
from collections import UserDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from accucompare.errors import UsageError
from accucompare.text import printable

#: Begins the variable of every option: ``ACCUCOMPARE_DIFF_ATOL`` is ``--atol`` of ``diff``.
PREFIX = "ACCUCOMPARE"

#: Groups of options in help's order, by the commands' parameters. Options of no group come last.
_OPTIONS: Mapping[str, Sequence[str]] = {
    title: names.split()
    for title, names in {
        "What to run": (
            "device dtype round_weights emulate as_layout seed steps repeat times like feed "
            "layout_of round_feed round_results deterministic hf32 tf32 golden_case golden_python "
            "model arm lists force batch_axis decode compile regions budget by"
        ),
        "What to read": "format_name name_pattern onnx",
        "What to record": (
            "mode sketch_size level roles backward save_state with_baseline baseline_tensors "
            "ops queue"
        ),
        "Which layers": "only skip map",
        "What to compare": (
            "golden against on baseline reference layout verify keep_going workers cluster"
        ),
        "What is close enough": "atol rtol rel_l2 cosine tolerances accept bitwise",
        "What to look for": (
            "on_finding pause_after frames trace_steps abort_after_step every checks_every "
            "thresholds threshold_file allow near flag_per_module agree kernel_dump"
        ),
        "What to show": "call role path step rank slices",
        "Where to write": (
            "to out code overwrite reports report json_path parquet_path as_json save quiet"
        ),
    }.items()
}
_OTHER_OPTIONS = "Other options"

#: Groups of commands, in help's order, with module and first sentence; the only list of commands.
COMMANDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Record and compare": {
        "capture": (
            "commands",
            "Run CASE, or a script, and record the inputs and outputs of every layer.",
        ),
        "diff": ("commands", "Compare two bundles, layer by layer, and write a report."),
        "locate": ("commands", "Run CASE, or a script: does it differ by rounding, or by a bug?"),
        "fit": ("fit_command", "Find what CASE must keep in float32 to be within a tolerance."),
        "trend": (
            "trend_command",
            "Put the runs of one model in a row: since when does each layer fail?",
        ),
        "invariance": (
            "runs_alone",
            "Run the samples of CASE in other batches: does a layer's result depend on them?",
        ),
        "repeat": (
            "runs_alone",
            "Run CASE, or a script, several times: does it agree with itself?",
        ),
        "ranks": (
            "runs_alone",
            "Check what must hold between the ranks of one run, without a golden.",
        ),
    },
    "Watch a training": {
        "watch": (
            "watch",
            "Run CASE, or a script, and find where NaN, Inf or an overflow begins; then check the"
            " training against a list.",
        ),
        "overflow": ("watch", "Show what a watch found, and write it as a report."),
        "health": (
            "health",
            "Check a training by what a watch has written: PASS, WARN, FAIL, or not looked at and"
            " why.",
        ),
        "gradcheck": ("health", "Check the backward of each custom Function of CASE."),
    },
    "Look at what there is": {
        "show": ("bundle_commands", "List the records of BUNDLE, or print the values of one."),
        "verify": ("bundle_commands", "Read all of BUNDLE and check that it is as it was written."),
        "run": ("scripts", "Run a script and show which models it has; nothing is captured."),
        "doctor": ("commands", "Show what this machine offers, what is wrong, and the cure."),
    },
    "Other tools": {
        "import": ("other_tools", "Make a bundle of the dump of another tool."),
        "export": ("other_tools", "Write COMPARISON for a viewer of graphs or of traces."),
        "completion": (
            "other_tools",
            "Print the script that completes commands, options and their values with the Tab key.",
        ),
    },
}


def examples(*lines: str) -> str:
    """The examples at the end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


class Command(click.Command):
    """A command with groups of options, which may come from the environment.

    Variables are named after the option as typed: ``ACCUCOMPARE_DIFF_JSON`` is ``--json``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for option in self.params:
            if isinstance(option, click.Option):
                typed = max(option.opts, key=len).lstrip("-")
                option.envvar = f"{PREFIX}_{self.name}_{typed}".upper().replace("-", "_")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in groups, in the table's order, all equally indented."""
        options = (
            parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)
        )
        found = {option.name or "": option.get_help_record(ctx) for option in options}
        _write(
            formatter,
            _OPTIONS,
            {name: record for name, record in found.items() if record is not None},
            _OTHER_OPTIONS,
        )

    def invoke(self, ctx: click.Context) -> object:
        """Run the command and show its logs; an option's error names its variable.

        ``ctx.obj``: whether everything is shown (--debug). UsageError also if a variable belongs to
        no option."""
        taken = [
            str(option.envvar) for option in self.params if from_environment(ctx, option.name or "")
        ]
        if unknown := _unknown(ctx):
            raise UsageError(
                f"{printable(unknown[0])}: no option of `{ctx.command_path}` has this variable;"
                " unset it, or see --help"
            )
        from accucompare.cli.logs import shown_logs  # not for --help

        try:
            with shown_logs(debug=bool(ctx.obj), quiet=bool(ctx.params.get("quiet"))):
                return super().invoke(ctx)
        except UsageError as error:
            if not taken:
                raise
            raise UsageError(
                f"{error}\n(options from the environment: {', '.join(sorted(taken))})"
            ) from error


class _OnDemand(UserDict[str, Any]):
    """Commands by name, at first the modules that declare them; looking one up imports its own."""

    def __getitem__(self, name: str) -> click.Command:
        if isinstance(self.data[name], str):
            import_module(f"accucompare.cli.{self.data[name]}")
        command: click.Command = self.data[name]
        return command


class Group(click.Group):
    """The group of commands, which help also shows in groups, without importing them."""

    command_class = Command

    def __init__(self, **attributes: Any) -> None:
        modules = {
            name: module for group in COMMANDS.values() for name, (module, _) in group.items()
        }
        super().__init__(**attributes, commands=_OnDemand(modules))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = {
            name: (name, sentence)
            for group in COMMANDS.values()
            for name, (_, sentence) in group.items()
        }
        _write(formatter, COMMANDS, found, "")


def from_environment(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is click.core.ParameterSource.ENVIRONMENT


def was_given(ctx: click.Context, name: str) -> bool:
    return (
        from_environment(ctx, name)
        or ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    )


def with_variable(error: click.ClickException) -> click.ClickException:
    """The same error, naming the variable that a bad value came from, if it did."""
    if (
        not isinstance(error, click.BadParameter)
        or error.ctx is None
        or error.param is None
        or error.param.name is None
    ):
        return error
    if not from_environment(error.ctx, error.param.name):
        return error
    told = f"{error.message} It comes from the environment variable {error.param.envvar}."
    return click.BadParameter(told, error.ctx, error.param, error.param_hint)


def _unknown(ctx: click.Context) -> list[str]:
    """Variables with this command's prefix that belong to no option."""
    known = {option.envvar for option in ctx.command.params}
    return sorted(
        name
        for name in os.environ
        if name.startswith(f"{PREFIX}_{ctx.command.name}_".upper()) and name not in known
    )


def _write(
    formatter: click.HelpFormatter,
    table: Mapping[str, Collection[str]],
    found: dict[str, tuple[str, str]],
    others: str,
) -> None:
    """Write each group that is not empty, and then what is in no group."""
    placed = {name for names in table.values() for name in names}
    groups = {**table, others: [name for name in found if name not in placed]}
    width = max((len(record[0]) for record in found.values()), default=0)
    for title, records in _present(groups, found):
        with formatter.section(title):
            formatter.write_dl(
                [(first.ljust(min(width, _FIRST)), second) for first, second in records],
                col_max=_FIRST,
            )


_FIRST = 30  # characters of the first column, as in click


def _present(
    groups: Mapping[str, Collection[str]], found: dict[str, tuple[str, str]]
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    for title, names in groups.items():
        if records := [found[name] for name in names if name in found]:
            yield title, records
