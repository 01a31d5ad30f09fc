"""Golden's tensors as one rank of a parallel run takes them: cut as a capture of that run tells."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from accucompare.bundle.format import (
    GRADIENT_ROLES,
    OPERATOR_ROLES,
    UPDATE_ROLES,
    Box,
    GlobalRecord,
    Key,
    Layout,
    Record,
    Role,
)
from accucompare.bundle.reading import Bundle
from accucompare.compare.constants import BY_DIGITS, REDUCED_WITHIN, TELLS_LAYOUT
from accucompare.compare.layouts.arrange import box_of
from accucompare.compare.layouts.batch_rows import rows_of_ranks
from accucompare.compare.layouts.finding_names import names_of_ranks
from accucompare.compare.layouts.part_patterns import PartPatterns
from accucompare.compare.layouts.put_back import UnderGoldenNames, is_of_expert
from accucompare.compare.layouts.put_together import (
    FUSED,
    interleaved,
    scaled,
    with_replicas,
    with_sums,
)
from accucompare.compare.layouts.rank_records import RankRecords
from accucompare.compare.layouts.sequence_parts import Holder
from accucompare.compare.layouts.shares import share_of
from accucompare.compare.layouts.unify import Unified, unify
from accucompare.compare.pairing import Pair, Renaming, other_names, pair_records, signatures_of
from accucompare.numbers import DTYPES, Float64, Kind, widen

#: Elements of a tensor that are read to tell its layout, in so many stretches of it.
_SAMPLED, _STRETCHES = 1 << 14, 8


#: Of two bundles, their ranks' records, pairs and what these make up: the pairs whose rows lie
#: side by side by token, by their places.
PairsByToken = Callable[[Bundle, Bundle, RankRecords, Sequence[Pair], Unified], Mapping[int, Pair]]


class GoldenParts:
    """What golden, made on one device, gives one rank of a parallel run.

    The layouts are those of a free-running capture of the same ranks. Where it tells several, that
    which puts golden's values together counts.
    """

    def __init__(
        self,
        golden: Bundle,
        layout: Bundle,
        rank: int,
        renamings: Sequence[Renaming] = (),
        by_token: PairsByToken | None = None,
    ) -> None:
        """Args: ``renamings``: of golden's layers; ``by_token``: pairs the rows of experts."""
        self._by_token = by_token
        self._golden = golden
        self._layout = layout
        self._rank = rank
        self._renamings = renamings
        self._known: dict[int, list[Record] | None] = {}
        # of all steps that were read: how many times golden's gradients are, with its weight, as
        # golden's values and as the ranks' own sums tell; and how near one is to golden's
        self._times, self._reduced = defaultdict[float, float](float), Counter[float]()
        self._nearest = math.inf
        self._patterns = PartPatterns()

    @property
    def are_under_other_names(self) -> bool:
        """Whether the ranks have names of their own for golden's modules, such as stages have. They
        were found by the weights, which are golden's then."""
        models = {rank: manifest.model for rank, manifest in self._layout.manifests.items()}
        meshes = {rank: manifest.mesh for rank, manifest in self._layout.manifests.items()}
        return bool(names_of_ranks(self._golden.manifest.model, models, meshes, self._renamings))

    def close(self) -> None:
        """Close the files of the layout's bundle."""
        self._layout.close()

    def records(self, step: int) -> list[Record] | None:
        """Golden's records of a step, under this rank's names and cut for it; ``None`` without that
        step. Those that fit no layout are left out."""
        if step not in self._known:
            self._known = {at: held for at, held in self._known.items() if at >= step - 1}
            self._known[step] = self._records(step)
        return self._known[step]

    def _records(self, step: int) -> list[Record] | None:
        ours, theirs = (records_of_step(bundle, step) for bundle in (self._golden, self._layout))
        if not ours or not theirs:
            return None
        named = UnderGoldenNames.of(self._golden, self._layout, theirs, self._renamings)
        _, rows = rows_of_ranks(
            (self._golden, ours), (named.bundle, named.records), bool(named.schedule.first)
        )
        rows = named.with_later_stages(rows)
        ranks = RankRecords.of(named.bundle, named.records, rows, named.holders)
        models = self._golden.manifest.model, named.bundle.manifest.model
        renamings = () if named.names else self._renamings
        signatures, parameters = signatures_of(*models), other_names(*models, renamings)
        pairs = pair_records(ours, ranks.first(), renamings, signatures, parameters)
        unified = unify(pairs, None, ranks)
        by_token: Mapping[int, Pair] = {}
        if self._by_token is not None:
            found = self._by_token(self._golden, named.bundle, ranks, pairs, unified)
            by_token = {
                place: pair
                for place, pair in found.items()
                if _may_be_sent(pair.record, ranks) and not _is_of_terms(pair.candidate)
            }
        ways = [
            _Ways(
                pair.golden,
                (pair.candidate, *unified.others.get(place, ())),
                _may_be_sent(pair.golden, ranks),
            )
            for place, pair in enumerate(unified.pairs)
            if place not in unified.unknown
            and place not in by_token
            and pair.golden is not None
            and isinstance(pair.candidate, GlobalRecord)
            # golden has no values for what the ranks' vocabulary is padded with
            and not (pair.candidate.padding and pair.candidate.padding[1] > 0)
        ]
        for each in ways:
            each.look(self._golden, self._layout, unified.means)
        factor, left = self._factor(ways), _left_as_terms(ways)
        fused = {
            each.golden.name: each.sizes
            for each in ways
            if each.golden.role is Role.PARAM_BEFORE and each.sizes
        }
        own = {record.order: record for record in theirs if record.rank == self._rank}
        cut: list[Record] = []
        # a call that is given terms of counts has rows that no order of golden's tells
        apart = {
            (each.golden.name, each.golden.call)
            for each in ways
            if each.golden.role is Role.INPUT and each.is_of_counts
        }
        for each in ways:
            of_call = each.golden.role not in UPDATE_ROLES
            if of_call and (each.golden.name, each.golden.call) in apart:
                continue
            chosen = each.chosen(factor, fused.get(each.golden.name, ()))
            if chosen is not None and each not in left:
                parts = [*self._own(each.golden, chosen, ranks.groups[chosen.key], own)]
                if not chosen.axes:  # which rows a rank has may change from call to call
                    self._patterns.note(each.golden, parts)
                cut += parts
        for pair in by_token.values():
            cut += self._own_rows(pair, factor, own)
        given = ranks.rows.get(step, {}).items()
        own_calls = named.names or any(each.call != call for (_, call), each in given)
        known = {*by_token}
        return [*cut, *self._by_patterns(unified, ranks, own, known, bool(own_calls))]

    def _by_patterns(
        self,
        unified: Unified,
        ranks: RankRecords,
        own: Mapping[int, Record],
        known: Collection[int],
        renamed: bool,
    ) -> Iterator[Record]:
        """Golden's records as this rank would have them, where its own do not fill golden's.

        Args:
            own: the rank's records under its own names, by their order.
            known: the places of pairs that were found otherwise.
            renamed: whether these names, or the numbers of calls, are not golden's.
        """
        for place, pair in enumerate(unified.pairs):
            alone = pair.candidate is None
            if pair.golden is None or place in known or not (alone or place in unified.unknown):
                continue
            if pair.golden.role in UPDATE_ROLES or (alone and renamed):
                continue
            group = {} if pair.candidate is None else ranks.groups.get(pair.candidate.key, {})
            held = [own[each.order] for each in group.values() if each.rank == self._rank]
            if len(held) > 1:
                continue
            if (part := self._patterns.part(pair.golden, held[0] if held else None)) is not None:
                yield _cut(pair.golden, *part)

    def _own_rows(self, pair: Pair, factor: float, own: Mapping[int, Record]) -> Iterator[Record]:
        """Golden's record with the rows that this rank's experts have, in the rank's order."""
        golden, candidate = pair.golden, pair.candidate
        assert golden is not None
        recorded, rows = golden, np.arange(len(golden.shape) and golden.shape[0])
        if isinstance(golden, GlobalRecord):
            recorded = golden.boxes[0].terms[0]
            rows = _rows_of(golden.boxes[0])
        assert isinstance(candidate, GlobalRecord)
        times = factor if golden.role in GRADIENT_ROLES else 1.0
        for box in candidate.boxes:
            for (term,) in (box.terms, *box.replicas):
                if term.rank != self._rank or len(term.shape) != 2:
                    continue
                taken = np.full(term.shape[0], -1)
                there = _rows_of(box)
                taken[there] = rows[box.start[0] :][: len(there)]
                if (taken < 0).any():
                    continue
                where = tuple((0, length) for length in term.shape)
                each = Box((0, 0), (recorded,), times, (), where, False, taken.tobytes())
                yield _cut(recorded, own[term.order], [each])

    def _factor(self, ways: Sequence[_Ways]) -> float:
        """How many times golden's the gradients of calls are: ranks may differentiate the mean loss
        of their own rows.

        The nearer a gradient is to golden's, the more it counts: a fault may have changed the size
        of most, on all ranks or on some, and all weights after the first step. If it has changed
        all of them, by what the ranks divide the sum of their calls' gradients tells.
        """
        for each in ways:
            for factor, distance in each.told(self._golden, self._layout):
                self._times[factor] += 1.0 / max(distance, DTYPES["float32"].rounding)
                self._nearest = min(self._nearest, distance)
        if self._nearest > REDUCED_WITHIN:
            self._reduced.update(_reduced(ways, self._layout))
            if self._reduced:
                return self._reduced.most_common(1)[0][0]
        return max(self._times, key=lambda factor: self._times[factor], default=1.0)

    def _own(
        self,
        golden: Record,
        arranged: GlobalRecord,
        held: Mapping[Holder, Record],
        own: Mapping[int, Record],
    ) -> Iterator[Record]:
        """Golden's record as this rank has it, once for each of its records.

        Args:
            held: what the ranks have of it.
            own: the rank's records under its own names, by their order.
        """
        boxes: dict[Key, list[Box]] = defaultdict(list)
        terms = {  # all of a flat part may be on other ranks
            each.key: each
            for each in held.values()
            if each.rank == self._rank and not math.prod(each.shape)
        }
        for box in arranged.boxes:
            for addends in (box.terms, *box.replicas):
                for number, term in enumerate(addends):
                    if term.rank == self._rank:
                        terms[term.key] = term
                        share = share_of(number, len(addends)) / box.factor
                        if (turned := _turned(box, golden, share)) is not None:
                            boxes[term.key].append(turned)
        for key, term in terms.items():
            covered = sum(math.prod(box.shape) for box in boxes[key])
            # golden with padding is zero there; what it has not of anything else is not known
            if covered == math.prod(term.shape) or isinstance(golden, GlobalRecord):
                yield _cut(golden, own[term.order], boxes[key])


