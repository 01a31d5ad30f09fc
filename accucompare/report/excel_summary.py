"""The sheet *Summary*: the verdict, what explains it, and the way into the other sheets."""

from __future__ import annotations

import heapq
import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

from accucompare.compare.result import Result
from accucompare.compare.rows import BY_STATISTICS, MEANING, Reason, Row, Status
from accucompare.compare.suggest import float_dtype
from accucompare.report import culprit_words as culprits
from accucompare.report.columns import layer
from accucompare.report.excel_environment import entries, important
from accucompare.report.looks import (
    BOLD,
    CELL,
    CELL_TOP,
    CELL_WRAPPED,
    COUNT_CELL,
    DARK_RED,
    EXCESS_CELL,
    GREEN,
    HEADER,
    HEADER_RIGHT,
    LINE,
    LINK,
    MARKED,
    MUTED_TEXT,
    PALE_RED,
    REASON_LOOK,
    RED,
    SCIENTIFIC_CELL,
    SECTION,
    TOTAL,
    TOTAL_COUNT,
    WRAPPED,
    Look,
    verdict_look,
)
from accucompare.report.sheets import Item, Line, Page, Table
from accucompare.version import __version__

_WIDTHS = (3, 44, 40, 40, 15, 15, 15)
_WIDTHS_OF_THREE = (3, 44, 40, 40, 20, 20, 15)  # room for what the baseline says
_MOST_LISTED = 50  # pre-flight findings and damaged records; the rest is counted
_MOST_CULPRITS = 20
_FURTHEST = 10
#: What stands before the date, which alone tells two reports of the same bundles apart.
_MADE = "report made"
_SHADE = "FFF3F4F6"
_ALARM = Look(bold=True, line=LINE, color=DARK_RED, fill=PALE_RED, vertical="top")


_BLANK = Line([])


def summary(comparison: Result, layers: Table) -> Page:
    """The sheet; its links lead to rows of *Layers*."""
    widths = _WIDTHS if comparison.baseline is None else _WIDTHS_OF_THREE
    return Page("Summary", widths, list(_lines(comparison, layers)), tab=GREEN if comparison.passed else RED)


