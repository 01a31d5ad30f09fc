"""Writes the dumps beside it, with msprobe itself.

    pip install mindstudio-probe==26.2.0 torch==2.13.0 transformers==5.23.0
    cd tests/data/msprobe && OMP_NUM_THREADS=1 python make.py tensor L0 tensor 1 && python make.py
    statistics mix statistics 2

Then ``stack.json`` is removed, which names the files of the machine it ran on and is not read.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from model import build, tokens, train  # tests/data/msprobe/model.py
from msprobe.pytorch import PrecisionDebugger


def main(task: str, level: str, out: str, steps: int) -> None:
    settings = {"task": task, "dump_path": out, "rank": [], "step": [], "level": level}
    settings[task] = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder) / "config.json"
        configuration.write_text(json.dumps(settings))
        debugger = PrecisionDebugger(config_path=str(configuration))
    model = build()
    train(
        model,
        tokens(),
        steps,
        before=lambda: debugger.start(model=model),
        between=debugger.stop,
        after=debugger.step,
    )
    for stack in Path(out).rglob("stack.json"):
        stack.unlink()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
