"""What was measured: figures with their targets, as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks.timing import CLOCKS, ROOT

#: A trial, a pair or a baseline of a benchmark, as JSON holds it.
Entry = dict[str, Any]

_PACKAGES = (
    "accucompare",
    "numpy",
    "torch",
    "transformers",
    "openpyxl",
    "xxhash",
    "lxml",
    "isal",
    "zlib-ng",
)


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Attributes:
        section: the part of the benchmark that it belongs to.
        what: what was measured.
        unit: of the values; ``x`` for ratios.
        values: one a round, the first time not among them.
        target: what the median is to reach; ``None`` for what is measured only.
        first: the value of the first time in a process, if that was measured.
        clock: of ``timing.CLOCKS``; ``""`` for what is no time of a step.
        at_least: whether the median must reach the target instead of staying within it.
    """

    section: str
    what: str
    unit: str
    values: list[float]
    target: float | None = None
    first: float | None = None
    clock: str = ""
    at_least: bool = False

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.median >= self.target if self.at_least else self.median <= self.target


def clocked(
    section: str,
    what: str,
    samples: Sequence[Entry],
    plain: Sequence[Entry],
    targets: Mapping[str, float],
) -> list[Figure]:
    """The ratios to plain runs by each clock that both have; the first sample of each is apart.

    Args:
        section: the part of the benchmark.
        what: what the samples are of.
        samples: one a round, taken in turns with ``plain``.
        plain: what they are compared with.
        targets: by clock, what the median is to reach.
    """
    figures = []
    for clock in CLOCKS:
        if clock in samples[0] and clock in plain[0]:
            first, *each = (a[clock] / b[clock] for a, b in zip(samples, plain, strict=True))
            figures.append(Figure(section, what, "x", each, targets.get(clock), first, clock))
    return figures


def table(figures: Sequence[Figure], title: str) -> Table:
    """Medians, spread and targets, a block for each section."""
    numbers = ("median", "min – max", "first", "runs", "target", "met")
    result = grid(title, "", "what", "clock", *numbers, right=numbers)
    last = ""
    for figure in figures:
        if last and figure.section != last:
            result.add_section()
        sign = "≥" if figure.at_least else "≤"
        result.add_row(
            "" if figure.section == last else figure.section,
            figure.what,
            figure.clock,
            f"{number(figure.median)} {figure.unit}",
            spread(figure.values),
            "" if figure.first is None else number(figure.first),
            str(len(figure.values)),
            "" if figure.target is None else f"{sign} {figure.target:g}",
            {None: "", True: "[green]yes[/]", False: "[red]NO[/]"}[figure.met],
        )
        last = figure.section
    return result


def number(value: float) -> str:
    """With three digits at least."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def spread(values: Sequence[float]) -> str:
    """The smallest and the largest; nothing for a single value."""
    return f"{number(min(values))}–{number(max(values))}" if len(values) > 1 else ""


def grid(title: str, *columns: str, right: Sequence[str] | None = None) -> Table:
    """An empty table with these columns; those ``right`` names are numbers, all but the first if it
    is ``None``.
    """
    result = Table(title=title, title_justify="left", title_style="bold")
    for place, column in enumerate(columns):
        number = bool(place) if right is None else column in right
        result.add_column(column, justify="right" if number else "left", overflow="fold")
    return result


def rates(
    title: str,
    trials: Sequence[Entry],
    key: Callable[[Entry], str],
    columns: Sequence[str],
    cells: Callable[[Sequence[Entry]], list[str]],
) -> Table:
    """One line for each group of trials, and one for all.

    Args:
        title: of the table.
        trials: as the benchmark saves them.
        key: the name of a trial's group.
        columns: what is measured of a group.
        cells: measures it, in the order of the columns.
    """
    groups: dict[str, list[Entry]] = defaultdict(list)
    for trial in trials:
        groups[key(trial)].append(trial)
    result = grid(title, "", "faults", *columns)
    for name, group in [*sorted(groups.items()), ("all", trials)]:
        result.add_row(name, str(len(group)), *cells(group))
    return result


def save(
    path: Path, figures: Sequence[Figure], notes: Sequence[str], options: dict[str, Any]
) -> None:
    content = {
        "machine": machine(),
        "options": options,
        "notes": list(notes),
        "figures": [asdict(figure) for figure in figures],
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load(path: Path) -> tuple[dict[str, Any], list[Figure]]:
    """What ``save`` wrote, and its figures."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return content, [Figure(**each) for each in content["figures"]]


def machine() -> dict[str, Any]:
    """The machine, the versions and the moment."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
    }


def _field(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
