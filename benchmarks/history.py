"""The benchmark of historical bugs: ``python -m benchmarks.history``. Real bugs of public
libraries, a release with and one without.

Beside them are refactors: releases that compute the same otherwise, or two ways to write a model,
which must be cleared. Each pair has two virtual environments in ``benchmarks/.history``, made when
missing, and a case in ``benchmarks/history_cases``: a tiny model of the same weights in both.
Golden is captured in the right release; then the wrong one is compared with it by README's recipe
(``capture --like golden`` and ``diff``) and by ``locate``. One case alone: ``python -m
benchmarks.history --only mamba2``; all commands and what they said are then in
``benchmarks/.history/runs/mamba2/log.txt``, beside the bundles and reports."""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks.figures import machine
from benchmarks.history_catalogue import BUGS, REFACTORS, Bug, Refactor
from benchmarks.history_environments import Environment
from benchmarks.history_report import missed, sums, table, wrong
from benchmarks.history_trial import Trial, run

_ABOUT = """Right: the module named first is where the fix was made; where a training is compared
also the part of the step, and the step in which the two releases begin to differ. Refactors, and
the same release on both sides, must be cleared, a bug never."""

_PAIRS: list[Bug | Refactor] = [*BUGS, *REFACTORS]


def main() -> int:
    options = _options()
    progress, console = (
        Console(stderr=True),
        Console() if sys.stdout.isatty() else Console(width=200),
    )
    began = time.monotonic()

    def say(doing: str) -> None:
        progress.print(f"{time.monotonic() - began:4.0f} s  {doing}", style="dim", highlight=False)

    pairs = {pair.name: pair for pair in options.only}
    environments = {each.name: each for pair in options.only for each in pair.environments}

    def make(environment: Environment) -> None:
        environment.make()
        say(environment.name)

    def tried(pair: Bug | Refactor) -> Trial:
        trial = run(pair, say)
        for line in wrong([trial], pairs) or [f"{pair.name}: right"]:
            say(line)
        return trial

    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(make, environments.values()))
        trials = list(pool.map(tried, options.only))
    console.print(table(trials, pairs))
    summed = sums(trials, pairs)
    for line in summed:
        console.print(line, highlight=False)
    console.print(_ABOUT, style="dim", highlight=False)
    for line in wrong(trials, pairs):
        console.print(
            f"Not right: {line}", style="red", highlight=False, markup=False, soft_wrap=True
        )
    short = missed(trials, pairs)
    for line in short:
        console.print(f"Target missed: {line}", style="red", highlight=False, markup=False)
    say("done")
    if options.json:
        content = {
            "machine": machine(),
            "sums": summed,
            "cases": [{**_entry(pairs[trial.name]), **asdict(trial)} for trial in trials],
        }
        options.json.write_text(
            json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    return 1 if short else 0


def _entry(pair: Bug | Refactor) -> dict[str, object]:
    right, other = pair.environments
    entry: dict[str, object] = {
        "what": pair.what,
        "maps": pair.maps,
        "right_packages": right.packages,
        "other_packages": other.packages,
    }
    if isinstance(pair, Bug):
        entry |= {"fix": pair.fix, "places": pair.places, "stages": pair.stages, "step": pair.step}
    return entry


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.history", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--only",
        type=_chosen,
        default=_PAIRS,
        metavar="PAIR,…",
        help=", ".join(pair.name for pair in _PAIRS),
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="pairs that are tried at a time; default: 2"
    )
    parser.add_argument("--json", type=Path, help="save every answer there")
    return parser.parse_args()


def _chosen(text: str) -> list[Bug | Refactor]:
    names = [name.strip() for name in text.split(",")]
    if unknown := set(names) - {pair.name for pair in _PAIRS}:
        raise argparse.ArgumentTypeError(
            f"unknown: {', '.join(sorted(unknown))}; there are"
            f" {', '.join(pair.name for pair in _PAIRS)}"
        )
    return [pair for pair in _PAIRS if pair.name in names]


if __name__ == "__main__":
    sys.exit(main())
