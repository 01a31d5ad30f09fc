"""Tensors of some rows, and the same rows of a baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from accucompare.bundle.format import Box, GlobalRecord, Key, LayoutEvidence, Record, row_width
from accucompare.bundle.reading import Bundle
from accucompare.compare.tokens.paired_sides import row_count, rows_and_width
from accucompare.compare.tokens.row_labels import (
    HeldRows,
    Numbers,
    RowLabels,
    paired_rows,
    row_digests,
)


class TokensOfRows(NamedTuple):
    """Which tokens an expert's rows are of."""

    given: Record  # what golden gave to the expert
    around: Record  # what it gave to the call whose tokens these are
    labels: Numbers  # of all of golden's rows
    of_tokens: Numbers  # the labels of all tokens

    def rows_of(
        self, bundle: Bundle, records: Mapping[Key, Record], rows: Numbers
    ) -> Numbers | None:
        """The rows of the same tokens in another run; ``None`` if it sent one elsewhere. ``rows``:
        golden's."""
        given, around = records.get(self.given.key), records.get(self.around.key)
        if given is None or around is None or None in (given.member, around.member):
            return None
        if row_count(around) != len(self.of_tokens):
            return None
        held = HeldRows(row_digests(bundle.raw(around)), np.arange(len(self.of_tokens)))
        own = RowLabels(len(self.of_tokens), [held], [held]).golden(row_digests(bundle.raw(given)))
        own = np.where(own < 0, -1, self.of_tokens[own])
        ours, theirs = paired_rows(self.labels, own)
        found = np.full(len(self.labels), -1)
        found[ours] = theirs
        return None if (found[rows] < 0).any() else found[rows]


class ChosenRows(NamedTuple):
    """Rows of golden's tensor that are compared, in their order.

    ``tokens``: whose they are; ``None`` if all runs have the rows of all tokens in one order."""

    golden: Record
    rows: Numbers
    tokens: TokensOfRows | None = None

    def of(self, bundle: Bundle, records: Mapping[Key, Record]) -> Record | None:
        """The same rows of another run of golden's code; ``None`` if it lacks some. ``records``:
        the run's, by golden's keys."""
        record = records.get(self.golden.key)
        if record is None or record.member is None or bundle.manifest.ranks > 1:
            return None
        rows: Numbers | None = self.rows
        if self.tokens is not None:
            rows = self.tokens.rows_of(bundle, records, self.rows)
            given = records.get(self.tokens.given.key)
            if given is None or row_count(given) != rows_and_width(record)[0]:
                return None
        elif record.shape != self.golden.shape:
            return None
        if rows is None:
            return None
        shape = len(rows), row_width(record.shape)
        return global_rows(record, shape, [box_of_rows([record], rows, 0)])


def box_of_rows(records: Sequence[Record], rows: Numbers, start: int) -> Box:
    first = records[0]
    shape = len(rows), row_width(first.shape)
    whole = are_all(rows, first.shape) and len(first.shape) == 2
    return Box(
        (start, 0),
        (first,),
        replicas=tuple((record,) for record in records[1:]),
        where=tuple((0, length) for length in shape),
        taken=b"" if whole else rows.astype(np.int64).tobytes(),
    )


def are_all(rows: Numbers, shape: tuple[int, ...]) -> bool:
    return len(rows) == math.prod(shape[:-1]) and bool((np.diff(rows) == 1).all())


def global_rows(first: Record, shape: tuple[int, ...], boxes: Sequence[Box]) -> GlobalRecord:
    fields = {name: getattr(first, name) for name in Record.__struct_fields__}
    fields |= {
        "rank": 0,
        "digest": None,
        "sketch": None,
        "statistics": None,
        "shape": shape,
        "shard": None,
    }
    return GlobalRecord(**fields, boxes=tuple(boxes), evidence=LayoutEvidence.TOKENS)
