"""The bundles of a comparison, and how two records are measured with a few blocks in memory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from accucompare.bundle.format import Record
from accucompare.bundle.reading import Bundle
from accucompare.compare.judging.estimates import Estimates, can_estimate
from accucompare.compare.layouts import size_of_terms
from accucompare.compare.limits import EXACT, Expected, Tolerance
from accucompare.compare.measuring import (
    Metrics,
    Run,
    may_hold_masks,
    measure_identical,
    measure_pair,
)
from accucompare.compare.rows import Task, same_bits
from accucompare.numbers import DTYPES, Statistics

#: Metrics measured ahead, by the ``id`` of both records.
KnownMetrics = dict[tuple[int, int], Metrics]


@dataclass(frozen=True)
class Sides:
    """The bundles, and how to compare their pairs.

    Attributes:
        repeat, golden_repeat: second runs of the candidate and of golden.
        proof, proof_again, rounded: see ``compare.judging.proof``.
        known: metrics of small pairs, see ``compare.judging.small_pairs``.
        run: as for ``measure_pair``.
    """

    golden: Bundle
    candidate: Bundle
    baseline: Bundle | None
    repeat: Bundle | None
    verify: bool
    keep_going: bool
    golden_repeat: Bundle | None = None
    proof: Bundle | None = None
    proof_again: Bundle | None = None
    rounded: Bundle | None = None
    estimates: Estimates = field(default_factory=Estimates, compare=False)
    known: KnownMetrics = field(default_factory=dict, compare=False)
    run: Run = field(default=map, compare=False)

    def bundles(self) -> dict[str, Bundle]:
        """Those that there are, by name."""
        return {
            each.name: bundle
            for each in fields(self)
            if isinstance(bundle := getattr(self, each.name), Bundle)
        }

    @contextlib.contextmanager
    def given_up_on_error(self) -> Iterator[None]:
        """After an error or Ctrl-C, let no thread wait for storage that may never answer."""
        try:
            yield
        except BaseException:
            for bundle in self.bundles().values():
                bundle.give_up()
            raise

    def expected(
        self, golden: Record, candidate: Record, metrics: Metrics, task: Task
    ) -> Expected | None:
        """The baseline's error; ``None`` if missing or not measurable."""
        baseline = task.baseline
        if self.baseline is None or baseline is None:
            return None
        if baseline.error is not None:
            return Expected.kept(baseline.error, candidate, baseline)
        if self.verify or not same_bits(candidate, baseline):
            metrics = self.measure(self.golden, golden, self.baseline, baseline)
        if metrics.nonfinite_mismatch:
            return None
        size = max(size_of_terms(candidate, golden), task.terms)
        expected = Expected.of(metrics, candidate, baseline)
        return expected.of_sums_over(task.summed, candidate.dtype, size)

    def noise(self, candidate: Record, repeat: Record | None, error: Metrics) -> float | None:
        """The candidate's two runs' distance, relative to golden's norm; ``None`` if unmeasurable.

        Args:
            candidate, repeat: the two runs' records.
            error: the candidate's metrics against golden; they give golden's norm.
        """
        apart = self._apart(self.candidate, candidate, self.repeat, repeat)
        if apart is None or apart.nonfinite_mismatch:
            return None if apart is None else math.inf
        if not apart.rmse or not error.rmse:  # without an error, the candidate's norm is golden's
            return apart.rel_l2
        return apart.rmse / error.rmse * error.rel_l2

    def apart(
        self, bundle: Bundle, record: Record, second: Bundle | None, repeat: Record | None
    ) -> float | None:
        """The distance of two runs, relative to the first's norm; ``None`` if not measurable."""
        apart = self._apart(bundle, record, second, repeat)
        if apart is None or apart.nonfinite_mismatch:
            return None if apart is None else math.inf
        return apart.rel_l2

    def _apart(
        self, bundle: Bundle, record: Record, second: Bundle | None, repeat: Record | None
    ) -> Metrics | None:
        """The metrics of one side's record in two captures; ``None`` if not measurable."""
        if second is None or repeat is None:
            return None
        if None in (record.member, repeat.member) and not (
            same_bits(record, repeat) or can_estimate(record, repeat)
        ):
            return None
        if (record.shape, record.dtype, record.shard) != (repeat.shape, repeat.dtype, repeat.shard):
            return None
        return self.measure(bundle, record, second, repeat)

    def measure(
        self,
        ours: Bundle,
        left: Record,
        theirs: Bundle,
        right: Record,
        tolerance: Tolerance = EXACT,
    ) -> Metrics:
        """The metrics of two records with data; reads them if digests differ, or to verify."""
        if (measured := self.known.get((id(left), id(right)))) is not None:
            return measured
        identical = same_bits(left, right)
        if None in (left.member, right.member):
            known = left.statistics if identical else None
            if known is not None:
                return metrics_of_identical(left, known, tolerance)
            return self.estimates.metrics(ours, left, theirs, right)
        stored = ours.stored(left), theirs.stored(right)  # this finds damaged headers
        if left.statistics is not None and identical and not self.verify:
            return metrics_of_identical(left, left.statistics, tolerance)
        dtypes = DTYPES[left.dtype], DTYPES[right.dtype]
        atol, rtol = elementwise(left, tolerance)
        masks = (
            not identical
            and may_hold_masks(dtypes[0], left.statistics)
            and may_hold_masks(dtypes[1], right.statistics)
        )
        metrics = measure_pair(
            stored[0].blocks,
            stored[1].blocks,
            dtypes,
            left.shape,
            atol=atol,
            rtol=rtol,
            masks=masks,
            run=self.run,
        )
        for each in stored:
            each.verify()
        return metrics


def metrics_of_identical(record: Record, statistics: Statistics, tolerance: Tolerance) -> Metrics:
    """The metrics of a record and one of the same bits."""
    asked = elementwise(record, tolerance) != (None, None)
    return measure_identical(DTYPES[record.dtype], record.shape, statistics, asked=asked)


def elementwise(record: Record, tolerance: Tolerance) -> tuple[float | None, float | None]:
    """atol and rtol; 0 for integers and booleans, so that differing ones are counted."""
    return (tolerance.atol, tolerance.rtol) if DTYPES[record.dtype].digits else (0.0, None)
