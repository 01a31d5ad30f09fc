"""Pairs of experts' tensors with golden's rows and the candidate's of one token side by side."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from accucompare.bundle.format import Box, GlobalRecord, LayoutEvidence, Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.layouts import Unified
from accucompare.compare.pairing import Pair
from accucompare.compare.remarks import TokensElsewhere
from accucompare.compare.tokens.paired_sides import (
    Call,
    PairedSides,
    PlacedRows,
    around,
    call_of_pair,
    first_inputs,
    has_rows,
    placed_rows,
    row_count,
)
from accucompare.compare.tokens.routing import Routing, routings
from accucompare.compare.tokens.row_labels import (
    HeldRows,
    Numbers,
    RowDigests,
    RowLabels,
    paired_rows,
    row_digests,
)

#: What has a row for each token of a call.
_WITH_ROWS = (Role.INPUT, Role.OUTPUT, Role.GRAD_OUTPUT, Role.GRAD_INPUT)
#: How many calls around an expert's are looked at for its tokens.
_MOST_AROUND = 3


class Tokens(NamedTuple):
    """What is known of the tokens of a diff.

    Attributes:
        unified: the pairs, with rows of one token side by side.
        elsewhere: of pairs some of whose rows have no partner, by their places.
        forward: the places of those pairs of which each routing leaves rows out before any other
            can, by the routing's number.
        routings: the calls of routers that chose otherwise.
    """

    unified: Unified
    elsewhere: Mapping[int, TokensElsewhere]
    forward: Sequence[frozenset[int]]
    routings: Sequence[Routing]


class _Unit(NamedTuple):
    """Ranks that were given the same rows, and where these lie among all of the candidate's."""

    ranks: tuple[int, ...]
    count: int
    start: int


class _Experts(NamedTuple):
    """A call that was given some tokens, and the rows of both sides that belong together."""

    around: Call
    golden: int
    units: tuple[_Unit, ...]
    ours: Numbers
    theirs: Numbers
    elsewhere: TokensElsewhere | None


def with_tokens(sides: PairedSides) -> Tokens:
    """The pairs of a diff, with golden's rows and the candidate's of one token side by side.

    A call is taken for an expert's if its input consists of some rows of a call's around it. Each
    side's rows are found by their bits among that call's rows, whose places are known."""
    routed = routings(sides)
    if not routed and not _may_have_experts(sides):
        return Tokens(sides.unified, {}, [], [])
    flipped = {each.around: each for each in routed if each.around is not None}
    own, unknown = list(sides.unified.pairs), dict(sides.unified.unknown)
    others = dict(sides.unified.others)
    elsewhere: dict[int, TokensElsewhere] = {}
    of_call = dict(_experts(sides, flipped))
    forward: list[set[int]] = [set() for _ in routed]
    numbers = {each.around: number for number, each in enumerate(routed)}
    for place, pair in enumerate(sides.pairs):
        call, role = call_of_pair(pair), pair.record.role
        experts = of_call.get(call)
        if experts is not None and role in _WITH_ROWS:
            found = _paired(sides, place, experts)
            if found is None:
                continue
            paired, told = found
            if told is not None:
                elsewhere[place] = told
            if paired is None:
                unknown[place] = told or TokensElsewhere(0, 0, 0, False)
            else:
                own[place] = paired
                unknown.pop(place, None)
            others.pop(place, None)
            whose = experts.around
        elif role is Role.OUTPUT and (routing := _chosen_apart(sides, place, routed)) is not None:
            kept = _without_tokens(sides, place, routing.tokens)
            if kept is None:
                continue
            own[place] = kept
            count = len(routing.tokens)
            elsewhere[place] = TokensElsewhere(
                count, 0, routing.remark.of, routing.remark.by_rounding
            )
            others.pop(place, None)
            whose = routing.around or routing.call
        else:
            continue
        if whose in numbers and role in (Role.INPUT, Role.OUTPUT):
            forward[numbers[whose]].add(place)
    unified = sides.unified._replace(pairs=own, unknown=unknown, others=others)
    return Tokens(unified, elsewhere, [frozenset(each) for each in forward], routed)


# which calls are experts'


