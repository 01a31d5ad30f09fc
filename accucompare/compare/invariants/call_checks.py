"""Whether ranks that were given the same gave the same, and who was given which batch."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Any

import numpy as np

from accucompare.bundle.format import (
    BUFFER_ROLES,
    DEVICE_DIGEST,
    GROUP_OF,
    Key,
    Layout,
    Record,
    Role,
)
from accucompare.compare.constants import FEWEST_DROPPED
from accucompare.compare.invariants import rank_facts as facts
from accucompare.compare.invariants.rank_facts import NotSeen, NotSeenWhy, RankPlace, Tally
from accucompare.compare.invariants.run_of_ranks import (
    ByRank,
    RunOfRanks,
    StepOfRanks,
    apart,
    comparable,
    is_whole,
    place_of_record,
)

_AFTER = (Role.PARAM_UPDATE, Role.STATE_AFTER)
#: What is checked elsewhere, or says how a run is set up.
_OF_UPDATES = (Role.PARAM_BEFORE, Role.PARAM_GRAD, Role.STATE_BEFORE, Role.PARAM_CHANGED, *_AFTER)


def check_start(run: RunOfRanks, tally: Tally) -> None:
    """The weights with which the capture began, as the manifests describe them."""
    for group in run.parameters.values():
        _replicas(run, group, tally, None)
        record = group[min(group)]
        if record.shard is not None and not run.bundle.missing_ranks:
            tally.see()
            if not run.fills(group):
                place = place_of_record(record, tuple(sorted(group)))
                tally.fail(facts.PartsApart(record.shard.shape), place)
    tally.left += len(run.by_hand)
    if run.by_hand:
        tally.unseen = NotSeen(NotSeenWhy.NO_LAYOUT)


def check_weights(run: RunOfRanks, step: StepOfRanks, tally: Tally) -> None:
    """The weights that the first step's update begins with, and buffers that nothing updates."""
    if step.number == run.steps[0]:
        _all_replicas(run, step, (Role.PARAM_BEFORE,), tally)
        _check_buffers(run, step, tally)


def _check_buffers(run: RunOfRanks, step: StepOfRanks, tally: Tally) -> None:
    """Buffers that the step does not write into, of ranks that share out the rows."""
    options = run.bundle.manifest.options
    roles = options.roles or (GROUP_OF[Role.BUFFER_UPDATE],)
    looked = GROUP_OF[Role.BUFFER_UPDATE] in roles and not (options.only or options.skip)
    if not (run.knows_mesh and looked):
        return  # of a buffer that was left out, nothing tells whether it is updated
    written = {f"{key.name}.{key.path}" for key, _ in step.of(*BUFFER_ROLES)}
    others = run.mesh.without(run.data)
    held: dict[tuple[str, tuple[int, ...]], dict[int, str]] = {}
    for rank, manifest in run.bundle.manifests.items():
        for name, entry in (manifest.model.get("buffers") or {}).items():
            known = entry["digests"].get(entry["dtype"]) if "shard" not in entry else None
            if known and name not in written and "expert" not in name.lower():
                held.setdefault((name, run.place(rank, others)), {})[rank] = known
    for (name, _), digests in held.items():
        if len(digests) > 1:
            tally.see(step.number)
            if off := apart(digests):
                tally.fail(facts.ReplicasApart(), RankPlace(name, ranks=off))


def check_updates(run: RunOfRanks, step: StepOfRanks, tally: Tally) -> None:
    """What updates made of the weights and of the optimizer's state, and the later weights."""
    later = () if step.number == run.steps[0] else (Role.PARAM_BEFORE,)
    _all_replicas(run, step, (*later, *_AFTER, Role.PARAM_CHANGED), tally)
    for _, group in step.of(Role.PARAM_CHANGED):
        record = group[min(group)]
        held = run.parameters.get(run.parameter_of(record), {})
        stages = [set(each) for each in run.by_stage(held)]
        held = {rank: held[rank] for each in stages if each & set(group) for rank in each}
        # replicas that were changed apart are found by their values
        if set(group) != set(held) and not run.replicas(held):
            tally.see(step.number)
            tally.fail(facts.ChangedBetween(), place_of_record(record, tuple(sorted(group))))


