"""What watching costs: a training step of GPT-2, plain and watched, in turns in one process."""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.speed import gpt2
from benchmarks.speed.gpt2 import Training
from benchmarks.speed.plan import Plan
from benchmarks.timing import Sample, child, column, peak_mb, ratios

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
            yield Figure(
                _SECTION,
                f"{name}: peak memory / the plain steps'",
                "x",
                ratios(taken, peaks[_PLAIN]),
                1.1,
            )


def _in_child(plan: Plan, device: str, rounds: int, names: list[str]) -> Sample:
    return child(
        "benchmarks.speed.watch",
        plan.folder / "watch",
        *gpt2.options(plan, rounds),
        "--device",
        device,
        *names,
    )


def _figures(answer: Sample, on: str) -> Iterator[Figure]:
    samples = answer["samples"]
    alone = column(samples[_PLAIN], "step")
    yield Figure(_SECTION, f"{on}plain step (forward, backward, AdamW)", "s", alone)
    for name, (_, target) in _ARMS.items():
        yield Figure(
            _SECTION,
            f"{on}{name}: step / plain step",
            "x",
            ratios(column(samples[name], "step"), alone),
            target,
        )
    for name, (
        _,
        target,
    ) in _ARMS.items():  # on a machine that others use as well, this can be trusted further
        busy = ratios(column(samples[name], "busy"), column(samples[_PLAIN], "busy"))
        yield Figure(_SECTION, f"{on}{name}: processor time / plain step's", "x", busy, target)
    for name in ("flags only", "frames"):
        first = ratios(column(samples[name], "first"), alone)
        yield Figure(_SECTION, f"{on}{name}: first step of a watch / plain step", "x", first)
        first = ratios(column(samples[name], "first_busy"), column(samples[_PLAIN], "busy"))
        yield Figure(
            _SECTION,
            f"{on}{name}: first step of a watch, processor time / plain step's",
            "x",
            first,
        )
    yield Figure(
        _SECTION,
        f"{on}{_NEIGHBOUR}: step / plain step",
        "x",
        ratios(column(samples[_NEIGHBOUR], "step"), alone),
    )
    for part in ("before", "after"):
        yield Figure(_SECTION, f"{on}frames: {part} the loop", "s", column(samples["frames"], part))


def _watched(training: Training, folder: Path, options: dict[str, Any]) -> Sample:
    import accucompare as ac

    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    with ac.watch(
        training.model, training.optimizer, out=folder, look=ac.LookAt(**options)
    ) as watch:
        entered = time.perf_counter()

        def step() -> None:
            training.step()
            watch.step()

        first = _timed(
            step
        )  # the first of a hundred is watched, and the first of ten looks for underflow, too
        taken = _timed(step)
        done = time.perf_counter()
    return {
        **taken,
        "first": first["step"],
        "first_busy": first["busy"],
        "before": entered - began,
        "after": time.perf_counter() - done,
    }


def _neighbour(training: Training) -> Sample:
    from transformers.debug_utils import DebugUnderflowOverflow

    with redirect_stdout(io.StringIO()):
        DebugUnderflowOverflow(training.model)  # type: ignore[no-untyped-call]
        try:
            return _timed(training.step)
        finally:
            for module in training.model.modules():
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
    parser = gpt2.parser()
    parser.add_argument("arms", nargs="+")
    parser.add_argument("--device")
    options = parser.parse_args()

    import torch

    model = gpt2.build(options.layers).train().to(options.device)
    training = Training.of(model, gpt2.tokens(options.batch, options.length).to(options.device))
    plain = partial(_timed, training.step)
    known: dict[str, Callable[[], Sample]] = {
        _PLAIN: plain,
        _NEIGHBOUR: partial(_neighbour, training),
    }
    known |= {
        name: partial(_watched, training, options.folder / name, arm)
        for name, (arm, _) in _ARMS.items()
    }
    samples = gpt2.measured(
        options.folder, plain, {name: known[name] for name in options.arms}, options.rounds
    )
    print(json.dumps({"samples": samples, "peak_mb": peak_mb(), "gpu": torch.cuda.is_available()}))


if __name__ == "__main__":
    _child()
