"""A diff's pairs before and after the ranks' tensors were put together, and their rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from accucompare.bundle.format import GlobalRecord, Record, Role, row_width
from accucompare.bundle.reading import Bundle
from accucompare.compare.layouts import RankRecords, Unified
from accucompare.compare.pairing import Pair
from accucompare.compare.tokens.row_labels import Numbers
from accucompare.numbers import DTYPES, Kind

#: (step, name, call index) of golden.
CallOfStep = tuple[int, str, int]


class PlacedRows(NamedTuple):
    """A rank's record, and which of its rows are which rows of the global tensor."""

    record: Record
    of_whole: Numbers
    own: Numbers


@dataclass(frozen=True)
class PairedSides:
    """The pairs of a diff."""

    # golden, candidate: the bundles
    golden: Bundle
    candidate: Bundle
    # of each side; ``None`` for one of one rank
    ranks: tuple[RankRecords | None, RankRecords | None]
    pairs: Sequence[Pair]  # of the records of each value's first rank
    unified: Unified  # the same with the ranks' tensors put together

    def held(self, place: int) -> tuple[list[Record], list[Record]]:
        """Each side's records of a pair, of all ranks."""
        pair = self.pairs[place]
        found: list[list[Record]] = []
        for record, ranks in zip((pair.golden, pair.candidate), self.ranks, strict=True):
            if record is None or ranks is None:
                found.append([] if record is None else [record])
            else:
                group = ranks.groups[record.key]
                found.append([group[holder] for holder in sorted(group)])
        return found[0], found[1]

    def put_together(self, place: int) -> tuple[Record, Record] | None:
        """Golden's tensor and the candidate's; ``None`` if one is missing or not known."""
        pair = self.unified.pairs[place]
        if pair.golden is None or pair.candidate is None or place in self.unified.unknown:
            return None
        return pair.golden, pair.candidate


def call_of_pair(pair: Pair) -> CallOfStep:
    record = pair.record
    return record.step, record.name, record.call


def caller_of_pair(pair: Pair) -> CallOfStep | None:
    """The call in which a pair's was made."""
    record = pair.record
    return None if record.parent is None else (record.step, *record.parent)


def has_rows(record: Record | None, vectors: bool = False) -> bool:
    """Whether a record is a tensor of numbers whose last dimension is a token's; ``vectors``: or
    one with a number for each token, such as its probability."""
    return (
        record is not None
        and record.member is not None
        and len(record.shape) > 1 - vectors
        and row_width(record.shape) > 0
        and record.dtype in DTYPES
        and DTYPES[record.dtype].kind is Kind.FLOAT
    )


def row_count(record: Record) -> int:
    return math.prod(record.shape[:-1])


def rows_and_width(record: Record) -> tuple[int, int]:
    """How many rows a record has, and how long they are; those of a vector are of one number."""
    width = row_width(record.shape)
    return math.prod(record.shape) // width, width


def first_inputs(pairs: Sequence[Pair]) -> dict[CallOfStep, int]:
    """The place of each call's first input that has rows."""
    found: dict[CallOfStep, int] = {}
    for place, pair in enumerate(pairs):
        if pair.record.role is Role.INPUT and any(map(has_rows, (pair.golden, pair.candidate))):
            found.setdefault(call_of_pair(pair), place)
    return found


def placed_rows(record: Record) -> list[PlacedRows] | None:
    """Which rows of a tensor each rank's record holds; ``None`` if ranks hold parts of rows."""
    if not isinstance(record, GlobalRecord):
        every = np.arange(row_count(record))
        return [PlacedRows(record, every, every)]
    index = np.arange(row_count(record)).reshape(record.shape[:-1])
    found = []
    for box in record.boxes:
        odd = box.flat or box.turned or box.taken or len(box.terms) > 1
        if odd or box.shape[-1:] != record.shape[-1:]:
            return None
        edges = zip(box.start[:-1], box.shape[:-1], strict=True)
        of_whole = index[tuple(slice(at, at + count) for at, count in edges)].reshape(-1)
        for (term,) in (box.terms, *box.replicas):
            own = np.arange(row_count(term)).reshape(box.part[:-1])
            where = tuple(slice(*edge) for edge in box.where[:-1])
            rows = own[where].reshape(-1)
            if len(rows) != len(of_whole):
                return None
            found.append(PlacedRows(term, of_whole, rows))
    return found
