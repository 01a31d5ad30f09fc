"""Comparing two bundles, record by record, with a few blocks in memory."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from accucompare.bundle.dtypes import DTYPES
from accucompare.bundle.reader import Bundle, open_bundle
from accucompare.bundle.records import Record
from accucompare.bundle.selection import Selection
from accucompare.compare.align import Pair, Renaming, align, unused
from accucompare.compare.bounds import judge_bounds, lower_bounds
from accucompare.compare.comparison import Comparison, Finding, Reason, Row, Side, Verdict
from accucompare.compare.judge import Origins, judge, judge_without_data
from accucompare.compare.measure import Metrics, measure, measure_identical
from accucompare.compare.norms import Run
from accucompare.compare.preflight import preflight
from accucompare.compare.tolerance import EXACT, Tolerance, Tolerances, read_rules
from accucompare.errors import BundleError, UsageError

#: Called with the bytes compared so far and the bytes to compare.
Progress = Callable[[int, int], None]

#: Bytes that one more thread is worth starting for (threads do not help with tensors so small that Python takes most of the time),
#: bytes of neighbouring pairs that are handed to a thread at a time, and bytes above which the threads share a pair.
WORTH_A_WORKER = 64 << 20
BATCH = 8 << 20
SPLIT = 64 << 20


def diff(
    golden: str | Path,
    candidate: str | Path,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    rel_l2: float | None = None,
    cosine: float | None = None,
    tolerances: str | Path | None = None,
    map: str | Iterable[str] = (),
    only: str | Iterable[str] = (),
    skip: str | Iterable[str] = (),
    verify: bool = False,
    keep_going: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two bundles.

    Args:
        golden: the trusted bundle's directory.
        candidate: the directory of the bundle under test.
        atol, rtol: largest elementwise difference, |candidate - golden| <= atol + rtol * |golden|; one given alone takes the
            other as 0.
        rel_l2: largest relative L2 error.
        cosine: smallest cosine similarity. Of several limits, all must be kept; with none, a table by dtype judges.
        tolerances: a TOML file of limits by layer; the first rule that applies wins, the limits above judge the rest.
        map: ``OLD=NEW`` renamings of golden's layers, see ``accucompare.compare.align.Renaming``.
        only, skip: globs of the layers to compare and to leave out (golden's names).
        verify: read and verify tensors with equal digests too, instead of taking them for equal; what is read is always verified.
        keep_going: list records that cannot be read in ``Comparison.damage`` instead of raising at the first.
        workers: threads that read and measure, by default as many as there are processors; they change no result.
        progress: called now and then.

    Raises:
        BundleError: if a bundle is missing, damaged, or of a newer format.
        UsageError: if a limit, a renaming or the tolerance file makes no sense.

    Example:
        >>> comparison = diff("golden", "npu", atol=1e-3)               # doctest: +SKIP
        >>> comparison.passed, comparison.first_divergence.place        # doctest: +SKIP
        (False, 'encoder.layers.3.fc1 output')
    """
    if workers is not None and workers < 1:
        raise UsageError(f"workers must be at least 1, but is {workers}")
    limits = Tolerance(atol, rtol, rel_l2, cosine, source="given for all layers")
    rules = Tolerances(read_rules(tolerances) if tolerances is not None else (), limits)
    renamings = [Renaming.parse(text) for text in ([map] if isinstance(map, str) else map)]
    selection = Selection.of(only, skip)
    with open_bundle(golden) as golden_bundle, open_bundle(candidate) as candidate_bundle:
        damage: list[str] = []
        golden_records, candidate_records = (_records(bundle, keep_going, damage) for bundle in (golden_bundle, candidate_bundle))
        findings = preflight(golden_bundle, candidate_bundle, renamings) + _unused_options(renamings, selection, golden_records)
        pairs = align(golden_records, candidate_records, renamings)
        chosen = [pair for pair in pairs if selection.allows(_name(pair))]
        precision = _Precision()
        tasks = [(pair, precision.tolerance_for(pair, rules)) for pair in chosen]
        outcomes = _Sides(golden_bundle, candidate_bundle, verify, keep_going).outcomes(tasks, workers, progress or _silent)
        rows = _rows(chosen, outcomes, damage)
        rows += _never_called(golden_bundle, candidate_bundle, selection)
        return Comparison(
            golden=Side(golden_bundle.path, golden_bundle.manifest, golden_bundle.complete),
            candidate=Side(candidate_bundle.path, candidate_bundle.manifest, candidate_bundle.complete),
            rows=rows,
            preflight=findings,
            tolerances=rules,
            left_out=sum((pair.golden is not None) + (pair.candidate is not None) for pair in pairs)
            - sum((pair.golden is not None) + (pair.candidate is not None) for pair in chosen),
            damage=list(dict.fromkeys(damage)),  # a step that cannot be opened is said once, not for each of its records
        )


