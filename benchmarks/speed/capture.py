"""What capturing costs: GPT-2's forward, plain and captured, in turns in one process."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Figure
from benchmarks.speed import gpt2
from benchmarks.speed.data import bytes_in, distinct_bytes, files
from benchmarks.speed.gpt2 import build, disturb, forward, plain, tokens
from benchmarks.speed.plan import Plan
from benchmarks.timing import Argument, Sample, alternate, child, column, peak_mb, ratios

if TYPE_CHECKING:
    import torch
    from torch import nn

_SECTION = "capture"
#: The modes that keep less than tensors: how much of the plain forward a forward may take.
_WHOLE = {"sketch": 1.09, "stats": None, "digest": 1.03}
_PIECE = 1 << 20
# plain forwards, which load libraries; malloc's heap grows still in the second, and would hide what
# a capture's memory costs
_WARMING = 3


def measure(plan: Plan) -> Iterator[Figure]:
    plan.need(2 * 10**9)
    modes = ("tensors", *_WHOLE) if plan.features.mode else ("tensors",)
    if not plan.features.mode:
        plan.note("capture: this accucompare has no modes, so only tensors are measured")
    cores = os.cpu_count() or 1
    for threads in dict.fromkeys((1, cores)):
        plan.say(f"capture: torch on {threads} thread(s)")
        answer = in_child(plan, threads, plan.rounds, *modes)
        yield from _figures(answer, modes, threads)
    plan.say("capture: peak memory")
    firsts = {
        mode: [in_child(plan, 1, 1, mode) for _ in range(plan.rounds)] for mode in ("plain", *modes)
    }
    peaks = {mode: column(answers, "peak_mb") for mode, answers in firsts.items()}
    for mode in modes:
        for key, what in (
            ("forward", "extra time in the forward"),
            ("busy", "extra processor time of its thread"),
        ):
            extra = [
                100 * (answer["first"][mode][0][key] / answer["first"]["plain"][0][key] - 1)
                for answer in firsts[mode]
            ]
            target = 10.0 if mode == "tensors" else None
            yield Figure(
                _SECTION,
                f"1 thread, {mode}: first capture of a process: {what}",
                "%",
                extra,
                target,
            )
        over = [captured - part for captured, part in zip(peaks[mode], peaks["plain"], strict=True)]
        yield Figure(_SECTION, f"{mode}: peak memory over the plain forward's", "MB", over)


def in_child(
    plan: Plan,
    threads: int,
    rounds: int,
    *modes: str,
    keep: Path | None = None,
    disturbed: bool = False,
) -> Sample:
    """Capture in a process of its own; with ``keep``, leave the last bundle there."""
    options: list[Argument] = ["--threads", threads, *gpt2.options(plan, rounds)]
    options += ["--keep", keep] if keep else []
    options += ["--disturbed"] if disturbed else []
    return child("benchmarks.speed.capture", plan.folder / "capture", *options, *modes)


def _figures(answer: Sample, modes: tuple[str, ...], threads: int) -> list[Figure]:
    samples = answer["samples"]
    alone = column(samples["plain"], "forward")
    on = f"{threads} thread" + ("s" if threads > 1 else "")
    figures = [Figure(_SECTION, f"{on}: plain forward", "s", alone)]
    for mode in modes:
        taken = samples[mode]
        forwards = ratios(column(taken, "forward"), alone)
        tensors, target = (
            mode == "tensors",
            threads == 1,
        )  # with a thread on every core nothing is left for the writer
        extra = [100 * (ratio - 1) for ratio in forwards]
        busy = [
            100 * (ratio - 1)
            for ratio in ratios(column(taken, "busy"), column(samples["plain"], "busy"))
        ]
        added = [whole - part for whole, part in zip(column(taken, "whole"), alone, strict=True)]
        figures += [
            Figure(
                _SECTION,
                f"{on}, {mode}: extra time in the forward",
                "%",
                extra,
                5.0 if target else None,
            ),
            Figure(
                _SECTION,
                f"{on}, {mode}: extra processor time of its thread",
                "%",
                busy,
                5.0 if target else None,
            ),
            Figure(
                _SECTION,
                f"{on}, {mode}: forward / plain forward",
                "x",
                forwards,
                _WHOLE.get(mode) if target else None,
            ),
            Figure(_SECTION, f"{on}, {mode}: before the forward", "s", column(taken, "before")),
            Figure(
                _SECTION,
                f"{on}, {mode}: after the forward, until closed",
                "s",
                column(taken, "after"),
            ),
            Figure(
                _SECTION,
                f"{on}, {mode}: whole capture / plain forward",
                "x",
                ratios(column(taken, "whole"), alone),
            ),
        ]
        if tensors:
            written = column(samples["write"], "seconds")
            figures += [
                Figure(_SECTION, f"{on}: plain write of the distinct bytes", "s", written),
                Figure(
                    _SECTION,
                    f"{on}, {mode}: (whole - plain forward) / plain write",
                    "x",
                    ratios(added, written),
                    1.2 if target else None,
                ),
            ]
        if threads == 1:
            figures.append(
                Figure(
                    _SECTION,
                    f"{mode}: on disk",
                    "MB",
                    [value / 1e6 for value in column(taken, "bytes")],
                )
            )
            if tensors:
                shares = [value / answer["distinct_bytes"] for value in column(taken, "bytes")]
                figures.append(
                    Figure(_SECTION, f"{mode}: on disk / distinct bytes", "x", shares, 1.01)
                )
    return figures


def _capture(model: nn.Module, inputs: torch.Tensor, folder: Path, mode: str) -> Sample:
    import accucompare as ac

    shutil.rmtree(folder, ignore_errors=True)
    options: dict[str, Any] = {} if mode == "tensors" else {"record": mode}
    os.sync()  # or the disk would still be busy with what was written before
    began = time.perf_counter()
    with ac.capture(model, folder, **options):
        entered = time.perf_counter()
        taken = forward(model, inputs)
        done = time.perf_counter()
    ended = time.perf_counter()
    return {
        **taken,
        "before": entered - began,
        "after": ended - done,
        "whole": ended - began,
        "bytes": bytes_in(folder),
    }


def _write(source: Path, target: Path) -> Sample:
    """Write as many bytes as the tensors take, from one reused buffer, as a program does that only
    writes.
    """
    size = max(path.stat().st_size for path in files(source))
    buffer = os.urandom(_PIECE)
    os.sync()
    began = time.perf_counter()
    with target.open("wb", buffering=0) as file:
        for start in range(0, size, _PIECE):
            file.write(buffer[: size - start])
    seconds = time.perf_counter() - began
    target.unlink()
    return {"seconds": seconds}


def _child() -> None:
    parser = gpt2.parser()
    parser.add_argument("modes", nargs="+")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--disturbed", action="store_true")
    options = parser.parse_args()

    import torch

    torch.set_num_threads(options.threads)
    model, inputs = build(options.layers), tokens(options.batch, options.length)
    if options.disturbed:
        disturb(model)
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    try:
        captures = {
            mode: partial(_capture, model, inputs, folder / mode, mode)
            for mode in options.modes
            if mode != "plain"
        }
        arms: dict[str, Callable[[], Sample]] = {"plain": partial(plain, model, inputs), **captures}
        answer: Sample = {}
        for _ in range(_WARMING):
            plain(model, inputs)
        answer["first"] = answer["samples"] = alternate(arms, 1)
        if options.rounds > 1:
            if "tensors" in captures:
                answer["distinct_bytes"] = distinct_bytes(folder / "tensors")
                arms["write"] = partial(_write, folder / "tensors", folder / "written")
            answer["samples"] = alternate(arms, options.rounds)
        if options.keep:
            shutil.move(folder / "tensors", options.keep)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({**answer, "peak_mb": peak_mb()}))


if __name__ == "__main__":
    _child()
