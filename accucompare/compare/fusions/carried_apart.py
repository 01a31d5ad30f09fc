"""A value that one side carries as two terms of a sum, such as hidden states and residual."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from accucompare.bundle.format import Key, Layout, Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.constants import CARRIED_APART
from accucompare.compare.fusions.flat_tokens import is_as_captured, plain_terms, sum_of, viewed
from accucompare.compare.pairing import Pair
from accucompare.numbers import DTYPES, Float64, Kind

#: The most calls of a class that are looked at for a sum.
_MOST_TRIED = 8

#: The role of a value's gradient.
_GRADIENT = {Role.INPUT: Role.GRAD_INPUT, Role.OUTPUT: Role.GRAD_OUTPUT}

#: A call's values: step, name, call, role.
_Values = tuple[int, str, int, Role]
#: A class's values: whether golden's, its name, the role, the paths of the two terms.
_Kind = tuple[bool, str, Role, str, str]


class _Sum(NamedTuple):
    """A value of one side and the two of the other that it may be the sum of."""

    whole: Record
    one: Record
    other: Record
    of_golden: bool  # whether golden has the two
    place: int  # of the second one's pair

    @property
    def kind(self) -> _Kind:
        return self.of_golden, self.one.type, self.one.role, self.one.path, self.other.path

    @property
    def held(self) -> bool:
        return None not in (self.whole.member, self.one.member, self.other.member)

    def of(self, pair: Pair) -> Pair:
        """The pair, with the sum."""
        made = sum_of(self.one, self.other)
        return replace(pair, golden=made) if self.of_golden else replace(pair, candidate=made)


def is_sum(golden: Float64, one: Float64, other: Float64) -> bool:
    """Whether two terms make up golden's value, and neither does alone."""
    total, first, second = (
        float(np.linalg.norm((golden - each).ravel())) for each in (one + other, one, other)
    )
    return math.isfinite(total) and total <= CARRIED_APART * min(first, second)


def with_carried_sums(
    pairs: Sequence[Pair], golden: Bundle, candidate: Bundle
) -> tuple[list[Pair], list[tuple[bool, str]]]:
    """The pairs, with a sum where one side has one value and the other two terms of it; and the
    classes of which that is so, each with whether it is golden's.

    It must be so, to within a tenth of each term, in one call of the class; then it counts in all,
    so that a wrong sum shows.
    """
    sums = {**_sums(pairs, True), **_sums(pairs, False)}
    tried: dict[_Kind, int] = defaultdict(int)
    proved: dict[_Kind, None] = {}  # in order
    for each in sums.values():
        if each.kind in proved or not each.held or tried[each.kind] == _MOST_TRIED:
            continue
        tried[each.kind] += 1
        whole, terms = (candidate, golden) if each.of_golden else (golden, candidate)
        values = whole.values(each.whole), terms.values(each.one), terms.values(each.other)
        if is_sum(*(value.astype(np.float64) for value in values)):
            proved[each.kind] = None
    found = list(pairs)
    gone: set[int] = set()
    for place, each in sums.items():
        if each.kind in proved:
            found[place] = each.of(pairs[place])
            gone.add(each.place)
    classes = list(dict.fromkeys(kind[:2] for kind in proved))
    kept = [pair for place, pair in enumerate(found) if place not in gone]
    return _with_gradients(kept, [each for each in sums.values() if each.kind in proved]), classes


def _with_gradients(pairs: list[Pair], sums: Sequence[_Sum]) -> list[Pair]:
    """The pairs, with the gradient of each term beside that of the sum: they are equal."""
    places: tuple[dict[Key, int], dict[Key, int]] = ({}, {})
    for place, pair in enumerate(pairs if sums else ()):
        for known, record in zip(places, (pair.golden, pair.candidate), strict=True):
            if record is not None and record.role in _GRADIENT.values():
                known[record.key] = place
    found: list[Pair | None] = [*pairs]
    for each in sums:
        wholes, terms = places[::-1] if each.of_golden else places
        role = _GRADIENT[each.one.role]
        at = wholes.get(each.whole.key._replace(role=role))
        if at is None:
            continue
        whole = pairs[at].candidate if each.of_golden else pairs[at].golden
        for term in (each.one, each.other):
            own = terms.get(term.key._replace(role=role))
            if whole is None or own is None or own == at:
                continue
            record = pairs[own].golden if each.of_golden else pairs[own].candidate
            beside = pairs[own].candidate if each.of_golden else pairs[own].golden
            if record is None or beside is not None or record.shape != whole.shape:
                continue
            if found[at] is pairs[at] and None in (pairs[at].golden, pairs[at].candidate):
                found[own], own, value = None, at, whole  # the sum's has no partner yet
            else:
                (plain,), _ = plain_terms(whole)
                value = replace(viewed(plain, whole.shape), path=record.path)
            sides = (record, value) if each.of_golden else (value, record)
            found[own] = replace(pairs[own], golden=sides[0], candidate=sides[1])
    return [pair for pair in found if pair is not None]


def _sums(pairs: Sequence[Pair], of_golden: bool) -> dict[int, _Sum]:
    """What may be a sum, by the shapes alone, by the pair's place."""
    sides = [
        (pair.candidate, pair.golden) if of_golden else (pair.golden, pair.candidate)
        for pair in pairs
    ]
    left: dict[_Values, list[int]] = defaultdict(list)
    for place, (whole, term) in enumerate(sides):
        if whole is None and term is not None and _may_be_term(term):
            left[_values(term)].append(place)
    found: dict[int, _Sum] = {}
    for place, (whole, term) in enumerate(sides if left else ()):
        if whole is None or term is None or not _may_be_term(term):
            continue
        for other in left.get(_values(term), ()):
            second = sides[other][1]
            if second is not None and whole.shape == second.shape == term.shape:
                found[place] = _Sum(whole, term, second, of_golden, other)
                break
    return found


def _may_be_term(record: Record) -> bool:
    return (
        record.role in (Role.INPUT, Role.OUTPUT)
        and record.layout is Layout.STRIDED
        and len(record.shape) > 1
        and record.dtype in DTYPES
        and DTYPES[record.dtype].kind is Kind.FLOAT
        and is_as_captured(record)
    )


def _values(record: Record) -> _Values:
    return record.step, record.name, record.call, record.role
