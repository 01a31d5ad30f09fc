"""The records of a bundle's ranks, grouped by the value of the global model that they are of."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from accucompare.bundle.format import GRADIENT_ROLES, UPDATE_ROLES, Key, Manifest, Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.layouts.batch_rows import GivenRows, RowsOfRanks
from accucompare.compare.layouts.mesh import UNKNOWN, Mesh
from accucompare.compare.layouts.put_back import Holders
from accucompare.compare.layouts.sequence_parts import Holder
from accucompare.compare.pairing import Pair
from accucompare.compare.remarks import PartsMissing

#: The dimension of stages.
_STAGES = "pp"


class RankRecords(NamedTuple):
    """The records of all ranks of a bundle."""

    # by the key of golden's record: rank 0, and golden's call
    groups: Mapping[Key, Mapping[Holder, Record]]
    mesh: Mesh  # of the ranks
    # of the calls of the model, by golden's step and call; where the rows are known
    batches: Mapping[Holder, Mesh]
    holders: Holders  # which ranks hold what, if not all do
    rows: RowsOfRanks  # of golden's batch, by golden's step
    # the meshes of some of the ranks, and of their calls, made when they are needed
    parts: dict[tuple[frozenset[int], Holder | None], Mesh]
    manifests: Mapping[int, Manifest]  # of the ranks
    # which ranks hold each value of updates in any step: by name, role and path
    updating: Mapping[tuple[str, Role, str], set[int]]
    short: frozenset[int]  # the steps that some of the ranks lack

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        records: Sequence[Record],
        given: RowsOfRanks,
        holders: Holders | None = None,
    ) -> RankRecords:
        """Args: ``given``: which rows of golden's batch each rank was given."""
        mesh = Mesh.of(bundle.manifests, bundle.manifest.ranks)
        # where ranks are missing, those that are there do not make up a batch
        short = _steps_short_of_ranks(bundle.manifests)
        rows = {step: held for step, held in given.items() if step not in short}
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
        return cls(groups, mesh, batches, holders, rows, {}, bundle.manifests, updating, short)

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
        """The ranks that finished the step without the update that they made in another step, or
        that made one without the gradient that others have."""
        held = {rank for rank, _ in self.groups[record.key]}
        if record.role is Role.PARAM_GRAD:
            before = self.groups.get(record.key._replace(role=Role.PARAM_BEFORE), {})
            without = {rank for rank, _ in before} - held
        elif record.role in (Role.PARAM_UPDATE, Role.STATE_AFTER):
            without = {
                rank
                for rank in self.updating[record.name, record.role, record.path] - held
                if any(entry.step == record.step for entry in self.manifests[rank].steps)
            }
        else:
            return None
        return PartsMissing(tuple(sorted(held)), tuple(sorted(without))) if without else None

    def short_of_ranks(self, pair: Pair) -> PartsMissing | None:
        """The ranks that have a step, if others were ended before, or their files are lost, and the
        pair's values may be theirs: of one side only, or of the calls of a stage."""
        of_calls = bool(self.holders.modules) and pair.record.role not in UPDATE_ROLES
        alone = pair.golden is None or pair.candidate is None
        if pair.record.step not in self.short or not (of_calls or alone):
            return None
        return PartsMissing(tuple(sorted(_ranks_of_step(self.manifests, pair.record.step))))

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


def _ranks_of_step(manifests: Mapping[int, Manifest], step: int) -> set[int]:
    return {
        rank
        for rank, manifest in manifests.items()
        if any(entry.step == step for entry in manifest.steps)
    }


def _steps_short_of_ranks(manifests: Mapping[int, Manifest]) -> frozenset[int]:
    """The steps that some rank has and others lack."""
    ranks = next(iter(manifests.values())).ranks
    steps = {entry.step for manifest in manifests.values() for entry in manifest.steps}
    return frozenset(step for step in steps if len(_ranks_of_step(manifests, step)) < ranks)


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