def _may_have_experts(sides: PairedSides) -> bool:
    """Whether a call's name says so, some ranks alone hold it, or the two sides' rows differ."""
    owned = any(ranks is not None and ranks.owners for ranks in sides.ranks)
    for place, pair in enumerate(sides.pairs):
        if pair.record.role is Role.INPUT and (
            owned or "expert" in pair.record.name.lower() or place in sides.unified.unknown
        ):
            return True
        ours, theirs = pair.golden, pair.candidate
        if ours is not None and theirs is not None and sides.ranks == (None, None):
            if ours.role is Role.INPUT and ours.shape != theirs.shape and len(ours.shape) > 1:
                return True
    return False


def _experts(
    sides: PairedSides, flipped: Mapping[Call | None, Routing]
) -> Iterator[tuple[Call, _Experts]]:
    """The calls of experts and of what they call."""
    inputs = first_inputs(sides.pairs)
    callers = {
        call_of_pair(pair): around(pair)
        for pair in sides.pairs
        if pair.record.role in (Role.INPUT, Role.OUTPUT)
    }
    alike = {
        _pattern(call)
        for call, place in inputs.items()
        if (above := _above(sides, call, place, inputs, callers)) is not None
        and _counts(sides, place) != _counts(sides, inputs[above])
    }
    known: dict[Call, _Experts] = {}
    labels: dict[Call, tuple[RowLabels, int] | None] = {}
    for call in callers:
        caller = callers[call]
        found = known.get(caller) if caller is not None else None
        if found is None and call in inputs and _pattern(call) in alike | {_named(call)}:
            place = inputs[call]
            above = _above(sides, call, place, inputs, callers)
            if above is None or _same_bits(sides, place, inputs[above]):
                continue
            if above not in labels:
                labels[above] = _labels(sides, inputs[above])
            table = labels[above]
            if table is not None:
                found = _matched(sides, place, above, table[0], flipped.get(above))
        if found is not None:
            known[call] = found
            yield call, found


def _pattern(call: Call) -> str:
    return re.sub(r"\d+", "#", call[1])


def _named(call: Call) -> str:
    """The pattern, if its name says that it is of experts."""
    return _pattern(call) if "expert" in call[1].lower() else ""


def _above(
    sides: PairedSides,
    call: Call,
    place: int,
    inputs: Mapping[Call, int],
    callers: Mapping[Call, Call | None],
) -> Call | None:
    """The nearest call around one whose rows are as long as its own."""
    width, caller = sides.pairs[place].record.shape[-1], callers.get(call)
    for _ in range(_MOST_AROUND):
        if caller is None:
            return None
        at = inputs.get(caller)
        if at is not None and sides.put_together(at) is not None:
            return caller if sides.pairs[at].record.shape[-1] == width else None
        caller = callers.get(caller)
    return None


def _counts(sides: PairedSides, place: int) -> tuple[set[int], dict[int, int]]:
    """How many rows golden has, and how many each rank of the candidate."""
    ours, theirs = sides.held(place)
    return set(map(row_count, ours)), {each.rank: row_count(each) for each in theirs}


def _same_bits(sides: PairedSides, place: int, above: int) -> bool:
    """Whether a call was given what the one around it was, on every rank."""
    for own, around_it in zip(sides.held(place), sides.held(above), strict=True):
        bits = {each.rank: each.digest for each in around_it}
        if not own or any(each.digest != bits.get(each.rank) for each in own):
            return False
    return True


def _labels(sides: PairedSides, place: int) -> tuple[RowLabels, int] | None:
    """The labels of the tokens of a call, by its input."""
    pair = sides.put_together(place)
    if pair is None or pair.golden is None or pair.candidate is None:
        return None
    if pair.golden.shape[-1] != pair.candidate.shape[-1]:
        return None
    tables = []
    for bundle, record in ((sides.golden, pair.golden), (sides.candidate, pair.candidate)):
        placed = placed_rows(record)
        if placed is None or record.member is None:
            return None
        tables.append([_held(bundle, each) for each in placed])
    count = row_count(pair.golden)
    return (RowLabels(count, *tables), count) if row_count(pair.candidate) == count else None


