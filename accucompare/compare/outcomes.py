"""What is found of each pair of records: read by several threads, a few blocks of each in memory."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import msgspec

from accucompare.bundle.reader import Bundle
from accucompare.bundle.records import Key, Layout, Record, Role
from accucompare.compare.align import Pair
from accucompare.compare.baseline import Expected, why_not
from accucompare.compare.bounds import judge_bounds, lower_bounds
from accucompare.compare.choices import chosen_shape
from accucompare.compare.judge import judge, judge_without_data, settle_noise, settle_unsteady
from accucompare.compare.masks import may_hold_masks, may_say_the_same
from accucompare.compare.measure import Metrics, measure, measure_identical, measure_masks
from accucompare.compare.norms import Run
from accucompare.compare.operator_rows import is_operator, is_option, options_differ, without_partner
from accucompare.compare.rows import Option, Reason, Status, Verdict
from accucompare.compare.tolerance import EXACT, Tolerance
from accucompare.errors import BundleError
from accucompare.numbers.dtypes import DTYPES
from accucompare.numbers.statistics import Statistics

#: Called with the bytes compared so far and the bytes to compare.
Progress = Callable[[int, int], None]

#: Bytes that one more thread is worth starting for (threads do not help with tensors so small that Python takes most of the time),
#: bytes of neighbouring pairs that are handed to a thread at a time, and bytes above which the threads share a pair.
WORTH_A_WORKER = 64 << 20
BATCH = 8 << 20
SPLIT = 64 << 20


class Task(msgspec.Struct, frozen=True, gc=False):
    """A pair to compare: the limits, and the records of the baseline and of both sides' second runs that belong to it."""

    pair: Pair
    tolerance: Tolerance
    baseline: Record | None = None
    repeat: Record | None = None
    chosen: str = ""  # how rounding changes the shape or the number of calls, as the baseline shows
    golden_repeat: Record | None = None


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What is found of a pair: the metrics, the verdict as far as the pair alone tells, and the errors of baseline and second run."""

    metrics: Metrics | None
    verdict: Verdict
    baseline: float | None = None
    noise: float | None = None


def with_baseline(task: Task, baselines: dict[Key, Record]) -> Task:
    """The same task with the baseline's record, or with a rule that says why it has none."""
    golden, candidate = task.pair.golden, task.pair.candidate
    if golden is None or candidate is None:
        return task
    record = baselines.get(golden.key)
    why = why_not(golden, candidate, record)
    if not why:
        return msgspec.structs.replace(task, baseline=record)
    chosen = chosen_shape(golden, candidate, record)
    return msgspec.structs.replace(task, chosen=chosen, tolerance=_because(task.tolerance, why))


def _because(tolerance: Tolerance, why: str) -> Tolerance:
    """A default with the reason why it holds and no baseline does."""
    return replace(tolerance, source=f"{tolerance.source}; {why}") if tolerance.by_default else tolerance


