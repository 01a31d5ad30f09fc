"""The command `invariance`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accucompare.asked import AskedOfCapture
from accucompare.cli import options as option
from accucompare.cli.group import cli
from accucompare.cli.help import examples
from accucompare.cli.outputs import refuse_file, refuse_places
from accucompare.files import JSON_FILE


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
    (if there is a mask), and on other numbers of threads. Of each run it shows the first layer
    whose bits change, in units in the last place (ULP), and whether that is rounding; then all
    layers. A run in float64 says how large rounding is. Only the forward is run."""
    refuse_places({"--json": json_path})
    refuse_file("--json", json_path, JSON_FILE)
    from accucompare.devices import DeviceName, open_device

    open_device(DeviceName.parse(device))  # before anything else imports torch
    from accucompare.cli.progress import progress_bar
    from accucompare.report.console import reader_may_leave
    from accucompare.report.terminal import print_invariance
    from accucompare.rerunning import check_invariance

    with progress_bar("running", "runs", quiet) as progress:
        options["seed"] = options["seed"] or 0
        found = check_invariance(case, device, progress=progress, **options)
    if json_path is not None:
        found.to_json(json_path)
    with reader_may_leave():
        print_invariance(found, quiet)
    return found.exit_code
