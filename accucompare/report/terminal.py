"""What the commands print: results on stdout, as wide as the terminal, or in 100 columns; progress on stderr, if that is a terminal."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.text import Text

from accucompare.bundle.reader import Bundle, Index, StoredTensor, open_bundle
from accucompare.bundle.records import Record, display_name
from accucompare.bundle.verification import Verified
from accucompare.compare.result import Result
from accucompare.compare.rows import BY_STATISTICS, MEANING, Reason, Row, Status
from accucompare.compare.sites import Culprit
from accucompare.errors import RecordError, UsageError
from accucompare.files import written_whole
from accucompare.numbers.dtypes import DTYPES, Array, DType, widen
from accucompare.report import culprit_words as culprits
from accucompare.report import training_words as training
from accucompare.report.columns import COLUMNS, COUNT, EXCESS, GENERAL, SCIENTIFIC, Column, Value, chosen
from accucompare.report.console import WIDTH, open_console, print_heading, print_rest
from accucompare.report.tables import print_table
from accucompare.text import printable

_STYLE = {Status.PASS: "green", Status.FAIL: "red", Status.NOT_COMPARED: "bright_black"}
_UNMATCHED_SHOWN = 10
_CULPRITS_SHOWN = 5
_WORST_SHOWN = 8
_NAME = 24  # characters that a name is given at least
_VALUES_SHOWN = 200  # of a tensor; of a larger one, those at the ends


def _text(value: str, style: str = "") -> Text:
    """One line as it is printed: with nothing in it that a terminal would obey."""
    return Text(printable(value), style)


def print_capture(path: Path) -> None:
    """Say what a capture wrote."""
    with open_bundle(path) as bundle:
        steps = bundle.steps()
        records = sum(entry.records for _, entry in steps)
        size = sum(file.stat().st_size for file in path.glob("rank*/*"))
        console = open_console()
        series = 0 if steps else len(bundle.manifest.series)
        plural = "" if len(steps) + series == 1 else "s"
        what = (
            f"the series of {series} step{plural}, no records" if series else f"{len(steps)} step{plural}, {records} records, {_size(size)}"
        )
        console.print(_text(f"captured {what} in {path}"), soft_wrap=True)
        idle = bundle.manifest.model.get("not_called") or []
        if idle:
            shown = ", ".join(display_name(name) for name in idle[:3]) + (f", and {len(idle) - 3} more" if len(idle) > 3 else "")
            console.print(f"registered but never called: {shown}", soft_wrap=True)
        for note in bundle.manifest.notes:
            console.print(_text(f"note: {note}"), soft_wrap=True)


def print_comparison(comparison: Result, report: Path, quiet: bool) -> None:
    """Print the verdict, how far all is identical, what pre-flight found, the culprits, the first divergence, the worst rows, counts."""
    console = open_console()
    console.print(_verdict_line(comparison), soft_wrap=True)
    if quiet:
        return
    if until := culprits.identical_until(comparison):
        console.print(until, soft_wrap=True)
    _print_preflight(console, comparison)
    _print_training(console, comparison)
    _print_culprits(console, comparison)
    if comparison.first_divergence is not None:
        _print_divergence(console, comparison, comparison.first_divergence)
    _print_worst(console, comparison)
    _print_unmatched(console, comparison)
    for damage in comparison.damage[:_UNMATCHED_SHOWN]:
        console.print(_text(f"unreadable: {damage}", "red"), soft_wrap=True)
    console.print()
    if not comparison.series_only:
        console.print(_counts(comparison))
    if nonfinite := comparison.nonfinite_on_both:
        console.print(Text(f"{nonfinite} {'row holds' if nonfinite == 1 else 'rows hold'} NaN or Inf on both sides", "yellow"))
    if not comparison.series_only:
        console.print(_text(f"tolerance: {culprits.tolerance(comparison)}"))
    console.print(_text(f"report: {report}"), soft_wrap=True)


def _verdict_line(comparison: Result) -> Text:
    sides = f"{comparison.candidate.path} against {comparison.golden.path}"
    if comparison.trouble:
        return Text.assemble(("TROUBLE", "bold red"), _text(f"  {sides}: {comparison.trouble}"))
    if comparison.acceptance is not None:
        failed = comparison.counts_by_status()[Status.FAIL]
        rows = f"; {failed} of {len(comparison.rows)} rows fail, which does not decide" if comparison.rows else ""
        word, style = ("PASS", "bold green") if comparison.passed else ("FAIL", "bold red")
        return Text.assemble((word, style), _text(f"  {sides}: {training.acceptance_sentence(comparison.acceptance)}{rows}"))
    if comparison.series_only or (comparison.parting is not None and not comparison.counts_by_status()[Status.FAIL]):
        verdict = (culprits.verdict(comparison), "bold green" if comparison.passed else "bold red")
        return Text.assemble(verdict, _text(f"  {sides}: {comparison.conclusion}"))
    conclusion = f"{comparison.conclusion}; " if culprits.judged(comparison) else ""
    if comparison.passed:
        uncompared = comparison.counts()[Reason.NOT_COMPARABLE]
        but = f"; {uncompared} more without data could not be compared" if uncompared else ""
        but += f"; {comparison.by_statistics} judged {BY_STATISTICS}" if comparison.by_statistics else ""
        every = f"all {comparison.compared} compared rows {culprits.agreement(comparison)}"
        return Text.assemble((culprits.verdict(comparison), "bold green"), _text(f"  {sides}: {conclusion}{every}{but}"))
    failed = comparison.counts_by_status()[Status.FAIL]
    first = comparison.first_divergence
    where = f"; first divergence: {comparison.place(first)}" if first is not None else "; all of them are on one side only"
    where = "" if conclusion and first is not None else where
    where += f"; the capture of {' and of '.join(comparison.incomplete)} did not run to its end" if comparison.incomplete else ""
    return Text.assemble(("FAIL", "bold red"), _text(f"  {sides}: {conclusion}{failed} of {len(comparison.rows)} rows fail{where}"))


def _print_preflight(console: Console, comparison: Result) -> None:
    if comparison.preflight:
        print_heading(console, "Pre-flight")
    for finding in comparison.preflight:
        line = _text(f"  {'!' if finding.serious else '·'} {finding.message}", "yellow" if finding.serious else "")
        console.print(line, soft_wrap=True)  # a command in it can be copied whole


def _print_training(console: Console, comparison: Result) -> None:
    """What two runs were told to do otherwise, where they part, how they wander, and what came of a standard."""
    found, sentence = comparison.training, training.steps_sentence(comparison)
    if found is None or not (sentence or comparison.acceptance):
        return
    print_heading(console, "Training")
    for line in training.settings(found):
        console.print(_text(f"  ! {line}", "yellow"), soft_wrap=True)
    if sentence:
        console.print(_text(f"  {sentence}", "bold red" if found.parting is not None else ""), soft_wrap=True)
    for line in training.details(comparison, found):
        console.print(_text(f"  {line}", "bright_black"), soft_wrap=True)
    if comparison.acceptance is not None:
        columns = [
            Column("rule", lambda met: met.rule.measure.value, least=12),
            Column("measured", training.measured, GENERAL),
            Column("limit", lambda met: str(met.rule), GENERAL),
            Column("", training.outcome, GENERAL),
        ]
        print_table(console, columns, comparison.acceptance.rules, f"Standard {comparison.acceptance.standard.value}")


def _print_culprits(console: Console, comparison: Result) -> None:
    """The first few, each with the shape of its error and what that may come from."""
    shown = comparison.culprits[:_CULPRITS_SHOWN]
    if not shown:
        return
    columns = [
        Column("#", None, COUNT),
        Column("place", lambda culprit: culprits.place(comparison, culprit), least=_NAME),
        Column("excess", culprits.excess, EXCESS),
        Column("x limit", culprits.over_limit, EXCESS),
        Column("rel L2", culprits.error, SCIENTIFIC),
    ]
    if all(culprits.excess(culprit) is None for culprit in shown):
        del columns[2]
    print_heading(console, "Culprits")
    console.print(_text(culprits.note(comparison), "bright_black"))
    print_table(console, columns, shown, style=lambda culprit, column: "bold red" if column.title == "place" else "", below=_about)
    print_rest(console, len(comparison.culprits), _CULPRITS_SHOWN)


def _about(culprit: Culprit) -> Iterator[Text]:
    yield _text(culprits.kind(culprit))
    if configured := culprits.configuration(culprit):
        yield _text(configured, "yellow")
    yield from map(_text, culprit.words)
    yield from (_text(f"hint, {hint}", "bright_black") for hint in culprit.hints)


def _print_divergence(console: Console, comparison: Result, row: Row) -> None:
    print_heading(console, "First divergence")
    record = row.record
    assert record is not None
    dtypes = record.dtype if row.candidate is None or row.candidate.dtype == record.dtype else f"{record.dtype} → {row.candidate.dtype}"
    console.print(Text.assemble("  ", _text(comparison.place(row), "bold red"), _text(f"  ({record.type}, {dtypes} {list(record.shape)})")))
    console.print(_text(f"  {row.reason.value}: {row.verdict.detail or MEANING[row.reason]}"))
    metrics, verdict = row.metrics, row.verdict
    if row.by_statistics or (metrics is not None and metrics.nothing_finite):
        console.print(_text(f"  limit: {verdict.tolerance} ({verdict.rule})"))
    elif metrics is not None:
        where = ""
        if metrics.max_abs_index is not None:
            sides = f"golden {_value(metrics.golden_at_max)}, candidate {_value(metrics.candidate_at_max)}"
            where = f" at {list(metrics.max_abs_index)} ({sides})"
        console.print(
            f"  {'of the finite values: ' if metrics.nonfinite_mismatch else ''}relative L2 {metrics.rel_l2:.2e}, "
            f"1 - cosine {metrics.one_minus_cosine:.2e}, max difference {metrics.max_abs:.2e}{where}"
        )
        needed = f"; would pass at {verdict.needed}" if verdict.needed else ""
        console.print(_text(f"  limit: {verdict.tolerance} ({verdict.rule}){needed}"))


def _print_worst(console: Console, comparison: Result) -> None:
    """The rows furthest over their limit; where none fails, those that use more than half of it, if there are such."""
    rows = [row for row in comparison.worst(_WORST_SHOWN) if row.status is Status.FAIL]
    failing = bool(rows)
    if not comparison.counts_by_status()[Status.FAIL]:
        near = (row for row in comparison.rows if row.verdict.near and row.metrics is not None)
        rows = heapq.nlargest(_WORST_SHOWN, near, key=lambda row: row.verdict.used or 0.0)
    if not rows:
        return

    def measured(name: str) -> Callable[[Row], str]:
        """A difference; of rows that are judged by their statistics, what it is at least."""

        def get(row: Row) -> str:
            assert row.metrics is not None
            return "" if row.metrics.nothing_finite else f"{'≥' if row.by_statistics else ''}{getattr(row.metrics, name):.2e}"

        return get

    columns = [
        Column("row", comparison.place, least=_NAME),
        *chosen(COLUMNS, "reason", "x limit"),
        Column("rel L2", measured("rel_l2"), SCIENTIFIC),
        Column("1-cosine", measured("one_minus_cosine"), SCIENTIFIC, spare=3),
        Column("max abs", measured("max_abs"), SCIENTIFIC, spare=2),
        Column("would pass at", lambda row: row.verdict.needed, GENERAL, spare=1),
    ]
    title = "Worst rows" if failing else "Closest to the limit, and within it"
    print_table(console, columns, rows, title, style=lambda row, column: _STYLE[row.status] if column.title == "reason" else "")


def _print_unmatched(console: Console, comparison: Result) -> None:
    unmatched = comparison.unmatched()
    if not unmatched:
        return
    columns = [
        Column("row", comparison.place, least=_NAME),
        *chosen(COLUMNS, "reason"),
        Column("nearest name on the other side", lambda row: row.nearest, least=16),
    ]
    print_table(console, columns, unmatched[:_UNMATCHED_SHOWN], f"Only on one side ({len(unmatched)})")
    print_rest(console, len(unmatched), _UNMATCHED_SHOWN)
    if any(row.nearest not in ("", row.module) for row in unmatched):
        console.print("--map OLD=NEW compares a layer with one of another name")


def _counts(comparison: Result) -> str:
    counts = comparison.counts()
    parts = ", ".join(f"{counts[reason]} {reason.value}" for reason in Reason if counts[reason]) or "nothing to compare"
    left_out = f"; {comparison.left_out} records left out by --only and --skip" if comparison.left_out else ""
    return f"{len(comparison.rows)} rows: {parts}{left_out}"


def print_verified(bundle: Bundle, verified: Verified, quiet: bool) -> None:
    """Print whether a bundle is as it was written, and what is damaged."""
    console = open_console()
    amount = f"{verified.records} records, {_size(verified.nbytes)}"
    if verified.damage:
        verdict = Text.assemble(("TROUBLE", "bold red"), _text(f"  {bundle.path}: {len(verified.damage)} damaged; {amount} read"))
    elif not bundle.complete:
        verdict = Text.assemble(("TROUBLE", "bold red"), _text(f"  {bundle.path}: incomplete; what there is is sound: {amount} read"))
    else:
        verdict = Text.assemble(("OK", "bold green"), _text(f"  {bundle.path}: every record is as it was written; {amount} read"))
    console.print(verdict, soft_wrap=True)
    for damage in [] if quiet else verified.damage[:_UNMATCHED_SHOWN]:
        console.print(_text(damage, "red"), soft_wrap=True)
    if not quiet and len(verified.damage) > _UNMATCHED_SHOWN:
        console.print(f"… and {len(verified.damage) - _UNMATCHED_SHOWN} more")


def print_records(bundle: Bundle, step: int | None, rank: int | None, glob: str | None = None) -> None:
    """List the records of a bundle: order, name, type, role, shape, dtype, min, max, mean, L2, NaN and Inf.

    Args:
        bundle: the bundle.
        step, rank: list these only; ``None`` for all.
        glob: list the layers that match only; ``None`` for all.

    Raises:
        UsageError: if none matches, or no record is of that step or rank.
    """
    records = [
        record
        for record in bundle.records()
        if step in (None, record.step) and rank in (None, record.rank) and (glob is None or fnmatchcase(display_name(record.name), glob))
    ]
    asked = ", ".join(f"{what} {value}" for what, value in (("step", step), ("rank", rank)) if value is not None)
    if not records and asked:
        of = f" of a layer that matches {glob!r}" if glob is not None else ""
        raise UsageError(f"{bundle.path}: holds no record of {asked}{of}; `accucompare show {bundle.path}` lists them")
    if not records and glob is not None:
        raise UsageError(f"{bundle.path}: no layer matches {glob!r}; `accucompare show {bundle.path}` lists them")
    console = open_console()
    if not bundle.complete:
        console.print(_text(f"{bundle.path} is incomplete", "yellow"))
    print_table(console, _RECORDS if len(bundle.steps()) > 1 else _RECORDS[1:], records)


def _statistic(name: str) -> Callable[[Record], Value]:
    return lambda record: None if record.statistics is None else getattr(record.statistics, name)


def _least(record: Record) -> Value:
    """The smallest value; of a record without statistics, its layout."""
    return record.layout.value if record.statistics is None else record.statistics.min


_RECORDS = (
    Column("rank.step", lambda record: f"{record.rank}.{record.step}", GENERAL),
    Column("#", lambda record: record.order, COUNT),
    Column("layer", lambda record: display_name(record.name) + (f" #{record.call}" if record.call else ""), least=_NAME),
    Column("type", lambda record: record.type, least=12, spare=5),
    Column("role", lambda record: f"{record.role.value}{'.' + record.path if record.path else ''}", least=12),
    Column("shape", lambda record: "x".join(map(str, record.shape)) or "-", GENERAL),
    Column("dtype", lambda record: record.dtype or record.detail_and_line[:24], GENERAL),
    Column("min", _least, EXCESS, spare=2),
    Column("max", _statistic("max"), EXCESS, spare=2),
    Column("mean", _statistic("mean"), EXCESS, spare=4),
    Column("L2", _statistic("l2"), EXCESS, spare=3),
    Column("NaN/Inf", lambda record: f"{record.statistics.nan}/{record.statistics.inf}" if record.statistics else "", GENERAL, spare=1),
)


def print_tensor(bundle: Bundle, record: Record, slices: str | None, save: Path | None) -> None:
    """Print one tensor's statistics and values, or a part of them, and save those as ``.npy`` if asked to.

    Raises:
        RecordError: if it has neither or is damaged, or its values are asked for and there are only statistics.
        UsageError: if the slice makes no sense for the shape.
        ReportError: if the file cannot be written.
    """
    statistics = record.statistics
    wanted = record.member is not None or statistics is None or slices is not None or save is not None
    stored = bundle.stored(record) if wanted else None  # raises if there are no values
    index = _index(slices, record.shape) if slices is not None else ()
    if stored is not None:
        stored.read()  # to verify it; a block in memory at a time
    console = open_console()
    console.print(_text(f"{record.key}: {record.type}, {record.dtype} {list(record.shape)}"), soft_wrap=True)
    if statistics is not None:
        console.print(
            f"min {_value(statistics.min)}, max {_value(statistics.max)}, mean {_value(statistics.mean)}, L2 {_value(statistics.l2)}, "
            f"{statistics.nan} NaN, {statistics.inf} Inf"
        )
    if stored is None:
        console.print("its values were not recorded (--mode stats)")
        return
    console.print(_printed(stored, index, DTYPES[record.dtype]))
    if save is not None:
        try:
            part = widen(stored.part(index), DTYPES[record.dtype])
        except MemoryError:
            raise RecordError(f"{record.key}: does not fit into memory; give a part of it (--slice)") from None
        written_whole(save, lambda temporary: _save(temporary, part))
        console.print(_text(f"saved {part.dtype} {list(part.shape)} to {save}"), soft_wrap=True)


def _printed(stored: StoredTensor, index: Index, dtype: DType) -> str:
    """The values of a part, as NumPy prints them; of a large one only those that it shows are read, three at each end of each axis."""
    shape = stored.shape_of(index)
    if math.prod(shape) <= _VALUES_SHOWN:
        return np.array2string(widen(stored.part(index), dtype), max_line_width=WIDTH)
    ends = [[slice(None)] if length <= 7 else [slice(0, 4), slice(-3, None)] for length in shape]  # the fourth stands for those between
    shown = np.empty([min(length, 7) for length in shape], dtype.widened)
    for place in itertools.product(*ends):
        shown[place] = widen(stored.part(index, place), dtype)
    return np.array2string(shown, max_line_width=WIDTH, threshold=0)


def _save(path: Path, values: Array) -> None:
    with path.open("wb") as file:  # np.save would append .npy to another suffix
        np.save(file, values, allow_pickle=False)


def _index(text: str, shape: tuple[int, ...]) -> Index:
    try:
        parts: Index = tuple(_slice_part(part.strip()) for part in text.strip().strip("[]").split(",") if part.strip())
        np.broadcast_to(np.zeros(()), shape)[parts]
        return parts
    except (ValueError, IndexError) as error:
        raise UsageError(f"--slice {text!r}: cannot be taken of shape {list(shape)} ({error})") from None


def _slice_part(part: str) -> int | slice | object:
    if part == "...":
        return ...
    if ":" not in part:
        return int(part)
    return slice(*(int(bound) if bound.strip() else None for bound in part.split(":")))


def _value(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def _size(nbytes: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} GB"
