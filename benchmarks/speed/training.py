"""What capturing training costs: a whole step of GPT-2 (forward, backward, AdamW), plain and captured, in turns in one process."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Figure
from benchmarks.speed.data import bytes_in, distinct_bytes
from benchmarks.speed.gpt2 import build, tokens
from benchmarks.speed.plan import Plan
from benchmarks.timing import Sample, alternate, child, column, peak_mb, ratios

if TYPE_CHECKING:
    import torch
    from torch import nn

_SECTION = "training"
_PLAIN = "plain"
#: Options of ``accucompare.capture``, and how much longer than the plain step a step may take.
_ARMS: dict[str, tuple[dict[str, Any], float | None]] = {
    "tensors": ({}, 1.15),
    "stats": ({"mode": "stats"}, 1.08),
    "series": ({"roles": "series"}, None),
    "not chosen": ({"steps": "1000-1000"}, 1.01),
}


def measure(plan: Plan) -> Iterator[Figure]:
    plan.need(10 * 10**9)
    plan.say("training: steps")
    answer = _in_child(plan, plan.rounds, [_PLAIN, *_ARMS])
    samples = answer["samples"]
    alone = {key: column(samples[_PLAIN], key) for key in ("step", "busy")}
    yield Figure(_SECTION, "plain step (forward, backward, AdamW)", "s", alone["step"])
    for key, what in (("busy", "processor time of the thread"), ("step", "step")):
        for name, (_, target) in _ARMS.items():
            taken = ratios(column(samples[name], key), alone[key])
            yield Figure(_SECTION, f"{name}: {what} / plain step's", "x", taken, target)
    for name in ("tensors", "stats", "series"):
        yield Figure(_SECTION, f"{name}: after the step, until closed", "s", column(samples[name], "after"))
        yield Figure(_SECTION, f"{name}: on disk", "MB", [value / 1e6 for value in column(samples[name], "bytes")])
    yield Figure(_SECTION, "tensors: on disk / distinct bytes", "x", ratios(*(column(samples["tensors"], key) for key in _BYTES)), 1.01)
    plan.say("training: peak memory")
    peaks = {name: [_in_child(plan, 1, [name])["peak_mb"] for _ in range(plan.rounds)] for name in (_PLAIN, "tensors", "stats")}
    for name in ("tensors", "stats"):
        over = [captured - plain for captured, plain in zip(peaks[name], peaks[_PLAIN], strict=True)]
        yield Figure(_SECTION, f"{name}: peak memory over the plain step's", "MB", over)


_BYTES = "bytes", "distinct"


def _in_child(plan: Plan, rounds: int, names: list[str]) -> Sample:
    sizes = {"batch": plan.sizes.batch, "length": plan.sizes.length, "layers": plan.sizes.layers, "rounds": rounds}
    options = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    return child("benchmarks.speed.training", plan.folder / "training", *options, *names)


@dataclass
class _Training:
    """One step of training, again and again."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    inputs: torch.Tensor

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(input_ids=self.inputs, labels=self.inputs, use_cache=False).loss.backward()
        self.optimizer.step()

    def plain(self) -> Sample:
        os.sync()
        return _timed(self.step)

    def captured(self, folder: Path, options: dict[str, Any]) -> Sample:
        import accucompare as ac

        shutil.rmtree(folder, ignore_errors=True)
        os.sync()  # or the disk would still be busy with what was written before
        with ac.capture(self.model, folder, **{"backward": True, **options}):
            taken = _timed(self.step)
            done = time.perf_counter()
        ended = time.perf_counter()
        return {**taken, "after": ended - done, "bytes": bytes_in(folder), "distinct": distinct_bytes(folder) or 1}


def _timed(act: Callable[[], None]) -> Sample:
    began, busy = time.perf_counter(), time.thread_time()
    act()
    return {"step": time.perf_counter() - began, "busy": time.thread_time() - busy}


def _child() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("arms", nargs="+")
    for name in ("rounds", "batch", "length", "layers"):
        parser.add_argument(f"--{name}", type=int)
    options = parser.parse_args()

    import torch

    torch.set_num_threads(1)  # the other core is the writer's
    model = build(options.layers).train()
    training = _Training(model, torch.optim.AdamW(model.parameters(), lr=1e-5), tokens(options.batch, options.length))
    options.folder.mkdir(parents=True, exist_ok=True)
    known: dict[str, Callable[[], Sample]] = {_PLAIN: training.plain}
    known |= {name: partial(training.captured, options.folder / name, arm) for name, (arm, _) in _ARMS.items()}
    arms = {name: known[name] for name in options.arms}
    try:
        training.plain()  # what the first step loads and allocates is start-up
        alternate(arms, 1)
        answer: Sample = {"samples": alternate(arms, options.rounds)}
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
    print(json.dumps({**answer, "peak_mb": peak_mb()}))


if __name__ == "__main__":
    _child()
