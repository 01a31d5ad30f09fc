"""Rows as columns: a ``Row`` is made when somebody looks at it, and not kept.

Nearly all rows of a step are *plain*: two floating tensors of modules, identical or clearly within
their limits, with nothing to say about them. Of those, only the numbers are kept. All others are
kept as they are."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, repeat
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from accucompare.bundle.format import Record, Role
from accucompare.bundle.reading import StepColumns
from accucompare.compare.judging.estimates import EstimatedMetrics
from accucompare.compare.judging.judge import judge_pair
from accucompare.compare.judging.sides import metrics_of_identical
from accucompare.compare.limits import Tolerance
from accucompare.compare.measuring import Metrics
from accucompare.compare.rows import Reason, Row, Status
from accucompare.numbers import Float64


class MetricColumns(Protocol):
    """The metrics of many pairs, as columns."""

    @property
    def rel_l2(self) -> Float64: ...
    def each(self, some: slice) -> Iterator[Metrics | None]: ...
    def those(self, places: NDArray[Any]) -> MetricColumns: ...


@dataclass(eq=False)
class RowsOfStep:
    """The rows of a step that both sides ran alike."""

    # golden, candidate: what they recorded, pair by pair
    golden: StepColumns
    candidate: StepColumns
    # limits, limit_of: the tolerances, and the number of each pair's
    limits: Sequence[Tolerance]
    limit_of: NDArray[np.int32]
    identical: NDArray[np.bool_]  # the plain rows of the same bits
    # of the other plain rows: which they are, and what was measured or estimated
    metrics: Sequence[tuple[NDArray[np.bool_], MetricColumns]]
    over_limit: Float64  # the error of each plain row as a multiple of its limit
    odd: dict[int, Row] = field(default_factory=dict)  # all other rows, by place

    def __len__(self) -> int:
        return len(self.golden)

    def __getitem__(self, place: int) -> Row:
        return self.odd.get(place) or next(self.between(place, place + 1))

    def __iter__(self) -> Iterator[Row]:
        return self.between(0, len(self))

    def between(self, start: int, stop: int) -> Iterator[Row]:
        """Some rows, one after the other."""
        some = slice(start, stop)
        sources: list[Iterator[Metrics | None]] = [repeat(None)]
        kinds = np.zeros(len(self), np.uint8)[some]
        for kind, (mask, metrics) in enumerate(self.metrics, 1):
            before, after = (int(np.count_nonzero(mask[:end])) for end in (start, stop))
            sources.append(metrics.each(slice(before, after)))
            kinds[mask[some]] = kind
        each = zip(
            self.golden.between(start, stop),
            self.candidate.between(start, stop),
            self.limit_of[some].tolist(),
            kinds.tolist(),
            strict=True,
        )
        for place, (golden, candidate, limit, kind) in enumerate(each, start):
            measured = next(sources[kind])
            odd = self.odd.get(place)
            yield odd or _row(golden, candidate, self.limits[limit], measured)

    def place_of(self) -> tuple[int, int]:
        return self.golden.rank, self.golden.step

    @property
    def plain(self) -> NDArray[np.bool_]:
        plain = self.identical.copy()
        for mask, _ in self.metrics:
            plain |= mask
        return plain

    @property
    def by_sketch(self) -> int:
        """How many plain rows are estimated."""
        estimated = (mask for mask, each in self.metrics if isinstance(each, EstimatedMetrics))
        return sum(int(np.count_nonzero(mask)) for mask in estimated)

    def has_plain(self, roles: Collection[Role]) -> bool:
        """Whether a plain row has one of these roles."""
        outline = self.golden.outline
        return not outline.roles.isdisjoint(roles) and any(
            plain and each.role in roles
            for plain, each in zip(self.plain.tolist(), outline.records, strict=True)
        )

    def places_of(self, wanted: Callable[[Record], bool]) -> list[int]:
        """The places of such records; ``wanted`` sees no rank, step, digest and statistics."""
        records = self.golden.outline.records
        return [place for place, each in enumerate(records) if wanted(each)]

    def told_by_bits(self) -> list[int]:
        """The places of the first plain rows that show where other bits begin, if any does: one
        with other bits, and an output with the same."""
        same = np.array([each.role is Role.OUTPUT for each in self.golden.outline.records])
        found = np.flatnonzero(self.plain & ~self.identical), np.flatnonzero(self.identical & same)
        return [int(place) for places in found for place in places[:1]]

    def furthest(self, count: int) -> list[int]:
        """The places of the plain rows that use most of their limits, or else are furthest off."""
        errors = np.zeros(len(self))
        for mask, metrics in self.metrics:
            errors[mask] = metrics.rel_l2
        places = np.flatnonzero(self.plain)
        order = np.lexsort((places, -errors[places], -self.over_limit[places]))
        found: list[int] = places[order[:count]].tolist()
        return found

    def reasons(self) -> Iterator[tuple[Reason, int]]:
        """Reasons, and of how many rows, in the order in which they come first."""
        plain = ((Reason.IDENTICAL, self.identical), (Reason.OK, self.plain & ~self.identical))
        found = [
            (int(mask.argmax()), reason, int(np.count_nonzero(mask)))
            for reason, mask in plain
            if mask.any()
        ]
        found += [(place, row.reason, 1) for place, row in self.odd.items()]
        return ((reason, count) for _, reason, count in sorted(found, key=lambda each: each[0]))


def _row(golden: Record, candidate: Record, limits: Tolerance, metrics: Metrics | None) -> Row:
    """A plain row; ``metrics``: ``None`` for the same bits."""
    if metrics is None:
        assert golden.statistics is not None
        metrics = metrics_of_identical(golden, golden.statistics, limits)
    verdict = judge_pair(golden, candidate, metrics, limits)
    return Row(golden, candidate, verdict, metrics, "", golden.name)


class DiffRows(Sequence[Row]):
    """The rows of a diff, in golden's execution order: those of steps as columns, and others."""

    def __init__(self, parts: Iterable[RowsOfStep | list[Row]]) -> None:
        self.parts = [part for part in parts if len(part)]
        self._ends = list(accumulate(map(len, self.parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> list[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | list[Row]:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            return self._between(start, stop) if step == 1 else list(self)[place]
        place = range(len(self))[place]
        number = bisect_right(self._ends, place)
        return self.parts[number][place - (self._ends[number - 1] if number else 0)]

    def _between(self, start: int, stop: int) -> list[Row]:
        found: list[Row] = []
        for end, part in zip(self._ends, self.parts, strict=True):
            first, last = (max(place - end + len(part), 0) for place in (start, stop))
            last = min(last, len(part))
            if first < last:
                own = part[first:last] if isinstance(part, list) else part.between(first, last)
                found.extend(own)
        return found

    def __iter__(self) -> Iterator[Row]:
        for part in self.parts:
            yield from part

    def __repr__(self) -> str:
        return repr(list(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def whole_steps(rows: Iterable[Row]) -> list[RowsOfStep]:
    """The steps whose plain rows are columns."""
    parts = rows.parts if isinstance(rows, DiffRows) else ()
    return [part for part in parts if isinstance(part, RowsOfStep)]


def with_changed(rows: Sequence[Row], change: Callable[[Row], Row]) -> Sequence[Row]:
    """The rows, with all but plain ones changed."""
    if not isinstance(rows, DiffRows):
        return [change(row) for row in rows]
    parts: list[RowsOfStep | list[Row]] = []
    for part in rows.parts:
        if isinstance(part, RowsOfStep):
            odd = {place: change(row) for place, row in part.odd.items()}
            parts.append(replace(part, odd=odd))
        else:
            parts.append([change(row) for row in part])
    return DiffRows(parts)


def of_failing_steps(rows: Iterable[Row]) -> list[Row]:
    """The rows, in order, without those of steps as columns in which none fails."""
    parts = rows.parts if isinstance(rows, DiffRows) else (rows,)
    return [
        row
        for part in parts
        if not isinstance(part, RowsOfStep)
        or any(each.status is Status.FAIL for each in part.odd.values())
        for row in part
    ]


def plain_count(rows: Iterable[Row], identical: bool = False) -> int:
    """How many rows are plain. ``identical``: only those with the same bits on both sides."""
    return sum(
        int(np.count_nonzero(part.identical if identical else part.plain))
        for part in whole_steps(rows)
    )


def reasons_of(rows: Iterable[Row]) -> Counter[Reason]:
    """How many rows have each reason."""
    found = Counter[Reason]()
    for part in rows.parts if isinstance(rows, DiffRows) else (rows,):
        if isinstance(part, RowsOfStep):
            for reason, count in part.reasons():
                found[reason] += count
        else:
            found.update(row.reason for row in part)
    return found


def but_plain(
    rows: Iterable[Row], also: Callable[[RowsOfStep], Iterable[int]] = lambda part: ()
) -> Iterator[Row]:
    """All rows but plain ones, in order. ``also``: the places of plain ones that are given too."""
    for part in rows.parts if isinstance(rows, DiffRows) else (rows,):
        if isinstance(part, RowsOfStep):
            yield from (part[place] for place in sorted({*part.odd, *also(part)}))
        else:
            yield from part
