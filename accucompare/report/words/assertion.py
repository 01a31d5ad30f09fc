"""The message of a failed assertion, in the manner of ``torch.testing.assert_close``."""

from __future__ import annotations

from collections.abc import Iterator

from accucompare.bundle.format import Record
from accucompare.compare.decide import decide
from accucompare.compare.limits import SmallestLimit
from accucompare.compare.result import Result
from accucompare.compare.rows import Reason, Row, Status
from accucompare.numbers import DTYPES
from accucompare.report.words import culprit_words as culprits
from accucompare.report.words import (
    decision_words,
    limit_words,
    preflight_words,
    training_words,
    verdict_words,
)
from accucompare.report.words.culprit_place import culprit_hints, error_words
from accucompare.text import printable

_DESCRIBED = 5  # culprits whose error is described; the others are only named
_UNMATCHED_SHOWN = 10


def failure(comparison: Result) -> str:
    """The message of an AssertionError; a test runner lists its first line alone.

    Names come from models and files: what a terminal would obey is escaped."""
    return "\n".join(map(printable, _lines(comparison)))


def nan_on_both(comparison: Result) -> str:
    """The message if golden and the candidate both hold NaN; ``""`` if nowhere."""
    rows = [row for row in comparison.rows if _holds_nan(row.golden) and _holds_nan(row.candidate)]
    if not rows:
        return ""
    return printable(
        "Layers hold NaN on both sides, of which nothing can be compared! First:"
        f" {comparison.place(rows[0])}; {len(rows)} of {len(comparison.rows)} rows. If that is"
        " meant, equal_nan=True takes NaN in the same places as equal"
    )


def _holds_nan(record: Record | None) -> bool:
    return record is not None and record.statistics is not None and record.statistics.nan > 0


def _lines(comparison: Result) -> Iterator[str]:
    failing = [row for row in comparison.rows if row.status is Status.FAIL]
    total = len(comparison.rows)
    if trouble := decision_words.trouble(decide(comparison), comparison):
        yield f"Layers could not be shown to be close! {trouble}"
    else:
        yield (
            f"Layers are not close! First: {_first(comparison, failing)}; {len(failing)} of {total}"
            " rows fail"
        )
    yield ""
    if failing:
        counts = comparison.counts()
        kinds = ", ".join(
            f"{counts[reason]} {reason.value}"
            for reason in Reason
            if any(row.reason is reason for row in failing)
        )
        yield f"Mismatched rows: {len(failing)} / {total} ({len(failing) / total:.1%}): {kinds}"
        yield from _greatest(comparison, failing)
        yield would_pass(comparison, failing)
    if parting := comparison.parting:
        yield f"The runs part: {training_words.parting_words(parting)}"
    if serious := [finding for finding in comparison.preflight if finding.serious]:
        yield ""
        yield "Before any layer, which alone may explain it:"
        yield from (f"  {preflight_words.message(finding)}" for finding in serious)
    yield from _culprits(comparison)
    yield from _unmatched(comparison)


def _first(comparison: Result, failing: list[Row]) -> str:
    if comparison.culprits:
        return culprits.place_words(comparison, comparison.culprits[0])
    if first := comparison.first_divergence or next(iter(failing), None):
        return comparison.place(first)
    return f"step {comparison.parting.step}" if comparison.parting else ""


def _greatest(comparison: Result, failing: list[Row]) -> Iterator[str]:
    measured = [
        (row.metrics.rel_l2, row)
        for row in failing
        if row.metrics is not None and not row.metrics.nothing_finite
    ]
    if measured:
        error, row = max(measured, key=lambda each: each[0])
        size, limit = f"{culprits.how_known(row)}{error:.2e}", row.verdict.limit
        at = f"{comparison.place(row)} (limit: {limit_words.judging_limits(limit)})"
        yield f"Greatest relative L2 error of these: {size} at {at}"


