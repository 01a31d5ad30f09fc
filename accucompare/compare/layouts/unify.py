"""Records of the global model in place of the ranks' own."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from accucompare.bundle.format import (
    GRADIENT_ROLES,
    UPDATE_ROLES,
    Box,
    GlobalRecord,
    Key,
    LayoutEvidence,
    Manifest,
    Record,
    Role,
)
from accucompare.bundle.reading import Bundle
from accucompare.compare.layouts.arrange import (
    Arrangement,
    IncompleteError,
    arrangements,
    box_of,
    given_arrangement,
    whole_shapes,
)
from accucompare.compare.layouts.batch_rows import GivenRows, RowsOfRanks
from accucompare.compare.layouts.given_layouts import GivenLayout
from accucompare.compare.layouts.mesh import UNKNOWN, Mesh
from accucompare.compare.layouts.padding import (
    is_zero_in_padding,
    padded_shape,
    paddings,
    with_padding,
    without_padding,
)
from accucompare.compare.layouts.put_back import Holders
from accucompare.compare.layouts.sequence_parts import Holder
from accucompare.compare.pairing import Pair
from accucompare.compare.remarks import (
    CalledInParts,
    NotRecordedOn,
    PairRemark,
    PartsMissing,
    UnknownLayout,
)
from accucompare.numbers import Statistics

#: The dimension of stages.
_STAGES = "pp"
#: The most parts that are tried in every order: 23 orders of four.
_MOST_REORDERED = 4
#: The widths of layers that are fused into one, in proportion: gate and up; query, key and value,
#: with fewer keys than queries.
FUSED = ((1, 1), (1, 1, 1), (2, 1, 1), (4, 1, 1), (8, 1, 1))


#: What a gradient is of.
_VALUES = {Role.GRAD_INPUT: Role.INPUT, Role.GRAD_OUTPUT: Role.OUTPUT}


class RankRecords(NamedTuple):
    """The records of all ranks of a bundle.

    Attributes:
        groups: by the key of golden's record: rank 0, and golden's call.
        mesh: of the ranks.
        batches: of the calls of the model, by golden's step and call; where the rows are known.
        holders: which ranks hold what, if not all do.
        rows: of golden's batch, by golden's step.
        parts: the meshes of some of the ranks, and of their calls, made when they are needed.
        manifests: of the ranks.
        updating: which ranks hold each value of updates in any step: by name, role and path.
    """

    groups: Mapping[Key, Mapping[Holder, Record]]
    mesh: Mesh
    batches: Mapping[Holder, Mesh]
    holders: Holders
    rows: RowsOfRanks
    parts: dict[tuple[frozenset[int], Holder | None], Mesh]
    manifests: Mapping[int, Manifest]
    updating: Mapping[tuple[str, Role, str], set[int]]

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        records: Sequence[Record],
        given: RowsOfRanks,
        holders: Holders | None = None,
    ) -> RankRecords:
        """Args: ``given``: which rows of golden's batch each rank was given."""
        mesh, rows = Mesh.of(bundle.manifests, bundle.manifest.ranks), dict(given)
        if rows:
            parts = sorted(next(iter(rows.values())).items())
            mesh = mesh.told_apart(
                {
                    rank: tuple(each for (own, _), each in parts if own == rank)
                    for (rank, _), _ in parts
                }
            )
        holders = holders or Holders()
        first = holders.begins.get("")
        base = mesh if first is None else _of_stage(first, mesh, bundle.manifests)
        rows = {step: _of_all_stages(held, mesh) for step, held in rows.items()}
        batches: dict[Holder, Mesh] = {}
        for step, held in rows.items():
            found = {
                call: base.of_rows(_of_call(held, call, first))
                for call in {each.call for each in held.values()}
            }
            if all(found.values()):
                batches |= {(step, call): each for call, each in found.items() if each is not None}
            else:
                rows[step] = {}
        times = _calls_of_model(records)
        groups: dict[Key, dict[Holder, Record]] = {}
        updating: dict[tuple[str, Role, str], set[int]] = {}
        for record in records:
            key, holder = record.key._replace(rank=0), (record.rank, 0)
            if record.role in UPDATE_ROLES:
                place = record.name, record.role, record.path
                updating.setdefault(place, set()).add(record.rank)
            elif rows.get(record.step):
                call, own = divmod(record.call, times[record.step, record.name])
                held_rows = rows[record.step].get((record.rank, call))
                if held_rows is not None:
                    holder = record.rank, call
                    key = key._replace(call=held_rows.call * times[record.step, record.name] + own)
            groups.setdefault(key, {})[holder] = record
        return cls(groups, mesh, batches, holders, rows, {}, bundle.manifests, updating)

    def first(self) -> list[Record]:
        """Each value's record of its first rank and call, as if it were golden's."""
        found = []
        for key, group in self.groups.items():
            record, parent = group[min(group)], None
            if record.parent is not None:
                parent = (
                    record.parent[0],
                    key.call if record.parent[1] == record.call else (record.parent[1]),
                )
            found.append(replace(record, rank=0, call=key.call, parent=parent))
        return found

    def lacking(self, record: Record) -> PartsMissing | None:
        """The ranks that finished the step without the update that they made in another step."""
        if record.role not in (Role.PARAM_UPDATE, Role.STATE_AFTER):
            return None
        held = {rank for rank, _ in self.groups[record.key]}
        lacking = [
            rank
            for rank in sorted(self.updating[record.name, record.role, record.path] - held)
            if any(entry.step == record.step for entry in self.manifests[rank].steps)
        ]
        return PartsMissing(tuple(sorted(held)), tuple(lacking)) if lacking else None

    def adding(self, record: Record) -> int:
        """How many ranks may add up their terms of a value: with one batch, or with any."""
        if record.role in (*GRADIENT_ROLES, *UPDATE_ROLES):
            return math.prod(self._of_ranks(self.holders.of(record)).sizes.values())
        mesh = self.mesh_of(record)
        return mesh.count(mesh.without([mesh.batch]))

    def mesh_of(self, record: Record) -> Mesh:
        """The mesh that a value's holders are places of."""
        ranks, group = self.holders.of(record), self.groups[record.key]
        if ranks is not None:
            ranks |= {rank for rank, _ in group}
        if record.role in UPDATE_ROLES:
            return self._of_ranks(ranks)
        if ranks is not None:
            return self._of_calls(record, ranks, group)
        return next(
            (
                batch
                for (step, _), batch in self.batches.items()
                if step == record.step and batch.places.keys() >= group.keys()
            ),
            self.mesh,
        )

    def _of_ranks(self, ranks: frozenset[int] | None) -> Mesh:
        if ranks is None:
            return self.mesh
        if (ranks, None) not in self.parts:
            self.parts[ranks, None] = _of_stage(ranks, self.mesh, self.manifests)
        return self.parts[ranks, None]

    def _of_calls(
        self, record: Record, ranks: frozenset[int], group: Mapping[Holder, Record]
    ) -> Mesh:
        """The mesh of some ranks' calls that were given the rows of one batch."""
        mesh, held = self._of_ranks(ranks), self.rows.get(record.step) or {}
        for call in {held[holder].call for holder in group if holder in held}:
            place = ranks, (record.step, call)
            if place not in self.parts:
                self.parts[place] = mesh.of_rows(_of_call(held, call, ranks)) or mesh
            if self.parts[place].places.keys() >= group.keys():
                return self.parts[place]
        return mesh


