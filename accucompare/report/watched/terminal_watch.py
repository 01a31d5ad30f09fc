"""What a watch prints: findings with frames on stderr while it runs; a log's analysis on stdout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.cells import cell_len
from rich.text import Text

from accucompare.bundle.format import display_name
from accucompare.findings.analysis import Analysis, Ranks, Trail
from accucompare.findings.checklist import CheckStatus, Health, judge_finite
from accucompare.findings.log import (
    Cause,
    Direction,
    Ending,
    Finding,
    Frame,
    Frames,
    Step,
    WatchStart,
)
from accucompare.report.console import ReportConsole, open_console
from accucompare.report.headline import Headline
from accucompare.report.table import Column, chosen
from accucompare.report.terminal import print_table
from accucompare.report.watch_words import (
    answer,
    called,
    finding_headline,
    kinds,
    printable_value,
    said,
    short,
    where,
)
from accucompare.report.watched.health_columns import headline
from accucompare.report.watched.watch_columns import (
    FINDINGS,
    FRAMES,
    FindingRow,
    main_answer,
    main_run,
    tensor_rows,
)

_TRAILS_SHOWN, _PASSED_SHOWN, _LISTED = 10, 3, 10
_NORMS_SHOWN = 10
_INPUTS = {
    Cause.RANKS: "finite, of this rank",
    Cause.INSIDE: "finite",
    Cause.NEAR: "near the limit",
    Cause.INPUTS: "already bad",
}


def print_finding(
    finding: Finding,
    start: WatchStart,
    frames: Frames | None,
    directory: Path | None = None,
    *,
    scale: float | None = None,
    with_answer: bool = True,
    console: ReportConsole | None = None,
) -> None:
    """Print the answer and the last frames to stderr, apart from the training's output.

    Args:
        frames: the last calls before it, if they were recorded; the finding's is marked.
        directory: of the watch, with its log and reproducer.
        scale: the loss scale in its step, if any.
        with_answer: false if an exception will give the answer.
        console: where to print; stderr if not given.
    """
    console = console or open_console(stderr=True)
    if with_answer:
        _print_answer(console, f"accucompare: {answer(finding, start, directory, scale)}")
    if frames is not None and frames.frames:
        count = len(frames.frames)
        calls = (
            "the last call, as it ended" if count == 1 else f"the last {count} calls, as they ended"
        )
        console.heading(calls)
        _print_frames(console, frames, finding)


def print_frames(frames: Frames) -> None:
    """Print all frames of a traced step to stderr."""
    console = open_console(stderr=True)
    title = (
        f"step {frames.step}: {'all' if frames.traced else 'the last'} {len(frames.frames):,}"
        " calls, as they ended"
    )
    console.print(Text(title, "bold"))
    _print_frames(console, frames)


def print_analysis(
    ranks: Ranks, health: Health | None, reports: Sequence[Path], quiet: bool = False
) -> None:
    """Print the verdict, first answer, findings, frames, history, paths; only the verdict if quiet.

    Args:
        ranks: the last run of every rank.
        health: the checklist's result, if judged.
    """
    console = open_console()
    console.say(verdict_line(ranks, health, quiet))
    if quiet:
        return
    first = ranks.first
    if first is not None:
        run, finding = first
        console.print()
        _print_answer(console, main_answer(ranks))
        _print_findings(console, ranks)
        frames = run.frames_of(finding)
        if frames is not None and frames.frames:
            console.heading("The last calls before the first finding")
            _print_frames(console, frames, finding)
    for run, step in ranks.unexplained[:_LISTED]:
        console.print(
            Text(
                f"{_rank(ranks, run)}step {step.step}: {_unexplained(step)}, and no call was found",
                "yellow",
            )
        )
    run = main_run(ranks)
    _print_history(console, ranks, run)
    _print_warnings(console, ranks)
    console.print()
    if not _is_told(ranks, run):
        console.say(f"{_rank(ranks, run)}{said(run.ending)}", "" if run.end else "yellow")
    for note in ranks.notes[:_LISTED]:
        console.say(f"note: {printable_value(said(note), 400)}", "yellow")
    for report in reports:
        console.say(f"report: {printable_value(str(report), 400)}")


def print_watched(ranks: Ranks, health: Health | None, quiet: bool) -> None:
    """After a run, print verdict, first answer, warnings, paths; only the verdict if quiet.
    ``health``: the checklist's result, if judged."""
    console = open_console()
    console.say(verdict_line(ranks, health, quiet))
    if quiet:
        return
    _print_answer(console, main_answer(ranks))
    _print_warnings(console, ranks)
    run = main_run(ranks)
    if (
        run.end is not None
        and run.end.ending not in (Ending.FINISHED, Ending.FINDING)
        and not _is_told(ranks, run)
    ):
        console.say(f"{_rank(ranks, run)}{said(run.ending)}")
    console.say(f"more: accucompare overflow {printable_value(str(ranks.path), 400)}")