def _silent(done: int, total: int) -> None:
    pass


def _records(bundle: Bundle, keep_going: bool, damage: list[str]) -> list[Record]:
    """Every record of a bundle; with ``keep_going``, steps whose list cannot be read are noted in ``damage``."""
    records = []
    for rank, entry in bundle.steps():
        try:
            records += bundle.step_records(rank, entry)
        except BundleError as error:
            if not keep_going:
                raise
            damage.append(str(error))
    return records


def _name(pair: Pair) -> str:
    record = pair.golden or pair.candidate
    assert record is not None
    return record.name


def _unused_options(renamings: list[Renaming], selection: Selection, records: list[Record]) -> list[Finding]:
    names = {record.name for record in records}
    findings = [
        Finding("map", f"--map {renaming.text} matches none of golden's layers", serious=False) for renaming in unused(renamings, names)
    ]
    for glob in selection.only:
        if not any(Selection((glob,)).allows(name) for name in names):
            findings.append(Finding("only", f"--only {glob} matches none of golden's layers", serious=False))
    return findings


Task = tuple[Pair, Tolerance]
Outcome = tuple[Metrics | None, Verdict] | BundleError


@dataclass(frozen=True)
class _Sides:
    """The two bundles, and how their pairs are to be compared."""

    golden: Bundle
    candidate: Bundle
    verify: bool
    keep_going: bool

    def outcomes(self, tasks: list[Task], workers: int | None, progress: Progress) -> list[Outcome]:
        """What is found of each pair: large tensors come first, each split among the threads, then batches of the others.

        The number of threads changes no result.
        """
        sizes = [_nbytes(pair) for pair, _ in tasks]
        total, done = sum(sizes), 0
        outcomes: dict[int, Outcome] = {}
        large = sorted((place for place, size in enumerate(sizes) if size > SPLIT), key=sizes.__getitem__, reverse=True)
        batches = _batches([place for place, size in enumerate(sizes) if size <= SPLIT], sizes)
        with _threads(min(workers or os.cpu_count() or 1, 1 + total // WORTH_A_WORKER)) as run:
            for place in large:
                outcomes[place] = self._outcome(tasks[place], run)
                done += sizes[place]
                progress(done, total)
            for batch, found in zip(batches, run(lambda batch: [self._outcome(tasks[place]) for place in batch], batches), strict=True):
                outcomes.update(zip(batch, found, strict=True))
                done += sum(sizes[place] for place in batch)
                progress(done, total)
        return [outcomes[place] for place in range(len(tasks))]

    def _outcome(self, task: Task, run: Run = map) -> Outcome:
        pair, tolerance = task
        if pair.golden is None or pair.candidate is None:
            return None, Verdict(Reason.EXTRA if pair.golden is None else Reason.MISSING)
        try:
            return self._compare(pair.golden, pair.candidate, tolerance, run)
        except BundleError as error:
            if not self.keep_going:
                raise
            return error

    def _compare(self, golden: Record, candidate: Record, tolerance: Tolerance, run: Run) -> tuple[Metrics | None, Verdict]:
        verdict = judge_without_data(golden, candidate)
        if verdict is not None:
            return None, verdict
        dtype, atol, rtol = DTYPES[golden.dtype], tolerance.atol, tolerance.rtol
        statistics = golden.statistics if _same_bits(Pair(golden, candidate)) else None
        if self.verify and (golden.member is None) is not (candidate.member is None):
            (self.golden.stored(golden) if golden.member is not None else self.candidate.stored(candidate)).read()
        if golden.member is not None and candidate.member is not None:
            ours, theirs = self.golden.stored(golden), self.candidate.stored(candidate)  # reads nothing yet, but finds damage
            if statistics is None or self.verify:
                metrics = measure(ours.blocks, theirs.blocks, dtype, DTYPES[candidate.dtype], golden.shape, atol=atol, rtol=rtol, run=run)
                ours.verify()
                theirs.verify()
                return metrics, judge(golden, candidate, metrics, tolerance)
        elif statistics is None:
            metrics = lower_bounds(golden, candidate)
            return metrics, judge_bounds(golden, candidate, metrics, tolerance)
        metrics = measure_identical(dtype, golden.shape, statistics, asked=(atol, rtol) != (None, None))
        return metrics, judge(golden, candidate, metrics, tolerance)


@contextlib.contextmanager
def _threads(workers: int) -> Iterator[Run]:
    """A ``map`` over so many threads. At the end, and after Ctrl-C, what has not begun is dropped, and what has is waited for."""
    if workers == 1:
        yield map
        return
    pool = ThreadPoolExecutor(workers, "accucompare-diff")
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)


def _batches(places: list[int], sizes: list[int]) -> list[list[int]]:
    """Neighbours together, so that handing them to a thread costs little beside the reading."""
    batches: list[list[int]] = []
    room = 0
    for place in places:
        if room <= 0:
            batches.append([])
            room = BATCH
        batches[-1].append(place)
        room -= sizes[place]
    return batches


def _rows(pairs: list[Pair], outcomes: list[Outcome], damage: list[str]) -> list[Row]:
    origins = Origins()
    rows = []
    for pair, outcome in zip(pairs, outcomes, strict=True):
        if isinstance(outcome, BundleError):
            damage.append(str(outcome))
            outcome = None, Verdict(Reason.NOT_COMPARABLE, detail=f"unreadable: {outcome}")
        metrics, verdict = outcome
        record = pair.golden or pair.candidate
        assert record is not None
        rows.append(Row(pair.golden, pair.candidate, origins.trace(record, verdict), metrics, pair.nearest, record.name))
    return rows


@dataclass
class _Precision:
    """The coarsest floating dtype in which the two sides have differed so far, step by step.

    Values that are the same on both sides bring no rounding error into what follows, and neither do scales, which float8_e8m0fnu is for.
    """

    _coarsest: dict[tuple[int, int], str] = field(default_factory=dict)

    def tolerance_for(self, pair: Pair, rules: Tolerances) -> Tolerance:
        """The limits for the next pair in execution order."""
        records = [record for record in (pair.golden, pair.candidate) if record is not None]
        dtypes = {record.dtype for record in records if DTYPES.get(record.dtype, DTYPES["bool"]).digits}
        step = (records[0].rank, records[0].step)
        before = {self._coarsest[step]} if step in self._coarsest else set()
        if dtypes and not _same_bits(pair):
            self._coarsest[step] = _coarsest_of(before, dtypes - {"float8_e8m0fnu"}) or "float64"
        if pair.golden is None or pair.candidate is None or pair.golden.dtype not in dtypes:
            return EXACT
        return rules.tolerance_for(pair.golden, pair.candidate, _coarsest_of(before, dtypes))


def _coarsest_of(before: set[str], own: set[str]) -> str:
    """The type with the fewest digits; of several, one of the pair's own, and the same in every run."""
    return min(before | own, key=lambda name: (DTYPES[name].digits, name not in own, name), default="")


def _same_bits(pair: Pair) -> bool:
    golden, candidate = pair.golden, pair.candidate
    if golden is None or candidate is None or golden.digest is None:
        return False
    return (golden.digest, golden.dtype) == (candidate.digest, candidate.dtype)


def _nbytes(pair: Pair) -> int:
    return sum(
        math.prod(record.shape) * DTYPES[record.dtype].storage.itemsize
        for record in (pair.golden, pair.candidate)
        if record is not None and record.member is not None
    )


def _never_called(golden: Bundle, candidate: Bundle, selection: Selection) -> list[Row]:
    """A row for each module that was registered but never called on both sides, or on the only side that has it."""
    sides = [bundle.manifest.model for bundle in (golden, candidate)]
    idle = [set(side.get("not_called") or ()) for side in sides]
    modules = [side.get("modules") or {} for side in sides]
    rows = []
    for name in [*modules[0], *(name for name in modules[1] if name not in modules[0])]:
        where = [side for side, names in zip(("golden", "candidate"), idle, strict=True) if name in names]
        if where and selection.allows(name):
            kind = modules[0].get(name) or modules[1].get(name)
            detail = f"{kind}, never called" if len(where) == 2 else f"{kind}, never called in {where[0]}"
            rows.append(Row(None, None, Verdict(Reason.NOT_CALLED, detail=detail), module=name))
    return rows
