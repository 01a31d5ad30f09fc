"""Planted origins of NaN and Inf: ``python -m benchmarks.origins``. Is the place named where each
begins, and legal ones left alone?
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console

from benchmarks.origins_report import full, tables, wrong
from benchmarks.origins_trial import Trial, run
from planted.origins_catalogue import ORIGINS
from planted.origins_models import DTYPES, PLACES

_ABOUT = """Each trial is one training step of a small model in which one origin is planted. Right,
of a watch: its one origin has the qualified name, call, site (module, glue and the child next to
it, weights, input, loss, sum), direction and kinds of what was planted. Right, of Hugging Face's
DebugUnderflowOverflow: the last frame of its report is of the right module, for it says no more;
beside: it is of the child next to the glue, or shows the bad input. Of what is legal, nothing may
be said."""


#: So many trials of which the watch is not right are listed, without --full.
_SHOWN = 40


def main() -> int:
    options = _options()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the workers
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the workers end
    progress, console = (
        Console(stderr=True),
        Console() if sys.stdout.isatty() else Console(width=200),
    )
    began = time.monotonic()
    tasks = [
        (model, dtype) for model in reversed(options.models) for dtype in reversed(options.dtypes)
    ]
    order = {
        key: place
        for place, key in enumerate(
            (m, d, o) for m in options.models for d in options.dtypes for o in ORIGINS
        )
    }
    trials: list[Trial] = []
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(run_all, *task, options.only): task for task in tasks}
        for count, done in enumerate(as_completed(waiting), 1):
            trials += done.result()
            progress.print(
                f"{time.monotonic() - began:4.0f} s  {count}/{len(tasks)} "
                f" {', '.join(waiting[done])}",
                style="dim",
                highlight=False,
            )
    trials.sort(key=lambda trial: order[trial.model, trial.dtype, trial.origin])
    for table in tables(trials):
        console.print(table)
    if options.full:
        console.print(full(trials))
    if options.json:
        text = json.dumps(
            {"seconds": time.monotonic() - began, "trials": [asdict(trial) for trial in trials]},
            indent=1,
            ensure_ascii=False,
        )
        options.json.write_text(text + "\n", encoding="utf-8")
    console.print(_ABOUT, style="dim", highlight=False)
    missed = wrong(trials)
    for line in missed[: None if options.full else _SHOWN]:
        console.print(
            f"Not right: {line}", style="red", highlight=False, markup=False, soft_wrap=True
        )
    console.print(
        f"{time.monotonic() - began:.0f} s on {options.workers} workers",
        style="dim",
        highlight=False,
    )
    return 1 if missed else 0


def run_all(model: str, dtype: str, names: list[str]) -> list[Trial]:
    return [run(model, dtype, name) for name in names]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.origins", description=__doc__)
    parser.add_argument(
        "--models", nargs="+", choices=PLACES, default=list(PLACES), help="default: all"
    )
    parser.add_argument(
        "--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), help="default: all"
    )
    parser.add_argument(
        "--only", metavar="TEXT", default="", help="origins with this in their name"
    )
    parser.add_argument("--full", action="store_true", help="every trial, too")
    parser.add_argument("--workers", type=int, default=2, help="processes; default: 2")
    parser.add_argument("--json", type=Path, help="save every trial there")
    options = parser.parse_args()
    options.only = [name for name in ORIGINS if options.only in name]
    if not options.only or options.workers < 1:
        parser.error(
            "no origin has that in its name" if not options.only else "--workers must be at least 1"
        )
    return options


if __name__ == "__main__":
    sys.exit(main())
