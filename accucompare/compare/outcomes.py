"""Measures and judges each pair of records, in several threads, with a few blocks of each in memory."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import msgspec

from accucompare.bundle.reader import Bundle
from accucompare.bundle.records import GRADIENT_ROLES, TRAINING_ROLES, Key, Layout, Record, Role
from accucompare.compare.align import Pair
from accucompare.compare.baseline import Expected, floor, is_half, limit, why_not
from accucompare.compare.bounds import judge_bounds, lower_bounds
from accucompare.compare.choices import chosen_shape, most_changed
from accucompare.compare.closer import (
    ERRORS,
    Values,
    at_right_angles,
    beyond_last_place,
    carriers,
    common_factor,
    common_limit,
    standard_error,
)
from accucompare.compare.estimates import can_estimate, estimate
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

#: Bytes that are worth one more thread (threads do not help with tensors so small that Python takes most of the time), bytes of
#: neighbouring pairs that a thread gets at a time, and bytes above which the threads share a pair.
WORTH_A_WORKER = 64 << 20
BATCH = 8 << 20
SPLIT = 64 << 20

#: How a pair fails if rounding changed its shape, its values or the number of calls.
_OF_CHOICES = (Reason.SHAPE, Reason.OVER, Reason.MISSING, Reason.EXTRA)


class Task(msgspec.Struct, frozen=True, gc=False):
    """A pair to compare, with its limits, and its records of the baseline and of both sides' second runs."""

    pair: Pair
    tolerance: Tolerance
    baseline: Record | None = None
    repeat: Record | None = None
    chosen: str = ""  # how rounding changes the shape or the number of calls, as the baseline shows
    golden_repeat: Record | None = None
    before: Pair | None = None  # of an update, the parameter that it was given


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The metrics of a pair, the verdict on the pair alone, and the errors of baseline and second run."""

    metrics: Metrics | None
    verdict: Verdict
    baseline: float | None = None
    noise: float | None = None


def with_baseline(task: Task, baselines: dict[Key, Record]) -> Task:
    """The task with the baseline's record, or with the reason why the baseline cannot judge it."""
    golden, candidate = task.pair.golden, task.pair.candidate
    if golden is None or candidate is None:
        return task
    record = baselines.get(golden.key)
    why = why_not(golden, candidate, record)
    if not why:
        return msgspec.structs.replace(task, baseline=record)
    chosen = chosen_shape(golden, candidate, record)
    return msgspec.structs.replace(task, chosen=chosen, tolerance=_because(task.tolerance, why))


def with_parameters(tasks: list[Task]) -> list[Task]:
    """The tasks of updates with the parameters that they were given, for updates are rounded as those are."""
    given = {task.pair.golden.key: task.pair for task in tasks if task.pair.golden is not None and task.pair.candidate is not None}

    def with_parameter(task: Task) -> Task:
        golden = task.pair.golden
        if golden is None or golden.role is not Role.PARAM_UPDATE:
            return task
        return msgspec.structs.replace(task, before=given.get(golden.key._replace(role=Role.PARAM_BEFORE)))

    return [with_parameter(task) for task in tasks]


def _because(tolerance: Tolerance, why: str) -> Tolerance:
    """A default limit whose ``source`` says why no baseline judges."""
    return replace(tolerance, source=f"{tolerance.source}; {why}") if tolerance.by_default else tolerance