def check_given_gradients(run: RunOfRanks, step: StepOfRanks, tally: Tally) -> None:
    """The gradients that updates were given."""
    for _, group in step.given_gradients():
        _replicas(run, group, tally, step.number)


def check_layouts(run: RunOfRanks, step: StepOfRanks, tally: Tally) -> None:
    """Everything of calls that has a recorded layout."""
    for key, group in step.values.items():
        if key.role not in _OF_UPDATES:
            _replicas(run, group, tally, step.number)


def _all_replicas(
    run: RunOfRanks, step: StepOfRanks, roles: Collection[Role], tally: Tally
) -> None:
    # the first wrong value, not the first in the order of roles
    for key, group in step.values.items():
        if key.role in roles and not _of_options(key):
            _replicas(run, group, tally, step.number)


def _of_options(key: Key) -> bool:
    """Whether a record is of a parameter group."""
    return key.role is Role.STATE_BEFORE and not key.name


def _replicas(run: RunOfRanks, group: ByRank, tally: Tally, step: int | None) -> None:
    for alike in run.replicas(group):
        digests = {
            rank: record.digest for rank, record in alike.items() if record.digest is not None
        }
        kinds = {digest.startswith(DEVICE_DIGEST) for digest in digests.values()}
        if len(digests) < 2 or len(kinds) > 1:
            tally.left += 1
            continue
        tally.see(step)
        held = {rank: (alike[rank].shape, digest) for rank, digest in digests.items()}
        if ranks := apart(held):
            first = alike[min(held.keys() - set(ranks) or held.keys())]
            other = next(alike[rank] for rank in ranks if held[rank] != held[first.rank])
            fact = facts.ReplicasApart(run.distance(first, other))
            tally.fail(fact, place_of_record(other, ranks))


def check_tied(run: RunOfRanks, step: StepOfRanks, tally: Tally) -> None:
    """Weights that have two names, where they are recorded under both."""
    if not run.tied:
        return
    tally.unseen = NotSeen(NotSeenWhy.TIED_ONCE)
    held: dict[tuple[str, int], ByRank] = {}
    for key, group in step.of(Role.PARAM_BEFORE):
        held[run.parameter_of(group[min(group)]), key.call] = group
    for (name, call), group in held.items():
        first = held.get((run.tied.get(name, ""), call))
        if first is None:
            continue
        ranks = tuple(
            rank for rank in group if rank in first and first[rank].digest != group[rank].digest
        )
        tally.see(step.number)
        if ranks:
            fact = facts.ReplicasApart(run.distance(first[ranks[0]], group[ranks[0]]))
            tally.fail(fact, place_of_record(group[ranks[0]], ranks))


#: A module call: name and number.
_Call = tuple[str, int]
_Values = dict[_Call, dict[int, list[Record]]]


def check_batches(run: RunOfRanks, step: StepOfRanks, tally: Tally) -> None:
    """No two ranks that share out the rows have one batch; those that do not, have the same."""
    batches = step.batches or {
        rank: (entry.batch,)
        for rank, manifest in run.bundle.manifests.items()
        for entry in manifest.series
        if entry.step == step.number and entry.batch is not None
    }
    if not batches:
        return
    if not run.knows_mesh or not (run.data or run.same_batch):
        tally.unseen = NotSeen(NotSeenWhy.NO_MESH)
        return
    role = Role.INPUT.value
    if run.data:
        tally.see(step.number)
        given: dict[Hashable, set[int]] = {}
        for rank, calls in batches.items():
            for call in calls if rank not in step.padding else ():
                given.setdefault(call, set()).add(rank)
        twice = {
            tuple(sorted(ranks))
            for ranks in given.values()
            if len({run.place(rank, run.data) for rank in ranks}) > 1
        }
        for ranks in sorted(twice):
            tally.fail(facts.BatchTwice(), RankPlace("", step.number, role, 0, ranks))
    if run.same_batch:
        groups: dict[tuple[int, ...], dict[int, Hashable]] = {}
        others = run.mesh.without(run.same_batch)
        for rank, batch in batches.items():
            groups.setdefault(run.place(rank, others), {})[rank] = batch
        for group in groups.values():
            tally.see(step.number)
            if ranks := apart(group):
                tally.fail(facts.BatchApart(), RankPlace("", step.number, role, 0, ranks))


