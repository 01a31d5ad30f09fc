"""One layer over the runs: since when does it fail, and how far did its error grow?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from accucompare.compare.rows import Status


class SeenRow(NamedTuple):
    """What a trend needs of a row.

    Attributes:
        value: the role and path of its record: ``output.0``.
        shape: of golden's record; ``None`` if not both sides have one.
        called: whether either side has a record.
        output: whether it is a module's output.
    """

    layer: str
    value: str
    status: Status
    over_limit: float | None
    rel_l2: float | None
    excess: float | None
    shape: tuple[int, ...] | None
    called: bool
    output: bool


@dataclass(frozen=True)
class LayerError:
    """A layer in one run.

    Attributes:
        over_limit: the largest error as a multiple of its limit; infinite if a row fails without a
            number; ``None`` if nothing was compared.
        value: the role and path of the row with that error.
        rel_l2, excess: the largest ones of any row; ``None`` if there is none.
        rows, failing: how many rows were compared, and fail.
        shape: golden's, of the first output that both sides have, or else of their first record;
            ``None`` if they have none in common.
        called: whether either side has a record.
        first: the number of its first failing row, in execution order; ``None`` if none fails.
    """

    over_limit: float | None
    value: str
    rel_l2: float | None
    excess: float | None
    rows: int
    failing: int
    shape: tuple[int, ...] | None
    called: bool
    first: int | None

    @property
    def ok(self) -> bool | None:
        """Whether it is within its limits; ``None`` if it was not compared."""
        return None if self.over_limit is None else not self.failing


def errors_by_layer(rows: Iterable[SeenRow]) -> dict[str, LayerError]:
    """The layers in execution order."""
    found: dict[str, _Worst] = {}
    for number, row in enumerate(rows):
        worst = found.get(row.layer)
        if worst is None:
            worst = found[row.layer] = _Worst()
        worst.add(row, number)
    return {name: worst.error() for name, worst in found.items()}


class _Worst:
    """A layer whose rows are added one by one."""

    __slots__ = (
        *("called", "excess", "failing", "first", "output", "over_limit", "rel_l2", "rows"),
        *("shape", "value"),
    )

    def __init__(self) -> None:
        self.over_limit: float | None = None
        self.value = ""
        self.rel_l2: float | None = None
        self.excess: float | None = None
        self.rows = self.failing = 0
        self.first: int | None = None
        self.shape: tuple[int, ...] | None = None
        self.output = self.called = False

    def add(self, row: SeenRow, number: int) -> None:
        self.called = self.called or row.called
        if row.shape is not None and (self.shape is None or (row.output and not self.output)):
            self.shape, self.output = row.shape, row.output
        if row.status is Status.NOT_COMPARED:
            return
        fails = row.status is Status.FAIL
        self.rows += 1
        self.failing += fails
        if fails and self.first is None:
            self.first = number
        size = _size(row.over_limit, fails)
        if self.over_limit is None or size > self.over_limit:
            self.over_limit, self.value = size, row.value
        self.rel_l2 = _larger(self.rel_l2, row.rel_l2)
        self.excess = _larger(self.excess, row.excess)

    def error(self) -> LayerError:
        parts = (self.over_limit, self.value, self.rel_l2, self.excess, self.rows, self.failing)
        return LayerError(*parts, self.shape, self.called, self.first)


def _size(over_limit: float | None, fails: bool) -> float:
    """Over 1 for what fails, infinite if it fails without a number; at most 1 for what passes."""
    if fails:
        return over_limit if over_limit is not None and over_limit > 1 else math.inf
    return min(over_limit, 1.0) if over_limit is not None and over_limit > 0 else 0.0


def _larger(known: float | None, other: float | None) -> float | None:
    """The larger of two errors; an error that is no number counts as infinite."""
    if other is None:
        return known
    other = math.inf if math.isnan(other) else other
    return other if known is None else max(known, other)


class PlaceState(str, Enum):
    """What the newest run is for a layer, after those before it."""

    FELL_OUT = "fell out"  # was ok before, fails since
    ALWAYS = "fails from the first"  # in each run that looked at it
    CAME_BACK = "came back"  # failed, and is ok in the newest
    NOT_IN_NEWEST = "not in the newest"  # compared before, but not now
    OK = "ok"  # in each run that looked at it
    NEVER_COMPARED = "never compared"


@dataclass(frozen=True)
class PlaceTrend:
    """A layer. Runs are counted from 0, the oldest.

    Attributes:
        since: the first run of its last time of failing without a break; ``None`` if it never
            failed. Runs that did not compare it make no break.
        before: the last run before ``since`` in which it was ok; ``None`` if there is none.
        falls: how often it was ok and then failed.
        errors: by run; ``None`` where the run does not have it.
        against: the run that it is held against; ``None`` if none was asked for, or none has it.
    """

    layer: str
    state: PlaceState
    since: int | None
    before: int | None
    falls: int
    errors: tuple[LayerError | None, ...]
    against: int | None = None

    @property
    def newest(self) -> LayerError | None:
        return self.errors[-1]

    @property
    def fails(self) -> bool:
        """Whether it fails in the newest run."""
        return self.state in (PlaceState.FELL_OUT, PlaceState.ALWAYS)

    @property
    def failed_last(self) -> bool:
        """Whether it failed in the last run that compared it."""
        told = [error.ok for error in self.errors if error is not None and error.ok is not None]
        return bool(told) and not told[-1]

    @property
    def first_failing(self) -> int:
        """The number of its first failing row in the run since which it fails; 0 if it never did.
        A module is called before those inside it, but fails after them."""
        error = None if self.since is None else self.errors[self.since]
        return 0 if error is None or error.first is None else error.first

    @property
    def error_before(self) -> float | None:
        """Its relative L2 error in the last run in which it was ok."""
        return self.error_in(self.before)

    @property
    def error_after(self) -> float | None:
        """Its relative L2 error in the run since which it fails."""
        return self.error_in(self.since)

    @property
    def factor(self) -> float | None:
        """The error after it fell out as a multiple of that before; infinite if that was 0."""
        return ratio(self.error_after, self.error_before)

    @property
    def error_against(self) -> float | None:
        return self.error_in(self.against)

    @property
    def factor_against(self) -> float | None:
        """The newest run's error as a multiple of that of the run it is held against."""
        return ratio(self.error_in(len(self.errors) - 1), self.error_against)

    def error_in(self, run: int | None) -> float | None:
        """Its largest relative L2 error in a run; ``None`` if there is none."""
        error = None if run is None else self.errors[run]
        return None if error is None else error.rel_l2


