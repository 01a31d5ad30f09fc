"""The benchmark of scale: ``python -m benchmarks.scale``. Its parts are independent; ``--only`` chooses some."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module

from rich.console import Console

#: The parts, each a module with ``run(console)``, which prints what it measures and returns the targets that are missed.
PARTS = {
    "rows": "benchmarks.scale_rows",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    console = Console(width=140)
    missed: list[str] = []
    for part in parser.parse_args().only:
        console.rule(part)
        run: Callable[[Console], list[str]] = import_module(PARTS[part]).run
        missed += run(console)
    for each in missed:
        console.print(f"missed: {each}")
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
