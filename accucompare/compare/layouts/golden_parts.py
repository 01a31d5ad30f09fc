"""Golden's tensors as one rank of a parallel run takes them: cut as a capture of that run tells."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from accucompare.bundle.format import (
    GRADIENT_ROLES,
    OPERATOR_ROLES,
    UPDATE_ROLES,
    Box,
    GlobalRecord,
    Key,
    Record,
    Role,
)
from accucompare.bundle.reading import Bundle
from accucompare.compare.constants import REDUCED_WITHIN
from accucompare.compare.layouts.batch_rows import rows_of_ranks
from accucompare.compare.layouts.finding_names import names_of_ranks
from accucompare.compare.layouts.golden_cuts import cut_of_golden, turned_box
from accucompare.compare.layouts.part_patterns import PartPatterns
from accucompare.compare.layouts.part_ways import PartWays, left_as_terms, reduced_by
from accucompare.compare.layouts.put_back import UnderGoldenNames, is_of_expert
from accucompare.compare.layouts.rank_records import RankRecords
from accucompare.compare.layouts.sequence_parts import Holder
from accucompare.compare.layouts.shares import share_of
from accucompare.compare.layouts.unify import Unified, unify
from accucompare.compare.pairing import Pair, Renaming, other_names, pair_records, signatures_of
from accucompare.numbers import DTYPES

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
            PartWays(
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
        factor, left = self._factor(ways), left_as_terms(ways)
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
                yield cut_of_golden(pair.golden, *part)

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
                yield cut_of_golden(recorded, own[term.order], [each])

    def _factor(self, ways: Sequence[PartWays]) -> float:
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
            self._reduced.update(reduced_by(ways, self._layout))
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
                        if (turned := turned_box(box, golden, share)) is not None:
                            boxes[term.key].append(turned)
        for key, term in terms.items():
            covered = sum(math.prod(box.shape) for box in boxes[key])
            # golden with padding is zero there; what it has not of anything else is not known
            if covered == math.prod(term.shape) or isinstance(golden, GlobalRecord):
                yield cut_of_golden(golden, own[term.order], boxes[key])


def _may_be_sent(record: Record, ranks: RankRecords) -> bool:
    """Whether a record is of experts whose tokens are the ranks' own, or come from other ranks:
    their rows lie in an order of their own."""
    own = any(len(mesh.rows) > 1 or mesh.sequence for mesh in ranks.batches.values())
    return is_of_expert(record) and (own or ranks.holders.share_experts(record))


def _is_of_terms(record: Record | None) -> bool:
    """Whether ranks say that they hold parts of rows, or terms of a sum."""
    boxes = record.boxes if isinstance(record, GlobalRecord) else ()
    return any(term.shard is not None for box in boxes for term in box.terms)


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
