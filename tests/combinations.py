"""Combinations of what a test is tried with, where all of them would cost seconds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any


def once(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """As few combinations as have each value of each axis."""
    values = [list(axis) for axis in axes]
    longest = max(map(len, values))
    return [tuple(each[number % len(each)] for each in values) for number in range(longest)]


def spread(one: Iterable[Any], other: Iterable[Any], times: int) -> list[tuple[Any, Any]]:
    """Each value of one axis with so many of the other, in turn."""
    values, in_turn = list(one), itertools.cycle(list(other))
    return [(each, next(in_turn)) for each in values for _ in range(times)]


def pairwise(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Few combinations that have each two values of two axes together: what fails only where three
    options meet is rare, what fails where two do is not."""
    values = [list(axis) for axis in axes]
    places = list(itertools.product(*(range(len(each)) for each in values)))
    missing = {pair for place in places for pair in _pairs(place)}
    found = []
    while missing:
        best = max(places, key=lambda place: len(missing.intersection(_pairs(place))))
        missing.difference_update(_pairs(best))
        found.append(best)
    return [
        tuple(each[number] for each, number in zip(values, place, strict=True))
        for place in sorted(found)
    ]


def _pairs(place: tuple[int, ...]) -> list[tuple[tuple[int, int], ...]]:
    return list(itertools.combinations(enumerate(place), 2))
