"""What updates leave on each rank: replicas of weights, also where ranks share out the updates."""

from __future__ import annotations

from accucompare.bundle.format import AT_THE_END, DEVICE_DIGEST, Record, Role
from accucompare.compare.invariants import rank_facts as facts
from accucompare.compare.invariants.call_checks import check_updates
from accucompare.compare.invariants.rank_facts import RankPlace, Tally
from accucompare.compare.invariants.run_of_ranks import (
    RunOfRanks,
    StepOfRanks,
    apart,
    place_of_record,
)

#: By parameter and rank.
_Held = dict[tuple[str, int], Record]


class LeftWeights:
    """Follows each rank's weights from step to step. A rank that does not step a weight itself must
    be given what others made of it before their next update begins."""

    def __init__(self) -> None:
        self._next: int | None = None  # the step that begins with these
        self._left: _Held = {}

    def check(self, run: RunOfRanks, step: StepOfRanks, tally: Tally) -> None:
        check_updates(run, step, tally)
        _compare_models(run, step, tally)
        if self._next is None:
            self._left = {
                (name, rank): record
                for name, group in run.parameters.items()
                for rank, record in group.items()
                if record.step == step.number
            }
        elif self._next != step.number:
            self._left = {}  # steps between were not recorded
        stepped, changed, updates = _written(run, step)
        held = self._left | {
            place: record
            for place, records in changed.items()
            for record in records
            if record.call == 0 and not record.path.endswith(AT_THE_END)
        }
        for name, group in run.parameters.items() if stepped else ():
            for alike in run.replicas(group):
                _compare(run, [(name, rank) for rank in sorted(alike)], stepped, held, tally)
        left = {place: record for place, record in held.items() if place not in updates}
        left |= {
            place: record
            for place, records in changed.items()
            for record in records
            if record.call > updates.get(place, -1)
        }
        self._next, self._left = step.number + 1, left


def _written(
    run: RunOfRanks, step: StepOfRanks
) -> tuple[_Held, dict[tuple[str, int], list[Record]], dict[tuple[str, int], int]]:
    """The weights with which first updates begin, those that something else changed, in order, and
    the number of each one's last update."""
    stepped: _Held = {}
    changed: dict[tuple[str, int], list[Record]] = {}
    updates: dict[tuple[str, int], int] = {}
    roles = Role.PARAM_BEFORE, Role.PARAM_CHANGED, Role.PARAM_UPDATE
    for key, group in step.of(*roles):
        name = run.parameter_of(group[min(group)])
        for rank, record in group.items():
            place = name, rank
            if key.role is Role.PARAM_CHANGED:
                changed.setdefault(place, []).append(record)
            elif key.role is Role.PARAM_UPDATE:
                updates[place] = max(key.call, updates.get(place, -1))
            elif key.call == 0:
                stepped[place] = record
    for records in changed.values():
        records.sort(key=lambda record: record.order)
    return stepped, changed, updates


def _compare(
    run: RunOfRanks, alike: list[tuple[str, int]], stepped: _Held, held: _Held, tally: Tally
) -> None:
    """Compare what ranks hold with what an update of another rank begins with."""
    first = next((stepped[place] for place in alike if place in stepped), None)
    if first is None or first.shard is not None or first.digest is None:
        return
    others = {
        place[1]: held[place]
        for place in alike
        if place not in stepped and place in held and _is_of_one_kind(first, held[place])
    }
    if not others:
        return
    tally.see(first.step)
    stale = tuple(rank for rank, record in others.items() if record.digest != first.digest)
    if stale:
        fact = facts.ReplicasApart(run.distance(first, others[stale[0]]))
        tally.fail(fact, place_of_record(first, stale))


def _compare_models(run: RunOfRanks, step: StepOfRanks, tally: Tally) -> None:
    """Compare all weights of ranks that began with the same, where optimizers step copies or parts
    of them."""
    begun: dict[frozenset[tuple[str, str]], list[int]] = {}
    held = {rank: entry.own_weights for rank, entry in run.series(step.number).items()}
    for rank in held if any(held.values()) else ():
        own = ((name, group.get(rank)) for name, group in run.parameters.items())
        known = frozenset((name, str(record.digest)) for name, record in own if record is not None)
        begun.setdefault(known, []).append(rank)
    for ranks in begun.values():
        if len(ranks) > 1:
            tally.see(step.number)
            if wrong := apart({rank: held[rank] for rank in ranks}):
                place = RankPlace("", step.number, Role.PARAM_BEFORE.value, 0, wrong)
                tally.fail(facts.ReplicasApart(), place)


def _is_of_one_kind(one: Record, other: Record) -> bool:
    """Whether digests of both are of the same numbers."""
    kinds = {str(each.digest).startswith(DEVICE_DIGEST) for each in (one, other)}
    same = (one.shape, one.dtype) == (other.shape, other.dtype)
    return same and len(kinds) == 1 and other.shard is None and other.digest is not None
