"""Steps that both sides ran alike, judged by array expressions; the result is that of pairs.

A step's pairs are judged at once if both sides have the same records in the same order, and nothing
beside the limits judges them (no baseline, second run, rule or renaming). The small tensors of a
step are measured by one call. Pairs that are not plain (``compare.judging.row_columns``) are judged
alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accucompare.bundle.format import OPERATOR_ROLES, Layout, Record, Role
from accucompare.bundle.reading import Bundle, Outline, StepColumns
from accucompare.compare.constants import NEAR
from accucompare.compare.judging import (
    EstimatedMetrics,
    MetricColumns,
    RowsOfStep,
    Sides,
    estimate_columns,
    judge_tasks,
    room,
)
from accucompare.compare.limits import LimitsInForce, Tolerance
from accucompare.compare.measuring import Metrics, SmallMetrics, measure_columns, small_form
from accucompare.compare.pair_limits import PairLimits
from accucompare.compare.pairing import Pair
from accucompare.compare.rows import (
    UNMATCHED,
    PairOutcome,
    Reason,
    Status,
    Task,
    Verdict,
    row_of,
    same_bits,
)
from accucompare.compare.task_batches import BATCH_BYTES, Progress
from accucompare.errors import BundleError
from accucompare.numbers import DTYPES, Float64, deviation, kernel

#: What plain rows are of.
_PLAIN = (Role.INPUT, Role.OUTPUT, Role.GRAD_OUTPUT, Role.GRAD_INPUT)
#: What else leaves nothing behind for later steps, if it passes.
_ALONE = frozenset((*_PLAIN, Role.COMPUTED_BUFFER, Role.ARGUMENT_UPDATE))
#: A tensor with smaller values may hold masks of some type.
_NO_MASK = -6e4
#: Records of a step, on average, that are worth arrays.
WORTH_ARRAYS = 32
#: Steps one after the other that fail to be judged at once, after which no more are tried.
_MOST_FAILED = 2

_PASSED = Verdict(Reason.OK)

#: (rank, step).
StepOfBundle = tuple[int, int]


@dataclass(eq=False)
class _Limits:
    """The limits of steps' pairs; of equal steps, unless they depend on earlier ones, the same."""

    in_force: LimitsInForce
    in_order: bool
    _of_pairs: PairLimits = field(default_factory=PairLimits)
    _known: dict[tuple[Outline, Outline, bytes], tuple[list[Tolerance], NDArray[np.int32]]] = field(
        default_factory=dict
    )

    def of(
        self, golden: StepColumns, candidate: StepColumns, same: NDArray[np.bool_]
    ) -> tuple[list[Tolerance], NDArray[np.int32]]:
        """The limits of a step's pairs, and the number of each pair's. ``same``: pairs alike."""
        place = golden.outline, candidate.outline, same.tobytes()
        if not self.in_order and place in self._known:
            return self._known[place]
        numbers: dict[int, int] = {}  # by id, for most pairs have the same object
        limits: list[Tolerance] = []
        of = []
        for pair in map(Pair, golden, candidate):
            own = self._of_pairs.tolerance_for(pair, self.in_force)
            number = numbers.setdefault(id(own), len(limits))
            if number == len(limits):
                limits.append(own)
            of.append(number)
        self._known = {place: (limits, np.array(of, np.int32))}
        return self._known[place]


