"""Bundles of ranks under golden's names: their records, their manifests, and who holds what."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from accucompare.bundle.format import UPDATE_ROLES, Manifest, Record, Role, Unfed
from accucompare.bundle.reading import Bundle
from accucompare.compare.layouts.batch_rows import RowsOfRanks
from accucompare.compare.layouts.finding_names import names_of_ranks
from accucompare.compare.layouts.microbatches import Schedule, schedule_of
from accucompare.compare.layouts.rank_names import RankNames, StageOf
from accucompare.compare.pairing import Model, Renaming, with_parameter

#: What a module takes and what it gives, and their gradients.
_TAKEN, _GIVEN = (Role.INPUT, Role.GRAD_INPUT), (Role.OUTPUT, Role.GRAD_OUTPUT)


def is_of_expert(record: Record) -> bool:
    """Whether a record is of an expert's call, as its name says."""
    return "expert" in record.name.lower() and record.role not in UPDATE_ROLES


@dataclass(frozen=True)
class Holders:
    """Which ranks hold what, by golden's names; all ranks hold what is not listed."""

    modules: Mapping[str, frozenset[int]] = field(default_factory=dict)
    parameters: Mapping[str, frozenset[int]] = field(default_factory=dict)
    begins: Mapping[str, frozenset[int]] = field(default_factory=dict)
    ends: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def of(self, record: Record) -> frozenset[int] | None:
        """The ranks that hold a record's value; ``None``: all."""
        if not self.modules or record.is_of_group:
            return None
        if record.role in UPDATE_ROLES:
            leaf = record.path.partition("#")[0]
            name = f"{record.name}.{leaf}" if record.name else leaf
            return self.parameters.get(name) or self.parameters.get(name.rpartition(".")[0])
        if record.role is Role.CALL_GRAD and record.path.startswith("/"):
            # another module's weight: of logits that an embedding's weight makes
            return self.ends.get(record.name) or self.modules.get(record.name)
        if record.role in _TAKEN and record.name in self.begins:
            return self.begins[record.name]
        if record.role in _GIVEN and record.name in self.ends:
            return self.ends[record.name]
        return self.modules.get(record.name)

    def share_experts(self, record: Record) -> bool:
        """Whether a record is of experts that ranks share out: it has other ranks' tokens, too, and
        rows in another order."""
        if not self.modules or not is_of_expert(record):
            return False
        inside = f"{record.name}."
        held = {ranks for name, ranks in self.modules.items() if f"{name}.".startswith(inside)}
        return len(held) > 1 or held != {self.modules.get("", frozenset())}


@dataclass(frozen=True)
class UnderGoldenNames:
    """A bundle whose ranks may hold other modules, under golden's names."""

    bundle: Bundle
    # without what stages give each other, which golden has inside of its modules
    records: list[Record]
    # by rank; empty if the ranks' own names are golden's
    names: Mapping[int, RankNames] = field(default_factory=dict)
    holders: Holders = field(default_factory=Holders)
    # of the stages' calls; the records' calls are numbered by it
    schedule: Schedule = field(default_factory=Schedule)

    @classmethod
    def of(
        cls,
        golden: Bundle,
        bundle: Bundle,
        records: list[Record],
        renamings: Sequence[Renaming] = (),
    ) -> UnderGoldenNames:
        """Args: ``records``: the bundle's; ``renamings``: as of ``names_of_ranks``."""
        models = {rank: manifest.model for rank, manifest in bundle.manifests.items()}
        meshes = {rank: manifest.mesh for rank, manifest in bundle.manifests.items()}
        theirs = golden.manifest.model
        names = names_of_ranks(theirs, models, meshes, renamings)
        if not names or bundle.ranks == 1:
            return cls(bundle, records)
        schedule = schedule_of(records, _first_stages(records, names), meshes)
        kept = [
            _renamed(record, names[record.rank], schedule)
            for record in records
            if not _is_between(record, names[record.rank])
        ]
        manifests = {
            rank: _with_feed(_described(each, names[rank], theirs), names[rank], schedule, rank)
            for rank, each in bundle.manifests.items()
        }
        one = copy.copy(bundle)
        one.manifests, one.manifest = manifests, manifests[0]
        return cls(one, kept, names, _holders(manifests, names), schedule)

    def with_later_stages(self, rows: RowsOfRanks) -> RowsOfRanks:
        """The rows that the later stages' calls have, too: those of the first stage's."""
        found = {step: dict(held) for step, held in rows.items()}
        for (rank, step), first in self.schedule.first.items():
            held = found.get(step, {})
            held |= {
                (rank, call): each
                for (other, call), each in rows.get(step, {}).items()
                if other == first
            }
        return found


def _first_stages(records: Iterable[Record], names: Mapping[int, RankNames]) -> dict[int, str]:
    """The outermost module of each rank that has the first stage: the one around the layers with
    which golden begins."""
    outermost = {
        (each.rank, each.name)
        for each in records
        if each.parent is None and each.role is Role.INPUT
    }
    return {
        rank: name
        for rank, name in outermost
        if any(
            stage.begins and (not name or own == name or own.startswith(f"{name}."))
            for own, stage in names[rank].stages.items()
        )
    }


def _is_between(record: Record, names: RankNames) -> bool:
    """Whether one stage gives it to another one."""
    stage = names.stages.get(record.name)
    return stage is not None and _is_of_others(record.role, stage)


