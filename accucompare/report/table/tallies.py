"""What very many rows come to, gathered block by block in arrays: how many of each group, and the worst of each."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from accucompare.numbers import Array

#: Stands for an error that was not measured; all others are 0 or more.
NONE = -1.0
_PENDING = 1 << 16  # rows that wait until they are put together

K = TypeVar("K", bound=Hashable)


class Numbering(Generic[K]):
    """Gives each key a number, from 0, in the order in which they are first seen."""

    def __init__(self) -> None:
        self._numbers: dict[K, int] = {}

    def of(self, keys: list[K]) -> Array:
        """The numbers of keys."""
        known = self._numbers
        for key in dict.fromkeys(keys):
            known.setdefault(key, len(known))
        return np.fromiter(map(known.__getitem__, keys), np.int64, len(keys))

    @property
    def keys(self) -> list[K]:
        return list(self._numbers)


class Counts:
    """How many rows each group has of each kind."""

    def __init__(self, kinds: int) -> None:
        self.table: Array = np.zeros((kinds, 0), np.int64)

    def add(self, groups: Array, kinds: Iterable[Array | None]) -> None:
        """Count rows by their groups' numbers; of each kind those where its mask is true, or all."""
        if len(groups) and (more := int(groups.max()) + 1 - self.table.shape[1]) > 0:
            self.table = np.pad(self.table, ((0, 0), (0, more)))
        for line, mask in zip(self.table, kinds, strict=True):
            line += np.bincount(groups if mask is None else groups[mask], minlength=len(line))


class Extremes(NamedTuple):
    """The worst of each group.

    Attributes:
        groups: their numbers, in order.
        used: the largest error as a multiple of its limit; infinite if a row fails without a number; ``NONE`` if none was measured.
        places: of the first rows with that.
        rel_l2, excess: the largest ones, wherever they are.
    """

    groups: Array
    used: Array
    places: Array
    rel_l2: Array
    excess: Array

    def by(self, groups: Array) -> Extremes:
        """The same of larger groups, whose number for each group is given."""
        order = np.argsort(groups, kind="stable")
        groups, used, places = groups[order], self.used[order], self.places[order]
        starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]]) if len(groups) else np.zeros(0, np.int64)
        if not len(starts):
            return self
        worst = np.maximum.reduceat(used, starts)
        lengths = np.diff(np.r_[starts, len(groups)])
        first = np.minimum.reduceat(np.where(used == np.repeat(worst, lengths), places, np.iinfo(np.int64).max), starts)
        rel_l2, excess = (np.maximum.reduceat(each[order], starts) for each in (self.rel_l2, self.excess))
        return Extremes(groups[starts], worst, first, rel_l2, excess)


_EMPTY = Extremes(*(np.zeros(0, kind) for kind in (np.int64, np.float64, np.int64, np.float64, np.float64)))


class Worst:
    """The worst of each pair of groups, such as of each layer on each rank. Takes memory for those pairs that there are."""

    def __init__(self) -> None:
        self._known, self._waiting, self._count = _EMPTY, list[Extremes](), 0

    def add(self, first: Array, second: Array, used: Array, places: Array, rel_l2: Array, excess: Array) -> None:
        """Add rows of these pairs of groups' numbers."""
        self._waiting.append(Extremes(first << 32 | second, used, places, rel_l2, excess))
        self._count += len(first)
        if self._count > max(_PENDING, len(self._known.groups) // 4):
            self._put_together()

    def found(self) -> Extremes:
        """The worst of each pair, whose number is ``first << 32 | second``."""
        self._put_together()
        return self._known

    def _put_together(self) -> None:
        columns = list(zip(self._known, *self._waiting, strict=True))
        self._known, self._waiting, self._count = _EMPTY, [], 0
        whole = Extremes(*(np.concatenate(columns.pop(0)) for _ in Extremes._fields))  # what is joined is let go at once
        self._known = whole.by(whole.groups)


def first_of(pairs: Array) -> Array:
    return pairs >> 32


def second_of(pairs: Array) -> Array:
    return pairs & 0xFFFFFFFF


class Listed:
    """Places, in order."""

    def __init__(self) -> None:
        self._parts, self.count = list[Array](), 0

    def add(self, places: Array) -> None:
        if len(places):
            self._parts.append(places)
            self.count += len(places)

    def found(self) -> Array:
        return np.concatenate([np.zeros(0, np.int64), *self._parts])


class Largest:
    """The places of the largest values, the largest first; of equal ones those that come first."""

    def __init__(self, most: int) -> None:
        self._most, self.count = most, 0
        self._places: Array = np.zeros(0, np.int64)
        self._values: Array = np.zeros(0)
        self._waiting: list[tuple[Array, Array]] = []
        self._many = 0

    def add(self, places: Array, values: Array) -> None:
        self.count += len(places)
        if len(self._values) == self._most:
            larger = values > self._values[-1]
            places, values = places[larger], values[larger]
        if len(places):
            self._waiting.append((places, values))
            self._many += len(places)
        if self._many > 4 * self._most:
            self.found()

    def found(self) -> Array:
        places = np.concatenate([self._places, *(each for each, _ in self._waiting)])
        values = np.concatenate([self._values, *(each for _, each in self._waiting)])
        order = np.argsort(-values, kind="stable")[: self._most]
        self._places, self._values, self._waiting, self._many = places[order], values[order], [], 0
        return self._places
