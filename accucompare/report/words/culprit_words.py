"""Culprits in every report: where, how far beyond what is expected, and how certain."""

from __future__ import annotations

import math

from accucompare.compare.decide import Answer, decide
from accucompare.compare.limits import differing
from accucompare.compare.origins import Culprit, is_choice
from accucompare.compare.result import Result
from accucompare.compare.rows import Row
from accucompare.numbers import DTYPES
from accucompare.report.words import limit_words, verdict_words
from accucompare.report.words.culprit_place import culprit_hints, culprit_place, error_words
from accucompare.report.words.decision_words import trust
from accucompare.text import first_few

#: The meaning of a culprit, and of the two measures of its error.
_CULPRIT = "where errors are made, the most certain first"
_EXCESS = (
    "excess: the relative L2 error as a multiple of the baseline's, which rounding alone makes"
)
_OPTIONS_SHOWN = 5  # of what is configured otherwise
_OVER_LIMIT = "x limit: the error as a multiple of its limit"


def agreement(comparison: Result) -> str:
    """How far the rows of a passing comparison agree."""
    if decide(comparison).answer not in (Answer.IDENTICAL, Answer.IDENTICAL_SO_FAR):
        return "within tolerance"
    if not comparison.by_digests:
        return "bit for bit identical"
    more = "" if comparison.without_values else " (--verify reads the values)"
    return f"bit for bit identical by their digests{more}"


def mark(row: Row) -> str:
    """The sign before an error that was not measured: a lower bound, or an estimate."""
    return "≥" if row.by_statistics else "≈" if row.by_sketch else ""


def how_known(row: Row) -> str:
    return "at least " if row.by_statistics else "about " if row.by_sketch else ""


def tolerance(comparison: Result) -> str:
    """What judged: the user's limits, then the baseline, then the table by dtype."""
    limits = comparison.in_force
    if comparison.baseline is None or limits.otherwise.has_limit:
        return limit_words.tolerances(limits)
    parts = [
        limit_words.by_rules(limits),
        f"the baseline; where it has no such record, {limit_words.by_dtype(limits)}",
    ]
    return ", then ".join(filter(None, parts))


def note(comparison: Result) -> str:
    """How to read the list of culprits, and how far to trust it."""
    parts = [_CULPRIT, *([] if comparison.baseline is None else [_EXCESS]), _OVER_LIMIT]
    if any(culprit.site == "glue" for culprit in comparison.culprits):
        parts.append("glue: a module's own code between its children")
    if any(is_choice(culprit.row) for culprit in comparison.culprits):
        parts.append("blank for integers and booleans, of which none may differ")
    if any(over_limit(culprit) == math.inf for culprit in comparison.culprits):
        parts.append("inf: the limit is zero, or NaN or Inf is on one side only")
    if comparison.fed:
        parts.append("every call was given golden's values, so each error is its own")
    if caution := trust(comparison):
        parts.append(f"not certain: {caution}")
    return "; ".join(parts)


def identical_until(comparison: Result) -> str:
    """``bit for bit identical until encoder.1.norm output: relative L2 4.50e-06``; or ``""``."""
    row = comparison.identical_until
    if row is None:
        return ""
    same = "equal hashes" if all(comparison.hashes) else "bit for bit identical"
    return f"{same} until {comparison.place(row)}: {_difference(row)}"


def _difference(row: Row) -> str:
    metrics = row.metrics
    if metrics is None or metrics.nonfinite_mismatch:
        return verdict_words.detail(row) or row.reason.value
    if not metrics.max_abs:
        return verdict_words.detail(row) or "other bits of equal value"
    exact = row.golden is not None and not DTYPES[row.golden.dtype].digits
    if exact and (different := differing(metrics)):
        return f"{different:,} of {metrics.compared:,} values different"
    return f"relative L2 {how_known(row)}{metrics.rel_l2:.2e}"


#: The prefix of further statements on a culprit.
HINT = "hint"


def statements(culprit: Culprit) -> list[tuple[str, list[str]]]:
    """Statements on a culprit, by their subjects; nothing of what is not known."""
    said = (
        ("its module", [configuration_words(culprit)]),
        ("its error", list(error_words(culprit))),
        (HINT, list(culprit_hints(culprit))),
    )
    return [(title, words) for title, words in said if any(words)]


def fed(comparison: Result) -> str:
    """How the candidate was fed; ``""`` if it was not."""
    if (feed := comparison.candidate.manifest.feed) is None:
        return ""
    kept = len(feed.not_fed)
    but = f", but for {kept:,} values (see Environment)" if kept else ""
    return f"every call was given golden's values{but}, so each error is its own"


def place_words(comparison: Result, culprit: Culprit) -> str:
    """``encoder.0 (glue, before fc1) (step 2)``; step and rank where there are several."""
    return culprit_place(culprit) + comparison.step_and_rank(culprit.row)


def excess_words(culprit: Culprit) -> float | None:
    """Its excess; ``None`` without a baseline, for integers, another shape or kind of dtype."""
    return None if is_choice(culprit.row) else culprit.excess or None


def over_limit(culprit: Culprit) -> float | None:
    """Its error as a multiple of its limit; ``None`` in the same cases."""
    return None if is_choice(culprit.row) else culprit.over_limit or None


def error(culprit: Culprit) -> float | None:
    """Its relative L2 error; ``None`` where that was not measured."""
    metrics = culprit.row.metrics
    return None if metrics is None or metrics.nothing_finite else metrics.rel_l2


def configuration_words(culprit: Culprit) -> str:
    """``configured otherwise: eps is 1e-12 in golden, 0.01 in the candidate``; or ``""``."""
    options = [
        f"{option.name} is {option.golden} in golden, {option.candidate} in the candidate"
        for option in culprit.configured
    ]
    return f"configured otherwise: {first_few(options, _OPTIONS_SHOWN, '; ')}" if options else ""


def kind(culprit: Culprit) -> str:
    """Site and reason in words: ``module, introduced, 14 times what went in, in 3 calls``."""
    parts = list(dict.fromkeys((culprit.site, culprit.reason.value)))  # both may be glue
    if culprit.jump is not None and math.isfinite(culprit.jump):
        parts.append(f"{culprit.jump:.3g} times what went in")
    if culprit.seen > 1:
        parts.append(f"in {culprit.seen:,} calls")
    return ", ".join(parts)
