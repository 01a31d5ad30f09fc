"""The benchmark: ``python -m benchmarks.speed.bench``. Prints a table of medians and targets, and
saves everything as JSON. A whole run writes ``results.json``, of which docs/costs.md is made.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console

from benchmarks.figures import Figure, save, table
from benchmarks.speed import cost, costs_page, diff, merging, peers, startup
from benchmarks.speed.plan import FULL, QUICK, Plan
from benchmarks.timing import BenchError

_SECTIONS: dict[str, Callable[[Plan], Iterable[Figure]]] = {
    "capture": cost.measure_captures,
    "watch": cost.measure_watches,
    "diff": diff.measure,
    "merging": merging.measure,
    "startup": startup.measure,
    "peers": peers.measure,
}
_ABOUT = """Ratios compare what ran in turns, round by round. thread: the processor's time of the
thread that runs the model; process: of all threads; wall: by the clock. first: the first time in a
process."""


def main() -> int:
    options = _options()
    progress = Console(stderr=True)
    console = Console() if sys.stdout.isatty() else Console(width=160)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the data is then removed, too
    figures: list[Figure] = []
    failed = 0

    def say(text: str) -> None:
        progress.print(text, style="dim", highlight=False, markup=False)

    try:
        with tempfile.TemporaryDirectory(prefix="accucompare-bench-", dir=options.out) as folder:
            sizes = QUICK if options.quick else FULL
            plan = Plan(Path(folder), sizes, options.rounds, say)
            for name in options.only:
                try:
                    for figure in _SECTIONS[name](plan):
                        figures.append(figure)  # kept even if the section fails half way
                except BenchError as error:
                    failed += 1
                    plan.note(f"{name}: not measured: {error}")
                chosen = {
                    "sections": options.only,
                    "rounds": options.rounds,
                    "quick": options.quick,
                }
                save(options.json, figures, plan.notes, chosen)  # an hour's work must not be lost
    except KeyboardInterrupt:
        progress.print("interrupted; the data is removed", style="red")
        return 130
    console.print(table(figures, "accucompare benchmark" + ", --quick" * options.quick))
    console.print(_ABOUT, style="dim", highlight=False)
    for note in plan.notes:
        console.print(f"Note: {note}", highlight=False, markup=False)
    console.print(f"Everything is in {options.json}", highlight=False, soft_wrap=True)
    if options.json == costs_page.RESULTS:
        costs_page.write()
        console.print(f"The tables of {costs_page.PAGE} are made of it", soft_wrap=True)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.bench", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small data: shows in minutes that the benchmark works; no figures to quote",
    )
    parser.add_argument(
        "--only", metavar="SECTION,…", help=f"of {', '.join(_SECTIONS)}; default: all but peers"
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help=f"beside {peers.PEER}, installed in a virtual environment of its own",
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often after the first time; default: 3"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="where the data goes, 14 GB; removed afterwards; default: the temporary directory",
    )
    parser.add_argument(
        "--json", type=Path, help="default: results.json, of a part or --quick results-part.json"
    )
    options = parser.parse_args()
    whole = [name for name in _SECTIONS if name != "peers"]
    names = options.only.split(",") if options.only else whole
    if unknown := [name for name in names if name not in _SECTIONS]:
        parser.error(f"--only {','.join(unknown)}: the sections are {', '.join(_SECTIONS)}")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: must be at least 1")
    if options.out and not options.out.is_dir():
        parser.error(f"--out {options.out}: there is no such directory")
    part = options.quick or bool(options.only)
    options.only = [*names, "peers"] if options.peers and "peers" not in names else names
    default = costs_page.RESULTS.with_name("results-part.json") if part else costs_page.RESULTS
    options.json = options.json or default
    return options


if __name__ == "__main__":
    sys.exit(main())
