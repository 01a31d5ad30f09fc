"""What a report shows of a comparison of any size, found in one pass over its rows.

A workbook and a page hold up to ``MOST_ROWS`` rows. Of more they hold those that fail, those near
their limit, and those that the report links to; summaries by layer, rank and step count all."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple, overload

import numpy as np

from accucompare.bundle.format import Role
from accucompare.compare.constants import NEAR
from accucompare.compare.measuring import Metrics
from accucompare.compare.result import Result
from accucompare.compare.rows import STATUS_OF, UNMATCHED, Reason, Row, Status
from accucompare.numbers import Array
from accucompare.report.table.columns import layer
from accucompare.report.table.extremes import NONE, Extremes, second_of
from accucompare.report.table.sheets import Table, thinned

#: The most rows that a workbook or a page holds.
MOST_ROWS = 100_000
#: Rows by the largest relative L2 error.
_FURTHEST = 10
_BLOCK = 512  # rows at a time; more would not stay in the processor's cache

_NOWHERE = -1  # the rank and step of a module that was never called
_CODES = {id(reason): code for code, reason in enumerate(Reason)}  # an Enum's own hash is slow


def _mask(*reasons: Reason) -> Array:
    """By code of a reason: whether it is one of these."""
    return np.array([reason in reasons for reason in Reason])


_FAILS, _NOT_COMPARED = (
    _mask(*(reason for reason, of_it in STATUS_OF.items() if of_it is status))
    for status in (Status.FAIL, Status.NOT_COMPARED)
)
_ONE_SIDE = _mask(*UNMATCHED, Reason.NOT_CALLED)
_GLUE = _mask(Reason.GLUE)
_TOO_PRECISE = _mask(Reason.OVER_PRECISE)


class Chosen(Sequence[Row]):
    """Some rows of a comparison, taken from it on demand; ``places`` are theirs in it, from 0."""

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
    """All rows, grouped by layer, rank or step."""

    names: list[Any]  # layers, or the numbers of ranks and steps
    # rows, failing, not_compared: how many rows each group has
    rows: Array
    failing: Array
    not_compared: Array
    worst: Extremes
    layers_failing: Array  # in how many layers of each group a row fails


@dataclass(frozen=True)
class Points:
    """The measured outputs in execution order; fed, also inputs that glue made wrong."""

    places: Array
    errors: Array  # relative L2; NaN where nothing is finite
    fails: Array
    shown: list[int]  # indices of the drawn ones: if there are too many, the worst of neighbours


@dataclass(frozen=True)
class Overview:
    """What a report shows. Places count a comparison's rows from 0."""

    total: int
    # of the rows held, in the workbook's order; ``None`` if all are, in their own
    places: Array | None
    # failing, near: how many rows fail, and are near their limit (or suspiciously close to golden)
    failing: int
    near: int
    # failing_held, near_held: how many of these are held
    failing_held: int
    near_held: int
    left_out: Counter[Reason]  # how many rows of each reason are not held
    # layers, ranks, steps: all rows, in groups
    layers: Groups
    ranks: Groups
    steps: Groups
    # pairs_by_rank, pairs_by_step: the worst of each layer on each rank, and in each step; a pair's
    # second number indexes ``ranks.names`` or ``steps.names``
    pairs_by_rank: Extremes
    pairs_by_step: Extremes
    points: Points
    # places of the largest relative L2 errors: of failing rows, then of the others
    furthest: list[int]
    one_sided: Array  # the places of held rows with one side or none
    one_sided_count: int  # how many of those there are, held or not
    # first, until: the places of the first divergence, and of the row until which all is identical;
    # ``None`` if there is none
    first: int | None
    until: int | None
    culprits: list[int | None]  # the places of the culprits' rows, in the culprits' order

    @property
    def summarised(self) -> bool:
        """Whether there are several ranks or steps, or more rows than are held."""
        return self.places is not None or len(self.ranks.names) > 1 or len(self.steps.names) > 1

    def link(self, layers: Table, place: int | None) -> str:
        """The link to a row in the table of held rows; ``""`` if it is not held."""
        position = None if place is None else self.position(place)
        return "" if position is None else layers.place(position, "layer")

    @cached_property
    def _positions(self) -> dict[int, int]:
        if self.places is None:
            return {}
        return {place: position for position, place in enumerate(self.places.tolist())}

    def position(self, place: int) -> int | None:
        """A row's position among those held, by its place; ``None`` if it is not held."""
        return place if self.places is None else self._positions.get(place)