@dataclass(eq=False)
class JudgedStep:
    """A step's plain rows, and the outcomes of its other pairs by place.

    ``in_order``: whether where later errors come from depends on it even if nothing fails."""

    rows: RowsOfStep
    outcomes: dict[int, PairOutcome | BundleError]
    in_order: bool = False

    @property
    def nbytes(self) -> int:
        return self.rows.golden.outline.nbytes + self.rows.candidate.outline.nbytes

    @property
    def fails(self) -> bool:
        return any(
            not isinstance(each, BundleError)
            and (each.verdict.status is Status.FAIL or each.verdict.reason in UNMATCHED)
            for each in self.outcomes.values()
        )

    @property
    def again(self) -> bool:
        """Whether modules are called again, or backwards run again."""
        return any(call or "#" in path for _, call, _, path in self.rows.golden.outline.keys)

    @property
    def routes_otherwise(self) -> bool:
        """Whether choices differ, or shapes: of tokens that went to other experts."""
        return any(
            not isinstance(each, BundleError)
            and each.verdict.status is Status.FAIL
            and (each.verdict.reason is Reason.SHAPE or _is_choice(self.rows.golden[place]))
            for place, each in self.outcomes.items()
        )

    def traced(self, trace: Callable[[Record, Verdict], Verdict], damage: list[str]) -> RowsOfStep:
        """The rows, with failures traced to where they were made. Arguments as for ``row_of``."""
        rows, outcomes = self.rows, self.outcomes
        if not (self.in_order or self.fails):  # then there is nothing to trace
            for place, outcome in outcomes.items():
                pair = Pair(rows.golden[place], rows.candidate[place])
                rows.odd[place] = row_of(pair, outcome, damage, lambda record, verdict: verdict)
            return rows
        for place, (golden, candidate) in enumerate(zip(rows.golden, rows.candidate, strict=True)):
            if place in outcomes:
                rows.odd[place] = row_of(Pair(golden, candidate), outcomes[place], damage, trace)
            else:
                trace(golden, _PASSED)
        return rows


def _is_choice(record: Record) -> bool:
    return (
        record.role is Role.OUTPUT
        and len(record.shape) > 1
        and record.dtype in DTYPES
        and not DTYPES[record.dtype].digits
    )


#: Steps as columns.
ColumnsOfSteps = Mapping[StepOfBundle, StepColumns]


def columns_of(bundle: Bundle) -> ColumnsOfSteps:
    """The steps of a bundle that can be columns; none if they are small, and arrays cost more."""
    found: dict[StepOfBundle, StepColumns] = {}
    entries = bundle.steps()
    if sum(entry.records for _, entry in entries) < WORTH_ARRAYS * len(entries):
        return found
    for rank, entry in entries:
        columns = bundle.step_columns(rank, entry)
        if columns is not None:
            found[rank, entry.step] = columns
    return found


def may_judge_at_once(bundle: Bundle, steps: ColumnsOfSteps) -> bool:
    """Whether a bundle's pairs are known by their keys, as operators' are not."""
    return len(steps) == len(bundle.steps()) and all(
        each.outline.roles.isdisjoint(OPERATOR_ROLES) for each in steps.values()
    )


def _in_order(steps: ColumnsOfSteps, rules: LimitsInForce) -> bool:
    """Whether limits, or where errors come from, depend on earlier steps."""
    outlines = {each.outline for each in steps.values()}
    return bool(rules.sums) or any(
        not each.roles <= _ALONE or not each.types.isdisjoint(rules.recurrent) for each in outlines
    )


def judge_steps(
    sides: Sides,
    golden: ColumnsOfSteps,
    candidate: ColumnsOfSteps,
    rules: LimitsInForce,
    progress: Progress,
) -> dict[StepOfBundle, JudgedStep]:
    """The steps that can be judged at once; all or none where one depends on earlier ones."""
    found: dict[StepOfBundle, JudgedStep] = {}
    in_order = any(_in_order(side, rules) for side in (golden, candidate))
    if in_order and golden.keys() != candidate.keys():
        return {}
    limits = _Limits(rules, in_order)
    total = sum(each.outline.nbytes for side in (golden, candidate) for each in side.values())
    done = failed = 0
    with sides.given_up_on_error():
        for place, ours in golden.items():
            theirs = candidate.get(place)
            if theirs is None or failed == _MOST_FAILED:
                continue
            judged = _judged(sides, ours, theirs, limits)
            failed = failed + 1 if judged is None else 0
            if judged is not None and judged.fails and (rules.otherwise.has_limit or judged.again):
                judged = None  # it may be rounded input, as other steps show, or in another order
            if judged is not None and judged.routes_otherwise:
                return {}  # tokens are paired by identity
            if judged is None and in_order:
                return {}
            if judged is not None:
                judged.in_order = in_order
                found[place] = judged
                done += judged.nbytes
                progress(done, total)
    return found


