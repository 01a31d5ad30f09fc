"""The benchmark: ``python -m benchmarks.speed.bench``. Prints a table of medians and targets and
saves everything as JSON.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console

from benchmarks.figures import Figure, machine, save, table
from benchmarks.speed import capture, diff, page, peers, report, startup, training, watch
from benchmarks.speed.plan import FULL, QUICK, Features, Plan
from benchmarks.timing import BenchError

SECTIONS: dict[str, Callable[[Plan], Iterable[Figure]]] = {
    "diff": diff.measure,
    "capture": capture.measure,
    "training": training.measure,
    "watch": watch.measure,
    "startup": startup.measure,
    "report": report.measure,
    "page": page.measure,
    "peers": peers.measure,
}
_ABOUT = """Ratios compare what ran in turns, round by round. cat: cat of the same files to /dev/null, as a process. diff: the call, in a
fresh process, without start-up and report. Peak memory of diff and report: over that of Python with NumPy imported."""


def main() -> int:
    options = _options()
    progress = Console(stderr=True)
    console = Console() if sys.stdout.isatty() else Console(width=130)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the data is removed then too
    figures: list[Figure] = []
    failed = 0
    try:
        with tempfile.TemporaryDirectory(prefix="accucompare-bench-", dir=options.out) as folder:
            sizes = QUICK if options.quick else FULL
            plan = Plan(
                Path(folder),
                sizes,
                options.rounds,
                Features.find(),
                lambda text: progress.print(text, style="dim", highlight=False, markup=False),
            )
            for name in options.only:
                try:
                    for figure in SECTIONS[name](plan):
                        figures.append(
                            figure
                        )  # one by one: those of a section that fails half way are kept
                except BenchError as error:
                    failed += 1
                    plan.note(f"{name}: not measured: {error}")
                chosen = {
                    "sections": options.only,
                    "rounds": options.rounds,
                    "quick": options.quick,
                }
                save(
                    options.json, figures, plan.notes, chosen
                )  # after each section: what took an hour must not be lost
    except BenchError as error:
        progress.print(f"benchmark: {error}", style="red", highlight=False, markup=False)
        return 2
    except KeyboardInterrupt:
        progress.print("interrupted; the data is removed", style="red")
        return 130
    if figures:
        console.print(
            table(
                figures,
                "accucompare benchmark"
                + (", --quick: small data, try-out only" if options.quick else ""),
            )
        )
    console.print(_ABOUT, style="dim", highlight=False)
    about = machine()
    console.print(
        f"{about['date']}: {about['cpu']}, {about['cores']} cores, {about['memory_gb']} GB,"
        f" {about['kernel']}, Python {about['python']}, load average"
        f" {about['load_average'][0]:.1f}",
        style="dim",
        highlight=False,
    )
    for note in plan.notes:
        console.print(f"Note: {note}", highlight=False, markup=False)
    console.print(f"Everything is in {options.json}", highlight=False, soft_wrap=True)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.bench", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small data: shows in minutes that the benchmark works; no figures to quote",
    )
    parser.add_argument(
        "--only", metavar="SECTION,…", help=f"of {', '.join(SECTIONS)}; default: all but peers"
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help=f"beside {peers.PEER}, installed in a virtual environment of its own",
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="how often everything is measured; default: 5"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="where the data goes, 10 GB; removed afterwards; default: the temporary directory",
    )
    parser.add_argument(
        "--json", type=Path, help="default: benchmarks/results.json, or results-quick.json"
    )
    options = parser.parse_args()
    names = (
        options.only.split(",") if options.only else [name for name in SECTIONS if name != "peers"]
    )
    names += ["peers"] if options.peers and "peers" not in names else []
    if unknown := [name for name in names if name not in SECTIONS]:
        parser.error(f"--only {','.join(unknown)}: the sections are {', '.join(SECTIONS)}")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: must be at least 1")
    if options.out and not options.out.is_dir():
        parser.error(f"--out {options.out}: there is no such directory")
    options.only = names
    options.json = options.json or Path(__file__).with_name(
        "results-quick.json" if options.quick else "results.json"
    )
    return options


if __name__ == "__main__":
    sys.exit(main())
