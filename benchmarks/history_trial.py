"""One historical bug or refactor, tried: every command as a user types it, in a process of its own,
and what it said.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from accucompare.bundle.format.records import display_name
from benchmarks.history_catalogue import Bug, Found, Refactor
from benchmarks.history_environments import HOME, Environment
from benchmarks.history_plain import OF_A_BUG, OF_A_REFACTOR, first_difference
from benchmarks.timing import BenchError, process

DIFF, LOCATE, OTHER_PYTHON = "diff", "locate", "locate --golden-python"
CLEAN_DIFF, CLEAN_LOCATE = "diff, right release", "locate, right release"
METHODS = (DIFF, LOCATE, OTHER_PYTHON)
CLEAN = (CLEAN_DIFF, CLEAN_LOCATE)

_LIMIT = 600  # seconds a command may take


@dataclass(frozen=True)
class Said:
    """What a command answered.

    Attributes:
        code: its exit code.
        verdict: the line of its verdict, or of its error.
        named: what was named first: the module, the part of the step and the step; empty if none
            was.
        right: whether that is where the bug is; never of a refactor.
        command: what failed, where a command before it did.
    """

    code: int
    verdict: str
    named: str
    right: bool
    command: str


@dataclass(frozen=True)
class Trial:
    """What the commands answered for one bug or refactor, by method."""

    name: str
    said: dict[str, Said]
    error: str = ""


def run(pair: Bug | Refactor, say: Callable[[str], None]) -> Trial:
    """Run golden, the plain diff and ``locate``; for a bug also with golden's Python, and the same
    release against itself.
    """
    try:
        bench = _Bench(pair)
        say(f"{pair.name}: plain torch")
        bench.prove()
        say(f"{pair.name}: golden")
        bench.golden()
        said = {}
        for method, answer in bench.methods().items():
            say(f"{pair.name}: {method}")
            said[method] = answer()
    except BenchError as error:
        return Trial(pair.name, {}, str(error))
    return Trial(pair.name, said)


class _Bench:
    """The commands for one pair, in a folder of their own, which is kept for a look afterwards."""

    def __init__(self, pair: Bug | Refactor) -> None:
        self.pair = pair
        self.golden_target, self.candidate_target = pair.targets()
        self.folder = HOME / "runs" / pair.name
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def prove(self) -> None:
        """Compute both sides by plain torch: a bug must make a difference, first in its step, and a
        refactor none.
        """
        for environment, target, out, known in (
            (self.pair.environments[0], self.golden_target, "golden.pt", ()),
            (self.pair.environments[1], self.candidate_target, "candidate.pt", ("golden.pt",)),
        ):
            code, _, err = self._python(
                environment, "benchmarks.history_plain", target, out, *known
            )
            if code:
                raise BenchError(f"plain torch: ended with {code}\n{err[-3000:]}")
        apart = OF_A_REFACTOR if isinstance(self.pair, Refactor) else OF_A_BUG
        found = first_difference(self.folder / "golden.pt", self.folder / "candidate.pt", apart)
        if isinstance(self.pair, Refactor) and found:
            raise BenchError(f"no refactor: by plain torch, step {found[0]} differs in {found[1]}")
        if (
            isinstance(self.pair, Bug)
            and self.pair.step is not None
            and (found or (None,))[0] != self.pair.step
        ):
            raise BenchError(
                f"by plain torch the first difference is {found}, not in step {self.pair.step}"
            )

    def golden(self) -> None:
        baselines = ["--with-baseline", "float32"] if _knows("capture", "--with-baseline") else []
        code, out, err = self._run(
            self.pair.right,
            "capture",
            self.golden_target,
            "--save-state",
            *baselines,
            "--out",
            "golden",
        )
        if code:
            raise BenchError(f"golden: ended with {code}\n{(err or out)[-3000:]}")

    def methods(self) -> dict[str, Callable[[], Said]]:
        right, other = self.pair.environments
        methods = {
            DIFF: lambda: self._diff(other, "candidate"),
            LOCATE: lambda: self._locate(other, "locate"),
        }
        if isinstance(self.pair, Refactor):
            return methods
        if _knows("locate", "--golden-python"):
            methods[OTHER_PYTHON] = lambda: self._locate(
                other, "locate-python", "--golden-python", right.python
            )
        return methods | {
            CLEAN_DIFF: lambda: self._diff(right, "again"),
            CLEAN_LOCATE: lambda: self._locate(right, "locate-again"),
        }

    def _diff(self, environment: Environment, out: str) -> Said:
        """README's recipe: the same weights, inputs and seed, and a comparison."""
        capture = [
            "capture",
            self.candidate_target,
            "--like",
            "golden",
            *self._maps(environment, "capture"),
            "--out",
            out,
        ]
        code, said, err = self._run(environment, *capture)
        if code:
            return self._said(code, said, err, out, "capture --like golden")
        compare = [
            "diff",
            "golden",
            out,
            *self._maps(environment, "diff"),
            "--json",
            f"{out}.json",
            "--report",
            f"{out}.xlsx",
            "--quiet",
        ]
        return self._said(*self._run(environment, *compare), out)

    def _locate(self, environment: Environment, out: str, *options: str | Path) -> Said:
        command = [
            "locate",
            self.candidate_target,
            "--device",
            "cpu",
            "--golden",
            "golden",
            *options,
            *self._maps(environment, "locate"),
        ]
        files = ["--out", out, "--json", f"{out}.json", "--report", f"{out}.xlsx"]
        return self._said(*self._run(environment, *command, *files, "--quiet"), out)

    def _maps(self, environment: Environment, command: str) -> list[str]:
        same = isinstance(self.pair, Bug) and environment == self.pair.right
        if same or not _knows(command, "--map"):
            return []
        return [word for rule in self.pair.maps for word in ("--map", rule)]

    def _said(self, code: int, out: str, err: str, name: str, command: str = "") -> Said:
        lines = [line.strip() for line in (out.splitlines() or err.splitlines()) if line.strip()]
        try:
            found = first_named(
                json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
            )
        except FileNotFoundError:
            found = Found("")
        right = isinstance(self.pair, Bug) and self.pair.is_at(found)
        return Said(code, lines[0] if lines else "", str(found), right, command)

    def _run(self, environment: Environment, *words: str | Path) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of a command of our CLI, which are kept in
        ``log.txt``, too.
        """
        return self._python(environment, "accucompare", *words)

    def _python(
        self, environment: Environment, module: str, *words: str | Path
    ) -> tuple[int, str, str]:
        command = [str(word) for word in (environment.python, "-m", module, *words)]
        variables = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "COLUMNS": "400",
            "PYTHONWARNINGS": "ignore",
        }
        variables.pop("PYTHONPATH", None)  # the environment itself says what is imported
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=variables,
                capture_output=True,
                text=True,
                timeout=_LIMIT,
            )
        except subprocess.TimeoutExpired:
            raise BenchError(f"{' '.join(command)}: not done in {_LIMIT} s") from None
        with (self.folder / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}[{done.returncode}]\n\n")
        return done.returncode, done.stdout, done.stderr


def first_named(comparison: dict[str, Any]) -> Found:
    """What a comparison's JSON names first: the first culprit, or else the first row that
    differs."""
    if not comparison["culprits"]:
        return Found((comparison["first_divergence"] or "").partition(" ")[0])
    first = comparison["culprits"][0]
    row = comparison["rows"][first["row"] - 1] if first["row"] is not None else {}
    return Found(display_name(first["name"]), first["stage"], row.get("step"))


@cache
def _knows(command: str, option: str) -> bool:
    """Whether a command of this accucompare has an option."""
    return (
        option in process([sys.executable, "-m", "accucompare", command, "--help"]).output.split()
    )
