"""Which tokens of golden's sequences each rank was given, as in context parallel."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

#: A rank's call of the whole model in a step.
Holder = tuple[int, int]
#: Neighbouring indices of the whole: the first, and how many.
Runs = tuple[tuple[int, int], ...]
#: A number for each token, by row.
Tokens: TypeAlias = NDArray[np.uint64]

_MIX = np.uint64(0x9E3779B97F4A7C15)
#: The most places of one token that are tried for the longest run.
_MOST_PLACES = 64


class Sequences(NamedTuple):
    """Ranks that hold the parts of the same sequences, put together."""

    whole: dict[Holder, Tokens]  # the sequences, by the call of the first of the ranks
    first: dict[Holder, Holder]  # that call, by the call of each rank
    # the tokens that each call was given, in the order in which it has them
    columns: dict[Holder, Runs]


def tokens_of(values: Sequence[NDArray[Any]], axis: int) -> Tokens | None:
    """One number for each token of a call's inputs, as (rows, tokens); ``None`` if there are none.

    Args:
        values: those that belong to the tokens have the first one's rows and tokens.
        axis: of the tokens; the rows are the other one of the first two.
    """
    found: Tokens | None = None
    for value in values:
        if value.ndim <= axis:
            continue
        each = value.reshape(1, -1) if value.ndim == 1 else np.moveaxis(value, axis, 1)
        if found is not None and each.shape[:2] != found.shape:
            continue
        own = _numbers(each)
        found = own if found is None else found * _MIX + own
    return found


def _numbers(value: NDArray[Any]) -> Tokens:
    raw = np.ascontiguousarray(value).reshape(*value.shape[:2], -1)
    if raw.shape[2] == 1 and raw.dtype.itemsize <= 8:
        return raw[..., 0].view(f"u{raw.dtype.itemsize}").astype(np.uint64)
    numbers = [xxhash.xxh3_64_intdigest(token) for row in raw for token in row]
    return np.array(numbers, np.uint64).reshape(raw.shape[:2])


def joined_parts(tokens: Mapping[Holder, Tokens], length: int | None = None) -> Iterator[Sequences]:
    """The ways in which ranks' tokens may be parts of whole sequences, the likeliest first: one
    chunk for each rank; one from the front and its mirror from the back (zigzag); every so many
    tokens. ``length``: of the whole sequences, if it is known."""
    for groups in _groups(tokens):
        if length not in (None, sum(tokens[holder].shape[1] for holder in groups[0])):
            continue
        for cut in (_contiguous, _zigzag, _striped):
            columns: dict[Holder, Runs] = {}
            for group in groups:
                lengths = [tokens[holder].shape[1] for holder in group]
                columns |= zip(group, cut(lengths), strict=False)
            if len(columns) == len(tokens):
                yield _together(tokens, groups, columns)


def matched(tokens: Mapping[Holder, Tokens], golden: Tokens) -> Iterator[Sequences]:
    """Ranks' tokens as parts of golden's sequences, of which each rank has runs of any length."""
    for groups in _groups(tokens):
        columns: dict[Holder, Runs] = {}
        for group in groups:
            held = np.concatenate([tokens[holder] for holder in group], 1)
            rows = _rows(golden, held)
            places = rows and _places(_of_columns(golden[rows]), _of_columns(held))
            if places is None:
                break
            ends = np.cumsum([tokens[holder].shape[1] for holder in group])[:-1]
            columns |= zip(group, map(runs_of, np.split(places, ends)), strict=True)
        else:
            yield _together(tokens, groups, columns)


def most_alike(tokens: Mapping[Holder, Tokens], golden: Tokens) -> Sequences | None:
    """Of the ways to put ranks' tokens together, that which is golden's in most tokens: some ranks
    were given other ones."""
    fitting = (
        each
        for each in joined_parts(tokens, golden.shape[1])
        if all(whole.shape == golden.shape for whole in each.whole.values())
    )
    return max(
        fitting,
        key=lambda each: sum(int((whole == golden).sum()) for whole in each.whole.values()),
        default=None,
    )


def _groups(tokens: Mapping[Holder, Tokens]) -> Iterator[list[list[Holder]]]:
    """The calls in groups that may share sequences out among them: ranks that are neighbours, or so
    many apart."""
    ranks = 1 + max(rank for rank, _ in tokens)
    for parts, apart in itertools.product(range(2, ranks + 1), range(1, ranks)):
        if ranks % (parts * apart):
            continue
        groups: dict[tuple[int, ...], list[Holder]] = {}
        for rank, call in sorted(tokens):
            key = call, rank // (parts * apart), rank % apart
            groups.setdefault(key, []).append((rank, call))
        if all(
            len(group) == parts and len({len(tokens[holder]) for holder in group}) == 1
            for group in groups.values()
        ):
            yield list(groups.values())


def _contiguous(lengths: Sequence[int]) -> list[Runs]:
    starts = itertools.accumulate(lengths, initial=0)
    return [((start, length),) for start, length in zip(starts, lengths, strict=False)]


def _zigzag(lengths: Sequence[int]) -> list[Runs]:
    half, rest = divmod(lengths[0], 2)
    if rest or len({*lengths}) > 1:
        return []
    last = 2 * len(lengths) - 1
    return [
        _joined(((part * half, half), ((last - part) * half, half))) for part in range(len(lengths))
    ]


def _striped(lengths: Sequence[int]) -> list[Runs]:
    if len({*lengths}) > 1:
        return []
    count = len(lengths)
    return [
        tuple((part + count * number, 1) for number in range(lengths[0])) for part in range(count)
    ]


def _joined(runs: Runs) -> Runs:
    """Two runs; one, if they touch."""
    (first, count), (second, length) = runs
    return ((first, count + length),) if first + count == second else runs


def _together(
    tokens: Mapping[Holder, Tokens], groups: list[list[Holder]], columns: dict[Holder, Runs]
) -> Sequences:
    whole: dict[Holder, Tokens] = {}
    first: dict[Holder, Holder] = {}
    for group in groups:
        places = np.concatenate([indices(columns[holder]) for holder in group])
        held = np.concatenate([tokens[holder] for holder in group], 1)
        whole[group[0]] = np.empty_like(held)
        whole[group[0]][:, places] = held
        first |= dict.fromkeys(group, group[0])
    return Sequences(whole, first, columns)


def indices(runs: Runs) -> NDArray[Any]:
    return np.concatenate([np.arange(start, start + count) for start, count in runs])


def runs_of(places: Any) -> Runs:
    """Indices as runs of neighbours."""
    runs: list[tuple[int, int]] = []
    for place in map(int, places):
        if runs and sum(runs[-1]) == place:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((place, 1))
    return tuple(runs)


def _rows(golden: Tokens, held: Tokens) -> list[int] | None:
    """Golden's rows that have the tokens of each of these, in whatever order."""
    known = {np.sort(row).tobytes(): number for number, row in enumerate(golden)}
    found = [known.get(np.sort(row).tobytes()) for row in held]
    return None if None in found else [row for row in found if row is not None]