def ratio(after: float | None, before: float | None) -> float | None:
    """One error as a multiple of another; 0/0 and inf/inf are 1."""
    if after is None or before is None:
        return None
    if after == before:
        return 1.0
    return math.inf if before == 0 or math.isinf(after) else after / before


def places_of(layers: Sequence[dict[str, LayerError]]) -> list[PlaceTrend]:
    """The layers of some runs, oldest first: in the newest run's order, then those of others."""
    names = dict.fromkeys(name for run in reversed(layers) for name in run)
    return [_place(name, tuple(run.get(name) for run in layers)) for name in names]


def _place(name: str, errors: tuple[LayerError | None, ...]) -> PlaceTrend:
    since = before = last_ok = None
    falls = 0
    failing = False
    for run, error in enumerate(errors):
        ok = None if error is None else error.ok
        if ok is None:
            continue
        if ok:
            last_ok, failing = run, False
        elif not failing:
            since, before, failing = run, last_ok, True
            falls += last_ok is not None
    return PlaceTrend(name, _state(errors, since, before, failing), since, before, falls, errors)


def _state(
    errors: tuple[LayerError | None, ...], since: int | None, before: int | None, failing: bool
) -> PlaceState:
    if all(error is None or error.ok is None for error in errors):
        return PlaceState.NEVER_COMPARED
    if errors[-1] is None or errors[-1].ok is None:
        return PlaceState.NOT_IN_NEWEST
    if failing:
        return PlaceState.ALWAYS if before is None else PlaceState.FELL_OUT
    return PlaceState.OK if since is None else PlaceState.CAME_BACK
