"""What every report says of the culprits: where, how far beyond what is expected, and how certain that is."""

from __future__ import annotations

import math

from accucompare.bundle.dtypes import DTYPES
from accucompare.compare.baseline import differing
from accucompare.compare.comparison import Comparison, Culprit, Row
from accucompare.compare.culprits import is_choice, trust
from accucompare.report.columns import excess_limit

#: What the excess is a multiple of, as the heading of the culprits says it.
_BY_BASELINE = "excess: the relative L2 error as a multiple of the baseline's, which rounding alone makes"
_BY_LIMIT = "excess: the error as a share of its limit"


def judged(comparison: Comparison) -> bool:
    """Whether there is something to tell rounding from a bug by, so that its conclusion says more than its verdict."""
    return comparison.fed or comparison.baseline is not None


def tolerance(comparison: Comparison) -> str:
    """What judged: what the user gave, then the baseline, then the table by dtype."""
    limits = comparison.tolerances
    if comparison.baseline is None or limits.otherwise.given:
        return str(limits)
    given, default = str(limits).rpartition(", then ")[::2]
    return f"{given + ', then ' if given else ''}the baseline; where it has no such record, {default}"


def note(comparison: Comparison) -> str:
    """How to read the list of culprits, and how far to trust it."""
    parts = [_BY_LIMIT if comparison.baseline is None else _BY_BASELINE]
    if comparison.fed:
        parts.append("every call was given golden's values, so each error is its own")
    if caution := trust(comparison):
        parts.append(f"not certain: {caution}")
    return "; ".join(parts)


def identical_until(comparison: Comparison) -> str:
    """``bit for bit identical until encoder.1.norm output: relative L2 4.50e-06``; ``""`` where there is no such row."""
    row = comparison.identical_until
    return "" if row is None else f"bit for bit identical until {comparison.place(row)}: {_difference(row)}"


def _difference(row: Row) -> str:
    metrics = row.metrics
    if metrics is None or metrics.nonfinite_mismatch:
        return row.verdict.detail or row.reason.value
    if not metrics.max_abs:
        return row.verdict.detail or "other bits of equal value"
    if different := differing(metrics) if row.golden is not None and not DTYPES[row.golden.dtype].digits else 0:
        return f"{different:,} of {metrics.compared:,} values different"
    return f"relative L2 {'at least ' if row.by_statistics else ''}{metrics.rel_l2:.2e}"


def place(comparison: Comparison, culprit: Culprit) -> str:
    """Where a culprit is, with step and rank where there are several: ``encoder.0 (glue, before fc1) (step 2)``."""
    return culprit.place + comparison.place(culprit.row).removeprefix(culprit.row.place)


def excess(culprit: Culprit) -> float | None:
    """Its excess; ``None`` where another shape or kind of number says it all, and of integers, of which some differ."""
    return None if is_choice(culprit.row) else culprit.excess or None


def limit(culprit: Culprit) -> float | None:
    """The limit on its excess: the baseline's; 1, where excess is a share of the limit; ``None`` where neither judged it."""
    if excess(culprit) is None:
        return None
    return 1.0 if culprit.row.verdict.excess is None else excess_limit(culprit.row)


def error(culprit: Culprit) -> float | None:
    """Its relative L2 error; ``None`` where that was not measured."""
    metrics = culprit.row.metrics
    return None if metrics is None or metrics.nothing_finite else metrics.rel_l2


def kind(culprit: Culprit) -> str:
    """Site and reason in words: ``module, introduced, 14 times what went in, in 3 calls``."""
    parts = [culprit.site] if culprit.site == culprit.reason.value else [culprit.site, culprit.reason.value]
    if culprit.jump is not None and math.isfinite(culprit.jump):
        parts.append(f"{culprit.jump:.3g} times what went in")
    if culprit.seen > 1:
        parts.append(f"in {culprit.seen:,} calls")
    return ", ".join(parts)
