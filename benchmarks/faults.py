"""The benchmark of planted faults: ``python -m benchmarks.faults``. How often is the right module named?"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.faults_report import judge, missed, tables
from benchmarks.faults_trial import METHODS, SETUPS, run
from planted.faults_models import ARCHITECTURES

_ABOUT = """A candidate computes in another order than its baseline, and has one fault; golden, candidate and baseline have the same
weights. Right: the culprit is the module that the fault was planted in, and its site (module or glue) is. A fault counts if it changes
what its module makes by at least 4 times the module's own rounding error, both measured on the module alone, on golden's inputs."""


def main() -> int:
    options = _options()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the workers
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the workers end, and remove their bundles
    progress, console = Console(stderr=True), Console() if sys.stdout.isatty() else Console(width=140)
    began = time.monotonic()
    tasks = [(name, setup, options.each, not options.no_pairs) for name in options.models for setup in options.setups]
    found: dict[str, list[dict[str, Any]]] = {"trials": [], "doubles": [], "pairs": []}
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(run, *task): task for task in tasks}
        for count, done in enumerate(as_completed(waiting), 1):
            for part, entries in done.result().items():
                found[part] += entries
            name, setup, *_ = waiting[done]
            progress.print(f"{time.monotonic() - began:4.0f} s  {count}/{len(tasks)}  {name}, {setup}", style="dim", highlight=False)
            if options.json:  # after each: what took minutes must not be lost
                text = json.dumps({"seconds": time.monotonic() - began, **found}, indent=1)
                options.json.write_text(text + "\n", encoding="utf-8")
    for table in tables(found):
        console.print(table)
    for method in METHODS[-1:] if not options.missed else METHODS:
        console.print(f"Not named first by {method}:", style="bold", highlight=False)
        console.print("\n".join(missed(found, method)) or "none", highlight=False, markup=False)
    console.print(_ABOUT, style="dim", highlight=False)
    short = judge(found)
    for line in short:
        console.print(f"Target missed: {line}", style="red", highlight=False, markup=False)
    console.print(f"{time.monotonic() - began:.0f} s on {options.workers} workers", style="dim", highlight=False)
    return 1 if short else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one fault of each kind and model, in bfloat16 and float32")
    parser.add_argument(
        "--models", type=_among(ARCHITECTURES), default=list(ARCHITECTURES), metavar="MODEL,…", help=", ".join(ARCHITECTURES)
    )
    parser.add_argument("--setups", type=_among(SETUPS), metavar="SETUP,…", help="; ".join(SETUPS).replace("%", "%%"))
    parser.add_argument("--each", type=int, metavar="N", help="faults of each kind, model and setup; default: 2")
    parser.add_argument("--no-pairs", action="store_true", help="leave out the fault-free pairs")
    parser.add_argument("--missed", action="store_true", help="list what each method missed, not only the best one")
    parser.add_argument("--workers", type=int, default=2, help="processes; default: 2")
    parser.add_argument("--json", type=Path, help="save every trial there")
    options = parser.parse_args()
    options.each = options.each or (1 if options.quick else 2)
    options.setups = options.setups or [setup for setup in SETUPS if not options.quick or setup in ("bfloat16", "float32")]
    if options.each < 1 or options.workers < 1:
        parser.error("--each and --workers must be at least 1")
    return options


def _among(known: Iterable[str]) -> Any:
    def names(text: str) -> list[str]:
        chosen = [name.strip() for name in text.split(",")]
        if unknown := [name for name in chosen if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
        return chosen

    return names


if __name__ == "__main__":
    sys.exit(main())
