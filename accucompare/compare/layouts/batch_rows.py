"""Which rows of golden's batch, and which tokens of them, each rank was given, by their digests."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import xxhash

from accucompare.bundle.format import Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.layouts.sequence_parts import (
    Holder,
    Runs,
    Sequences,
    Tokens,
    joined_parts,
    matched,
    most_alike,
    runs_of,
    tokens_of,
)


class GivenRows(NamedTuple):
    """Rows of golden's batch."""

    call: int  # golden's call of the model
    # of neighbouring rows, in the order in which the rank has them: the first, and how many
    runs: Runs
    columns: Runs = ()  # of neighbouring tokens of these rows; empty if it has all


#: By step, the rows that each call of each rank was given.
RowsOfRanks = dict[int, dict[Holder, GivenRows]]
_Placed = dict[Holder, GivenRows]


def rows_of_ranks(
    golden: tuple[Bundle, Iterable[Record]],
    candidate: tuple[Bundle, Iterable[Record]],
    microbatches: bool = False,
) -> tuple[RowsOfRanks, RowsOfRanks]:
    """The part of golden's batch that each rank of golden and of the candidate was given.

    If golden has several ranks, its batch is all their rows, in one call. A step is left out if its
    model was not given tensors of rows that are golden's bit for bit, each at least once, nor parts
    of their sequences.

    Args:
        golden, candidate: the bundles and their records.
        microbatches: whether the candidate is a pipeline: a call with rows that another call of its
            rank had, or that golden lacks, has the next rows that no call had.
    """
    inputs = _inputs(golden[1]), _inputs(candidate[1])
    several = golden[0].manifest.ranks > 1
    found: tuple[RowsOfRanks, RowsOfRanks] = {}, {}
    for step in inputs[0].keys() & inputs[1].keys():
        calls = [held for side in inputs for held in side[step].values()]
        paths = sorted(set.intersection(*map(set, calls)))
        ours, theirs = (
            {at: _digests(side[0], held, paths) for at, held in own[step].items()}
            for side, own in zip((golden, candidate), inputs, strict=True)
        )
        placed = _both_placed(ours, theirs, several, microbatches)
        alike = placed is None or any(len({*rows}) < len(rows) for rows in ours.values())
        if alike and paths:
            sides = (golden[0], inputs[0][step]), (candidate[0], inputs[1][step])
            placed = _in_sequences(*sides, paths, placed is not None) or placed
        if placed is not None:
            for own, rows in zip(found, placed, strict=True):
                own[step] = rows
    return found


def _both_placed(
    ours: Mapping[Holder, Sequence[bytes]],
    theirs: Mapping[Holder, Sequence[bytes]],
    several: bool,
    microbatches: bool = False,
) -> tuple[_Placed, _Placed] | None:
    """The rows of golden's batch that the calls of both sides have, by the rows' digests."""
    batch: dict[int, list[bytes]] = (
        {0: [digest for rows in dict.fromkeys(map(tuple, ours.values())) for digest in rows]}
        if several
        else {call: [*digests] for (_, call), digests in ours.items()}
    )
    placed = _placed(batch, ours), _placed(batch, theirs)
    if microbatches and placed[1] is None:
        placed = placed[0], _microbatches_placed(batch, theirs)
    return None if placed[0] is None or placed[1] is None else (placed[0], placed[1])


_Side = tuple[Bundle, Mapping[Holder, Mapping[str, Record]]]


def _in_sequences(
    golden: _Side, candidate: _Side, paths: Sequence[str], known: bool
) -> tuple[_Placed, _Placed] | None:
    """The parts of the sequences in golden's batch that each call was given.

    Args:
        paths: of the inputs. Where not all of them are golden's, those that are count.
        known: whether the rows are known, but equal ones may be exchanged: of these are looked at
            single tokens in the first axis, of which a rank has one or two chunks.
    """
    several = golden[0].manifest.ranks > 1
    for axis in (0,) if known else (1, 0):
        for own in dict.fromkeys(((*paths,), *((path,) for path in paths))):
            ours, theirs = _tokens(*golden, own, axis), _tokens(*candidate, own, axis)
            if not ours or not theirs:
                continue
            alone = None if several or known or len(ours) > 1 else next(iter(ours.values()))
            for sequences in joined_parts(ours) if several and known else _sequences(ours, several):
                rows = {at: _row_digests(whole) for at, whole in sequences.whole.items()}
                for cut in _cut(theirs, _length(sequences), alone):
                    digests = {at: _row_digests(whole) for at, whole in cut.whole.items()}
                    placed = _both_placed(rows, digests, several)
                    if placed is not None:
                        return _parts(placed[0], sequences, known), _parts(placed[1], cut, known)
    return None if known or several or len(golden[1]) > 1 else _nearly(golden, candidate, paths)


def _nearly(
    golden: _Side, candidate: _Side, paths: Sequence[str]
) -> tuple[_Placed, _Placed] | None:
    """The parts of each call if some ranks were given other tokens: as most of them have it."""
    ours, theirs = (_tokens(*side, paths, 1) for side in (golden, candidate))
    if not ours or not theirs:
        return None
    (((_, call), whole),) = ours.items()
    cut = most_alike(theirs, whole)
    rows = GivenRows(call, ((0, len(whole)),))
    if cut is None:
        return None
    return dict.fromkeys(ours, rows), _parts(dict.fromkeys(theirs, rows), cut, False)


