"""Which calls are experts', and which of their rows are of one token on both sides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from accucompare.bundle.format import Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.constants import BY_DIGITS
from accucompare.compare.remarks import CalledInParts, TokensElsewhere
from accucompare.compare.tokens.chosen_rows import TokensOfRows, are_all
from accucompare.compare.tokens.paired_sides import (
    CallOfStep,
    PairedSides,
    PlacedRows,
    call_of_pair,
    caller_of_pair,
    first_inputs,
    has_rows,
    placed_rows,
    row_count,
)
from accucompare.compare.tokens.routing import Routing, may_be_choice
from accucompare.compare.tokens.row_labels import (
    HeldRows,
    Numbers,
    RowDigests,
    RowLabels,
    alike_rows,
    near_rows,
    paired_rows,
    row_digests,
)
from accucompare.numbers import DTYPES

#: How many calls around an expert's are looked at for its tokens.
_MOST_AROUND = 3
#: How many records after an expert's first input are looked at for its others.
_MOST_BESIDE = 8

#: A rank's call.
_Holder = tuple[int, int]


class EqualCalls(NamedTuple):
    """Ranks' calls that were given the same rows; where these lie among all of the candidate's."""

    holders: tuple[_Holder, ...]
    rows: int
    start: int


class ExpertCall(NamedTuple):
    """A call that was given some tokens, and the rows of both sides that belong together."""

    around: CallOfStep  # the call whose tokens these are
    place: int  # of the pair of what the call was given
    golden: int  # how many rows golden has
    units: tuple[EqualCalls, ...]  # the candidate's rows
    # ours, theirs: the rows that belong together
    ours: Numbers
    theirs: Numbers
    elsewhere: TokensElsewhere | None  # what has no partner
    tokens: TokensOfRows | None  # what tells the rows of another run
    alike: NDArray[np.bool_] | None = None  # which of these rows another may be taken for


def may_have_experts(sides: PairedSides) -> bool:
    """Whether a call's name says so, some ranks alone hold it, or the two sides' rows differ."""
    owned = any(ranks is not None and ranks.holders.modules for ranks in sides.ranks)
    for place, pair in enumerate(sides.pairs):
        if pair.record.role is Role.INPUT and (
            owned
            or "expert" in pair.record.name.lower()
            or (place in sides.unified.unknown and not _is_in_parts(sides, place))
        ):
            return True
        ours, theirs = pair.golden, pair.candidate
        if (
            sides.ranks == (None, None)
            and ours is not None
            and theirs is not None
            and ours.role is Role.INPUT
            and len(ours.shape) > 1
            and ours.shape != theirs.shape
        ):
            return True
    return False


def expert_calls(
    sides: PairedSides, flipped: Mapping[CallOfStep, Routing]
) -> Iterator[tuple[CallOfStep, ExpertCall]]:
    """The calls of experts and of what they call."""
    inputs = first_inputs(sides.pairs)
    callers = {
        call_of_pair(pair): caller_of_pair(pair)
        for pair in sides.pairs
        if pair.record.role in (Role.INPUT, Role.OUTPUT)
    }
    alike = {
        _pattern(call)
        for call, place in inputs.items()
        if (above := _above(sides, call, place, inputs, callers)) is not None
        and _counts(sides, place) != _counts(sides, inputs[above])
    }
    chosen = {  # what routers give
        pair.golden.digest
        for pair in sides.pairs
        if pair.golden is not None
        and pair.golden.role is Role.OUTPUT
        and may_be_choice(pair.golden)
    }
    choosing = {  # calls that are told which experts tokens go to
        call_of_pair(pair)
        for pair in sides.pairs
        if pair.golden is not None
        and pair.golden.role is Role.INPUT
        and may_be_choice(pair.golden)
        and pair.golden.digest in chosen
    }
    known: dict[CallOfStep, ExpertCall] = {}
    labels: dict[CallOfStep, RowLabels | None] = {}
    for call in callers:
        if call in inputs and (
            _is_in_parts(sides, inputs[call]) or _is_goldens(sides, inputs[call])
        ):
            continue
        caller = callers[call]
        found = known.get(caller) if caller is not None else None
        around = None
        if found is not None and call in inputs and not _has_rows_of(sides, inputs[call], found):
            around, found = found.around, None  # one of the experts that the caller holds
        if found is None and call in inputs and _pattern(call) in alike | {_named(call)}:
            place = inputs[call]
            above = around or _above(sides, call, place, inputs, callers)
            if above is not None and not _in_order(sides, place, inputs[above]):
                if above not in labels:
                    labels[above] = _labels(sides, inputs[above])
                table = labels[above]
                if table is not None:
                    found = _matched(sides, place, above, inputs, table, flipped.get(above))
        if found is None and call in inputs and caller in choosing:
            found = _matched_by_values(sides, inputs[call], caller)
        if found is not None:
            known[call] = found
            yield call, found


def _has_rows_of(sides: PairedSides, place: int, experts: ExpertCall) -> bool:
    """Whether a call was given as many rows as an expert's, on both sides."""
    ours, theirs = _counts(sides, place)
    units = {holder: unit.rows for unit in experts.units for holder in unit.holders}
    return ours == {experts.golden} and theirs == units