def would_pass(comparison: Result, failing: list[Row]) -> str:
    """The smallest limits that every row passes: ``Would pass: rel_l2=1.01e-02``; or none."""
    if hopeless := [row for row in failing if not _has_limit(row)]:
        more = f", and {len(hopeless) - 1} more" if len(hopeless) > 1 else ""
        return (
            f"No tolerance would pass {comparison.place(hopeless[0])}"
            f" ({hopeless[0].reason.value}){more}"
        )
    if comparison.in_force.rules:
        return "Would pass: the limits at each culprit, since limits by layer judge here"
    rows = [row for row in comparison.rows if row.metrics is not None and _has_limit(row)]
    given = comparison.in_force.otherwise
    # where a table by dtype or the baseline judged, one limit in their place holds for every row
    own = {
        name: float(value) for name in _MEASURED if (value := getattr(given, name)) is not None
    } or {"rel_l2": 0.0}
    limits = {name: _smallest(name, rows, limit) for name, limit in own.items()}
    if not all(limits.values()):  # a layer is all zeros in golden
        largest = max(row.metrics.max_abs for row in rows if row.metrics is not None)
        limits = {"atol": SmallestLimit("atol", largest).value}
    how = ", by statistics alone" if any(row.by_statistics for row in failing) else ""
    how = how or (", by sketches" if any(row.by_sketch for row in failing) else "")
    return f"Would pass{how}: {', '.join(f'{name}={value}' for name, value in limits.items())}"


#: The metric for each limit.
_MEASURED = {"atol": "max_abs", "rtol": "max_rel", "rel_l2": "rel_l2", "cosine": "one_minus_cosine"}


def _has_limit(row: Row) -> bool:
    """Whether the row is a pair of finite floating numbers, which some limit would pass."""
    if row.golden is None or row.candidate is None or row.metrics is None:
        return False
    dtypes = {row.golden.dtype, row.candidate.dtype}
    floats = all(dtype in DTYPES and DTYPES[dtype].digits > 0 for dtype in dtypes)
    return floats and not row.metrics.nonfinite_mismatch


def _smallest(name: str, rows: list[Row], own: float) -> str:
    """The smallest limit that passes all rows, at least the given one; ``""`` if none does."""
    errors = []
    for row in rows:
        exact = [each.error for each in row.verdict.smallest if each.name == name]
        # atol is needed beside rtol, and rtol beside atol: only one of the two is worked out
        other = name in ("atol", "rtol") and bool(row.verdict.smallest)
        errors += exact or ([] if other else [getattr(row.metrics, _MEASURED[name]) or 0.0])
    smallest = SmallestLimit(name, max(errors, default=0.0))
    enough = smallest.error <= (1.0 - own if name == "cosine" else own)
    return f"{own:g}" if enough and (own or not smallest.error) else smallest.value


def _culprits(comparison: Result) -> Iterator[str]:
    if not comparison.culprits:
        return
    yield ""
    yield f"Culprits: {culprits.note(comparison)}"
    for number, culprit in enumerate(comparison.culprits, 1):
        error, over = culprits.error(culprit), culprits.over_limit(culprit)
        parts = [culprits.kind(culprit)]
        parts += [f"relative L2 {error:.2e}"] if error is not None else []
        verdict = culprit.row.verdict
        limit = limit_words.judging_limits(verdict.limit)
        parts += [f"{over:.3g} x limit ({limit})"] if over is not None else []
        parts += [f"would pass at {verdict.needed}"] if verdict.needed else []
        yield f"  {number}. {culprits.place_words(comparison, culprit)}: {', '.join(parts)}"
        if number <= _DESCRIBED:
            about = [
                culprits.configuration_words(culprit),
                verdict_words.detail(culprit.row),
                *error_words(culprit),
                *(f"hint, {hint}" for hint in culprit_hints(culprit)),
            ]
            yield from (f"     {line}" for line in about if line)


def _unmatched(comparison: Result) -> Iterator[str]:
    rows = comparison.unmatched()
    if not rows:
        return
    yield ""
    yield f"Only on one side ({len(rows)}):"
    for row in rows[:_UNMATCHED_SHOWN]:
        nearest = f" (nearest name on the other side: {row.nearest})" if row.nearest else ""
        yield f"  {row.reason.value}: {comparison.place(row)}{nearest}"
    if len(rows) > _UNMATCHED_SHOWN:
        yield f"  and {len(rows) - _UNMATCHED_SHOWN} more"
