"""Which tokens a router sent to other experts than golden's, and whether rounding explains it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accucompare.bundle.format import Record, Role
from accucompare.compare.constants import FLIPPED
from accucompare.compare.remarks import RoutedOtherwise
from accucompare.compare.tokens.paired_sides import (
    CallOfStep,
    PairedSides,
    call_of_pair,
    caller_of_pair,
    has_rows,
)
from accucompare.compare.tokens.row_labels import Numbers
from accucompare.numbers import DTYPES, Kind

#: The most experts that a token may have; more integers in a row are no choice.
_MOST_CHOSEN = 256
_MOST_EXPERTS = 1 << 14

_Floats = NDArray[np.float64]
_Mask = NDArray[np.bool_]


class Routing(NamedTuple):
    """A router's call whose choices are not golden's."""

    call: CallOfStep  # of the router
    around: CallOfStep | None  # the call in which it was made
    order: int  # its place in golden's step
    choices: tuple[int, ...]  # the places of the pairs of its choices
    # the places of the pairs of scores that it chose by, or that these are made of; none if they
    # are not known
    scores: tuple[int, ...]
    tokens: Numbers  # those that were sent elsewhere
    remark: RoutedOtherwise  # what there is to say
    inner: bool = False  # whether an operator in the call's own code chose
    decides: bool = True  # whether what follows may be other work
    right: bool = False  # whether the candidate's own scores lead to what it chose

    @property
    def place(self) -> tuple[int, int]:
        """Where in golden's order it is: step, and order in that."""
        return self.call[0], self.order


def routings(sides: PairedSides) -> list[Routing]:
    """The calls of routers whose choices are not golden's, in golden's order.

    A router is a module that gives integers for each row, or a mask, and beside them scores of
    which these are the highest, on golden's side in every row; as many for each row."""
    found = []
    for call, places in _by_call(sides).items():
        chosen = [
            place
            for place in places
            for pair in [sides.pairs[place]]
            if may_be_choice(pair.golden) and may_be_choice(pair.candidate)
        ]
        differing = [place for place in chosen if _differs(sides, place)]
        if not differing:
            continue
        routing = _routing(sides, call, differing, _scores_of(sides, call, places))
        if routing is not None:
            found.append(routing)
    return sorted(found, key=attrgetter("place"))


def _by_call(sides: PairedSides) -> dict[CallOfStep, list[int]]:
    """The places of outputs of calls that give choices."""
    found: dict[CallOfStep, list[int]] = {}
    for place, pair in enumerate(sides.pairs):
        if pair.record.role is Role.OUTPUT and sides.put_together(place) is not None:
            found.setdefault(call_of_pair(pair), []).append(place)
    return {
        call: places
        for call, places in found.items()
        if any(may_be_choice(sides.pairs[place].golden) for place in places)
    }


def may_be_choice(record: Record | None) -> bool:
    """Whether a record may say for each row which experts it goes to."""
    return (
        record is not None
        and record.member is not None
        and len(record.shape) in (2, 3)  # attention's masks have four
        and record.dtype in DTYPES
        and DTYPES[record.dtype].kind in (Kind.INT, Kind.BOOL)
        and 0 < record.shape[-1] <= (_MOST_CHOSEN if record.dtype != "bool" else record.shape[-1])
    )


def _differs(sides: PairedSides, place: int) -> bool:
    records = sides.put_together(place)
    if records is None or records[0].shape != records[1].shape:
        return False
    return records[0].digest is None or records[0].digest != records[1].digest


class _Scores(NamedTuple):
    """Golden's scores and the candidate's that a router may have chosen by."""

    places: tuple[int, ...]  # of the pairs that they are, or are made of
    golden: _Floats
    candidate: _Floats
    digits: int  # of the type that they were made in


def _scores_of(sides: PairedSides, call: CallOfStep, places: Sequence[int]) -> Iterator[_Scores]:
    """What a router may have chosen by: its own outputs, those of its calls, or what its weight
    makes of its input."""
    called = [
        place
        for place, pair in enumerate(sides.pairs)
        if pair.record.role is Role.OUTPUT and caller_of_pair(pair) == call
    ]
    for place in (*places, *called):
        if _has_scores(sides, place):
            ours, theirs = _floats(sides, place)
            yield _Scores((place,), ours, theirs, _digits(sides, place))
    own = [place for place, pair in enumerate(sides.pairs) if call_of_pair(pair) == call]
    given = [place for place in own if _is(sides, place, Role.INPUT)]
    weights = [
        place
        for place, pair in enumerate(sides.pairs)
        if (pair.record.step, pair.record.name) == call[:2] and _is(sides, place, Role.PARAM_BEFORE)
    ]
    for weight in weights if given else ():
        rows, held = _floats(sides, given[0]), _floats(sides, weight)
        if all(x.shape[1] == w.shape[1] for x, w in zip(rows, held, strict=True)):
            ours, theirs = (x @ w.T for x, w in zip(rows, held, strict=True))
            digits = min(_digits(sides, given[0]), _digits(sides, weight))
            yield _Scores((given[0], weight), ours, theirs, digits)


