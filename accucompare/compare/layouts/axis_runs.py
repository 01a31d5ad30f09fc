"""Where the ranks' parts of one axis of a tensor lie in the whole axis."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from accucompare.compare.layouts.mesh import Mesh
from accucompare.compare.layouts.sequence_parts import Runs

#: The runs of each place along the dimensions that cut an axis.
RunsOfPlaces = dict[tuple[int, ...], Runs]


def runs_of_places(
    lengths: Mapping[tuple[int, ...], int], names: tuple[str, ...], mesh: Mesh, whole: Sequence[int]
) -> list[RunsOfPlaces]:
    """The ways in which the places' parts may lie along an axis, the likeliest first: as the rows
    of the batch and the tokens of its sequences do, or one after the other.

    Args:
        lengths: of each place's part.
        names: the dimensions that cut the axis.
        whole: the lengths of the axes that are not cut: if one is that of a sequence, this axis
            may be another one.
    """
    one_by_one = _one_by_one(lengths)
    if mesh.sequence in names:
        found = _of_tokens(lengths, names, mesh)
        if not found or mesh.tokens in whole:
            found.append(one_by_one)
        return [each for number, each in enumerate(found) if each not in found[:number]]
    if names == (mesh.batch,):
        rows: RunsOfPlaces = {(place,): runs for place, runs in enumerate(mesh.rows)}
        if (found_rows := _scaled(rows, lengths)) is not None:
            return [found_rows, *_within_tokens(rows, lengths)]
    return [one_by_one]


def _within_tokens(
    rows: RunsOfPlaces, lengths: Mapping[tuple[int, ...], int]
) -> list[RunsOfPlaces]:
    """Rows and tokens as one axis, the tokens outside, as in Megatron's routers; none if there is
    one token of each row."""
    height = sum(count for own in rows.values() for _, count in own)
    tokens = sum(lengths.values()) // height
    if tokens < 2 or tokens * height != sum(lengths.values()):
        return []
    return [{place: _nested(((0, tokens),), own, height) for place, own in rows.items()}]


def _one_by_one(lengths: Mapping[tuple[int, ...], int]) -> RunsOfPlaces:
    places = sorted(lengths)
    starts = itertools.accumulate((lengths[place] for place in places), initial=0)
    return {place: ((start, lengths[place]),) for place, start in zip(places, starts, strict=False)}


def _of_tokens(
    lengths: Mapping[tuple[int, ...], int], names: tuple[str, ...], mesh: Mesh
) -> list[RunsOfPlaces]:
    """The ways in which an axis holds tokens: it is that of the sequence; or rows and tokens are
    one axis, in either order. Dimensions that cut the ranks' sequences further, as sequence
    parallel does, come last."""
    tokens, rows = mesh.columns, mesh.rows
    whole, height = mesh.tokens, sum(count for own in rows for _, count in own)
    others = [name for name in names if name not in (mesh.sequence, mesh.batch)]
    ways: list[dict[tuple[int, int], Runs]] = []
    if mesh.batch in names:
        pairs = [*itertools.product(range(len(rows)), range(len(tokens)))]
        ways = [
            {at: _nested(rows[at[0]], tokens[at[1]], whole) for at in pairs},
            {at: _nested(tokens[at[1]], rows[at[0]], height) for at in pairs},
        ]
    else:
        of_sequence = {(0, place): runs for place, runs in enumerate(tokens)}
        ways = [of_sequence]
        outer = sum(lengths.values()) // whole
        if outer > 1:
            ways.append(
                {at: _nested(((0, outer),), runs, whole) for at, runs in of_sequence.items()}
            )
    found = []
    for way in ways:
        placed = {}
        for place in lengths:
            at = dict(zip(names, place, strict=True))
            runs = way[at.get(mesh.batch, 0) if mesh.batch in names else 0, at[mesh.sequence]]
            parts = _cut(runs, mesh.count(others))
            number = 0
            for name in others:
                number = number * mesh.sizes[name] + at[name]
            placed[place] = parts[number] if parts else ()
        if all(placed.values()) and (each := _scaled(placed, lengths)) is not None:
            found.append(each)
    return found


def _scaled(
    runs: Mapping[tuple[int, ...], Runs], lengths: Mapping[tuple[int, ...], int]
) -> RunsOfPlaces | None:
    """Runs of an axis of which each index is as many of the tensor's on all places; ``None`` if the
    lengths are not so, such as those of an expert's rows."""
    own = [sum(count for _, count in runs[place]) for place in lengths]
    each = sum(lengths.values()) // sum(own)
    if not each or [*lengths.values()] != [count * each for count in own]:
        return None
    return {place: _times(runs[place], each) for place in lengths}


def _times(runs: Iterable[tuple[int, int]], each: int) -> Runs:
    return tuple((at * each, count * each) for at, count in runs)


def _nested(outer: Runs, inner: Runs, length: int) -> Runs:
    """Runs of an axis that is made of two, the inner one of a length: all inner runs of each index
    of the outer one."""
    return tuple(
        (index * length + at, count)
        for start, many in outer
        for index in range(start, start + many)
        for at, count in inner
    )


def _cut(runs: Runs, parts: int) -> list[Runs]:
    """Runs in parts of equal length; none if there can be none such."""
    length, rest = divmod(sum(count for _, count in runs), parts)
    if rest:
        return []
    found: list[list[tuple[int, int]]] = [[] for _ in range(parts)]
    done = 0
    for start, count in runs:
        while count:
            own = min(count, length - done % length)
            found[done // length].append((start, own))
            start, count, done = start + own, count - own, done + own
    return [tuple(each) for each in found]
