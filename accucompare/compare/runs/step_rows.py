"""Rows of a fed candidate's step numbers: its losses, and the norm to which it clips gradients.

No record holds them; they are in the manifest's series. Fed, the loss is computed from golden's
outputs, and golden's gradients are clipped, so an error of these numbers is that code's own.

**Limits.** What the user gave. Else the default limit of the coarsest type that either side
computes in, which leaves room for a sum of millions of elements in another order. A loss may also
be off by what rounding its terms does to a sum that cancels (PPO's first loss is the mean of values
with mean zero): the rounding of a fed value, times the model's largest output, times the norm of
the gradient that the loss sends back. In half types that is at least the rounding of a term of size
1, such as a log-probability, for near its minimum a loss sends nothing back. A baseline's losses
narrow that, or widen it if they are further off."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from accucompare.bundle.format import TRAINING_ROLES, Layout, Record, Role, StepSeries
from accucompare.compare.constants import FED_ROUNDINGS, FED_ROUNDINGS_OF_SUMS
from accucompare.compare.judging import judge_pair
from accucompare.compare.limit_facts import DefaultOfDtype, LimitOrigin, LimitSource
from accucompare.compare.limits import (
    CEILING,
    COARSE,
    DEFAULT_REL_L2,
    LimitsInForce,
    Tolerance,
    floor,
    precision_of,
    ratio_limit,
)
from accucompare.compare.measuring import Blocks, Metrics, measure_pair
from accucompare.compare.origins import not_fed
from accucompare.compare.remarks import BareRemark, BeyondLikeBaseline
from accucompare.compare.rows import UNMATCHED, Reason, Row, Status, Verdict, is_operator
from accucompare.compare.runs.ladder import asked_of, coarsest, series_of
from accucompare.compare.runs.parting import Parting
from accucompare.compare.runs.step_pairs import Manifests
from accucompare.compare.runs.wander import StepOfRank, relative, used_norm
from accucompare.numbers import DTYPES, digest, summarize

#: An output of the whole model: the number of its call, and its path.
LossOutput = tuple[int, str]

#: The series' type for its numbers, whatever type they were computed in.
_KEPT_IN = "float64"


def with_step_rows(
    rows: list[Row],
    golden: Manifests,
    candidate: Manifests,
    baseline: Manifests,
    proof: Manifests,
    tolerances: LimitsInForce,
) -> list[Row]:
    """A fed comparison's rows with each step's numbers, in the order in which a step computes them.

    What an update made of gradients that were clipped differently is inherited.

    Args:
        rows: of the records.
        golden, candidate, baseline, proof: the manifests, by rank; empty for a baseline that does
            not judge, or a missing proof.
        tolerances: the limits in force.
    """
    ours, theirs = asked_of(candidate, series_of(golden)), asked_of(golden, series_of(candidate))
    places = [
        place
        for place in sorted(ours.keys() & theirs.keys())
        if ours[place].losses
        or (ours[place].clipped_norm, theirs[place].clipped_norm) != (None, None)
    ]
    if not places:
        return rows
    steps = _Steps.of(rows, candidate)
    limits = _Limits(
        _dtype(golden, candidate, tolerances), tolerances, _errors(golden, baseline, proof)
    )
    losses = {place: _losses(place, ours[place], theirs[place], limits, steps) for place in places}
    return _among(
        rows,
        steps,
        losses,
        {place: _clips(place, ours[place], theirs[place], limits) for place in places},
    )


def with_clipping(
    rows: list[Row],
    parting: Parting,
    golden: Manifests,
    candidate: Manifests,
    tolerances: LimitsInForce,
) -> list[Row]:
    """The rows of a free-running comparison, with the clipped norm's row where it parts them."""
    place = parting.rank, parting.step
    limits = _Limits(_dtype(golden, candidate, tolerances), tolerances, ())
    clips = _clips(place, series_of(golden)[place], series_of(candidate)[place], limits)
    return _among(rows, _Steps.of(rows, candidate), {}, {place: clips})


