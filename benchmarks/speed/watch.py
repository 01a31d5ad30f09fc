"""What watching costs: a training step of GPT-2, plain and watched, in turns in one process."""

from __future__ import annotations

import argparse
import io
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Figure
from benchmarks.speed.gpt2 import build, tokens
from benchmarks.speed.plan import Plan
from benchmarks.timing import Sample, alternate, child, column, peak_mb, ratios

if TYPE_CHECKING:
    import torch
    from torch import nn

_SECTION = "watch"
#: Options of ``accucompare.watch``, and how much longer than the plain step it may take.
_ARMS: dict[str, tuple[dict[str, Any], float | None]] = {
    "flags only": ({"frames": 0}, 1.05),
    "frames": ({}, 1.10),
    "idle": ({"every": 100}, 1.02),
}
_PLAIN, _NEIGHBOUR = "plain", "Hugging Face's class"


def measure(plan: Plan) -> Iterator[Figure]:
    names = [_PLAIN, *_ARMS, _NEIGHBOUR]
    plan.say("watch: on the CPU")
    answer = _in_child(plan, "cpu", plan.rounds, names)
    yield from _figures(answer, "")
    if answer["gpu"]:
        plan.say("watch: on the GPU")
        yield from _figures(_in_child(plan, "cuda", plan.rounds, names), "GPU, ")
    plan.say("watch: peak memory")
    peaks: dict[str, list[float]] = {_PLAIN: [], "flags only": [], "frames": []}
    for _ in range(plan.rounds):
        for name, taken in peaks.items():
            taken.append(_in_child(plan, "cpu", 1, [name])["peak_mb"])
    for name, taken in peaks.items():
        if name != _PLAIN:
            yield Figure(_SECTION, f"{name}: peak memory / the plain steps'", "x", ratios(taken, peaks[_PLAIN]), 1.1)


def _in_child(plan: Plan, device: str, rounds: int, names: list[str]) -> Sample:
    sizes = {"batch": plan.sizes.batch, "length": plan.sizes.length, "layers": plan.sizes.layers, "rounds": rounds, "device": device}
    options = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    return child("benchmarks.speed.watch", plan.folder / "watch", *options, *names)


def _figures(answer: Sample, on: str) -> Iterator[Figure]:
    samples = answer["samples"]
    alone = column(samples[_PLAIN], "step")
    yield Figure(_SECTION, f"{on}plain step (forward, backward, AdamW)", "s", alone)
    for name, (_, target) in _ARMS.items():
        yield Figure(_SECTION, f"{on}{name}: step / plain step", "x", ratios(column(samples[name], "step"), alone), target)
    for name, (_, target) in _ARMS.items():  # on a machine that others use as well, this can be trusted further
        busy = ratios(column(samples[name], "busy"), column(samples[_PLAIN], "busy"))
        yield Figure(_SECTION, f"{on}{name}: processor time / plain step's", "x", busy, target)
    for name in ("flags only", "frames"):
        first = ratios(column(samples[name], "first"), alone)
        yield Figure(_SECTION, f"{on}{name}: first step of a watch / plain step", "x", first)
        first = ratios(column(samples[name], "first_busy"), column(samples[_PLAIN], "busy"))
        yield Figure(_SECTION, f"{on}{name}: first step of a watch, processor time / plain step's", "x", first)
    yield Figure(_SECTION, f"{on}{_NEIGHBOUR}: step / plain step", "x", ratios(column(samples[_NEIGHBOUR], "step"), alone))
    for part in ("before", "after"):
        yield Figure(_SECTION, f"{on}frames: {part} the loop", "s", column(samples["frames"], part))


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
        return _timed(self.step)

    def watched(self, folder: Path, options: dict[str, Any]) -> Sample:
        import accucompare as ac

        shutil.rmtree(folder, ignore_errors=True)
        began = time.perf_counter()
        with ac.watch(self.model, self.optimizer, out=folder, **options) as watch:
            entered = time.perf_counter()

            def step() -> None:
                self.step()
                watch.step()

            first = _timed(step)  # the first of a hundred is watched, and the first of ten looks for underflow, too
            taken = _timed(step)
            done = time.perf_counter()
        return {
            **taken,
            "first": first["step"],
            "first_busy": first["busy"],
            "before": entered - began,
            "after": time.perf_counter() - done,
        }

    def neighbour(self) -> Sample:
        from transformers.debug_utils import DebugUnderflowOverflow

        with redirect_stdout(io.StringIO()):
            DebugUnderflowOverflow(self.model)  # type: ignore[no-untyped-call]
            try:
                return _timed(self.step)
            finally:
                for module in self.model.modules():
                    module._forward_hooks.clear()  # it has no way to take them off


def _timed(act: Callable[[], None]) -> Sample:
    _wait()
    began, busy = time.perf_counter(), time.process_time()
    act()
    _wait()
    return {"step": time.perf_counter() - began, "busy": time.process_time() - busy}


def _wait() -> None:
    """Until a GPU has done what it was told to."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _child() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("arms", nargs="+")
    for name in ("rounds", "batch", "length", "layers"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--device")
    options = parser.parse_args()

    import torch

    model = build(options.layers).train().to(options.device)
    inputs = tokens(options.batch, options.length).to(options.device)
    training = _Training(model, torch.optim.AdamW(model.parameters(), lr=1e-5), inputs)
    known: dict[str, Callable[[], Sample]] = {_PLAIN: training.plain, _NEIGHBOUR: training.neighbour}
    known |= {name: partial(training.watched, options.folder / name, arm) for name, (arm, _) in _ARMS.items()}
    arms = {name: known[name] for name in options.arms}
    try:
        training.plain()  # what the first step loads and allocates is start-up
        alternate(arms, 1)
        answer: Sample = {"samples": alternate(arms, options.rounds)}
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
    print(json.dumps({**answer, "peak_mb": peak_mb(), "gpu": torch.cuda.is_available()}))


if __name__ == "__main__":
    _child()
