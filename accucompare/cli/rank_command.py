"""The command `ranks`."""

from __future__ import annotations

from pathlib import Path

from accucompare.cli import options as option
from accucompare.cli.group import cli
from accucompare.cli.help import examples
from accucompare.cli.outputs import refuse_file, refuse_places
from accucompare.files import JSON_FILE
from accucompare.places import Place


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
    batch. Of each check it shows PASS, FAIL, or that it was not looked at and why; what was
    measured, where, on which ranks, and what to do."""
    refuse_places({"--json": json_path}, [bundle])
    refuse_file("--json", json_path, JSON_FILE)
    from accucompare.api import check_ranks
    from accucompare.cli.progress import progress_bar
    from accucompare.report.console import reader_may_leave
    from accucompare.report.terminal import print_ranks

    with progress_bar("checking", "steps", quiet) as progress:
        found = check_ranks(bundle, progress=progress)
    if json_path is not None:
        found.to_json(json_path)
    with reader_may_leave():
        print_ranks(found, quiet)
    return found.exit_code
