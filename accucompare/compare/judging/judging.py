"""Measures and judges one pair of records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from accucompare.bundle.format import TRAINING_ROLES, GlobalRecord, Layout, Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare import remarks
from accucompare.compare.constants import TELLS_LAYOUT
from accucompare.compare.fusions import is_view, viewed
from accucompare.compare.judging.bounds import judge_bounds, lower_bounds
from accucompare.compare.judging.closer_looks import CloserLook
from accucompare.compare.judging.estimates import can_estimate
from accucompare.compare.judging.handed_on import is_rounded
from accucompare.compare.judging.judge import (
    judge_pair,
    judge_without_data,
    settle_noise,
    settle_unsteady,
)
from accucompare.compare.judging.proof import doubt, driven_by_rounding
from accucompare.compare.judging.rank_verdicts import settle_ranks
from accucompare.compare.judging.sides import Sides, metrics_of_identical
from accucompare.compare.judging.small_pairs import with_small_pairs
from accucompare.compare.limits import (
    EXACT,
    Expected,
    Tolerance,
    differing,
    excess_limit,
    float_dtype,
)
from accucompare.compare.measuring import (
    Metrics,
    are_masks_of_two_kinds,
    is_broadcast,
    measure_broadcast,
    measure_masks,
)
from accucompare.compare.remarks import BareRemark, BeyondLikeBaseline
from accucompare.compare.rows import (
    Option,
    PairOutcome,
    Reason,
    Status,
    Task,
    Verdict,
    because,
    is_operator,
    is_option,
    options_differ,
    same_bits,
    without_partner,
)
from accucompare.errors import BundleError
from accucompare.numbers import DTYPES
from accucompare.text import with_article

#: How a pair fails if rounding changed its shape, its values or its number of calls.
_OF_CHOICES = (Reason.SHAPE, Reason.OVER, Reason.MISSING, Reason.EXTRA)

#: What modules exchange, which each may have in a shape of its own.
_HANDED_ON = (Role.INPUT, Role.OUTPUT, Role.GRAD_INPUT, Role.GRAD_OUTPUT)

#: What the ranks' records have in place of one tensor.
_WHY_UNKNOWN: dict[Any, Reason] = {
    remarks.PartsMissing: Reason.INCOMPLETE,
    remarks.RanksDiffer: Reason.SHAPE,
}


def judge_task(sides: Sides, task: Task) -> PairOutcome | BundleError:
    """The outcome of a pair; not comparable if rounding alone changes its shape or calls."""
    outcome = _judged(sides, task)
    if isinstance(task.pair.candidate, GlobalRecord) and isinstance(outcome, PairOutcome):
        outcome = settle_ranks(task, outcome, lambda record: judge_with(sides, task, record))
    if (
        task.by_rounding is None
        or isinstance(outcome, BundleError)
        or outcome.verdict.reason not in _OF_CHOICES
    ):
        return outcome
    return PairOutcome(
        None, Verdict(Reason.NOT_COMPARABLE, remarks=(task.by_rounding,), by_rounding=True)
    )


def judge_with(sides: Sides, task: Task, candidate: GlobalRecord) -> PairOutcome:
    """The outcome with another tensor in the candidate's place. Errors as ``Bundle.stored``."""
    pair = msgspec.structs.replace(task.pair, candidate=candidate)
    outcome = _judged(sides, msgspec.structs.replace(task, pair=pair))
    if isinstance(outcome, BundleError):
        raise outcome
    return outcome


def judge_tasks(sides: Sides, tasks: Sequence[Task]) -> Iterator[PairOutcome | BundleError]:
    """The outcomes of some pairs; small ones are measured together."""
    sides = with_small_pairs(sides, tasks)
    return (_passed_at_once(sides, task) or judge_task(sides, task) for task in tasks)


