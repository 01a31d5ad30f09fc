"""How much is measured, where, and what this accucompare can do."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.timing import BenchError, child


@dataclass(frozen=True)
class DataSet:
    """Two bundles to compare: ``tensors`` float32 tensors of ``elements`` values on each side."""

    name: str
    tensors: int
    elements: int

    @property
    def nbytes(self) -> int:
        """Of one side."""
        return self.tensors * self.elements * 4


@dataclass(frozen=True)
class Sizes:
    """How much of everything.

    Attributes:
        many, small, huge: what is compared.
        batch, length, layers: of GPT-2's input, and its depth.
        rows: of the two reports.
    """

    many: DataSet = DataSet("1,000 tensors, 4 GB a side", 1000, 1_000_000)
    small: DataSet = DataSet("5,000 tensors of 1,000", 5000, 1000)
    huge: DataSet = DataSet("one tensor, 2 GB a side", 1, 500_000_000)
    batch: int = 2
    length: int = 512
    layers: int = 12
    rows: tuple[int, int] = (5000, 100_000)


FULL = Sizes()
QUICK = Sizes(
    many=DataSet("100 tensors, 100 MB a side", 100, 250_000),
    small=DataSet("500 tensors of 1,000", 500, 1000),
    huge=DataSet("one tensor, 100 MB a side", 1, 25_000_000),
    length=64,
    layers=2,
    rows=(500, 5000),
)


@dataclass(frozen=True)
class Features:
    """What this version of accucompare has.

    Attributes:
        workers: whether there is ``diff(work=)``.
        mode: whether there is ``capture(mode=)``.
        kernel: what its kernel says of itself, ``compiled`` if it is and so can be switched off;
            ``""`` if it has none.
    """

    workers: bool
    mode: bool
    kernel: str

    @classmethod
    def find(cls) -> Features:
        return cls(
            **child("benchmarks.speed.plan")
        )  # in a process of its own: this one must stay small, and so without torch


@dataclass
class Plan:
    """One run of the benchmark.

    Attributes:
        folder: for data; removed in the end.
        rounds: how often everything is measured.
        say: shows a line of progress.
        notes: what a reader of the figures must know.
    """

    folder: Path
    sizes: Sizes
    rounds: int
    features: Features
    say: Callable[[str], None]
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.say(text)
        if text not in self.notes:
            self.notes.append(text)

    def need(self, nbytes: int) -> None:
        """Raise BenchError unless there is room for so many bytes, and a little more."""
        free = shutil.disk_usage(self.folder).free
        if free < nbytes * 1.1:
            raise BenchError(
                f"{self.folder}: {nbytes * 1.1 / 1e9:.1f} GB are needed, {free / 1e9:.1f} are free;"
                " choose another --out"
            )


if __name__ == "__main__":
    import accucompare as ac

    name = "accucompare.numbers.kernel"
    found = {
        "workers": "work" in inspect.signature(ac.diff).parameters,
        "mode": "record" in inspect.signature(ac.capture).parameters,
        "kernel": (
            importlib.import_module(name).description() if importlib.util.find_spec(name) else ""
        ),
    }
    print(json.dumps(found))
