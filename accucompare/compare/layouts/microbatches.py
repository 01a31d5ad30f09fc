"""Which microbatch each call of a pipeline's stage has, by what the stages give each other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from accucompare.bundle.format import Record, Role
from accucompare.compare.layouts.batch_rows import RowsOfRanks

#: A rank, its stage's own name, and the step.
_Place = tuple[int, str, int]


class Microbatches(NamedTuple):
    """What a rank's calls have in place of each microbatch once, in order."""

    rank: int
    step: int
    # the microbatch of each call; ``None`` where its input tells none
    taken: tuple[int | None, ...]
    many: int  # how many there are

    @property
    def doubled(self) -> tuple[int, ...]:
        counted = Counter(each for each in self.taken if each is not None)
        return tuple(sorted(each for each, times in counted.items() if times > 1))

    @property
    def dropped(self) -> tuple[int, ...]:
        if None in self.taken and len(self.taken) >= self.many:
            return ()  # an unknown one may be any
        return tuple(each for each in range(self.many) if each not in self.taken)

    @property
    def order(self) -> tuple[int, ...]:
        """The microbatches in the order of the calls, if it is another one; else empty."""
        known = [each for each in self.taken if each is not None]
        return tuple(known) if known != sorted(known) else ()

    @property
    def is_odd(self) -> bool:
        return bool(self.doubled or self.dropped or self.order)


@dataclass
class Schedule:
    """The microbatches of the stages' calls."""

    # by rank, stage and step: the microbatch of each call, where it is not its number
    numbers: dict[_Place, list[int]] = field(default_factory=dict)
    # by the same and a module's own name: how often a call of the stage calls it
    times: dict[tuple[int, int, str], int] = field(default_factory=dict)
    # by rank and step: the rank of the first stage whose microbatches it has
    first: dict[tuple[int, int], int] = field(default_factory=dict)
    odd: list[Microbatches] = field(default_factory=list)  # what is told of them

    def call(self, rank: int, step: int, name: str, call: int) -> int:
        """A call's number among those of the microbatches, of a module by its own name."""
        if not self.numbers:
            return call
        stage = self._stage(rank, step, name)
        if stage is None:
            return call
        numbers, times = self.numbers[stage], self.times[rank, step, name]
        own, rest = divmod(call, times)
        return numbers[own] * times + rest if own < len(numbers) else call

    def _stage(self, rank: int, step: int, name: str) -> _Place | None:
        while True:
            if (rank, name, step) in self.numbers:
                return rank, name, step
            if not name:
                return None
            name = name.rpartition(".")[0]


def schedule_of(
    records: Sequence[Record],
    firsts: Mapping[int, str],
    meshes: Mapping[int, Mapping[str, Sequence[int]]],
) -> Schedule:
    """The microbatches of the outermost calls. Those of a stage that took nothing that another one
    gave, as where it is changed on its way, are in order.

    Args:
        records: of all ranks, under their own names.
        firsts: the outermost module of each rank that has the first stage.
        meshes: the places of each rank.
    """
    taken, sources = _taken(records, firsts)
    made = Schedule()
    for rank, name, step in taken:
        if firsts.get(rank) == name:
            made.first[rank, step] = rank
    for place, calls in taken.items():
        rank, name, step = place
        begun = [_begin((place, call), sources) for call in sorted(calls)]
        ranks = Counter(each[0][0] for each in begun if each is not None and each[0][0] in firsts)
        likely = [each for each, _ in ranks.most_common(1)] or _begins_for(rank, firsts, meshes)
        if firsts.get(rank) == name or not likely:
            continue
        first = likely[0]
        made.first.setdefault((rank, step), first)
        many = len(taken.get((first, firsts[first], step), ()))
        own = tuple(None if each is None else each[1] for each in begun)
        told = Microbatches(rank, step, own, many)
        if told.is_odd:
            made.odd.append(told)
        numbers = _numbers(own, many)
        if numbers != [*range(len(numbers))]:
            made.numbers[place] = numbers
    if made.numbers:
        made.times = _times(records, taken)
    return made


def _begins_for(
    rank: int, firsts: Mapping[int, str], meshes: Mapping[int, Mapping[str, Sequence[int]]]
) -> list[int]:
    """The rank with the first stage of another one's pipeline: its place is another along one
    dimension; none if this tells several."""
    own = meshes.get(rank, {})
    found = (
        [*firsts]
        if len(firsts) == 1
        else [
            each
            for each in firsts
            if sum(place != own.get(name) for name, place in meshes.get(each, {}).items()) == 1
        ]
    )
    return found if len(found) == 1 else []


#: A call of a stage, and the one whose output it took.
_Sources = dict[tuple[_Place, int], tuple[_Place, int] | None]