class _Ways:
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
            turned = None if len(box.terms) > 1 else _turned(box, self.golden, 1.0)
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
        return known and not _is_shared_out(self.golden) and self.is_sum

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
        nothing tells.

        Args:
            fused: the widths of the layers that are fused in the module's parameters.
        """
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


def _may_be_sent(record: Record, ranks: RankRecords) -> bool:
    """Whether a record is of experts whose tokens are the ranks' own, or come from other ranks:
    their rows lie in an order of their own."""
    own = any(len(mesh.rows) > 1 or mesh.sequence for mesh in ranks.batches.values())
    return is_of_expert(record) and (own or ranks.holders.share_experts(record))


def _is_of_terms(record: Record | None) -> bool:
    """Whether ranks say that they hold parts of rows, or terms of a sum."""
    boxes = record.boxes if isinstance(record, GlobalRecord) else ()
    return any(term.shard is not None for box in boxes for term in box.terms)


def _reduced(ways: Iterable[_Ways], ranks: Bundle) -> Iterator[float]:
    """By what the ranks divide the sums of what calls gave, for each gradient of an update that is
    such a sum, over one of the known factors."""
    terms: dict[tuple[str, str], list[_Ways]] = defaultdict(list)
    given: dict[tuple[str, str], _Ways] = {}
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


def _left_as_terms(ways: Iterable[_Ways]) -> set[_Ways]:
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


def records_of_step(bundle: Bundle, step: int) -> list[Record]:
    """The records of a step, of all ranks, without those of operators."""
    return [
        record
        for rank, entry in bundle.steps()
        if entry.step == step
        for record in bundle.step_records(rank, entry)
        if record.role not in OPERATOR_ROLES
    ]


def _rows_of(box: Box) -> NDArray[np.int64]:
    """The numbers of a record's rows that a box of rows has."""
    return np.frombuffer(box.taken, np.int64) if box.taken else np.arange(*box.where[0])


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


