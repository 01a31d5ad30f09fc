"""A value that the candidate carries as two terms of a sum, such as hidden states and residual."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from accucompare.bundle.format import Box, GlobalRecord, Layout, LayoutEvidence, Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.constants import CARRIED_APART
from accucompare.compare.fusions.flat_tokens import is_as_captured, plain_terms
from accucompare.compare.pairing import Pair
from accucompare.numbers import DTYPES, Float64, Kind

#: The most calls of a class that are looked at for a sum.
_MOST_TRIED = 8

#: A call's values: step, name, call, role.
_Values = tuple[int, str, int, Role]
#: A class's values: its name, the role, the paths of the two terms.
_Kind = tuple[str, Role, str, str]


class _Sum(NamedTuple):
    """A value of golden's and the two terms that it may be the sum of; ``place``: of the second's
    pair."""

    golden: Record
    one: Record
    other: Record
    place: int

    @property
    def kind(self) -> _Kind:
        return self.one.type, self.one.role, self.one.path, self.other.path

    @property
    def held(self) -> bool:
        return None not in (self.golden.member, self.one.member, self.other.member)


def is_sum(golden: Float64, one: Float64, other: Float64) -> bool:
    """Whether two terms make up golden's value, and neither does alone."""
    total, first, second = (
        float(np.linalg.norm((golden - each).ravel())) for each in (one + other, one, other)
    )
    return math.isfinite(total) and total <= CARRIED_APART * min(first, second)


def with_carried_sums(
    pairs: Sequence[Pair], golden: Bundle, candidate: Bundle
) -> tuple[list[Pair], list[str]]:
    """The pairs, with a sum where golden has one value and the candidate two terms of it; and the
    classes of which that is so.

    It must be so, to within a tenth of each term, in one call of the class; then it counts in all,
    so that a wrong sum shows.
    """
    left: dict[_Values, list[int]] = defaultdict(list)
    for place, pair in enumerate(pairs):
        if pair.golden is None and pair.candidate is not None and _may_be_term(pair.candidate):
            left[_values(pair.candidate)].append(place)
    sums: dict[int, _Sum] = {}
    for place, pair in enumerate(pairs if left else ()):
        ours, theirs = pair.golden, pair.candidate
        if ours is None or theirs is None or not _may_be_term(theirs):
            continue
        for other in left.get(_values(theirs), ()):
            second = pairs[other].candidate
            if second is not None and ours.shape == second.shape == theirs.shape:
                sums[place] = _Sum(ours, theirs, second, other)
                break
    tried: dict[_Kind, int] = defaultdict(int)
    proved: set[_Kind] = set()
    for each in sums.values():
        if each.kind in proved or not each.held or tried[each.kind] == _MOST_TRIED:
            continue
        tried[each.kind] += 1
        values = (
            golden.values(each.golden),
            candidate.values(each.one),
            candidate.values(each.other),
        )
        if is_sum(*(value.astype(np.float64) for value in values)):
            proved.add(each.kind)
    found = list(pairs)
    gone: set[int] = set()
    for place, each in sums.items():
        if each.kind in proved:
            found[place] = replace(pairs[place], candidate=_added(each.one, each.other))
            gone.add(each.place)
    classes = list(dict.fromkeys(kind[0] for kind in proved))
    return [pair for place, pair in enumerate(found) if place not in gone], classes


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


def _added(one: Record, other: Record) -> GlobalRecord:
    fields = {each: getattr(one, each) for each in Record.__struct_fields__}
    held = None not in (one.member, other.member)
    edges = tuple((0, length) for length in one.shape)
    terms, form = plain_terms(one, other)
    fields |= {
        "digest": None,
        "statistics": None,
        "sketch": None,
        "member": one.member if held else None,
        "boxes": (Box((0,) * len(one.shape), terms, where=edges, form=form),),
        "evidence": LayoutEvidence.VALUES,
    }
    return GlobalRecord(**fields)
