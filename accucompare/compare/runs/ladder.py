"""Where and when two free runs of training part: data, weights, forward, loss, gradients, update.

The rungs are climbed step by step. The first one further apart than rounding explains
(``compare.runs.wander``) is named; later ones may be off for that alone. Each step's numbers (the
manifest's series) and rows are compared. Other settings (another learning rate, an update left out)
come before any number.

Fed, each step starts from golden's weights and there is nothing to climb: losses and clipped
gradients are rows (``compare.runs.step_rows``)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from accucompare.bundle.format import GRADIENT_ROLES, Manifest, Record, Role, StepSeries
from accucompare.compare.judging import but_plain
from accucompare.compare.limits import DEFAULT_REL_L2, Tolerance, float_dtype
from accucompare.compare.preflight_facts import PreflightFinding
from accucompare.compare.rows import UNMATCHED, Reason, Row, Status
from accucompare.compare.runs.step_pairs import OtherSetting, StepPair, settings_of
from accucompare.compare.runs.wander import (
    Apart,
    Quantity,
    RunLimits,
    StepOfRank,
    Wander,
    envelope,
    used_norm,
    value_of,
    wander,
)
from accucompare.numbers import DTYPES

#: The manifests of a bundle, by rank.
Manifests = Mapping[int, Manifest]


class Rung(str, Enum):
    """What runs may part in, in the order in which a step computes it."""

    DATA = "data"
    WEIGHTS = "weights"
    FORWARD = "forward"
    LOSS = "loss"
    GRADIENTS = "gradients"
    UPDATE = "update"


_RUNG_OF = {Quantity.LOSS: Rung.LOSS, Quantity.NORM: Rung.GRADIENTS, Quantity.CLIPPED: Rung.UPDATE}
_ORDER = tuple(Rung)


class JudgedBy(str, Enum):
    """What says how far runs may be apart."""

    GIVEN = "given limits"
    BASELINE = "baseline"
    REPEAT = "second golden run"
    DEFAULT = "default limits"
    NOTHING = "nothing"  # a fed candidate's steps are golden's


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two runs part.

    Attributes:
        quantity: the number that shows it; ``None`` if it is no number.
        golden, candidate: both values, or digests of data and weights; ``None`` for a clipped
            gradient norm if a side clips none.
        setting: the other setting, if that is it.
        row: the first row that shows it, if rows do.
        optimizers: both optimizers' classes, if only what they make in the next step shows it.
        weights: the finding on weights that differ before the first step, if that is it.
    """

    rung: Rung
    rank: int
    step: int
    quantity: Quantity | None = None
    apart: Apart | None = None
    golden: float | str | None = None
    candidate: float | str | None = None
    setting: OtherSetting | None = None
    row: Row | None = None
    optimizers: tuple[str, str] | None = None
    weights: PreflightFinding | None = None

    @property
    def order(self) -> tuple[int, int, int]:
        return self.step, _ORDER.index(self.rung), self.rank

    @property
    def clips_alone(self) -> bool:
        return self.quantity is Quantity.CLIPPED and (self.golden is None) is not (
            self.candidate is None
        )

    @property
    def clips_otherwise(self) -> bool:
        """Whether equal gradients are clipped differently, which no wandering explains."""
        return self.clips_alone or (
            self.quantity is Quantity.CLIPPED and self.apart is not None and self.apart.clearly_over
        )

    @property
    def of_no_number(self) -> bool:
        """Whether only one loss is NaN or infinite, which no wandering or gradient explains."""
        return self.quantity is Quantity.LOSS and self.apart is not None and not self.apart.finite


