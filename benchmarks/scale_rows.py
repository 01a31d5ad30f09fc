"""How a diff grows with its records, from ten thousand to more than a million: ``python -m
benchmarks.scale_rows``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.scale_bundles import blocks_for, fault_of, write_bundles

#: Ranks, and records of each. The last is what the targets are about.
SIZES = ((1, 10_000), (3, 10_000), (10, 10_000), (32, 10_000), (64, 20_000))
_MOST_SECONDS, _MOST_BYTES, _GROWTH = 90.0, 2 << 30, 0.15


@dataclass(frozen=True)
class Run:
    """One ``accucompare diff`` in a process of its own: seconds, of all its processors together,
    and its largest resident size in bytes.
    """

    seconds: float
    processor: float
    resident: int


def main() -> int:
    """Print the curve, and the targets that are missed."""
    console = Console(width=140)
    table = Table("records of a side", "diff s", "µs a record", "with workbook s", "MB", "culprit")
    missed = []
    costs = []
    startup = _diff_of_nothing()
    for ranks, records in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            golden, candidate, written = write_bundles(Path(folder), ranks, records)
            alone, place = diff_command(golden, candidate, "none")
            whole, _ = diff_command(golden, candidate, str(Path(folder, "report.xlsx")))
        costs.append((alone.seconds - startup) / written * 1e6)
        right = place.startswith(fault_of(ranks, blocks_for(records)).name)
        size = f"{ranks} x {written // ranks:,}"
        table.add_row(
            size,
            f"{alone.seconds:.1f}",
            f"{costs[-1]:.0f}",
            f"{whole.seconds:.1f}",
            f"{whole.resident >> 20:,}",
            "right" if right else place,
        )
        missed += [] if right else [f"the planted fault of {size} is not named"]
        console.print(
            f"{size}: {alone.seconds:.1f} s, with the workbook {whole.seconds:.1f} s,"
            f" {whole.resident >> 20:,} MB"
        )
    console.print(table)
    if whole.seconds > _MOST_SECONDS:
        missed.append(
            f"{size} with the workbook takes {whole.seconds:.0f} s, not {_MOST_SECONDS:.0f}"
        )
    if whole.resident > _MOST_BYTES:
        missed.append(f"{size} takes {whole.resident >> 20:,} MB, not {_MOST_BYTES >> 20:,}")
    if not costs[0] * (1 - _GROWTH) <= costs[-1] <= costs[0] * (1 + _GROWTH):
        missed.append(
            f"a record takes {costs[-1]:.0f} µs there, and {costs[0]:.0f} µs of {SIZES[0][1]:,}:"
            f" not within {_GROWTH:.0%}"
        )
    for each in missed:
        console.print(f"missed: {each}")
    return 1 if missed else 0


def _diff_of_nothing() -> float:
    """Seconds that the command takes to start."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "accucompare", "diff", "--help"],
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - start


def diff_command(golden: Path, candidate: Path, report: str) -> tuple[Run, str]:
    """A diff, and the place that it names first."""
    paths = [str(golden), str(candidate), "--report", report]
    command = [sys.executable, "-m", "accucompare", "diff", *paths, "--quiet"]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 1:
        raise SystemExit(
            f"a diff of bundles with a planted fault ends with {process.returncode}: {said}"
        )
    return (
        Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10),
        said.partition("first divergence: ")[2].strip(),
    )


if __name__ == "__main__":
    sys.exit(main())
