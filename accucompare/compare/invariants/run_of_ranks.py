"""A run of several ranks: who has which part, who was given which batch, and the values."""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import numpy as np

from accucompare.bundle.format import (
    UPDATE_ROLES,
    GlobalRecord,
    Key,
    Layout,
    Record,
    Role,
    Shard,
    StepSeries,
    whole_box,
)
from accucompare.bundle.reading import Bundle
from accucompare.compare.invariants.rank_facts import RankPlace
from accucompare.compare.layouts import SAME_BATCH, UNKNOWN, IncompleteError, Mesh, global_tensors
from accucompare.errors import BundleError
from accucompare.numbers import DTYPES, Float64, as_reals, sums, widen
from accucompare.text import printable

_T = TypeVar("_T")

#: The records of one value, by rank.
ByRank = dict[int, Record]
#: What frameworks call the dimensions that share out the rows of a batch, and those that do not.
_DATA = {"dp", "ddp", "fsdp", "hsdp", "data", "batch"}
_SAME_BATCH = {"tp", "mp", "tensor", "model"}
#: And those along which ranks have other layers, maybe under the same names.
_STAGES = {"pp", "pipe", "pipeline", "stage"}


@dataclass
class StepOfRanks:
    """One step's records of all ranks."""

    number: int
    # by their key with the rank 0, in execution order of the first rank that has them
    values: dict[Key, ByRank]

    def of(self, *roles: Role) -> Iterator[tuple[Key, ByRank]]:
        return ((key, group) for key, group in self.values.items() if key.role in roles)

    def given_gradients(self) -> Iterator[tuple[Key, ByRank]]:
        """The gradients of the ranks that step the parameter; of all, if no update is recorded."""
        for key, group in self.of(Role.PARAM_GRAD):
            path = key.path.partition("#")[0]
            stepping = self.values.get(key._replace(role=Role.PARAM_BEFORE, path=path)) or group
            yield key, {rank: record for rank, record in group.items() if rank in stepping}

    @cached_property
    def batches(self) -> dict[int, tuple[Any, ...]]:
        """What the model was given, by rank and in the order of the calls; without what is part
        of a tensor."""
        found: dict[int, dict[int, list[Any]]] = {}
        for key, group in self.of(Role.INPUT):
            if key.name:
                continue
            for rank, record in group.items():
                if record.digest and record.shape and is_whole(record):
                    calls = found.setdefault(rank, {})
                    calls.setdefault(key.call, []).append((key.path, record.digest))
        return {
            rank: tuple(tuple(calls[call]) for call in sorted(calls))
            for rank, calls in found.items()
        }

    @cached_property
    def padding(self) -> frozenset[int]:
        """The ranks that were given one value alone, such as a part of a sequence that is padding:
        that it is another's, too, says nothing."""
        varied, given = set(), set()
        for key, group in self.of(Role.INPUT):
            for rank, record in group.items():
                known = record.statistics
                if not key.name and record.shape:
                    given.add(rank)
                    if known is None or known.min != known.max or math.prod(record.shape) == 1:
                        varied.add(rank)
        return frozenset(given - varied)


