"""How long a command takes to start, from before the process to after it."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.speed.data import make
from benchmarks.speed.plan import DataSet, Plan
from benchmarks.timing import Sample, alternate, column, process

SCRIPT = Path(sys.executable).with_name("accucompare")
_TINY = DataSet("two tensors", 2, 100)


def run(*command: str | Path) -> Sample:
    finished = process(command)
    return {"seconds": finished.seconds, "peak_mb": finished.peak_mb}


def measure(plan: Plan) -> list[Figure]:
    plan.say("start-up")
    golden, candidate = make(plan.folder / "tiny", _TINY)
    python = sys.executable
    commands: dict[str, list[str | Path]] = {
        "python -c pass": [python, "-c", "pass"],
        "import numpy": [python, "-c", "import numpy"],
        "import accucompare": [python, "-c", "import accucompare"],
        "accucompare --help": [SCRIPT, "--help"]
        if SCRIPT.exists()
        else [python, "-m", "accucompare", "--help"],
        "accucompare diff of two tiny bundles, report included": [
            *(python, "-m", "accucompare", "diff", golden, candidate),
            *("--report", plan.folder / "tiny" / "report.xlsx"),
        ],
    }
    for command in commands.values():
        run(*command)  # from here on its files are in the page cache
    samples = alternate(
        {name: partial(run, *command) for name, command in commands.items()}, plan.rounds
    )
    return [
        Figure("start-up", name, "ms", [value * 1e3 for value in column(taken, "seconds")])
        for name, taken in samples.items()
    ]