@dataclass(frozen=True)
class TrainingResult:
    """The steps of two runs compared.

    Attributes:
        pairs: every step of either side, by rank and step.
        judged_by: what said how far they may be apart.
        dtype: the coarsest floating type of the two sides, for default limits.
        settings: what the two sides were told to do differently, each once.
        parting: where they part by more than rounding; ``None`` if they do not, or nothing judges.
        other_bits: where they first hold other bits.
        loss, norm: drift and scatter; ``None`` without such numbers.
        expected_loss, expected_norm: the same for the run that judges.
        same_batches: whether digests could show that data agree; ``None`` if they cannot.
        same_type: whether both compute in one type; else other bits are normal and say nothing.
    """

    pairs: tuple[StepPair, ...]
    judged_by: JudgedBy
    dtype: str
    settings: tuple[OtherSetting, ...] = ()
    parting: Parting | None = None
    other_bits: Parting | None = None
    loss: Wander | None = None
    norm: Wander | None = None
    expected_loss: Wander | None = None
    expected_norm: Wander | None = None
    same_batches: bool | None = None
    several_ranks: bool = False
    same_type: bool = True

    @property
    def updated(self) -> bool:
        """Whether steps made updates, so that each goes on with what the one before it made."""
        return any(
            side is not None and side.updates
            for pair in self.pairs
            for side in (pair.golden, pair.candidate)
        )

    @property
    def compared(self) -> int:
        """Steps with a number on both sides."""
        return sum(any(True for _ in pair.numbers) for pair in self.pairs)

    @property
    def judged(self) -> int:
        """Steps with a finite, judged number on both sides."""
        if self.judged_by is JudgedBy.NOTHING:
            return 0
        return sum(any(apart.finite for _, apart in pair.numbers) for pair in self.pairs)

    @property
    def alone(self) -> tuple[int, int]:
        """How many steps only golden has, and only the candidate."""
        return sum(pair.candidate is None for pair in self.pairs), sum(
            pair.golden is None for pair in self.pairs
        )

    @property
    def identical(self) -> bool:
        """Whether all recorded numbers, batches and parameters are bit for bit golden's."""
        whole = all(
            pair.golden is not None and pair.candidate is not None and pair.golden.weights
            for pair in self.pairs
        )
        return bool(self.pairs) and whole and self.other_bits is None

    @property
    def not_finite(self) -> StepPair | None:
        """The first step with a number that is NaN or infinite on both sides."""
        return next(
            (pair for pair in self.pairs if any(not (a.finite or a.over) for _, a in pair.numbers)),
            None,
        )

    @property
    def beyond(self) -> tuple[StepPair, Quantity, Apart] | None:
        """The first number far beyond rounding that passes as the judging run is as far off."""
        found = (
            (pair, quantity, apart)
            for pair in self.pairs
            for quantity, apart in pair.numbers
            if apart.beyond
        )
        return next(found, None)

    @property
    def proves_nothing(self) -> bool:
        """Whether steps within their limits prove nothing."""
        if self.judged_by is JudgedBy.NOTHING:
            return False
        return self.beyond is not None or self.alone[0] > 0


def climb(
    golden: Manifests,
    candidate: Manifests,
    *,
    baseline: Manifests,
    repeat: Manifests,
    given: Tolerance,
    rows: Sequence[Row],
    weights: PreflightFinding | None = None,
) -> TrainingResult | None:
    """Compare the steps of two runs; ``None`` if neither recorded numbers of them.

    Args:
        golden, candidate: the manifests, by rank.
        baseline: of the run that shows what rounding does; empty without a baseline that may judge.
        repeat: of golden's second run; empty if it ran once.
        given: what the user gave for all layers.
        rows: in execution order.
        weights: pre-flight's finding on parameters that differ before the first step.
    """
    ours, theirs, expected, again = map(series_of, (golden, candidate, baseline, repeat))
    if not ours and not theirs:
        return None
    ours, theirs = asked_of(candidate, ours), asked_of(golden, theirs)
    dtype = coarsest(*golden.values(), *candidate.values())
    fed = any(manifest.fed for manifest in candidate.values())
    judges = [run for run in (expected, again) if _tells(ours, run)]
    envelopes = {quantity: _widest(ours, judges, quantity, dtype) for quantity in Quantity}
    limits = RunLimits(dtype, given, envelopes)
    pairs = []
    for place in sorted(ours.keys() | theirs.keys()):
        both = ours.get(place), theirs.get(place)
        numbers = [limits.apart(quantity, place, *_values(both, quantity)) for quantity in Quantity]
        pairs.append(StepPair(*place, *both, *numbers))
    settings = settings_of(pairs)
    judged_by = _judged_by(fed, limits, bool(_tells(ours, expected)), bool(judges))
    same_type = float_dtype(golden[0]) == float_dtype(candidate[0])
    digests = _Digests(same_type or _any_same(pairs, "batch"), same_type)
    shown = judges[0] if judges else {}
    compared = (
        _given_within(rows, limits.by_user) if limits.by_user or not given.given else frozenset()
    )
    partings = itertools.chain(
        _other_weights(golden, weights), _partings(pairs, digests, settings, rows, compared)
    )
    return TrainingResult(
        tuple(pairs),
        judged_by,
        dtype,
        tuple(settings),
        parting=None if fed else _through_optimizer(_first(partings), pairs),
        other_bits=_first(_other_bits(pairs)),
        loss=_wander(ours, theirs, Quantity.LOSS),
        norm=_wander(ours, theirs, Quantity.NORM),
        expected_loss=_wander(ours, shown, Quantity.LOSS),
        expected_norm=_wander(ours, shown, Quantity.NORM),
        same_batches=_same_batches(pairs, digests),
        several_ranks=len(golden) > 1 or len(candidate) > 1,
        same_type=same_type,
    )


