"""GPT-2 dumped by msprobe; run by the Python that has it: ``python -m benchmarks.speed.peer_dump
FOLDER …``.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.speed import gpt2
from benchmarks.speed.data import bytes_in
from benchmarks.speed.gpt2 import build, disturb, forward, plain, tokens
from benchmarks.timing import Sample, alternate, peak_mb


def main() -> None:
    parser = gpt2.parser()
    parser.add_argument("--threads", type=int)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--disturbed", action="store_true")
    options = parser.parse_args()

    import torch

    torch.set_num_threads(options.threads)
    undumped, dumped = (
        build(options.layers),
        build(options.layers),
    )  # its hooks stay on a model, so the plain forward has another
    if options.disturbed:
        disturb(dumped)
    inputs = tokens(options.batch, options.length)
    folder = options.folder
    folder.mkdir(parents=True)
    config = folder / "config.json"
    settings = {
        "task": "tensor",
        "level": "L0",
        "dump_path": str(folder / "dump"),
        "rank": [],
        "step": [],
        "tensor": {"data_mode": ["all"]},
    }
    config.write_text(json.dumps(settings))
    debugger = importlib.import_module("msprobe.pytorch").PrecisionDebugger(config_path=str(config))
    step = 0

    def dump() -> Sample:
        nonlocal step
        shutil.rmtree(folder / "dump" / f"step{step - 1}", ignore_errors=True)
        os.sync()
        began = time.perf_counter()
        debugger.start(model=dumped)
        seconds = forward(dumped, inputs)["forward"]
        debugger.stop()
        debugger.step()
        whole = time.perf_counter() - began
        step += 1
        return {
            "forward": seconds,
            "whole": whole,
            "bytes": bytes_in(folder / "dump" / f"step{step - 1}"),
        }

    arms: dict[str, Callable[[], Sample]] = {
        "plain": partial(plain, undumped, inputs),
        "dump": dump,
    }
    if options.rounds > 1:
        alternate(arms, 1)
    samples = alternate(arms, options.rounds)
    if options.keep:
        shutil.move(folder / "dump" / f"step{step - 1}", options.keep)
    shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"samples": samples, "peak_mb": peak_mb()}))


if __name__ == "__main__":
    main()
