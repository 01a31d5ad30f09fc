"""The sheet *Summary*: the verdict, what explains it, and the way into the other sheets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from openpyxl import Workbook

from accucompare.compare.comparison import BY_STATISTICS, MEANING, Comparison, Reason, Row, Status
from accucompare.report.columns import Value, layer
from accucompare.report.excel_environment import entries, important
from accucompare.report.excel_layers import location
from accucompare.report.excel_styles import (
    BOLD,
    CELL,
    CELL_TOP,
    CELL_WRAPPED,
    COUNT_CELL,
    DIFFERENT,
    GREEN,
    HEADER,
    HEADER_RIGHT,
    LINK,
    MUTED_TEXT,
    PLAIN,
    REASON_LOOK,
    RED,
    SCIENTIFIC_CELL,
    SECTION,
    TOTAL,
    TOTAL_COUNT,
    USED_CELL,
    WRAPPED,
    Look,
    add_sheet,
    styled,
    verdict_look,
)

TITLE = "Summary"
_WIDTHS = (3, 44, 40, 40, 15, 15, 15)
_FIRST, _LAST = 2, len(_WIDTHS)  # columns in use; the first one is a margin
_MOST_LISTED = 50  # pre-flight findings and damaged records; the rest is counted
_ALARM = Look(bold=True, line="FFD5D9DF", color="FF9C0006", fill="FFFFC7CE", vertical="top")


class Item(NamedTuple):
    """A cell of the summary."""

    value: Value
    look: Look = PLAIN
    link: str = ""


class Line(NamedTuple):
    """A line of the summary.

    Attributes:
        items: its cells, from the first column in use on.
        spread: which of them (from 0) reaches to the last column; ``None`` for none.
        height: in points; 0 for the usual one.
    """

    items: list[Item]
    spread: int | None = None
    height: float = 0


_BLANK = Line([])


def add_summary(workbook: Workbook, comparison: Comparison) -> None:
    """Add the sheet."""
    sheet = add_sheet(workbook, TITLE, _WIDTHS)
    sheet.sheet_properties.tabColor = GREEN if comparison.passed else RED
    lines = list(_lines(comparison))
    for number, line in enumerate(lines, 1):
        if line.height:
            sheet.row_dimensions[number].height = line.height
        if line.spread is not None:
            sheet.merged_cells.add(f"{'ABCDEFG'[_FIRST - 1 + line.spread]}{number}:{'ABCDEFG'[_LAST - 1]}{number}")
        cells = [styled(sheet, item.value, item.look, item.link, "Show the row in Layers" if item.link else "") for item in _filled(line)]
        sheet.append([None, *cells])


def _filled(line: Line) -> list[Item]:
    """The items of a line, what one spreads over included: merged cells have their own borders and fills."""
    if line.spread is None:
        return line.items
    last = line.items[line.spread]
    return [*line.items, *[Item(None, last.look)] * (_LAST - _FIRST + 1 - len(line.items))]


def _lines(comparison: Comparison) -> Iterator[Line]:
    worst = comparison.worst(10)
    linked = {id(row) for row in (comparison.first_divergence, *worst)}
    numbers = {id(row): number for number, row in enumerate(comparison.rows, 1) if id(row) in linked}
    yield Line([], height=8)
    yield Line([Item("PASS" if comparison.passed else "FAIL", verdict_look(comparison.passed))], spread=0, height=52)
    yield Line([Item(meaning(comparison), BOLD._replace(size=12, wrap=True))], spread=0, height=36)
    yield Line([Item("golden", MUTED_TEXT), Item(str(comparison.golden.path), BOLD)], spread=1)
    yield Line([Item("candidate", MUTED_TEXT), Item(str(comparison.candidate.path), BOLD)], spread=1)
    yield Line([Item("tolerance", MUTED_TEXT), Item(str(comparison.tolerances), BOLD)], spread=1)
    yield from _first_divergence(comparison, numbers)
    yield from _preflight(comparison)
    yield from _counts(comparison)
    yield from _worst(worst, numbers)
    yield from _damage(comparison)
    yield from _captures(comparison)


def meaning(comparison: Comparison) -> str:
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
        sentences.append(f"All {passed:,} records that could be compared are within tolerance.")
    else:
        sentences.append("Nothing could be compared, which is no pass.")
    if comparison.counts()[Reason.NOT_COMPARABLE]:
        sentences.append(f"{comparison.counts()[Reason.NOT_COMPARABLE]:,} could not be compared.")
    if comparison.by_statistics:
        sentences.append(f"{comparison.by_statistics:,} were judged {BY_STATISTICS}.")
    if comparison.damage:
        sentences.append(f"{len(comparison.damage):,} could not be read.")
    return " ".join(sentences)


def _short(place: str, most: int = 120) -> str:
    return place if len(place) <= most else place[: most - 1] + "…"


def _section(title: str) -> Iterator[Line]:
    yield _BLANK
    yield Line([Item(title, SECTION)], height=24)


def _first_divergence(comparison: Comparison, numbers: dict[int, int]) -> Iterator[Line]:
    first = comparison.first_divergence
    if first is None:
        return
    yield from _section("First divergence, in execution order")
    yield Line([Item(layer(first), LINK._replace(size=12, bold=True, line=""), location(numbers[id(first)]))], spread=0, height=20)
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


def _preflight(comparison: Comparison) -> Iterator[Line]:
    yield from _section("Before any layer")
    if not comparison.preflight:
        yield Line([Item("Nothing found that sets the two captures apart.", MUTED_TEXT)], spread=0)
    for finding in comparison.preflight[:_MOST_LISTED]:
        look = _ALARM if finding.serious else CELL_TOP
        yield Line([Item(finding.topic, look), Item(finding.message, CELL_WRAPPED)], spread=1, height=_height(finding.message, 120))
    yield from _rest(len(comparison.preflight))


def _rest(count: int) -> Iterator[Line]:
    if count > _MOST_LISTED:
        yield Line([Item(f"… and {count - _MOST_LISTED:,} more", MUTED_TEXT)])


def _height(message: str, characters: int) -> float:
    """Points for a text that wraps at about so many characters; merged cells do not grow by themselves."""
    return 15 * min(1 + len(message) // characters, 8)


def _counts(comparison: Comparison) -> Iterator[Line]:
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


def _worst(rows: Sequence[Row], numbers: dict[int, int]) -> Iterator[Line]:
    yield from _section("Furthest from golden")
    if not rows:
        yield Line([Item("No row differs.", MUTED_TEXT)], spread=0)
        return
    titles = [Item(title, HEADER) for title in ("layer", "what", "reason")]
    yield Line([*titles, *(Item(title, HEADER_RIGHT) for title in ("relative L2", "max abs diff", "tolerance used"))])
    for row in rows:
        assert row.metrics is not None
        yield Line(
            [
                Item(layer(row), LINK, location(numbers[id(row)])),
                Item(_kind(row), CELL),
                Item(row.reason.value, CELL),
                Item(row.metrics.rel_l2, SCIENTIFIC_CELL),
                Item(row.metrics.max_abs, SCIENTIFIC_CELL),
                Item(row.verdict.used, USED_CELL),
            ]
        )


def _damage(comparison: Comparison) -> Iterator[Line]:
    if not comparison.damage:
        return
    yield from _section("Records that could not be read")
    for message in comparison.damage[:_MOST_LISTED]:
        yield Line([Item(message, CELL_WRAPPED)], spread=0, height=_height(message, 160))
    yield from _rest(len(comparison.damage))


def _captures(comparison: Comparison) -> Iterator[Line]:
    found = entries(comparison.golden.manifest, comparison.candidate.manifest)
    shown = important(found)
    yield from _section("What was compared")
    yield Line([Item(title, HEADER) for title in ("entry", "golden", "candidate", "")])
    for entry in shown:
        look = DIFFERENT if entry.differs else CELL
        yield Line(
            [
                Item(entry.key.partition(".")[2] or entry.key, CELL),
                Item(entry.golden, look),
                Item(entry.candidate, look),
                Item("differs" if entry.differs else "", CELL),
            ]
        )
    others = sum(entry.differs for entry in found) - sum(entry.differs for entry in shown)
    note = f"{len(found) - len(shown)} more entries in the sheet Environment" + (f", {others} of them different." if others else ".")
    yield Line([Item(note, MUTED_TEXT)], spread=0)