def _is_told(ranks: Ranks, run: Analysis) -> bool:
    """Whether the verdict line says how a run ended."""
    return ranks.trouble is not None and ranks.trouble.values.get("ending") == run.ending


def checks_fail(health: Health | None) -> bool:
    """Whether a judged checklist has a failing check."""
    return health is not None and health.status is CheckStatus.FAIL


def verdict_line(ranks: Ranks, health: Health | None, alone: bool = True) -> Text:
    """The headline, such as ``FINITE, CHECKS FAIL``; alone, also what and where."""
    path = printable_value(str(ranks.path), 400)
    outcome = judge_finite(ranks)
    if outcome.status is CheckStatus.NOT_LOOKED_AT:
        return Text.assemble(
            (Headline.TROUBLE.value, "bold red"),
            f"  {path}: {printable_value(said(outcome.measured), 600)}",
        )
    if ranks.first is not None:
        run, finding = ranks.first
        origins = sum(trail.origin is not None for trail in ranks.trails)
        passed = len(ranks.findings) - origins
        counts = f"{origins:,} {'origin' if origins == 1 else 'origins'}" + (
            f", {passed:,} passed on" if passed else ""
        )
        what = f"{finding_headline(finding, run.start)}; " if alone else ""
        return Text.assemble((Headline.NOT_FINITE.value, "bold red"), f"  {path}: {what}{counts}")
    if ranks.unexplained:
        count = len(ranks.unexplained)
        flag = (
            f"{_unexplained(ranks.unexplained[0][1])} in {count:,}"
            f" {'step' if count == 1 else 'steps'}, and no call was found"
        )
        return Text.assemble((Headline.NOT_FINITE.value, "bold red"), f"  {path}: {flag}")
    warned = sum(len(run.warnings) for run in ranks.ranks)
    but = f"; {warned:,} {'warning' if warned == 1 else 'warnings'}" if warned else ""
    steps = f"{ranks.watched:,} watched {'step' if ranks.watched == 1 else 'steps'}"
    finite = f"  {path}: everything was finite in {steps}{but}"
    if health is not None and checks_fail(health):
        return Text.assemble(
            (Headline.CHECKS_FAIL.value, "bold red"),
            f"{finite}; but the checklist: {headline(health)}",
        )
    return Text.assemble((Headline.FINITE.value, "bold green"), finite)


def _unexplained(step: Step) -> str:
    return "the device's overflow flag was up" if step.overflowed else "something was not finite"


def _print_answer(console: ReportConsole, text: str) -> None:
    for number, line in enumerate(text.splitlines()):
        console.say(line if not number else f"  {line}", "bold red" if not number else "")


def _rank(ranks: Ranks, run: Analysis) -> str:
    return f"{where(run.start)}: " if ranks.several else ""


_ORDER, *_PLACE = chosen(FINDINGS, "order in step", "place", "class")
_FINDINGS = [
    *chosen(FINDINGS, "step", "rank"),
    _ORDER._replace(title="#"),
    *_PLACE,
    Column("what", lambda row: kinds(row.finding), least=14),
    Column("its inputs", lambda row: inputs_of(row.finding), least=14),
]


def _print_findings(console: ReportConsole, ranks: Ranks) -> None:
    """In execution order: origins, and below each the first few calls that it passed through."""
    print_table(
        console,
        [column for column in _FINDINGS if ranks.several or column.title != "rank"],
        [row for trail in ranks.trails[:_TRAILS_SHOWN] for row in _rows(trail)],
        "Findings, in execution order",
        style=lambda row, column: "bold red" if row.finding.origin else "",
        below=lambda row: (
            [Text(f"… and passed through {row.more:,} more", "bright_black")] if row.more else []
        ),
    )
    console.rest(len(ranks.trails), _TRAILS_SHOWN)


def _rows(trail: Trail) -> list[FindingRow]:
    shown = [*([trail.origin] if trail.origin else []), *trail.passed[:_PASSED_SHOWN]]
    *rows, last = [FindingRow(trail.run, finding) for finding in shown]
    return [*rows, last._replace(more=max(len(trail.passed) - _PASSED_SHOWN, 0))]


def inputs_of(finding: Finding) -> str:
    """A finding's inputs in a word or two."""
    if finding.unseen and finding.cause is not Cause.INPUTS:
        return "not all looked at"
    return _INPUTS[finding.cause]