@dataclass(frozen=True)
class Sides:
    """The bundles, and how to compare their pairs."""

    golden: Bundle
    candidate: Bundle
    baseline: Bundle | None
    repeat: Bundle | None
    verify: bool
    keep_going: bool
    golden_repeat: Bundle | None = None

    def outcomes(self, tasks: list[Task], workers: int | None, progress: Progress) -> list[Outcome | BundleError]:
        """The outcome of each pair. Large tensors come first, each split among the threads, then batches of the others.

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
            for batch, own in zip(batches, run(lambda batch: [self._outcome(tasks[place]) for place in batch], batches), strict=True):
                outcomes.update(zip(batch, own, strict=True))
                done += sum(sizes[place] for place in batch)
                progress(done, total)
        return [outcomes[place] for place in range(len(tasks))]

    def _outcome(self, task: Task, run: Run = map) -> Outcome | BundleError:
        """The outcome of a pair. A pair over its limit is not comparable if rounding alone changes its shape or its number of calls."""
        outcome = self._judged(task, run)
        if not task.chosen or isinstance(outcome, BundleError) or outcome.verdict.reason not in _OF_CHOICES:
            return outcome
        return Outcome(None, Verdict(Reason.NOT_COMPARABLE, detail=task.chosen, chosen=True))

    def _judged(self, task: Task, run: Run) -> Outcome | BundleError:
        golden, candidate = task.pair.golden, task.pair.candidate
        if golden is None or candidate is None:
            if is_operator(golden or candidate):
                return Outcome(None, without_partner(golden, self._option(golden, candidate)))
            if Role.COMPUTED_BUFFER in {record.role for record in (golden, candidate) if record is not None}:
                which = "the candidate" if golden is None else "golden"  # the other may compute it elsewhere, or keep it in checkpoints
                return Outcome(None, Verdict(Reason.NOT_COMPARABLE, detail=f"only {which} computes this buffer"))
            return Outcome(None, Verdict(Reason.EXTRA if golden is None else Reason.MISSING))
        try:
            outcome = self._compare(golden, candidate, task, run)
            option = self._option(golden, candidate) if outcome.verdict.status is Status.FAIL else None
            return outcome if option is None else Outcome(None, options_differ(option))
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
        if (golden.member is not None and candidate.member is not None) or self._by_sketch(golden, candidate, tolerance):
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
        if expected is not None and tolerance.by_default and golden.role in TRAINING_ROLES and not metrics.deviation:
            verdict = self._closer(task, golden, candidate, metrics, verdict, expected, run)
        if noise is not None:
            verdict = settle_noise(verdict, tolerance, metrics, noise)
        if verdict.status is Status.FAIL:
            verdict = settle_unsteady(verdict, tolerance, metrics, self._unsteadiness(golden, task.golden_repeat, run))
        return Outcome(metrics, verdict, None if expected is None else expected.rel_l2, noise)

    def _by_sketch(self, golden: Record, candidate: Record, tolerance: Tolerance) -> bool:
        """Whether an estimate of the pair can be judged: element by element nothing is known."""
        return can_estimate(golden, candidate) and tolerance.atol is None and tolerance.rtol is None

    def _closer(
        self, task: Task, golden: Record, candidate: Record, metrics: Metrics, verdict: Verdict, expected: Expected, run: Run
    ) -> Verdict:
        """The verdict on a gradient or an update that a baseline has judged, after a closer look (``compare.closer``)."""
        if verdict.reason is Reason.OVER and verdict.excess_limit is not None and verdict.excess is not None:
            return self._of_few_values(golden, candidate, metrics, task.tolerance, verdict, expected)
        if verdict.reason is not Reason.OK or expected.missing_cast or not task.tolerance.fed:
            return verdict
        baseline, before = task.baseline, task.before
        if before is not None and before.golden is not None and before.candidate is not None and is_half(before.candidate.dtype):
            return self._beyond_last_place(golden, candidate, before.golden, before.candidate.dtype, baseline, verdict)
        if is_half(candidate.dtype) and golden.role in (*GRADIENT_ROLES, Role.PARAM_GRAD) and baseline is not None:
            return self._common_factor(golden, candidate, baseline, metrics, verdict, expected, run)
        return verdict

    def _of_few_values(
        self, golden: Record, candidate: Record, metrics: Metrics, tolerance: Tolerance, verdict: Verdict, expected: Expected
    ) -> Verdict:
        """The verdict on a pair over its limit, by the limit for as many elements as carry golden's norm."""
        few = carriers(Values.of(self.golden, golden))
        most = limit(math.floor(few), expected.dtype or candidate.dtype)
        ratio = verdict.excess or 0.0
        over_ceiling = tolerance.ceiling is not None and metrics.rel_l2 > tolerance.ceiling
        if not few or over_ceiling or ratio > most or not math.isfinite(metrics.rel_l2):
            return verdict
        detail = f"{few:.1f} of {metrics.compared} elements carry golden's norm, and the limit is that of so few"
        reason, used = Reason.OK, ratio / most
        found = msgspec.structs.replace(verdict, reason=reason, used=used, detail=detail, tolerance=f"excess {most:.3g}", excess_limit=most)
        scale = max(expected.rel_l2, floor(expected.dtype or candidate.dtype))
        return msgspec.structs.replace(found, rel_l2_limit=most * scale)

    def _beyond_last_place(
        self, golden: Record, candidate: Record, before: Record, dtype: str, baseline: Record | None, verdict: Verdict
    ) -> Verdict:
        """The verdict on an update of a parameter of a half type, element by element."""
        if baseline is None or before.member is None or self.baseline is None or before.shape != golden.shape:
            return verdict
        kept = None if baseline.error is None else baseline.error.beyond
        if baseline.member is None and kept is None:
            return verdict
        ours, parameter = Values.of(self.golden, golden), Values.of(self.golden, before)
        digits = DTYPES[dtype].digits
        count = beyond_last_place(ours, Values.of(self.candidate, candidate), parameter, digits)
        if count <= most_changed(0):
            return verdict
        expects = kept if kept is not None else beyond_last_place(ours, Values.of(self.baseline, baseline), parameter, digits)
        most = most_changed(expects)
        if count <= most:
            return verdict
        elements = math.prod(golden.shape)
        detail = f"{count} of {elements} elements are off by more than rounding to {dtype} can do; {expects} of the baseline are"
        return Verdict(Reason.OVER, f"{most:.0f} elements beyond their last place", "last place", used=count / most, detail=detail)

    def _common_factor(
        self, golden: Record, candidate: Record, baseline: Record, metrics: Metrics, verdict: Verdict, expected: Expected, run: Run
    ) -> Verdict:
        """The verdict on a gradient whose elements may all be off by one factor."""
        ours = common_factor(metrics.one_minus_cosine, golden.statistics, candidate.statistics)
        theirs = common_factor(expected.one_minus_cosine, golden.statistics, baseline.statistics)
        theirs = baseline.error.factor if baseline.error is not None else theirs
        if ours is None or theirs is None or golden.statistics is None or self.baseline is None:
            return verdict
        allowed = common_limit(DTYPES[candidate.dtype].rounding, theirs)
        if not abs(ours - theirs) > allowed:  # nearly always
            return verdict
        norm = golden.statistics.l2 or 0.0
        if baseline.statistics is None:  # it keeps no tensors
            apart = math.hypot(at_right_angles(metrics.rel_l2, ours) + at_right_angles(expected.rel_l2, theirs), ours - theirs) * norm
        else:
            length = baseline.statistics.l2 or 0.0
            apart = self._measure(self.baseline, baseline, self.candidate, candidate, EXACT, run).rel_l2 * length
        largest = max(abs(float(end or 0.0)) for end in (golden.statistics.min, golden.statistics.max))
        most = allowed + ERRORS * standard_error(apart, (ours - theirs) * norm, largest, norm)
        if not abs(ours - theirs) > most:
            return verdict
        detail = f"golden's times {1.0 + ours:.4f}, where the baseline has {1.0 + theirs:.4f}: one factor on all elements is no rounding"
        return Verdict(Reason.OVER, f"factor within {most:.2g}", "common factor", used=abs(ours - theirs) / most, detail=detail)

    def _masks_of_two_kinds(self, golden: Record, candidate: Record) -> Outcome | None:
        """The outcome of a boolean and a floating mask that say the same; ``None`` for any other pair."""
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

    def _option(self, golden: Record | None, candidate: Record | None) -> Option | None:
        """A number or a string given to an operator, as each side gives it; ``None`` if the record is neither."""
        record = golden or candidate
        if record is None or not (is_option(golden) or is_option(candidate)):
            return None
        sides = ((self.golden, golden), (self.candidate, candidate))
        return Option(record.part, *("" if each is None else self._in_words(bundle, each) for bundle, each in sides))

    def _in_words(self, bundle: Bundle, record: Record) -> str:
        """A number or a string given to an operator, in words."""
        if record.member is not None and not record.shape:
            return str(bundle.values(record)[()])
        return record.detail if record.layout is Layout.OPAQUE else f"a {record.layout.value} value"

    def _expected(self, golden: Record, candidate: Record, metrics: Metrics, baseline: Record | None, run: Run) -> Expected | None:
        """The baseline's error; ``None`` if there is none, or it cannot be measured."""
        if self.baseline is None or baseline is None:
            return None
        if baseline.error is not None:
            return Expected.kept(baseline.error, candidate, baseline)
        if self.verify or not same_bits(candidate, baseline):
            metrics = self._measure(self.golden, golden, self.baseline, baseline, EXACT, run)
        return None if metrics.nonfinite_mismatch else Expected.of(metrics, candidate, baseline)

    def _noise(self, candidate: Record, repeat: Record | None, error: Metrics, run: Run) -> float | None:
        """The distance of the candidate's two runs, relative to golden's norm; ``None`` if it cannot be measured.

        Args:
            candidate, repeat: the two runs' records.
            error: the candidate's metrics against golden, from which golden's norm follows.
            run: as for ``measure``.
        """
        apart = self._apart(self.candidate, candidate, self.repeat, repeat, run)
        if apart is None or apart.nonfinite_mismatch:
            return None if apart is None else math.inf
        if not apart.rmse or not error.rmse:  # without an error, the candidate's norm is golden's
            return apart.rel_l2
        return apart.rmse / error.rmse * error.rel_l2

    def _unsteadiness(self, golden: Record, repeat: Record | None, run: Run) -> float | None:
        """The distance of golden's two captures, relative to the first's norm; ``None`` if it cannot be measured."""
        apart = self._apart(self.golden, golden, self.golden_repeat, repeat, run)
        if apart is None or apart.nonfinite_mismatch:
            return None if apart is None else math.inf
        return apart.rel_l2

    def _apart(self, bundle: Bundle, record: Record, second: Bundle | None, repeat: Record | None, run: Run) -> Metrics | None:
        """The metrics of a record of two captures of one side; ``None`` if they cannot be measured."""
        if second is None or repeat is None:
            return None
        if None in (record.member, repeat.member) and not (same_bits(record, repeat) or can_estimate(record, repeat)):
            return None
        if (record.shape, record.dtype) != (repeat.shape, repeat.dtype):
            return None
        return self._measure(bundle, record, second, repeat, EXACT, run)

    def _measure(self, ours: Bundle, left: Record, theirs: Bundle, right: Record, tolerance: Tolerance, run: Run) -> Metrics:
        """The metrics of two records with data. They are read only if their digests differ, or everything is to be verified."""
        identical = same_bits(left, right)
        if None in (left.member, right.member):
            known = left.statistics if identical else None
            return _measure_identical(left, known, tolerance) if known is not None else estimate(ours, left, theirs, right)
        stored = ours.stored(left), theirs.stored(right)  # this finds damaged headers
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
    """atol and rtol; for integers and booleans 0, so that those that differ are counted."""
    return (tolerance.atol, tolerance.rtol) if DTYPES[record.dtype].digits else (0.0, None)


@contextlib.contextmanager
def _threads(workers: int) -> Iterator[Run]:
    """A ``map`` over some threads. At the end, and after Ctrl-C, work that has not begun is dropped, and running work is waited for."""
    if workers == 1:
        yield map
        return
    from concurrent.futures import ThreadPoolExecutor  # here, for a small diff needs none

    pool = ThreadPoolExecutor(workers, "accucompare-diff")
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)


def _batches(places: list[int], sizes: list[int]) -> list[list[int]]:
    """Neighbours together, so that handing them to a thread costs little compared with reading."""
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
