"""A comparison in a notebook: verdict, pre-flight findings, culprits, worst rows, links."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from accucompare.compare.decide import decide
from accucompare.compare.origins import Culprit
from accucompare.compare.result import Result
from accucompare.compare.rows import Reason, Row, Status
from accucompare.markup import line, link, table
from accucompare.report.words import culprit_words as culprits
from accucompare.report.words import decision_words, preflight_words, verdict_words

_CULPRITS_SHOWN = 10
_WORST_SHOWN = 10


def comparison_html(comparison: Result, reports: Sequence[Path]) -> str:
    """HTML without scripts, with every name escaped; ``reports`` are linked to."""
    sides = f"{comparison.candidate.path} against {comparison.golden.path}"
    decided = decide(comparison)
    said = f"{sides}: {decision_words.conclusion(decided, comparison)}"
    parts = [line(said, strong=decision_words.verdict(decided.answer)), line(_counts(comparison))]
    parts += [
        line(preflight_words.message(finding), strong="!")
        for finding in comparison.preflight
        if finding.serious
    ]
    parts.append(_culprits(comparison))
    worst = [row for row in comparison.worst(_WORST_SHOWN) if row.metrics is not None]
    parts.append(table(_TITLES, [_cells(comparison, row) for row in worst], "Furthest from golden"))
    parts += [f"<div>{link(path)}</div>" for path in reports]
    return f"<div>{''.join(parts)}</div>"


def _counts(comparison: Result) -> str:
    counts, failed = comparison.counts(), comparison.counts_by_status()[Status.FAIL]
    parts = ", ".join(f"{counts[reason]} {reason.value}" for reason in Reason if counts[reason])
    judged = (
        f"; {comparison.by_statistics} judged {verdict_words.BY_STATISTICS}"
        if comparison.by_statistics
        else ""
    )
    return f"{failed} of {len(comparison.rows)} rows fail: {parts}{judged}"


def _culprits(comparison: Result) -> str:
    shown = comparison.culprits[:_CULPRITS_SHOWN]
    rows = [
        (
            culprits.place_words(comparison, each),
            culprits.excess_words(each),
            culprits.over_limit(each),
            culprits.error(each),
            _about(each),
        )
        for each in shown
    ]
    more = len(comparison.culprits) - len(shown)
    caption = f"Culprits{f' (and {more} more)' if more else ''}: {culprits.note(comparison)}"
    return table(
        ("place", "excess", "x limit", "relative L2", "what the error looks like"), rows, caption
    )


def _about(culprit: Culprit) -> str:
    said = [
        f"hint, {each}" if title == culprits.HINT else each
        for title, words in culprits.statements(culprit)
        for each in words
    ]
    return "; ".join([culprits.kind(culprit), *said])


_TITLES = ("row", "reason", "relative L2", "x limit", "max abs diff", "would pass at")


def _cells(comparison: Result, row: Row) -> tuple[object, ...]:
    metrics = row.metrics
    finite = metrics is not None and not metrics.nothing_finite
    mark = culprits.mark(row)
    measured = [
        f"{mark}{value:.2e}" if finite else ""
        for value in ((metrics.rel_l2, metrics.max_abs) if metrics else ())
    ] or ["", ""]
    return (
        comparison.place(row),
        row.reason.value,
        measured[0],
        row.verdict.over_limit,
        measured[1],
        row.verdict.needed,
    )