def what_is_held(found: Overview, where: str, leads: str) -> str:
    """Which rows a large report holds and leaves out; ``leads``: why it holds the rest."""
    assert found.places is not None
    kinds = (
        (found.failing_held, found.failing, "that fail"),
        (found.near_held, found.near, "near their limit or over-precise"),
    )
    parts = [
        f"{f'all {whole:,}' if held == whole else f'{held:,} of {whole:,}'} {what}"
        for held, whole, what in kinds
        if whole
    ]
    if others := len(found.places) - found.failing_held - found.near_held:
        parts.append(f"{others:,} {'more ' if parts else ''}that {leads}")
    left_out = ", ".join(
        f"{found.left_out[reason]:,} {reason.value}" for reason in Reason if found.left_out[reason]
    )
    return (
        f"{where} holds {len(found.places):,} of {found.total:,} rows: {', '.join(parts)}. "
        f"Left out: {left_out}. --parquet PATH and --json PATH.jsonl write every row."
    )


_last: tuple[weakref.ref[Result], Overview] | None = None


def overview_of(comparison: Result) -> Overview:
    """The overview of a comparison; the last one is cached for several reports."""
    global _last
    if _last is None or _last[0]() is not comparison:
        _last = weakref.ref(comparison), _looked_over(comparison)
    return _last[1]


def blocks(rows: Iterable[Row], size: int = _BLOCK) -> Iterator[list[Row]]:
    each = iter(rows)
    while block := list(islice(each, size)):
        yield block


def _looked_over(comparison: Result) -> Overview:
    led_to = [
        comparison.first_divergence,
        comparison.identical_until,
        *(culprit.row for culprit in comparison.culprits),
    ]
    found = _Pass(comparison.fed, Finder(led_to))
    for rows in blocks(comparison.rows):
        found.add(rows)
    return found.overview()


class Finder:
    """Finds the places of a few rows by content, since a row may be a new object each time."""

    def __init__(self, wanted: Sequence[Row | None]) -> None:
        # of the given rows, from 0; ``None`` for ``None`` and for those not found (yet)
        self.places: list[int | None] = [None] * len(wanted)
        self._itself: set[int] = set()  # numbers of the rows whose very object was found
        self._by_module: dict[str, list[tuple[int, Row]]] = {}
        for number, row in enumerate(wanted):
            if row is not None:
                self._by_module.setdefault(row.module, []).append((number, row))

    def look(self, rows: Sequence[Row], first: int) -> None:
        """Search these rows; ``first`` is the place of the first one."""
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
    """Sort keys: rows that fail first, and then by error."""
    finite = np.minimum(errors, 1e300)
    return fails + finite / (1.0 + finite)


class _Columns(NamedTuple):
    """By row: the codes of reason and layer, rank, step, whether it is an output, and errors."""

    codes: Array
    layers: Array
    ranks: Array
    steps: Array
    outputs: Array
    over_limit: Array
    excess: Array
    measured: Array
    nothing_finite: Array


