"""Whether ranks that hold the same part hold the same bits."""

from __future__ import annotations

from collections.abc import Collection

from accucompare.bundle.format import DEVICE_DIGEST, Key, Role
from accucompare.compare.invariants.rank_facts import (
    ChangedBetween,
    NotSeen,
    NotSeenWhy,
    PartsApart,
    ReplicasApart,
    Tally,
)
from accucompare.compare.invariants.run_of_ranks import (
    ByRank,
    RunOfRanks,
    StepOfRanks,
    apart,
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
                tally.fail(PartsApart(record.shard.shape), place)
    tally.left += len(run.by_hand)
    if run.by_hand:
        tally.unseen = NotSeen(NotSeenWhy.NO_LAYOUT)


def check_weights(run: RunOfRanks, step: StepOfRanks, tally: Tally) -> None:
    """The weights that the first step's update begins with."""
    if step.number == run.steps[0]:
        _all_replicas(run, step, (Role.PARAM_BEFORE,), tally)


def check_updates(run: RunOfRanks, step: StepOfRanks, tally: Tally) -> None:
    """What updates made of the weights and of the optimizer's state, and the later weights."""
    later = () if step.number == run.steps[0] else (Role.PARAM_BEFORE,)
    _all_replicas(run, step, (*later, *_AFTER, Role.PARAM_CHANGED), tally)
    for _, group in step.of(Role.PARAM_CHANGED):
        record = group[min(group)]
        held = run.parameters.get(run.parameter_of(record), {})
        # replicas that were changed apart are found by their values
        if set(group) != set(held) and not run.replicas(held):
            tally.see(step.number)
            tally.fail(ChangedBetween(), place_of_record(record, tuple(sorted(group))))


def check_given_gradients(run: RunOfRanks, step: StepOfRanks, tally: Tally) -> None:
    """The gradients that updates were given."""
    _all_replicas(run, step, (Role.PARAM_GRAD,), tally)


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
            fact = ReplicasApart(run.distance(first, other))
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
            fact = ReplicasApart(run.distance(first[ranks[0]], group[ranks[0]]))
            tally.fail(fact, place_of_record(group[ranks[0]], ranks))
