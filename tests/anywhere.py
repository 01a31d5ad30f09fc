"""The tests of numbers under each instruction set of this machine, and on several threads: ``python
-m tests.anywhere [SETTING...]``.

Sums are in another order there, and products of half types in another precision. ``make test`` runs
everything under the highest set alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent

#: What computes. The rest writes, reads and shows.
TESTS = (
    *(
        f"tests/{room}"
        for room in ("numbers", "compare", "live", "recorder", "watcher", "reproduce")
    ),
    "tests/test_locate.py",
    "tests/test_locate_proof.py",
    "tests/test_planted_faults.py",
    "tests/test_training_faults.py",
)

#: By name: what torch's own kernels and oneDNN's may use at most, and the flags that a processor
# needs for it.
SETS = {
    "lowest": ("default", "SSE41", ()),
    "avx2": ("avx2", "AVX2", ("avx2", "fma")),
    "avx512": ("avx512", "AVX512_CORE", ("avx512f", "avx512bw", "avx512dq", "avx512vl")),
    "avx512-bf16": (
        "avx512",
        "AVX512_CORE_BF16",
        ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16"),
    ),
}


def settings() -> dict[str, dict[str, str]]:
    """The variables of each run that this machine can make, by name."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    found = {
        name: {"ATEN_CPU_CAPABILITY": torchs, "ONEDNN_MAX_CPU_ISA": onednns, "OMP_NUM_THREADS": "1"}
        for name, (torchs, onednns, needed) in SETS.items()
        if flags.issuperset(needed)
    }
    return {**found, "highest": {"OMP_NUM_THREADS": "1"}, "four-threads": {"OMP_NUM_THREADS": "4"}}


def main() -> int:
    every = settings()
    unknown = [name for name in sys.argv[1:] if name not in every]
    if unknown:
        print(f"this machine has no {', '.join(unknown)}, but {', '.join(every)}")
        return 2
    failed = []
    for name in sys.argv[1:] or every:
        print(
            f"{name}: {' '.join(f'{key}={value}' for key, value in every[name].items())}",
            flush=True,
        )
        began = time.monotonic()
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "2",
            "--dist",
            "worksteal",
            "--show-capture=no",
            *TESTS,
        ]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", **every[name]}
        code = subprocess.run(command, cwd=ROOT, env=environment).returncode
        print(
            f"{name}: {'FAILED' if code else 'passed'} in {time.monotonic() - began:.0f} s\n",
            flush=True,
        )
        failed += [name] if code else []
    print(
        f"{torch.backends.cpu.get_cpu_capability()}: "
        + (f"failed under {', '.join(failed)}" if failed else "all passed")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