@dataclass(frozen=True)
class Sides:
    """The bundles, and how their pairs are to be compared."""

    golden: Bundle
    candidate: Bundle
    baseline: Bundle | None
    repeat: Bundle | None
    verify: bool
    keep_going: bool
    golden_repeat: Bundle | None = None

    def outcomes(self, tasks: list[Task], workers: int | None, progress: Progress) -> list[Outcome | BundleError]:
        """What is found of each pair: large tensors come first, each split among the threads, then batches of the others.

        The number of threads changes no result.
        """
        sizes = [_nbytes(task) for task in tasks]
        total, done = sum(sizes), 0
        outcomes: dict[int, Outcome | BundleError] = {}
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

    def _outcome(self, task: Task, run: Run = map) -> Outcome | BundleError:
        """What is found of a pair; over its limit, and rounding alone makes it another one, there is nothing to judge it by."""
        found = self._found(task, run)
        chosen = (Reason.SHAPE, Reason.OVER, Reason.MISSING, Reason.EXTRA)
        if not task.chosen or isinstance(found, BundleError) or found.verdict.reason not in chosen:
            return found
        return Outcome(None, Verdict(Reason.NOT_COMPARABLE, detail=task.chosen, chosen=True))

    def _found(self, task: Task, run: Run) -> Outcome | BundleError:
        golden, candidate = task.pair.golden, task.pair.candidate
        if golden is None or candidate is None:
            if is_operator(golden or candidate):
                return Outcome(None, without_partner(golden, self._given(golden, candidate)))
            if Role.COMPUTED_BUFFER in {record.role for record in (golden, candidate) if record is not None}:
                which = "the candidate" if golden is None else "golden"  # the other may compute it elsewhere, or keep it in checkpoints
                return Outcome(None, Verdict(Reason.NOT_COMPARABLE, detail=f"only {which} computes this buffer"))
            return Outcome(None, Verdict(Reason.EXTRA if golden is None else Reason.MISSING))
        try:
            found = self._compare(golden, candidate, task, run)
            option = self._given(golden, candidate) if found.verdict.status is Status.FAIL else None
            return found if option is None else Outcome(None, options_differ(option))
        except BundleError as error:
            if not self.keep_going:
                raise
            return error

    def _compare(self, golden: Record, candidate: Record, task: Task, run: Run) -> Outcome:
        verdict = judge_without_data(golden, candidate)
        if verdict is not None:
            return self._masks_of_two_kinds(golden, candidate) or Outcome(None, verdict)
        tolerance = task.tolerance
        if self.verify and (golden.member is None) is not (candidate.member is None):
            (self.golden.stored(golden) if golden.member is not None else self.candidate.stored(candidate)).read()
        if golden.member is not None and candidate.member is not None:
            metrics = self._measure(self.golden, golden, self.candidate, candidate, tolerance, run)
        elif golden.statistics is not None and same_bits(golden, candidate):
            metrics = _measure_identical(golden, golden.statistics, tolerance)
        else:
            metrics = lower_bounds(golden, candidate)
            verdict = judge_bounds(golden, candidate, metrics, tolerance)
            return Outcome(None if verdict.status is Status.NOT_COMPARED else metrics, verdict)
        expected = self._expected(golden, candidate, metrics, task.baseline, run)
        if task.baseline is not None and expected is None:
            tolerance = _because(tolerance, "the baseline has NaN or Inf where golden has not, or the other way round")
        noise = self._noise(candidate, task.repeat, metrics, run)
        verdict = judge(golden, candidate, metrics, tolerance, expected)
        if noise is not None:
            verdict = settle_noise(verdict, tolerance, metrics, noise)
        if verdict.status is Status.FAIL:
            verdict = settle_unsteady(verdict, tolerance, metrics, self._unsteadiness(golden, task.golden_repeat, run))
        return Outcome(metrics, verdict, None if expected is None else expected.rel_l2, noise)

    def _masks_of_two_kinds(self, golden: Record, candidate: Record) -> Outcome | None:
        """A pair of a boolean and a floating mask that say the same; ``None`` for any other."""
        if not may_say_the_same(golden, candidate):
            return None
        stored = self.golden.stored(golden), self.candidate.stored(candidate)
        dtypes = DTYPES[golden.dtype], DTYPES[candidate.dtype]
        metrics = measure_masks(stored[0].blocks, stored[1].blocks, *dtypes, golden.shape)
        if metrics is None:
            return None
        for each in stored:
            each.verify()
        detail = f"{golden.dtype} and {candidate.dtype} masks that say the same"
        return Outcome(metrics, Verdict(Reason.OK, str(EXACT), EXACT.source, used=0.0, detail=detail))

    def _given(self, golden: Record | None, candidate: Record | None) -> Option | None:
        """A number or a string given to an operator, in words of either side; ``None`` if it is neither."""
        record = golden or candidate
        if record is None or not (is_option(golden) or is_option(candidate)):
            return None
        sides = ((self.golden, golden), (self.candidate, candidate))
        return Option(record.part, *("" if each is None else self._option(bundle, each) for bundle, each in sides))

    def _option(self, bundle: Bundle, record: Record) -> str:
        """A number or a string given to an operator, in words."""
        if record.member is not None and not record.shape:
            return str(bundle.values(record)[()])
        return record.detail if record.layout is Layout.OPAQUE else f"a {record.layout.value} value"

    def _expected(self, golden: Record, candidate: Record, metrics: Metrics, baseline: Record | None, run: Run) -> Expected | None:
        """The baseline's error; ``None`` if there is none to be told."""
        if self.baseline is None or baseline is None:
            return None
        if baseline.error is not None:
            return Expected.kept(baseline.error, candidate, baseline)
        if self.verify or not same_bits(candidate, baseline):
            metrics = self._measure(self.golden, golden, self.baseline, baseline, EXACT, run)
        return None if metrics.nonfinite_mismatch else Expected.of(metrics, candidate, baseline)

    def _noise(self, candidate: Record, repeat: Record | None, error: Metrics, run: Run) -> float | None:
        """How far the candidate's two runs are apart, relative to golden's norm; ``None`` if that cannot be told.

        Args:
            candidate, repeat: the two runs' records.
            error: of the candidate, which tells golden's norm: its own may be anything.
            run: as for ``measure``.
        """
        if self.repeat is None or repeat is None or candidate.member is None or repeat.member is None:
            return None
        if (candidate.shape, candidate.dtype) != (repeat.shape, repeat.dtype):
            return None
        apart = self._measure(self.candidate, candidate, self.repeat, repeat, EXACT, run)
        if apart.nonfinite_mismatch:
            return math.inf
        if not apart.rmse or not error.rmse:  # where the candidate is golden, so is its norm
            return apart.rel_l2
        return apart.rmse / error.rmse * error.rel_l2

    def _unsteadiness(self, golden: Record, repeat: Record | None, run: Run) -> float | None:
        """How far golden's two captures are apart, relative to the first's norm; ``None`` if that cannot be told."""
        if self.golden_repeat is None or repeat is None or golden.member is None or repeat.member is None:
            return None
        if (golden.shape, golden.dtype) != (repeat.shape, repeat.dtype):
            return None
        apart = self._measure(self.golden, golden, self.golden_repeat, repeat, EXACT, run)
        return math.inf if apart.nonfinite_mismatch else apart.rel_l2

    def _measure(self, ours: Bundle, left: Record, theirs: Bundle, right: Record, tolerance: Tolerance, run: Run) -> Metrics:
        """Two records that have data, read only if their digests differ, or if all is to be verified."""
        stored = ours.stored(left), theirs.stored(right)  # reads nothing yet, but finds damage
        identical = same_bits(left, right)
        if left.statistics is not None and identical and not self.verify:
            return _measure_identical(left, left.statistics, tolerance)
        dtypes = DTYPES[left.dtype], DTYPES[right.dtype]
        atol, rtol = _elementwise(left, tolerance)
        masks = not identical and may_hold_masks(dtypes[0], left.statistics) and may_hold_masks(dtypes[1], right.statistics)
        metrics = measure(stored[0].blocks, stored[1].blocks, *dtypes, left.shape, atol=atol, rtol=rtol, masks=masks, run=run)
        for each in stored:
            each.verify()
        return metrics


def _measure_identical(record: Record, statistics: Statistics, tolerance: Tolerance) -> Metrics:
    asked = _elementwise(record, tolerance) != (None, None)
    return measure_identical(DTYPES[record.dtype], record.shape, statistics, asked=asked)


def _elementwise(record: Record, tolerance: Tolerance) -> tuple[float | None, float | None]:
    """atol and rtol: of integers and booleans 0, so that those that differ are counted."""
    return (tolerance.atol, tolerance.rtol) if DTYPES[record.dtype].digits else (0.0, None)


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


def same_bits(golden: Record | None, candidate: Record | None) -> bool:
    if golden is None or candidate is None or golden.digest is None:
        return False
    return (golden.digest, golden.dtype) == (candidate.digest, candidate.dtype)


def _nbytes(task: Task) -> int:
    size = 0
    for record in (task.pair.golden, task.pair.candidate, task.baseline, task.repeat):
        if record is not None and record.member is not None:
            size += math.prod(record.shape) * DTYPES[record.dtype].storage.itemsize
    return size
