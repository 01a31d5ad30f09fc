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

from benchmarks.speed.cost import parser, timed
from benchmarks.speed.models import WORKS, Size, disturb
from benchmarks.timing import Sample, alternate, clocks, since


def main() -> None:
    options = parser().parse_args()

    import torch

    torch.set_num_threads(1)
    size = Size(options.batch, options.length, options.layers, options.linears)
    # its hooks stay on a model, so the plain forward has another
    undumped, dumped = (WORKS[options.work](size) for _ in range(2))
    if options.disturbed:
        disturb(dumped.model)
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
        debugger.start(model=dumped.model)
        within = clocks()
        dumped.step()
        taken = since(within, 1)
        debugger.stop()
        debugger.step()
        whole = time.perf_counter() - began
        step += 1
        return {**taken, "after": whole - taken["wall"]}

    arms: dict[str, Callable[[], Sample]] = {"plain": partial(timed, undumped), "dump": dump}
    samples = alternate(arms, 1 + options.rounds)
    if options.keep:
        shutil.move(folder / "dump" / f"step{step - 1}", options.keep)
    shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(samples))


if __name__ == "__main__":
    main()
