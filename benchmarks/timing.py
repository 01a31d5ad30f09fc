"""Running what is measured, each time in a process of its own, and in turns, so that a busy minute
hits every side alike.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MB = 1e6

#: Time of the thread that runs the model, of its whole process, and by the clock on the wall.
CLOCKS = {"thread": time.thread_time, "process": time.process_time, "wall": time.perf_counter}

Sample = dict[str, Any]
Argument = str | Path | int


class BenchError(Exception):
    """Something could not be measured; the message says what and why."""


@dataclass(frozen=True)
class Finished:
    """A process that has ended.

    Attributes:
        seconds: from before it was started until it was reaped.
        processor: seconds of all its processors together.
        peak_mb: the largest resident size of it or of any process that it waited for.
        output: its standard output.
    """

    seconds: float
    processor: float
    peak_mb: float
    output: str


def process(
    command: Sequence[str | Path],
    *,
    codes: Sequence[int] = (0,),
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """Run a command in the repository's root and wait for it.

    Raises:
        BenchError: with the end of its standard error, if it ends with a code that is not in
            ``codes``.
    """
    words = [str(word) for word in command]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.perf_counter()
        child = subprocess.Popen(
            words,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:  # Ctrl-C does not reach the child: it has a session of its own
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
        seconds = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in codes:
            raise BenchError(
                f"{' '.join(words)[:300]}: ended with"
                f" {child.returncode}\n{_text(err)[-3000:].strip()}"
            )
        return Finished(
            seconds,
            usage.ru_utime + usage.ru_stime,
            usage.ru_maxrss / (MB if sys.platform == "darwin" else 1e3),
            _text(out),
        )


def child(
    module: str,
    *arguments: Argument,
    python: str | Path = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> Sample:
    """Run ``python -m module`` and give the JSON object of its last line of output."""
    finished = process([python, "-m", module, *map(str, arguments)], environment=environment)
    lines = finished.output.strip().splitlines()
    try:
        answer: Sample = json.loads(lines[-1])
    except (IndexError, ValueError):
        raise BenchError(
            f"python -m {module}: gave no figures but {finished.output[-500:]!r}"
        ) from None
    return answer


def alternate(arms: Mapping[str, Callable[[], Sample]], rounds: int) -> dict[str, list[Sample]]:
    """Run every arm once a round: A B A B. Sample i of one arm and of another were taken one after
    the other.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, run in arms.items():
            samples[name].append(run())
    return samples


def clocks() -> Sample:
    """What each clock says, once a GPU has done what it was told to."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()
    return {name: clock() for name, clock in CLOCKS.items()}


def since(began: Sample, steps: int) -> Sample:
    """The seconds of a step by each clock."""
    return {name: (now - began[name]) / steps for name, now in clocks().items()}


def column(samples: list[Sample], key: str) -> list[float]:
    return [float(sample[key]) for sample in samples]


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """One ratio a round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def peak_mb() -> float:
    """The largest resident size that this process has had.

    From /proc where there is one: there it is the program's own, while getrusage counts what the
    parent had at the fork."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        MB if sys.platform == "darwin" else 1e3
    )


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))
