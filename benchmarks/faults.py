"""The benchmark of planted faults: ``python -m benchmarks.faults``. How often is the right module
named?
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import (
    environment_trial,
    faults_report,
    faults_trial,
    sketch_trial,
    training_report,
    training_trial,
)
from planted.faults_models import ARCHITECTURES
from planted.training_models import TRAININGS

_Found = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True, eq=False)
class _Part:
    """One part of the benchmark.

    Attributes:
        models, setups: all that there are.
        methods: those that are compared.
        best: the one whose misses are listed.
        each: how many faults of each kind, in each model and setup.
        run: everything about one model in one setup: ``run(model, setup, each, pairs, device)``.
        on_devices: whether its candidate can run on another device than the CPU.
        tables, missed, judge: of all that was found.
        about: what the tables count.
    """

    models: Iterable[str]
    setups: Iterable[str]
    methods: tuple[str, ...]
    best: str
    each: int
    run: Callable[..., _Found]
    tables: Callable[[_Found], Iterator[Table]]
    missed: Callable[[_Found, str], Iterator[str]]
    judge: Callable[[_Found], list[str]]
    about: str
    on_devices: bool = False


_FORWARD = _Part(
    ARCHITECTURES,
    faults_trial.SETUPS,
    faults_trial.METHODS,
    faults_trial.METHODS[-1],
    2,
    faults_trial.run,
    faults_report.tables,
    faults_report.missed,
    faults_report.judge,
    """A candidate computes in another order than its baseline, and has one fault; golden, candidate
and baseline have the same weights. Right: the culprit is the module that the fault was planted in,
and its site (module or glue) is. A fault counts if it changes what its module makes by at least 4
times the module's own rounding error, both measured on the module alone, on golden's inputs.""",
    on_devices=True,
)
_TRAINING = _Part(
    TRAININGS,
    training_trial.SETUPS,
    training_trial.METHODS,
    training_trial.METHODS[0],
    1,
    training_trial.run,
    training_report.tables,
    training_report.missed,
    training_report.judge,
    """Two steps of training with AdamW; a candidate computes in another order than its baseline,
and has one fault, of a backward, the loss, the loop or the update. Right: the first culprit is the
module and the gradient that the fault was planted in, or the glue of that module, or the loss, or
the part of the update. A fault counts as visible if it changes what shows it by more than rounding
does there: each record of the faulty call beside that of a fed candidate without the fault, and the
change beside the baseline's error, or half a unit roundoff if that is more. First over tolerance:
the first row of the free-running capture that is over the limit which its baseline sets. Loss
curve: whether loss or gradient norm leave MindFormers' limits (first loss 0.5 %, mean loss 1 %,
mean norm 10 %), which names no place.""",
    on_devices=True,
)

_ENVIRONMENT = _Part(
    environment_trial.KINDS,
    environment_trial.SETUPS,
    environment_trial.METHODS,
    environment_trial.METHODS[0],
    3,
    environment_trial.run,
    environment_trial.tables,
    environment_trial.missed,
    environment_trial.judge,
    """An operator whose kernel is chosen by a variable of the environment, by how its library was
built, or by a file that it reads. Golden was made where the right one is. The files of Python are
the same, and the baseline that locate makes beside the candidate has the fault, too. Right: the
module with the operator is named first and locate ends with 1; without a fault it ends with 0.""",
)

_SKETCHES = _Part(
    ARCHITECTURES,
    sketch_trial.SETUPS,
    sketch_trial.METHODS,
    sketch_trial.METHODS[-1],
    1,
    sketch_trial.run,
    sketch_trial.tables,
    sketch_trial.missed,
    sketch_trial.judge,
    """The faults of a forward, each in a fed capture that is compared twice: with the tensors of
