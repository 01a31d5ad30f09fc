"""What ``diff`` prints of a comparison, on stdout: as wide as the terminal, or in 100 columns."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from accucompare.compare.decide import Answer, Decision, decide
from accucompare.compare.judging import but_plain
from accucompare.compare.origins import Culprit
from accucompare.compare.result import Result
from accucompare.compare.rows import Reason, Row, Status
from accucompare.report.console import ReportConsole, open_console, safe_text
from accucompare.report.table import (
    COLUMNS,
    COUNT,
    EXCESS,
    GENERAL,
    SCIENTIFIC,
    Column,
    chosen,
    comparison_columns,
    overview_of,
)
from accucompare.report.terminal.tables import NAME_WIDTH, print_table
from accucompare.report.words import (
    compiled_words,
    decision_words,
    limit_words,
    preflight_words,
    verdict_words,
)
from accucompare.report.words import culprit_words as culprits
from accucompare.report.words import training_words as training
from accucompare.text import counted, printable

_STYLE = {Status.PASS: "green", Status.FAIL: "red", Status.NOT_COMPARED: "bright_black"}
_UNMATCHED_SHOWN = 10
_CULPRITS_SHOWN = 5
_WORST_SHOWN = 8


def print_comparison(comparison: Result, reports: Sequence[Path], quiet: bool) -> None:
    """Print verdict, first difference, pre-flight findings, culprits, worst rows, counts."""
    console = open_console()
    decided = decide(comparison)
    sides = f"{comparison.candidate.path} against {comparison.golden.path}"
    console.answer(
        decision_words.verdict(decided.answer),
        "bold green" if decided.passed else "bold red",
        f"{sides}: {'; '.join(_sentences(comparison, decided))}",
    )
    if quiet:
        return
    if until := culprits.identical_until(comparison):
        console.say(until)
    _print_compiled(console, comparison)
    _print_preflight(console, comparison)
    _print_training(console, comparison)
    _print_culprits(console, comparison)
    if comparison.first_divergence is not None:
        _print_divergence(console, comparison, comparison.first_divergence)
    _print_worst(console, comparison)
    _print_unmatched(console, comparison)
    for damage in comparison.damage[:_UNMATCHED_SHOWN]:
        console.say(f"unreadable: {damage}", "red")
    console.print()
    if not comparison.series_only:
        console.print(_counts(comparison))
    if line := _ranks_and_steps(comparison):
        console.say(line)
    if nonfinite := comparison.nonfinite_on_both:
        console.print(
            Text(
                f"{nonfinite} {'row holds' if nonfinite == 1 else 'rows hold'} NaN or Inf on both"
                " sides",
                "yellow",
            )
        )
    if not comparison.series_only:
        console.print(safe_text(f"tolerance: {culprits.tolerance(comparison)}"))
    for report in reports:
        console.say(f"report: {report}")


def _sentences(comparison: Result, decided: Decision) -> Iterator[str]:
    """The conclusion, and how many rows support it."""
    failed, total = comparison.counts_by_status()[Status.FAIL], len(comparison.rows)
    if comparison.acceptance is not None and decided.answer is not Answer.NOT_SURE:
        yield training.acceptance_sentence(comparison.acceptance)
        if comparison.compared:
            yield f"{failed} of {total} rows fail, which does not decide"
        return
    yield decision_words.conclusion(decided, comparison)
    if comparison.series_only or decided.answer is Answer.NOT_SURE:
        return
    if decided.passed:
        yield f"all {comparison.compared} compared rows {culprits.agreement(comparison)}"
        if comparison.by_statistics:
            yield f"{comparison.by_statistics} judged {verdict_words.BY_STATISTICS}"
    elif failed:
        yield f"{failed} of {total} rows fail"
        if comparison.first_divergence is None:
            yield "all of them are on one side only"
        if comparison.incomplete:
            yield preflight_words.unfinished_words(comparison.incomplete)


def _print_compiled(console: ReportConsole, comparison: Result) -> None:
    if comparison.compiled is None:
        return
    console.heading("Compiled")
    for line in compiled_words.compiled_lines(comparison.compiled):
        console.say(f"  {line}")


def _print_preflight(console: ReportConsole, comparison: Result) -> None:
    if comparison.preflight:
        console.heading("Pre-flight")
    for finding in comparison.preflight:
        mark, style = ("!", "yellow") if finding.serious else ("·", "")
        console.say(f"  {mark} {preflight_words.message(finding)}", style)


def _print_training(console: ReportConsole, comparison: Result) -> None:
    """Print different settings of two runs, their parting and drift, the result of a standard."""
    found, sentence = comparison.training, training.steps_sentence(comparison)
    if found is None or not (sentence or comparison.acceptance):
        return
    console.heading("Training")
    for line in training.settings(found):
        console.say(f"  ! {line}", "yellow")
    if sentence:
        console.say(f"  {sentence}", "bold red" if found.parting is not None else "")
    for line in training.details(comparison, found):
        console.say(f"  {line}", "bright_black")
    if comparison.acceptance is not None:
        columns = [
            Column("rule", lambda met: met.rule.measure.value, least=12),
            Column("measured", training.measured, GENERAL),
            Column("limit", lambda met: training.rule_limit(met.rule), GENERAL),
            Column("", training.outcome, GENERAL),
        ]
        print_table(
            console,
            columns,
            comparison.acceptance.rules,
            f"Standard {comparison.acceptance.standard.value}",
        )


def _print_culprits(console: ReportConsole, comparison: Result) -> None:
    """The first few, each with the shape of its error and likely causes."""
    shown = comparison.culprits[:_CULPRITS_SHOWN]
    if not shown:
        return
    columns = [
        Column("#", None, COUNT),
        Column(
            "place", lambda culprit: culprits.place_words(comparison, culprit), least=NAME_WIDTH
        ),
        Column("excess", culprits.excess_words, EXCESS),
        Column("x limit", culprits.over_limit, EXCESS),
        Column("rel L2", culprits.error, SCIENTIFIC),
    ]
    if all(culprits.excess_words(culprit) is None for culprit in shown):
        del columns[2]
    console.heading("Culprits")
    console.print(safe_text(culprits.note(comparison), "bright_black"))
    print_table(
        console,
        columns,
        shown,
        style=lambda culprit, column: "bold red" if column.title == "place" else "",
        below=_about,
    )
    console.rest(len(comparison.culprits), _CULPRITS_SHOWN)


#: The prefix and style of statements on a culprit.
_STATEMENTS = {"its module": ("", "yellow"), culprits.HINT: ("hint, ", "bright_black")}


def _about(culprit: Culprit) -> Iterator[Text]:
    yield safe_text(culprits.kind(culprit))
    for title, words in culprits.statements(culprit):
        before, style = _STATEMENTS.get(title, ("", ""))
        yield from (safe_text(f"{before}{each}", style) for each in words)


def _print_divergence(console: ReportConsole, comparison: Result, row: Row) -> None:
    console.heading("First divergence")
    record = row.record
    assert record is not None
    dtypes = (
        record.dtype
        if row.candidate is None or row.candidate.dtype == record.dtype
        else f"{record.dtype} → {row.candidate.dtype}"
    )
    about = f"  ({record.type}, {dtypes} {list(record.shape)})"
    place = console.fitted(printable(comparison.place(row)), used=2 + cell_len(printable(about)))
    console.say(Text.assemble("  ", (place, "bold red"), safe_text(about)))
    console.print(
        safe_text(
            f"  {row.reason.value}: "
            f"{verdict_words.detail(row) or verdict_words.MEANING[row.reason]}"
        )
    )
    metrics, verdict = row.metrics, row.verdict
    if row.by_statistics or (metrics is not None and metrics.nothing_finite):
        console.print(
            safe_text(
                f"  limit: {limit_words.judging_limits(verdict.limit)}"
                f" ({limit_words.rule(verdict.limit)})"
            )
        )
    elif metrics is not None:
        where = ""
        if metrics.max_abs_index is not None:
            sides = (
                f"golden {training.number_words(metrics.golden_at_max)}, candidate"
                f" {training.number_words(metrics.candidate_at_max)}"
            )
            where = f" at {list(metrics.max_abs_index)} ({sides})"
        console.print(
            f"  {'of the finite values: ' if metrics.nonfinite_mismatch else ''}relative L2"
            f" {metrics.rel_l2:.2e}, 1 - cosine {metrics.one_minus_cosine:.2e}, max difference"
            f" {metrics.max_abs:.2e}{where}"
        )
        needed = f"; would pass at {verdict.needed}" if verdict.needed else ""
        console.print(
            safe_text(
                f"  limit: {limit_words.judging_limits(verdict.limit)}"
                f" ({limit_words.rule(verdict.limit)}){needed}"
            )
        )


def _print_worst(console: ReportConsole, comparison: Result) -> None:
    """Print the rows furthest over their limit; if none fails, those beyond half of it."""
    rows = [row for row in comparison.worst(_WORST_SHOWN) if row.status is Status.FAIL]
    failing = bool(rows)
    if not comparison.counts_by_status()[Status.FAIL]:
        near = (row for row in but_plain(comparison.rows) if row.verdict.near and row.metrics)
        rows = heapq.nlargest(_WORST_SHOWN, near, key=lambda row: row.verdict.over_limit or 0.0)
    if not rows:
        return

    def measured(name: str) -> Callable[[Row], str]:
        """A metric as text; for rows judged by their statistics, its lower bound."""

        def get(row: Row) -> str:
            assert row.metrics is not None
            if row.metrics.nothing_finite:
                return ""
            return f"{culprits.mark(row)}{getattr(row.metrics, name):.2e}"

        return get

    columns = [
        Column("row", comparison.place, least=NAME_WIDTH),
        *chosen(COLUMNS, "reason", "x limit"),
        Column("rel L2", measured("rel_l2"), SCIENTIFIC),
        *[column for column in comparison_columns(comparison) if column.title == "x reference"],
        Column("1-cosine", measured("one_minus_cosine"), SCIENTIFIC, spare=3),
        Column("max abs", measured("max_abs"), SCIENTIFIC, spare=2),
        Column("would pass at", lambda row: row.verdict.needed, GENERAL, spare=1),
    ]
    title = "Worst rows" if failing else "Closest to the limit, and within it"
    print_table(
        console,
        columns,
        rows,
        title,
        style=lambda row, column: _STYLE[row.status] if column.title == "reason" else "",
    )


def _print_unmatched(console: ReportConsole, comparison: Result) -> None:
    unmatched = comparison.unmatched()
    if not unmatched:
        return
    columns = [
        Column("row", comparison.place, least=NAME_WIDTH),
        *chosen(COLUMNS, "reason"),
        Column("nearest name on the other side", lambda row: row.nearest, least=16),
    ]
    print_table(
        console, columns, unmatched[:_UNMATCHED_SHOWN], f"Only on one side ({len(unmatched)})"
    )
    console.rest(len(unmatched), _UNMATCHED_SHOWN)
    if any(row.nearest not in ("", row.module) for row in unmatched):
        console.print("--map OLD=NEW compares a layer with one of another name")


def _ranks_and_steps(comparison: Result) -> str:
    """The worst rank, and the step where failing begins, if there are several; or ``""``."""
    manifests = (comparison.golden.manifest, comparison.candidate.manifest)
    several = any(manifest.ranks > 1 or len(manifest.steps) > 1 for manifest in manifests)
    if not several or not comparison.counts_by_status()[Status.FAIL]:
        return ""
    found = overview_of(comparison)
    ranks, steps = found.ranks, found.steps
    parts = []
    if len(ranks.names) > 1 and (failing := np.flatnonzero(ranks.failing)).size:
        worst = failing[np.lexsort((ranks.failing[failing], ranks.worst.over_limit[failing]))[-1]]
        at = f"{ranks.failing[worst]} of its {ranks.rows[worst]} rows fail"
        parts.append(
            f"{len(failing)} of {len(ranks.names)} ranks {_fail(len(failing))}, rank"
            f" {ranks.names[worst]} worst ({at})"
        )
    if len(steps.names) > 1 and (failing := np.flatnonzero(steps.failing)).size:
        parts.append(
            f"{len(failing)} of {len(steps.names)} steps {_fail(len(failing))}, the first is step"
            f" {steps.names[failing[0]]}"
        )
    return "; ".join(parts)


def _fail(count: int) -> str:
    return "fails" if count == 1 else "fail"


def _counts(comparison: Result) -> str:
    counts = comparison.counts()
    parts = (
        ", ".join(f"{counts[reason]} {reason.value}" for reason in Reason if counts[reason])
        or "nothing to compare"
    )
    left_out = decision_words.left_out_words(comparison.left_out)
    more = f"; {left_out}" if comparison.left_out else ""
    return f"{counted(len(comparison.rows), 'row')}: {parts}{more}"