class _Pass:
    """One pass over all rows by blocks; it keeps the few numbers that an overview needs."""

    def __init__(self, fed: bool, finder: Finder) -> None:
        self.fed, self.finder, self.total = fed, finder, 0
        self.layers: dict[str, int] = {}  # the number of each, from 0, as first seen
        self.blocks: list[_Columns] = []

    def add(self, rows: list[Row]) -> None:
        self.finder.look(rows, self.total)
        self.total += len(rows)
        self.blocks.append(self._columns(rows))

    def _columns(self, rows: list[Row]) -> _Columns:
        verdicts, metrics = [row.verdict for row in rows], [row.metrics for row in rows]
        records = [row.golden if row.golden is not None else row.candidate for row in rows]
        known = self.layers
        return _Columns(
            np.array([_CODES[id(verdict.reason)] for verdict in verdicts], np.uint8),
            np.array([known.setdefault(layer(row), len(known)) for row in rows], np.int64),
            np.array([_NOWHERE if record is None else record.rank for record in records], np.int64),
            np.array([_NOWHERE if record is None else record.step for record in records], np.int64),
            np.array(
                [record is not None and record.role is Role.OUTPUT for record in records], np.bool_
            ),
            np.array([verdict.over_limit for verdict in verdicts], np.float64),
            np.array([verdict.excess for verdict in verdicts], np.float64),
            *_measured(metrics),
        )

    def overview(self) -> Overview:
        rows = _Columns(
            *(np.concatenate(each) for each in zip(self._columns([]), *self.blocks, strict=True))
        )
        self.blocks.clear()
        fails, not_compared = _FAILS[rows.codes], _NOT_COMPARED[rows.codes]
        failing, one_sided = np.flatnonzero(fails), np.flatnonzero(_ONE_SIDE[rows.codes])
        near = np.flatnonzero(
            ~(fails | not_compared) & ((rows.over_limit > NEAR) | _TOO_PRECISE[rows.codes])
        )
        near_count = len(near)
        near = _largest(near, np.nan_to_num(rows.over_limit[near], nan=0.0), MOST_ROWS)
        errors = np.where(np.isnan(rows.measured), np.inf, rows.measured)
        off = np.flatnonzero(errors > 0)
        furthest = _largest(off, _fails_first(errors[off], fails[off]), _FURTHEST)
        extremes = Extremes(
            rows.layers,
            _sizes(rows.over_limit, fails, not_compared),
            np.arange(self.total),
            np.where(rows.nothing_finite, NONE, errors),
            np.where(np.isnan(rows.excess), NONE, rows.excess),
        )
        somewhere = rows.ranks != _NOWHERE  # a module that was never called belongs to no rank
        known = Extremes(*(each[somewhere] for each in extremes))
        masks = (fails[somewhere], not_compared[somewhere])
        (ranks, by_rank), (steps, by_step) = (
            _of(numbers[somewhere], masks, known) for numbers in (rows.ranks, rows.steps)
        )
        names = list(self.layers)
        counts = _counts(rows.layers, (fails, not_compared), len(names))
        layers = Groups(
            names,
            *counts,
            _of_all(known.by(known.groups), len(names)),
            (counts[1] > 0).astype(np.int64),
        )
        points = self._points(rows, fails)
        found = [place for place in self.finder.places if place is not None]
        links = np.r_[found, furthest, points.places[points.shown]]
        places = None if self.total <= MOST_ROWS else _chosen(failing, near, links, layers.worst)
        by_code = np.bincount(rows.codes, minlength=len(Reason))
        held = by_code if places is None else np.bincount(rows.codes[places], minlength=len(Reason))
        near_held = near_count if places is None else int(np.isin(places, near).sum())
        left_out = Counter(
            {
                reason: int(count)
                for reason, count in zip(Reason, by_code - held, strict=True)
                if count
            }
        )
        first, until, *culprits = self.finder.places
        return Overview(
            self.total,
            places,
            len(failing),
            near_count,
            int(held[_FAILS].sum()),
            near_held,
            left_out,
            layers,
            ranks,
            steps,
            by_rank,
            by_step,
            points,
            furthest.tolist(),
            one_sided[:MOST_ROWS],
            len(one_sided),
            first,
            until,
            culprits,
        )

    def _points(self, rows: _Columns, fails: Array) -> Points:
        """The measured outputs; in a fed capture, only inputs show errors of glue."""
        errors = np.where(rows.nothing_finite, np.nan, rows.measured)
        places = np.flatnonzero((rows.outputs | (self.fed & _GLUE[rows.codes])) & (errors != NONE))
        errors, fails = errors[places], fails[places]
        heights = np.where(np.isnan(errors), NONE, errors)

        def worst(group: Sequence[int]) -> int:
            """The largest error among neighbours that fail, or else among all."""
            part = slice(group[0], group[-1] + 1)
            own = np.where(fails[part], heights[part], -2.0) if fails[part].any() else heights[part]
            return group[int(np.argmax(own))]

        return Points(places, errors, fails, thinned(range(len(heights)), worst))