def check_calls(run: RunOfRanks, step: StepOfRanks, tally: Tally) -> None:
    """Calls of one module on ranks with the same input and the same whole weights."""
    inputs, outputs = _by_call(step, Role.INPUT), _by_call(step, Role.OUTPUT)
    arrived, left = _by_call(step, Role.GRAD_OUTPUT), _by_call(step, Role.GRAD_INPUT)
    weights = _Weights(run, step)
    drops = any(manifest.model.get("active_dropout") for manifest in run.bundle.manifests.values())
    parts = run.mesh.without([*run.data, *run.same_batch])
    wrong: list[str] = []
    backward: list[tuple[_Call, dict[Hashable, list[int]]]] = []
    calls = sorted(outputs, key=lambda call: max(_orders(outputs[call])))
    for call in calls:
        given: dict[int, Hashable] = {}
        for rank, records in inputs.get(call, {}).items():
            held = weights.of(call[0], rank)
            if held is not None and (taken := _digests(records)):
                batch = step.batches.get(rank) if drops else None
                # what is given no tensor may make that of the rank's own part of a sequence
                names = () if any(map(_is_tensor, records)) else parts
                place = run.place(rank, run.data if rank in step.padding else names)
                given[rank] = taken, held, batch, place
        alike = _grouped(given)
        if alike:
            backward.append((call, alike))
        if _is_above(call[0], wrong):
            continue
        if _gave(run, step, outputs[call], alike, tally, False):
            wrong.append(call[0])
    for call, alike in sorted(
        (each for each in backward if each[0] in left), key=lambda each: min(_orders(left[each[0]]))
    ):
        given = {
            rank: (own, _digests(arrived.get(call, {}).get(rank, ())))
            for own, ranks in alike.items()
            for rank in ranks
        }
        given = {rank: each for rank, each in given.items() if each[1]}  # type: ignore[index]
        if not _is_above(call[0], wrong) and _gave(
            run, step, left[call], _grouped(given), tally, True
        ):
            wrong.append(call[0])


def _gave(
    run: RunOfRanks,
    step: StepOfRanks,
    made: dict[int, list[Record]],
    alike: dict[Hashable, list[int]],
    tally: Tally,
    backward: bool,
) -> bool:
    """Whether ranks that were given the same made something else."""
    for ranks in alike.values():
        held = {
            rank: found
            for rank in ranks
            if (found := _digests(made.get(rank, ()), whole=True)) is not None and found
        }
        if len(held) < 2:
            continue
        tally.see(step.number)
        if off := apart(held):
            first = min(held.keys() - set(off) or held.keys())
            other = next(rank for rank in off if held[rank] != held[first])
            pairs = zip(made[first], made[other], strict=False)
            ours, theirs = next(
                (pair for pair in pairs if pair[0].digest != pair[1].digest),
                (made[first][0], made[other][0]),
            )
            fact = facts.OutputsApart(run.distance(ours, theirs), backward)
            tally.fail(fact, place_of_record(theirs, off))
            return True
    return False


def _by_call(step: StepOfRanks, role: Role) -> _Values:
    found: _Values = {}
    for key, group in step.of(role):
        for rank, record in group.items():
            found.setdefault((key.name, key.call), {}).setdefault(rank, []).append(record)
    return found


def _digests(records: Iterable[Record], whole: bool = False) -> Any:
    """Paths and digests of values; ``None`` if one is unknown, or a part where ``whole``."""
    found = []
    for record in records:
        if record.digest is None or (whole and not is_whole(record)):
            return None
        layout = None if record.shard is None else (record.shard.start, record.shard.partial)
        found.append((record.path, record.digest, record.shape, record.dtype, layout))
    return tuple(sorted(found, key=lambda each: each[0]))


def _grouped(given: dict[int, Hashable]) -> dict[Hashable, list[int]]:
    """The ranks that were given the same, where there are several."""
    found: dict[Hashable, list[int]] = {}
    for rank, each in given.items():
        found.setdefault(each, []).append(rank)
    return {each: ranks for each, ranks in found.items() if len(ranks) > 1}


def _is_tensor(record: Record) -> bool:
    return record.layout is not Layout.SCALAR


def _orders(made: dict[int, list[Record]]) -> Iterable[int]:
    return (record.order for records in made.values() for record in records)