def _passed_at_once(sides: Sides, task: Task) -> PairOutcome | None:
    """The outcome of a small pair that passes by its limits, which alone judge; else ``None``."""
    golden, candidate = task.pair.golden, task.pair.candidate
    if (
        golden is None
        or candidate is None
        or (metrics := sides.known.get((id(golden), id(candidate)))) is None
        or task.baseline is not None
        or task.repeat is not None
        or task.proof is not None
        or task.unknown is not None
        or golden.layout is not candidate.layout
        or golden.components is not None
        or candidate.components is not None
        or golden.shard is not None
        or candidate.shard is not None
        or isinstance(candidate, GlobalRecord)
    ):
        return None
    verdict = judge_pair(golden, candidate, metrics, task.tolerance)
    return PairOutcome(metrics, verdict) if verdict.status is Status.PASS else None


def _judged(sides: Sides, task: Task) -> PairOutcome | BundleError:
    golden, candidate = task.pair.golden, task.pair.candidate
    if task.unknown is not None and not isinstance(task.unknown, remarks.NotRecordedOn):
        reason = _WHY_UNKNOWN.get(type(task.unknown), Reason.NOT_COMPARABLE)
        if isinstance(task.unknown, remarks.PartsMissing) and task.unknown.lacking:
            lost = Verdict(
                Reason.RANKS_DISAGREE, over_limit=math.inf, remarks=(task.unknown,), evident=True
            )
            return PairOutcome(None, lost)
        return PairOutcome(None, Verdict(reason, remarks=(task.unknown,)))
    if golden is None or candidate is None:
        if is_operator(golden or candidate):
            return PairOutcome(None, without_partner(_option(sides, golden, candidate)))
        if Role.COMPUTED_BUFFER in {
            record.role for record in (golden, candidate) if record is not None
        }:
            # the other side may compute it elsewhere, or keep it in checkpoints
            return PairOutcome(
                None, Verdict(Reason.NOT_COMPARABLE, remarks=(BareRemark.ONE_COMPUTES_BUFFER,))
            )
        why = () if task.unknown is None else (task.unknown,)
        reason = Reason.EXTRA if golden is None else Reason.MISSING
        return PairOutcome(None, Verdict(reason, remarks=why))
    try:
        outcome = _compare(sides, golden, candidate, task)
        option = (
            _option(sides, golden, candidate) if outcome.verdict.status is Status.FAIL else None
        )
        return outcome if option is None else PairOutcome(None, options_differ(option))
    except BundleError as error:
        if not sides.keep_going:
            raise
        return error


def _compare(sides: Sides, golden: Record, candidate: Record, task: Task) -> PairOutcome:
    """Measure a pair, find the limits that apply, judge it, and settle what else is known of it."""
    tolerance = task.tolerance
    verdict = _settled_dtype(sides, golden, candidate, judge_without_data(golden, candidate))
    # of a sum of ranks' terms, nothing is known but a sketch
    estimated = candidate.statistics is None and _by_sketch(golden, candidate, tolerance)
    if verdict is not None and not (estimated and verdict.reason is Reason.NOT_COMPARABLE):
        of_two_forms = (
            _masks_of_two_kinds(sides, golden, candidate)
            or _reshaped(sides, golden, candidate, task)
            or _of_two_shapes(sides, golden, candidate, tolerance)
        )
        return of_two_forms or PairOutcome(None, verdict)
    if sides.verify and (golden.member is None) is not (candidate.member is None):
        (
            sides.golden.stored(golden)
            if golden.member is not None
            else sides.candidate.stored(candidate)
        ).read()
    metrics = _measured(sides, golden, candidate, tolerance)
    if metrics is None:
        metrics = lower_bounds(golden, candidate)
        verdict = judge_bounds(golden, candidate, metrics, tolerance)
        return PairOutcome(None if verdict.status is Status.NOT_COMPARED else metrics, verdict)
    expected = sides.expected(golden, candidate, metrics, task)
    if task.baseline is not None and expected is None:
        tolerance = because(tolerance, BareRemark.BASELINE_NON_FINITE)
    doubtful = doubt(sides, task, golden, candidate, expected)
    if doubtful is not None:
        expected, tolerance = doubtful.expected, because(tolerance, doubtful.remark)
    noise = sides.noise(candidate, task.repeat, metrics)
    verdict = _judged_beside(sides, task, tolerance, metrics, expected)
    if verdict.status is Status.FAIL and expected is not None and doubtful is None:
        driven = driven_by_rounding(sides, task, golden, candidate, metrics.rel_l2)
        if driven is not None:
            dtype = expected.dtype or candidate.dtype
            tolerance = tolerance.driven(driven, driven * excess_limit(metrics.compared, dtype))
            verdict = _judged_beside(sides, task, tolerance, metrics, expected)
            verdict = _beside_rounded_run(verdict, expected)
    if (
        metrics.deviation
        and metrics.golden_nan + metrics.golden_inf
        and verdict.status is Status.PASS
    ):
        return PairOutcome(
            None, Verdict(Reason.NOT_COMPARABLE, remarks=(BareRemark.NON_FINITE_BEHIND_SKETCH,))
        )
    if doubtful is not None:
        verdict = doubtful.settle(verdict)
    if noise is not None:
        verdict = settle_noise(verdict, tolerance, metrics, noise)
    if task.given_to_both and not tolerance.by_default:
        verdict = _settle_given(sides, golden, candidate, verdict)
    if verdict.status is Status.FAIL:
        apart = sides.apart(sides.golden, golden, sides.golden_repeat, task.golden_repeat)
        verdict = settle_unsteady(verdict, tolerance, metrics, apart)
    return PairOutcome(metrics, verdict, None if expected is None else expected.measured, noise)