def _chosen(failing: Array, near: Array, links: Array, worst: Extremes) -> Array:
    """The places of the rows held: failing, near their limit, or linked to."""
    of_layers = worst.places[np.argsort(-worst.over_limit, kind="stable")]
    led_to = np.r_[links, of_layers[of_layers >= 0]].astype(np.int64)
    led_to = led_to[np.sort(np.unique(led_to, return_index=True)[1])][: MOST_ROWS // 2]
    fails = np.isin(led_to, failing)
    must, others = led_to[fails], led_to[~fails]
    if len(failing) > (room := MOST_ROWS - len(others)):
        failing = np.union1d(np.setdiff1d(failing, must)[: room - len(must)], must)
    near = near[: MOST_ROWS - len(others) - len(failing)]
    places: Array = np.r_[failing, near, np.setdiff1d(others, near)]
    return places


def _largest(places: Array, values: Array, most: int) -> Array:
    """The places of the largest values, the largest first; equal ones in their order."""
    found: Array = places[np.argsort(-values, kind="stable")[:most]]
    return found


def _counts(groups: Array, masks: tuple[Array, Array], count: int) -> tuple[Array, Array, Array]:
    """How many rows each group has, how many of these fail, and how many were not compared."""
    fails, not_compared = (np.bincount(groups[mask], minlength=count) for mask in masks)
    return np.bincount(groups, minlength=count), fails, not_compared


def _of(numbers: Array, masks: tuple[Array, Array], known: Extremes) -> tuple[Groups, Extremes]:
    """By rank or step, in the order of their numbers; and by pairs of layer and rank or step."""
    names, groups = np.unique(numbers, return_inverse=True)
    pairs = known.by(known.groups << 32 | groups)
    over = np.bincount(second_of(pairs.groups)[pairs.over_limit > 1], minlength=len(names))
    return (
        Groups(
            names.tolist(),
            *_counts(groups, masks, len(names)),
            pairs.by(second_of(pairs.groups)),
            over,
        ),
        pairs,
    )


def _of_all(known: Extremes, count: int) -> Extremes:
    """The worst of all layers; ``NONE`` for modules that were never called."""
    whole = Extremes(
        np.arange(count),
        np.full(count, NONE),
        np.full(count, -1),
        np.full(count, NONE),
        np.full(count, NONE),
    )
    for ours, theirs in zip(whole[1:], known[1:], strict=True):
        ours[known.groups] = theirs
    return whole


def _measured(metrics: Sequence[Metrics | None]) -> tuple[Array, Array]:
    """The relative L2 errors, ``NONE`` where nothing was measured; and where nothing was finite."""
    errors = np.array([NONE if each is None else each.rel_l2 for each in metrics], np.float64)
    nothing_finite = np.array(
        [each is not None and not each.compared and each.nothing_finite for each in metrics],
        np.bool_,
    )
    return errors, nothing_finite


def _sizes(over_limit: Array, fails: Array, not_compared: Array) -> Array:
    """The errors as multiples of their limits: over 1 for what fails, infinite if it fails without
    a number; ``NONE`` for what was not compared."""
    passing = np.where(over_limit > 0, np.minimum(over_limit, 1.0), 0.0)
    return np.where(
        fails, np.where(over_limit > 1, over_limit, np.inf), np.where(not_compared, NONE, passing)
    )
