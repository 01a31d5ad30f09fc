"""Gradients in pieces: one side runs a backward for each loss, the other one for their sum."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from accucompare.bundle.format import (
    GRADIENT_ROLES,
    GlobalRecord,
    Key,
    Layout,
    LayoutEvidence,
    Record,
)
from accucompare.bundle.reading import Bundle
from accucompare.compare.constants import CARRIED_APART
from accucompare.compare.fusions.flat_tokens import is_as_captured, sum_of
from accucompare.compare.fusions.parts_of_calls import of_calls_like
from accucompare.compare.pairing import Pair
from accucompare.numbers import Array, Float64

#: The most pieces of which every order is tried.
_MOST_PIECES = 4


def with_sums_of_pieces(pairs: list[Pair], golden: Bundle, candidate: Bundle) -> list[Pair]:
    """The pairs, with what the backwards of a step give to one gradient as the other side has it.

    Gradients are added up, so that sums are compared where one side has more pieces. If both have
    as many, they may come in another order, or be of other sums of losses: values tell.
    """
    if not any("#" in pair.record.path and _is_gradient(pair.record) for pair in pairs):
        return pairs
    pieces: tuple[dict[Key, list[int]], dict[Key, list[int]]] = defaultdict(list), defaultdict(list)
    for place, pair in enumerate(pairs):
        for known, record in zip(pieces, (pair.golden, pair.candidate), strict=True):
            if record is not None and _is_gradient(record):
                known[_first_piece(record.key)].append(place)
    found: dict[int, Pair | None] = {}
    for places in pieces[0].values():
        partner = next((each for place in places if (each := pairs[place].candidate)), None)
        others = [] if partner is None else pieces[1][_first_piece(partner.key)]
        ours = [record for place in places if (record := pairs[place].golden)]
        theirs = [record for place in others if (record := pairs[place].candidate)]
        if len(others) and len(places) + len(others) > 2 and _alike([*ours, *theirs]):
            made = _paired(ours, theirs, golden.values, candidate.values)
            if len(made) > 1:
                found |= dict(zip(places, made, strict=True))
            else:  # behind all that they are made of
                found |= dict.fromkeys((*places, *others)) | {max(*places, *others): made[0]}
    kept = (found.get(place, pair) for place, pair in enumerate(pairs))
    return [pair for pair in kept if pair is not None]


def _paired(
    ours: list[Record],
    theirs: list[Record],
    golden: Callable[[Record], Array],
    candidate: Callable[[Record], Array],
) -> list[Pair]:
    """Pieces of one gradient beside the other side's; or one pair, of the sums."""
    summed = [Pair(_sum_of_pieces(ours), _sum_of_pieces(theirs))]
    if len(ours) != len(theirs):
        return summed
    in_order = list(map(Pair, ours, theirs))
    if all(one.digest == other.digest for one, other in zip(ours, theirs, strict=True)):
        return in_order
    values = [golden(each).astype(np.float64) for each in ours]
    others = [candidate(each).astype(np.float64) for each in theirs]
    apart = [[_norm(one - other) for other in others] for one in values]
    orders = itertools.permutations(range(len(ours))) if len(ours) <= _MOST_PIECES else ()
    for order in orders:
        moved = [number for number, place in enumerate(order) if number != place]
        if moved and all(
            apart[number][order[number]] <= CARRIED_APART * apart[number][number]
            for number in moved
        ):
            return [Pair(ours[number], theirs[place]) for number, place in enumerate(order)]
    whole = _norm(np.sum(values, axis=0) - np.sum(others, axis=0))
    off = min(apart[number][number] for number in range(len(ours)))
    return summed if whole <= CARRIED_APART * off else in_order


def _norm(values: Float64) -> float:
    return float(np.linalg.norm(values.ravel()))


def _first_piece(key: Key) -> Key:
    """The key of a gradient's first piece."""
    return key._replace(path=key.path.partition("#")[0])


def _is_gradient(record: Record) -> bool:
    return record.role in GRADIENT_ROLES and record.layout is Layout.STRIDED


def _alike(records: Sequence[Record]) -> bool:
    """Whether these can be added up."""
    return len({each.shape for each in records}) == 1 and all(
        each.member is not None and is_as_captured(each) for each in records
    )


def _sum_of_pieces(records: Sequence[Record]) -> Record:
    if len(records) == 1:
        return records[0]
    order = records[-1].order  # when all of it has arrived
    return sum_of(*records, evidence=LayoutEvidence.BACKWARDS, order=order)


def made_like(record: Record | None, other: Record, records: Mapping[Key, Record]) -> Record | None:
    """Another run's record, made of parts, terms or pieces as this one was. ``records``: that
    run's."""
    if not isinstance(other, GlobalRecord):
        return record
    if other.evidence is LayoutEvidence.CALLS:
        return of_calls_like(other, records)
    terms = [records.get(each.key) for each in other.boxes[0].terms]
    held = [each for each in terms if each is not None]
    if len(held) < len(terms):
        return record
    match other.evidence:
        case LayoutEvidence.VALUES if len(held) == 2:
            return sum_of(*held)
        case LayoutEvidence.VALUES if len(held) == 1 and record is None:
            return held[0]  # the gradient of a term
        case LayoutEvidence.BACKWARDS if _alike(held):
            return _sum_of_pieces(held)
    return record
