"""The checklist on trainings of 300 steps: ``python -m benchmarks.health``. Are planted faults
seen, and sound runs left alone?
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.health_sound import watch_loop, watch_script
from planted.health_models import MODELS, PRECISIONS, VARIANTS
from planted.sound import LIBRARIES, SOUND

_ABOUT = """Seen: one of the checks that the fault names is WARN or FAIL. Others that complain of a
planted fault are listed with --full: a fault has consequences. In a sound run nothing may complain.
Everything at the defaults of `accucompare watch`."""
#: What is asked for: of the faults seen, and of WARN and FAIL in all sound runs together.
LEAST_SEEN, MOST_WARNED = 0.9, 0
#: How a training of ``planted.sound`` is watched.
WAYS: dict[str, Callable[[str, Path], object]] = {"loop": watch_loop, "script": watch_script}


@dataclass(frozen=True)
class Task:
    """A training; ``fault``: the number of a fault in ``planted.health_faults.FAULTS``; -1 for a
    sound one.

    One of ``planted.sound.SOUND`` has its name in ``variant``, and for ``model`` how it is watched:
    ``loop`` or ``script``."""

    model: str
    precision: str
    fault: int = -1
    variant: str = ""
    seed: int = 0


@dataclass
class Trial:
    """What came of one training.

    Attributes:
        task: which.
        name: of the fault; of a sound run, its variant and seed.
        checks: one of these must complain; none of a sound one.
        said: what every check said that is WARN or FAIL, by its id.
        seconds: how long it took.
    """

    task: Task
    name: str
    checks: list[str]
    said: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        return bool(self.said.keys() & self.checks) if self.checks else not self.said

    @property
    def where(self) -> str:
        return f"{self.task.model}, {self.task.precision}"


def tasks() -> Iterator[Task]:
    """Those with a fault, twenty sound ones of the same models, and all of ``planted.sound``, each
    as a loop and as a script.
    """
    from planted.health_faults import FAULTS

    planted = [
        Task(model, precision, number)
        for number, each in enumerate(FAULTS)
        for model, precision in each.places
    ]
    yield from sorted(planted, key=lambda task: list(MODELS).index(task.model))
    for model in MODELS:
        for precision in PRECISIONS:
            for seed in (1, 2):
                yield Task(model, precision, seed=seed)
    for model, variant in zip(MODELS, list(VARIANTS)[1:], strict=True):
        yield Task(model, "float32", variant=variant, seed=3)
    for name in SOUND:
        for way in ("script",) if name in LIBRARIES else WAYS:
            yield Task(way, "", variant=name)


def run(task: Task) -> Trial:
    """Train under a watch, and judge its log."""
    import logging
    import warnings

    import torch

    import accucompare as ac
    from accucompare.errors import NonFiniteError
    from planted.health_faults import FAULTS
    from planted.health_models import make

    torch.set_num_threads(1)
    logging.disable()
    warnings.simplefilter("ignore")
    began = time.monotonic()
    if task.model in WAYS:
        with tempfile.TemporaryDirectory() as folder:
            WAYS[task.model](task.variant, Path(folder) / "watch")
            said = said_of(Path(folder) / "watch")
        return Trial(task, task.variant, [], said, time.monotonic() - began)
    training = make(task.model, task.precision, task.seed)
    VARIANTS[task.variant](training)
    planted = FAULTS[task.fault] if task.fault >= 0 else None
    if planted is not None:
        planted.plant(training)
    with tempfile.TemporaryDirectory() as folder:
        loop = ac.Loop(training.optimizer, training.scheduler, training.scaler)
        look = ac.LookAt(frames=0)
        dies = (planted.dies,) if planted is not None and planted.dies is not None else ()
        with (
            contextlib.suppress(NonFiniteError, *dies),
            ac.watch(training.model, loop, out=folder, look=look, quiet=True) as watch,
        ):
            training.run(watch.step)
        said = said_of(Path(folder))
    name = (
        planted.name
        if planted is not None
        else ", ".join(filter(None, [task.variant, f"seed {task.seed}"]))
    )
    return Trial(
        task,
        name,
        list(planted.checks) if planted is not None else [],
        said,
        time.monotonic() - began,
    )


def _ended(task: Task, error: BaseException) -> Trial:
    """A run that ended in an error counts as a miss, or as an alarm, and the others go on."""
    from planted.health_faults import FAULTS

    planted = FAULTS[task.fault] if task.fault >= 0 else None
    checks = list(planted.checks) if planted is not None else []
    return Trial(
        task,
        task.variant if planted is None else planted.name,
        checks,
        {"no checks, ended": f"{type(error).__name__}: {error}"},
    )


def said_of(log: Path) -> dict[str, str]:
    """By id, what each check that is WARN or FAIL said of a log."""
    from accucompare.findings.analysis.analysis import read_logs
    from accucompare.findings.checklist.checks import CheckStatus
    from accucompare.findings.checklist.health_checklist import judge_log
    from accucompare.report.watch_words import said

    return {
        each.check.id: f"{each.status}: {said(each.outcome.measured)}"
        for each in judge_log(read_logs(log)).of(CheckStatus.WARN, CheckStatus.FAIL)
    }


def main() -> int:
    options = _options()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the workers
    progress, console = (
        Console(stderr=True),
        Console() if sys.stdout.isatty() else Console(width=200),
    )
    began, trials = time.monotonic(), []
    chosen = [task for task in tasks() if _wanted(task, options)]
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(run, task): number for number, task in enumerate(chosen)}
        done = {}
        for finished in as_completed(waiting):
            task = chosen[waiting[finished]]
            done[waiting[finished]] = trial = (
                finished.result()
                if (error := finished.exception()) is None
                else _ended(task, error)
            )
            said = "" if trial.is_right else f": {trial.said}"
            words = (
                f"{time.monotonic() - began:4.0f} s  {len(done)}/{len(chosen)}  {trial.where}:"
                f" {trial.name}{said}"
            )
            progress.print(
                words, style="dim" if trial.is_right else "red", highlight=False, markup=False
            )
    trials = [done[number] for number in sorted(done)]
    for table in _tables(trials, options.full):
        console.print(table)
    if options.json:
        content = {
            "seconds": time.monotonic() - began,
            "trials": [asdict(trial) for trial in trials],
        }
        options.json.write_text(
            json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    console.print(_ABOUT, style="dim", highlight=False)
    return _verdict(console, trials, time.monotonic() - began)


def _verdict(console: Console, trials: list[Trial], seconds: float) -> int:
    planted, sound = (
        [each for each in trials if each.checks],
        [each for each in trials if not each.checks],
    )
    seen, warned = sum(each.is_right for each in planted), sum(len(each.said) for each in sound)
    console.print(
        f"{seen} of {len(planted)} planted faults seen; {warned} WARN or FAIL in {len(sound)} sound"
        f" runs; {seconds:.0f} s"
    )
    return 0 if seen >= LEAST_SEEN * len(planted) and warned <= MOST_WARNED else 1


def _tables(trials: list[Trial], full: bool) -> Iterator[Table]:
    table = Table(title="Planted faults", title_justify="left", title_style="bold")
    for column in (
        "fault",
        "where",
        "seen by",
        *(["others that complain"] if full else []),
        "seconds",
    ):
        table.add_column(
            column, overflow="fold", justify="right" if column == "seconds" else "left"
        )
    for trial in trials:
        if trial.checks:
            seen = (
                ", ".join(check for check in trial.checks if check in trial.said)
                or f"[red]not seen[/] ({', '.join(trial.checks)})"
            )
            others = (
                [", ".join(check for check in trial.said if check not in trial.checks)]
                if full
                else []
            )
            table.add_row(trial.name, trial.where, seen, *others, f"{trial.seconds:.0f}")
    yield table
    table = Table(title="Sound runs", title_justify="left", title_style="bold")
    for column in ("where", "run", "said", "seconds"):
        table.add_column(
            column, overflow="fold", justify="right" if column == "seconds" else "left"
        )
    for trial in trials:
        if not trial.checks:
            said = (
                "; ".join(f"[red]{check}[/] {words}" for check, words in trial.said.items())
                or "nothing"
            )
            table.add_row(trial.where, trial.name, said, f"{trial.seconds:.0f}")
    yield table


def _wanted(task: Task, options: argparse.Namespace) -> bool:
    from planted.health_faults import FAULTS

    if task.model not in (*options.models, *WAYS) or (options.sound and task.fault >= 0):
        return False
    return options.only in (FAULTS[task.fault].name if task.fault >= 0 else f"sound {task.variant}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.health", description=__doc__)
    parser.add_argument("--only", metavar="TEXT", default="", help="faults with this in their name")
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=list(MODELS), help="default: all"
    )
    parser.add_argument("--sound", action="store_true", help="the sound runs alone")
    parser.add_argument(
        "--full", action="store_true", help="all checks that complain of a fault, too"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes; default: 2")
    parser.add_argument("--json", type=Path, help="save every trial there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
