"""What the commands print: results on stdout, as wide as the terminal, or in 100 columns; progress on stderr, if that is a terminal."""

from __future__ import annotations

import heapq
import itertools
import math
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.text import Text

from accucompare.bundle.reader import Bundle, Index, StoredTensor, open_bundle
from accucompare.bundle.records import Record, display_name
from accucompare.bundle.verification import Verified
from accucompare.compare.result import Result
from accucompare.compare.rows import BY_STATISTICS, MEANING, Culprit, Reason, Row, Status
from accucompare.errors import RecordError, UsageError
from accucompare.files import written_whole
from accucompare.numbers.dtypes import DTYPES, Array, DType, widen
from accucompare.report import culprit_words as culprits
from accucompare.report.console import WIDTH, open_console
from accucompare.report.tables import Heading, Line, number, print_table
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
        plural = "" if len(steps) == 1 else "s"
        console.print(_text(f"captured {len(steps)} step{plural}, {records} records, {_size(size)} in {path}"), soft_wrap=True)
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
    _print_culprits(console, comparison)
    if comparison.first_divergence is not None:
        _print_divergence(console, comparison, comparison.first_divergence)
    _print_worst(console, comparison)
    _print_unmatched(console, comparison)
    for damage in comparison.damage[:_UNMATCHED_SHOWN]:
        console.print(_text(f"unreadable: {damage}", "red"), soft_wrap=True)
    console.print()
    console.print(_counts(comparison))
    if nonfinite := comparison.nonfinite_on_both:
        console.print(Text(f"{nonfinite} {'row holds' if nonfinite == 1 else 'rows hold'} NaN or Inf on both sides", "yellow"))
    console.print(_text(f"tolerance: {culprits.tolerance(comparison)}"))
    console.print(_text(f"report: {report}"), soft_wrap=True)


def _verdict_line(comparison: Result) -> Text:
    sides = f"{comparison.candidate.path} against {comparison.golden.path}"
    if comparison.trouble:
        return Text.assemble(("TROUBLE", "bold red"), _text(f"  {sides}: {comparison.trouble}"))
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
        console.print()
        console.print(Text("Pre-flight", "bold"))
    for finding in comparison.preflight:
        line = _text(f"  {'!' if finding.serious else '·'} {finding.message}", "yellow" if finding.serious else "")
        console.print(line, soft_wrap=True)  # a command in it can be copied whole


def _print_culprits(console: Console, comparison: Result) -> None:
    """The first few, each with the shape of its error and what that may come from."""
    found = comparison.culprits
    if not found:
        return
    shown = found[:_CULPRITS_SHOWN]
    headings = [number("#"), Heading("place", name=_NAME)]
    headings += [number("excess")] if any(culprits.excess(culprit) is not None for culprit in shown) else []
    headings += [number("x limit"), number("rel L2")]
    console.print()
    console.print(Text("Culprits", "bold"))
    console.print(_text(culprits.note(comparison), "bright_black"))
    print_table(console, headings, [_culprit(comparison, place, culprit, len(headings) > 4) for place, culprit in enumerate(shown, 1)])
    if len(found) > _CULPRITS_SHOWN:
        console.print(f"… and {len(found) - _CULPRITS_SHOWN} more in the report")


def _culprit(comparison: Result, place: int, culprit: Culprit, by_baseline: bool) -> Line:
    numbers = [_short(culprits.excess(culprit))] if by_baseline else []
    numbers += [_short(culprits.over_limit(culprit)), _scientific(culprits.error(culprit))]
    below = [_text(culprits.kind(culprit))]
    below += [_text(told, "yellow") for told in [culprits.configuration(culprit)] if told]
    below += [_text(words) for words in culprit.words]
    below += [_text(f"hint, {hint}", "bright_black") for hint in culprit.hints]
    return Line([Text(str(place)), _text(culprits.place(comparison, culprit), "bold red"), *map(Text, numbers)], below)


