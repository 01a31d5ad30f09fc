"""``locate --decode``: a sequence with the model's cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from accucompare.cli.outputs import answered, refuse_json
from accucompare.cli.scripts import command_after_dashes
from accucompare.errors import UsageError
from accucompare.launched import launched_as

_OF_CASE = (
    "--decode: is for a case, whose sequence can be run again; write a case file with the model and"
    " its inputs, and leave out -- and the script"
)
#: What else ``--decode`` takes.
_TAKEN = ("case", "decode", "device", "dtype", "seed", "json_path", "quiet")


def locate_decode(
    case: str | None, device: str, decode: int, json_path: Path | None, quiet: bool, **options: Any
) -> int:
    """Answer ``locate --decode``; returns the exit code."""
    if command_after_dashes({"decode": _OF_CASE}) is not None:
        raise UsageError(_OF_CASE)
    if launched_as()[1] > 1:
        raise UsageError("--decode: runs in one process; start it without torchrun")
    _refuse_others(click.get_current_context())
    refuse_json(json_path)
    from accucompare.devices import DeviceName, open_device

    open_device(DeviceName.parse(device))  # before anything else imports torch
    from accucompare.cli.progress import progress_bar
    from accucompare.report.terminal import print_decode
    from accucompare.rerunning import check_decode

    with progress_bar("running", "runs", quiet) as progress:
        found = check_decode(
            case,
            device,
            steps=decode,
            dtype=options["dtype"],
            seed=options["seed"] or 0,
            progress=progress,
        )
    return answered(found, print_decode, quiet, json_path)


def _refuse_others(context: click.Context) -> None:
    usual = (None, ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    for each in context.command.params:
        name = each.name or ""
        if name not in _TAKEN and context.get_parameter_source(name) not in usual:
            raise UsageError(
                f"{each.opts[0]}: does not go with --decode, which takes --device, --dtype, --seed,"
                " --json and --quiet"
            )


def device_of_locate(context: click.Context, option: click.Parameter, value: str | None) -> str:
    """``--device`` must be given; with ``--decode`` and ``--compile`` it is the CPU by default."""
    by_default = any(context.params.get(name) is not None for name in ("decode", "compile"))
    if value is None and not by_default:
        raise click.MissingParameter(ctx=context, param=option)
    return value or "cpu"
