"""Comparisons of very many rows, each made when it is asked for: what a report may use of a row it
has to use at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

from accucompare import Tolerance
from accucompare.api import Comparison
from accucompare.bundle.format.manifest import Manifest, StepEntry
from accucompare.bundle.format.records import Layout, Record, Role
from accucompare.compare.limits.tolerance import SmallestLimit
from accucompare.compare.measuring.measure import Metrics
from accucompare.compare.result import Side
from accucompare.compare.rows.rows import Reason, Row, Verdict
from accucompare.numbers.statistics import Statistics

LIMIT = 1e-4
_JUDGED = Tolerance(rel_l2=LIMIT, by_default=True).judged
_PARTS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "norm",
)


class ManyRows(Sequence[Row]):
    """The rows of ``ranks`` x ``steps`` x ``layers`` outputs, rank by rank; none is kept.

    On rank 3, or the last one, layers from a third of the depth on fail from step 1, or the only
    one, on. One row in 50 is near its limit; one layer in 40 is bit for bit the same on both sides.
    """

    def __init__(self, ranks: int = 1, steps: int = 1, layers: int = 300) -> None:
        self.ranks, self.steps, self.layers = ranks, steps, layers
        self.made = 0

    def __len__(self) -> int:
        return self.ranks * self.steps * self.layers

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        self.made += 1
        step_of_rank, layer = divmod(index, self.layers)
        return self.row(*divmod(step_of_rank, self.steps), layer)

    def row(self, rank: int, step: int, layer: int) -> Row:
        block, part = divmod(layer, len(_PARTS))
        name = f"model.layers.{block}.{_PARTS[part]}"
        error = 1e-7 * (1 + (layer * 7 + rank * 13 + step * 29) % 97)
        fails = (
            rank == min(3, self.ranks - 1)
            and step >= min(1, self.steps - 1)
            and layer >= self.layers // 3
        )
        same = layer % 40 == 7
        if same:
            error = 0.0
        elif fails:
            error = LIMIT * (2 + layer % 50)
        elif (layer + rank) % 50 == 3:
            error = 0.9 * LIMIT
        reason = Reason.IDENTICAL if same else Reason.OK if error <= LIMIT else Reason.INHERITED
        statistics = Statistics(-4.0 - layer % 3, 4.0, 0.25, 800.0, 0, 0)
        digest = f"{layer:016x}{step:08x}{rank:08x}"
        place = rank, step, name, 0, Role.OUTPUT, "", layer, "Linear", (f"model.layers.{block}", 0)
        golden = Record(
            *place, (2, 512, 768), "float32", Layout.STRIDED, f"{layer:06d}", digest, statistics
        )
        candidate = Record(
            *place,
            (2, 512, 768),
            "float32",
            Layout.STRIDED,
            f"{layer:06d}",
            digest if same else "0" * 32,
            statistics,
        )
        metrics = Metrics(
            786432,
            786432,
            error,
            error**2 / 2,
            error * 4,
            None if same else (1, 2, 3),
            1.5,
            1.5 + error,
            max_ulp=3,
        )
        smallest = (SmallestLimit("rel_l2", error),)
        verdict = Verdict(reason, _JUDGED, smallest, error / LIMIT)
        return Row(golden, candidate, verdict, metrics, module=name)


def many(ranks: int = 1, steps: int = 1, layers: int = 300, **more: Any) -> Comparison:
    """A comparison of such rows."""
    manifest = Manifest(
        complete=True, ranks=ranks, steps=[StepEntry(step, layers, "") for step in range(steps)]
    )
    rows: Any = ManyRows(ranks, steps, layers)
    return Comparison(Side(Path("golden"), manifest), Side(Path("npu"), manifest), rows, **more)
