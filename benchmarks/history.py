"""The benchmark of historical bugs: ``python -m benchmarks.history``. Real bugs of public libraries, a release with and one without.

Each bug has two virtual environments in ``benchmarks/.history``, made when missing, and a case in ``benchmarks/history_cases``: a tiny
model of the same weights in both. Golden is captured in the right release; then the wrong one is compared with it by README's recipe
(``capture --like golden`` and ``diff``) and by ``locate``. One case alone: ``python -m benchmarks.history --only mamba2``; all commands
and what they said are then in ``benchmarks/.history/runs/mamba2/log.txt``, beside the bundles and reports.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks.figures import machine
from benchmarks.history_catalogue import BUGS, Bug
from benchmarks.history_report import sums, table, wrong
from benchmarks.history_trial import run

_ABOUT = """Right: the module named first is where the fix was made. The same release on both sides must be cleared, a bug never."""


def main() -> int:
    options = _options()
    progress, console = Console(stderr=True), Console() if sys.stdout.isatty() else Console(width=200)
    began = time.monotonic()

    def say(doing: str) -> None:
        progress.print(f"{time.monotonic() - began:4.0f} s  {doing}", style="dim", highlight=False)

    trials = [run(bug, say) for bug in options.only]
    bugs = {bug.name: bug for bug in options.only}
    console.print(table(trials, bugs))
    summed, found = sums(trials), wrong(trials)
    for line in summed:
        console.print(line, highlight=False)
    console.print(_ABOUT, style="dim", highlight=False)
    for line in found:
        console.print(f"Not right: {line}", style="red", highlight=False, markup=False, soft_wrap=True)
    if options.json:
        content = {"machine": machine(), "sums": summed, "cases": [{**_entry(bugs[trial.bug]), **asdict(trial)} for trial in trials]}
        options.json.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 1 if found else 0


def _entry(bug: Bug) -> dict[str, object]:
    packages = {"right_packages": bug.right.packages, "wrong_packages": bug.wrong.packages}
    return {"what": bug.what, "fix": bug.fix, "places": bug.places, "maps": bug.maps, **packages}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", type=_chosen, default=BUGS, metavar="BUG,…", help=", ".join(bug.name for bug in BUGS))
    parser.add_argument("--json", type=Path, help="save every answer there")
    return parser.parse_args()


def _chosen(text: str) -> list[Bug]:
    names = [name.strip() for name in text.split(",")]
    if unknown := set(names) - {bug.name for bug in BUGS}:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(bug.name for bug in BUGS)}")
    return [bug for bug in BUGS if bug.name in names]


if __name__ == "__main__":
    sys.exit(main())
