"""What capturing and watching cost: steps of a model, plain and with each option, in turns in one
process. ``python -m benchmarks.speed.cost FOLDER MODEL ROUNDS ARM…`` is that process.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Figure, clocked
from benchmarks.speed.data import bytes_in, distinct_bytes, files
from benchmarks.speed.plan import Plan
from benchmarks.timing import CLOCKS, Argument, Sample, alternate, child, clocks, peak_mb, since

if TYPE_CHECKING:
    from benchmarks.speed.models import Work

PLAIN = "plain"
_WRITE, _NEIGHBOUR = "write", "DebugUnderflowOverflow"
#: Options of ``accucompare.capture``.
_CAPTURES: dict[str, dict[str, Any]] = {
    "tensors": {},
    "stats": {"record": "stats"},
    "digest": {"record": "digest"},
    "sketch": {"record": "sketch"},
    "not chosen": {"steps": "1000-1000"},
}
#: Options of ``accucompare.LookAt``.
_WATCHES: dict[str, dict[str, Any]] = {"flags": {"frames": 0}, "frames": {}}
_PIECE = 1 << 20


def measure_captures(plan: Plan) -> Iterator[Figure]:
    """A training step and a forward of GPT-2, and calls of small models."""
    plan.need(14 * 10**9)
    plan.say("capture: a training step of GPT-2")
    samples = in_child(plan, "training", PLAIN, "tensors", "stats", "digest", _WRITE)
    what = "GPT-2, training step"
    plain, whole, writes = samples[PLAIN], samples["tensors"], samples[_WRITE]
    yield Figure("capture", f"{what}, plain", "s", [each["wall"] for each in plain[1:]])
    wanted = {"tensors": {"thread": 1.15, "wall": 1.25}, "stats": {"thread": 1.05}}
    for arm, targets in {**wanted, "digest": {"thread": 1.03}}.items():
        yield from clocked("capture", f"{what}: {arm}", samples[arm], plain, targets)
    after = [each["after"] for each in whole]
    yield Figure("capture", f"{what}: tensors, closing", "s", after[1:], first=after[0])
    share = [a / w["wall"] for a, w in zip(after, writes, strict=True)]
    yield Figure(
        "capture", f"{what}: closing / plain write of the bytes", "x", share[1:], 0.1, share[0]
    )
    over = whole[0]["peak_mb"] - plain[0]["peak_mb"]
    yield Figure("capture", f"{what}: tensors, memory over the plain step's", "MB", [over])
    sizes = [each["bytes"] / each["distinct"] for each in whole]
    yield Figure("capture", f"{what}: bytes on disk / distinct bytes", "x", sizes[1:], 1.01)

    plan.say("capture: steps that are not chosen")
    for work, name in (("third", ""), ("dropout", ", dropout on the CPU")):
        samples = in_child(plan, work, PLAIN, "not chosen")
        limit = {"thread": 1.02 if name else 1.01}
        what = f"a third of GPT-2, training step: not chosen{name}"
        yield from clocked("capture", what, samples["not chosen"], samples[PLAIN], limit)

    plan.say("capture: a forward of GPT-2")
    forwards = {"tensors": 1.05, "stats": 1.05, "digest": 1.03, "sketch": 1.08}
    samples = in_child(plan, "forward", PLAIN, *forwards)
    for arm, target in forwards.items():
        yield from clocked(
            "capture", f"GPT-2, forward: {arm}", samples[arm], samples[PLAIN], {"thread": target}
        )

    for work, name in (
        ("linears", f"{plan.sizes.linears} small Linears"),
        ("t5", "small T5"),
        ("llama", "small Llama"),
    ):
        plan.say(f"capture: {name}")
        samples = in_child(plan, work, PLAIN, "tensors")
        plain, taken = samples[PLAIN], samples["tensors"]
        yield from clocked("capture", f"{name}, forward: tensors", taken, plain, {})
        if work == "linears":
            calls = plan.sizes.linears + 1
            for clock in CLOCKS:
                each = [
                    (a[clock] - b[clock]) / calls * 1e6 for a, b in zip(taken, plain, strict=True)
                ]
                most = 40.0 if clock == "thread" else None
                yield Figure("capture", "a module call", "µs", each[1:], most, each[0], clock)


def measure_watches(plan: Plan) -> Iterator[Figure]:
    """Training steps of GPT-2, on a long input and on a short one, and of a tiny model."""
    targets = {"flags": {"thread": 1.03}, "frames": {"thread": 1.08}}
    for work, name in (
        ("third", "a third of GPT-2"),
        ("short", "a third of GPT-2, 2 × 64 tokens"),
        ("tiny", "width 64, 3 layers, 2 × 24 tokens"),
    ):
        plan.say(f"watch: {name}")
        samples = in_child(plan, work, PLAIN, *_WATCHES, _NEIGHBOUR)
        for arm in (*_WATCHES, _NEIGHBOUR):
            aims = {} if work == "tiny" else targets.get(arm, {})
            what = f"watch of {name}: {arm}"
            yield from clocked("watch", what, samples[arm], samples[PLAIN], aims)


def in_child(
    plan: Plan,
    work: str,
    *arms: str,
    rounds: int | None = None,
    keep: Path | None = None,
    disturbed: bool = False,
) -> dict[str, list[Sample]]:
    """Measure some arms in a process of its own: the samples of each, the first time first.

    Args:
        plan: sizes, folder and rounds.
        work: a key of ``models.WORKS``.
        arms: what to measure.
        rounds: after the first; those of the plan if not given.
        keep: where to leave the last bundle of tensors.
        disturbed: change the weights a little before.
    """
    sizes = plan.sizes
    options: list[Argument] = [
        plan.folder / "cost",
        work,
        plan.rounds if rounds is None else rounds,
    ]
    for name in ("batch", "length", "layers", "linears"):
        options += [f"--{name}", getattr(sizes, name)]
    options += ["--keep", keep] if keep else []
    options += ["--disturbed"] if disturbed else []
    answer: dict[str, list[Sample]] = child("benchmarks.speed.cost", *options, "--", *arms)
    return answer


def parser() -> argparse.ArgumentParser:
    """Of a process that measures some arms in a folder of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("work")
    parser.add_argument("rounds", type=int)
    for name in ("batch", "length", "layers", "linears"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--disturbed", action="store_true")
    return parser


def timed(work: Work) -> Sample:
    """A step, after what was written before has reached the disk."""
    os.sync()
    began = clocks()
    for _ in range(work.repeat):
        work.step()
    return {**since(began, work.repeat), "peak_mb": peak_mb()}


def _captured(work: Work, folder: Path, options: dict[str, Any]) -> Sample:
    import accucompare as ac

    shutil.rmtree(folder, ignore_errors=True)
    os.sync()  # or the disk would still be busy with what was written before
    with ac.capture(work.model, folder, **options) as session:
        began = clocks()
        for _ in range(work.repeat):
            work.step()
            if work.repeat > 1:
                session.step()
        taken = since(began, work.repeat)
        done = time.perf_counter()
    sample = {**taken, "after": time.perf_counter() - done, "peak_mb": peak_mb()}
    return {**sample, "bytes": bytes_in(folder), "distinct": distinct_bytes(folder) or 1}


def _watched(work: Work, folder: Path, options: dict[str, Any]) -> Sample:
    """The steps after the first; the first one apart, because a watch looks more closely there."""
    import accucompare as ac

    shutil.rmtree(folder, ignore_errors=True)
    look = ac.LookAt(**options)
    with ac.watch(work.model, work.optimizer, out=folder, look=look) as watch:
        began = clocks()
        work.step()
        watch.step()
        first, began = since(began, 1), clocks()
        for _ in range(work.repeat):
            work.step()
            watch.step()
        return {**since(began, work.repeat), "first": first}


def _neighbour(work: Work) -> Sample:
    from transformers.debug_utils import DebugUnderflowOverflow

    with redirect_stdout(io.StringIO()):
        DebugUnderflowOverflow(work.model)  # type: ignore[no-untyped-call]
        try:
            return timed(work)
        finally:
            for module in work.model.modules():
                module._forward_hooks.clear()  # it has no way to take them off


def _write(source: Path, target: Path) -> Sample:
    """Write as many bytes as the tensors take, from one reused buffer."""
    size = max(path.stat().st_size for path in files(source))
    buffer = os.urandom(_PIECE)
    os.sync()
    began = clocks()
    with target.open("wb", buffering=0) as file:
        for start in range(0, size, _PIECE):
            file.write(buffer[: size - start])
    taken = since(began, 1)
    target.unlink()
    return taken


def _child() -> None:
    parse = parser()
    parse.add_argument("arms", nargs="+")
    options = parse.parse_args()

    import torch

    from benchmarks.speed.models import WORKS, Size, disturb

    torch.set_num_threads(1)  # the other core is the writer's
    size = Size(options.batch, options.length, options.layers, options.linears)
    work = WORKS[options.work](size)
    if options.disturbed:
        disturb(work.model)
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    arms: dict[str, Callable[[], Sample]] = {
        PLAIN: partial(timed, work),
        _NEIGHBOUR: partial(_neighbour, work),
        _WRITE: partial(_write, folder / "tensors", folder / "written"),
    }
    for name, each in _CAPTURES.items():
        arms[name] = partial(_captured, work, folder / name, each)
    for name, each in _WATCHES.items():
        arms[name] = partial(_watched, work, folder / name, each)
    try:
        for _ in range(2):  # what the first steps load and allocate is start-up
            work.step()
        samples = alternate({name: arms[name] for name in options.arms}, 1 + options.rounds)
        if options.keep:
            shutil.move(folder / "tensors", options.keep)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for taken in samples.values():
        taken[0] |= taken[0].get("first", {})
    print(json.dumps(samples))


if __name__ == "__main__":
    _child()
