"""Pairs of experts' tensors with golden's rows and the candidate's of one token side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from accucompare.bundle.format import GRADIENT_ROLES, Box, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.layouts import RankRecords, Unified
from accucompare.compare.pairing import Pair
from accucompare.compare.remarks import RanksDiffer, RowsAlike, TokensElsewhere
from accucompare.compare.tokens.chosen_rows import ChosenRows, are_all, box_of_rows, global_rows
from accucompare.compare.tokens.expert_calls import ExpertCall, expert_calls, may_have_experts
from accucompare.compare.tokens.inner_choices import InnerChoices, Scores
from accucompare.compare.tokens.paired_sides import (
    PairedSides,
    call_of_pair,
    has_rows,
    placed_rows,
    row_count,
    rows_and_width,
)
from accucompare.compare.tokens.routing import Routing, may_be_choice, routings
from accucompare.compare.tokens.row_labels import Numbers

#: What has a row for each token of a call.
_WITH_ROWS = (Role.INPUT, Role.OUTPUT, Role.GRAD_OUTPUT, Role.GRAD_INPUT)


class PairedTokens(NamedTuple):
    """What is known of the tokens of a diff."""

    unified: Unified  # the pairs, with rows of one token side by side
    # of pairs some of whose rows have no partner, by their places
    elsewhere: Mapping[int, TokensElsewhere | RowsAlike] = {}
    # the places of those pairs of which each routing leaves rows out before any other can, by the
    # routing's number
    forward: Sequence[frozenset[int]] = ()
    routings: Sequence[Routing] = ()  # the calls of routers that chose otherwise
    # the places of what experts were given; other rows of theirs follow from it
    begins: frozenset[int] = frozenset()
    # the rows of golden's tensors that are compared, by the pairs' places
    chosen: Mapping[int, ChosenRows] = {}
    # what operators in modules' own code chose by, by the pairs' places
    scores: Mapping[int, Scores] = {}


def with_tokens(sides: PairedSides) -> PairedTokens:
    """The pairs of a diff, with golden's rows and the candidate's of one token side by side.

    A call is taken for an expert's if its input consists of some rows of a call's around it. Each
    side's rows are found by their bits among that call's rows, whose places are known."""
    routed, (chosen, scores) = routings(sides), InnerChoices.of(sides)
    # a router's own operators choose what it gives
    inner = [each for each in chosen if each.call not in {router.call for router in routed}]
    if not routed and not may_have_experts(sides):
        apart = [frozenset[int]()] * len(inner)
        return PairedTokens(sides.unified, forward=apart, routings=inner, scores=scores)
    own, unknown = list(sides.unified.pairs), dict(sides.unified.unknown)
    for place in sides.unified.unknown:
        if (odd := _other_number_of_choices(sides, place)) is not None:
            unknown[place] = odd
    flipped = {each.around: each for each in routed if each.around is not None}
    of_call = dict(expert_calls(sides, flipped))
    found: dict[int, _PairOfRows] = {}
    forward: list[set[int]] = [set() for _ in routed]
    for place, pair in enumerate(sides.pairs):
        role = pair.record.role
        experts = of_call.get(call_of_pair(pair))
        routing = None
        if experts is not None:
            paired = _paired(sides, place, experts) if role in _WITH_ROWS else None
            routing = flipped.get(experts.around)
        else:
            routing = _chosen_apart(sides, place, routed) if role is Role.OUTPUT else None
            paired = None if routing is None else _without_tokens(sides, place, routing)
        if paired is None:
            continue
        found[place], own[place] = paired, paired.pair
        unknown.pop(place, None)
        if paired.alone:
            unknown[place] = paired.elsewhere or TokensElsewhere(0, 0, 0, by_rounding=True)
        if routing is not None and role in (Role.INPUT, Role.OUTPUT):
            forward[routed.index(routing)].add(place)
    others = {place: held for place, held in sides.unified.others.items() if place not in found}
    return PairedTokens(
        sides.unified._replace(pairs=own, unknown=unknown, others=others),
        {place: told for place, each in found.items() if (told := each.elsewhere) is not None},
        [*([frozenset()] * len(inner)), *(frozenset(each) for each in forward)],
        [*inner, *routed],
        frozenset(each.place for each in of_call.values()),
        {place: each.chosen for place, each in found.items() if each.chosen is not None},
        scores,
    )


def pairs_by_token(
    golden: Bundle, candidate: Bundle, ranks: RankRecords, pairs: Sequence[Pair], unified: Unified
) -> dict[int, Pair]:
    """The pairs of a golden of one device and of ranks whose rows lie side by side by token, by
    their places; without those some of whose rows have no partner."""
    found = with_tokens(PairedSides(golden, candidate, (None, ranks), pairs, unified))
    return {
        place: found.unified.pairs[place] for place in found.chosen if place not in found.elsewhere
    }


def _other_number_of_choices(sides: PairedSides, place: int) -> RanksDiffer | None:
    """The ranks that choose another number of experts than golden."""
    pair = sides.pairs[place]
    if pair.record.role is not Role.OUTPUT or not may_be_choice(pair.golden):
        return None
    assert pair.golden is not None
    theirs = sides.held(place)[1]
    wrong = {
        record.rank
        for record in theirs
        if len(record.shape) == len(pair.golden.shape) and record.shape[-1] != pair.golden.shape[-1]
    }
    ranks = tuple(sorted({record.rank for record in theirs}))
    return RanksDiffer(ranks, tuple(sorted(wrong))) if wrong else None


# pairs of chosen rows


class _PairOfRows(NamedTuple):
    """A pair of chosen rows, and what has no partner; ``alone``: whether nothing has one."""

    pair: Pair
    elsewhere: TokensElsewhere | RowsAlike | None
    alone: bool = False
    chosen: ChosenRows | None = None


def _paired(sides: PairedSides, place: int, experts: ExpertCall) -> _PairOfRows | None:
    """A pair of an expert's rows; ``None`` if it has no such rows."""
    ours, theirs = sides.held(place)
    by_holder = {(record.rank, record.call): record for record in theirs}
    if not all(has_rows(each, vectors=True) for each in (*ours, *theirs)) or any(
        rows_and_width(record)[0] != experts.golden for record in ours
    ):
        return None
    if any(record.shard is not None for record in theirs):
        return None  # parts of rows, or terms of a sum
    if not experts.golden and not any(unit.rows for unit in experts.units):
        return None
    told: TokensElsewhere | RowsAlike | None = experts.elsewhere
    gradient = sides.pairs[place].record.role in GRADIENT_ROLES
    if gradient and experts.alike is not None and experts.alike.any():
        apart = ~experts.alike
        told = RowsAlike(int(experts.alike.sum()), len(apart))
        experts = experts._replace(ours=experts.ours[apart], theirs=experts.theirs[apart])
    if not ours or not theirs:
        # with no rows, it may as well not be called
        lost = experts.golden if ours else sum(unit.rows for unit in experts.units)
        known = sides.unified.pairs[place]
        return _PairOfRows(known, told if lost else None, alone=True) if ours or theirs else None
    pair, golden, candidate = sides.pairs[place], ours[0], sides.pairs[place].candidate
    assert candidate is not None
    boxes, every, done = [], [], 0
    _, width = rows_and_width(theirs[0])
    for unit in experts.units:
        held = [by_holder.get(holder) for holder in unit.holders]
        records = [record for record in held if record is not None]
        if len(records) < len(held) or any(
            rows_and_width(record) != (unit.rows, width) for record in records
        ):
            return None
        last = unit.start + unit.rows
        if unit.rows:
            every.append(box_of_rows(records, np.arange(unit.rows), unit.start))
        rows = experts.theirs[(experts.theirs >= unit.start) & (experts.theirs < last)]
        if len(rows):
            boxes.append(box_of_rows(records, rows - unit.start, done))
            done += len(rows)
    if not boxes:
        if every and sides.ranks[1] is not None:
            count = sum(unit.rows for unit in experts.units)
            pair = replace(pair, candidate=global_rows(candidate, (count, width), every))
        return _PairOfRows(pair, told, alone=True)
    shape = done, width
    if not (are_all(experts.ours, golden.shape) and len(golden.shape) == 2):
        golden = global_rows(golden, shape, [box_of_rows([golden], experts.ours, 0)])
    alone = len(boxes) == 1 and not boxes[0].taken and not boxes[0].replicas
    if sides.ranks[1] is not None or not alone or candidate.shape != shape:
        candidate = global_rows(candidate, shape, boxes)
    chosen = ChosenRows(ours[0], experts.ours, experts.tokens)
    paired = replace(pair, golden=golden, candidate=candidate)
    return _PairOfRows(paired, told, chosen=chosen)


