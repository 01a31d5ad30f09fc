"""How long a command takes to start, from before the process to after it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.speed.data import make
from benchmarks.speed.plan import DataSet, Plan
from benchmarks.timing import Sample, alternate, process

_SCRIPT = Path(sys.executable).with_name("accucompare")
#: How the command is started: by its script, if it is installed.
COMMAND: list[str | Path] = [_SCRIPT] if _SCRIPT.exists() else [sys.executable, "-m", "accucompare"]
_TINY = DataSet("two tensors", 2, 100)


def run(*command: str | Path) -> Sample:
    finished = process(command, codes=(0, 1))  # 1: differences
    return {"wall": finished.seconds, "process": finished.processor, "peak_mb": finished.peak_mb}


def measure(plan: Plan) -> Iterator[Figure]:
    plan.say("start-up")
    folder = plan.folder / "tiny"
    golden, candidate = make(folder, _TINY)
    diff = [*COMMAND, "diff", golden, candidate, "--report", folder / "report.xlsx"]
    commands: dict[str, tuple[list[str | Path], float | None]] = {
        "python -c pass": ([sys.executable, "-c", "pass"], None),
        "accucompare --help": ([*COMMAND, "--help"], 70.0),
        "diff of two small bundles with its report": (diff, 350.0),
    }
    arms = {name: partial(run, *command) for name, (command, _) in commands.items()}
    samples = alternate(arms, 1 + plan.sizes.starts)
    for name, (_, target) in commands.items():
        for clock in ("process", "wall"):
            first, *each = (sample[clock] * 1e3 for sample in samples[name])
            limit = target if clock == "wall" else None
            yield Figure("start-up", name, "ms", each, limit, first, clock)