def _tokens(
    bundle: Bundle, calls: Mapping[Holder, Mapping[str, Record]], paths: Sequence[str], axis: int
) -> dict[Holder, Tokens]:
    """The tokens of each call's inputs; none if a call has none."""
    found = {
        at: tokens_of([bundle.raw(held[path]) for path in paths], axis)
        for at, held in calls.items()
    }
    known = {at: tokens for at, tokens in found.items() if tokens is not None}
    return known if len(known) == len(found) else {}


def _whole(tokens: Mapping[Holder, Tokens]) -> Sequences:
    """Sequences as they are."""
    return Sequences({**tokens}, {at: at for at in tokens}, dict.fromkeys(tokens, ()))


def _sequences(golden: Mapping[Holder, Tokens], several: bool) -> Iterator[Sequences]:
    """Golden's sequences as they are; and, of several ranks, put together."""
    yield _whole(golden)
    if several:
        yield from joined_parts(golden)


def _length(sequences: Sequences) -> int:
    return len(next(iter(sequences.whole.values()))[0])


def _cut(
    candidate: Mapping[Holder, Tokens], length: int, golden: Tokens | None
) -> Iterator[Sequences]:
    if length == len(next(iter(candidate.values()))[0]):
        yield _whole(candidate)
    yield from joined_parts(candidate, length)
    if golden is not None:
        yield from matched(candidate, golden)


def _row_digests(tokens: Tokens) -> list[bytes]:
    return [xxhash.xxh3_128_digest(row.tobytes()) for row in tokens]


def _parts(placed: _Placed, sequences: Sequences, are_rows: bool) -> _Placed:
    """What single calls were given of the sequences that they make up together. ``are_rows``:
    whether tokens are the rows of a batch."""
    found = {}
    for at, columns in sequences.columns.items():
        given = placed[sequences.first[at]]
        found[at] = GivenRows(given.call, columns) if are_rows else given._replace(columns=columns)
    return found


def _inputs(records: Iterable[Record]) -> dict[int, dict[Holder, dict[str, Record]]]:
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
    golden: Mapping[int, Sequence[bytes]], candidate: Mapping[Holder, Sequence[bytes]]
) -> _Placed | None:
    """Where the ranks' rows are in golden's calls; ``None`` if a row is in one side only."""
    places = _places(golden)
    known: dict[tuple[bytes, ...], GivenRows] = {}
    for _, digests in sorted(candidate.items()):
        if tuple(digests) in known:
            continue  # a replica
        found = _taken(places, digests)
        if found is None:
            return None
        known[tuple(digests)] = found
    if any(places.values()):
        return None
    return {holder: known[tuple(digests)] for holder, digests in candidate.items()}


_Places = dict[bytes, deque[tuple[int, int]]]


def _places(golden: Mapping[int, Sequence[bytes]]) -> _Places:
    """The calls and rows of golden, by the rows' digests."""
    places: _Places = defaultdict(deque)
    for call, digests in sorted(golden.items()):
        for row, digest in enumerate(digests):
            places[digest].append((call, row))
    return places


def _taken(places: _Places, digests: Sequence[bytes]) -> GivenRows | None:
    """The rows of one of golden's calls, which are then no more among the places."""
    if not digests or not all(places[digest] for digest in digests):
        return None
    return _rows([places[digest].popleft() for digest in digests])


def _rows(places: Sequence[tuple[int, int]]) -> GivenRows | None:
    if len({call for call, _ in places}) != 1:
        return None
    return GivenRows(places[0][0], runs_of(row for _, row in places))


def _microbatches_placed(
    golden: Mapping[int, Sequence[bytes]], candidate: Mapping[Holder, Sequence[bytes]]
) -> _Placed | None:
    """The same for calls that do not have each of golden's rows once: those that have none of their
    own have the next rows that no call has; and if there are more rows, so would another call.
    ``None`` if most calls were given something else altogether."""
    calls: dict[int, dict[int, Sequence[bytes]]] = defaultdict(dict)
    for (rank, call), digests in sorted(candidate.items()):
        calls[rank][call] = digests
    ranks: dict[tuple[tuple[bytes, ...], ...], list[int]] = defaultdict(list)
    for rank, held in calls.items():
        ranks[tuple(map(tuple, held.values()))].append(rank)
    places, given = _places(golden), dict[Holder, GivenRows]()
    firsts = [first for first, *_ in ranks.values()]
    for rank in firsts:
        for call, digests in calls[rank].items():
            if (rows := _taken(places, digests)) is not None:
                given[rank, call] = rows
    without = [(rank, call) for rank in firsts for call in calls[rank] if (rank, call) not in given]
    if len(without) > len(given):
        return None
    left = sorted(place for each in places.values() for place in each)
    for rank, call in without:
        many = len(calls[rank][call])
        rows = _rows(left[:many])
        if rows is None:
            return None
        given[rank, call], left = rows, left[many:]
    if left and (rows := _rows(left)) is not None:
        given[firsts[-1], max(calls[firsts[-1]]) + 1] = rows
    return {
        (rank, call): rows
        for first, *others in ranks.values()
        for rank in (first, *others)
        for (own, call), rows in given.items()
        if own == first
    }
