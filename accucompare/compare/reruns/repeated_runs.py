"""Several runs of one program, held against each other by the digests of what they recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from accucompare.bundle.format import Key, Role
from accucompare.bundle.reading import Bundle


@dataclass(frozen=True)
class Disagreement:
    """A value of which not all runs have the same bits.

    Attributes:
        step: ``None`` for a weight, before the first step.
        values: how many different ones there are.
        odd: the runs, from 0, that have another value than most.
        missing: the runs, from 0, that have no such value.
    """

    name: str
    type: str
    call: int
    role: str
    path: str
    step: int | None
    rank: int
    device: str
    values: int
    odd: Sequence[int]
    missing: Sequence[int] = ()


@dataclass(frozen=True)
class Disagreements:
    """What some runs have in common.

    Attributes:
        runs: how many there are.
        ranks: how many each has.
        steps: those that were compared.
        values: how many values were.
        first: in execution order, of those that disagree.
        count: how many values do.
        odd: the runs, from 0, in which a value is not that of most runs.
        layers: modules with values that disagree, in execution order: how many of each.
    """

    runs: int
    ranks: int
    steps: Sequence[int]
    values: int
    first: Disagreement | None = None
    count: int = 0
    odd: Sequence[int] = ()
    layers: Mapping[str, int] = field(default_factory=dict)


class NotReplayedWhy(str, Enum):
    """Why no step was replayed."""

    __str__ = str.__str__

    AGREED = "agreed"
    OF_SCRIPT = "of a script"
    WEIGHTS = "weights"


@dataclass(frozen=True)
class Replays:
    """One step, again and again from its state and inputs, until it disagreed with itself.

    Attributes:
        step: its number.
        found: of the replays.
    """

    step: int
    found: Disagreements


class RepeatedAnswer(str, Enum):
    """Whether the runs agree."""

    __str__ = str.__str__

    AGREES = "agrees"
    DISAGREES = "disagrees"
    NOT_SURE = "not sure"


@dataclass(frozen=True)
class Repeated:
    """A case, or a script, that was run several times.

    Attributes:
        what: the case, or the script's command.
        found: of the runs.
        replays: of the first step that disagrees, or why there are none.
    """

    what: str
    found: Disagreements
    replays: Replays | NotReplayedWhy

    @property
    def answer(self) -> RepeatedAnswer:
        """The first rule that holds decides."""
        if self.found.first is not None:
            return RepeatedAnswer.DISAGREES
        return RepeatedAnswer.AGREES if self.found.values else RepeatedAnswer.NOT_SURE

    @property
    def passed(self) -> bool:
        return self.answer is RepeatedAnswer.AGREES

    @property
    def exit_code(self) -> int:
        """0: the run agrees with itself; 1: it does not; 2: nothing was compared."""
        return [*RepeatedAnswer].index(self.answer)


@dataclass(frozen=True)
class _Where:
    """A value's place in its run."""

    order: tuple[int, int]
    type: str
    device: str


class RepeatedRuns:
    """The digests of runs, which are added one by one."""

    def __init__(self) -> None:
        self._runs: list[dict[Key, str]] = []
        self._where: dict[Key, _Where] = {}
        self._ranks = 0
        self._steps: set[int] = set()

    def add(self, bundle: Bundle) -> None:
        digests: dict[Key, str] = {}
        devices: dict[int, str] = {}
        for rank, manifest in bundle.manifests.items():
            device = manifest.environment.get("device") or {}
            devices[rank] = str(device.get("name") or device.get("type") or "")
            for name, table in (manifest.model.get("parameters") or {}).items():
                key = Key(rank, -1, name, 0, Role.PARAM, "")
                digests[key] = repr(sorted(table.items(), key=str))
                self._where.setdefault(key, _Where((-1, 0), "", devices[rank]))
        for record in bundle.records():
            self._steps.add(record.step)
            if record.digest is None:
                continue
            key = record.key
            digests[key] = record.digest
            if key not in self._where:
                place = record.step, record.order
                self._where[key] = _Where(place, record.type, devices.get(record.rank, ""))
        self._runs.append(digests)
        self._ranks = max(self._ranks, bundle.manifest.ranks)

    def found(self) -> Disagreements:
        """What the runs so far have in common."""
        apart = sorted(self._apart(), key=lambda each: self._where[each[0]].order)
        first = None if not apart else self._described(*apart[0])
        return Disagreements(
            runs=len(self._runs),
            ranks=self._ranks,
            steps=sorted(self._steps),
            values=sum(key.role is not Role.PARAM for key in self._where),
            first=first,
            count=len(apart),
            odd=sorted({run for _, values in apart for run in _odd(values)}),
            layers=Counter(key.name for key, _ in apart),
        )

    def _apart(self) -> Iterator[tuple[Key, list[str | None]]]:
        """The values that not all runs have alike, with their digests by run."""
        for key in self._where:
            values = [run.get(key) for run in self._runs]
            if len({*values}) > 1:
                yield key, values

    def _described(self, key: Key, values: list[str | None]) -> Disagreement:
        where = self._where[key]
        return Disagreement(
            key.name,
            where.type,
            key.call,
            key.role.value,
            key.path,
            None if key.role is Role.PARAM else key.step,
            key.rank,
            where.device,
            len({*values} - {None}),
            _odd(values),
            [run for run, value in enumerate(values) if value is None],
        )


def _odd(values: list[str | None]) -> list[int]:
    """The runs whose value is not that of most; of equally many, that of the first run counts."""
    usual, _ = Counter(values).most_common(1)[0]
    return [run for run, value in enumerate(values) if value != usual]