def _print_divergence(console: Console, comparison: Result, row: Row) -> None:
    console.print()
    console.print(Text("First divergence", "bold"))
    record = row.record
    assert record is not None
    dtypes = record.dtype if row.candidate is None or row.candidate.dtype == record.dtype else f"{record.dtype} → {row.candidate.dtype}"
    console.print(Text.assemble("  ", _text(comparison.place(row), "bold red"), _text(f"  ({record.type}, {dtypes} {list(record.shape)})")))
    console.print(_text(f"  {row.reason.value}: {row.verdict.detail or MEANING[row.reason]}"))
    metrics, verdict = row.metrics, row.verdict
    if row.by_statistics or (metrics is not None and metrics.nothing_finite):
        console.print(_text(f"  limit: {verdict.tolerance} ({verdict.rule})"))
    elif metrics is not None:
        where = (
            ""
            if metrics.max_abs_index is None
            else (
                f" at {list(metrics.max_abs_index)} (golden {_value(metrics.golden_at_max)}, candidate {_value(metrics.candidate_at_max)})"
            )
        )
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
    lines = []
    for row in rows:
        metrics = row.metrics
        assert metrics is not None
        at_least = "≥" if row.by_statistics else ""
        measured = (metrics.rel_l2, metrics.one_minus_cosine, metrics.max_abs)
        numbers = ["" if metrics.nothing_finite else f"{at_least}{value:.2e}" for value in measured]
        cells = [_text(comparison.place(row)), Text(row.reason.value, _STYLE[row.status]), Text(_short(row.verdict.used))]
        lines.append(Line([*cells, *map(Text, numbers), _text(row.verdict.needed)]))
    headings = [Heading("row", name=_NAME), Heading("reason"), number("x limit"), number("rel L2")]
    headings += [number("1-cosine", spare=3), number("max abs", spare=2), number("would pass at", spare=1)]
    console.print()
    print_table(console, headings, lines, "Worst rows" if failing else "Closest to the limit, and within it")


def _print_unmatched(console: Console, comparison: Result) -> None:
    unmatched = comparison.unmatched()
    if not unmatched:
        return
    headings = [Heading("row", name=_NAME), Heading("reason"), Heading("nearest name on the other side", name=16)]
    lines = [Line([_text(comparison.place(row)), Text(row.reason.value), _text(row.nearest)]) for row in unmatched[:_UNMATCHED_SHOWN]]
    console.print()
    print_table(console, headings, lines, f"Only on one side ({len(unmatched)})")
    if len(unmatched) > _UNMATCHED_SHOWN:
        console.print(f"… and {len(unmatched) - _UNMATCHED_SHOWN} more in the report")
    if any(row.nearest not in ("", row.module) for row in unmatched):
        console.print("--map OLD=NEW compares a layer with one of another name")


def _counts(comparison: Result) -> str:
    counts = comparison.counts()
    parts = ", ".join(f"{counts[reason]} {reason.value}" for reason in Reason if counts[reason]) or "nothing to compare"
    left_out = f"; {comparison.left_out} records left out by --only and --skip" if comparison.left_out else ""
    return f"{len(comparison.rows)} rows: {parts}{left_out}"


def print_verified(bundle: Bundle, found: Verified, quiet: bool) -> None:
    """Print whether a bundle is as it was written, and what is damaged."""
    console = open_console()
    amount = f"{found.records} records, {_size(found.nbytes)}"
    if found.damage:
        verdict = Text.assemble(("TROUBLE", "bold red"), _text(f"  {bundle.path}: {len(found.damage)} damaged; {amount} read"))
    elif not bundle.complete:
        verdict = Text.assemble(("TROUBLE", "bold red"), _text(f"  {bundle.path}: incomplete; what there is is sound: {amount} read"))
    else:
        verdict = Text.assemble(("OK", "bold green"), _text(f"  {bundle.path}: every record is as it was written; {amount} read"))
    console.print(verdict, soft_wrap=True)
    for damage in [] if quiet else found.damage[:_UNMATCHED_SHOWN]:
        console.print(_text(damage, "red"), soft_wrap=True)
    if not quiet and len(found.damage) > _UNMATCHED_SHOWN:
        console.print(f"… and {len(found.damage) - _UNMATCHED_SHOWN} more")


