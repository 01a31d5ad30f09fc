"""Several runs of one program, held against each other by the digests of what they recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from accucompare.bundle.format import Key, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.reruns.repeat_facts import Disagreement, Disagreements


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
