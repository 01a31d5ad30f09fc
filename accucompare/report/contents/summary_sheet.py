"""The sheet *Summary*: the verdict, what explains it, and the way into the other sheets."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from accucompare.compare.decide import decide
from accucompare.compare.limits import float_dtype
from accucompare.compare.origins import Culprit
from accucompare.compare.result import Result
from accucompare.compare.rows import Reason, Row, Status
from accucompare.report.table import (
    COLUMNS,
    COUNT,
    DIFFERS,
    EXCESS,
    SCIENTIFIC,
    Column,
    Line,
    Overview,
    Page,
    SheetItem,
    Table,
    Value,
    chosen,
    entries,
    entry_columns,
    entry_fill,
    important,
    layer,
    looks,
    table_lines,
    what_is_held,
)
from accucompare.report.words import (
    compiled_words,
    decision_words,
    limit_words,
    preflight_words,
    training_words,
    verdict_words,
)
from accucompare.report.words import culprit_words as culprits
from accucompare.text import without_credentials
from accucompare.version import __version__

_WIDTHS = (3, 44, 40, 40, 15, 15, 15)
_WIDTHS_OF_THREE = (3, 44, 40, 40, 20, 20, 15)  # room for what the baseline says
_MOST_LISTED = 50  # pre-flight findings and damaged records; the rest is counted
_MOST_CULPRITS = 20
#: Begins the line with the date, which alone tells two reports of the same bundles apart.
_MADE = "report made"
_SHADE = "FFF3F4F6"
_ALARM = looks.Look(
    bold=True, line=looks.LINE, color=looks.DARK_RED, fill=looks.PALE_RED, vertical="top"
)


def summary(comparison: Result, layers: Table, found: Overview) -> Page:
    """The sheet, linked to rows of *Layers*."""
    widths = _WIDTHS if comparison.baseline is None else _WIDTHS_OF_THREE
    return Page(
        "Summary",
        widths,
        list(_lines(comparison, layers, found)),
        tab=looks.GREEN if decide(comparison).passed else looks.RED,
    )


def _lines(comparison: Result, layers: Table, found: Overview) -> Iterator[Line]:
    def link(place: int | None) -> str:
        return found.link(layers, place)

    decided = decide(comparison)
    said = decision_words.conclusion(decided, comparison)
    yield Line([], height=8)
    yield _wide(
        decision_words.verdict(decided.answer), looks.verdict_look(decided.passed), height=52
    )
    yield _wide(
        said, looks.BOLD._replace(size=14, wrap=True), height=max(24, 18 * (1 + len(said) // 115))
    )
    yield _wide(meaning(comparison), looks.BOLD._replace(size=12, wrap=True), height=36)
    yield _fact("golden", str(comparison.golden.path))
    yield _fact("candidate", str(comparison.candidate.path))
    yield from _expectation(comparison)
    yield _fact("tolerance", culprits.tolerance(comparison))
    yield _fact(_MADE, made_by(), looks.WRAPPED, per_line=140)
    if found.places is not None:
        held = what_is_held(found, "The sheet Layers", "other sheets lead to")
        yield _fact("rows", held, looks.WRAPPED, per_line=140)
    if found.until is not None:
        yield _fact(
            "identical until", culprits.identical_until(comparison), looks.LINK, link(found.until)
        )
    yield from _training(comparison)
    yield from _culprits(comparison, [link(place) for place in found.culprits])
    yield from _first_divergence(comparison, link(found.first))
    yield from _compiled(comparison)
    yield from _preflight(comparison)
    yield from _counts(comparison)
    yield from _worst([(comparison.rows[place], link(place)) for place in found.furthest])
    yield from _damage(comparison)
    yield from _captures(comparison)


def made_by() -> str:
    """When a report is made, and by which command."""
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    command = without_credentials(shlex.join([name, *sys.argv[1:]]))
    return (
        f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC, by accucompare {__version__}: {command}"
    )


def meaning(comparison: Result) -> str:
    counts = comparison.counts_by_status()
    passed, failed, total = counts[Status.PASS], counts[Status.FAIL], len(comparison.rows)
    first = comparison.first_divergence
    sentences = []
    if failed:
        sentences.append(
            f"{failed:,} of {total:,} rows {'fails' if failed == 1 else 'fail'}"
            + (f", the first at {_short(comparison.place(first))}." if first else ".")
        )
    elif not comparison.compared and comparison.steps_judged:
        sentences.append(
            f"Losses and gradient norms of {comparison.steps_judged:,} steps were compared; no"
            " layer was."
        )
    elif passed:
        sentences.append(
            f"All {passed:,} rows that could be compared are {culprits.agreement(comparison)}."
        )
    else:
        sentences.append("Nothing could be compared, which is no pass.")
    if comparison.counts()[Reason.NOT_COMPARABLE]:
        sentences.append(f"{comparison.counts()[Reason.NOT_COMPARABLE]:,} could not be compared.")
    if comparison.by_sketch:
        sentences.append(f"{comparison.by_sketch:,} were judged {verdict_words.BY_SKETCH}.")
    if comparison.by_statistics:
        sentences.append(f"{comparison.by_statistics:,} were judged {verdict_words.BY_STATISTICS}.")
    if nonfinite := comparison.nonfinite_on_both:
        sentences.append(
            f"{nonfinite:,} {'holds' if nonfinite == 1 else 'hold'} NaN or Inf on both sides."
        )
    if failed and comparison.incomplete:  # otherwise it is the trouble itself
        unfinished = preflight_words.unfinished_words(comparison.incomplete)
        sentences.append(f"{unfinished[0].upper()}{unfinished[1:]}.")
    if comparison.damage:
        sentences.append(f"{len(comparison.damage):,} could not be read.")
    return " ".join(sentences)


def _short(place: str, most: int = 120) -> str:
    return place if len(place) <= most else place[: most - 1] + "…"


def _fact(
    name: str, value: str, look: looks.Look = looks.BOLD, link: str = "", per_line: int = 0
) -> Line:
    """A name and its value; ``per_line``: characters after which the value wraps."""
    return Line(
        [SheetItem(name, looks.MUTED_TEXT), SheetItem(value, look, link)],
        spread=1,
        height=_height(value, per_line),
    )


def _wide(value: str, look: looks.Look, link: str = "", height: float = 0) -> Line:
    """A text over all columns."""
    return Line([SheetItem(value, look, link)], spread=0, height=height)


def _section(title: str) -> Iterator[Line]:
    yield Line([])
    yield Line([SheetItem(title, looks.SECTION)], height=24)


def _expectation(comparison: Result) -> Iterator[Line]:
    """What tells rounding from a bug: the baseline, and that the candidate was fed."""
    if comparison.baseline is not None:
        manifest = comparison.baseline.manifest
        device = manifest.environment.get("device")
        what = [device.get("type") if isinstance(device, dict) else device, float_dtype(manifest)]
        words = ", ".join(str(each) for each in what if each)
        yield _fact("baseline", f"{comparison.baseline.path}{words and f' ({words})'}")
    if comparison.reference is not None:
        yield _fact("reference", str(comparison.reference.path))
    if fed := culprits.fed(comparison):
        yield _fact("fed", fed)


def _training(comparison: Result) -> Iterator[Line]:
    """Which settings of two runs differ, where they part, and the result of a standard."""
    found, sentence = comparison.training, training_words.steps_sentence(comparison)
    if found is None or not (sentence or comparison.acceptance):
        return
    yield from _section("Training")
    for line in training_words.settings(found):
        yield _fact("told otherwise", line, _ALARM._replace(line=""), per_line=140)
    look = looks.BOLD._replace(
        wrap=True, vertical="top", color=looks.DARK_RED if found.parting is not None else looks.INK
    )
    if sentence:
        yield _fact("steps", sentence, look, per_line=120)
    for line in training_words.details(comparison, found):
        yield _fact("", line, looks.WRAPPED, per_line=140)
    if comparison.acceptance is not None:
        yield _fact("standard", training_words.acceptance_sentence(comparison.acceptance))
        for met in comparison.acceptance.rules:
            words = training_words.rule_words(met)
            yield _fact("", words, looks.PLAIN_LOOK if met.passed else _ALARM._replace(line=""))


def _culprits(comparison: Result, links: Sequence[str]) -> Iterator[Line]:
    if not comparison.culprits:
        return

    link_of = {id(culprit): link for culprit, link in zip(comparison.culprits, links, strict=True)}
    name = looks.MUTED_TEXT._replace(align="right", vertical="top")
    plain = looks.WRAPPED._replace(indent=1)

    def below(culprit: Culprit) -> Iterator[Line]:
        for title, statements in culprits.statements(culprit):
            look = plain._replace(color=looks.MUTED) if title == culprits.HINT else plain
            words = "; ".join(statements)
            yield Line(
                [SheetItem(title, name), SheetItem(words, look)],
                spread=1,
                height=_height(words, 140),
            )

    shown = comparison.culprits[:_MOST_CULPRITS]
    columns = [
        Column(
            "place",
            partial(culprits.place_words, comparison),
            link=lambda culprit: link_of[id(culprit)],
            wrap=True,
        ),
        Column("site, reason", culprits.kind, wrap=True),
        Column("what shows it", lambda culprit: _kind(culprit.row), wrap=True),
        Column("excess", culprits.excess_words, EXCESS),
        Column("x limit", culprits.over_limit, EXCESS),
        Column("relative L2", culprits.error, SCIENTIFIC),
    ]
    yield from _section("Culprits")
    note = culprits.note(comparison)
    yield _wide(note, looks.MUTED_TEXT._replace(wrap=True), height=_height(note, 170))
    yield from table_lines(
        columns,
        shown,
        fill=lambda culprit: _SHADE,
        below=below,
        numbered=True,
        height=lambda culprit: _height(
            max((culprits.place_words(comparison, culprit), culprits.kind(culprit)), key=len), 44
        ),
    )
    yield from _rest(len(comparison.culprits), _MOST_CULPRITS)


def _first_divergence(comparison: Result, link: str) -> Iterator[Line]:
    first = comparison.first_divergence
    if first is None:
        return
    yield from _section("First divergence, in execution order")
    yield _wide(layer(first), looks.LINK._replace(size=12, bold=True, line=""), link, height=20)
    said = filter(None, (verdict_words.MEANING[first.reason], verdict_words.detail(first)))
    what = f"{_kind(first)}: {'; '.join(said)}."
    yield _wide(what, looks.WRAPPED, height=_height(what, 160))
    numbers_in_words = [f"{first.reason.value}"]
    if first.metrics is not None:
        numbers_in_words.append(
            f"relative L2 {first.metrics.rel_l2:.2e}, max abs diff {first.metrics.max_abs:.2e}"
        )
    if judged := limit_words.judging_limits(first.verdict.limit):
        numbers_in_words.append(f"tolerance {judged}")
    if first.verdict.needed:
        numbers_in_words.append(f"would pass at {first.verdict.needed}")
    yield _wide("; ".join(numbers_in_words), looks.MUTED_TEXT)


def _kind(row: Row) -> str:
    """A row's module and role in words: ``Linear, output``."""
    record = row.record
    if record is None:
        return "module"
    path = f".{record.path}" if record.path else ""
    call = f", call {record.call}" if record.call else ""
    step = f", step {record.step}" if record.step else ""
    rank = f", rank {record.rank}" if record.rank else ""
    return f"{record.type}, {record.role.value}{path}{call}{step}{rank}"