def _of_stage(ranks: frozenset[int], mesh: Mesh, manifests: Mapping[int, Manifest]) -> Mesh:
    """The mesh of the ranks of one stage, which their manifests may describe without the stages."""
    own = {rank: manifest for rank, manifest in manifests.items() if rank in ranks}
    described = Mesh.of(own, len(ranks))
    return mesh.of_ranks(ranks) if UNKNOWN in described.sizes else described


def _of_all_stages(held: Mapping[Holder, GivenRows], mesh: Mesh) -> dict[Holder, GivenRows]:
    """The rows of each rank's calls; those of another stage are its first stage's."""
    others = mesh.without([_STAGES])
    known: dict[tuple[int, ...], dict[int, GivenRows]] = {}
    for (rank, call), rows in held.items():
        known.setdefault(mesh.along((rank, 0), others), {})[call] = rows
    if _STAGES not in mesh.sizes:
        return dict(held)
    return {
        (rank, call): rows
        for rank, _ in mesh.places
        for call, rows in known.get(mesh.along((rank, 0), others), {}).items()
    }


def _of_call(
    rows: Mapping[Holder, GivenRows], call: int, ranks: Collection[int] | None
) -> dict[Holder, GivenRows]:
    """Those of one of golden's calls, of some ranks or all."""
    return {
        at: each
        for at, each in rows.items()
        if each.call == call and (ranks is None or at[0] in ranks)
    }


