"""The ways in which ranks may hold one of golden's tensors, and what tells which one is right."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from accucompare.bundle.format import (
    GRADIENT_ROLES,
    UPDATE_ROLES,
    Box,
    GlobalRecord,
    Layout,
    Record,
    Role,
)
from accucompare.bundle.reading import Bundle
from accucompare.compare.constants import BY_DIGITS, REDUCED_WITHIN, TELLS_LAYOUT
from accucompare.compare.layouts.arrange import box_of
from accucompare.compare.layouts.golden_cuts import is_shared_out, turned_box
from accucompare.compare.layouts.put_together import (
    FUSED,
    interleaved,
    scaled,
    with_replicas,
    with_sums,
)
from accucompare.numbers import DTYPES, Float64, widen

#: Elements of a tensor that are read to tell its layout, in so many stretches of it.
_SAMPLED, _STRETCHES = 1 << 14, 8


class PartWays:
    """The ways in which ranks may hold one of golden's tensors, and how far each is from golden."""

    def __init__(self, golden: Record, arranged: Iterable[Record], unproved: bool = False) -> None:
        """Args: ``unproved``: whether only values tell that a way is right."""
        self.golden = golden
        self._unproved = unproved
        self._ways = [each for each in arranged if isinstance(each, GlobalRecord)]
        self._fused: dict[tuple[int, ...], int] = {}  # by the widths of the layers
        # by way and factor
        self._distances: dict[tuple[int, float], float] = {}

    @property
    def is_gradient(self) -> bool:
        return self.golden.role in GRADIENT_ROLES

    @property
    def factors(self) -> set[float]:
        return {factor for _, factor in self._distances}

    @property
    def bits(self) -> frozenset[tuple[int, str | None]]:
        """What each rank holds, as digests."""
        return frozenset(
            (term.rank, term.digest)
            for box in self._ways[0].boxes
            for terms in (box.terms, *box.replicas)
            for term in terms
        )

    def look(self, golden: Bundle, ranks: Bundle, means: Sequence[float]) -> None:
        """Measure the ways, if there are several."""
        first = self._ways[0]
        if self.golden.role not in UPDATE_ROLES or self.golden.role is Role.PARAM_GRAD:
            # a mask that one rank lost is no term
            uneven = [way for way in self._ways if not way.same and way.dtype != "bool"]
            self._ways += [each for way in uneven for each in with_sums(way, means)]
        for sizes in FUSED:
            for _, way in interleaved(first, [sizes]):
                self._fused[sizes] = len(self._ways)
                self._ways.append(way)
        factors = (1.0, *means) if self.is_gradient else (1.0,)
        numeric = self.golden.dtype in DTYPES and self.golden.member is not None
        alone = len(self._ways) == len(factors) == 1 and not self._unproved
        if not numeric or alone or first.member is None:
            return
        values = _sample(golden, _whole(self.golden))
        norm = float(np.linalg.norm(values))
        if not norm or not math.isfinite(norm):
            return
        for number, way in enumerate(self._ways):
            held = [_sample(ranks, each) for each in with_replicas(way)]
            for factor in factors:
                distance = min(float(np.linalg.norm(values - each / factor)) for each in held)
                if not math.isnan(distance):
                    self._distances[number, factor] = distance / norm

    def best(self, factors: Iterable[float]) -> tuple[float, int, float]:
        """The least distance, with its way and factor; infinite, and the likeliest way, if nothing
        tells."""
        known = [
            (distance, number, factor)
            for (number, factor), distance in self._distances.items()
            if factor in factors
        ]
        least = min(known, default=(math.inf, 0, 1.0))
        first = self._distances.get((0, least[2]), math.inf)
        tells = least[0] < TELLS_LAYOUT * (1.0 if least[1] == 0 else min(1.0, first))
        return least if tells else (math.inf, 0, least[2])

    def told(self, golden: Bundle, ranks: Bundle) -> Iterator[tuple[float, float]]:
        """The factor of a gradient, and how far it is from golden's then; of single ranks' parts if
        the whole tells none."""
        if not self.is_gradient or not self._distances:
            return
        distance, _, factor = self.best(self.factors)
        if not math.isinf(distance):
            yield factor, distance
            return
        way = self._ways[0]
        for box in way.boxes if len(way.boxes) > 1 else ():
            turned = None if len(box.terms) > 1 else turned_box(box, self.golden, 1.0)
            if turned is None:
                continue
            values = _sample(golden, _of_box(self.golden, turned, box.shape))
            held = _sample(ranks, _of_box(way, replace(box, replicas=()), box.shape))
            norm = float(np.linalg.norm(values))
            for factor in self.factors if norm and math.isfinite(norm) else ():
                distance = float(np.linalg.norm(values - held / factor)) / norm
                if distance < TELLS_LAYOUT:
                    yield factor, distance

    def values(self, ranks: Bundle) -> Float64 | None:
        """Some of the ranks' values; ``None`` without any."""
        return None if self._ways[0].member is None else _sample(ranks, self._ways[0])

    def distinct_sum(self, ranks: Bundle) -> Float64 | None:
        """The same of the sum of what ranks hold, but of equal values only one."""
        way = self._ways[0]
        boxes = []
        for box in way.boxes:
            terms = (term for addends in (box.terms, *box.replicas) for term in addends)
            held = {term.digest or str(term.key): term for term in terms}
            boxes.append(replace(box, terms=(*held.values(),), factor=1.0, replicas=()))
        if way.member is None:
            return None
        return _sample(ranks, replace(way, digest=None, statistics=None, boxes=tuple(boxes)))

    @property
    def is_of_counts(self) -> bool:
        """Whether ranks hold terms of integers, of which no shares can be given."""
        known = DTYPES.get(self.golden.dtype) is not None
        return known and not is_shared_out(self.golden) and self.is_sum

    @property
    def is_sum(self) -> bool:
        """Whether the ranks hold terms of it, as this comparison alone shows."""
        return bool(self._ways[self.best(self.factors)[1]].reduced)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The widths of the layers that are fused in it, of which each rank has a part."""
        number = self.best(self.factors)[1]
        return next((sizes for sizes, way in self._fused.items() if way == number), ())

    def chosen(self, factor: float, fused: tuple[int, ...]) -> GlobalRecord | None:
        """The way that counts, if calls' gradients are ``factor`` times golden's; ``None`` where
        nothing tells. ``fused``: the widths of the layers that are fused in the module's
        parameters."""
        if DTYPES.get(self.golden.dtype) is None or self.golden.layout is not Layout.STRIDED:
            return self._ways[0] if self._ways[0].same else None
        if self.is_of_counts:
            return None
        own = factor if self.is_gradient else 1.0
        distance, number, _ = self.best([own])
        if self._unproved:
            digits = min(DTYPES[each.dtype].digits for each in (self.golden, self._ways[0]))
            if distance > BY_DIGITS.get(digits, (0.0,))[0]:
                return None
        if math.isinf(distance):
            number = self._fused.get(fused, 0)
        if self._ways[number].reduced and self.golden.role is Role.PARAM_GRAD:
            number = 0  # each rank's update takes the sum
        return scaled(self._ways[number], 1.0 / own) if own != 1.0 else self._ways[number]


def reduced_by(ways: Iterable[PartWays], ranks: Bundle) -> Iterator[float]:
    """By what the ranks divide the sums of what calls gave, for each gradient of an update that is
    such a sum, over one of the known factors."""
    terms: dict[tuple[str, str], list[PartWays]] = defaultdict(list)
    given: dict[tuple[str, str], PartWays] = {}
    for each in ways:
        place = each.golden.name, each.golden.path
        if each.golden.role is Role.CALL_GRAD:
            terms[place].append(each)
        elif each.golden.role is Role.PARAM_GRAD and not each.golden.call:
            given[place] = each
    for place, whole in given.items():
        if not terms[place] or (held := whole.values(ranks)) is None:
            continue
        added = [each.distinct_sum(ranks) for each in terms[place]]
        total = sum(each for each in added if each is not None)
        if any(each is None for each in added) or not (square := float(held @ held)):
            continue
        factor = float(total @ held) / square
        likely = min(terms[place][0].factors, key=lambda each: abs(each - factor), default=0.0)
        left = float(np.linalg.norm(total - likely * held))
        if likely and left <= REDUCED_WITHIN * likely * math.sqrt(square):
            yield likely


def left_as_terms(ways: Iterable[PartWays]) -> set[PartWays]:
    """Gradients of which ranks hold terms that nothing sums: an update was given terms for them, as
    in ``judging.rank_verdicts.fail_left_terms``. They stay as they are, so that the diff sees that.
    """
    terms = [each for each in ways if each.is_sum]
    updates = {each.golden.name for each in terms if each.golden.role is Role.PARAM_GRAD}
    given = [
        each
        for each in terms
        if each.golden.role is Role.GRAD_OUTPUT and each.golden.name in updates
    ]
    left, names = {each.bits for each in given}, {each.golden.name for each in given}
    return {
        each
        for each in terms
        if each.is_gradient and (each.bits in left or each.golden.name in names)
    }


def _whole(record: Record) -> GlobalRecord:
    """A record of one device as a tensor of the global model."""
    if isinstance(record, GlobalRecord):
        return record
    fields = {name: getattr(record, name) for name in Record.__struct_fields__}
    return GlobalRecord(**fields, boxes=(box_of(record),))


def _sample(bundle: Bundle, record: GlobalRecord) -> Float64:
    """Values of a tensor, from stretches that lie apart."""
    size, stored = math.prod(record.shape), bundle.stored(record)
    if size <= _SAMPLED:
        stretches = [(0, size)]
    else:
        each, apart = _SAMPLED // _STRETCHES, size // _STRETCHES
        stretches = [(number * apart, number * apart + each) for number in range(_STRETCHES)]
    found = []
    for start, stop in stretches:
        for block in stored.blocks(start, stop):
            wide = widen(block, DTYPES[record.dtype])
            found.append(wide.view(wide.real.dtype).astype(np.float64))
    return np.concatenate(found) if found else np.zeros(0)


def _of_box(record: Record, box: Box, shape: tuple[int, ...]) -> GlobalRecord:
    """What a box holds, as a tensor of its own."""
    fields = {name: getattr(record, name) for name in Record.__struct_fields__}
    fields |= {"shape": shape, "digest": None, "statistics": None, "sketch": None}
    return GlobalRecord(**fields, boxes=(replace(box, start=(0,) * len(shape)),))