def _is_in_parts(sides: PairedSides, place: int) -> bool:
    """Whether it is known why a call's tensors cannot be put together: a ring has parts of them."""
    return isinstance(sides.unified.unknown.get(place), CalledInParts)


def _is_goldens(sides: PairedSides, place: int) -> bool:
    """Whether one device was given golden's bits, so that each row has its place."""
    pair = sides.pairs[place]
    if sides.ranks != (None, None) or pair.golden is None or pair.candidate is None:
        return False
    return pair.golden.digest is not None and pair.golden.digest == pair.candidate.digest


def _pattern(call: CallOfStep) -> str:
    return re.sub(r"\d+", "#", call[1])


def _named(call: CallOfStep) -> str:
    """The pattern, if its name says that it is of experts."""
    return _pattern(call) if "expert" in call[1].lower() else ""


def _above(
    sides: PairedSides,
    call: CallOfStep,
    place: int,
    inputs: Mapping[CallOfStep, int],
    callers: Mapping[CallOfStep, CallOfStep | None],
) -> CallOfStep | None:
    """The nearest call around one whose rows are as long as its own."""
    width, caller = _width(sides, place), callers.get(call)
    for _ in range(_MOST_AROUND):
        if caller is None:
            return None
        at = inputs.get(caller)
        if at is not None and sides.put_together(at) is not None:
            return caller if _width(sides, at) == width else None
        caller = callers.get(caller)
    return None


def _width(sides: PairedSides, place: int) -> int:
    """How long the rows are; of golden, if it has rows."""
    pair = sides.pairs[place]
    record = pair.golden if has_rows(pair.golden) else pair.candidate
    assert record is not None
    return record.shape[-1]


def _counts(sides: PairedSides, place: int) -> tuple[set[int], dict[_Holder, int]]:
    """How many rows golden has, and how many each rank of the candidate."""
    ours, theirs = sides.held(place)
    return set(map(row_count, ours)), {(each.rank, each.call): row_count(each) for each in theirs}


def _in_order(sides: PairedSides, place: int, above: int) -> bool:
    """Whether a call was given what the one around it was, in that order: on every rank, or of
    one device by golden, of as many rows. Another order is then a difference."""
    ours, theirs = (
        _same_bits(*each) for each in zip(sides.held(place), sides.held(above), strict=True)
    )
    golden, candidate = _counts(sides, place)
    return ours and (theirs or (sides.ranks == (None, None) and golden == {*candidate.values()}))


def _same_bits(given: Sequence[Record], around: Sequence[Record]) -> bool:
    bits = {each.rank: each.digest for each in around}
    return bool(given) and all(each.digest == bits.get(each.rank) for each in given)


def _labels(sides: PairedSides, place: int) -> RowLabels | None:
    """The labels of the tokens of a call, by its input."""
    records = sides.put_together(place)
    if records is None or records[0].shape[-1] != records[1].shape[-1]:
        return None
    tables = []
    for bundle, record in zip((sides.golden, sides.candidate), records, strict=True):
        placed = placed_rows(record)
        if placed is None or record.member is None:
            return None
        tables.append([_held(bundle, each) for each in placed])
    count = row_count(records[0])
    return RowLabels(count, *tables) if row_count(records[1]) == count else None


def _held(bundle: Bundle, placed: PlacedRows) -> HeldRows:
    return HeldRows(row_digests(bundle.raw(placed.record))[placed.own], placed.of_whole)