def _taken(
    records: Iterable[Record], firsts: Mapping[int, str]
) -> tuple[dict[_Place, dict[int, list[str]]], _Sources]:
    """The digests of what the outermost calls took; and for those of later stages the calls that
    gave it, each to one call if there are several alike."""
    taken: dict[_Place, dict[int, list[str]]] = defaultdict(dict)
    makers: dict[tuple[int, str], list[tuple[_Place, int]]] = defaultdict(list)
    for record in records:
        if record.parent is None and record.digest is not None:
            place = record.rank, record.name, record.step
            if record.role is Role.INPUT:
                taken[place].setdefault(record.call, []).append(record.digest)
            elif record.role is Role.OUTPUT:
                makers[record.step, record.digest].append((place, record.call))
    sources: _Sources = {}
    for place, calls in taken.items():
        if firsts.get(place[0]) == place[1]:
            continue
        used: set[tuple[_Place, int]] = set()
        for call, digests in sorted(calls.items()):
            known = [each for digest in digests for each in makers[place[2], digest]]
            others = [each for each in known if each[0] != place]
            free = (each for each in others if each not in used)
            source = sources[place, call] = next(free, next(iter(others), None))
            used |= {source} if source else set()
    return taken, sources


def _begin(call: tuple[_Place, int] | None, sources: _Sources) -> tuple[_Place, int] | None:
    """The first stage's call that a microbatch began with."""
    for _ in range(len(sources) + 1):
        if call is None or call not in sources:
            return call
        call = sources[call]
    return None


def _numbers(taken: Sequence[int | None], many: int) -> list[int]:
    """A microbatch for each call: its own, or the next one that no call has."""
    first: dict[int, int] = {}
    for call, each in enumerate(taken):
        if each is not None:
            first.setdefault(each, call)
    free = (each for each in range(many + len(taken)) if each not in first)
    return [
        each if each is not None and first[each] == call else next(free)
        for call, each in enumerate(taken)
    ]


def of_first_stages(
    records: Iterable[Record], rows: RowsOfRanks, schedule: Schedule
) -> list[Microbatches]:
    """What the first stages' calls have in place of each microbatch once, in order.

    Args:
        records: of all ranks, under golden's names.
        rows: of golden's batch that the calls have, or should have.
    """
    digests: dict[tuple[int, int], dict[int, list[str | None]]] = defaultdict(dict)
    for record in records:
        if not record.name and record.role is Role.INPUT:
            digests[record.rank, record.step].setdefault(record.call, []).append(record.digest)
    told = []
    for (rank, step), calls in digests.items():
        runs = {
            call: (each.call, each.runs)
            for (own, call), each in rows.get(step, {}).items()
            if own == rank
        }
        if schedule.first.get((rank, step)) != rank or not runs:
            continue
        numbers = {each: number for number, each in enumerate(sorted(runs.values()))}
        taken: dict[int, int] = {}
        for call, given in sorted(calls.items()):
            earlier = next((each for each in taken if calls[each] == given), call)
            taken[call] = taken.get(earlier, numbers[runs[call]])
        found = Microbatches(rank, step, tuple(taken.values()), len(numbers))
        told += [found] if found.is_odd else []
    return told


def given_to_none(
    golden: Iterable[Record], records: Iterable[Record], rows: RowsOfRanks
) -> list[Microbatches]:
    """The steps in which each rank was given some of golden's microbatches, and others none was.

    Args:
        golden, records: of golden and of all ranks of the candidate.
        rows: of golden's batch, where they are known: there, all are given.
    """
    ours, theirs = _given_calls(golden), _given_calls(records)
    told: list[Microbatches] = []
    for step in {step for _, step in theirs} - rows.keys():
        calls = ours.get((0, step), {})
        ranks = {rank: held for (rank, own), held in theirs.items() if own == step}
        known = {inputs: call for call, inputs in reversed([*sorted(calls.items())])}
        found = {known.get(inputs) for held in ranks.values() for inputs in held.values()}
        taken = tuple(sorted(each for each in found if each is not None))
        if None not in found and len(known) == len(calls) > len(taken):
            told += [Microbatches(rank, step, taken, len(calls)) for rank in sorted(ranks)]
    return told


def _given_calls(
    records: Iterable[Record],
) -> dict[tuple[int, int], dict[int, frozenset[tuple[str, str]]]]:
    """The digests of what the model's calls were given, by rank and step."""
    found: dict[tuple[int, int], dict[int, set[tuple[str, str]]]] = defaultdict(dict)
    for record in records:
        if not record.name and record.role is Role.INPUT and record.digest and record.shape:
            calls = found[record.rank, record.step]
            calls.setdefault(record.call, set()).add((record.path, record.digest))
    return {
        place: {call: frozenset(given) for call, given in calls.items()}
        for place, calls in found.items()
    }


def _times(
    records: Iterable[Record], stages: Mapping[_Place, Mapping[int, object]]
) -> dict[tuple[int, int, str], int]:
    """How often each module is called in a call of its stage."""
    most: dict[tuple[int, int, str], int] = {}
    for record in records:
        if record.role in (Role.INPUT, Role.OUTPUT):
            place = record.rank, record.step, record.name
            most[place] = max(most.get(place, 0), record.call + 1)
    calls: dict[tuple[int, int], int] = {}
    for (rank, _, step), held in stages.items():
        calls[rank, step] = max(calls.get((rank, step), 1), len(held))
    return {place: max(1, many // calls.get(place[:2], 1)) for place, many in most.items()}
