"""The part of `capture` and `watch` that runs a script, and the command `run`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from accucompare.cli import options as option
from accucompare.cli.group import PASS, TROUBLE, cli
from accucompare.cli.help import Command, examples, was_given
from accucompare.errors import UsageError
from accucompare.places import Place, Url, whole
from accucompare.selection import OnFinding, Steps
from accucompare.text import printable, printable_lines

if TYPE_CHECKING:
    from accucompare.api import Comparison
    from accucompare.scripts.launch import Ended
    from accucompare.scripts.plan import Plan

#: Options that say how a case is made and run; a script decides these itself.
OF_CASES = {
    "case": "give a case, or a command after --, not both",
    "device": "--device: the script chooses its device; give it as the script takes it",
    "dtype": "--dtype: the script chooses its types",
    "round_weights": "--round-weights: is for cases, whose weights can be changed before they run",
    "with_baseline": (
        "--with-baseline: runs a case again in other types, and a script chooses its types"
    ),
    "baseline_tensors": "--baseline-tensors: belongs to --with-baseline, which is for cases",
    "repeat": "--repeat: is for cases; for a script, type: accucompare repeat -- COMMAND",
    "golden_case": "--golden-case: is for cases; give golden itself (--golden)",
    "golden_python": "--golden-python: is for cases; name the interpreter in the command",
    "ops": "--ops: is for cases; capture both runs with --level op --only NAME, and diff them",
    "like": "--like: starts a case from a saved state; a script starts from its own",
}
#: Options that are for scripts only.
_OF_SCRIPTS = ("model", "arm")
#: The default for scripts: their device is not known before.
_CAPTURED = Path("captured")


class MayRunScript(Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            ctx.meta[__name__] = args[place + 1 :]
            args = args[:place]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_usage(ctx, formatter)
        formatter.write_usage(ctx.command_path, "[OPTIONS] -- COMMAND [ARGS]...")


def command_after_dashes(refused: Mapping[str, str] = OF_CASES) -> list[str] | None:
    """The command after ``--``; ``None`` without ``--``. Raises UsageError if nothing follows
    ``--``, or a case or an option not for scripts is given."""
    ctx = click.get_current_context()
    given = [name for name in ctx.params if was_given(ctx, name)]
    command: list[str] | None = ctx.meta.get(__name__)
    if command is None:
        for name in given:
            if name in _OF_SCRIPTS:
                raise UsageError(
                    f"--{name}: is for a script; give its command after --, as in: accucompare"
                    " capture -- python train.py"
                )
        return None
    if not command:
        raise UsageError(
            "after -- give the command that runs the script, as in: accucompare capture -- python"
            " train.py"
        )
    for name in given:
        if name in refused:
            raise UsageError(refused[name])
    return command


def capture_script(
    command: list[str], out: Place | None, quiet: bool, options: dict[str, Any]
) -> int:
    """Run a script and capture its model; return the exit code."""
    from accucompare.bundle.writing import refuse_directory
    from accucompare.report.terminal import print_capture
    from accucompare.scripts.captures import capture_script as capture_it
    from accucompare.scripts.captures import steps_held_of
    from accucompare.scripts.outcome import others
    from accucompare.scripts.plan import Action

    directory, overwrite = out if out is not None else _CAPTURED, options.pop("overwrite")
    refuse_directory(directory, overwrite)
    golden = options["feed"]
    steps = options.pop("steps") or (None if golden is None else steps_held_of(golden)) or Steps(1)
    made = capture_it(command, plan_of(Action.CAPTURE, directory, steps, options), overwrite)

    def conclude() -> int:
        if made.written and not quiet:
            with _on_stderr():  # standard output is the script's
                print_capture(directory)
        return _conclude(made.troubles, [] if quiet else others(made.ended.seen), made.ended)

    return after_script(made.ended, conclude)


def locate_script(
    command: list[str], device: str, options: dict[str, Any], announce: Callable[[str], None]
) -> Comparison:
    """Run a script twice, or once with a golden, and compare; the candidate on ``device``."""
    from accucompare.scripts.captures import locate_compiled_script as compiled
    from accucompare.scripts.captures import locate_script as locate_it
    from accucompare.scripts.plan import Action

    folder, golden, maps, steps, overwrite = (
        options.pop(name) for name in ("out", "golden", "map", "steps", "overwrite")
    )
    compared = {name: options.pop(name) for name in ("only", "skip")}
    for name in OF_CASES:  # none was given
        options.pop(name, None)
    plan = plan_of(Action.CAPTURE, folder, steps, options)
    if plan.options.get("compile") is not None:
        if golden is not None or maps:
            raise UsageError(
                "--compile: compares the script with itself, run eagerly; leave out"
                f" {'--map' if golden is None else '--golden'}"
            )
        return compiled(
            command, device, folder, plan, overwrite=overwrite, announce=announce, **compared
        )
    return locate_it(
        command,
        device,
        folder,
        plan,
        golden=golden,
        map=maps,
        overwrite=overwrite,
        announce=announce,
        **compared,
    )


def watch_script(
    command: list[str], out: Path, steps: int | None, quiet: bool, options: dict[str, Any]
) -> tuple[Ended, int]:
    """Run a script and watch its model; return its end, and the exit code apart from findings.

    By default a finding does not end the script."""
    from accucompare.scripts.launch import run as run_script
    from accucompare.scripts.outcome import others, troubles
    from accucompare.scripts.plan import Action

    if not was_given(click.get_current_context(), "on_finding"):
        options["on_finding"] = OnFinding.SNAPSHOT
    plan = plan_of(Action.WATCH, out, None if steps is None else Steps(steps), options)
    ended = run_script(command, plan)
    return ended, _conclude(
        troubles(plan, ended.seen, ended.unheard), [] if quiet else others(ended.seen), ended
    )


@cli.command(
    cls=MayRunScript,
    epilog=examples(
        "accucompare run --list -- python train.py --epochs 1",
        "accucompare run --list -- torchrun --nproc-per-node 8 train.py",
        "",
        "Exit code: that of the command, if it is not 0; 2 if no model was seen.",
    ),
)
@option.lists
@option.quiet("nothing but errors")
def run(lists: bool, quiet: bool) -> int:
    """Run a script and show which models it has; nothing is captured.

    A model is what is called from outside: a module that no other module calls. The names are those
    that --model takes in `capture` and `watch`. Nothing of the script is changed."""
    from accucompare.scripts.launch import run as run_script
    from accucompare.scripts.outcome import listing, troubles
    from accucompare.scripts.plan import Action, Plan

    command = command_after_dashes()
    if command is None:
        raise UsageError(
            "give the command after --, as in: accucompare run --list -- python train.py"
        )
    plan = Plan(action=Action.LIST, folder="")
    ended = run_script(command, plan)
    found = [
        each
        for each in troubles(plan, ended.seen, ended.unheard)
        if not any(model for seen in ended.seen for model in seen.models)
    ]
    return _conclude(found, [] if quiet else list(listing(ended.seen)), ended)


def plan_of(action: Any, out: Place, steps: Steps | None, options: dict[str, Any]) -> Plan:
    from accucompare.scripts.plan import Plan

    own = {name: options.pop(name, None) for name in ("model", "arm", "seed", "deterministic")}
    return Plan(
        action=action,
        folder="",
        out=whole(out.absolute()),
        options={
            name: whole(value.absolute()) if isinstance(value, (Path, Url)) else value
            for name, value in options.items()
        },
        steps=None if steps is None else str(steps),
        model=own["model"],
        seed=own["seed"],
        deterministic=bool(own["deterministic"]),
        arm=None if own["arm"] is None else str(own["arm"].absolute()),
    )


def _conclude(found: list[str], lines: list[str], ended: Ended) -> int:
    """Print what is wrong, and return the exit code: the script's, if it failed."""
    for line in (*lines, *found):
        click.echo(f"accucompare: {printable(line)}", err=True)
    return ended.code or (TROUBLE if found else PASS)


def after_script(ended: Ended, conclude: Callable[[], int]) -> int:
    """The conclusion's exit code; if concluding raises, the script's own unless it was 0."""
    try:
        return conclude()
    except Exception as error:
        if not ended.code:
            raise
        click.echo(f"accucompare: {printable_lines(str(error)) or type(error).__name__}", err=True)
        return ended.code


@contextlib.contextmanager
def _on_stderr() -> Iterator[None]:
    sys.stdout.flush()
    with contextlib.redirect_stdout(sys.stderr):
        yield