def _matched(
    sides: PairedSides,
    place: int,
    above: CallOfStep,
    first_inputs_of: Mapping[CallOfStep, int],
    labels: RowLabels,
    routing: Routing | None,
) -> ExpertCall | None:
    """The rows of both sides of a call that belong together; ``None`` if most are no token's."""
    ours, theirs = sides.held(place)
    if any(each.member is None for each in (*ours, *theirs)) or len(ours) > 1:
        return None
    golden = labels.golden(_digests(sides.golden, ours))
    units = _units(theirs)
    firsts = _firsts(theirs, units)
    candidate = labels.candidate(_digests(sides.candidate, firsts))
    padding = [
        _is_padding(bundle, records)
        for bundle, records in ((sides.golden, ours), (sides.candidate, firsts))
    ]
    if sides.ranks == (None, None) and (
        np.array_equal(golden, candidate) or (golden[~padding[0]] < 0).any()
    ):
        return None  # each row has its place, or some of golden's are no token's
    for found, zeros in zip((golden, candidate), padding, strict=True):
        if 2 * int((found[~zeros] < 0).sum()) > len(found) - int(zeros.sum()):
            return None
    away = np.empty(0, np.int64)
    if routing is not None and routing.remark.by_rounding:
        away = np.unique(labels.of_tokens[routing.tokens])
    keys: Sequence[Numbers] = golden, candidate
    numbers = _expert_numbers(sides, place, ours, units)
    if numbers is not None:
        most = 1 + max(int(each.max(initial=0)) for each in numbers)
        keys = [
            np.where(each < 0, -1, each * most + own)
            for each, own in zip(keys, numbers, strict=True)
        ]
    elif len(away) and _are_stacked(labels, golden):  # a token's rows are its experts'
        keys = [np.where(np.isin(each, away), -1, each) for each in keys]
    first, second = paired_rows(*keys)
    left = [
        np.flatnonzero(~np.isin(np.arange(len(each)), held) & ~zeros)
        for each, held, zeros in zip((golden, candidate), (first, second), padding, strict=True)
    ]
    told = None
    if any(map(len, left)):
        lost = np.concatenate([golden[left[0]], candidate[left[1]]])
        explained = bool(len(away)) and bool(np.isin(lost, away).all())
        on = {
            rank
            for unit in units
            if ((left[1] >= unit.start) & (left[1] < unit.start + unit.rows)).any()
            for rank, _ in unit.holders
        }
        several = sides.ranks[1] is not None
        ranks = tuple(sorted(on)) if several else ()
        told = TokensElsewhere(len(left[0]), len(left[1]), len(golden), explained, ranks)
    around_it = sides.unified.pairs[first_inputs_of[above]].golden
    tokens = None
    if ours and around_it is not None:
        tokens = TokensOfRows(ours[0], around_it, golden, labels.of_tokens)
    return ExpertCall(above, place, len(golden), units, first, second, told, tokens)


def _units(records: Sequence[Record]) -> tuple[EqualCalls, ...]:
    """The calls of ranks that were given the same rows, together."""
    alike: dict[str | None, list[Record]] = {}
    for record in records:
        alike.setdefault(record.digest if row_count(record) else None, []).append(record)
    units: list[EqualCalls] = []
    start = 0
    for held in alike.values():
        holders = tuple((record.rank, record.call) for record in held)
        units.append(EqualCalls(holders, row_count(held[0]), start))
        start += row_count(held[0])
    return tuple(units)


def _firsts(records: Sequence[Record], units: Iterable[EqualCalls]) -> list[Record]:
    """The first record of each unit."""
    known = {(record.rank, record.call): record for record in records}
    return [known[unit.holders[0]] for unit in units]