def _held(bundle: Bundle, placed: PlacedRows) -> HeldRows:
    return HeldRows(row_digests(bundle.raw(placed.record))[placed.own], placed.of_whole)


def _matched(
    sides: PairedSides, place: int, above: Call, labels: RowLabels, routing: Routing | None
) -> _Experts | None:
    """The rows of both sides of a call that belong together; ``None`` if most are no token's."""
    ours, theirs = sides.held(place)
    if any(each.member is None for each in (*ours, *theirs)) or len(ours) > 1:
        return None
    golden = labels.golden(_digests(sides.golden, ours))
    units, parts, start = [], [], 0
    alike: dict[str | None, list[Record]] = {}
    for record in theirs:
        alike.setdefault(record.digest if row_count(record) else None, []).append(record)
    for records in alike.values():
        found = labels.candidate(_digests(sides.candidate, records[:1]))
        ranks = tuple(record.rank for record in records)
        units.append(_Unit(ranks, len(found), start))
        parts.append(found)
        start += len(found)
    candidate = np.concatenate(parts) if parts else np.empty(0, np.int64)
    padding = [
        _is_padding(bundle, records)
        for bundle, records in (
            (sides.golden, ours),
            (sides.candidate, [records[0] for records in alike.values()]),
        )
    ]
    for found, zeros in zip((golden, candidate), padding, strict=True):
        if 2 * int(((found < 0) & ~zeros).sum()) > len(found):
            return None
    away = np.empty(0, np.int64)
    if routing is not None and routing.remark.by_rounding:
        away = np.unique(labels.of_tokens[routing.tokens])
    chosen = golden, candidate
    if len(away) and _are_stacked(labels, golden):  # a token's rows are its experts'
        chosen = tuple(np.where(np.isin(each, away), -1, each) for each in chosen)  # type: ignore[assignment]
    first, second = paired_rows(*chosen)
    left = [
        np.flatnonzero(~np.isin(np.arange(len(each)), held) & ~zeros)
        for each, held, zeros in zip((golden, candidate), (first, second), padding, strict=True)
    ]
    told = None
    if any(map(len, left)):
        lost = np.concatenate([golden[left[0]], candidate[left[1]]])
        explained = bool(len(away)) and bool(np.isin(lost, away).all())
        told = TokensElsewhere(len(left[0]), len(left[1]), len(golden), explained)
    return _Experts(above, len(golden), tuple(units), first, second, told)


def _digests(bundle: Bundle, records: Sequence[Record]) -> RowDigests:
    found = [row_digests(bundle.raw(record)) for record in records]
    return np.concatenate(found) if found else np.empty(0, np.uint64)


def _is_padding(bundle: Bundle, records: Sequence[Record]) -> Numbers:
    """Whether each row is all zeros."""
    found = [
        ~bundle.values(record).reshape(-1, record.shape[-1]).any(axis=1) for record in records
    ]
    return np.concatenate(found) if found else np.empty(0, bool)  # type: ignore[return-value]


def _are_stacked(labels: RowLabels, rows: Numbers) -> bool:
    """Whether a token has several rows: one for each of its experts."""
    held, times = np.unique(rows[rows >= 0], return_counts=True)
    tokens, of_label = np.unique(labels.of_tokens, return_counts=True)
    known = dict(zip(tokens.tolist(), of_label.tolist(), strict=True))
    return any(
        many > known.get(label, 0)
        for label, many in zip(held.tolist(), times.tolist(), strict=True)
    )


# pairs of chosen rows


