"""The command `health`."""

from __future__ import annotations

from pathlib import Path

import click

from accucompare.asked import AskedOfCapture
from accucompare.cli import options as option
from accucompare.cli.group import cli
from accucompare.cli.help import examples
from accucompare.cli.option_types import LOCAL
from accucompare.cli.outputs import is_page, logs_of, refuse_json, reports_to_write
from accucompare.errors import UsageError


@cli.command(
    epilog=examples(
        "accucompare health watch/                       # all checks of the last run, of all"
        " ranks",
        "accucompare health watch/ --json health.json --report health.html",
        "accucompare health watch/ --threshold norm-spike=20 --threshold dead-units=0.8",
        "accucompare health watch/ --quiet               # one line",
        "",
        "Exit code: 0 every check that was looked at is passed, 1 there is a WARN or a FAIL, 2"
        " trouble: the log",
        "cannot be read, or no step was watched.",
    )
)
@click.argument("log", type=LOCAL)
@option.thresholds
@option.threshold_file
@option.json()
@option.report(None)
@option.quiet("the line with the counts only")
def health(
    log: Path,
    thresholds: tuple[str, ...],
    threshold_file: Path | None,
    json_path: Path | None,
    reports: tuple[Path, ...],
    quiet: bool,
) -> int:
    """Check a training by what a watch has written: PASS, WARN, FAIL, or not looked at and why.

    LOG is the directory that `accucompare watch` or accucompare.watch() wrote, or one of the logs
    in it. For each check it shows what was measured, in which step, where, the thresholds, and what
    to do. Only the last run in a log counts; some checks compare it with the one before."""
    reports = reports_to_write(reports, None)
    given_files = {"LOG": logs_of(log), "--thresholds": threshold_file, "--report": reports}
    refuse_json(json_path, given_files)
    from accucompare.findings.analysis import read_logs
    from accucompare.findings.checklist import STATUS_EXIT_CODES, judge_log, read_thresholds

    given = read_thresholds(thresholds, threshold_file)
    ranks = read_logs(log)
    if not ranks.watched and not ranks.findings:
        from accucompare.report.watch_words import said

        raise UsageError(
            f"{log}: no step was watched, so that there is nothing to check;"
            f" {said(ranks.ranks[0].ending)}"
        )
    found = judge_log(ranks, given)
    from accucompare.report.console import reader_may_leave
    from accucompare.report.watched import print_health

    with reader_may_leave():
        print_health(ranks, found, quiet=quiet)
    from accucompare.report.watch_files import write_health, write_health_json, write_health_page

    if json_path is not None:
        write_health_json(ranks, found, json_path)
    for report in reports:
        (write_health_page if is_page(report) else write_health)(ranks, found, report)
    return STATUS_EXIT_CODES[found.status]


@cli.command(
    epilog=examples(
        "accucompare gradcheck model.py                      # every custom Function that the first"
        " forward applies",
        "accucompare gradcheck model.py --only '*.attention' # those that these modules apply",
        "",
        "Exit code: 0 every custom Function found was checked, and is right; 1 one is wrong; 2"
        " trouble: the case does not run, there is",
        "none, or one could not be checked. A WARN (a kink at the recorded inputs) does not"
        " change it.",
    )
)
@option.case
@option.only_checked
@option.of(AskedOfCapture, "skip", "seed")
@option.quiet()
def gradcheck(
    case: str | None, only: tuple[str, ...], skip: tuple[str, ...], seed: int | None, quiet: bool
) -> int:
    """Check the backward of each custom Function of CASE.

    Every custom autograd Function (torch.autograd.Function, or torch.library's) of the first
    forward and the loss is called again on the CPU in float64, with the arguments that it was given
    there, and its backward is compared with finite differences, argument by argument. CASE is
    as for `accucompare watch`."""
    from accucompare.devices import DeviceName, open_device

    open_device(DeviceName.parse("cpu"))  # before anything else imports torch
    from accucompare.cli.progress import progress_bar
    from accucompare.findings.checklist import STATUS_EXIT_CODES
    from accucompare.report.console import reader_may_leave
    from accucompare.report.watched import print_gradcheck
    from accucompare.watcher.custom import check_gradients

    with progress_bar("checking", "Functions", quiet) as progress:
        found = check_gradients(case, only=only, skip=skip, seed=seed or 0, progress=progress)
    with reader_may_leave():
        print_gradcheck(found, quiet)
    return STATUS_EXIT_CODES[found.status]
