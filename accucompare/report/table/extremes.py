"""The worst of each group of very many rows, in arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from accucompare.numbers import Array

#: An error that was not measured; all others are 0 or more.
NONE = -1.0


class Extremes(NamedTuple):
    """The worst of each group."""

    groups: Array  # their numbers, in order
    # the largest error as a multiple of its limit; infinite if a row fails without a number;
    # ``NONE`` if none was measured
    over_limit: Array
    places: Array  # of the first rows with that error
    # rel_l2, excess: the largest ones, in any row
    rel_l2: Array
    excess: Array

    def by(self, groups: Array) -> Extremes:
        """Merged into larger groups; ``groups`` gives the new number of each."""
        order = np.argsort(groups, kind="stable")
        groups, over_limit, places = groups[order], self.over_limit[order], self.places[order]
        starts = (
            np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]])
            if len(groups)
            else np.zeros(0, np.int64)
        )
        if not len(starts):
            return self._replace(groups=groups)
        worst = np.maximum.reduceat(over_limit, starts)
        lengths = np.diff(np.r_[starts, len(groups)])
        first = np.minimum.reduceat(
            np.where(over_limit == np.repeat(worst, lengths), places, np.iinfo(np.int64).max),
            starts,
        )
        rel_l2, excess = (
            np.maximum.reduceat(each[order], starts) for each in (self.rel_l2, self.excess)
        )
        return Extremes(groups[starts], worst, first, rel_l2, excess)


def first_of(pairs: Array) -> Array:
    return pairs >> 32


def second_of(pairs: Array) -> Array:
    return pairs & 0xFFFFFFFF
