"""How much is measured, and where."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.timing import BenchError


@dataclass(frozen=True)
class DataSet:
    """Two bundles to compare: on each side ``tensors`` float32 tensors of ``elements`` values in
    each of ``steps`` steps.
    """

    name: str
    tensors: int
    elements: int
    steps: int = 1

    @property
    def nbytes(self) -> int:
        """Of one side."""
        return self.tensors * self.elements * self.steps * 4


@dataclass(frozen=True)
class Sizes:
    """How much of everything.

    Attributes:
        large: what is compared with reading and hashing.
        steps: of one tensor each, for the file descriptors.
        matrices: square, uncut and cut by ranks.
        batch, length, layers: of GPT-2's input, and its depth.
        linears: calls of a small Linear in a step.
        ranks, records: of the bundles with very many records; records are of each rank.
        starts: how often a command is started.
    """

    large: DataSet = DataSet("2 × 1.2 GB", 300, 1_000_000)
    steps: DataSet = DataSet("500 steps", 1, 100, 500)
    matrices: DataSet = DataSet("2 × 1.2 GB in matrices", 75, 4_000_000)
    batch: int = 2
    length: int = 512
    layers: int = 12
    linears: int = 500
    ranks: int = 64
    records: int = 20_000
    starts: int = 10


FULL = Sizes()
QUICK = Sizes(
    large=DataSet("2 × 100 MB", 100, 250_000),
    steps=DataSet("50 steps", 1, 100, 50),
    matrices=DataSet("2 × 100 MB in matrices", 25, 1_000_000),
    length=64,
    layers=3,
    linears=100,
    ranks=2,
    records=2000,
    starts=2,
)


@dataclass
class Plan:
    """One run of the benchmark.

    Attributes:
        folder: for data; removed in the end.
        rounds: how often each is measured after the first time.
        say: shows a line of progress.
        notes: what a reader of the figures must know.
    """

    folder: Path
    sizes: Sizes
    rounds: int
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