def _among(
    rows: list[Row],
    steps: _Steps,
    losses: Mapping[StepOfRank, list[Row]],
    clips: Mapping[StepOfRank, Row | None],
) -> list[Row]:
    """The rows, with those of losses and clipped gradients where a step computes them."""
    made: dict[int, list[Row]] = {}  # by the number of the row that they come before
    for before, of_steps in (
        (steps.backward, losses),
        (steps.update, {place: [row] for place, row in clips.items() if row is not None}),
    ):
        for place, own in of_steps.items():
            made.setdefault(before.get(place, steps.end.get(place, len(rows))), []).extend(own)
    clipped = {
        place for place, row in clips.items() if row is not None and row.status is Status.FAIL
    }
    found = []
    for number, row in enumerate(rows):
        found += made.get(number, [])
        found.append(
            _inherited(row) if clipped and _made_by_update(row) and _place(row) in clipped else row
        )
    return found + made.get(len(rows), [])


def _dtype(golden: Manifests, candidate: Manifests, tolerances: LimitsInForce) -> str:
    """The coarsest type of either side; rounded float32 products count as float16 or bfloat16."""
    dtype = coarsest(*golden.values(), *candidate.values())
    rounding = max(tolerances.rounding, tolerances.conv_rounding)
    products = next(
        (name for name in ("bfloat16", "float16") if rounding >= DTYPES[name].rounding / 2), dtype
    )
    return min(dtype, products, key=lambda name: DTYPES[name].digits)


def _errors(golden: Manifests, baseline: Manifests, proof: Manifests) -> list[float]:
    """Each baseline loss's error, unless its proof shows another computation than golden's."""
    ours, expected, again = map(series_of, (golden, baseline, proof))
    most = DEFAULT_REL_L2[coarsest(*golden.values())]
    found = []
    for place in ours.keys() & expected.keys():
        proved = again[place].losses if place in again else ours[place].losses
        for own, other, once_more in zip(
            ours[place].losses, expected[place].losses, proved, strict=False
        ):
            error = abs(relative(own, other))
            if math.isfinite(error) and abs(relative(own, once_more)) <= most:
                found.append(error)
    return found


@dataclass(frozen=True)
class _Limits:
    """How far off a number of a step may be."""

    dtype: str  # the coarsest type that either side computes in
    given: LimitsInForce  # the limits in force
    errors: Sequence[float]  # relative, of the baseline's losses; empty without one

    def of(self, record: Record, absolute: float = 0.0, terms: int | None = None) -> Tolerance:
        """The limits of a number.

        Args:
            record: of the candidate.
            absolute: how far off it may be, however small it is.
            terms: how many numbers a loss sums; a sum one by one in float32 is always allowed.
        """
        by_user = self.given.of_user(record)
        if by_user is not None and (by_user.atol, by_user.rtol, by_user.rel_l2) != (
            None,
            None,
            None,
        ):
            # a cosine tells nothing about a single number
            return replace(by_user, cosine=None, ceiling=CEILING[self.dtype][0])
        default: float = DEFAULT_REL_L2[self.dtype]
        source: LimitOrigin = DefaultOfDtype(self.dtype, of_step=True)
        if terms is not None and self.errors:
            most = max(*self.errors, floor(self.dtype))
            one_by_one = min(DTYPES[self.dtype].rounding, DTYPES["float32"].rounding) * math.sqrt(
                terms
            )
            allowed = max(
                precision_of(self.dtype).slack * ratio_limit(len(self.errors)) * most, one_by_one
            )
            if most > default or allowed < default:
                default, source = allowed, LimitSource.BASELINE
        ceiling = CEILING[self.dtype][0]
        return Tolerance(
            atol=float(f"{absolute:.3g}") or None,
            rtol=default,
            source=source,
            by_default=True,
            ceiling=ceiling,
            fed=True,
        )

    def near_zero(self, reach: float) -> float:
        """How far off a loss may be, however small it is. ``reach``: from ``_Steps.reach``."""
        rounding = DTYPES[self.dtype].rounding
        if rounding < COARSE:
            return FED_ROUNDINGS_OF_SUMS * rounding * reach
        return FED_ROUNDINGS * rounding * max(reach, 1.0)