candidate and baseline, and with their sketches. The same: the first culprit is the same call of the
same module.""",
)


def main() -> int:
    options = _options()
    part: _Part = options.part
    os.environ["OMP_NUM_THREADS"] = "1"  # of the workers
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console() if sys.stdout.isatty() else Console(width=140)
    began = time.monotonic()
    tasks = [
        (name, setup, options.each, not options.no_pairs, *options.device)
        for name in options.models
        for setup in options.setups
    ]
    with tempfile.TemporaryDirectory(prefix="accucompare-faults-") as folder:
        os.environ["TMPDIR"] = folder  # of the workers, which are ended in the middle of their work
        found = _tried(part, tasks, options)
    for table in part.tables(found):
        console.print(table)
    for method in [part.best] if not options.missed else part.methods:
        console.print(f"Not named first by {method}:", style="bold", highlight=False)
        console.print(
            "\n".join(part.missed(found, method)) or "none", highlight=False, markup=False
        )
    console.print(part.about, style="dim", highlight=False)
    short = part.judge(found)
    for line in short:
        console.print(f"Target missed: {line}", style="red", highlight=False, markup=False)
    console.print(
        f"{time.monotonic() - began:.0f} s on {options.workers} workers",
        style="dim",
        highlight=False,
    )
    return 1 if short else 0


def _tried(part: _Part, tasks: list[tuple[Any, ...]], options: argparse.Namespace) -> _Found:
    """The findings of all tasks. An interrupt ends the workers, too."""
    progress, began = Console(stderr=True), time.monotonic()
    found: _Found = {}
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        try:
            waiting = {pool.submit(part.run, *task): task for task in tasks}
            for count, done in enumerate(as_completed(waiting), 1):
                for key, entries in done.result().items():
                    found.setdefault(key, []).extend(entries)
                name, setup, *_ = waiting[done]
                progress.print(
                    f"{time.monotonic() - began:4.0f} s  {count}/{len(tasks)}  {name}, {setup}",
                    style="dim",
                    highlight=False,
                )
                if options.json:  # after each: what took minutes must not be lost
                    text = json.dumps({"seconds": time.monotonic() - began, **found}, indent=1)
                    options.json.write_text(text + "\n", encoding="utf-8")
        except BaseException:
            for worker in active_children():
                worker.kill()
            raise
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument(
        "--training",
        action="store_true",
        help="faults of a backward and of an update, in place of those of a forward",
    )
    parser.add_argument(
        "--environment",
        action="store_true",
        help="faults of the environment, which a baseline made in it has, too",
    )
    parser.add_argument(
        "--sketches",
        action="store_true",
        help="the faults of a forward, by tensors and by sketches",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one fault of each kind and model, in bfloat16 and float32",
    )
    parser.add_argument(
        "--models",
        metavar="MODEL,…",
        help=f"{', '.join(ARCHITECTURES)}; with --training: {', '.join(TRAININGS)}",
    )
    parser.add_argument(
        "--setups", metavar="SETUP,…", help="; ".join(faults_trial.SETUPS).replace("%", "%%")
    )
    most = (
        "faults of each kind, model and setup; default: 2; with --training, --sketches: 1; with"
        " --environment: 3"
    )
    parser.add_argument("--each", type=int, metavar="N", help=most)
    parser.add_argument("--no-pairs", action="store_true", help="leave out the fault-free pairs")
    parser.add_argument(
        "--missed", action="store_true", help="list what each method missed, not only the best one"
    )
    parser.add_argument(
        "--device",
        nargs=1,
        default=(),
        help="where the candidate runs, such as cuda; default: the CPU, in another order",
    )
    parser.add_argument("--workers", type=int, default=2, help="processes; default: 2")
    parser.add_argument("--json", type=Path, help="save every trial there")
    options = parser.parse_args()
    chosen = {
        _TRAINING: options.training,
        _SKETCHES: options.sketches,
        _ENVIRONMENT: options.environment,
    }
    part = options.part = next((part for part, wanted in chosen.items() if wanted), _FORWARD)
    quick = [
        setup for setup in part.setups if not options.quick or setup in ("bfloat16", "float32")
    ]
    try:
        options.models = (
            _among(part.models, options.models) if options.models else list(part.models)
        )
        options.setups = _among(part.setups, options.setups) if options.setups else quick
    except ValueError as error:
        parser.error(str(error))
    options.each = options.each or (1 if options.quick else part.each)
    if options.device and not part.on_devices:
        parser.error("--device is of the faults of a forward and of a training")
    if options.each < 1 or options.workers < 1:
        parser.error("--each and --workers must be at least 1")
    return options


def _among(known: Iterable[str], text: str) -> list[str]:
    chosen = [name.strip() for name in text.split(",")]
    if unknown := [name for name in chosen if name not in known]:
        raise ValueError(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