@dataclass
class RunOfRanks:
    """A bundle of several ranks."""

    bundle: Bundle
    steps: list[int]
    mesh: Mesh = field(init=False)  # the ranks' places

    def __post_init__(self) -> None:
        self.mesh = Mesh.of(self.bundle.manifests, self.bundle.manifest.ranks)
        if not self.knows_mesh and self._batches_are_given:
            self.mesh = self.mesh.told_apart(self.step(self.steps[0]).batches)

    def step(self, number: int) -> StepOfRanks:
        values: dict[Key, ByRank] = {}
        for rank, entry in self.bundle.steps():
            if entry.step == number:
                for record in self.bundle.step_records(rank, entry):
                    values.setdefault(record.key._replace(rank=0), {})[rank] = record
        return StepOfRanks(number, values)

    def series(self, step: int) -> dict[int, StepSeries]:
        """A step of training in numbers, by rank."""
        return {
            rank: entry
            for rank, manifest in self.bundle.manifests.items()
            for entry in manifest.series
            if entry.step == step
        }

    @cached_property
    def knows_mesh(self) -> bool:
        """Whether the manifests tell the mesh."""
        return UNKNOWN not in self.mesh.sizes

    @cached_property
    def data(self) -> tuple[str, ...]:
        """The dimensions along which ranks have rows of their own."""
        if SAME_BATCH in self.mesh.sizes and not self.knows_mesh:
            return (UNKNOWN,)
        return tuple(name for name in self.mesh.sizes if _DATA & _words(name))

    @cached_property
    def same_batch(self) -> tuple[str, ...]:
        """The dimensions along which ranks have the same rows."""
        return tuple(
            name for name in self.mesh.sizes if _SAME_BATCH & _words(name) and name not in self.data
        )

    @cached_property
    def stages(self) -> tuple[str, ...]:
        return tuple(name for name in self.mesh.sizes if _STAGES & _words(name))

    def by_stage(self, group: ByRank) -> list[ByRank]:
        """The records of each stage of a pipeline apart: one name may be of other layers there."""
        found: dict[tuple[int, ...], ByRank] = {}
        for rank, record in group.items():
            found.setdefault(self.place(rank, self.stages), {})[rank] = record
        return [*found.values()]

    def place(self, rank: int, names: Iterable[str]) -> tuple[int, ...]:
        return self.mesh.along((rank, 0), names)

    def data_place(self, step: StepOfRanks, rank: int) -> Any:
        """What tells apart ranks with rows of their own: the mesh, or else the batch itself."""
        if self.data or self.same_batch:
            return self.place(rank, self.data)
        return step.batches.get(rank, (rank,))

    # parameters

    @cached_property
    def parameters(self) -> dict[str, ByRank]:
        """The parameters as the manifests describe them, as records of a saved state."""
        found: dict[str, ByRank] = {}
        for rank, manifest in self.bundle.manifests.items():
            for name, entry in (manifest.model.get("parameters") or {}).items():
                module, _, path = name.rpartition(".")
                shard = _shard_of(self.bundle, name, entry)
                found.setdefault(name, {})[rank] = Record(
                    rank,
                    manifest.described_at,
                    module,
                    0,
                    Role.PARAM,
                    path,
                    0,
                    "",
                    None,
                    tuple(entry["shape"]),
                    entry["dtype"],
                    Layout.STRIDED,
                    digest=entry["digests"].get(entry["dtype"]),
                    shard=shard,
                )
        return found

    @cached_property
    def tied(self) -> dict[str, str]:
        """Further names of parameters, each with the first."""
        found: dict[str, str] = {}
        for manifest in self.bundle.manifests.values():
            found |= manifest.model.get("tied") or {}
        return found

    @cached_property
    def one_weight(self) -> dict[str, str]:
        """The same with weights that ranks hold under other names, as the first and the last stage
        of a pipeline do: matrices that began with the same values, and never on one rank."""
        held: dict[Any, dict[str, set[int]]] = {}
        for rank, manifest in self.bundle.manifests.items():
            for name, entry in (manifest.model.get("parameters") or {}).items():
                digest = entry["digests"].get(entry["dtype"])
                if digest is not None and len(entry["shape"]) > 1 and "shard" not in entry:
                    names = held.setdefault((*entry["shape"], digest), {})
                    names.setdefault(self.tied.get(name, name), set()).add(rank)
        found = {**self.tied}
        for names in held.values():
            if len(names) == 2 and not set.intersection(*names.values()):
                first, other = names
                found[other] = first
        return found

    @cached_property
    def stages_weights(self) -> frozenset[str]:
        """Those of ``one_weight`` that no rank ties, under all their names."""
        return frozenset(
            name for pair in self.one_weight.items() if pair[0] not in self.tied for name in pair
        )

    @cached_property
    def of_replicas(self) -> tuple[str, ...]:
        """The dimensions along which a parameter without a layout must be the same: those of data,
        and those along which the framework lays out others."""
        laid = {
            name
            for group in self.parameters.values()
            for record in group.values()
            if record.shard is not None
            for name in record.shard.mesh
        }
        known = tuple(name for name in self.mesh.sizes if name in self.data or name in laid)
        if known or self.knows_mesh:
            return known
        own_rows = len(set(self.step(self.steps[0]).batches.values())) > 1
        return tuple(self.mesh.sizes) if own_rows and self._batches_are_given else ()

    @cached_property
    def _batches_are_given(self) -> bool:
        """Whether no rank's model is given what comes from another stage of a pipeline, which has
        a gradient."""
        given = [group for key, group in self.step(self.steps[0]).of(Role.INPUT) if not key.name]
        return not any(record.requires_grad for group in given for record in group.values())

    @cached_property
    def by_hand(self) -> frozenset[str]:
        """Parameters without a layout that ranks held unlike from the start along dimensions of
        which nothing tells what they are: probably parts, cut by the code itself."""
        found = set()
        # of a pipeline's stages, modules of one name are others, and may begin alike: with ones
        stages = not self.knows_mesh and not self._batches_are_given
        for name, group in self.parameters.items():
            plain = [record for record in group.values() if record.shard is None]
            alike: dict[tuple[int, ...], set[Any]] = {}
            for record in plain:
                place = self.place(record.rank, self.of_replicas)
                alike.setdefault(place, set()).add((record.shape, record.digest))
            # ranks with rows of their own have wholes of one shape, or else parts
            shapes = {record.shape for record in plain}
            unlike = any(len(each) > 1 for each in alike.values())
            if len(shapes) > 1 or unlike or (stages and len(plain) > 1):
                found.add(name)
        return frozenset(found) | self.local_experts.keys()

    @cached_property
    def local_experts(self) -> dict[str, dict[int, int]]:
        """Parameters of experts of which each rank has its own under one name, with a number for
        each rank: ranks with one number hold the same.

        All matrices of a module's experts then tell the same ranks apart from the start, into as
        many of each; of other modules, some do not.
        """
        inside: dict[str, list[str]] = {}
        matrices: dict[str, list[str]] = {}
        for name, group in self.parameters.items():
            around = _experts_around(name)
            if all(record.shard is None for record in group.values()) and len(group) > 1:
                inside.setdefault(around, []).append(name)
                if len(group[min(group)].shape) > 1:
                    matrices.setdefault(around, []).append(name)
        others = [self._ranks_of_values(name) for name in matrices.pop("", [])]
        found: dict[str, dict[int, int]] = {}
        if all(len(set(each.values())) > 1 for each in others):
            return found  # ranks that were seeded apart, it may be
        for around, names in matrices.items():
            first, *more = (self._ranks_of_values(name) for name in names)
            shares = Counter(Counter(first.values()).values())
            if len(set(first.values())) > 1 and len(shares) == 1 and all(e == first for e in more):
                found |= dict.fromkeys(inside[around], first)
        return found

    def _ranks_of_values(self, name: str) -> dict[int, int]:
        """A number for each rank, by the value that it has of a parameter from the start."""
        group = self.parameters[name]
        values = [*dict.fromkeys((each.shape, each.digest) for _, each in sorted(group.items()))]
        return {rank: values.index((each.shape, each.digest)) for rank, each in group.items()}

    def parameter_of(self, record: Record) -> str:
        """The parameter that a record of an update is of; ``""`` if of none."""
        path = record.path.partition("#")[0]
        while path:
            name = f"{record.name}.{path}" if record.name else path
            if name in self.parameters:
                return name
            path = path.rpartition(".")[0]
        return ""

    # replicas and wholes

    def replicas(self, group: ByRank) -> list[ByRank]:
        """The ranks of one value that must hold the same bits; of one value nothing is known if it
        has no layout and is of no parameter."""
        found: dict[Any, ByRank] = {}
        for rank, record in group.items():
            stage = self.place(rank, self.stages)
            shard, of_update = record.shard, record.role in (*UPDATE_ROLES, Role.PARAM)
            if shard is None:
                if not of_update:
                    continue
                aside: tuple[int, ...] = ()
                parameter = self.parameter_of(record)
                if parameter in self.local_experts:
                    aside = (self.local_experts[parameter].get(rank, -1),)
                elif parameter in self.by_hand:
                    aside = self.place(rank, self.mesh.without(self.of_replicas))
                key: tuple[Any, ...] = (None, aside, stage)
            elif not self._lies_on_mesh(shard):
                continue
            else:
                own = () if of_update else self.mesh.without(shard.mesh)
                key = (shard, record.shape, self.place(rank, (*shard.over, *own)), stage)
            found.setdefault(key, {})[rank] = record
        return [each for each in found.values() if len(each) > 1]

    def wholes(self, group: ByRank) -> list[GlobalRecord]:
        """The whole tensors that the ranks' parts make up: one for each place along the dimensions
        of which the layout says nothing. A value without a layout is a whole of each rank. Raises
        IncompleteError if parts are missing or overlap."""
        found: list[GlobalRecord] = []
        for shape, mesh, records in self._laid_out(group):
            found += global_tensors(records, mesh, shape)[:1]
        alone = (record for record in group.values() if record.shard is None)
        found += [GlobalRecord.of(each, [whole_box((each,), each.shape)]) for each in alone]
        return found

    def fills(self, group: ByRank) -> bool:
        """Whether the parts fill the whole, and do not overlap."""
        try:
            return all(
                global_tensors(records, mesh, shape)
                for shape, mesh, records in self._laid_out(group)
            )
        except IncompleteError:
            return False

    def _laid_out(
        self, group: ByRank
    ) -> Iterator[tuple[tuple[int, ...], Mesh, dict[tuple[int, int], Record]]]:
        found: dict[Any, dict[tuple[int, int], Record]] = {}
        for rank, record in group.items():
            if record.shard is not None and self._lies_on_mesh(record.shard):
                own = record.shard.mesh
                others = self.place(rank, self.mesh.without(own))
                found.setdefault((own, record.shard.shape, others), {})[rank, 0] = record
        for (names, shape, _), records in found.items():
            kept = [name for name in self.mesh.sizes if name in names]
            sizes = {name: self.mesh.sizes[name] for name in kept}
            yield shape, Mesh(sizes, {at: self.mesh.along(at, kept) for at in records}), records

    def _lies_on_mesh(self, shard: Shard) -> bool:
        return bool(shard.mesh) and set(shard.mesh) <= set(self.mesh.sizes)

    # values

    def distance(self, one: Record, other: Record) -> float | None:
        """How far one record's values are from another's, relative; ``None`` without values."""
        if not comparable(one, other):
            return None
        error = norm = 0.0
        pairs = zip(self.blocks(one), self.blocks(other), strict=True)
        with np.errstate(all="ignore"):
            for ours, theirs in pairs:
                error += float(np.sum((theirs - ours) ** 2))
                norm += float(np.sum(ours**2))
        return math.sqrt(error / norm) if norm else (math.inf if error else 0.0)

    def blocks(self, record: Record) -> Iterator[Float64]:
        """A record's values in float64, block by block."""
        if isinstance(record, GlobalRecord) and len(record.boxes) == 1:
            (box,) = record.boxes
            if len(box.terms) == 1 and box.factor == 1.0 and box.part == record.shape:
                record = box.terms[0]  # read without a copy of its segments
        stored, size, dtype = (
            self.bundle.stored(record),
            math.prod(record.shape),
            DTYPES[record.dtype],
        )
        for start in range(0, size, sums.SEGMENT):
            for block in stored.blocks(start, min(start + sums.SEGMENT, size)):
                yield as_reals(widen(block.copy(), dtype)).astype(np.float64)

    def norm(self, record: Record) -> float | None:
        """The L2 norm of a record's values; ``None`` if they were not kept."""
        if record.statistics is not None:
            return record.statistics.l2
        if not has_values(record):
            return None
        return math.sqrt(math.fsum(float(np.sum(block**2)) for block in self.blocks(record)))