@dataclass(frozen=True)
class _Steps:
    """What each step's rows tell."""

    # backward, update, end: the numbers of its first row of a backward or an update; of the first
    # one that an update made; and behind its last one
    backward: dict[StepOfRank, int] = field(default_factory=dict)
    update: dict[StepOfRank, int] = field(default_factory=dict)
    end: dict[StepOfRank, int] = field(default_factory=dict)
    # norms, largest: L2 norms of the gradients that its losses sent back, and the largest value of
    # each output of the whole model, by the output's call and path
    norms: dict[StepOfRank, list[tuple[LossOutput, float]]] = field(default_factory=dict)
    largest: dict[StepOfRank, dict[LossOutput, float]] = field(default_factory=dict)
    # how many elements each output of the whole model has
    sizes: dict[StepOfRank, dict[LossOutput, int]] = field(default_factory=dict)
    # steps with a row that fails before the loss is computed
    failed: set[StepOfRank] = field(default_factory=set)
    # steps with an output of the whole model that golden's did not replace
    unfed: set[StepOfRank] = field(default_factory=set)

    @classmethod
    def of(cls, rows: Iterable[Row], candidate: Manifests) -> _Steps:
        steps, fed = cls(), set()
        for number, row in enumerate(rows):
            record = row.record
            if record is None:
                continue
            place = record.rank, record.step
            steps.end[place] = number + 1
            if record.role in TRAINING_ROLES:
                steps.backward.setdefault(place, number)
            elif row.status is Status.FAIL and row.reason not in UNMATCHED:
                steps.failed.add(place)
            if _made_by_update(row):
                steps.update.setdefault(place, number)
            golden = row.golden
            if (
                golden is None
                or golden.name
                or golden.parent is not None
                or golden.statistics is None
                or is_operator(golden)
            ):
                continue
            if golden.role is Role.GRAD_OUTPUT:
                steps.norms.setdefault(place, []).append(
                    ((golden.call, golden.path), golden.statistics.l2 or 0.0)
                )
            elif golden.role is Role.OUTPUT:
                fed.add(place)
                steps.sizes.setdefault(place, {})[golden.call, golden.path] = math.prod(
                    golden.shape
                )
                ends = (
                    abs(float(end))
                    for end in (golden.statistics.min, golden.statistics.max)
                    if end is not None
                )
                steps.largest.setdefault(place, {})[golden.call, golden.path] = max(
                    ends, default=0.0
                )
        missed = {
            (rank, step)
            for rank, step, name, _, role, _ in not_fed(candidate)
            if not name and role == Role.OUTPUT.value
        }
        steps.unfed.update(missed | (steps.end.keys() - fed))
        return steps

    def terms(self, place: StepOfRank) -> int:
        """How many elements the losses' outputs have: those with a gradient, if any is known."""
        sizes, used = self.sizes.get(place, {}), [output for output, _ in self.norms.get(place, [])]
        return max(sum(sizes.get(output, 0) for output in used) or sum(sizes.values()), 1)

    def reach(self, place: StepOfRank, scale: float | None) -> float:
        """A loss's change at this ``scale`` if inputs change at random by their largest value."""
        largest = self.largest.get(place, {})
        most = max(largest.values(), default=0.0)
        return math.hypot(
            *(norm * largest.get(output, most) for output, norm in self.norms.get(place, []))
        ) / (scale or 1.0)


def _losses(
    place: StepOfRank, golden: StepSeries, candidate: StepSeries, limits: _Limits, steps: _Steps
) -> list[Row]:
    """A row for each loss that was sent back; for their sum if one side has more.

    Micro-batches may run backward in another order: losses that agree once sorted are the same."""
    sides = golden.losses, candidate.losses
    if not all(sides):
        return []
    if len(golden.losses) != len(candidate.losses):
        sides = (math.fsum(golden.losses),), (math.fsum(candidate.losses),)
    absolute = limits.near_zero(steps.reach(place, golden.loss_scale))
    first = _record(place, Role.LOSS, sides[1][0])
    tolerance = limits.of(first, absolute if math.isfinite(absolute) else 0.0, steps.terms(place))
    inherited = place in steps.unfed and place in steps.failed
    calls = [list(enumerate(side)) for side in sides]
    found = [
        _loss(place, own, other, tolerance, inherited)
        for own, other in zip(calls[0], calls[1], strict=True)
    ]
    if all(row.status is Status.PASS for row in found):
        return found
    by_size = [sorted(side, key=lambda each: (math.isnan(each[1]), each[1])) for side in calls]
    again = [
        _loss(place, own, other, tolerance, inherited)
        for own, other in zip(by_size[0], by_size[1], strict=True)
    ]
    return again if all(row.status is Status.PASS for row in again) else found


