"""The worst error of each layer in one run, of a comparison or of its JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from accucompare.compare.rows import Status


class SeenRow(NamedTuple):
    """What a trend needs of a row."""

    layer: str
    value: str  # the role and path of its record: ``output.0``
    status: Status
    over_limit: float | None
    rel_l2: float | None
    excess: float | None
    shape: tuple[int, ...] | None  # of golden's record; ``None`` if not both sides have one
    called: bool  # whether either side has a record
    output: bool  # whether it is a module's output


@dataclass(frozen=True)
class LayerError:
    """A layer in one run."""

    # the largest error as a multiple of its limit; infinite if a row fails without a number;
    # ``None`` if nothing was compared
    over_limit: float | None
    value: str  # the role and path of the row with that error
    # rel_l2, excess: the largest ones of any row; ``None`` if there is none
    rel_l2: float | None
    excess: float | None
    # rows, failing: how many rows were compared, and fail
    rows: int
    failing: int
    # golden's, of the first output that both sides have, or else of their first record; ``None`` if
    # they have none in common
    shape: tuple[int, ...] | None
    called: bool  # whether either side has a record
    # the number of its first failing row, in execution order; ``None`` if none fails
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
