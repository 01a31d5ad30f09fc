"""What capturing training costs: a whole step of GPT-2 (forward, backward, AdamW), plain and
captured, in turns in one process.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import accucompare as ac
from benchmarks.figures import Figure
from benchmarks.speed import gpt2
from benchmarks.speed.data import bytes_in, distinct_bytes
from benchmarks.speed.gpt2 import Training
from benchmarks.speed.plan import Plan
from benchmarks.timing import Sample, child, column, peak_mb, ratios

_SECTION = "training"
_PLAIN = "plain"
#: Options of ``accucompare.capture``, and how much longer than the plain step a step may take.
_ARMS: dict[str, tuple[dict[str, Any], float | None]] = {
    "tensors": ({}, 1.15),
    "stats": ({"record": "stats"}, 1.08),
    "sketch": ({"record": "sketch"}, None),
    "digest": ({"record": "digest"}, None),
    "series": ({"record": ac.Recorded(roles="series")}, None),
    "not chosen": ({"steps": "1000-1000"}, 1.01),
}


def measure(plan: Plan) -> Iterator[Figure]:
    plan.need(10 * 10**9)
    plan.say("training: steps")
    answer = _in_child(plan, plan.rounds, [_PLAIN, *_ARMS])
    dropping = _in_child(plan, plan.rounds, [_PLAIN, "not chosen"], dropout=True)["samples"]
    samples = answer["samples"]
    alone = {key: column(samples[_PLAIN], key) for key in ("step", "busy")}
    yield Figure(_SECTION, "plain step (forward, backward, AdamW)", "s", alone["step"])
    for key, what in (("busy", "processor time of the thread"), ("step", "step")):
        for name, (_, target) in _ARMS.items():
            taken = ratios(column(samples[name], key), alone[key])
            yield Figure(_SECTION, f"{name}: {what} / plain step's", "x", taken, target)
        taken = ratios(column(dropping["not chosen"], key), column(dropping[_PLAIN], key))
        yield Figure(
            _SECTION, f"not chosen, dropout drawn on the CPU: {what} / plain step's", "x", taken
        )
    for name in ("tensors", "sketch", "stats", "digest", "series"):
        yield Figure(
            _SECTION, f"{name}: after the step, until closed", "s", column(samples[name], "after")
        )
        yield Figure(
            _SECTION,
            f"{name}: on disk",
            "MB",
            [value / 1e6 for value in column(samples[name], "bytes")],
        )
        if name == "sketch":
            records = column(samples[name], "records")
            each = [1000 * size / 1e6 for size in ratios(column(samples[name], "bytes"), records)]
            yield Figure(_SECTION, f"{name}: on disk, of 1,000 records", "MB", each, 2.2)
    yield Figure(
        _SECTION,
        "tensors: on disk / distinct bytes",
        "x",
        ratios(*(column(samples["tensors"], key) for key in _BYTES)),
        1.01,
    )
    plan.say("training: peak memory")
    peaks = {
        name: [_in_child(plan, 1, [name])["peak_mb"] for _ in range(plan.rounds)]
        for name in (_PLAIN, "tensors", "stats")
    }
    for name in ("tensors", "stats"):
        over = [
            captured - plain for captured, plain in zip(peaks[name], peaks[_PLAIN], strict=True)
        ]
        yield Figure(_SECTION, f"{name}: peak memory over the plain step's", "MB", over)


_BYTES = "bytes", "distinct"


def _in_child(plan: Plan, rounds: int, names: list[str], dropout: bool = False) -> Sample:
    folder = plan.folder / "training"
    return child(
        "benchmarks.speed.training",
        folder,
        *gpt2.options(plan, rounds),
        *(["--dropout"] if dropout else []),
        *names,
    )


def _plain(training: Training) -> Sample:
    os.sync()
    return _timed(training.step)


def _captured(training: Training, folder: Path, options: dict[str, Any]) -> Sample:
    shutil.rmtree(folder, ignore_errors=True)
    os.sync()  # or the disk would still be busy with what was written before
    with ac.capture(training.model, folder, **options):
        taken = _timed(training.step)
        done = time.perf_counter()
    ended = time.perf_counter()
    return {
        **taken,
        "after": ended - done,
        "bytes": bytes_in(folder),
        "distinct": distinct_bytes(folder) or 1,
        "records": _records(folder),
    }


def _records(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("step*.jsonl")) or 1


def _timed(act: Callable[[], None]) -> Sample:
    began, busy = time.perf_counter(), time.thread_time()
    act()
    return {"step": time.perf_counter() - began, "busy": time.thread_time() - busy}


def _child() -> None:
    parser = gpt2.parser()
    parser.add_argument("arms", nargs="+")
    parser.add_argument(
        "--dropout",
        action="store_true",
        help="matching its random numbers costs time of its own, in every step",
    )
    options = parser.parse_args()

    import torch

    torch.set_num_threads(1)  # the other core is the writer's
    training = Training.of(
        gpt2.build(options.layers).train(options.dropout),
        gpt2.tokens(options.batch, options.length),
    )
    plain = partial(_plain, training)
    known: dict[str, Callable[[], Sample]] = {_PLAIN: plain}
    known |= {
        name: partial(_captured, training, options.folder / name, arm)
        for name, (arm, _) in _ARMS.items()
    }
    samples = gpt2.measured(
        options.folder, plain, {name: known[name] for name in options.arms}, options.rounds
    )
    print(json.dumps({"samples": samples, "peak_mb": peak_mb()}))


if __name__ == "__main__":
    _child()