def _matched_by_values(
    sides: PairedSides, place: int, caller: CallOfStep | None
) -> ExpertCall | None:
    """The rows of a call inside an expert's own code, whose inputs are no token's, by their values;
    ``None`` unless each row of golden's is one of the ranks'."""
    ours, theirs = sides.held(place)
    units = _units(theirs)
    rows = sum(unit.rows for unit in units)
    if sides.ranks[1] is None or caller is None or len(ours) != 1 or row_count(ours[0]) != rows:
        return None
    every = (*ours, *theirs)
    if not all(map(has_rows, every)) or len({each.shape[-1] for each in every}) > 1:
        return None
    limit = BY_DIGITS[min(DTYPES[each.dtype].digits for each in every)][0]
    golden, candidate = (
        np.concatenate(
            [bundle.values(each).reshape(-1, each.shape[-1]).astype(np.float64) for each in records]
        )
        for bundle, records in ((sides.golden, ours), (sides.candidate, _firsts(theirs, units)))
    )
    if _is_put_together(sides, place, golden, limit):
        return None
    first, second = near_rows(golden, candidate, limit)
    if len(first) < rows or are_all(first, ours[0].shape):
        return None
    alike = alike_rows(golden, 2 * limit)[first]
    return ExpertCall(caller, place, rows, units, first, second, None, None, alike)


def _is_put_together(
    sides: PairedSides, place: int, golden: NDArray[np.float64], limit: float
) -> bool:
    """Whether the ranks' rows, where their layout has them, are golden's: those of parts of a
    sequence lie in another order than the ranks do."""
    records = sides.put_together(place)
    placed = None if records is None else placed_rows(records[1])
    if placed is None:
        return False
    found = np.full_like(golden, np.nan)
    for each in placed:
        values = sides.candidate.values(each.record).reshape(-1, golden.shape[-1])
        found[each.of_whole] = values[each.own]
    apart = np.linalg.norm(found - golden, axis=-1)
    return bool(np.all(apart <= limit * np.linalg.norm(golden, axis=-1)))


def _expert_numbers(
    sides: PairedSides, place: int, ours: Sequence[Record], units: Sequence[EqualCalls]
) -> tuple[Numbers, Numbers] | None:
    """Each row's expert, on both sides, if the call was told how many rows each expert has."""
    call = call_of_pair(sides.pairs[place])
    beside = (
        other
        for other in range(place + 1, min(place + 1 + _MOST_BESIDE, len(sides.pairs)))
        if sides.pairs[other].record.role is Role.INPUT and call_of_pair(sides.pairs[other]) == call
    )
    for other in beside:
        golden, candidate = sides.held(other)
        known = {(record.rank, record.call): record for record in candidate}
        found = [_by_count(sides.golden, golden, row_count(ours[0]))] if ours else []
        for unit in units:
            record = known.get(unit.holders[0])
            held = [] if record is None else [record]
            found.append(_by_count(sides.candidate, held, unit.rows))
        counted = [each for each in found if each is not None]
        if not ours or len(counted) < len(found):
            continue
        (own, experts), *theirs = counted
        parts, start = [], 0
        for numbers, count in theirs:
            parts.append(numbers + start)
            start += count if count < experts else 0
        if start in (0, experts):
            return own, np.concatenate(parts) if parts else np.empty(0, np.int64)
    return None


def _by_count(bundle: Bundle, records: Sequence[Record], rows: int) -> tuple[Numbers, int] | None:
    """Each row's expert, by how many rows each has, and how many experts there are."""
    for record in records:
        if record.member is None or len(record.shape) != 1 or DTYPES[record.dtype].digits:
            continue
        counts = bundle.values(record).astype(np.int64)
        if counts.min(initial=0) >= 0 and counts.sum() == rows:
            return np.repeat(np.arange(len(counts)), counts), len(counts)
    return None


def _digests(bundle: Bundle, records: Sequence[Record]) -> RowDigests:
    found = [row_digests(bundle.raw(record)) for record in records]
    return np.concatenate(found) if found else np.empty(0, np.uint64)


def _is_padding(bundle: Bundle, records: Sequence[Record]) -> Numbers:
    """Whether each row is all zeros."""
    found = [~bundle.values(record).reshape(-1, record.shape[-1]).any(axis=1) for record in records]
    return np.concatenate(found) if found else np.empty(0, bool)


def _are_stacked(labels: RowLabels, rows: Numbers) -> bool:
    """Whether a token has several rows: one for each of its experts."""
    held, times = np.unique(rows[rows >= 0], return_counts=True)
    tokens, of_label = np.unique(labels.of_tokens, return_counts=True)
    known = dict(zip(tokens.tolist(), of_label.tolist(), strict=True))
    return any(
        many > known.get(label, 0)
        for label, many in zip(held.tolist(), times.tolist(), strict=True)
    )
