"""What operators in a module's own code chose otherwise than golden's, and whether rounding did."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accucompare.bundle.format import Layout, Role
from accucompare.compare.constants import FLIPPED
from accucompare.compare.pairing import Pair
from accucompare.compare.remarks import RoutedOtherwise
from accucompare.compare.tokens.paired_sides import PairedSides, call_of_pair
from accucompare.compare.tokens.routing import Routing
from accucompare.numbers import DTYPES
from accucompare.selection import Level

_Floats = NDArray[np.float64]
_Places = NDArray[np.int64]
_Mask = NDArray[np.bool_]

#: Operators that compare, by the beginning of their names.
_COMPARES = {f"aten.{name}.": getattr(operator, name) for name in ("lt", "le", "gt", "ge")}
#: Operators that choose.
_CHOOSES = (*_COMPARES, "aten.topk.", "aten.sort.", "aten.max.", "aten.min.", "aten.arg")
#: What it takes may change hardly more than the scores do: the highest value, a mask that cuts at
#: zero. Another choice of theirs explains nothing of what follows.
_OF_VALUES = ("aten.max.", "aten.min.")


class _Flips(NamedTuple):
    """Choices that differ."""

    right: bool  # whether the candidate's own scores lead to its choices
    margins: _Floats  # in golden's scores, by which each was decided
    apart: _Floats  # how far the two sides' scores are apart, there and on average
    usual: float
    rounding: _Floats  # of these scores, there


class Scores(NamedTuple):
    """What an operator chose by."""

    number: float  # the size of the number that it was compared with; 0 if with none
    same: bool  # whether it led to golden's choice


class InnerChoices(NamedTuple):
    """What operators in modules' own code chose."""

    otherwise: list[Routing]  # those that did not choose as golden's, in golden's order
    scores: dict[int, Scores]  # what they chose by, by the pairs' places

    @classmethod
    def of(cls, sides: PairedSides) -> InnerChoices:
        found = cls([], {})
        levels = (each.manifest.capture.get("level") for each in (sides.golden, sides.candidate))
        if Level.OP in levels:
            return found  # scores are as the operator took them
        for parts in _by_operator(sides).values():
            place = parts.get("")
            if place is None or sides.put_together(place) is None:
                continue
            otherwise = _is_otherwise(sides, place)
            if otherwise is not None:
                number = _number(sides, parts["other"]) if "other" in parts else None
                scores = Scores(number or 0.0, not otherwise)
                found.scores.update(
                    {at: scores for part, at in parts.items() if part and _is_tensor(sides, at)}
                )
            if otherwise:
                found.otherwise.append(_inner(sides, place, parts))
        return found


def _is_kept(pair: Pair) -> bool:
    """Whether the values of both sides were."""
    return all(
        each is not None and each.member is not None for each in (pair.golden, pair.candidate)
    )


def _is_otherwise(sides: PairedSides, place: int) -> bool | None:
    """Whether choices differ; ``None`` if there are not as many."""
    ours, theirs = sides.put_together(place) or (None, None)
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return None
    return ours.digest is None or ours.digest != theirs.digest


def _number(sides: PairedSides, place: int) -> float | None:
    """The size of a number that both sides were given."""
    if _is_tensor(sides, place) or sides.put_together(place) is None:
        return None
    ours, theirs = (abs(float(each)) for each in _values(sides, place))
    return ours if ours == theirs else None


def _by_operator(sides: PairedSides) -> dict[tuple[Any, ...], dict[str, int]]:
    """The places of what operators took and gave, by its part; ``""`` for the result."""
    found: dict[tuple[Any, ...], dict[str, int]] = {}
    for place, pair in enumerate(sides.pairs):
        record = pair.record
        if (
            record.role in (Role.OP_INPUT, Role.OP_OUTPUT)
            and record.type.startswith(_CHOOSES)
            and _is_kept(pair)
        ):
            key = *call_of_pair(pair), *record.operator
            found.setdefault(key, {})[record.part] = place
    return found


def _inner(sides: PairedSides, place: int, parts: Mapping[str, int]) -> Routing:
    record = sides.pairs[place].record
    golden, candidate = _values(sides, place)
    scores = tuple(at for part, at in parts.items() if part and _is_tensor(sides, at))
    compares = next((of for name, of in _COMPARES.items() if record.type.startswith(name)), None)
    if compares is not None:
        different = golden != candidate
        flips = _of_masks(sides, parts, compares, candidate, different)
    else:
        golden, candidate = (
            each.reshape(-1, each.shape[-1]).astype(np.int64) for each in (golden, candidate)
        )
        different = (golden != candidate).any(axis=1)
        flips = _of_places(sides, parts.get("self"), (golden, candidate), different)
    rows = np.flatnonzero(different)
    margin = apart = None
    explained = False
    if flips is not None and len(flips.margins):
        worst = int(np.argmax(flips.margins))
        margin, apart = float(flips.margins[worst]), float(flips.apart[worst])
        near = flips.margins <= FLIPPED * np.maximum(flips.usual, flips.rounding)
        explained = flips.right and bool(near.all())
    remark = RoutedOtherwise(
        len(rows), different.size, margin, apart, explained, of_operator=record.type
    )
    call = call_of_pair(sides.pairs[place])
    at_zero = "other" in parts and _number(sides, parts["other"]) == 0.0
    decides = not record.type.startswith(_OF_VALUES) and not at_zero
    right = flips is not None and flips.right
    return Routing(call, None, record.order, (place,), scores, rows, remark, True, decides, right)