def _calls_of_model(records: Iterable[Record]) -> dict[tuple[int, str], int]:
    """How often each module is called in a call of the model, by step and name."""
    calls: dict[tuple[int, str], int] = {}
    for record in records:
        if record.role not in UPDATE_ROLES:
            place = record.step, record.name
            calls[place] = max(calls.get(place, 0), record.call + 1)
    return {
        (step, name): max(1, count // calls.get((step, ""), 1))
        for (step, name), count in calls.items()
    }


class Unified(NamedTuple):
    """Pairs of records of the global model.

    Attributes:
        pairs: as given, with ``GlobalRecord`` where a side has several ranks.
        others: further arrangements of the candidate's ranks, by the pair's place.
        unknown: why a pair cannot be put together, by its place.
        means: what a mean over the ranks' batches may divide by.
    """

    pairs: list[Pair]
    others: dict[int, tuple[GlobalRecord, ...]]
    unknown: dict[int, PairRemark]
    means: tuple[float, ...] = ()


def unify(
    pairs: Sequence[Pair],
    golden: RankRecords | None,
    candidate: RankRecords | None,
    given: Sequence[GivenLayout] = (),
) -> Unified:
    """Put the ranks' records of each pair together.

    Args:
        pairs: of the records that ``RankRecords.first`` gives.
        golden, candidate: the sides' ranks; ``None`` for a side of one rank.
        given: layouts of the candidate's tensors that the user gave.

    Raises:
        UsageError: if a given layout names dimensions that the mesh lacks.
    """
    unified = Unified([], {}, {})
    for each in given:
        each.check(() if candidate is None else candidate.mesh.sizes)
    if golden is None and candidate is None:
        return unified._replace(pairs=list(pairs))
    padding = set() if candidate is None else paddings(pairs, candidate.groups)
    in_parts = _called_in_parts(pairs, golden, candidate)
    shapes: dict[Key, tuple[int, ...]] = {}
    outside: dict[tuple[int, str, int], bool] = {}  # of calls: whether tokens are outside of rows
    for place, pair in enumerate(pairs):
        of_step = pair.record.step, pair.record.name
        if of_step in in_parts and pair.record.role not in UPDATE_ROLES:
            unified.unknown[place] = in_parts[of_step]
            unified.pairs.append(pair)
            continue
        if pair.golden is None or pair.candidate is None:
            held = (
                None
                if pair.golden is None or candidate is None
                else candidate.holders.of(pair.golden)
            )
            if held is not None:
                unified.unknown[place] = NotRecordedOn(tuple(sorted(held)))
            unified.pairs.append(
                replace(
                    pair,
                    golden=_alone(pair.golden, golden),
                    candidate=_alone(pair.candidate, candidate),
                )
            )
            continue
        if candidate is not None and (lacking := candidate.lacking(pair.candidate)):
            unified.unknown[place] = lacking
            unified.pairs.append(pair)
            continue
        rule = next((own for own in given if own.applies_to(pair.candidate)), None)
        found = (
            _both_sides(pair.golden, pair.candidate, golden, candidate, shapes)
            if rule is None or candidate is None
            else _as_given(pair.golden, pair.candidate, candidate, rule)
        )
        if isinstance(found, PairRemark) and golden is None and candidate is not None:
            found = _padded(pair.golden, pair.candidate, candidate, padding) or found
        if isinstance(found, PairRemark):
            unified.unknown[place] = found
            unified.pairs.append(pair)
            continue
        ours, theirs, others = found
        if candidate is not None and isinstance(theirs, GlobalRecord):
            call = theirs.step, pair.golden.name, pair.golden.call
            names = _cut_by(pair.candidate, candidate)
            if pair.golden.role is Role.INPUT and call not in outside:
                outside.update((call, known) for known in _has_tokens_outside(theirs, names))
            elif call in outside and others:
                theirs, others = _in_order_of(outside[call], theirs, others, names)
        shapes[pair.golden.key] = ours.shape
        unified.pairs.append(replace(pair, golden=ours, candidate=theirs))
        if others:
            unified.others[place] = others
    means = [_divisors(unified.pairs, *side) for side in ((golden, True), (candidate, False))]
    divisors = {theirs / ours for ours in means[0] for theirs in means[1]} - {1.0}
    return unified._replace(means=tuple(sorted(divisors, reverse=True)))


def _cut_by(record: Record, ranks: RankRecords) -> tuple[str, str]:
    """The dimensions along which ranks have rows, and tokens, of their own."""
    mesh = ranks.mesh_of(record)
    return mesh.batch, mesh.sequence


def _has_tokens_outside(record: GlobalRecord, names: tuple[str, str]) -> Iterator[bool]:
    """Whether the axis of tokens comes before that of rows, as the axes tell that are cut."""
    for axis, cut in record.axes:
        if axis < 2 < len(record.shape) and len(cut) == 1 and cut[0] and cut[0] in names:
            yield (axis == 0) is (cut[0] == names[1])
            return


def _in_order_of(
    outside: bool, record: GlobalRecord, others: tuple[GlobalRecord, ...], names: tuple[str, str]
) -> tuple[GlobalRecord, tuple[GlobalRecord, ...]]:
    """The arrangements, with the one first whose rows and tokens are one axis in this order.

    What is cut by the rows, with the tokens outside, has more parts than with them inside."""
    alike = [each for each in (record, *others) if each.axes == record.axes and each.same]
    cut = {name for _, each in record.axes for name in each}
    if len(alike) < 2 or len(cut) != 1 or not cut & {*names}:
        return record, others
    choose = max if outside is (names[0] in cut) else min
    first = choose(alike, key=lambda each: len(each.boxes))
    return first, tuple(each for each in (record, *others) if each is not first)


def _called_in_parts(
    pairs: Iterable[Pair], golden: RankRecords | None, candidate: RankRecords | None
) -> dict[tuple[int, str], PairRemark]:
    """The modules, by step and name, that ranks with a part of the sequence call more often, or
    less, in a call of the model: a ring of keys and values calls them for each part."""
    meshes = (mesh for side in (golden, candidate) if side for mesh in side.batches.values())
    if not any(mesh.sequence for mesh in meshes):
        return {}
    calls: dict[tuple[int, str], list[int]] = {}
    for pair in pairs:
        if pair.record.role not in UPDATE_ROLES:
            most = calls.setdefault((pair.record.step, pair.record.name), [0, 0])
            for side, record in enumerate((pair.golden, pair.candidate)):
                most[side] = max(most[side], 0 if record is None else record.call + 1)
    return {
        place: CalledInParts(ours, theirs)
        for place, (ours, theirs) in calls.items()
        if ours != theirs and len({*calls.get((place[0], ""), ())}) < 2
    }


def _alone(record: Record | None, ranks: RankRecords | None) -> Record | None:
    """The record without partner of a side: a global tensor, or else what its first rank holds."""
    if record is None or ranks is None:
        return record
    group = ranks.groups[record.key]
    first = group[min(group)]
    shape = first.shape if first.shard is None else first.shard.shape
    with contextlib.suppress(IncompleteError):
        if found := arrangements(group, ranks.mesh_of(record), shape):
            return _global(record, shape, found[0])
    return _global(record, first.shape, Arrangement((box_of(first),), LayoutEvidence.RECORDED))


def _as_given(
    ours: Record, theirs: Record, candidate: RankRecords, rule: GivenLayout
) -> tuple[Record, Record, tuple[GlobalRecord, ...]] | PairRemark:
    """The pair with the candidate's tensor put together as the user says."""
    group, mesh = candidate.groups[theirs.key], candidate.mesh_of(theirs)
    found = given_arrangement(group, mesh, ours.shape, rule.axes())
    if found is None:
        return UnknownLayout(tuple(dict.fromkeys(record.shape for record in group.values())))
    record = _global(theirs, ours.shape, found)
    if rule.fused:
        record = next((each for _, each in interleaved(record, [rule.fused])), record)
    if rule.sum:
        record = next(with_sums(record, ()))
    return ours, record, ()


def _both_sides(
    ours: Record,
    theirs: Record,
    golden: RankRecords | None,
    candidate: RankRecords | None,
    known: Mapping[Key, tuple[int, ...]],
) -> tuple[Record, Record, tuple[GlobalRecord, ...]] | PairRemark:
    """Both sides' global tensors and the candidate's further ones, or why there are none.

    Golden of several ranks is trusted: its replicas are equal, or terms of a mean.

    Args:
        known: the global tensors' shapes; a gradient has that of its value.
    """
    groups = [
        None if ranks is None else (ranks.groups[record.key], ranks.mesh_of(record))
        for record, ranks in ((ours, golden), (theirs, candidate))
    ]
    found: list[tuple[list[Record], list[Record]]] = []
    missing: PairRemark | None = None
    role = _VALUES.get(ours.role, ours.role)
    of_value = known.get(ours.key._replace(role=role))
    for shape in _shapes((ours, theirs), groups):
        if of_value is not None and golden and candidate and shape != of_value:
            continue
        sides: list[list[Record]] = []
        for record, group in zip((ours, theirs), groups, strict=True):
            try:
                sides.append([record] if group is None else [*global_tensors(*group, shape)])
            except IncompleteError:
                assert group is not None
                missing = PartsMissing(tuple(sorted({rank for rank, _ in group[0]})))
                sides.append([])
        if all(sides):
            found.append((sides[0], sides[1]))
    if not found:
        held = groups[1] or groups[0]
        assert held is not None
        return missing or UnknownLayout(tuple(dict.fromkeys(r.shape for r in held[0].values())))
    best = min(found, key=lambda sides: (not _same(sides[0][0]), not _same(sides[1][0])))
    first, (second, *others) = best[0][0], best[1]
    if not isinstance(second, GlobalRecord):
        second = _global(
            second, second.shape, Arrangement((box_of(second),), LayoutEvidence.RECORDED)
        )
    if isinstance(first, GlobalRecord) and not first.same:
        *_, first = with_sums(first, ())
    return first, second, tuple(each for each in others if isinstance(each, GlobalRecord))


def _padded(
    ours: Record, theirs: Record, candidate: RankRecords, known: Iterable[tuple[int, int]]
) -> tuple[Record, Record, tuple[GlobalRecord, ...]] | None:
    """The pair without what a vocabulary was padded with; ``None`` if that is not what differs."""
    group, mesh = candidate.groups[theirs.key], candidate.mesh_of(theirs)
    found = padded_shape(ours, group, mesh, known)
    if found is None:
        return None
    axis, shape = found
    with contextlib.suppress(IncompleteError):
        own = global_tensors(group, mesh, shape)
        first: Record = ours
        if shape[axis] > ours.shape[axis]:
            if is_zero_in_padding(ours):
                first = with_padding(ours, shape, _global)
            else:
                own = [without_padding(each, ours.shape, axis, _global) for each in own]
        elif is_zero_in_padding(ours):
            own = [with_padding(each, ours.shape, _global) for each in own]
        else:
            first = without_padding(ours, shape, axis, _global)
            own = [replace(each, padding=(axis, shape[axis] - ours.shape[axis])) for each in own]
        return first, own[0], tuple(own[1:])
    return None


_Group = tuple[Mapping[Holder, Record], Mesh]


def _shapes(
    records: tuple[Record, Record], groups: Sequence[_Group | None]
) -> list[tuple[int, ...]]:
    """The shapes that the whole may have: of the side of one rank, or by what both tell."""
    for record, group in zip(records, groups, strict=True):
        if group is None:
            return [record.shape]
    ours, theirs = (whole_shapes(*group) for group in groups if group is not None)
    return [shape for shape in ours if shape in theirs]


def _same(record: Record) -> bool:
    return not isinstance(record, GlobalRecord) or record.same


def _divisors(pairs: Iterable[Pair], ranks: RankRecords | None, golden: bool) -> set[int]:
    """What a mean over a side's batches may divide by: 1, its ranks, its calls, or both."""
    if ranks is None:
        return {1}
    if ranks.batches:
        rows = next(iter(ranks.batches.values()))
        calls = len({call for _, call in rows.places})
        several = len({rank for rank, _ in rows.places})
        many = {several, calls, several * calls}
        if ranks.holders.modules:  # a schedule may run several times before an update
            many |= {number for number in range(1, calls) if calls % number == 0}
        parts = rows.sizes.get(rows.sequence, 1)
        own = {rows.sizes[rows.batch], parts, rows.sizes[rows.batch] * parts}
        return {1, *many, *own}
    sides = (pair.golden if golden else pair.candidate for pair in pairs)
    inputs = (
        record
        for record in sides
        if isinstance(record, GlobalRecord) and not record.name and record.role is Role.INPUT
    )
    names = ({name for _, names in record.axes for name in names} for record in inputs)
    return {1, *(ranks.mesh.count(each) for each in names)}


def global_tensors(
    group: Mapping[Holder, Record], mesh: Mesh, shape: tuple[int, ...]
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
    alone = (
        len(arrangement.boxes) == len(own.terms) == 1
        and own.factor == 1.0
        and own.shape == own.part
    )
    records = [record for box in arrangement.boxes for record in box.terms]
    held = all(record.member is not None for record in records)
    fields |= {
        "digest": own.terms[0].digest if alone else None,
        "sketch": own.terms[0].sketch if alone else None,
        "member": own.terms[0].member if held else None,
        "statistics": own.terms[0].statistics if alone else _statistics(arrangement.boxes),
        "shape": shape,
        "shard": None,
        "boxes": arrangement.boxes,
        "evidence": arrangement.evidence,
        "axes": tuple(arrangement.axes.items()),
    }
    return GlobalRecord(**fields)


def _statistics(boxes: Sequence[Box]) -> Statistics | None:
    """The statistics of values side by side; ``None`` if some are unknown or sums are made."""
    if any(len(box.terms) > 1 or box.factor != 1.0 for box in boxes):
        return None
    held: Counter[int] = Counter()  # how many of a record's values the boxes hold
    for box in boxes:
        held[id(box.terms[0])] += math.prod(box.shape)
    records = {id(box.terms[0]): box.terms[0] for box in boxes}
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


def interleaved(
    record: GlobalRecord, fused: Iterable[tuple[int, ...]] = FUSED
) -> Iterator[tuple[int, GlobalRecord]]:
    """The tensor of fused layers, of which each rank has a part: gate and up, or query, key and
    value. With the number of layers."""
    if len(record.axes) != 1 or len({box.shape for box in record.boxes}) > 1:
        return
    ((axis, _),) = record.axes
    places = sorted({box.start[axis] for box in record.boxes})
    for sizes in fused:
        length, rest = divmod(record.boxes[0].shape[axis], sum(sizes))
        if rest or not length:
            continue
        boxes = []
        for box in record.boxes:
            number, before = places.index(box.start[axis]), 0
            for size in sizes:
                own = size * length
                start, where = list(box.start), list(box.where)
                start[axis] = before * len(places) + number * own
                where[axis] = where[axis][0] + before, where[axis][0] + before + own
                boxes.append(replace(box, start=tuple(start), where=tuple(where)))
                before += own
        yield len(sizes), replace(_without_digest(record), boxes=tuple(boxes))


def _without_digest(record: GlobalRecord) -> GlobalRecord:
    return replace(record, digest=None, statistics=None)