def _judged(
    sides: Sides, golden: StepColumns, candidate: StepColumns, in_force: _Limits
) -> JudgedStep | None:
    ours, theirs = golden.outline, candidate.outline
    if not (kernel.is_compiled() and len(golden) and (ours is theirs or ours.keys == theirs.keys)):
        return None
    if ours.nbytes_of_large + theirs.nbytes_of_large > BATCH_BYTES:  # threads share these
        return None
    same = (golden.digests == candidate.digests).all(axis=1) & _same_types(ours, theirs)
    for place in {*golden.odd, *candidate.odd}:
        same[place] = same_bits(golden[place], candidate[place])
    limits, limit_of = in_force.of(golden, candidate, same)
    plain = _may_be_plain(golden, candidate)
    forms, form_of = _forms(ours, theirs, limits, np.where(plain, limit_of, -1))
    content, starts = sides.golden.small_columns(golden)
    other, places = sides.candidate.small_columns(candidate)
    starts = np.stack([starts, places], 1)
    small = plain & (starts >= 0).all(axis=1) & (form_of >= 0)
    without = plain & (ours.members.of == -1) & (theirs.members.of == -1)
    identical = (small | without) & same
    asked = ~same & ((golden.numbers[:, 0] > _NO_MASK) | (candidate.numbers[:, 0] > _NO_MASK))
    used, metrics = np.zeros(len(golden)), []
    places = np.flatnonzero(small & asked)
    if len(places):
        measured = measure_columns(content, other, starts[places], forms, form_of[places])
        metrics.append(_kept(measured, places, _used(measured, limits, limit_of[places]), used))
    places = np.flatnonzero(without & asked)
    if len(places):
        estimated = _estimates(sides, golden, candidate).those(places)
        shares = _used_of(estimated, limits, limit_of[places])
        metrics.append(_kept(estimated, places, shares, used))
    rows = RowsOfStep(golden, candidate, limits, limit_of, identical, metrics, used)
    return JudgedStep(rows, _alone(sides, rows))


def _kept(
    found: MetricColumns, places: NDArray[np.intp], shares: Float64, used: Float64
) -> tuple[NDArray[np.bool_], MetricColumns]:
    """What was found of plain rows, and which these are. ``used``: takes their shares of limits."""
    kept = np.flatnonzero(shares <= NEAR)  # not NaN, which stands for what is judged alone
    used[places[kept]] = shares[kept]
    mask = np.zeros(len(used), np.bool_)
    mask[places[kept]] = True
    return mask, found.those(kept)


def _may_be_plain(golden: StepColumns, candidate: StepColumns) -> NDArray[np.bool_]:
    """Which pairs are of two floating tensors of one shape, without NaN and Inf."""
    ours, theirs = golden.outline, candidate.outline
    plain = np.array(list(map(_alike, ours.records, theirs.records)), np.bool_)
    plain[[*golden.odd, *candidate.odd]] = False
    for each in (golden, candidate):
        if each.nonfinite is not None:
            plain &= ~each.nonfinite.any(axis=1)
    return plain


def _estimates(sides: Sides, golden: StepColumns, candidate: StepColumns) -> EstimatedMetrics:
    """``estimate_columns``; none where a sketch is damaged, which is named pair by pair."""
    try:
        return estimate_columns((sides.golden, sides.candidate), golden, candidate)
    except BundleError:
        return EstimatedMetrics(1, np.full((len(golden), 7), np.nan))