def _is_tensor(sides: PairedSides, place: int) -> bool:
    return sides.pairs[place].record.layout is Layout.STRIDED


def _values(sides: PairedSides, place: int) -> list[NDArray[Any]]:
    records = sides.put_together(place) or ()
    bundles = sides.golden, sides.candidate
    return [bundle.values(each) for bundle, each in zip(bundles, records, strict=True)]


def _digits(sides: PairedSides, place: int) -> int:
    """The significand bits of the coarser side."""
    return min(DTYPES[each.dtype].digits for each in sides.put_together(place) or ())


def _distance(first: _Floats, second: _Floats) -> _Floats:
    """How far values are apart; the same infinity not at all."""
    with np.errstate(invalid="ignore"):
        found = np.abs(first - second)
    return np.asarray(np.where(first == second, 0.0, found))


def _usual(apart: _Floats) -> float:
    finite = apart[np.isfinite(apart)]
    return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0


def _of_places(
    sides: PairedSides, place: int | None, chosen: tuple[_Places, _Places], rows: _Mask
) -> _Flips | None:
    """The flips of places along a dimension; ``None`` if the scores are not known."""
    held = [] if place is None else _values(sides, place)
    scores = [each.reshape(-1, each.shape[-1]).astype(np.float64) for each in held]
    if place is None or len(scores) < 2 or scores[0].shape != scores[1].shape:
        return None
    if any(len(each) != len(own) for each, own in zip(scores, chosen, strict=True)):
        return None
    usual = _usual(_distance(*scores))
    ours, theirs = (each[rows] for each in scores)
    golden, candidate = (each[rows] for each in chosen)
    if any(
        each.min(initial=0) < 0 or each.max(initial=0) >= ours.shape[1]
        for each in (golden, candidate)
    ):
        return None
    taken = np.take_along_axis(ours, golden, axis=1), np.take_along_axis(theirs, candidate, axis=1)
    way = next((each for each in _WAYS if _fits(each, ours, taken[0])), None)
    if way is None:
        return None
    each_once = bool((np.diff(np.sort(candidate, axis=1), axis=1) > 0).all())
    right = each_once and _fits(way, theirs, taken[1])
    other = np.take_along_axis(ours, candidate, axis=1)
    margins = _distance(*(_as_set(way, each) for each in (taken[0], other))).max(axis=1)
    apart = _distance(taken[1], other).max(axis=1)
    finite = np.where(np.isfinite(ours), np.abs(ours), 0.0).max(axis=1)
    return _Flips(right, margins, apart, usual, finite * 2.0 ** -_digits(sides, place))


#: Whether the highest are chosen, or the lowest; and whether in order.
_WAYS = ((True, True), (False, True), (True, False), (False, False))


def _as_set(way: tuple[bool, bool], values: _Floats) -> _Floats:
    return values if way[1] else np.sort(values, axis=1)


def _fits(way: tuple[bool, bool], scores: _Floats, taken: _Floats) -> bool:
    """Whether exactly these values are chosen that way."""
    ordered = np.sort(scores, axis=1)[:, :: -1 if way[0] else 1]
    best = ordered[:, : taken.shape[1]]
    return bool(np.array_equal(_as_set(way, best), _as_set(way, taken)))


def _of_masks(
    sides: PairedSides,
    parts: Mapping[str, int],
    compares: Callable[[Any, Any], Any],
    mask: NDArray[Any],
    where: _Mask,
) -> _Flips | None:
    """The flips of a comparison, whose result is ``mask`` on the candidate; ``None`` if what was
    compared is not known, or is not alike."""
    held = list(_compared(sides, parts))
    if len(held) < 2:
        return None
    digits = min(each for _, each in held)
    both = zip(*(values for values, _ in held), strict=True)
    golden, candidate = (list(np.broadcast_arrays(*each)) for each in both)
    if any(each[0].shape != where.shape for each in (golden, candidate)):
        return None
    apart = _distance(candidate[0] - candidate[1], golden[0] - golden[1])
    golden, candidate = ([each[where] for each in side] for side in (golden, candidate))
    size = [np.maximum(*map(np.abs, side)) * 2.0**-digits for side in (golden, candidate)]
    margins = _distance(*golden)
    own = compares(*candidate) == mask[where]
    right = bool((own | (_distance(*candidate) <= 2.0 * size[1])).all())
    return _Flips(right, margins, apart[where], _usual(apart), size[0])


def _compared(
    sides: PairedSides, parts: Mapping[str, int]
) -> Iterator[tuple[tuple[_Floats, _Floats], int]]:
    """Golden's and the candidate's values of what was compared, and their digits."""
    for part in ("self", "other"):
        place = parts.get(part)
        if place is None or sides.put_together(place) is None:
            return
        ours, theirs = (each.astype(np.float64) for each in _values(sides, place))
        if not _is_tensor(sides, place) and not np.array_equal(ours, theirs):
            return
        digits = _digits(sides, place) if _is_tensor(sides, place) else 53
        yield (ours, theirs), digits or 53