def _guilty(finding: Finding, frames: Sequence[Frame]) -> Frame | None:
    """The finding's frame, if it is among these."""
    same = [
        frame
        for frame in frames
        if (frame.name, frame.call, frame.direction)
        == (finding.name, finding.call, finding.direction)
    ]
    exact = [frame for frame in same if frame.order == finding.order]
    return next(reversed(exact or same), None)


_TENSORS = [
    Column(
        "    # call, tensor", lambda row: row.tensor and f"      {called(row.tensor)}", least=32
    ),
    *chosen(FRAMES, "dtype", "shape", "abs min", "abs max", "NaN", "Inf"),
]


def _print_frames(console: ReportConsole, frames: Frames, finding: Finding | None = None) -> None:
    """A full-width line for each frame, and below it a line for each tensor."""
    guilty = None if finding is None else _guilty(finding, frames.frames)
    print_table(
        console,
        _TENSORS,
        list(tensor_rows(frames)),
        above=lambda row: (
            [_frame_line(console, row.frame, row.frame is guilty)] if row.first else []
        ),
        style=lambda row, column: "" if row.tensor is None or row.tensor.finite else "red",
    )


def _frame_line(console: ReportConsole, frame: Frame, guilty: bool) -> Text:
    about = [printable_value(frame.operator, 80)] if frame.operator else []
    about += [printable_value(frame.type, 60)] if frame.type else []
    about += [f"call {frame.call}"] if frame.call else []
    about += ["backward"] if frame.direction is Direction.BACKWARD else []
    behind = f"  {', '.join(about)}" if about else ""
    mark = "  ◀ here" if guilty else ""
    style = "bold red" if guilty else "bold"
    line = Text(f"{frame.order:>5} ", style)
    line.append(
        console.fitted(
            printable_value(display_name(frame.name)), used=line.cell_len + cell_len(behind + mark)
        )
    )
    line.append(behind, "not bold")
    line.append(mark)
    return line


def _print_history(console: ReportConsole, ranks: Ranks, run: Analysis) -> None:
    """What led to it: grad_norm and the loss scale."""
    norms = [step for step in run.steps if step.grad_norm is not None]
    if norms:
        console.heading(f"{_rank(ranks, run)}grad_norm")
        last = norms[-_NORMS_SHOWN:]
        values = " ".join(short(step.grad_norm) for step in last)
        console.print(
            Text(
                f"  steps {last[0].step} to {last[-1].step}: {values}"
                if len(last) > 1
                else f"  step {last[0].step}: {values}"
            )
        )
    for jump in run.jumps[:_LISTED]:
        before = "" if math.isnan(jump.before) else f" from about {short(jump.before)}"
        most = "; most of it: " + ", ".join(
            f"{printable_value(name, 60)} {short(norm)}" for name, norm in jump.step.largest[:3]
        )
        console.print(
            Text(
                f"  jumped in step {jump.step.step}{before} to"
                f" {short(jump.step.grad_norm)}{most if jump.step.largest else ''}",
                "yellow",
            )
        )
    if len(run.jumps) > _LISTED:
        console.print(f"  … and {len(run.jumps) - _LISTED:,} more jumps in the report")
    _print_scale(console, ranks, run)


def _print_scale(console: ReportConsole, ranks: Ranks, run: Analysis) -> None:
    scales = [step.scale for step in run.steps if step.scale is not None]
    if not scales and not run.scaled:
        return
    skipped = sum(each.skipped for each in run.scaled)
    scales += [each.scale for each in run.scaled[-1:]] if not scales else []
    console.heading(f"{_rank(ranks, run)}loss scale")
    summary = (
        f"  {scales[0]:g} at first, {scales[-1]:g} at last, {min(scales):g} at least; {skipped:,}"
        f" of {len(run.steps):,} steps skipped"
    )
    console.print(Text(summary))
    if not run.alarms:
        console.print(
            Text(
                "  a skipped step now and then is normal: the scale was too large"
                if skipped
                else "  never too large"
            )
        )
        return
    worst = max(each.in_a_row for each in run.alarms)
    first = run.alarms[0]
    text = printable_value(said(first.text), 300) or (
        f"the scale fell to {first.scale:g}, {worst} steps were skipped in a row: this is not"
        " normal"
    )
    console.print(Text(f"  alarm in step {first.step}: {text}", "bold red"))


def _print_warnings(console: ReportConsole, ranks: Ranks) -> None:
    warned = [(run, warning) for run in ranks.ranks for warning in run.warnings]
    if not warned:
        return
    warned.sort(key=lambda pair: pair[1].step)
    console.heading("Warnings")
    for run, warning in warned[:_LISTED]:
        text = printable_value(said(warning.text), 300)
        console.say(f"  {_rank(ranks, run)}step {warning.step}: {text}", "yellow")
    if len(warned) > _LISTED:
        console.print(f"  … and {len(warned) - _LISTED:,} more in the report")
