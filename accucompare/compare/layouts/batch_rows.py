"""Which rows of golden's batch each rank was given, by the digests of the rows."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import xxhash

from accucompare.bundle.format import Record, Role
from accucompare.bundle.reading import Bundle

#: A rank's call of the whole model in a step.
Holder = tuple[int, int]


class GivenRows(NamedTuple):
    """GivenRows of golden's batch.

    Attributes:
        call: golden's call of the model.
        runs: of neighbouring rows, in the order in which the rank has them: the first, and how
            many.
    """

    call: int
    runs: tuple[tuple[int, int], ...]


#: By step, the rows that each call of each rank was given.
RowsOfRanks = dict[int, dict[Holder, GivenRows]]


def rows_of_ranks(
    golden: tuple[Bundle, Iterable[Record]],
    candidate: tuple[Bundle, Iterable[Record]],
    microbatches: bool = False,
) -> tuple[RowsOfRanks, RowsOfRanks]:
    """The rows of golden's batch that each rank of golden and of the candidate was given.

    If golden has several ranks, its batch is all their rows, in one call. A step is left out if its
    model was not given tensors of rows that are golden's bit for bit, each at least once.

    Args:
        golden, candidate: the bundles and their records.
        microbatches: whether the candidate is a pipeline: a call with rows that another call of its
            rank had, or that golden lacks, has the next rows that no call had.
    """
    inputs = _inputs(*golden), _inputs(*candidate)
    several = golden[0].manifest.ranks > 1
    found: tuple[RowsOfRanks, RowsOfRanks] = {}, {}
    for step in inputs[0].keys() & inputs[1].keys():
        calls = [held for side in inputs for held in side[step].values()]
        paths = sorted(set.intersection(*map(set, calls)))
        ours, theirs = (
            {at: _digests(side[0], held, paths) for at, held in own[step].items()}
            for side, own in zip((golden, candidate), inputs, strict=True)
        )
        batch = (
            {0: [digest for rows in dict.fromkeys(map(tuple, ours.values())) for digest in rows]}
            if several
            else {call: digests for (_, call), digests in ours.items()}
        )
        placed = [_placed(batch, ours), _placed(batch, theirs, microbatches)]
        if None not in placed:
            for side, rows in zip(found, placed, strict=True):
                side[step] = rows or {}
    return found


def _inputs(
    bundle: Bundle, records: Iterable[Record]
) -> dict[int, dict[Holder, dict[str, Record]]]:
    """The tensors with rows that the model was given, by step, call and path."""
    found: dict[int, dict[Holder, dict[str, Record]]] = {}
    for record in records:
        if not record.name and record.role is Role.INPUT and record.member and record.shape:
            step = found.setdefault(record.step, {})
            step.setdefault((record.rank, record.call), {})[record.path] = record
    return found


def _digests(bundle: Bundle, held: Mapping[str, Record], paths: Sequence[str]) -> list[bytes]:
    """A digest of each row of a call's inputs, as far as they have as many rows as the first."""
    digests: list[bytes] = []
    for path in paths:
        raw = bundle.raw(held[path])
        if path == paths[0]:
            digests = [b""] * len(raw)
        if len(raw) == len(digests):
            digests = [
                xxhash.xxh3_128_digest(digest + row.tobytes())
                for digest, row in zip(digests, raw, strict=True)
            ]
    return digests


def _placed(
    golden: Mapping[int, list[bytes]],
    candidate: Mapping[Holder, list[bytes]],
    microbatches: bool = False,
) -> dict[Holder, GivenRows] | None:
    """Where the ranks' rows are in golden's calls; ``None`` if a row is in one side only."""
    places: dict[bytes, deque[tuple[int, int]]] = defaultdict(deque)
    for call, digests in sorted(golden.items()):
        for row, digest in enumerate(digests):
            places[digest].append((call, row))
    known: dict[tuple[bytes, ...], tuple[GivenRows, Holder]] = {}
    given: dict[Holder, GivenRows] = {}
    for holder, digests in sorted(candidate.items()):
        other = known.get(tuple(digests))
        if other is not None and (not microbatches or other[1][0] != holder[0]):
            given[holder] = other[0]  # a replica
            continue
        if not digests or other is not None or not all(places[digest] for digest in digests):
            if microbatches:
                continue
            return None
        found = [places[digest].popleft() for digest in digests]
        if len({call for call, _ in found}) > 1:
            return None
        given[holder] = GivenRows(found[0][0], _runs([row for _, row in found]))
        known[tuple(digests)] = given[holder], holder
    left = sorted(place for each in places.values() for place in each)
    for holder in sorted(candidate.keys() - given.keys()):
        taken, left = left[: len(candidate[holder])], left[len(candidate[holder]) :]
        if len({call for call, _ in taken}) != 1:
            return None
        given[holder] = GivenRows(taken[0][0], _runs([row for _, row in taken]))
    if left and microbatches and len({call for call, _ in left}) == 1:
        # a microbatch that no rank was given is missing from the next call of the last one
        rank, call = max(candidate)
        given[rank, call + 1] = GivenRows(left[0][0], _runs([row for _, row in left]))
        left = []
    return None if left else given


def _runs(rows: Iterable[int]) -> tuple[tuple[int, int], ...]:
    runs: list[tuple[int, int]] = []
    for row in rows:
        if runs and sum(runs[-1]) == row:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((row, 1))
    return tuple(runs)
