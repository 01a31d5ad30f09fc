"""Records of the global model in place of the ranks' own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from accucompare.bundle.format import Box, GlobalRecord, Key, Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.layouts.arrange import Arrangement, IncompleteError, Mesh, arrangements
from accucompare.compare.pairing import Pair
from accucompare.compare.remarks import PairRemark, PartsMissing, UnknownLayout
from accucompare.numbers import Statistics

#: The most parts that are tried in every order: 23 orders of four.
_MOST_REORDERED = 4


class Ranks(NamedTuple):
    """The records of all ranks of a bundle, by the key with the rank 0; and the mesh."""

    groups: Mapping[Key, Mapping[int, Record]]
    mesh: Mesh

    @classmethod
    def of(cls, bundle: Bundle, records: Iterable[Record]) -> Ranks:
        groups: dict[Key, dict[int, Record]] = {}
        for record in records:
            groups.setdefault(record.key._replace(rank=0), {})[record.rank] = record
        return cls(groups, Mesh.of(bundle.manifests, bundle.manifest.ranks))

    def first(self) -> list[Record]:
        """Each value's record of its lowest rank, as if it were of rank 0."""
        return [replace(group[min(group)], rank=0) for group in self.groups.values()]


class Unified(NamedTuple):
    """Pairs of records of the global model.

    Attributes:
        pairs: as given, with ``GlobalRecord`` where a side has several ranks.
        others: further arrangements of the candidate's ranks, by the pair's place.
        unknown: why a pair cannot be put together, by its place.
        means: how many ranks have a batch of their own.
    """

    pairs: list[Pair]
    others: dict[int, tuple[GlobalRecord, ...]]
    unknown: dict[int, PairRemark]
    means: int = 1


def unify(pairs: Sequence[Pair], golden: Ranks | None, candidate: Ranks | None) -> Unified:
    """Put the ranks' records of each pair together.

    Args:
        pairs: of the records that ``Ranks.first`` gives.
        golden, candidate: the sides' ranks; ``None`` for a side of one rank.
    """
    unified = Unified([], {}, {})
    if golden is None and candidate is None:
        return unified._replace(pairs=list(pairs))
    for place, pair in enumerate(pairs):
        if pair.golden is None or pair.candidate is None:
            unified.pairs.append(pair)
            continue
        shape = pair.golden.shape
        sides: list[Sequence[Record]] = []
        for ranks, record in ((golden, pair.golden), (candidate, pair.candidate)):
            if ranks is None:
                sides.append([record])
                continue
            group = ranks.groups[record.key]
            shape = _whole_shape(group) if ranks is golden else shape
            try:
                sides.append(put_together(group, ranks.mesh, shape))
            except IncompleteError:
                unified.unknown[place] = PartsMissing(tuple(sorted(group)))
            if not sides[-1]:
                shapes = tuple(dict.fromkeys(each.shape for each in group.values()))
                unified.unknown[place] = UnknownLayout(shapes)
        if place in unified.unknown:
            unified.pairs.append(pair)
            continue
        (ours, *_), (theirs, *others) = sides
        unified.pairs.append(replace(pair, golden=ours, candidate=theirs))
        if others:
            unified.others[place] = tuple(
                other for other in others if isinstance(other, GlobalRecord)
            )
    return unified._replace(means=_means(unified.pairs, candidate))


def _means(pairs: Iterable[Pair], ranks: Ranks | None) -> int:
    """How many ranks have a batch of their own, by how the model's inputs are sharded."""
    inputs = (
        pair.candidate
        for pair in pairs
        if isinstance(pair.candidate, GlobalRecord)
        and not pair.candidate.name
        and pair.candidate.role is Role.INPUT
    )
    counts = [
        ranks.mesh.count(name for _, names in record.axes for name in names)
        for record in inputs
        if ranks is not None
    ]
    return max(counts, default=1)


def _whole_shape(group: Mapping[int, Record]) -> tuple[int, ...]:
    """The shape of the global tensor, as golden's ranks tell it."""
    record = group[min(group)]
    return record.shape if record.shard is None else record.shard.shape


def put_together(
    group: Mapping[int, Record], mesh: Mesh, shape: tuple[int, ...]
) -> list[GlobalRecord]:
    """The global tensors of a shape that ranks' records may make up, the likeliest first.

    Raises:
        IncompleteError: as ``arrangements``.
    """
    first = replace(group[min(group)], rank=0)
    return [_global(first, shape, each) for each in arrangements(group, mesh, shape)]


def _global(first: Record, shape: tuple[int, ...], arrangement: Arrangement) -> GlobalRecord:
    fields = {name: getattr(first, name) for name in Record.__struct_fields__}
    own = arrangement.boxes[0]
    alone = len(arrangement.boxes) == len(own.terms) == 1 and own.factor == 1.0
    records = [record for box in arrangement.boxes for record in box.terms]
    if not alone:
        held = all(record.member is not None for record in records)
        fields |= {
            "digest": None,
            "sketch": None,
            "member": first.member if held else None,
            "statistics": _statistics(arrangement.boxes),
        }
    fields |= {
        "shape": shape,
        "shard": None,
        "boxes": arrangement.boxes,
        "evidence": arrangement.evidence,
        "axes": tuple(arrangement.axes.items()),
    }
    return GlobalRecord(**fields)


def _statistics(boxes: Sequence[Box]) -> Statistics | None:
    """The statistics of values side by side; ``None`` if some are unknown or sums are made."""
    parts = [box.terms[0].statistics for box in boxes]
    known = [each for each in parts if each is not None]
    if len(known) < len(parts) or any(len(box.terms) > 1 or box.factor != 1.0 for box in boxes):
        return None
    finite = [
        (each, math.prod(box.shape) - each.nan - each.inf)
        for box, each in zip(boxes, known, strict=True)
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


def with_sums(record: GlobalRecord) -> Iterator[GlobalRecord]:
    """The tensor with the replicas' values added up, and with their mean."""
    terms = [
        (*box.terms, *(term for terms in box.replicas for term in terms)) for box in record.boxes
    ]
    for reduced, factor in (("sum", 1.0), ("avg", 1.0 / (1 + len(record.boxes[0].replicas)))):
        boxes = (
            replace(box, terms=all_terms, factor=box.factor * factor, replicas=())
            for box, all_terms in zip(record.boxes, terms, strict=True)
        )
        yield replace(_without_digest(record), boxes=tuple(boxes), reduced=reduced)


def with_replicas(record: GlobalRecord) -> Iterator[GlobalRecord]:
    """The tensor as each set of replicas holds it, the first ranks' own first."""
    most = max(len(box.replicas) for box in record.boxes)
    for number in range(most + 1):
        boxes = []
        for box in record.boxes:
            held = (box.terms, *box.replicas)
            boxes.append(replace(box, terms=held[min(number, len(held) - 1)], replicas=()))
        yield replace(_without_digest(record), boxes=tuple(boxes))


def scaled(record: GlobalRecord, factor: float) -> GlobalRecord:
    boxes = (replace(box, factor=box.factor * factor) for box in record.boxes)
    return replace(_without_digest(record), boxes=tuple(boxes))


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
            yield order, replace(_without_digest(record), boxes=tuple(moved))


def _without_digest(record: GlobalRecord) -> GlobalRecord:
    return replace(record, digest=None, statistics=None)
