"""Tensors of the global model, put together from ranks' records; and what else they may be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from accucompare.bundle.format import Box, GlobalRecord, LayoutEvidence, Record
from accucompare.compare.layouts.arrange import Arrangement, arrangements
from accucompare.compare.layouts.mesh import Mesh
from accucompare.compare.layouts.sequence_parts import Holder
from accucompare.numbers import Statistics

#: The most parts that are tried in every order: 23 orders of four.
_MOST_REORDERED = 4
#: The widths of layers that are fused into one, in proportion: gate and up; query, key and value,
#: with fewer keys than queries.
FUSED = ((1, 1), (1, 1, 1), (2, 1, 1), (4, 1, 1), (8, 1, 1))


def global_tensors(
    group: Mapping[Holder, Record], mesh: Mesh, shape: tuple[int, ...]
) -> list[GlobalRecord]:
    """The global tensors of a shape that ranks' records may make up, the likeliest first. Raises
    IncompleteError as ``arrangements``."""
    first = replace(group[min(group)], rank=0)
    return [global_record(first, shape, each) for each in arrangements(group, mesh, shape)]


def global_record(first: Record, shape: tuple[int, ...], arrangement: Arrangement) -> GlobalRecord:
    """The record of a global tensor: its first rank's, with the arrangement of the parts."""
    fields = {name: getattr(first, name) for name in Record.__struct_fields__}
    own = arrangement.boxes[0]
    alone = (
        len(arrangement.boxes) == len(own.terms) == 1
        and own.factor == 1.0
        and own.shape == own.part
    )
    records = [record for box in arrangement.boxes for record in box.terms]
    held = all(record.member is not None for record in records)
    adds_up = not held and _adds_up(arrangement, shape)
    fields |= {
        "digest": own.terms[0].digest if alone else None,
        "sketch": own.terms[0].sketch if alone else (0 if adds_up else None),
        "member": own.terms[0].member if held else None,
        "statistics": own.terms[0].statistics if alone else _statistics(arrangement.boxes),
        "shape": shape,
        "shard": None,
        "boxes": arrangement.boxes,
        "evidence": arrangement.evidence,
        "axes": tuple(arrangement.axes.items()),
    }
    return GlobalRecord(**fields)


def _adds_up(arrangement: Arrangement, shape: tuple[int, ...]) -> bool:
    """Whether the sketches of the parts add up to the whole's: each was made by the part's recorded
    place in it."""
    return arrangement.evidence is not LayoutEvidence.GIVEN and all(
        term.has_values and shape == (term.shape if term.shard is None else term.shard.shape)
        for box in arrangement.boxes
        for terms in (box.terms, *box.replicas)
        for term in terms
    )


def _statistics(boxes: Sequence[Box]) -> Statistics | None:
    """The statistics of values side by side; ``None`` if some are unknown or sums are made."""
    if any(len(box.terms) > 1 or box.factor != 1.0 for box in boxes):
        return None
    held: dict[int, int] = {}  # how many of a record's values the boxes hold
    records: dict[int, Record] = {}
    for box in boxes:
        key = id(box.terms[0])
        held[key] = held.get(key, 0) + math.prod(box.shape)
        records[key] = box.terms[0]
    known = [each.statistics for each in records.values() if each.statistics is not None]
    if len(known) < len(held) or any(
        math.prod(each.shape) != held[key] for key, each in records.items()
    ):
        return None
    finite = [
        (each, size - each.nan - each.inf)
        for size, each in zip(held.values(), known, strict=True)
        if each.mean is not None
    ]
    count = sum(many for _, many in finite)
    norms = [each.l2 for each in known]
    return Statistics(
        min((each.min for each, _ in finite if each.min is not None), default=None),
        max((each.max for each, _ in finite if each.max is not None), default=None),
        math.fsum(each.mean * many for each, many in finite if each.mean is not None) / count
        if count
        else None,
        None if None in norms else math.hypot(*(norm for norm in norms if norm is not None)),
        sum(each.nan for each in known),
        sum(each.inf for each in known),
        max(each.rounding for each in known),
    )


