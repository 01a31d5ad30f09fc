"""Rows of steps with weights from a free update: how far two free-running trainings may part.

Until the first update both sides have the same weights, and a row's error is this run's rounding so
far: the baseline's row judges fairly. The update's gradients differ by rounding, and Adam turns
1e-5 of a gradient into 1.5e-2 of an update wherever elements are nearly zero. From then on a row
also carries its weights' error, and the baseline's single draw says little about another's. So, as
for losses and norms (``compare.runs.wander``), the limit is the **envelope**: the baseline's
largest error in that row until that step (the first ten steps together), times what so few draws
allow for. It is wide with few steps, so it proves nothing by itself: the steps before the first
update ran the same code and are judged as ever. Without any (``--steps 300-301`` of two runs from
step 0), what only the envelope would pass is not judged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from accucompare.bundle.format import UPDATE_ROLES, Manifest, Role, StepSeries
from accucompare.compare.constants import TOGETHER
from accucompare.compare.limit_facts import LimitKind, LimitOfKind
from accucompare.compare.limits import floor, precision_of, ratio_limit
from accucompare.compare.remarks import BareRemark, FreeUpdates
from accucompare.compare.rows import PairOutcome, Reason, Task, Verdict
from accucompare.errors import BundleError

#: A row in every step: (rank, name, call index, role, path).
_Line = tuple[int, str, int, Role, str]


@dataclass(frozen=True)
class LaterSteps:
    """Steps that begin with weights that updates made, or may have made, different."""

    steps: frozenset[tuple[int, int]]  # with their ranks
    # those with an earlier step, so that the same code was judged with the same weights
    ranks: frozenset[int]


def after_updates(golden: Mapping[int, Manifest], candidate: Mapping[int, Manifest]) -> LaterSteps:
    """The steps after the first update that may make weights differ, from the manifests by rank."""
    found, ranks = set(), set()
    for rank in golden.keys() & candidate.keys():
        ours, theirs = (
            {entry.step: entry for entry in manifest.series}
            for manifest in (golden[rank], candidate[rank])
        )
        steps = sorted(ours.keys() | theirs.keys())
        if not any(entry.updates for side in (ours, theirs) for entry in side.values()):
            continue
        started = candidate[rank].training.started
        # whether steps that were not recorded made updates
        updated = steps[0] > (0 if started is None else started.step)
        for step in steps:
            both = ours.get(step), theirs.get(step)
            if updated and not _same_weights(*both):
                found.add((rank, step))
            else:
                ranks.add(rank)
            updated = updated or any(each is not None and each.updates for each in both)
    return LaterSteps(frozenset(found), frozenset(ranks))


def _same_weights(golden: StepSeries | None, candidate: StepSeries | None) -> bool:
    return (
        golden is not None
        and candidate is not None
        and golden.weights is not None
        and golden.weights == candidate.weights
    )


def by_envelope(
    tasks: Sequence[Task], outcomes: Sequence[PairOutcome | BundleError], later: LaterSteps
) -> list[PairOutcome | BundleError]:
    """The outcomes; in later steps the baseline's envelope judges what it found over its limit.

    ``compare.origins.trace`` judges updates and their inputs.

    Args:
        tasks, outcomes: of all pairs.
        later: from ``after_updates``.
    """
    found = list(outcomes)
    errors: dict[_Line, list[tuple[int, float]]] = {}
    for task, outcome in zip(tasks, outcomes, strict=True):
        if (
            later.steps
            and isinstance(outcome, PairOutcome)
            and outcome.baseline_error is not None
            and math.isfinite(outcome.baseline_error)
        ):
            errors.setdefault(_line(task), []).append(
                (task.pair.record.step, outcome.baseline_error)
            )
    for place, (task, outcome) in enumerate(zip(tasks, outcomes, strict=True)):
        record = task.pair.record
        if not isinstance(outcome, PairOutcome) or (record.rank, record.step) not in later.steps:
            continue
        if record.role in UPDATE_ROLES and record.role is not Role.PARAM_GRAD:
            continue
        if outcome.verdict.reason is Reason.OVER and outcome.verdict.excess_limit is not None:
            found[place] = _judged(
                task, outcome, errors.get(_line(task), []), record.rank in later.ranks
            )
    return found


def _line(task: Task) -> _Line:
    record = task.pair.record
    return record.rank, record.name, record.call, record.role, record.path


def _judged(
    task: Task, outcome: PairOutcome, errors: list[tuple[int, float]], proven: bool
) -> PairOutcome:
    """The outcome of a pair over its limit, by the envelope of the baseline's errors in this row.

    ``proven``: whether a step with the same weights was judged, too."""
    candidate, metrics, verdict = task.pair.candidate, outcome.metrics, outcome.verdict
    if candidate is None or metrics is None or not math.isfinite(metrics.rel_l2):
        return outcome
    ordered = sorted(errors)
    until = sum(step <= task.pair.record.step for step, _ in ordered)
    known = [error for _, error in ordered[: max(until, TOGETHER)]]
    if not known:
        return outcome
    factor = precision_of(candidate.dtype).slack * max(
        ratio_limit(len(known)), ratio_limit(metrics.compared)
    )
    limit = factor * max(*known, floor(candidate.dtype))
    if metrics.rel_l2 > limit:
        return outcome
    if not proven:
        return PairOutcome(
            metrics,
            Verdict(Reason.NOT_COMPARABLE, remarks=(BareRemark.NOT_PROVEN,), by_rounding=True),
            outcome.baseline_error,
            outcome.noise,
        )
    beyond = (
        task.tolerance.by_default
        and task.tolerance.ceiling is not None
        and metrics.rel_l2 > task.tolerance.ceiling
    )
    judged = msgspec.structs.replace(
        verdict,
        reason=Reason.OK,
        limit=LimitOfKind(LimitKind.ENVELOPE, limit),
        smallest=(),
        over_limit=metrics.rel_l2 / limit,
        remarks=(FreeUpdates(max(known), len(known)),),
        rel_l2_limit=limit,
        excess_limit=None,
        beyond=beyond,
    )
    return msgspec.structs.replace(outcome, verdict=judged)