# rows of tokens that were routed otherwise


def _chosen_apart(sides: PairedSides, place: int, routed: Sequence[Routing]) -> Routing | None:
    """The routing that changes rows of an output: the router's own, or that of the call around."""
    records = sides.put_together(place)
    if records is None or not has_rows(records[0]):
        return None
    call = call_of_pair(sides.pairs[place])
    for routing in routed:
        own = call in (routing.call, routing.around)
        if (
            own
            and place not in routing.scores
            and len(routing.tokens)
            and routing.remark.by_rounding
        ):
            return routing if row_count(records[0]) == routing.remark.of else None
    return None


def _without_tokens(sides: PairedSides, place: int, routing: Routing) -> _PairOfRows | None:
    """A pair without the tokens that were routed otherwise; ``None`` if it cannot be made, or no
    row is left."""
    records = sides.put_together(place)
    if records is None:
        return None
    ours, theirs = map(placed_rows, records)
    if ours is None or theirs is None or len(ours) > 1:
        return None
    boxes: list[Box] = []
    order: list[Numbers] = []
    done = 0
    known: dict[bytes, int] = {}
    for each in theirs:
        kept = ~np.isin(each.of_whole, routing.tokens)
        of_whole, own = each.of_whole[kept], each.own[kept]
        if not len(own):
            continue
        at = known.setdefault(of_whole.tobytes(), len(boxes))
        if at < len(boxes):
            replicas = (*boxes[at].replicas, (each.record,))
            boxes[at] = replace(boxes[at], replicas=replicas)
            continue
        boxes.append(box_of_rows([each.record], own, done))
        order.append(of_whole)
        done += len(own)
    if not boxes:
        return None
    rows = np.concatenate(order)
    back = np.empty(row_count(records[0]), np.int64)
    back[ours[0].of_whole] = ours[0].own
    shape = done, records[0].shape[-1]
    golden = global_rows(records[0], shape, [box_of_rows([ours[0].record], back[rows], 0)])
    remark = routing.remark
    return _PairOfRows(
        replace(sides.pairs[place], golden=golden, candidate=global_rows(records[1], shape, boxes)),
        TokensElsewhere(remark.tokens, 0, remark.of, remark.by_rounding),
        chosen=ChosenRows(ours[0].record, back[rows]),
    )
