"""Planted faults of parallel training: ``python -m benchmarks.ranks``. Does a diff of one device
and many ranks name module and rank, and leave right ones alone?"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.ranks_group import Group, Training, groups
from benchmarks.ranks_trial import CleanPair, Trial, compare_clean, dtype_of, judge, lines
from planted.rank_faults import CATALOGUE, RankFault
from planted.rank_models import ALL_LAYOUTS, ones


class Bench:
    """The captures that trials are compared with; each is made when first needed."""

    def __init__(self, folder: Path, made: dict[int, Group]) -> None:
        self._folder, self._groups = folder, made
        self._known: dict[Any, Path] = {}

    def golden(self, layout: str, options: dict[str, Any]) -> Path:
        return self._made(ones(layout), dtype=torch.float32, **options)

    def baseline(self, layout: str, options: dict[str, Any]) -> Path:
        wide = dtype_of(layout) == "float32"
        return self._made(ones(layout), dtype=torch.float64 if wide else torch.bfloat16, **options)

    def clean(self, layout: str, options: dict[str, Any]) -> Path:
        return self._made(layout, **options)

    def faulty(self, fault: RankFault, options: dict[str, Any]) -> Path:
        out = self._folder / "faulty"
        self._train(Training(fault.layout, out, fault, options))
        return out

    def _made(self, layout: str, **options: Any) -> Path:
        key = (layout, *sorted((name, str(value)) for name, value in options.items()))
        if key not in self._known:
            out = self._folder / f"made{len(self._known)}"
            self._train(Training(layout, out, None, options))
            self._known[key] = out
        return self._known[key]

    def _train(self, training: Training) -> None:
        error = self._groups[ALL_LAYOUTS[training.layout].ranks].train(training)
        if error:
            raise RuntimeError(error)


def try_fault(bench: Bench, fault: RankFault) -> Trial:
    options = {"clip": 0.1} if fault.clip else {}
    try:
        return judge(
            fault,
            bench.golden(fault.layout, options),
            bench.baseline(fault.layout, options),
            bench.faulty(fault, options),
            bench.clean(fault.layout, options),
        )
    except RuntimeError as error:
        return Trial(fault, error=str(error))


def try_clean(bench: Bench, layout: str, options: dict[str, Any]) -> CleanPair:
    pair = CleanPair(layout, ", ".join(f"{name} {value}" for name, value in options.items()))
    try:
        return compare_clean(
            pair,
            bench.golden(layout, options),
            bench.baseline(layout, options),
            bench.clean(layout, options),
        )
    except RuntimeError as error:
        pair.error = str(error)
        return pair


def main() -> int:
    options = _options()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    began = time.monotonic()
    faults = [fault for fault in CATALOGUE if all(word in str(fault) for word in options.only)]
    trials, pairs = [], []
    with tempfile.TemporaryDirectory(prefix="accucompare-ranks-") as folder:
        with groups(CATALOGUE) as made:
            bench = Bench(Path(folder), made)
            for fault in faults:
                trials.append(try_fault(bench, fault))
                trial = trials[-1]
                mark = "right" if trial.right else "invisible" if not trial.visible else "WRONG"
                print(
                    f"{time.monotonic() - began:4.0f} s {mark}",
                    *lines(trial),
                    sep="\n  ",
                    flush=True,
                )
            for layout in ALL_LAYOUTS:
                if ALL_LAYOUTS[layout].ranks == 1 or options.no_clean:
                    continue
                for seed in (5, 6):
                    pair = try_clean(bench, layout, {"seed": seed})
                    pairs.append(pair)
                    print(f"{time.monotonic() - began:4.0f} s {pair}", flush=True)
    seen = [trial for trial in trials if trial.visible]
    print(sum(t.right for t in seen), "of", len(seen))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="trials with these words")
    parser.add_argument("--no-clean", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