def _is(sides: PairedSides, place: int, role: Role) -> bool:
    return sides.pairs[place].record.role is role and _has_scores(sides, place)


def _floats(sides: PairedSides, place: int) -> list[_Floats]:
    return [each.astype(np.float64) for each in _values(sides, place)]


def _digits(sides: PairedSides, place: int) -> int:
    """The significand bits of the coarser side."""
    records = sides.put_together(place) or ()
    return min(DTYPES[record.dtype].digits for record in records)


def _has_scores(sides: PairedSides, place: int) -> bool:
    records = sides.put_together(place)
    return records is not None and all(map(has_rows, records))


def _routing(
    sides: PairedSides, call: CallOfStep, places: Sequence[int], scores: Iterator[_Scores]
) -> Routing | None:
    ours, theirs = _values(sides, places[0])
    experts = int(max(ours.max(initial=0), theirs.max(initial=0))) + 1
    least = int(min(ours.min(initial=0), theirs.min(initial=0)))
    if ours.dtype == bool:
        experts = ours.shape[1]
    elif least < 0 or experts > _MOST_EXPERTS:
        return None
    masks = [_mask(each, experts) for each in (ours, theirs)]
    if not _is_choice(masks[0]):
        return None
    tokens = np.flatnonzero((masks[0] != masks[1]).any(axis=1))
    chosen_by: tuple[int, ...] = ()
    margin, apart, explained = None, None, not len(tokens)
    for each in scores:
        values = each.golden, each.candidate
        if len({len(ours), *map(len, values)}) > 1 or values[0].shape != values[1].shape:
            continue
        if values[0].shape[1] < experts:
            continue
        wide = [_mask(own, values[0].shape[1]) for own in (ours, theirs)]
        if not values[0][~wide[0]].any():  # only what was chosen has a score
            continue
        if not _are_highest(values[0], wide[0], each.digits).all():
            continue
        chosen_by = each.places
        if len(tokens):
            right = _are_highest(values[1], wide[1], each.digits)[tokens].all()
            margin, apart, near = _margins(values, wide, tokens)
            explained = bool(right and near)
        break
    remark = RoutedOtherwise(len(tokens), len(ours), margin, apart, bool(explained))
    first = sides.pairs[places[0]]
    order = first.record.order
    return Routing(call, caller_of_pair(first), order, tuple(places), chosen_by, tokens, remark)


def _values(sides: PairedSides, place: int) -> list[Any]:
    """Golden's rows and the candidate's of a pair that is known on both sides."""
    records = sides.put_together(place) or ()
    bundles = sides.golden, sides.candidate
    return [
        bundle.values(record).reshape(-1, record.shape[-1])
        for bundle, record in zip(bundles, records, strict=True)
    ]


def _mask(chosen: NDArray[np.generic], experts: int) -> _Mask:
    if chosen.dtype == bool:
        found: _Mask = np.zeros((len(chosen), experts), bool)
        found[:, : chosen.shape[1]] = chosen
        return found
    found = np.zeros((len(chosen), experts), bool)
    np.put_along_axis(found, chosen.astype(np.int64), True, axis=1)
    return found


def _is_choice(chosen: _Mask) -> bool:
    """Whether rows choose as many experts as each other, but not all; of padding, none. A mask of
    what is above a threshold does not."""
    counts = chosen.sum(axis=1)
    counts = counts[counts > 0]
    return bool(len(counts) and (counts == counts[0]).all() and counts[0] < chosen.shape[1])


def _are_highest(scores: _Floats, chosen: _Mask, digits: int) -> NDArray[np.bool_]:
    """Whether the chosen ones of each row are the highest, as far as their type tells."""
    lowest = np.where(chosen, scores, np.inf).min(axis=1)
    highest = np.where(chosen, -np.inf, scores).max(axis=1)
    return np.asarray(lowest >= highest - 2.0 ** (1 - digits) * np.abs(scores).max(axis=1))


def _margins(
    scores: Sequence[_Floats], chosen: Sequence[_Mask], tokens: Numbers
) -> tuple[float, float, bool]:
    """The largest margin in golden's scores by which a token that was sent elsewhere was decided,
    how far the two sides' scores are apart there, and whether that is as far as elsewhere."""
    apart = np.abs(scores[1] - scores[0])
    ours = scores[0][tokens]
    lost, won = (chosen[0] & ~chosen[1])[tokens], (chosen[1] & ~chosen[0])[tokens]
    margins = np.where(lost, ours, -np.inf).max(axis=1) - np.where(won, ours, np.inf).min(axis=1)
    usual = float(np.sqrt(np.mean(np.square(apart))))
    worst = int(np.argmax(margins))
    return (
        max(0.0, float(margins[worst])),
        float((apart[tokens] * (lost | won)).max(axis=1)[worst]),
        bool(margins[worst] <= FLIPPED * usual),
    )