def is_whole(record: Record) -> bool:
    """Whether a record holds all of its tensor, as far as is known."""
    return record.shard is None or record.shard.is_whole(record.shape)


def has_values(record: Record) -> bool:
    if isinstance(record, GlobalRecord):
        return all(each.member is not None for box in record.boxes for each in box.terms)
    return record.member is not None


def comparable(one: Record, other: Record) -> bool:
    """Whether both have values, of one shape and type."""
    same = (one.shape, one.dtype) == (other.shape, other.dtype)
    return same and one.member is not None and other.member is not None


def apart(held: Mapping[int, _T]) -> tuple[int, ...]:
    """The ranks whose value is not that of most; all of them if no value is of most. None if all
    have the same."""
    counts = Counter(held.values()).most_common()
    if len(counts) < 2:
        return ()
    if counts[0][1] == counts[1][1]:
        return tuple(sorted(held))
    return tuple(sorted(rank for rank, value in held.items() if value != counts[0][0]))


def by_value(held: Mapping[int, _T]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Each value as text, with the ranks that have it."""
    found: dict[str, list[int]] = {}
    for rank, value in sorted(held.items()):
        found.setdefault(str(value), []).append(rank)
    return tuple((value, tuple(ranks)) for value, ranks in found.items())


def place_of_record(record: Record, ranks: tuple[int, ...]) -> RankPlace:
    """Where a record is; of a parameter's, with the parameter's name."""
    name = record.name
    if record.path and record.role in (*UPDATE_ROLES, Role.PARAM, Role.CALL_GRAD):
        name = ".".join(filter(None, (record.name, record.path)))
    role = None if record.role is Role.PARAM else record.role.value
    step = None if record.role is Role.PARAM else record.step
    return RankPlace(name, step, role, record.call, ranks)


def _experts_around(parameter: str) -> str:
    """The path of the experts that a parameter is in; ``""`` if in none."""
    parts = parameter.split(".")
    for number, part in enumerate(parts[:-1], 1):
        if "expert" in part.lower() and "shared" not in part.lower():
            return ".".join(parts[:number])
    return ""


def _shard_of(bundle: Bundle, name: str, entry: dict[str, Any]) -> Shard | None:
    """The layout that a manifest says a parameter has. BundleError if there can be none such."""
    if entry.get("shard") is None:
        return None
    with contextlib.suppress(msgspec.ValidationError):
        shard = msgspec.convert(entry["shard"], Shard)
        if shard.holds(tuple(entry["shape"])):
            return shard
    raise BundleError(
        f"{bundle.path}: damaged; the layout of {printable(name)} in a manifest is impossible"
    )


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z]+", name.lower()))
