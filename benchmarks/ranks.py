"""Planted faults of training on several ranks: ``python -m benchmarks.ranks``. Does a diff of one
device and many name module and rank, and leave right trainings alone?
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import accucompare as ac
from benchmarks.ranks_group import Group, Training, groups
from benchmarks.ranks_report import as_json, missed, tables, unmet
from benchmarks.ranks_trial import CleanPair, Setup, Trial, change, compare_clean, judge
from planted.rank_catalogue import ALL_FAULTS
from planted.rank_faults import RankFault
from planted.rank_models import ALL_LAYOUTS, ones

_ABOUT = """Each trial is a training of two steps by gloo processes with one fault on some ranks,
compared with one device. Right: what is told first is the module, the part of the step and, for a
fault of some ranks, these ranks. Beside it: the first global tensor over its limit; and rank by
rank the first tensor of golden's shape over a fixed tolerance. A fault that changes no rank's
records by more than rounding is invisible and does not count."""

#: The largest norm of gradients, where they are clipped.
_CLIP = 0.1
#: Trainings whose gradients are clipped rightly.
_CLIPPED = ("ddp2", "fsdp1_2", "fsdp2", "tp2", "sp2", "tp2dp2")
#: With --quick: the faults with this in their name, and the layouts of clean pairs.
_QUICK = ("x 1.01", "partial not reduced", "mean over own tokens")
_QUICK_LAYOUTS = ("ddp2", "tp2", "sp2", "fsdp2")


class Bench:
    """The captures that trials are compared with; each is made when first needed."""

    def __init__(self, folder: Path, made: dict[int, Group]) -> None:
        self._folder, self._groups = folder, made
        self._known: dict[tuple[Any, ...], Path] = {}

    def golden(self, setup: Setup) -> Path:
        return self._made(ones(setup.layout), setup, torch.float32)

    def baseline(self, setup: Setup, fed: bool = False) -> Path | None:
        """One device that computes as the candidate does; in float64, if that is in float32."""
        feed = ac.FedWith(self.golden(setup)) if fed else None
        if setup.layout == "fsdp2_bfloat16":
            return self._made("mixed_one", setup, torch.float32, feed)
        dtype = torch.bfloat16 if setup.dtype == "bfloat16" else torch.float64
        if setup.layout.startswith("mixtral"):
            return None  # torch has its experts in no float64
        return self._made(ones(setup.layout), setup, dtype, feed)

    def clean(self, setup: Setup) -> Path:
        feed = self._feed(setup, self.clean(replace(setup, fed=False))) if setup.fed else None
        return self._made(setup.layout, setup, None, feed)

    def faulty(self, setup: Setup, fault: RankFault) -> Path:
        out = self._folder / "faulty"
        self._train(Training(fault.layout, out, fault, self._options(setup, None)))
        return out

    def fed(self, setup: Setup, fault: RankFault, faulty: Path) -> Path:
        """The faulty training again, each rank fed with its part of golden."""
        out = self._folder / "fed"
        options = {**self._options(setup, None), "feed": self._feed(setup, faulty)}
        self._train(Training(fault.layout, out, fault, options))
        return out

    def _feed(self, setup: Setup, layout: Path) -> ac.FedWith:
        return ac.FedWith(self.golden(setup), layout_of=layout)

    def _made(
        self, layout: str, setup: Setup, dtype: torch.dtype | None, feed: ac.FedWith | None = None
    ) -> Path:
        options = {**self._options(setup, dtype), "feed": feed}
        key = (layout, *sorted((name, str(value)) for name, value in options.items()))
        if key not in self._known:
            out = self._folder / f"made{len(self._known)}"
            self._train(Training(layout, out, None, options))
            self._known[key] = out
        return self._known[key]

    def _options(self, setup: Setup, dtype: torch.dtype | None) -> dict[str, Any]:
        rounded = setup.dtype == "bfloat16" and setup.layout != "fsdp2_bfloat16"
        own = torch.bfloat16 if rounded else torch.float32
        return {
            "dtypes": (own, own if dtype is None else dtype),
            "seed": setup.seed,
            "steps": setup.steps,
            "clip": _CLIP if setup.clip else None,
        }

    def _train(self, training: Training) -> None:
        error = self._groups[ALL_LAYOUTS[training.layout].ranks].train(training)
        if error:
            raise RuntimeError(error)


def try_fault(bench: Bench, fault: RankFault) -> Trial:
    """A trial; an error in it must not cost the others, so it is kept."""
    setup = Setup(fault.layout, clip=fault.clip)
    try:
        golden, baseline = bench.golden(setup), bench.baseline(setup)
        faulty, clean = bench.faulty(setup, fault), bench.clean(setup)
        trial = judge(fault, golden, baseline, faulty)
        trial.change = change(faulty, clean, setup.dtype)
        trial.fed = _try_fed(bench, fault, setup, faulty)
        return trial
    except Exception as error:
        return Trial(fault, error=f"{type(error).__name__}: {error}")


def _try_fed(bench: Bench, fault: RankFault, setup: Setup, faulty: Path) -> Trial:
    try:
        golden, baseline = bench.golden(setup), bench.baseline(setup, fed=True)
        return judge(fault, golden, baseline, bench.fed(setup, fault, faulty))
    except Exception as error:
        return Trial(fault, error=f"{type(error).__name__}: {error}")


def try_clean(bench: Bench, setup: Setup) -> CleanPair:
    try:
        golden, baseline = bench.golden(setup), bench.baseline(setup, setup.fed)
        return compare_clean(setup, golden, baseline, bench.clean(setup))
    except Exception as error:
        return CleanPair(setup, error=f"{type(error).__name__}: {error}")


def clean_setups() -> Iterator[Setup]:
    """The trainings without a fault."""
    for layout, known in ALL_LAYOUTS.items():
        if known.ranks == 1 or layout in ("tp2_bfloat16", "cp2_bfloat16"):
            continue
        dtypes = ["float32", "bfloat16"]
        if layout == "fsdp2_bfloat16":
            dtypes.remove("float32")
        if layout.startswith("mixtral"):  # torch has such small experts in no bfloat16
            dtypes.remove("bfloat16")
        for dtype in dtypes:
            yield Setup(layout, dtype)
            yield Setup(layout, dtype, fed=True)
            yield Setup(layout, dtype, seed=6, steps=1)
        if layout in _CLIPPED:
            yield Setup(layout, clip=True)


def main() -> int:
    options = _options()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the ranks
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the ranks end
    progress = Console(stderr=True)
    console = Console() if sys.stdout.isatty() else Console(width=160)
    began = time.monotonic()
    faults = [each for each in ALL_FAULTS if options.only in str(each)]
    setups = [each for each in clean_setups() if options.only in str(each)]
    if options.layout:
        faults = [each for each in faults if options.layout in each.layout]
        setups = [each for each in setups if options.layout in each.layout]
    if options.quick:
        faults = [
            fault for fault in faults if fault.name in _QUICK and fault.layout in _QUICK_LAYOUTS
        ]
        setups = [setup for setup in setups if setup.layout in _QUICK_LAYOUTS and setup.steps == 1]
    trials: list[Trial] = []
    pairs: list[CleanPair] = []
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(tempfile.TemporaryDirectory(prefix="accucompare-ranks-"))
        folder = Path(made)
        bench = Bench(folder, stack.enter_context(groups(ALL_FAULTS, folder)))

        def told(what: str) -> None:
            progress.print(f"{time.monotonic() - began:4.0f} s  {what}", style="dim", markup=False)

        for megatron in (False, True):  # last, as it changes torch in the ranks' processes
            for fault in faults:
                if ("megatron" in fault.layout) is megatron:
                    trials.append(try_fault(bench, fault))
                    told(f"{trials[-1].verdict}, fed {trials[-1].fed_verdict}: {fault}")
            for setup in setups:
                if ("megatron" in setup.layout) is megatron:
                    pairs.append(try_clean(bench, setup))
                    told(f"{'ALARM' if pairs[-1].alarm else 'silent'}: {setup}")
    for table in tables(trials, pairs, options.full):
        console.print(table)
    console.print(_ABOUT, style="dim", highlight=False)
    for line in missed(trials, pairs):
        console.print(line, style="red", highlight=False, markup=False, soft_wrap=True)
    if options.json:
        text = json.dumps(as_json(trials, pairs), indent=1, ensure_ascii=False)
        options.json.write_text(text + "\n", encoding="utf-8")
    console.print(f"{time.monotonic() - began:.0f} s", style="dim", highlight=False)
    for line in unmet(trials, pairs):
        console.print(f"Target missed: {line}", style="red", highlight=False)
    return 1 if unmet(trials, pairs) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few of each, in a minute")
    parser.add_argument(
        "--only", metavar="TEXT", default="", help="trials and pairs with this in their name"
    )
    parser.add_argument(
        "--layout", metavar="TEXT", default="", help="those of layouts with this in their name"
    )
    parser.add_argument("--full", action="store_true", help="every trial, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all of it")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