def _used_of(
    estimates: EstimatedMetrics, limits: list[Tolerance], limit_of: NDArray[np.int32]
) -> Float64:
    """The share of its limits that each estimated pair uses; NaN for those judged alone."""
    used = np.full(len(limit_of), np.nan)
    wider = room(Metrics(deviation=deviation(estimates.size)))
    for number in np.unique(limit_of).tolist():
        each = limits[number]
        if (each.atol, each.rtol, each.cosine) == (None, None, None) and each.rel_l2:
            own = limit_of == number
            used[own] = estimates.rel_l2[own] / (each.rel_l2 * wider)
    return used


def _alone(sides: Sides, rows: RowsOfStep) -> dict[int, PairOutcome | BundleError]:
    """The outcomes of all pairs but plain ones."""
    places = np.flatnonzero(~rows.plain).tolist()
    tasks = [
        Task(Pair(rows.golden[place], rows.candidate[place]), rows.limits[rows.limit_of[place]])
        for place in places
    ]
    return dict(zip(places, judge_tasks(sides, tasks), strict=True))


def _used(metrics: SmallMetrics, limits: list[Tolerance], limit_of: NDArray[np.int32]) -> Float64:
    """The share of its limits that each pair uses, as ``judge_pair`` says; NaN if it fails or has
    more to say."""
    column = metrics.column
    used = np.zeros(len(limit_of))
    for number in np.unique(limit_of).tolist():
        each = limits[number]
        own = limit_of == number
        shares = []
        if each.atol is not None or each.rtol is not None:
            share = column("tolerance_used")[own]
            shares.append(np.where(column("over_tolerance")[own] == 0, np.minimum(share, 1.0), 2.0))
        if each.rel_l2 is not None:
            shares.append(_share(column("rel_l2")[own], each.rel_l2))
        if each.cosine is not None:
            shares.append(_share(column("one_minus_cosine")[own], 1.0 - each.cosine))
        used[own] = np.max(shares, axis=0) if shares else np.nan
    counts = ("golden_nan", "candidate_nan", "golden_inf", "candidate_inf", "nonfinite_mismatch")
    for name in (*counts, "saturated"):
        used[column(name) != 0] = np.nan
    used[~metrics.known] = np.nan
    return used


def _share(measured: Float64, most: float) -> Float64:
    if most:
        return measured / most
    return np.where(measured > 0, np.inf, 0.0)


def _same_types(golden: Outline, candidate: Outline) -> NDArray[np.bool_] | bool:
    if golden is candidate:
        return True
    pairs = zip(golden.records, candidate.records, strict=True)
    return np.array([ours.dtype == theirs.dtype for ours, theirs in pairs], np.bool_)


def _forms(
    golden: Outline, candidate: Outline, limits: list[Tolerance], limit_of: NDArray[np.int32]
) -> tuple[list[kernel.PairForm], NDArray[np.intp]]:
    """What measuring must know of small pairs, and the number of each pair's.

    It is -1 for large pairs, and for those whose limit is -1."""
    numbers: dict[Any, int] = {}
    forms: list[kernel.PairForm] = []
    of = []
    for ours, theirs, limit in zip(
        golden.records, candidate.records, limit_of.tolist(), strict=True
    ):
        key = ours.shape, ours.dtype, theirs.dtype, limit
        number = numbers.get(key)
        if number is None:
            own = limits[limit]
            form = small_form(*key[1:3], ours.shape, own.atol, own.rtol) if limit >= 0 else None
            number = numbers[key] = -1 if form is None else len(forms)
            forms += [] if form is None else [form]
        of.append(number)
    return forms, np.array(of, np.intp)


def _alike(golden: Record, candidate: Record) -> bool:
    """Whether two records are of modules' tensors of one shape and one kind, with digits."""
    return (
        golden.role in _PLAIN
        and golden.dtype in DTYPES
        and candidate.dtype in DTYPES
        and golden.shape == candidate.shape
        and {golden.layout, candidate.layout} == {Layout.STRIDED}
        and DTYPES[golden.dtype].kind is DTYPES[candidate.dtype].kind
        and DTYPES[golden.dtype].digits > 0
    )
