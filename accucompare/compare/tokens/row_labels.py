"""Which rows of two sides' tensors are of one token, by the bits of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from accucompare.numbers import Array, Float64

#: Along how many directions rows are looked for by their values.
_DIRECTIONS = 24

#: Numbers of rows or tokens.
Numbers = NDArray[np.int64]
#: A digest of each row.
RowDigests = NDArray[np.uint64]


def row_digests(values: Array) -> RowDigests:
    """The digest (xxh3, 64 bits) of each row, which is all that has one index but the last.

    A million rows take half a second on one core, and what reading them takes."""
    rows = np.ascontiguousarray(values).reshape(-1, values.shape[-1])
    width = rows.shape[1] * rows.itemsize
    if not rows.size:
        return np.zeros(len(rows), np.uint64)
    view, made = memoryview(rows).cast("B"), xxhash.xxh3_64_intdigest
    return np.fromiter(
        (made(view[at : at + width]) for at in range(0, len(view), width)), np.uint64, len(rows)
    )


class HeldRows(NamedTuple):
    """Rows of one tensor: their digests, and the tokens that they are of."""

    digests: RowDigests
    tokens: Numbers


class RowLabels:
    """A label for each token; tokens with equal rows on either side have one label.

    Args:
        count: of tokens.
        golden, candidate: each side's rows of the tokens.
    """

    def __init__(
        self, count: int, golden: Sequence[HeldRows], candidate: Sequence[HeldRows]
    ) -> None:
        tables = [_Table.of(golden), _Table.of(candidate)]
        labels = np.arange(count)
        while True:
            before = labels
            for table in tables:
                labels = table.joined(labels)
            if np.array_equal(before, labels):
                break
        self.of_tokens: Numbers = labels
        self._known = [(table.digests, table.least(labels)) for table in tables]

    def golden(self, digests: RowDigests) -> Numbers:
        """The labels of golden's rows; -1 for those of no token."""
        return _found(digests, *self._known[0])

    def candidate(self, digests: RowDigests) -> Numbers:
        """The labels of the candidate's rows; -1 for those of no token."""
        return _found(digests, *self._known[1])


class _Table(NamedTuple):
    """Distinct digests, and for each row of a token the number of its digest."""

    digests: RowDigests
    numbers: Numbers
    tokens: Numbers

    @classmethod
    def of(cls, held: Sequence[HeldRows]) -> _Table:
        digests = np.concatenate([each.digests for each in held])
        distinct, of = np.unique(digests, return_inverse=True)
        return cls(distinct, of.reshape(-1), np.concatenate([each.tokens for each in held]))

    def least(self, labels: Numbers) -> Numbers:
        """The least label of each digest's tokens."""
        found = np.full(len(self.digests), len(labels))
        np.minimum.at(found, self.numbers, labels[self.tokens])
        return found

    def joined(self, labels: Numbers) -> Numbers:
        """The labels, with one for all tokens of a digest."""
        found = labels.copy()
        np.minimum.at(found, self.tokens, self.least(labels)[self.numbers])
        return found


def _found(digests: RowDigests, known: RowDigests, labels: Numbers) -> Numbers:
    if not len(known):
        return np.full(len(digests), -1)
    at = np.minimum(np.searchsorted(known, digests), len(known) - 1)
    return np.where(known[at] == digests, labels[at], -1)


def paired_rows(golden: Numbers, candidate: Numbers) -> tuple[Numbers, Numbers]:
    """The places of golden's rows, and of the candidate's, that are of one token, in the
    candidate's order. ``golden``, ``candidate``: the rows' labels; -1 has no partner. Of several
    rows of one label, the first belongs to the first, and so on."""
    most = 1 + max(len(golden), len(candidate))
    keys = [_numbered(labels, most) for labels in (golden, candidate)]
    held = [np.flatnonzero(labels >= 0) for labels in (golden, candidate)]
    _, ours, theirs = np.intersect1d(
        keys[0][held[0]], keys[1][held[1]], assume_unique=True, return_indices=True
    )
    order = np.argsort(theirs)
    return held[0][ours[order]], held[1][theirs[order]]


def _numbered(labels: Numbers, most: int) -> Numbers:
    """A number for each label and each time that it has come up before."""
    order = np.argsort(labels, kind="stable")
    run = labels[order]
    first = np.flatnonzero(np.concatenate([[True], run[1:] != run[:-1]])) if len(run) else run
    lengths = np.diff(np.append(first, len(run)))
    times = np.empty(len(run), np.int64)
    times[order] = np.arange(len(run)) - np.repeat(first, lengths)
    return labels * most + times


def near_rows(golden: Float64, candidate: Float64, most: float) -> tuple[Numbers, Numbers]:
    """The places of golden's rows, and of the candidate's, whose values are alike, in the
    candidate's order.

    Rows are sorted by what they are along a direction, and those in one place are compared; what is
    not alike is tried along others. ``most``: the largest distance of two rows, relative to
    golden's."""
    made = np.random.default_rng(0)
    left = [np.arange(len(golden)), np.arange(len(candidate))]
    pairs: list[tuple[Numbers, Numbers]] = []
    for _ in range(_DIRECTIONS):
        along = made.standard_normal(golden.shape[1])
        ours, theirs = (
            held[np.argsort(values[held] @ along, kind="stable")]
            for held, values in zip(left, (golden, candidate), strict=True)
        )
        count = min(len(ours), len(theirs))
        ours, theirs = ours[:count], theirs[:count]
        apart = np.linalg.norm(candidate[theirs] - golden[ours], axis=1)
        near = apart <= most * np.linalg.norm(golden[ours], axis=1)
        pairs.append((ours[near], theirs[near]))
        left = [
            np.setdiff1d(held, own, assume_unique=True)
            for held, own in zip(left, pairs[-1], strict=True)
        ]
        if not all(map(len, left)):
            break
    first, second = (np.concatenate(each) for each in zip(*pairs, strict=True))
    order = np.argsort(second)
    return first[order], second[order]


def alike_rows(values: Float64, most: float) -> NDArray[np.bool_]:
    """Which rows have a near one, relative to their length: neighbours along some directions."""
    made = np.random.default_rng(1)
    found = np.zeros(len(values), bool)
    lengths = np.linalg.norm(values, axis=1)
    for _ in range(_DIRECTIONS):
        order = np.argsort(values @ made.standard_normal(values.shape[1]))
        apart = np.linalg.norm(values[order[1:]] - values[order[:-1]], axis=1)
        near = order[:-1][apart <= most * lengths[order[:-1]]]
        found[near] = True
        found[order[1:][apart <= most * lengths[order[1:]]]] = True
    return found