def _is_above(name: str, others: list[str]) -> bool:
    """Whether a module is one of these, or holds one."""
    return any(not name or each == name or each.startswith(f"{name}.") for each in others)


class _Weights:
    """The whole weights of modules, by rank."""

    def __init__(self, run: RunOfRanks, step: StepOfRanks) -> None:
        self._run = run
        self._held: dict[tuple[str, int], Hashable] = {}
        self._now: dict[str, ByRank] = {}
        for key, group in step.of(Role.PARAM_BEFORE):
            if key.call == 0:
                self._now[run.parameter_of(group[min(group)])] = group
        if step.number == run.steps[0]:
            self._now = {**run.parameters, **self._now}
        else:
            for name, first in run.tied.items():
                if first in self._now:
                    self._now[name] = self._now[first]

    def of(self, module: str, rank: int) -> Hashable | None:
        """What tells apart the weights of a module and of those below; ``None`` if they are not
        known, or the rank does not compute with the whole ones."""
        prefix = f"{module}." if module else ""
        found = []
        for name in self._run.parameters:
            if name.startswith(prefix):
                if (name, rank) not in self._held:
                    self._held[name, rank] = self._of_parameter(name, rank)
                if (own := self._held[name, rank]) is None:
                    return None
                found.append(own)
        return tuple(found)

    def _of_parameter(self, name: str, rank: int) -> Hashable | None:
        group = self._now.get(name, {})
        record = group.get(rank)
        if record is None or record.digest is None:
            return None
        if record.shard is None:
            return record.digest
        # FSDP gathers the parts of ranks that share out the rows
        others = self._run.mesh.without(self._run.data)
        place = self._run.place(rank, others)
        parts = {
            (each.shard.start, each.shape, each.digest)
            for other, each in group.items()
            if each.shard is not None and self._run.place(other, others) == place
        }
        elements = {(start, shape): np.prod(shape, dtype=int) for start, shape, _ in parts}
        whole = sum(elements.values()) == np.prod(record.shard.shape, dtype=int)
        return frozenset(parts) if whole and len(elements) == len(parts) else None


def check_dropout(run: RunOfRanks, step: StepOfRanks, tally: Tally) -> None:
    """The masks of dropout: equal where inputs are replicas, others where batches are."""
    seeded = any(manifest.options.seed is not None for manifest in run.bundle.manifests.values())
    for key, group in step.of(Role.OUTPUT):
        if "Dropout" not in group[min(group)].type:
            continue
        inputs = _input_of(step, key)
        if inputs is None:
            continue
        ranks = [rank for rank in group if rank in inputs and group[rank].member is not None]
        first = ranks[0] if ranks else 0
        for rank in ranks[1:]:
            same = inputs[first].digest == inputs[rank].digest
            other_batch = step.batches.get(first) != step.batches.get(rank)
            if not comparable(group[first], group[rank]) or not (same or other_batch):
                continue
            if not same and seeded:
                if not tally.looked:
                    tally.unseen = NotSeen(NotSeenWhy.SEEDED_ALIKE)
                continue
            _masks(run, tally, [(inputs[at], group[at]) for at in (first, rank)], same)


def _input_of(step: StepOfRanks, key: Key) -> ByRank | None:
    for path in ("0", "input", "x"):
        if (found := step.values.get(key._replace(role=Role.INPUT, path=path))) is not None:
            return found
    return None


def _masks(run: RunOfRanks, tally: Tally, calls: list[tuple[Record, Record]], same: bool) -> None:
    """Compare what was dropped of two ranks' inputs."""
    both = dropped = unlike = 0
    values = [run.blocks(record) for pair in calls for record in pair]
    for ours, kept, theirs, kept_too in zip(*values, strict=False):
        known = (ours != 0) & (theirs != 0)
        own, other = (kept == 0) & known, (kept_too == 0) & known
        both += int(known.sum())
        dropped += int(own.sum())
        unlike += int((own != other).sum())
    if not 0 < dropped < both or both < FEWEST_DROPPED:
        return
    step = calls[0][1].step
    tally.see(step)
    ranks = tuple(record.rank for _, record in calls)
    place = place_of_record(calls[1][1], ranks)
    if same and unlike:
        tally.fail(facts.MasksApart(unlike / both), place)
    elif not same and not unlike:
        tally.fail(facts.MasksAlike(both), place)
