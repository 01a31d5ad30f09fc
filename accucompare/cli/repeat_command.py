"""The command `repeat`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accucompare.asked import AskedOfCapture
from accucompare.cli import options as option
from accucompare.cli.group import cli
from accucompare.cli.help import examples
from accucompare.cli.outputs import refuse_file, refuse_places
from accucompare.cli.scripts import OF_CASES, MayRunScript, command_after_dashes, plan_of
from accucompare.errors import CaptureError
from accucompare.files import JSON_FILE
from accucompare.places import Place
from accucompare.selection import Mode, Steps

if TYPE_CHECKING:
    from accucompare.rerunning import RepeatCheck


@cli.command(
    "repeat",
    cls=MayRunScript,
    epilog=examples(
        "accucompare repeat model.py --device cuda --times 20",
        "accucompare repeat model.py --deterministic             # do deterministic kernels agree?",
        "accucompare repeat --steps 3 -- python train.py         # a script, as it is",
        "accucompare repeat --times 3 -- torchrun --nproc-per-node 8 train.py   # on which rank?",
        "",
        "Exit code: 0 it agrees with itself, 1 it does not, 2 trouble.",
    ),
)
@option.case
@option.device()
@option.dtype()
@option.times
@option.of(AskedOfCapture, "seed", "steps", "deterministic")
@option.model
@option.json()
@option.quiet("the answer only")
def repeat_command(
    case: str | None,
    device: str,
    times: int,
    model: str | None,
    json_path: Path | None,
    quiet: bool,
    **options: Any,
) -> int:
    """Run CASE, or a script, several times: does it agree with itself?

    Each run is from scratch, under one seed, and keeps digests only. It shows the first value, in
    execution order, whose bits differ between runs: its layer, step, rank and device, and in how
    many runs it is odd. The step of a case is then replayed from its saved state and inputs, until
    it disagrees with itself.

    A script's seeds and flags are left alone unless --seed or --deterministic is given."""
    refuse_places({"--json": json_path})
    refuse_file("--json", json_path, JSON_FILE)
    command = command_after_dashes(OF_CASES)
    from accucompare.devices import DeviceName, open_device

    open_device(DeviceName.parse(device))  # before anything else imports torch
    from accucompare.cli.progress import progress_bar
    from accucompare.report.console import reader_may_leave
    from accucompare.report.terminal import print_repeats
    from accucompare.rerunning import check_repeat

    with progress_bar("repeating", "runs", quiet) as progress:
        if command is not None:
            options.pop("dtype")
            found = _repeat_script(command, times, {**options, "model": model}, progress)
        else:
            options["seed"] = options["seed"] or 0
            found = check_repeat(case, device, times=times, progress=progress, **options)
    if json_path is not None:
        found.to_json(json_path)
    with reader_may_leave():
        print_repeats(found, quiet)
    return found.exit_code


def _repeat_script(
    command: list[str], times: int, options: dict[str, Any], progress: Any
) -> RepeatCheck:
    """Run a script several times. CaptureError if it fails, or nothing of it was captured."""
    from accucompare.rerunning import repeat_runs
    from accucompare.scripts.captures import capture_script as capture_it
    from accucompare.scripts.plan import Action

    steps = options.pop("steps") or Steps(1)

    def run(out: Path) -> Place:
        plan = plan_of(Action.CAPTURE, out, steps, {"mode": Mode.DIGEST, **options})
        made = capture_it(command, plan, overwrite=False)
        if made.ended.code or made.troubles:
            what = made.troubles or [f"the script ended with exit code {made.ended.code}"]
            raise CaptureError(f"repeat: {'; '.join(what)}")
        return out

    return repeat_runs(shlex.join(command), run, times, None, progress)