def _is_shared_out(record: Record) -> bool:
    """Whether ranks may be given shares of a value of this type."""
    return DTYPES[record.dtype].kind in (Kind.FLOAT, Kind.COMPLEX)


def _of_box(record: Record, box: Box, shape: tuple[int, ...]) -> GlobalRecord:
    """What a box holds, as a tensor of its own."""
    fields = {name: getattr(record, name) for name in Record.__struct_fields__}
    fields |= {"shape": shape, "digest": None, "statistics": None, "sketch": None}
    return GlobalRecord(**fields, boxes=(replace(box, start=(0,) * len(shape)),))


def _turned(box: Box, golden: Record, share: float) -> Box | None:
    """A box of golden's tensor as a box of the rank's own, which so many times golden's values
    fill; ``None`` if it is all padding."""
    recorded = golden.boxes[0].terms[0] if isinstance(golden, GlobalRecord) else golden
    shape = (math.prod(recorded.shape),) if box.flat else recorded.shape
    there = tuple(
        (start, min(start + length, whole))
        for start, length, whole in zip(box.start, box.shape, shape, strict=True)
    )
    if any(start >= stop for start, stop in there):
        return None
    own = tuple(start for start, _ in box.where) or (0,) * len(there)
    return Box(own, (recorded,), share, (), there, box.flat)


def _cut(golden: Record, own: Record, boxes: Sequence[Box]) -> Record:
    """Golden's record under the name that a rank has for it, and as the rank's own part of it."""
    own_fields = ("name", "call", "role", "path", "type", "parent")
    names = {name: getattr(own, name) for name in own_fields}
    if DTYPES.get(golden.dtype) is None or golden.layout is not Layout.STRIDED:
        return replace(golden, **names)
    whole = len(boxes) == 1 and boxes[0].factor == 1.0 and not boxes[0].taken
    if whole and own.shape == golden.shape == boxes[0].shape:
        return replace(golden, **names)
    if not _is_shared_out(golden):
        boxes = [replace(box, factor=1.0) for box in boxes]
    place = [(box.start, box.where, box.factor, box.taken) for box in boxes]
    fields = {name: getattr(golden, name) for name in Record.__struct_fields__} | names
    fields |= {
        "shape": own.shape,
        "digest": f"{[box.terms[0].digest for box in boxes]} {place}",
        "statistics": None,
        "sketch": None,
        "shard": own.shard,
    }
    return GlobalRecord(**fields, boxes=tuple(boxes))
