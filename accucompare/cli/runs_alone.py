"""The commands `invariance`, `repeat` and `ranks`: what needs no golden."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accucompare.asked import AskedOfCapture
from accucompare.cli import options as option
from accucompare.cli.group import cli
from accucompare.cli.help import examples
from accucompare.cli.outputs import answered, refuse_json
from accucompare.cli.scripts import OF_CASES, MayRunScript, command_after_dashes, plan_of
from accucompare.errors import CaptureError
from accucompare.places import Place
from accucompare.selection import Mode, Steps

if TYPE_CHECKING:
    from accucompare.rerunning import RepeatCheck


@cli.command(
    epilog=examples(
        "accucompare invariance model.py",
        "accucompare invariance model.py --device cuda --dtype bfloat16",
        "accucompare invariance model.py --bitwise               # for those who need equal bits",
        "accucompare invariance model.py --json invariance.json --quiet",
        "",
        "Exit code: 0 no change, or by rounding; 1 more than rounding; 2 trouble: one sample only,"
        " random numbers,",
        "BatchNorm in training mode, or no output of the model could be compared.",
    )
)
@option.case
@option.device()
@option.dtype()
@option.of(AskedOfCapture, "seed")
@option.batch_axis
@option.bitwise
@option.json()
@option.quiet("the answer only")
def invariance(
    case: str | None, device: str, json_path: Path | None, quiet: bool, **options: Any
) -> int:
    """Run the samples of CASE in other batches: does a layer's result depend on them?

    The first inputs of CASE are a batch of two or more samples. They are run as they are; then
    alone, at other places, in smaller and larger batches, after another batch, with other padding
    (if there is a mask), and on other numbers of threads. For each run it shows the first layer
    whose bits change, in units in the last place (ULP), and whether that is rounding; then all
    layers. A run in float64 says how large rounding is. Only the forward is run."""
    refuse_json(json_path)
    from accucompare.devices import DeviceName, open_device

    open_device(DeviceName.parse(device))  # before anything else imports torch
    from accucompare.cli.progress import progress_bar
    from accucompare.report.terminal import print_invariance
    from accucompare.rerunning import check_invariance

    with progress_bar("running", "runs", quiet) as progress:
        options["seed"] = options["seed"] or 0
        found = check_invariance(case, device, progress=progress, **options)
    return answered(found, print_invariance, quiet, json_path)


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
    refuse_json(json_path)
    command = command_after_dashes(OF_CASES)
    from accucompare.devices import DeviceName, open_device

    open_device(DeviceName.parse(device))  # before anything else imports torch
    from accucompare.cli.progress import progress_bar
    from accucompare.report.terminal import print_repeats
    from accucompare.rerunning import check_repeat

    with progress_bar("repeating", "runs", quiet) as progress:
        if command is not None:
            options.pop("dtype")
            found = _repeat_script(command, times, {**options, "model": model}, progress)
        else:
            options["seed"] = options["seed"] or 0
            found = check_repeat(case, device, times=times, progress=progress, **options)
    return answered(found, print_repeats, quiet, json_path)


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


@cli.command(
    epilog=examples(
        "accucompare capture --out tp2dp2 -- torchrun --nproc-per-node 4 train.py",
        "accucompare ranks tp2dp2                        # all checks",
        "accucompare ranks tp2dp2 --json ranks.json --quiet",
        "",
        "Exit code: 0 what was looked at holds, 1 something does not, 2 trouble: one rank only, a"
        " rank or a",
        "step is missing, or nothing could be looked at.",
    )
)
@option.bundle("bundle")
@option.json()
@option.quiet("the line with the counts only")
def ranks(bundle: Place, json_path: Path | None, quiet: bool) -> int:
    """Check what must hold between the ranks of one run, without a golden.

    BUNDLE was captured on several ranks. Replicas must be equal, parts must fill the whole, the
    gradients that the optimizer is given must be the mean or the sum of what the ranks computed,
    calls with equal inputs and weights must give equal outputs, and no two ranks may be given one
    batch. For each check it shows PASS, FAIL, or that it was not looked at and why; what was
    measured, where, on which ranks, and what to do."""
    refuse_json(json_path, bundles=[bundle])
    from accucompare.api import check_ranks
    from accucompare.cli.progress import progress_bar
    from accucompare.report.terminal import print_ranks

    with progress_bar("checking", "steps", quiet) as progress:
        found = check_ranks(bundle, progress=progress)
    return answered(found, print_ranks, quiet, json_path)
