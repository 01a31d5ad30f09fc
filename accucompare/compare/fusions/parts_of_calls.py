"""What several calls of a module make up: side by side, as a sum, or one by one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from accucompare.bundle.format import (
    UNKNOWN_CONTENT,
    Box,
    GlobalRecord,
    Key,
    LayoutEvidence,
    Record,
    whole_box,
)
from accucompare.compare.fusions.flat_tokens import plain_terms

_Shape = tuple[int, ...]


#: Where a part of a tensor begins, and its shape; of tokens in a row, as in ``rows``.
Part = tuple[_Shape, _Shape]


def next_part(whole: _Shape, before: Sequence[Part], part: _Shape) -> Part | None:
    """Where the next part of a tensor lies: at the first element that no part before has; ``None``
    if it does not fit there."""
    few = min(len(whole), len(part))
    if not few or any(len(start) != few for start, _ in before):
        return None
    whole, part = rows(whole, few), rows(part, few)
    cut = [axis for axis, own in enumerate(part) if own < whole[axis]]
    start: _Shape | None
    if len(cut) == 1 and all(
        each[:axis] + each[axis + 1 :] == whole[:axis] + whole[axis + 1 :]
        for axis in cut
        for _, each in before
    ):
        at = sum(each[cut[0]] for _, each in before)
        start = tuple(at if axis == cut[0] else 0 for axis in range(len(whole)))
    else:
        ends = [{0, *(at[axis] + own[axis] for at, own in before)} for axis in range(len(whole))]
        edges = [sorted(held - {most}) for held, most in zip(ends, whole, strict=True)]
        corners = (each for each in itertools.product(*edges) if not _taken(before, each))
        start = next(corners, None)
    if start is None or any(
        begin + own > all_ for begin, own, all_ in zip(start, part, whole, strict=True)
    ):
        return None
    return start, part


def _taken(before: Iterable[Part], at: _Shape) -> bool:
    return any(
        all(begin <= own < begin + length for own, begin, length in zip(at, *each, strict=True))
        for each in before
    )


def rows(shape: _Shape, dimensions: int) -> _Shape:
    """The shape with its first dimensions as one, so that tokens are in a row."""
    outer = len(shape) - dimensions + 1
    return shape if outer < 2 or not dimensions else (math.prod(shape[:outer]), *shape[outer:])


def starts_of(whole: _Shape, parts: Iterable[_Shape | None]) -> list[_Shape] | None:
    """Where the parts of a tensor begin, of as many as fill it; ``None`` if they do not."""
    before: list[Part] = []
    left = math.prod(whole)
    for part in parts if left else ():
        found = None if part is None else next_part(whole, before, part)
        if found is None:
            return None
        before.append(found)
        left -= math.prod(found[1])
        if not left:
            return [start for start, _ in before]
    return None


def box_of_part(whole: Record, start: _Shape, part: Record, is_part: bool) -> Box | None:
    """A part of a tensor as a box: of the whole, if ``is_part``, or of the part that is cut of it;
    ``None`` where tokens in a row have no such box."""
    (term,), form = plain_terms(part if is_part else whole)
    few = min(len(whole.shape), len(part.shape))
    own = rows(part.shape, few)
    if len(whole.shape) == len(part.shape):
        zeros = (0,) * few
        begin, place = (zeros, start) if is_part else (start, zeros)
        where = tuple((at, at + each) for at, each in zip(begin, own, strict=True))
        return Box(place, (term,), where=where, form=form)
    if own[1:] != rows(whole.shape, few)[1:]:
        return None
    first, many = start[0] * math.prod(own[1:]), math.prod(own)
    if is_part:
        return Box((first,), (term,), where=((0, many),), flat=True, form=form)
    return Box((0,), (term,), where=((first, first + many),), flat=True, form=form)


def terms_of_calls(record: Record) -> Iterator[Record]:
    """What the calls have, one by one, of a record that several of them make up."""
    if isinstance(record, GlobalRecord) and record.evidence is LayoutEvidence.CALLS:
        yield from (term for box in record.boxes for term in box.terms)


def made_of_calls(first: Record, boxes: Sequence[Box], **changes: Any) -> GlobalRecord:
    """What a module's calls make up, in these boxes."""
    held = all(term.member is not None for box in boxes for term in box.terms)
    return GlobalRecord.of(
        first,
        boxes,
        member=first.member if held else None,
        error=None,
        evidence=LayoutEvidence.CALLS,
        **UNKNOWN_CONTENT,
        **changes,
    )


def side_by_side(calls: Sequence[Record], whole: _Shape) -> GlobalRecord | None:
    """The tensor that calls fill; ``None`` if they do not."""
    starts = starts_of(whole, [each.shape for each in calls])
    if starts is None or len(starts) < len(calls):
        return None
    like = replace(calls[0], shape=whole)
    held = [box_of_part(like, at, each, True) for each, at in zip(calls, starts, strict=True)]
    boxes = [each for each in held if each is not None]
    return None if len(boxes) < len(calls) else made_of_calls(calls[0], boxes, shape=whole)


def added_up(calls: Sequence[Record], times: float = 1.0) -> GlobalRecord:
    """What calls add up to, so many times."""
    terms, form = plain_terms(*calls)
    box = whole_box(terms, calls[0].shape, form)
    return made_of_calls(calls[0], [replace(box, factor=times)])


def one_by_one(calls: Sequence[Record]) -> GlobalRecord:
    """Values of calls that should be equal: in a dimension of their own, the first."""
    shape = calls[0].shape
    whole = tuple((0, each) for each in (1, *shape))
    boxes = [
        Box((at, *(0 for _ in shape)), plain_terms(each)[0], where=whole, form=(1, *shape))
        for at, each in enumerate(calls)
    ]
    return made_of_calls(calls[0], boxes, shape=(len(calls), *shape))


def of_calls_like(record: GlobalRecord, records: Mapping[Key, Record]) -> GlobalRecord | None:
    """What another run's calls make up, as those of a record do; ``None`` if one is missing."""
    held = {each.key: records.get(each.key) for each in terms_of_calls(record)}
    found = {key: each for key, each in held.items() if each is not None}
    if len(found) < len(held):
        return None
    boxes = [
        replace(box, terms=tuple(found[term.key] for term in box.terms)) for box in record.boxes
    ]
    return made_of_calls(boxes[0].terms[0], boxes, shape=record.shape)
