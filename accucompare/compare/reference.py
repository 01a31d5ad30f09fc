"""A third bundle beside golden and the candidate: whose error is the smaller one?"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from accucompare.bundle.format import Key, Role
from accucompare.compare.rows import Row
from accucompare.places import Place

#: Roles of values that went into a call: another call's output is counted already.
_TAKEN = (Role.INPUT, Role.GRAD_OUTPUT, Role.OP_INPUT, Role.OP_GRAD_OUTPUT)


@dataclass(frozen=True)
class BesideReference:
    """How the candidate's errors compare with the reference's, in rows of what calls made."""

    # nearer, further, alike: in how many rows the candidate is nearer to golden than the reference,
    # further from it, and as near
    nearer: int
    further: int
    alike: int
    # of the candidate's error as a multiple of the reference's; ``None`` without a row in which
    # both differ from golden
    median: float | None
    # the row with the largest such multiple, and that multiple; infinite where the reference has no
    # error
    worst: tuple[Row, float] | None

    @property
    def rows(self) -> int:
        return self.nearer + self.further + self.alike


@dataclass(frozen=True)
class Reference:
    """A third bundle, compared with the same golden. It judges nothing."""

    path: Place
    errors: dict[Key, float]  # its relative L2 error, by golden's record

    def error(self, row: Row) -> float | None:
        """Its relative L2 error in a row; ``None`` if it was not measured."""
        return None if row.golden is None else self.errors.get(row.golden.key)

    def ratio(self, row: Row) -> float | None:
        """The candidate's error as a multiple of its own; 0/0 is 1, x/0 infinite."""
        own, other = _error(row), self.error(row)
        if own is None or other is None:
            return None
        if own == other:
            return 1.0
        return math.inf if not other or math.isinf(own) else own / other


def reference_of(path: Place, rows: Iterable[Row]) -> Reference:
    """What a comparison of the third bundle with golden shows of it."""
    errors = {
        row.golden.key: error
        for row in rows
        if row.golden is not None and (error := _error(row)) is not None
    }
    return Reference(path, errors)


def beside_reference(rows: Iterable[Row], reference: Reference) -> BesideReference:
    nearer = further = alike = 0
    ratios = []
    worst: tuple[Row, float] | None = None
    for row in rows:
        ratio = reference.ratio(row)
        if ratio is None or (row.record is not None and row.record.role in _TAKEN):
            continue
        nearer, further, alike = nearer + (ratio < 1), further + (ratio > 1), alike + (ratio == 1)
        if _error(row) or reference.error(row):
            ratios.append(ratio)
        if worst is None or ratio > worst[1]:
            worst = row, ratio
    median = float(np.median(ratios)) if ratios else None
    return BesideReference(nearer, further, alike, median, worst)


def _error(row: Row) -> float | None:
    """The relative L2 error; infinite where NaN or Inf stand on one side only."""
    metrics = row.metrics
    if metrics is None:
        return 0.0 if row.same_bits else None
    return math.inf if metrics.nonfinite_mismatch else metrics.rel_l2
