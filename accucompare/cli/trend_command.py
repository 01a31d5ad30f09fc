"""The command `trend`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from accucompare.asked import LocateOptions
from accucompare.cli import options as option
from accucompare.cli.group import cli
from accucompare.cli.help import examples
from accucompare.cli.option_types import PLACE
from accucompare.cli.outputs import answered, refuse_json, reports_to_write
from accucompare.places import Place

_LIMITS = ("atol", "rtol", "rel_l2", "cosine", "tolerances")


@cli.command(
    "trend",
    epilog=examples(
        "accucompare trend golden monday tuesday wednesday       # bundles; the first is golden",
        "accucompare trend nightly/ --report trend.html          # a folder that fills up",
        "accucompare trend results/*.json --against best         # what `diff --json` wrote",
        "accucompare trend runs/ --golden golden --baseline cpu-bf16 --report trend.xlsx",
        "",
        "Exit code: 0 the newest run is within its limits everywhere, 1 it fails somewhere, 2"
        " trouble: a run",
        "cannot be read, is of another model, or the newest is not sure.",
    ),
)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=PLACE)
@option.golden("What bundles are compared with.  [default: the first of them]")
@option.against
@option.baseline
@option.atol
@option.rtol
@option.rel_l2
@option.cosine
@option.tolerances
@option.of(LocateOptions, "map", "only", "skip")
@option.report(None)
@option.json()
@option.quiet("the answer only")
def trend_command(
    runs: tuple[Place, ...],
    golden: Place | None,
    against: str | None,
    reports: tuple[Path, ...],
    json_path: Path | None,
    quiet: bool,
    **options: Any,
) -> int:
    """Put the runs of one model in a row: since when does each layer fail?

    A RUN is a bundle, the JSON of a comparison, or a folder of these. Give the oldest first; a
    folder's runs are ordered by the time of their capture. Bundles are compared with the first
    bundle, or with --golden; limits, --map, --only and --skip apply to them.

    It shows the first run in which each layer fell out (it was ok before, and fails since), its
    error before and after, and a heat map of layers by runs."""
    reports = reports_to_write(reports, None)
    inputs = {f"RUN {run}": run for run in runs if isinstance(run, Path) and run.is_file()}
    given = {"--tolerances": options["tolerances"], **inputs}
    refuse_json(json_path, {"--report": reports}, inputs=given)
    from accucompare.cli.progress import progress_bar
    from accucompare.compare.limits import Tolerance
    from accucompare.report.terminal import print_trend
    from accucompare.trending import trend

    limits = {name: options.pop(name) for name in _LIMITS}
    if any(value is not None for value in limits.values()):
        options["limits"] = Tolerance(**limits)
    with progress_bar("comparing", "runs", quiet) as progress:
        found = trend(runs, golden=golden, against=against, progress=progress, **options)
    return answered(found, partial(print_trend, reports=reports), quiet, json_path, reports)