def _loss(
    place: StepOfRank,
    golden: tuple[int, float],
    candidate: tuple[int, float],
    tolerance: Tolerance,
    inherited: bool,
) -> Row:
    """The row of a loss.

    Args:
        place: its rank and step.
        golden, candidate: the number of its backward in the step, and its value.
        tolerance: its limits.
        inherited: whether it was computed from wrong outputs.
    """
    ours, theirs = (_record(place, Role.LOSS, value, call) for call, value in (golden, candidate))
    values = golden[1], candidate[1]
    metrics = _measured(*values, tolerance)
    verdict = judge_pair(ours, theirs, metrics, tolerance)
    if verdict.reason is Reason.NON_FINITE and not inherited:
        verdict = verdict.beginning()
    elif verdict.status is Status.PASS and _is_beyond(values, tolerance):
        verdict = msgspec.structs.replace(
            verdict, reason=Reason.OVER, beyond=True, remarks=(BeyondLikeBaseline(),)
        )
    if verdict.reason is Reason.OVER:
        verdict = msgspec.structs.replace(
            verdict, reason=Reason.INHERITED if inherited else Reason.INTRODUCED
        )
    return Row(ours, theirs, verdict, metrics)


def _is_beyond(values: tuple[float, float], tolerance: Tolerance) -> bool:
    """Whether a number is further off than rounding explains, whatever the baseline."""
    golden, candidate = values
    if tolerance.ceiling is None or not tolerance.by_default:
        return False
    return abs(candidate - golden) > (tolerance.atol or 0.0) + tolerance.ceiling * abs(golden)


def _clips(
    place: StepOfRank, golden: StepSeries, candidate: StepSeries, limits: _Limits
) -> Row | None:
    """The row of the clipped norm; ``None`` if no side clips, or only one, to the same norm."""
    clipped = golden.clipped_norm, candidate.clipped_norm
    if clipped == (None, None) or not (golden.updates and candidate.updates):
        return None
    ours, theirs = (
        None if value is None else _record(place, Role.CLIPPED_NORM, value) for value in clipped
    )
    record, used = ours or theirs, [used_norm(each) for each in (golden, candidate)]
    assert record is not None
    numbers = [value for value in used if value is not None]
    if len(numbers) < len(used):
        return Row(ours, theirs, Verdict(Reason.NOT_COMPARABLE, remarks=(BareRemark.NORM_UNKNOWN,)))
    tolerance = limits.of(record)
    metrics = _measured(numbers[0], numbers[1], tolerance)
    sides = [_record(place, Role.CLIPPED_NORM, value) for value in numbers]
    verdict = judge_pair(sides[0], sides[1], metrics, tolerance)
    if verdict.status is Status.PASS and None in clipped:
        return None
    if verdict.reason is Reason.OVER:
        verdict = msgspec.structs.replace(verdict, reason=Reason.INTRODUCED)
    return Row(ours, theirs, verdict, metrics)


def _record(place: StepOfRank, role: Role, value: float, call: int = 0) -> Record:
    array = np.asarray(value, np.float64)
    statistics = summarize(array, DTYPES[_KEPT_IN])
    known: dict[str, Any] = {"digest": digest(array), "statistics": statistics}
    return Record(
        *place, "", call, role, "", 0, "series", None, (), _KEPT_IN, Layout.SCALAR, **known
    )


def number_of(record: Record) -> float:
    """The value of a record of one number; +Inf if it is infinite."""
    statistics = record.statistics
    if statistics is None or statistics.nan:
        return math.nan
    return math.inf if statistics.min is None else float(statistics.min)


def _measured(golden: float, candidate: float, tolerance: Tolerance) -> Metrics:
    dtype = DTYPES[_KEPT_IN]
    return measure_pair(
        _blocks(golden),
        _blocks(candidate),
        (dtype, dtype),
        (),
        atol=tolerance.atol,
        rtol=tolerance.rtol,
    )


def _blocks(value: float) -> Blocks:
    return lambda first, last: iter([np.full(last - first, value)])


def _place(row: Row) -> StepOfRank:
    assert row.record is not None
    return row.record.rank, row.record.step


def _made_by_update(row: Row) -> bool:
    return row.record is not None and row.record.role in (Role.PARAM_UPDATE, Role.STATE_AFTER)


def _inherited(row: Row) -> Row:
    """A row with an error of its own, as one with an inherited error."""
    if row.reason is not Reason.INTRODUCED:
        return row
    return msgspec.structs.replace(
        row, verdict=msgspec.structs.replace(row.verdict, reason=Reason.INHERITED)
    )