def with_sums(record: GlobalRecord, means: Iterable[float]) -> Iterator[GlobalRecord]:
    """The tensor with the replicas' values added up, and with their means."""
    terms = [
        (*box.terms, *(term for terms in box.replicas for term in terms)) for box in record.boxes
    ]
    for divisor in dict.fromkeys((1, *means, 1 + len(record.boxes[0].replicas))):
        boxes = (
            replace(box, terms=all_terms, factor=box.factor / divisor, replicas=())
            for box, all_terms in zip(record.boxes, terms, strict=True)
        )
        yield replace(
            _without_digest(record), boxes=tuple(boxes), reduced="sum" if divisor == 1 else "avg"
        )


def with_replicas(record: GlobalRecord) -> Iterator[GlobalRecord]:
    """The tensor as each set of replicas holds it, the first ranks' own first."""
    most = max(len(box.replicas) for box in record.boxes)
    for number in range(most + 1):
        boxes = []
        for box in record.boxes:
            held = (box.terms, *box.replicas)
            boxes.append(replace(box, terms=held[min(number, len(held) - 1)], replicas=()))
        known = None if record.member else _statistics(boxes)
        yield replace(record, boxes=tuple(boxes), digest=None, statistics=known)


def scaled(record: GlobalRecord, factor: float) -> GlobalRecord:
    boxes = (replace(box, factor=box.factor * factor) for box in record.boxes)
    known = None if record.member else record.statistics
    if known is not None:
        low, high, mean, l2 = (
            None if each is None else each * factor
            for each in (known.min, known.max, known.mean, known.l2)
        )
        known = Statistics(low, high, mean, l2, known.nan, known.inf, known.rounding)
    return replace(record, boxes=tuple(boxes), digest=None, statistics=known)


def reordered(record: GlobalRecord) -> Iterator[tuple[tuple[int, ...], GlobalRecord]]:
    """The tensor with parts of equal shape in another order, and that order; of few parts only."""
    boxes = record.boxes
    if not 1 < len(boxes) <= _MOST_REORDERED or len({box.shape for box in boxes}) > 1:
        return
    for order in itertools.permutations(range(len(boxes))):
        if order != tuple(range(len(boxes))):
            moved = (
                replace(boxes[number], start=box.start)
                for number, box in zip(order, boxes, strict=True)
            )
            yield order, replace(_without_digest(record), boxes=tuple(moved), sketch=None)


def interleaved(
    record: GlobalRecord, fused: Iterable[tuple[int, ...]] = FUSED
) -> Iterator[tuple[int, GlobalRecord]]:
    """The tensor of fused layers, of which each rank has a part: gate and up, or query, key and
    value. With the number of layers."""
    if len(record.axes) != 1 or any(box.shape != box.part for box in record.boxes):
        return
    ((axis, _),) = record.axes
    edges = [each for box in record.boxes for each in (box.start[axis], box.shape[axis])]
    for sizes in fused:
        if not min(edges[1::2]) or any(each % sum(sizes) for each in edges):
            continue
        boxes = []
        for box in record.boxes:
            before = 0
            for size in sizes:  # of each layer, a rank's part lies after the earlier ranks' parts
                first, own = (
                    size * each // sum(sizes) for each in (box.start[axis], box.shape[axis])
                )
                start, where = list(box.start), list(box.where)
                start[axis] = before * record.shape[axis] // sum(sizes) + first
                within = box.where[axis][0] + before * box.shape[axis] // sum(sizes)
                where[axis] = within, within + own
                boxes.append(replace(box, start=tuple(start), where=tuple(where)))
                before += size
        yield len(sizes), replace(_without_digest(record), boxes=tuple(boxes), sketch=None)


def _without_digest(record: GlobalRecord) -> GlobalRecord:
    return replace(record, digest=None, statistics=None)