def _judged_beside(
    sides: Sides, task: Task, tolerance: Tolerance, metrics: Metrics, expected: Expected | None
) -> Verdict:
    """The verdict by limits and the baseline's error, after a closer look at training's values."""
    golden, candidate = task.pair.golden, task.pair.candidate
    assert golden is not None
    assert candidate is not None
    verdict = judge_pair(golden, candidate, metrics, tolerance, expected)
    if expected is None or not tolerance.by_default or golden.role not in TRAINING_ROLES:
        return verdict
    task = msgspec.structs.replace(task, tolerance=tolerance)
    return CloserLook(sides, task, golden, candidate, metrics, verdict, expected).settled()


def _measured(
    sides: Sides, golden: Record, candidate: Record, tolerance: Tolerance
) -> Metrics | None:
    """The metrics of a pair; ``None`` if only bounds are known."""
    if None not in (golden.member, candidate.member) or _by_sketch(golden, candidate, tolerance):
        return sides.measure(sides.golden, golden, sides.candidate, candidate, tolerance)
    if golden.statistics is not None and same_bits(golden, candidate):
        return metrics_of_identical(golden, golden.statistics, tolerance)
    return None


def _by_sketch(golden: Record, candidate: Record, tolerance: Tolerance) -> bool:
    """Whether sketches tell the error; of one, nothing is known element by element."""
    asked = tolerance.atol is not None or tolerance.rtol is not None
    return not asked and can_estimate(golden, candidate)


def _beside_rounded_run(verdict: Verdict, expected: Expected | None) -> Verdict:
    """An error over the ceiling, where golden's own code ran on rounded values."""
    if verdict.status is Status.PASS:
        return msgspec.structs.replace(verdict, ill_conditioned=True)
    if expected is None or not verdict.beyond:
        return verdict
    alone = (BeyondLikeBaseline(expected.rel_l2, alone=True),)
    return msgspec.structs.replace(verdict, remarks=alone)


def _settle_given(sides: Sides, golden: Record, candidate: Record, verdict: Verdict) -> Verdict:
    """The verdict on a value given to both: rounding it to another type is no error."""
    if verdict.status is not Status.FAIL or not is_rounded(
        sides.golden, golden, sides.candidate, candidate
    ):
        return verdict
    return msgspec.structs.replace(
        verdict, reason=Reason.OK, over_limit=0.0, smallest=(), remarks=(BareRemark.GIVEN_ROUNDED,)
    )


