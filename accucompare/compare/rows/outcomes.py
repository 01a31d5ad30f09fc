"""The work for a pair of records, and its outcome."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import msgspec

from accucompare.bundle.format import GlobalRecord, Key, Record, Role
from accucompare.compare.fusions import made_like
from accucompare.compare.layouts import padded_like
from accucompare.compare.limits import Tolerance, why_not
from accucompare.compare.measuring import Metrics
from accucompare.compare.pairing import Pair, chosen_shape
from accucompare.compare.remarks import ByRounding, PairRemark, Unreadable
from accucompare.compare.rows.rows import Reason, Row, Verdict
from accucompare.errors import BundleError
from accucompare.numbers import DTYPES


class Proof(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What golden's code gave beside the baseline, in golden's precision, if not golden's bits."""

    record: Record | None  # ``None`` if there is none
    again: Record | None  # of its second run
    limit: float  # the largest relative L2 error by the fixed limits of a fed capture like golden
    ceiling: float  # the largest, whatever the baseline
    # of the baseline's error, what golden's precision explains; 0 if golden is coarser
    share: float


class Task(msgspec.Struct, frozen=True, gc=False):
    """A pair to compare, with its limits and its records of the baseline and second runs."""

    pair: Pair
    tolerance: Tolerance
    baseline: Record | None = None
    repeat: Record | None = None
    # how rounding changes the shape or the number of calls, as the baseline shows
    by_rounding: ByRounding | None = None
    golden_repeat: Record | None = None
    before: Pair | None = None  # of an update, the parameter that it was given
    given_to_both: bool = False  # whether both models were given these values, in a dtype each
    proof: Proof | None = None  # where the baseline is not known to be proved
    rounded: Record | None = None  # of golden's own code on rounded values
    arranged: tuple[GlobalRecord, ...] = ()  # what else the ranks' records may make up
    means: tuple[float, ...] = ()  # what a mean over the ranks' batches may divide by
    summed: int = 1  # how many more ranks than the baseline's add up their terms of a sum
    terms: float = 1.0  # how many times as large as this sum its terms are
    unknown: PairRemark | None = None  # why the ranks' records cannot be put together


class PairOutcome(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A pair's metrics, the verdict on it alone, and the errors of baseline and second run."""

    metrics: Metrics | None
    verdict: Verdict
    baseline_error: float | None = None
    noise: float | None = None
    arranged: Record | None = None  # the candidate's, put together as it was judged
    summed: Record | None = None  # the sum of what its ranks hold, if that would pass


def row_of(
    pair: Pair,
    outcome: PairOutcome | BundleError,
    damage: list[str],
    trace: Callable[[Record, Verdict], Verdict],
) -> Row:
    """The row of a pair; an error is added to ``damage``. ``trace``: finds where it was made."""
    if isinstance(outcome, BundleError):
        damage.append(str(outcome))
        remarks = (Unreadable(str(outcome)),)
        outcome = PairOutcome(None, Verdict(Reason.NOT_COMPARABLE, remarks=remarks))
    record = pair.record
    verdict = trace(record, outcome.verdict)
    own = outcome.baseline_error, outcome.noise
    candidate = pair.candidate if outcome.arranged is None else outcome.arranged
    return Row(pair.golden, candidate, verdict, outcome.metrics, pair.nearest, record.name, *own)


def with_baseline(task: Task, baselines: dict[Key, Record]) -> Task:
    """The task with the baseline's record, or with why the baseline cannot judge it."""
    golden, candidate = task.pair.golden, task.pair.candidate
    if golden is None or candidate is None:
        return task
    record = made_like(padded_like(baselines.get(golden.key), golden), golden, baselines)
    why = why_not(golden, candidate, record)
    if why is None:
        return msgspec.structs.replace(task, baseline=record)
    by_rounding = chosen_shape(golden, candidate, record)
    return msgspec.structs.replace(
        task, by_rounding=by_rounding, tolerance=because(task.tolerance, why)
    )


def with_parameters(tasks: list[Task]) -> list[Task]:
    """Updates' tasks with the parameters they were given, for updates are rounded as those are."""
    given = {
        task.pair.golden.key: task.pair
        for task in tasks
        if task.pair.golden is not None and task.pair.candidate is not None
    }

    def with_parameter(task: Task) -> Task:
        golden = task.pair.golden
        if golden is None or golden.role is not Role.PARAM_UPDATE:
            return task
        return msgspec.structs.replace(
            task, before=given.get(golden.key._replace(role=Role.PARAM_BEFORE))
        )

    return [with_parameter(task) for task in tasks]


def because(tolerance: Tolerance, why: PairRemark) -> Tolerance:
    """A default limit that says why no baseline judges."""
    if tolerance.by_default:
        return replace(tolerance, unjudged=(*tolerance.unjudged, why))
    return tolerance


def same_bits(golden: Record | None, candidate: Record | None) -> bool:
    if golden is None or candidate is None or golden.digest is None:
        return False
    return (golden.digest, golden.dtype) == (candidate.digest, candidate.dtype)


def nbytes(task: Task) -> int:
    """Bytes of tensors that a task may read."""
    size = 0
    for record in (
        task.pair.golden,
        task.pair.candidate,
        task.baseline,
        task.repeat,
        task.golden_repeat,
    ):
        if record is not None and record.member is not None:
            size += _nbytes(record.shape, record.dtype)
    return size


@lru_cache(maxsize=1 << 12)
def _nbytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * DTYPES[dtype].storage.itemsize