def _paired(
    sides: PairedSides, place: int, experts: _Experts
) -> tuple[Pair | None, TokensElsewhere | None] | None:
    """A pair of an expert's rows, and what has no partner; ``None`` if it has no such rows."""
    ours, theirs = sides.held(place)
    by_rank = {record.rank: record for record in theirs}
    if not all(map(has_rows, (*ours, *theirs))) or any(
        row_count(record) != experts.golden for record in ours
    ):
        return None
    told = experts.elsewhere
    if not ours or not theirs:
        # with no rows, it may as well not be called
        lost = experts.golden if ours else sum(unit.count for unit in experts.units)
        if ours or theirs:
            return None, told if lost else TokensElsewhere(0, 0, 0, True)
        return None
    boxes, width = [], theirs[0].shape[-1]
    done = 0
    for unit in experts.units:
        held = [by_rank.get(rank) for rank in unit.ranks]
        records = [record for record in held if record is not None]
        if len(records) < len(held) or any(
            (row_count(record), record.shape[-1]) != (unit.count, width) for record in records
        ):
            return None
        last = unit.start + unit.count
        rows = experts.theirs[(experts.theirs >= unit.start) & (experts.theirs < last)]
        if len(rows):
            boxes.append(_box(records, rows - unit.start, done))
            done += len(rows)
    if not boxes:
        return None, told or TokensElsewhere(0, 0, 0, True)
    pair, golden = sides.pairs[place], ours[0]
    assert pair.candidate is not None
    shape = done, width
    if not (_is_all(experts.ours, golden.shape) and len(golden.shape) == 2):
        golden = _global(golden, shape, [_box([golden], experts.ours, 0)])
    candidate = pair.candidate
    alone = len(boxes) == 1 and not boxes[0].taken and not boxes[0].replicas
    if sides.ranks[1] is not None or not alone or candidate.shape != shape:
        candidate = _global(candidate, shape, boxes)
    return replace(pair, golden=golden, candidate=candidate), told


def _box(records: Sequence[Record], rows: Numbers, start: int) -> Box:
    first = records[0]
    shape = len(rows), first.shape[-1]
    whole = _is_all(rows, first.shape) and len(first.shape) == 2
    return Box(
        (start, 0),
        (first,),
        replicas=tuple((record,) for record in records[1:]),
        where=tuple((0, length) for length in shape),
        taken=b"" if whole else rows.astype(np.int64).tobytes(),
    )


def _is_all(rows: Numbers, shape: tuple[int, ...]) -> bool:
    return len(rows) == math.prod(shape[:-1]) and bool((np.diff(rows) == 1).all())


def _global(first: Record, shape: tuple[int, ...], boxes: Sequence[Box]) -> GlobalRecord:
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


# rows of tokens that were routed otherwise


def _chosen_apart(
    sides: PairedSides, place: int, routed: Sequence[Routing]
) -> Routing | None:
    """The routing that changes rows of an output: the router's own, or that of the call around."""
    pair = sides.put_together(place)
    if pair is None or not has_rows(pair.golden):
        return None
    call = call_of_pair(pair)
    for routing in routed:
        own = call in (routing.call, routing.around)
        if own and place != routing.scores and len(routing.tokens) and routing.remark.by_rounding:
            assert pair.golden is not None
            return routing if row_count(pair.golden) == routing.remark.of else None
    return None


def _without_tokens(sides: PairedSides, place: int, tokens: Numbers) -> Pair | None:
    """A pair without the rows of some tokens; ``None`` if it cannot be made, or none is left."""
    pair = sides.put_together(place)
    if pair is None or pair.golden is None or pair.candidate is None:
        return None
    sources = [placed_rows(record) for record in (pair.golden, pair.candidate)]
    ours, theirs = sources
    if ours is None or theirs is None or len(ours) > 1:
        return None
    boxes: list[Box] = []
    order: list[Numbers] = []
    done = 0
    known: dict[bytes, int] = {}
    for each in theirs:
        kept = ~np.isin(each.of_whole, tokens)
        of_whole, own = each.of_whole[kept], each.own[kept]
        if not len(own):
            continue
        at = known.setdefault(of_whole.tobytes(), len(boxes))
        if at < len(boxes):
            replicas = (*boxes[at].replicas, (each.record,))
            boxes[at] = replace(boxes[at], replicas=replicas)
            continue
        boxes.append(_box([each.record], own, done))
        order.append(of_whole)
        done += len(own)
    if not boxes:
        return None
    rows = np.concatenate(order)
    back = np.empty(row_count(pair.golden), np.int64)
    back[ours[0].of_whole] = ours[0].own
    shape = done, pair.golden.shape[-1]
    golden = _global(pair.golden, shape, [_box([ours[0].record], back[rows], 0)])
    return replace(pair, golden=golden, candidate=_global(pair.candidate, shape, boxes))
