"""Writing the Excel report of a made-up comparison: ``python -m benchmarks.speed.report ROWS
PATH``.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import Figure
from benchmarks.speed.plan import Plan
from benchmarks.timing import child, column, peak_mb

if TYPE_CHECKING:
    from accucompare import Comparison

_MODULES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "input_layernorm",
)
_LIMIT = 1e-4


def measure(plan: Plan) -> Iterator[Figure]:
    for rows in plan.sizes.rows:
        plan.say(f"report: {rows:,} rows")
        samples = [
            child("benchmarks.speed.report", rows, plan.folder / "report.xlsx")
            for _ in range(plan.rounds)
        ]
        large = rows == max(plan.sizes.rows)
        over = [sample["peak_mb"] - sample["bare_mb"] for sample in samples]
        writing = [sample["peak_mb"] - sample["comparison_mb"] for sample in samples]
        yield from (
            Figure(
                "report",
                f"{rows:,} rows: time",
                "s",
                column(samples, "seconds"),
                30.0 if large else None,
            ),
            Figure("report", f"{rows:,} rows: peak memory", "MB", over, 300.0 if large else None),
            Figure("report", f"{rows:,} rows: of that, added by writing", "MB", writing),
        )


def made_up(rows: int) -> Comparison:
    """A language model's modules, an input and an output each, errors that grow with depth, one row
    in a hundred over tolerance.
    """
    from accucompare.api import Comparison
    from accucompare.bundle.format.manifest import Manifest
    from accucompare.bundle.format.records import Layout, Record, Role
    from accucompare.compare.limits.limits import SmallestLimit
    from accucompare.compare.measuring.measure import Metrics
    from accucompare.compare.result import Side
    from accucompare.compare.rows.rows import Reason, Row, Verdict
    from accucompare.numbers.statistics import Statistics

    draw = random.Random(0)
    made = []
    for index in range(rows):
        step, place = divmod(index, 2000)
        block, part = divmod(place // 2, len(_MODULES))
        name, role = f"model.layers.{block}.{_MODULES[part]}", (Role.INPUT, Role.OUTPUT)[place % 2]
        error = 10 ** draw.uniform(-7, -4.1) if draw.random() > 0.01 else 10 ** draw.uniform(-4, -1)
        spread = [draw.gauss(0, 1) for _ in range(8)]
        golden, candidate = (
            Record(
                *(0, step, name, 0, role, "0" if role is Role.INPUT else "", place, "Linear"),
                *(
                    (f"model.layers.{block}", 0),
                    (2, 512, 768),
                    "float32",
                    Layout.STRIDED,
                    f"{place:06d}.{name}",
                    f"{draw.getrandbits(128):032x}",
                ),
                Statistics(-4 + spread[0], 4 + spread[1], spread[2] / 100, 800 + spread[3], 0, 0),
            )
            for _ in range(2)
        )
        metrics = Metrics(
            *(
                786432,
                786432,
                error,
                error**2 / 2,
                error * 4,
                (1, draw.randrange(512), draw.randrange(768)),
                spread[4],
                spread[4] + error,
            ),
            *(error * 1000, error / 2, error * 0.8, spread[5] * error, int(error * 1e8)),
            over_1e3=min(1.0, error * 10),
            over_5e3=min(1.0, error),
        )
        reason = Reason.OK if error <= _LIMIT else Reason.INTRODUCED
        verdict = Verdict(
            reason,
            f"rel_l2 {_LIMIT:g}",
            "default for float32",
            (SmallestLimit("rel_l2", error),),
            error / _LIMIT,
        )
        made.append(Row(golden, candidate, verdict, metrics, module=name))
    return Comparison(
        Side(Path("golden"), Manifest(complete=True)),
        Side(Path("npu"), Manifest(complete=True)),
        made,
    )


def _child(rows: int, path: Path) -> None:
    import numpy as np  # noqa: F401  # the interpreter's memory is with it, as in the other sections

    bare = peak_mb()
    comparison = made_up(rows)
    before = peak_mb()
    began = time.perf_counter()
    comparison.to_excel(path)
    seconds = time.perf_counter() - began
    print(
        json.dumps(
            {
                "seconds": seconds,
                "bare_mb": bare,
                "comparison_mb": before,
                "peak_mb": peak_mb(),
                "bytes": path.stat().st_size,
            }
        )
    )


if __name__ == "__main__":
    _child(int(sys.argv[1]), Path(sys.argv[2]))
