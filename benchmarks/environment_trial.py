"""Faults that no Python file shows: in some environments the same code computes something else, and
so does a baseline made there.

Golden is captured where the operator's kernel is right. Then ``locate`` runs where it is wrong: its
baseline, made of the same files beside the candidate, has the fault, too. Right: the module with
the operator is the first culprit, and the exit code is 1.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.figures import grid
from benchmarks.timing import ROOT, process
from planted import environment_case

CASE = Path(environment_case.__file__)

#: In what candidates compute.
SETUPS = ("bfloat16", "float32")

#: What says which kernel is computed.
KINDS = ("environment variable", "library built otherwise", "file read at run time")

#: The only way to ask: what a user types.
METHODS = ("locate",)

Found = dict[str, list[dict[str, Any]]]

_LIMIT = 600  # seconds a command may take


@dataclass
class Trial:
    """What ``locate`` said of one fault, or of none: ``kernel`` 0.

    Attributes:
        code: its exit code.
        named: the module named first.
        verdict: its first line.
    """

    kind: str
    setup: str
    kernel: int
    code: int
    named: str
    verdict: str

    @property
    def right(self) -> bool:
        return (
            self.code == 0
            if not self.kernel
            else (self.code, self.named) == (1, environment_case.PLACE)
        )

    def __str__(self) -> str:
        fault = environment_case.KERNELS.get(self.kernel, "no fault")
        return (
            f"{self.kind}, {self.setup}: {fault}: exit {self.code}, named"
            f" {self.named or 'nothing'}: {self.verdict}"
        )


class Bench:
    """The libraries, golden, and ``locate`` in environments with and without a fault."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.library, self.flag = folder / "libgate.so", folder / "kernel.txt"
        self.flag.write_text("0", encoding="utf-8")
        self._build(0)
        code, out = self._run({}, "capture", CASE, "--save-state", "--out", "golden")
        if code:
            raise RuntimeError(f"golden: ended with {code}\n{out}")

    def try_fault(self, kind: str, setup: str, kernel: int) -> Trial:
        """``locate`` where ``kind`` says that ``kernel`` is computed."""
        self.flag.write_text(str(kernel if kind == KINDS[2] else 0), encoding="utf-8")
        self._build(kernel if kind == KINDS[1] else 0)
        variables = {"PLANTED_KERNEL": str(kernel)} if kind == KINDS[0] else {}
        options = [
            "--device",
            "cpu",
            "--dtype",
            setup,
            "--golden",
            "golden",
            "--out",
            "locate",
            "--overwrite",
            "--quiet",
        ]
        answer = self.folder / "answer.json"
        answer.unlink(missing_ok=True)
        code, out = self._run(variables, "locate", CASE, *options, "--json", answer.name)
        culprits = (
            json.loads(answer.read_text(encoding="utf-8"))["culprits"] if answer.exists() else []
        )
        return Trial(
            kind,
            setup,
            kernel,
            code,
            culprits[0]["name"] if culprits else "",
            next(iter(out.splitlines()), "")[:300],
        )

    def _build(self, kernel: int) -> None:
        source = self.folder / "gate.c"
        source.write_text(environment_case.SOURCE, encoding="utf-8")
        process(["cc", "-O1", "-shared", "-fPIC", f"-DKERNEL={kernel}", source, "-o", self.library])

    def _run(self, variables: dict[str, str], *words: str | Path) -> tuple[int, str]:
        told = {
            "PLANTED_LIBRARY": str(self.library),
            "PLANTED_FLAG": str(self.flag),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "400",
        }
        known = {
            name: value for name, value in os.environ.items() if not name.startswith("PLANTED_")
        }
        command = [sys.executable, "-m", "accucompare", *map(str, words)]
        environment = {**known, **told, "PYTHONPATH": str(ROOT), **variables}
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_LIMIT,
        )
        return done.returncode, done.stdout or done.stderr


def run(kind: str, setup: str, most: int, pairs: bool) -> dict[str, list[dict[str, Any]]]:
    """A number of kernels chosen in one way, in one setup: ``trials``, and ``pairs`` with the right
    one.
    """
    with tempfile.TemporaryDirectory(prefix="accucompare-environment-") as folder:
        bench = Bench(Path(folder))
        trials = [
            bench.try_fault(kind, setup, kernel) for kernel in list(environment_case.KERNELS)[:most]
        ]
        free = [bench.try_fault(kind, setup, 0)] if pairs else []
    return {"trials": [_entry(each) for each in trials], "pairs": [_entry(each) for each in free]}


def tables(found: Found) -> Iterator[Table]:
    """How often the operator's module was named first, and how often a candidate without a fault
    was cleared.
    """
    result = grid(
        "Faults of the environment, which the baseline has, too: named first", "", *SETUPS
    )
    for kind in KINDS:
        result.add_row(
            kind,
            *(
                _share(
                    each
                    for each in found["trials"]
                    if (each["kind"], each["setup"]) == (kind, setup)
                )
                for setup in SETUPS
            ),
        )
    result.add_row(
        "no fault: cleared",
        *(_share(each for each in found["pairs"] if each["setup"] == setup) for setup in SETUPS),
    )
    yield result


def missed(found: Found, method: str) -> Iterator[str]:
    """One line for each fault that was not named first."""
    return (each["text"] for each in found["trials"] if not each["right"])


def judge(found: Found) -> list[str]:
    """One sentence for each wrong answer."""
    return [each["text"] for part in found.values() for each in part if not each["right"]]


def _entry(trial: Trial) -> dict[str, Any]:
    return {**asdict(trial), "right": trial.right, "text": str(trial)}


def _share(trials: Iterable[dict[str, Any]]) -> str:
    right = [each["right"] for each in trials]
    return f"{sum(right)} of {len(right)}"