def _lines(comparison: Result, layers: Table) -> Iterator[Line]:
    worst = _furthest(comparison)
    until = comparison.identical_until
    linked = {id(row) for row in (comparison.first_divergence, until, *worst, *(culprit.row for culprit in comparison.culprits))}
    links = {id(row): layers.place(index, "layer") for index, row in enumerate(comparison.rows) if id(row) in linked}
    yield Line([], height=8)
    yield Line([Item(culprits.verdict(comparison), verdict_look(comparison.passed))], spread=0, height=52)
    if culprits.judged(comparison):
        conclusion = comparison.conclusion
        yield Line([Item(conclusion, BOLD._replace(size=14, wrap=True))], spread=0, height=max(24, 18 * (1 + len(conclusion) // 115)))
    yield Line([Item(meaning(comparison), BOLD._replace(size=12, wrap=True))], spread=0, height=36)
    yield Line([Item("golden", MUTED_TEXT), Item(str(comparison.golden.path), BOLD)], spread=1)
    yield Line([Item("candidate", MUTED_TEXT), Item(str(comparison.candidate.path), BOLD)], spread=1)
    yield from _expectation(comparison)
    yield Line([Item("tolerance", MUTED_TEXT), Item(culprits.tolerance(comparison), BOLD)], spread=1)
    made = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC, by accucompare {__version__}: {shlex.join(sys.argv)}"
    yield Line([Item(_MADE, MUTED_TEXT), Item(made, WRAPPED)], spread=1, height=_height(made, 140))
    if until is not None:
        link = Item(culprits.identical_until(comparison), LINK, links[id(until)])
        yield Line([Item("identical until", MUTED_TEXT), link], spread=1)
    yield from _culprits(comparison, links)
    yield from _first_divergence(comparison, links)
    yield from _preflight(comparison)
    yield from _counts(comparison)
    yield from _worst(worst, links)
    yield from _damage(comparison)
    yield from _captures(comparison)


def meaning(comparison: Result) -> str:
    """The verdict in one or two sentences."""
    counts = comparison.counts_by_status()
    passed, failed, total = counts[Status.PASS], counts[Status.FAIL], len(comparison.rows)
    first = comparison.first_divergence
    sentences = []
    if failed:
        sentences.append(
            f"{failed:,} of {total:,} rows {'fails' if failed == 1 else 'fail'}"
            + (f", the first at {_short(first.place)}." if first else ".")
        )
    elif passed:
        sentences.append(f"All {passed:,} rows that could be compared are {culprits.agreement(comparison)}.")
    else:
        sentences.append("Nothing could be compared, which is no pass.")
    if comparison.counts()[Reason.NOT_COMPARABLE]:
        sentences.append(f"{comparison.counts()[Reason.NOT_COMPARABLE]:,} could not be compared.")
    if comparison.by_statistics:
        sentences.append(f"{comparison.by_statistics:,} were judged {BY_STATISTICS}.")
    if nonfinite := comparison.nonfinite_on_both:
        sentences.append(f"{nonfinite:,} {'holds' if nonfinite == 1 else 'hold'} NaN or Inf on both sides.")
    if failed and comparison.incomplete:  # else it is the trouble itself
        sentences.append(f"The capture of {' and of '.join(comparison.incomplete)} did not run to its end.")
    if comparison.damage:
        sentences.append(f"{len(comparison.damage):,} could not be read.")
    return " ".join(sentences)


def _short(place: str, most: int = 120) -> str:
    return place if len(place) <= most else place[: most - 1] + "…"


def _section(title: str) -> Iterator[Line]:
    yield _BLANK
    yield Line([Item(title, SECTION)], height=24)


def _expectation(comparison: Result) -> Iterator[Line]:
    """What tells rounding from a bug: the baseline, and that the candidate was fed."""
    if comparison.baseline is not None:
        manifest = comparison.baseline.manifest
        device = manifest.environment.get("device")
        what = [device.get("type") if isinstance(device, dict) else device, float_dtype(manifest)]
        told = ", ".join(str(each) for each in what if each)
        yield Line([Item("baseline", MUTED_TEXT), Item(f"{comparison.baseline.path}{told and f' ({told})'}", BOLD)], spread=1)
    if (feed := comparison.candidate.manifest.feed) is not None:
        kept = len(feed.not_fed)
        but = f", but for {kept:,} values (see Environment)" if kept else ""
        yield Line([Item("fed", MUTED_TEXT), Item(f"every call was given golden's values{but}, so each error is its own", BOLD)], spread=1)


def _culprits(comparison: Result, links: dict[int, str]) -> Iterator[Line]:
    if not comparison.culprits:
        return
    yield from _section("Culprits")
    note = culprits.note(comparison)
    yield Line([Item(note, MUTED_TEXT._replace(wrap=True))], spread=0, height=_height(note, 170))
    titles = [Item("place", HEADER), Item("site, reason", HEADER), Item("what shows it", HEADER)]
    rank = Item("#", HEADER._replace(align="center"))
    yield Line([*titles, *(Item(title, HEADER_RIGHT) for title in ("excess", "x limit", "relative L2"))], margin=rank)
    for number, culprit in enumerate(comparison.culprits[:_MOST_CULPRITS], 1):
        cell, size = CELL._replace(fill=_SHADE, wrap=True), EXCESS_CELL._replace(fill=_SHADE)
        where = LINK._replace(fill=_SHADE, wrap=True, bold=True)
        yield Line(
            [
                Item(culprits.place(comparison, culprit), where, links[id(culprit.row)]),
                Item(culprits.kind(culprit), cell),
                Item(_kind(culprit.row), cell),
                Item(culprits.excess(culprit), size._replace(bold=True)),
                Item(culprits.over_limit(culprit), size),
                Item(culprits.error(culprit), SCIENTIFIC_CELL._replace(fill=_SHADE)),
            ],
            height=_height(max((culprits.place(comparison, culprit), culprits.kind(culprit)), key=len), 44),
            margin=Item(number, COUNT_CELL._replace(fill=_SHADE, align="center")),
        )
        yield from _described("its module", [told] if (told := culprits.configuration(culprit)) else [], WRAPPED._replace(indent=1))
        yield from _described("its error", culprit.words, WRAPPED._replace(indent=1))
        yield from _described("hint", culprit.hints, WRAPPED._replace(indent=1, color=MUTED_TEXT.color))
    yield from _rest(len(comparison.culprits), _MOST_CULPRITS)


def _described(title: str, texts: Sequence[str], look: Look) -> Iterator[Line]:
    if texts:
        told = "; ".join(texts)
        yield Line([Item(title, MUTED_TEXT._replace(align="right", vertical="top")), Item(told, look)], spread=1, height=_height(told, 140))


def _first_divergence(comparison: Result, links: dict[int, str]) -> Iterator[Line]:
    first = comparison.first_divergence
    if first is None:
        return
    yield from _section("First divergence, in execution order")
    yield Line([Item(layer(first), LINK._replace(size=12, bold=True, line=""), links[id(first)])], spread=0, height=20)
    what = f"{_kind(first)}: {MEANING[first.reason]}. {first.verdict.detail}"
    yield Line([Item(what.strip(), WRAPPED)], spread=0, height=_height(what, 160))
    numbers_in_words = [f"{first.reason.value}"]
    if first.metrics is not None:
        numbers_in_words.append(f"relative L2 {first.metrics.rel_l2:.2e}, max abs diff {first.metrics.max_abs:.2e}")
    if first.verdict.tolerance:
        numbers_in_words.append(f"tolerance {first.verdict.tolerance}")
    if first.verdict.needed:
        numbers_in_words.append(f"would pass at {first.verdict.needed}")
    yield Line([Item("; ".join(numbers_in_words), MUTED_TEXT)], spread=0)


def _kind(row: Row) -> str:
    """What of its module a row is, in words: ``Linear, output``."""
    record = row.record
    if record is None:
        return "module"
    path = f".{record.path}" if record.path else ""
    call = f", call {record.call}" if record.call else ""
    step = f", step {record.step}" if record.step else ""
    rank = f", rank {record.rank}" if record.rank else ""
    return f"{record.type}, {record.role.value}{path}{call}{step}{rank}"


def _preflight(comparison: Result) -> Iterator[Line]:
    yield from _section("Before any layer")
    if not comparison.preflight:
        yield Line([Item("Nothing found that sets the two captures apart.", MUTED_TEXT)], spread=0)
    for finding in comparison.preflight[:_MOST_LISTED]:
        look = _ALARM if finding.serious else CELL_TOP
        yield Line([Item(finding.topic, look), Item(finding.message, CELL_WRAPPED)], spread=1, height=_height(finding.message, 120))
    yield from _rest(len(comparison.preflight))


def _rest(count: int, shown: int = _MOST_LISTED) -> Iterator[Line]:
    if count > shown:
        yield Line([Item(f"… and {count - shown:,} more", MUTED_TEXT)])


def _height(message: str, characters: int) -> float:
    """Points for a text that wraps at about so many characters; merged cells do not grow by themselves."""
    return 15 * min(1 + len(message) // characters, 8)


def _counts(comparison: Result) -> Iterator[Line]:
    counts = comparison.counts()
    yield from _section("Rows by reason")
    yield Line([Item("reason", HEADER), Item("rows", HEADER_RIGHT), Item("meaning", HEADER._replace(indent=1))], spread=2)
    for reason in Reason:
        if counts[reason]:
            yield Line(
                [
                    Item(reason.value, REASON_LOOK[reason]),
                    Item(counts[reason], COUNT_CELL),
                    Item(MEANING[reason], CELL._replace(indent=1)),
                ],
                spread=2,
            )
    yield Line(
        [
            Item("total", TOTAL),
            Item(len(comparison.rows), TOTAL_COUNT),
            Item("every record of either bundle, in one row", TOTAL._replace(indent=1)),
        ],
        spread=2,
    )
    if comparison.left_out:
        note = "records of both bundles that --only and --skip left out; not in the total"
        yield Line([Item("left out", CELL), Item(comparison.left_out, COUNT_CELL), Item(note, CELL._replace(indent=1))], spread=2)


def _furthest(comparison: Result) -> list[Row]:
    """The rows with the largest relative L2 errors; those without any difference left out."""

    def error(row: Row) -> float:
        found = 0.0 if row.metrics is None else row.metrics.rel_l2
        return math.inf if math.isnan(found) else found

    return heapq.nlargest(_FURTHEST, (row for row in comparison.rows if error(row) > 0), key=error)


def _worst(rows: Sequence[Row], links: dict[int, str]) -> Iterator[Line]:
    yield from _section("Furthest from golden, by relative L2 error")
    if not rows:
        yield Line([Item("No row differs.", MUTED_TEXT)], spread=0)
        return
    titles = [Item(title, HEADER) for title in ("layer", "what", "reason")]
    yield Line([*titles, *(Item(title, HEADER_RIGHT) for title in ("relative L2", "max abs diff", "x limit"))])
    for row in rows:
        assert row.metrics is not None
        yield Line(
            [
                Item(layer(row), LINK, links[id(row)]),
                Item(_kind(row), CELL),
                Item(row.reason.value, CELL),
                Item(row.metrics.rel_l2, SCIENTIFIC_CELL),
                Item(row.metrics.max_abs, SCIENTIFIC_CELL),
                Item(row.verdict.used, EXCESS_CELL),
            ]
        )


def _damage(comparison: Result) -> Iterator[Line]:
    if not comparison.damage:
        return
    yield from _section("Records that could not be read")
    for message in comparison.damage[:_MOST_LISTED]:
        yield Line([Item(message, CELL_WRAPPED)], spread=0, height=_height(message, 160))
    yield from _rest(len(comparison.damage))


def _captures(comparison: Result) -> Iterator[Line]:
    third = comparison.baseline
    found = entries(comparison.golden.manifest, comparison.candidate.manifest, None if third is None else third.manifest)
    shown = important(found)
    yield from _section("What was compared")
    titles = [Item(title, HEADER) for title in ("entry", "golden", "candidate", *(["baseline"] if third else []), "")]
    spread, free = (3, 1) if third else (None, 0)
    yield Line(titles, spread, free=free)
    for entry in shown:
        yield Line(
            [
                Item(entry.key, CELL_TOP),
                *(Item(value, MARKED if marked else CELL_WRAPPED) for value, marked in zip(entry.values, entry.marked, strict=True)),
                Item("differs" if entry.differs else "", CELL_TOP),
            ],
            spread,
            height=_height(max(entry.values, key=len), 42),
            free=free,
        )
    others = sum(entry.differs for entry in found) - sum(entry.differs for entry in shown)
    note = f"{len(found) - len(shown)} more entries in the sheet Environment" + (f", {others} of them different." if others else ".")
    yield Line([Item(note, MUTED_TEXT)], spread=0)