def _compiled(comparison: Result) -> Iterator[Line]:
    if comparison.compiled is None:
        return
    yield from _section("Compiled")
    for each in compiled_words.compiled_lines(comparison.compiled):
        yield _wide(each, looks.CELL_WRAPPED, height=_height(each, 140))


def _preflight(comparison: Result) -> Iterator[Line]:
    yield from _section("Before any layer")
    if not comparison.preflight:
        yield _wide("Nothing found that sets the two captures apart.", looks.MUTED_TEXT)
    for finding in comparison.preflight[:_MOST_LISTED]:
        look = _ALARM if finding.serious else looks.CELL_TOP
        yield Line(
            [
                SheetItem(preflight_words.topic(finding), look),
                SheetItem(preflight_words.message(finding), looks.CELL_WRAPPED),
            ],
            spread=1,
            height=_height(preflight_words.message(finding), 120),
        )
    yield from _rest(len(comparison.preflight))


def _rest(count: int, shown: int = _MOST_LISTED) -> Iterator[Line]:
    if count > shown:
        yield Line([SheetItem(f"… and {count - shown:,} more", looks.MUTED_TEXT)])


def _height(message: str, characters: int) -> float:
    """Points for text that wraps after ``characters`` (0: never); merged cells do not grow."""
    return 15 * min(1 + len(message) // characters, 8) if characters else 0


def _counts(comparison: Result) -> Iterator[Line]:
    def line(
        name: str, count: int, note: str, look: looks.Look, plain: looks.Look = looks.CELL
    ) -> Line:
        number = plain._replace(align="right", format=COUNT)
        return Line(
            [
                SheetItem(name, look),
                SheetItem(count, number),
                SheetItem(note, plain._replace(indent=1)),
            ],
            spread=2,
        )

    counts = comparison.counts()
    yield from _section("Rows by reason")
    titles = [
        SheetItem("reason", looks.HEADER),
        SheetItem("rows", looks.HEADER_RIGHT),
        SheetItem("meaning", looks.HEADER._replace(indent=1)),
    ]
    yield Line(titles, spread=2)
    for reason in Reason:
        if counts[reason]:
            yield line(
                reason.value,
                counts[reason],
                verdict_words.MEANING[reason],
                looks.REASON_LOOK[reason],
            )
    yield line(
        "total",
        len(comparison.rows),
        "every record of either bundle, in one row",
        looks.TOTAL,
        looks.TOTAL,
    )
    if comparison.left_out:
        note = "records of both bundles that --only and --skip left out; not in the total"
        yield line("left out", comparison.left_out, note, looks.CELL)


def _worst(rows: Sequence[tuple[Row, str]]) -> Iterator[Line]:
    """The rows with the largest relative L2 errors, failing ones first, each with its link."""
    yield from _section(
        "Furthest from golden, by relative L2 error: what fails, and then the others"
    )
    if not rows:
        yield _wide("No row differs.", looks.MUTED_TEXT)
        return
    shown = [
        Column("layer", layer),
        Column("what", _kind),
        *chosen(COLUMNS, "reason", "relative L2", "max abs diff", "x limit"),
    ]
    columns = [
        column._replace(group="record", get=_of_row(column.get)) for column in shown if column.get
    ]
    yield from table_lines([columns[0]._replace(link=lambda line: line[1]), *columns[1:]], rows)


def _of_row(get: Callable[[Any], Value]) -> Callable[[Any], Value]:
    return lambda line: get(line[0])


def _damage(comparison: Result) -> Iterator[Line]:
    if not comparison.damage:
        return
    yield from _section("Records that could not be read")
    for message in comparison.damage[:_MOST_LISTED]:
        yield _wide(message, looks.CELL_WRAPPED, height=_height(message, 160))
    yield from _rest(len(comparison.damage))


def _captures(comparison: Result) -> Iterator[Line]:
    third = comparison.baseline
    listed = entries(
        comparison.golden.manifest,
        comparison.candidate.manifest,
        None if third is None else third.manifest,
    )
    shown = important(listed)
    yield from _section("What was compared")
    columns = [*entry_columns(("golden", "candidate", "baseline")[: 3 if third else 2]), DIFFERS]
    spread, free = (3, 1) if third else (None, 0)
    yield from table_lines(
        columns,
        shown,
        spread=spread,
        free=free,
        fill=lambda entry: entry_fill(entry, 1),
        height=lambda entry: _height(max(entry.values, key=len), 42),
    )
    others = sum(entry.differs for entry in listed) - sum(entry.differs for entry in shown)
    note = f"{len(listed) - len(shown)} more entries in the sheet Environment" + (
        f", {others} of them different." if others else "."
    )
    yield _wide(note, looks.MUTED_TEXT)