def _settled_dtype(
    sides: Sides, golden: Record, candidate: Record, verdict: Verdict | None
) -> Verdict | None:
    """The verdict on two dtypes that calls returned: they may differ if the sides compute in
    two."""
    of_dtypes = golden.layout is Layout.OPAQUE and golden.dtype != candidate.dtype
    if not of_dtypes or verdict is None or verdict.reason is not Reason.OVER:
        return verdict
    manifests = sides.golden.manifest, sides.candidate.manifest
    computed_in = [(float_dtype(each), each.environment.get("autocast")) for each in manifests]
    if computed_in[0] == computed_in[1]:
        return verdict
    return Verdict(Reason.NOT_COMPARABLE, remarks=(BareRemark.ALL_THERE_IS,))


def _masks_of_two_kinds(sides: Sides, golden: Record, candidate: Record) -> PairOutcome | None:
    """The outcome of two masks of two kinds, by what they let through; ``None`` for other pairs."""
    if not are_masks_of_two_kinds(golden, candidate):
        return None
    stored = sides.golden.stored(golden), sides.candidate.stored(candidate)
    metrics = measure_masks(stored[0].blocks, stored[1].blocks, (golden, candidate))
    for each in stored:
        each.verify()
    if different := differing(metrics):
        remark = remarks.OtherMasks(different, metrics.elements)
        verdict = Verdict(Reason.OVER, EXACT.judged, over_limit=math.inf, remarks=(remark,))
    else:
        verdict = Verdict(Reason.OK, EXACT.judged, over_limit=0.0, remarks=(BareRemark.SAME_MASKS,))
    return PairOutcome(metrics, verdict)


def _of_two_shapes(
    sides: Sides, golden: Record, candidate: Record, tolerance: Tolerance
) -> PairOutcome | None:
    """The outcome of equal values that one side broadcasts later; ``None`` for other pairs."""
    if not is_broadcast(golden, candidate):
        return None
    stored = sides.golden.stored(golden), sides.candidate.stored(candidate)
    metrics = measure_broadcast(
        stored[0].blocks, stored[1].blocks, (golden, candidate), tolerance.atol, tolerance.rtol
    )
    for each in stored:
        each.verify()
    verdict = judge_pair(golden, candidate, metrics, tolerance)
    if verdict.status is not Status.PASS:
        return PairOutcome(None, Verdict(Reason.SHAPE, remarks=(BareRemark.NOT_BROADCAST,)))
    return PairOutcome(metrics, msgspec.structs.replace(verdict, remarks=(BareRemark.BROADCAST,)))


def _reshaped(sides: Sides, golden: Record, candidate: Record, task: Task) -> PairOutcome | None:
    """The outcome of values with the same elements in a row; ``None`` for other pairs."""
    if (
        None in (golden.parent, candidate.parent, golden.member, candidate.member)
        or golden.role not in _HANDED_ON
        or isinstance(candidate, GlobalRecord)
        or {golden.layout, candidate.layout} != {Layout.STRIDED}
        or (golden.shard, candidate.shard) != (None, None)
        or DTYPES[golden.dtype].kind is not DTYPES[candidate.dtype].kind
        or not is_view(golden.shape, candidate.shape)
    ):
        return None
    outcome = _compare(sides, golden, viewed(candidate, golden.shape), task)
    if outcome.metrics is None or outcome.metrics.rel_l2 > TELLS_LAYOUT:
        return None
    said = (*outcome.verdict.remarks, BareRemark.RESHAPED)
    return msgspec.structs.replace(
        outcome, verdict=msgspec.structs.replace(outcome.verdict, remarks=said)
    )


def _option(sides: Sides, golden: Record | None, candidate: Record | None) -> Option | None:
    """A number or string given to an operator, on each side; ``None`` for other records."""
    record = golden or candidate
    if record is None or not (is_option(golden) or is_option(candidate)):
        return None
    given = ((sides.golden, golden), (sides.candidate, candidate))
    return Option(
        record.part, *("" if each is None else _in_words(bundle, each) for bundle, each in given)
    )


def _in_words(bundle: Bundle, record: Record) -> str:
    if record.member is not None and not record.shape:
        return str(bundle.values(record)[()])
    if record.layout is Layout.OPAQUE:
        return record.detail
    return with_article(f"{record.layout.value} value")