def _values(
    both: tuple[StepSeries | None, StepSeries | None], quantity: Quantity
) -> tuple[float | None, float | None]:
    """A step's number on both sides; if one clips, the other used its gradients as they were."""
    ours, theirs = both
    if (
        quantity is Quantity.CLIPPED
        and ours is not None
        and theirs is not None
        and ours.updates
        and theirs.updates
    ):
        clips = ours.clipped_norm is not None or theirs.clipped_norm is not None
        return (used_norm(ours), used_norm(theirs)) if clips else (None, None)
    return value_of(ours, quantity), value_of(theirs, quantity)


def _wander(
    golden: Mapping[StepOfRank, StepSeries],
    other: Mapping[StepOfRank, StepSeries],
    quantity: Quantity,
) -> Wander | None:
    return wander(
        (value_of(golden.get(place), quantity), value_of(other.get(place), quantity))
        for place in sorted(golden)
    )


def asked_of(
    other: Manifests, series: dict[StepOfRank, StepSeries]
) -> dict[StepOfRank, StepSeries]:
    """The steps that the other side was asked to record too (``--steps``)."""
    chosen = {rank: manifest.options.chosen_steps for rank, manifest in other.items()}
    return {
        (rank, step): entry
        for (rank, step), entry in series.items()
        if step in (chosen.get(rank) or (step,))
    }


def series_of(manifests: Manifests) -> dict[StepOfRank, StepSeries]:
    return {
        (rank, entry.step): entry
        for rank, manifest in manifests.items()
        for entry in manifest.series
    }


def _tells(golden: Mapping[StepOfRank, StepSeries], run: Mapping[StepOfRank, StepSeries]) -> bool:
    """Whether another run of golden shows how runs wander; with equal bits it does not."""
    return any(
        value_of(golden[place], quantity) != value_of(run[place], quantity)
        for place in golden.keys() & run.keys()
        for quantity in Quantity
    )


def _widest(
    golden: Mapping[StepOfRank, StepSeries],
    runs: Iterable[Mapping[StepOfRank, StepSeries]],
    quantity: Quantity,
    dtype: str,
) -> dict[StepOfRank, float]:
    """The envelope of several runs."""
    limits: dict[StepOfRank, float] = {}
    ours = _numbers(golden, quantity)
    for run in runs:
        for place, limit in envelope(ours, _numbers(run, quantity), dtype).items():
            limits[place] = max(limit, limits.get(place, 0.0))
    return limits


def _numbers(
    series: Mapping[StepOfRank, StepSeries], quantity: Quantity
) -> dict[StepOfRank, float]:
    found = {place: value_of(entry, quantity) for place, entry in series.items()}
    return {place: value for place, value in found.items() if value is not None}


def _judged_by(fed: bool, limits: RunLimits, by_baseline: bool, by_any: bool) -> JudgedBy:
    if fed:
        return JudgedBy.NOTHING
    if limits.by_user:
        return JudgedBy.GIVEN
    if by_baseline:
        return JudgedBy.BASELINE
    return JudgedBy.REPEAT if by_any else JudgedBy.DEFAULT


def coarsest(*manifests: Manifest) -> str:
    """The floating type with the fewest digits that one of the runs has in weights or autocast."""
    found = {float_dtype(manifest) for manifest in manifests}
    autocasts = (manifest.environment.get("autocast") for manifest in manifests)
    found |= {str(each.get("dtype")) for each in autocasts if isinstance(each, dict)}
    known = [name for name in found if name in DEFAULT_REL_L2]
    return min(known, key=lambda name: (DTYPES[name].digits, name), default="float32")


@dataclass(frozen=True)
class _Digests:
    """Whether digests can tell that batches, and weights, are the same on both sides."""

    batches: bool
    weights: bool


def _any_same(pairs: Iterable[StepPair], name: str) -> bool:
    both = (
        (getattr(pair.golden, name, None), getattr(pair.candidate, name, None)) for pair in pairs
    )
    return any(ours is not None and ours == theirs for ours, theirs in both)


def _same_batches(pairs: Iterable[StepPair], digests: _Digests) -> bool | None:
    known = [
        pair.golden.batch == pair.candidate.batch
        for pair in pairs
        if pair.golden is not None
        and pair.candidate is not None
        and pair.golden.batch
        and pair.candidate.batch
    ]
    return all(known) if known and digests.batches else None


def _first(partings: Iterable[Parting]) -> Parting | None:
    return min(partings, key=lambda parting: parting.order, default=None)


def _other_weights(golden: Manifests, weights: PreflightFinding | None) -> Iterator[Parting]:
    """The parting before the first step if weights differ; the series may begin later."""
    if weights is not None and golden:
        rank = min(golden)
        yield Parting(Rung.WEIGHTS, rank, golden[rank].described_at, weights=weights)