def print_records(bundle: Bundle, step: int | None, rank: int | None, glob: str | None = None) -> None:
    """List the records of a bundle: order, name, type, role, shape, dtype, min, max, mean, L2, NaN and Inf.

    Args:
        bundle: the bundle.
        step, rank: list these only; ``None`` for all.
        glob: list the layers that match only; ``None`` for all.

    Raises:
        UsageError: if none matches, or no record is of that step or rank.
    """
    console = open_console()
    several = len(bundle.steps()) > 1
    lines = []
    for record in bundle.records():
        if (step is not None and record.step != step) or (rank is not None and record.rank != rank):
            continue
        if glob is not None and not fnmatchcase(display_name(record.name), glob):
            continue
        cells: list[str] = [f"{record.rank}.{record.step}"] if several else []
        call = f" #{record.call}" if record.call else ""
        role = f"{record.role.value}{'.' + record.path if record.path else ''}"
        cells += [str(record.order), display_name(record.name) + call, record.type, role]
        cells += ["x".join(map(str, record.shape)) or "-", record.dtype or record.detail_and_line[:24]]
        found = record.statistics
        if found is None:
            cells += [record.layout.value, "", "", "", ""]
        else:
            cells += [_short(found.min), _short(found.max), _short(found.mean), _short(found.l2), f"{found.nan}/{found.inf}"]
        lines.append(Line([_text(cell) for cell in cells]))
    asked = ", ".join(f"{what} {value}" for what, value in (("step", step), ("rank", rank)) if value is not None)
    if not lines and asked:
        of = f" of a layer that matches {glob!r}" if glob is not None else ""
        raise UsageError(f"{bundle.path}: holds no record of {asked}{of}; `accucompare show {bundle.path}` lists them")
    if not lines and glob is not None:
        raise UsageError(f"{bundle.path}: no layer matches {glob!r}; `accucompare show {bundle.path}` lists them")
    if not bundle.complete:
        console.print(_text(f"{bundle.path} is incomplete", "yellow"))
    headings = [number("rank.step")] if several else []
    headings += [number("#"), Heading("layer", name=_NAME), Heading("type", name=12, spare=5), Heading("role", name=12)]
    headings += [number("shape"), number("dtype"), number("min", spare=2), number("max", spare=2)]
    print_table(console, [*headings, number("mean", spare=4), number("L2", spare=3), number("NaN/Inf", spare=1)], lines)


def print_tensor(bundle: Bundle, record: Record, slices: str | None, save: Path | None) -> None:
    """Print one tensor's statistics and values, or a part of them, and save those as ``.npy`` if asked to.

    Raises:
        RecordError: if it has neither or is damaged, or its values are asked for and there are only statistics.
        UsageError: if the slice makes no sense for the shape.
        ReportError: if the file cannot be written.
    """
    found = record.statistics
    wanted = record.member is not None or found is None or slices is not None or save is not None
    stored = bundle.stored(record) if wanted else None  # raises if there are no values
    index = _index(slices, record.shape) if slices is not None else ()
    if stored is not None:
        stored.read()  # to verify it; a block in memory at a time
    console = open_console()
    console.print(_text(f"{record.key}: {record.type}, {record.dtype} {list(record.shape)}"), soft_wrap=True)
    if found is not None:
        console.print(
            f"min {_value(found.min)}, max {_value(found.max)}, mean {_value(found.mean)}, L2 {_value(found.l2)}, "
            f"{found.nan} NaN, {found.inf} Inf"
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


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _scientific(value: float | None) -> str:
    return "" if value is None else f"{value:.2e}"


def _size(nbytes: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} GB"
