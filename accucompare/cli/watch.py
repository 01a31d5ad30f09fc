"""The commands `watch` and `overflow`."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from accucompare.asked import Arithmetic, AskedOfCapture, AskedOfWatch
from accucompare.cli import options as option
from accucompare.cli.group import DIFFERENT, TROUBLE, cli
from accucompare.cli.help import examples, was_given
from accucompare.cli.option_types import LOCAL
from accucompare.cli.outputs import is_page, logs_of, refuse_places, reports_to_write, stem
from accucompare.cli.scripts import (
    OF_CASES,
    MayRunScript,
    after_script,
    command_after_dashes,
    watch_script,
)
from accucompare.errors import NonFiniteWarning, UsageError
from accucompare.selection import OnFinding

if TYPE_CHECKING:
    from accucompare.findings.analysis import Ranks

#: A watch also refuses what is set around a case.
_NOT_OF_SCRIPTS = {
    **OF_CASES,
    "hf32": "--hf32: the script sets its device's flags",
    "tf32": "--tf32: the script sets its device's flags",
}


@cli.command(
    cls=MayRunScript,
    epilog=examples(
        "accucompare watch model.py --device npu --steps 100",
        "accucompare watch model.py --device npu --level op            # which operator, on which"
        " line?",
        "accucompare watch model.py --dtype float16 --on-finding warn  # go on after a finding",
        "accucompare watch model.py --trace-step 0 --trace-step 7      # every call of these steps",
        "accucompare watch model.py --device npu --flag-per-module --kernel-dump dump/",
        "accucompare watch model.py --allow '*.relative_bias'          # may give an infinity",
        "accucompare watch -- python train.py --fp16                   # a script, as it is",
        "accucompare overflow watch/                                   # then: analysis and Excel"
        " report",
        "",
        "accucompare watch model.py --steps 300 --pause-after 3        # stop if the loss stays"
        " NaN …",
        "accucompare watch model.py --steps 100 --like watch/state-before-step17   # … and go on"
        " there",
        "accucompare watch model.py --steps 300 --threshold loss-spike=20  # a checklist less"
        " strict",
        "accucompare health watch/                                     # the checklist again, all"
        " of it",
        "",
        "Exit code: 0 everything was finite, 1 something was not, 2 trouble. The checklist"
        " does not",
        "change it: `accucompare health` has an exit code of its own.",
    ),
)
@option.case
@option.device()
@option.dtype()
@option.steps_to_run
@option.out("Directory to write.", "watch")
@option.of(AskedOfWatch)
@option.of(AskedOfCapture, "seed", "deterministic", "hf32", "tf32")
@option.thresholds
@option.threshold_file
@option.model
@option.arm
@option.quiet()
def watch(
    case: str | None,
    device: str,
    out: Path,
    steps: int | None,
    thresholds: tuple[str, ...],
    threshold_file: Path | None,
    quiet: bool,
    **options: Any,
) -> int:
    """Run CASE, or a script, and find where NaN, Inf or an overflow begins; then check the training
    against a list.

    Its loss and optimizer are run too, if it has them. At the end, the checklist names what else
    looks wrong: data, randomness, model, precision, optimizer, schedule, run.

    CASE is file.py[:callable] or package.module[:callable]; the callable, `case` if not named,
    returns an accucompare.Case. Without CASE, [tool.accucompare] case of the nearest pyproject.toml
    is run, or else ./case.py.

    A script is run by its COMMAND, unedited, with the same output, results and exit code. Its model
    is found and watched; a finding does not end it, unless --on-finding raise is given."""
    from accucompare.findings.checklist import read_thresholds
    from accucompare.findings.log import log_path

    refuse_places({"--out": log_path(out, 0)})
    given = read_thresholds(thresholds, threshold_file)
    asked = option.taken(AskedOfWatch, options)
    of_script = {name: options.pop(name) for name in ("model", "arm")}
    if (command := command_after_dashes(_NOT_OF_SCRIPTS)) is not None:
        own = {name: options[name] for name in ("seed", "deterministic")}
        return _watch_script(command, out, steps, given, quiet, {**asked, **own, **of_script})
    from accucompare.cli.logs import told_later
    from accucompare.devices import DeviceName, open_device

    name = DeviceName.parse(device)
    open_device(name)  # before anything else imports torch
    from accucompare.cli.progress import progress_bar
    from accucompare.findings.analysis import read_logs
    from accucompare.recorder.session import rank_and_ranks
    from accucompare.report.console import reader_may_leave
    from accucompare.watcher.watch import watch_case
    from accucompare.watcher.watch_options import WatchOptions

    asked["on_finding"] = _on_finding(asked)
    with (
        progress_bar("watching", "steps", quiet) as progress,
        _bare_warnings(),
        told_later("accucompare.watch"),
    ):
        checked = WatchOptions(quiet=quiet, case=case, **asked)
        numerics = Arithmetic(
            **{each: options.pop(each) for each in ("deterministic", "hf32", "tf32")}
        )
        found = watch_case(
            name, out, checked, numerics=numerics, steps=steps, progress=progress, **options
        )
    if not quiet and (found or asked["trace_steps"]):
        click.echo(err=True)  # between the frames shown meanwhile and the verdict
    rank, several = rank_and_ranks()
    ranks = read_logs(
        out if several == 1 else log_path(out, rank)
    )  # the others may still be running
    with reader_may_leave():
        _print_watched(ranks, given, quiet, asked)
    return DIFFERENT if found else _code(ranks)


def _on_finding(options: dict[str, Any]) -> str:
    """By default, a run that may be paused goes on after a finding."""
    said = was_given(click.get_current_context(), "on_finding")
    if said or options["pause_after"] is None:
        return str(options["on_finding"])
    return OnFinding.SNAPSHOT.value


def _watch_script(
    command: list[str],
    out: Path,
    steps: int | None,
    given: dict[str, float],
    quiet: bool,
    options: dict[str, Any],
) -> int:
    from accucompare.findings.analysis import read_logs
    from accucompare.report.console import reader_may_leave

    ended, code = watch_script(command, out, steps, quiet, options)

    def conclude() -> int:
        if not any(each.recorded for each in ended.seen):
            return code or TROUBLE
        ranks = read_logs(out)
        # standard output is the script's
        with reader_may_leave(), contextlib.redirect_stdout(sys.stderr):
            _print_watched(ranks, given, quiet, options)
        return code or _code(ranks)

    return after_script(ended, conclude)


def _print_watched(
    ranks: Ranks, given: dict[str, float], quiet: bool, options: dict[str, Any]
) -> None:
    """Print the findings, and the checklist in short."""
    from accucompare.findings.checklist import judge_log
    from accucompare.report.watched import print_health_briefly, print_watched

    health = judge_log(ranks, given) if options["checks_every"] and ranks.watched else None
    print_watched(ranks, health, quiet)
    if not quiet and health is not None:
        print_health_briefly(ranks, health)


@cli.command(
    epilog=examples(
        "accucompare overflow watch/                     # all ranks; writes"
        " reports/watch-overflow.xlsx",
        "accucompare overflow watch/rank3.jsonl --report rank3.xlsx --report rank3.html",
        "accucompare overflow watch/ --quiet             # one line",
        "accucompare overflow dump/                      # what CANN dumped of operators that"
        " overflowed",
        "",
        "Exit code: 0 everything was finite, 1 something was not, 2 trouble: no step was watched,"
        " a log",
        "has no end, or a rank's log is missing.",
    )
)
@click.argument("log", type=LOCAL)
@option.report("LOG-overflow")
@option.quiet()
def overflow(log: Path, reports: tuple[Path, ...], quiet: bool) -> int:
    """Show what a watch found, and write it as a report.

    For each finding it shows where it began and what to try. LOG is the directory that
    `accucompare watch` or accucompare.watch() wrote, with a log of each rank, or one of those logs.
    Only the last run in a log counts. LOG may also be a folder into which CANN dumped operators
    that overflowed; they are shown in order of time, and no report is written."""
    from accucompare.dumps import holds_overflows

    # a watch may have its kernel dumps in its own folder
    if holds_overflows(log) and not any(log.glob("rank*.jsonl")):
        return _overflows_of_cann(log, reports, quiet)
    usual = (
        Path("reports")
        / f"{stem(log.with_suffix('') if os.path.isfile(log) else log)}-overflow.xlsx"
    )
    reports = reports_to_write(reports, usual)
    refuse_places({"LOG": logs_of(log), "--report": reports})
    from accucompare.findings.analysis import read_logs

    ranks = read_logs(log)
    from accucompare.findings.checklist import judge_vitals
    from accucompare.report.console import reader_may_leave
    from accucompare.report.watched import print_analysis

    health = judge_vitals(ranks)

    try:
        from accucompare.report.watch_files import write_log_page, write_watch

        for report in reports:
            (write_log_page if is_page(report) else write_watch)(ranks, report)
    except Exception:
        with reader_may_leave():
            # the findings stand, though the report cannot be written
            print_analysis(ranks, health, [], quiet)
        raise
    with reader_may_leave():
        print_analysis(ranks, health, reports, quiet)
    return _code(ranks)


def _overflows_of_cann(folder: Path, reports: tuple[Path, ...], quiet: bool) -> int:
    from accucompare.dumps import overflows_in
    from accucompare.report.console import reader_may_leave
    from accucompare.report.watched import print_overflows

    if reports_to_write(reports, None):
        raise UsageError("--report: of CANN's overflow dumps there is no report; leave it out")
    overflows = overflows_in(folder)
    with reader_may_leave():
        print_overflows(folder, overflows, quiet)
    return TROUBLE if overflows.unreadable else DIFFERENT


@contextlib.contextmanager
def _bare_warnings() -> Iterator[None]:
    """Show findings without the warning's source line, which is ours and not the user's."""
    usual = warnings.formatwarning

    def bare(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if issubclass(category, NonFiniteWarning):
            return f"\n{message}\n"
        return usual(message, category, filename, lineno, line)

    warnings.formatwarning = bare
    try:
        yield
    finally:
        warnings.formatwarning = usual


def _code(ranks: Ranks) -> int:
    from accucompare.findings.checklist import STATUS_EXIT_CODES, judge_finite

    return STATUS_EXIT_CODES[judge_finite(ranks).status]