def _through_optimizer(parting: Parting | None, pairs: Iterable[StepPair]) -> Parting | None:
    """The update's parting, if a loss or forward parts right after another optimizer's step.

    Another class may be the same optimizer, such as a device's own, so this holds only for the step
    right after."""
    if parting is None or parting.rung not in (Rung.FORWARD, Rung.LOSS):
        return parting
    for pair in pairs:
        if (pair.rank, pair.step) == (parting.rank, parting.step - 1) and (
            classes := pair.optimizers
        ) is not None:
            return Parting(Rung.UPDATE, pair.rank, pair.step, optimizers=classes)
    return parting


def _given_within(rows: Iterable[Row], by_user: bool) -> frozenset[StepOfRank]:
    """Steps whose model inputs were all compared and are within limits; digests do not count there.

    Default limits count only if values show how far apart the batches are: another model (a GAN's)
    may have computed them."""
    passed: dict[StepOfRank, bool] = {}
    measured: set[StepOfRank] = set()
    for row in but_plain(rows, lambda part: part.places_of(_is_given)):
        if row.record is not None and _is_given(row.record):
            place = row.record.rank, row.record.step
            passed[place] = row.status is Status.PASS and passed.get(place, True)
            if by_user or (row.reason is Reason.OK and row.verdict.used):
                measured.add(place)
    return frozenset(
        place for place, all_of_them in passed.items() if all_of_them and place in measured
    )


def _is_given(record: Record) -> bool:
    return record.role is Role.INPUT and record.parent is None


def _partings(
    pairs: Sequence[StepPair],
    digests: _Digests,
    settings: Iterable[OtherSetting],
    rows: Iterable[Row],
    given_within: Collection[StepOfRank],
) -> Iterator[Parting]:
    """Every place further apart than rounding explains; no digests for ``given_within`` batches."""
    data = (
        parting for parting in _by_digests(pairs) if digests.batches and parting.rung is Rung.DATA
    )
    yield from (parting for parting in data if (parting.rank, parting.step) not in given_within)
    beginning = min((pair.step for pair in pairs), default=0)
    if digests.weights and not beginning:  # later weights differ by training
        yield from (
            each for each in _by_digests(pairs) if each.rung is Rung.WEIGHTS and not each.step
        )
    for pair in pairs:
        for quantity, apart in pair.numbers:
            if apart.over:
                values = (
                    (apart.golden, apart.candidate)
                    if quantity is not Quantity.CLIPPED
                    else pair.clipped_to
                )
                yield Parting(_RUNG_OF[quantity], pair.rank, pair.step, quantity, apart, *values)
    yield from (
        Parting(
            Rung.UPDATE,
            each.rank,
            each.step,
            golden=each.golden,
            candidate=each.candidate,
            setting=each,
        )
        for each in settings
        if each.parts
    )
    yield from _by_rows(rows, beginning)


def _by_rows(rows: Iterable[Row], beginning: int) -> Iterator[Parting]:
    """The first failing row of each rung of each step."""
    told: set[tuple[int, int, Rung]] = set()
    for row in but_plain(rows):
        record = row.record
        if (
            row.status is not Status.FAIL
            or (row.reason in UNMATCHED and not row.lost)
            or record is None
        ):
            continue
        rung = _rung_of(row)
        if rung is Rung.WEIGHTS and record.step != beginning:  # an update before made it
            continue
        place = record.rank, record.step, rung
        if place not in told:
            told.add(place)
            yield Parting(rung, record.rank, record.step, row=row)


def _rung_of(row: Row) -> Rung:
    record = row.record
    assert record is not None
    if row.reason is Reason.INPUTS_DIFFER:
        return Rung.DATA
    if record.role is Role.PARAM_BEFORE:
        return Rung.WEIGHTS
    if record.role in (*GRADIENT_ROLES, Role.PARAM_GRAD):
        return Rung.GRADIENTS
    updates = (Role.PARAM_UPDATE, Role.STATE_BEFORE, Role.STATE_AFTER, Role.BUFFER_AFTER)
    return Rung.UPDATE if record.role in updates else Rung.FORWARD


def _by_digests(pairs: Iterable[StepPair]) -> Iterator[Parting]:
    for pair in pairs:
        if pair.golden is None or pair.candidate is None:
            continue
        for rung, ours, theirs in (
            (Rung.DATA, pair.golden.batch, pair.candidate.batch),
            (Rung.WEIGHTS, pair.golden.weights, pair.candidate.weights),
        ):
            if ours is not None and theirs is not None and ours != theirs:
                yield Parting(rung, pair.rank, pair.step, golden=ours, candidate=theirs)


def _other_bits(pairs: Sequence[StepPair]) -> Iterator[Parting]:
    """Every place where the two hold other bits."""
    yield from _by_digests(pairs)
    for pair in pairs:
        for quantity, apart in pair.numbers:
            if apart.relative:
                yield Parting(
                    _RUNG_OF[quantity],
                    pair.rank,
                    pair.step,
                    quantity,
                    apart,
                    apart.golden,
                    apart.candidate,
                )
