"""What a report shows of a comparison of any size, found in one pass over its rows: which of them, and what all of them come to.

Up to ``MOST_ROWS`` rows, a workbook and a page hold every row. Of more they hold those that fail, those near their limit, and those that
something in the report leads to; summaries by layer, rank and step count all of them.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, overload

import numpy as np

from accucompare.bundle.format import Record, Role
from accucompare.compare.measuring import Metrics
from accucompare.compare.result import Result
from accucompare.compare.rows import NEAR, STATUS_OF, UNMATCHED, Reason, Row, Status
from accucompare.numbers import Array
from accucompare.report.table.columns import layer
from accucompare.report.table.sheets import Table, thinned
from accucompare.report.table.tallies import NONE, Counts, Extremes, Largest, Listed, Numbering, Worst, first_of, second_of

#: The most rows of a comparison that a workbook, or a page, holds.
MOST_ROWS = 100_000
#: Rows by the largest relative L2 error.
_FURTHEST = 10
_BLOCK = 512  # rows that are looked at together; more would not stay in the processor's cache

_CODES = {id(reason): code for code, reason in enumerate(Reason)}  # an Enum's own hash is slow


def _mask(*reasons: Reason) -> Array:
    """Whether a reason, by its code, is one of these."""
    return np.array([reason in reasons for reason in Reason])


_FAILS, _NOT_COMPARED = (
    _mask(*(reason for reason, of_it in STATUS_OF.items() if of_it is status)) for status in (Status.FAIL, Status.NOT_COMPARED)
)
_ONE_SIDE, _GLUE, _TOO_PRECISE = _mask(*UNMATCHED, Reason.NOT_CALLED), _mask(Reason.GLUE), _mask(Reason.OVER_PRECISE)


class Chosen(Sequence[Row]):
    """Some rows of a comparison, taken from it when they are asked for; ``places`` are theirs in it, from 0."""

    def __init__(self, rows: Sequence[Row], places: Array) -> None:
        self._rows, self._places = rows, places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        found = self._places[index]
        return Chosen(self._rows, found) if isinstance(index, slice) else self._rows[int(found)]

    def __iter__(self) -> Iterator[Row]:
        return (self._rows[place] for place in self._places.tolist())


@dataclass(frozen=True)
class Groups:
    """All rows, by what they have in common: their layer, rank or step.

    Attributes:
        names: of the groups: of layers, or the numbers of ranks and steps.
        rows, failing, not_compared: how many rows each has.
        worst: of each group, in the same order.
        layers_failing: in how many layers of each group a row fails.
    """

    names: list[Any]
    rows: Array
    failing: Array
    not_compared: Array
    worst: Extremes
    layers_failing: Array


@dataclass(frozen=True)
class Points:
    """The outputs that were measured, in execution order, for the chart; in a fed capture also the inputs that glue made wrong.

    Attributes:
        places: of their rows.
        errors: relative L2; NaN where nothing is finite.
        fails: whether the row does.
        shown: the numbers of those that are drawn: of neighbours the worst, if there are too many.
    """

    places: Array
    errors: Array
    fails: Array
    shown: list[int]


@dataclass(frozen=True)
class Overview:
    """What a report shows.

    Attributes:
        total: how many rows there are.
        places: of the rows that are held, in the order in which a workbook shows them; ``None`` if all are, in their own.
        failing, near: how many rows fail, and are near their limit (or are closer to golden than they should be).
        failing_held, near_held: how many of these are held.
        left_out: how many rows of each reason are not held.
        layers, ranks, steps: all rows, in groups.
        pairs_by_rank, pairs_by_step: the worst of each layer on each rank, and in each step; the second number of each pair is that of
            ``ranks.names`` or ``steps.names``.
        points: for the chart.
        furthest: the places of the rows that fail, and then of the others, with the largest relative L2 errors.
        one_sided: the places of rows with one side only, or no side; as many as are held.
        one_sided_count: how many of those there are.
        first, until: the places of the first divergence, and of the row until which all is identical; ``None`` if there is none.
        culprits: the places of the culprits' rows, in the culprits' order.
    """

    total: int
    places: Array | None
    failing: int
    near: int
    failing_held: int
    near_held: int
    left_out: Counter[Reason]
    layers: Groups
    ranks: Groups
    steps: Groups
    pairs_by_rank: Extremes
    pairs_by_step: Extremes
    points: Points
    furthest: list[int]
    one_sided: Array
    one_sided_count: int
    first: int | None
    until: int | None
    culprits: list[int | None]

    @property
    def summarised(self) -> bool:
        """Whether there are several ranks or steps, or more rows than are held, so that summaries tell more than rows."""
        return self.places is not None or len(self.ranks.names) > 1 or len(self.steps.names) > 1

    def link(self, layers: Table, place: int | None) -> str:
        """What leads to a row in the table of the rows that are held; ``""`` if it is not there."""
        position = None if place is None else self.position(place)
        return "" if position is None else layers.place(position, "layer")

    @cached_property
    def _positions(self) -> dict[int, int]:
        return {} if self.places is None else {place: position for position, place in enumerate(self.places.tolist())}

    def position(self, place: int) -> int | None:
        """Where the row of this place stands among those that are held; ``None`` if it is not."""
        return place if self.places is None else self._positions.get(place)


def what_is_held(found: Overview, where: str, leads: str) -> str:
    """Which rows a report of very many holds and leaves out, in words; ``leads``: what the others are held for."""
    assert found.places is not None
    kinds = ((found.failing_held, found.failing, "that fail"), (found.near_held, found.near, "near their limit or over-precise"))
    parts = [f"{f'all {whole:,}' if held == whole else f'{held:,} of {whole:,}'} {what}" for held, whole, what in kinds if whole]
    if others := len(found.places) - found.failing_held - found.near_held:
        parts.append(f"{others:,} {'more ' if parts else ''}that {leads}")
    left_out = ", ".join(f"{found.left_out[reason]:,} {reason.value}" for reason in Reason if found.left_out[reason])
    return (
        f"{where} holds {len(found.places):,} of {found.total:,} rows: {', '.join(parts)}. "
        f"Left out: {left_out}. --parquet PATH and --json PATH.jsonl write every row."
    )


_last: tuple[weakref.ref[Result], Overview] | None = None


def overview_of(comparison: Result) -> Overview:
    """What a report shows of a comparison. That of the last one is kept, since several reports are written of it."""
    global _last
    if _last is None or _last[0]() is not comparison:
        _last = weakref.ref(comparison), _looked_over(comparison)
    return _last[1]


def blocks(rows: Iterable[Row], size: int = _BLOCK) -> Iterator[list[Row]]:
    """The rows, so many at a time."""
    each = iter(rows)
    while block := list(islice(each, size)):
        yield block


def _looked_over(comparison: Result) -> Overview:
    led_to = [comparison.first_divergence, comparison.identical_until, *(culprit.row for culprit in comparison.culprits)]
    found = _Pass(comparison.fed, Finder(led_to))
    for rows in blocks(comparison.rows):
        found.add(rows)
    return found.overview()


class Finder:
    """Finds the places of a few rows, which may be made anew whenever they are asked for: by what they are about.

    Attributes:
        places: of the rows that were given, from 0; ``None`` of those that were not found (yet), and of ``None``.
    """

    def __init__(self, wanted: Sequence[Row | None]) -> None:
        self.places: list[int | None] = [None] * len(wanted)
        self._itself: set[int] = set()  # of which numbers of these the very object was found
        self._by_module: dict[str, list[tuple[int, Row]]] = {}
        for number, row in enumerate(wanted):
            if row is not None:
                self._by_module.setdefault(row.module, []).append((number, row))

    def look(self, rows: Sequence[Row], first: int) -> None:
        """Look at rows, the first of which has this place."""
        if not self._by_module:
            return
        for place, row in enumerate(rows, first):
            for number, wanted in self._by_module.get(row.module, ()):
                if row is wanted and number not in self._itself:
                    self._itself.add(number)
                    self.places[number] = place
                elif self.places[number] is None and _about(row) == _about(wanted):
                    self.places[number] = place


def _about(row: Row) -> Any:
    return row.golden and row.golden.key, row.candidate and row.candidate.key


def _fails_first(errors: Array, fails: Array) -> Array:
    """Numbers in whose order rows that fail come before the others, and both by their errors."""
    finite = np.minimum(errors, 1e300)
    return fails + finite / (1.0 + finite)


class _Pass:
    """One pass over all rows, block by block."""

    def __init__(self, fed: bool, finder: Finder) -> None:
        self.fed, self.finder, self.total = fed, finder, 0
        self.by_code = np.zeros(len(Reason), np.int64)
        self.names, self.ranks, self.steps = Numbering[str](), Numbering[int](), Numbering[int]()
        self.counts = [Counts(3) for _ in range(3)]
        self.worst = Worst(), Worst()
        self.failing, self.one_sided = Listed(), Listed()
        self.near, self.furthest = Largest(MOST_ROWS), Largest(_FURTHEST)
        self.points: list[tuple[Array, ...]] = []
        self.codes: list[Array] = []

    def add(self, rows: list[Row]) -> None:
        places = np.arange(self.total, self.total + len(rows))
        self.finder.look(rows, self.total)
        self.total += len(rows)
        verdicts, metrics = [row.verdict for row in rows], [row.metrics for row in rows]
        codes = np.array([_CODES[id(verdict.reason)] for verdict in verdicts], np.uint8)
        fails, not_compared = _FAILS[codes], _NOT_COMPARED[codes]
        self.codes.append(codes)
        self.by_code += np.bincount(codes, minlength=len(Reason))
        self.failing.add(places[fails])
        self.one_sided.add(places[_ONE_SIDE[codes]])
        used = np.array([verdict.used for verdict in verdicts], np.float64)
        near = ~(fails | not_compared) & ((used > NEAR) | _TOO_PRECISE[codes])
        self.near.add(places[near], np.nan_to_num(used[near], nan=0.0))
        measured, nothing_finite = _measured(metrics)
        errors = np.where(np.isnan(measured), np.inf, measured)
        off = errors > 0
        self.furthest.add(places[off], _fails_first(errors[off], fails[off]))
        excess = np.array([verdict.excess for verdict in verdicts], np.float64)
        extremes = (
            _sizes(used, fails, not_compared),
            places,
            np.where(nothing_finite, NONE, errors),
            np.where(np.isnan(excess), NONE, excess),
        )
        records = [row.golden if row.golden is not None else row.candidate for row in rows]
        self._groups([layer(row) for row in rows], records, (fails, not_compared), extremes)
        self._points(rows, records, places, codes, np.where(nothing_finite, np.nan, measured))

    def _groups(
        self, names: list[str], records: list[Record | None], masks: tuple[Array, Array], extremes: tuple[Array, Array, Array, Array]
    ) -> None:
        layers = self.names.of(names)
        self.counts[0].add(layers, (None, *masks))
        known = [record for record in records if record is not None]
        if len(known) < len(records):  # a module that was never called belongs to no rank
            there = np.array([record is not None for record in records])
            fails, not_compared = (mask[there] for mask in masks)
            size, places, errors, excess = (each[there] for each in extremes)
            layers, masks, extremes = layers[there], (fails, not_compared), (size, places, errors, excess)
        for numbers, numbering, counts, worst in (
            ([record.rank for record in known], self.ranks, self.counts[1], self.worst[0]),
            ([record.step for record in known], self.steps, self.counts[2], self.worst[1]),
        ):
            groups = numbering.of(numbers)
            counts.add(groups, (None, *masks))
            worst.add(layers, groups, *extremes)

    def _points(self, rows: list[Row], records: list[Record | None], places: Array, codes: Array, errors: Array) -> None:
        """The outputs that were measured; in a fed capture, only the inputs show errors of glue."""
        outputs = np.array([record is not None and record.role is Role.OUTPUT for record in records])
        drawn = np.flatnonzero((outputs | (self.fed & _GLUE[codes])) & (errors != NONE))
        self.points.append((places[drawn], errors[drawn], _FAILS[codes[drawn]]))

    def overview(self) -> Overview:
        points = self._drawn()
        (ranks, by_rank), (steps, by_step) = (
            _of(numbering.keys, counts, worst.found())
            for numbering, counts, worst in zip((self.ranks, self.steps), self.counts[1:], self.worst, strict=True)
        )
        layers = self._of_layers(by_rank)
        furthest = self.furthest.found().tolist()
        found = [place for place in self.finder.places if place is not None]
        places = None if self.total <= MOST_ROWS else self._chosen(np.r_[found, furthest, points.places[points.shown]], layers.worst)
        codes = np.concatenate([np.zeros(0, np.uint8), *self.codes])
        held = self.by_code if places is None else np.bincount(codes[places], minlength=len(Reason))
        near = self.near.count if places is None else int(np.isin(places, self.near.found()).sum())
        left_out = Counter({reason: int(count) for reason, count in zip(Reason, self.by_code - held, strict=True) if count})
        first, until, *culprits = self.finder.places
        return Overview(
            self.total, places, self.failing.count, self.near.count, int(held[_FAILS].sum()), near, left_out, layers, ranks, steps,
            by_rank, by_step, points, furthest, self.one_sided.found()[:MOST_ROWS], self.one_sided.count, first, until, culprits,
        )  # fmt: skip

    def _drawn(self) -> Points:
        empty = tuple(np.zeros(0, kind) for kind in (np.int64, np.float64, np.bool_))
        places, errors, fails = (np.concatenate(each) for each in zip(empty, *self.points, strict=True))
        heights = np.where(np.isnan(errors), NONE, errors)

        def worst(group: Sequence[int]) -> int:
            """Of neighbours: the largest error of those that fail, or else the largest error."""
            part = slice(group[0], group[-1] + 1)
            own = np.where(fails[part], heights[part], -2.0) if fails[part].any() else heights[part]
            return group[int(np.argmax(own))]

        return Points(places, errors, fails, thinned(range(len(heights)), worst))

    def _of_layers(self, by_rank: Extremes) -> Groups:
        """By layer; those of modules that were never called have counts only."""
        names = self.names.keys
        known = by_rank.by(first_of(by_rank.groups))
        count = len(names)
        whole = Extremes(
            np.arange(count), np.full(count, NONE), np.full(count, -1), np.full(count, NONE), np.full(count, NONE)
        )  # fmt: skip
        for ours, theirs in zip(whole[1:], known[1:], strict=True):
            ours[known.groups] = theirs
        rows, failing, not_compared = self.counts[0].table
        return Groups(names, rows, failing, not_compared, whole, (failing > 0).astype(np.int64))

    def _chosen(self, links: Array, worst: Extremes) -> Array:
        """The places of the rows that are held: those that fail, those near their limit, and those that something leads to."""
        failing, near = self.failing.found(), self.near.found()
        of_layers = worst.places[np.argsort(-worst.used, kind="stable")]
        led_to = np.r_[links, of_layers[of_layers >= 0]].astype(np.int64)
        led_to = led_to[np.sort(np.unique(led_to, return_index=True)[1])][: MOST_ROWS // 2]
        fails = np.isin(led_to, failing)
        must, others = led_to[fails], led_to[~fails]
        if len(failing) > (room := MOST_ROWS - len(others)):
            failing = np.union1d(np.setdiff1d(failing, must)[: room - len(must)], must)
        near = near[: MOST_ROWS - len(others) - len(failing)]
        places: Array = np.r_[failing, near, np.setdiff1d(others, near)]
        return places


def _of(names: list[int], counts: Counts, pairs: Extremes) -> tuple[Groups, Extremes]:
    """By rank or by step, in the order of their numbers; and the pairs, whose second number is the place in that order."""
    order = np.argsort(np.array(names, np.int64))
    inverse = np.argsort(order)
    pairs = pairs._replace(groups=first_of(pairs.groups) << 32 | inverse[second_of(pairs.groups)])
    pairs = pairs.by(pairs.groups)
    rows, failing, not_compared = counts.table[:, order]
    over = np.bincount(second_of(pairs.groups)[pairs.used > 1], minlength=len(names))
    return Groups([names[at] for at in order], rows, failing, not_compared, pairs.by(second_of(pairs.groups)), over), pairs


def _measured(metrics: Sequence[Metrics | None]) -> tuple[Array, Array]:
    """The relative L2 errors, ``NONE`` where nothing was measured; and where nothing was finite."""
    errors = np.array([NONE if each is None else each.rel_l2 for each in metrics], np.float64)
    nothing_finite = np.array([each is not None and not each.compared and each.nothing_finite for each in metrics])
    return errors, nothing_finite


def _sizes(used: Array, fails: Array, not_compared: Array) -> Array:
    """The errors as multiples of their limits: over 1 of what fails, infinite if that has no number; ``NONE`` of what was not compared."""
    passing = np.where(used > 0, np.minimum(used, 1.0), 0.0)
    return np.where(fails, np.where(used > 1, used, np.inf), np.where(not_compared, NONE, passing))