def _of_columns(tokens: Tokens) -> list[bytes]:
    return [xxhash.xxh3_128_digest(column.tobytes()) for column in tokens.T]


def _places(golden: Sequence[bytes], held: Sequence[bytes]) -> NDArray[Any] | None:
    """Where each of these tokens is in golden's sequence, each in one place: of equal tokens, where
    the longest run begins. ``None`` if some are in one only."""
    free: dict[bytes, dict[int, None]] = {}
    for place, token in enumerate(golden):
        free.setdefault(token, {})[place] = None
    found: list[int] = []
    while len(found) < len(held):
        starts = itertools.islice(free.get(held[len(found)], ()), _MOST_PLACES)
        runs = ((start, _length(golden, held, free, start, len(found))) for start in starts)
        start, length = max(runs, key=lambda run: run[1], default=(0, 0))
        if not length:
            return None
        for place in range(start, start + length):
            del free[golden[place]][place]
        found += range(start, start + length)
    return np.array(found)


def _length(
    golden: Sequence[bytes],
    held: Sequence[bytes],
    free: Mapping[bytes, Mapping[int, None]],
    start: int,
    own: int,
) -> int:
    """How many tokens from one place on are golden's from another on, and not yet given."""
    most, length = min(len(golden) - start, len(held) - own), 0
    while (
        length < most
        and golden[start + length] == held[own + length]
        and start + length in free[golden[start + length]]
    ):
        length += 1
    return length
