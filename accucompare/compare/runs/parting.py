"""Where two runs of training part: which rung of a step, and what shows it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from accucompare.bundle.format import GRADIENT_ROLES, Record, Role
from accucompare.compare.judging import but_plain
from accucompare.compare.preflight_facts import PreflightFinding
from accucompare.compare.rows import UNMATCHED, Reason, Row, Status
from accucompare.compare.runs.step_pairs import Manifests, OtherSetting, StepPair
from accucompare.compare.runs.wander import Apart, Quantity, StepOfRank


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


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two runs part."""

    rung: Rung
    rank: int
    step: int
    quantity: Quantity | None = None  # the number that shows it; ``None`` if it is no number
    apart: Apart | None = None
    # golden, candidate: both values, or digests of data and weights; ``None`` for a clipped
    # gradient norm if a side clips none
    golden: float | str | None = None
    candidate: float | str | None = None
    setting: OtherSetting | None = None  # the other setting, if that is it
    row: Row | None = None  # the first row that shows it, if rows do
    # both optimizers' classes, if only what they make in the next step shows it
    optimizers: tuple[str, str] | None = None
    # the finding on weights that differ before the first step, if that is it
    weights: PreflightFinding | None = None

    @property
    def order(self) -> tuple[int, int, int]:
        # rows and numbers of a model on several ranks are those of rank 0
        rank = 0 if self.setting is not None and self.setting.ranks else self.rank
        return self.step, _ORDER.index(self.rung), rank

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
class Digests:
    """Whether digests can tell that batches, and weights, are the same on both sides."""

    batches: bool
    weights: bool


def earliest(partings: Iterable[Parting]) -> Parting | None:
    return min(partings, key=lambda parting: parting.order, default=None)


def other_weights(golden: Manifests, weights: PreflightFinding | None) -> Iterator[Parting]:
    """The parting before the first step if weights differ; the series may begin later."""
    if weights is not None and golden:
        rank = min(golden)
        yield Parting(Rung.WEIGHTS, rank, golden[rank].described_at, weights=weights)


def through_optimizer(parting: Parting | None, pairs: Iterable[StepPair]) -> Parting | None:
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


def given_within(rows: Iterable[Row], by_user: bool) -> frozenset[StepOfRank]:
    """Steps whose model inputs were all compared and are within limits; digests do not count there.

    Default limits count only if values show how far apart the batches are: another model (a GAN's)
    may have computed them."""
    passed: dict[StepOfRank, bool] = {}
    measured: set[StepOfRank] = set()
    for row in but_plain(rows, lambda part: part.places_of(_is_given)):
        if row.record is not None and _is_given(row.record):
            place = row.record.rank, row.record.step
            passed[place] = row.status is Status.PASS and passed.get(place, True)
            if by_user or (row.reason is Reason.OK and row.verdict.over_limit):
                measured.add(place)
    return frozenset(
        place for place, all_of_them in passed.items() if all_of_them and place in measured
    )


def _is_given(record: Record) -> bool:
    return record.role is Role.INPUT and record.parent is None


def partings_of(
    pairs: Sequence[StepPair],
    digests: Digests,
    settings: Iterable[OtherSetting],
    rows: Iterable[Row],
    within: Collection[StepOfRank],
) -> Iterator[Parting]:
    """Every place further apart than rounding explains; no digests for batches ``within``
    limits."""
    data = (
        parting for parting in _by_digests(pairs) if digests.batches and parting.rung is Rung.DATA
    )
    yield from (parting for parting in data if (parting.rank, parting.step) not in within)
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


def other_bits_of(pairs: Sequence[StepPair]) -> Iterator[Parting]:
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