def _is_of_others(role: Role, stage: StageOf) -> bool:
    """Whether another stage gives or takes a value of this role."""
    return (role in _TAKEN and not stage.begins) or (role in _GIVEN and not stage.ends)


def _renamed(record: Record, names: RankNames, schedule: Schedule) -> Record:
    if record.is_of_group:
        return record
    call, parent = record.call, record.parent
    stage = names.stages.get(record.name)
    if record.role not in UPDATE_ROLES:
        call = schedule.call(record.rank, record.step, record.name, call)
    if parent is not None:
        around = names.stages.get(parent[0])
        name = names.module(parent[0]) if around is None else around.name
        parent = name, schedule.call(record.rank, record.step, *parent)
    name = names.module(record.name) if stage is None else stage.name
    key = record.key._replace(name=name, call=call)
    key = with_parameter(record.key, names.parameters, key) or key
    return msgspec.structs.replace(record, name=key.name, call=call, path=key.path, parent=parent)


def _described(manifest: Manifest, names: RankNames, golden: Model) -> Manifest:
    """A rank's manifest with golden's names in its tables."""

    def module(own: str) -> str:
        stage = names.stages.get(own)
        return names.module(own) if stage is None else stage.name

    modules = manifest.model.get("modules") or ()

    def attribute(own: str) -> str:
        around = own.rpartition(".")[0]
        while around and around not in modules:  # it is inside of an attribute
            around = around.rpartition(".")[0]
        return f"{module(around)}.{own[len(around) :].lstrip('.')}".removeprefix(".")

    def parameter(own: str) -> str:
        name = attribute(own)
        known = any(name in (golden.get(kind) or {}) for kind in ("parameters", "buffers", "tied"))
        return name if known else names.parameters.get(own, name)

    model: dict[str, Any] = {**manifest.model}
    stages = {stage.name for stage in names.stages.values()}
    for kind in ("modules", "configuration"):
        model[kind] = {module(own): entry for own, entry in (model.get(kind) or {}).items()}
        theirs = golden.get(kind) or {}
        model[kind] |= {name: theirs[name] for name in stages if name in theirs}
    if "" in stages and "class" in golden:
        model["class"] = golden["class"]
    for kind in ("parameters", "buffers"):
        model[kind] = {parameter(own): entry for own, entry in (model.get(kind) or {}).items()}
    for kind in ("not_called", "other_mode"):
        model[kind] = [module(own) for own in model.get(kind) or () if own not in names.stages]
    tied = {parameter(own): parameter(first) for own, first in (model.get("tied") or {}).items()}
    model["tied"] = tied | {
        name: first
        for name, first in (golden.get("tied") or {}).items()
        if name in model["parameters"]
    }
    model["aliases"] = {
        module(own): module(first) for own, first in (model.get("aliases") or {}).items()
    }
    kept, left = manifest.options.kept, manifest.options.left
    own: dict[str, Any] = {} if kept is None else {"kept": [attribute(each) for each in kept]}
    if left is not None:
        own["left"] = {
            "numbers": {module(name): table for name, table in left.numbers.items()},
            "unchanged": {module(name): table for name, table in left.unchanged.items()},
            "held": {attribute(name): digest for name, digest in left.held.items()},
            "dropped": [attribute(each) for each in left.dropped],
            "beyond": [attribute(each) for each in left.beyond],
        }
    return replace(manifest, model=model, capture={**manifest.capture, **own})


def _with_feed(manifest: Manifest, names: RankNames, schedule: Schedule, rank: int) -> Manifest:
    """A rank's manifest with golden's places of the values that it was not fed; what stages give
    each other is none of golden's."""
    feed = manifest.feed
    if feed is None:
        return manifest
    places = []
    for entry in feed.not_fed:
        stage, role, call = names.stages.get(entry.name), Role(entry.role), entry.call
        if stage is not None and _is_of_others(role, stage):
            continue
        if role not in UPDATE_ROLES:
            call = schedule.call(rank, entry.step, entry.name, call)
        name = names.module(entry.name) if stage is None else stage.name
        places.append(msgspec.structs.replace(entry, name=name, call=call))
    return with_feed(manifest, places)


def with_feed(manifest: Manifest, not_fed: Iterable[Unfed]) -> Manifest:
    """A fed capture's manifest that lists other values as not fed."""
    feed = {**manifest.capture["feed"], "not_fed": msgspec.to_builtins([*not_fed])}
    return replace(manifest, capture={**manifest.capture, "feed": feed})


def _holders(manifests: Mapping[int, Manifest], names: Mapping[int, RankNames]) -> Holders:
    found: list[dict[str, set[int]]] = [defaultdict(set) for _ in range(4)]
    modules, parameters, begins, ends = found
    for rank, manifest in manifests.items():
        for name in manifest.model["modules"]:
            modules[name].add(rank)
        for name in (*manifest.model["parameters"], *manifest.model["buffers"]):
            parameters[manifest.model["tied"].get(name, name)].add(rank)
        for stage in names[rank].stages.values():
            for held, own in ((begins, stage.begins), (ends, stage.ends)):
                held[stage.name] |= {rank} if own else set()
    return Holders(*({name: frozenset(each) for name, each in held.items()} for held in found))
