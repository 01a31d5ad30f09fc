"""What the trials add up to: tables of verdicts, by origin and by model and type, and every
trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from rich.table import Table
from rich.text import Text

from benchmarks.figures import grid
from benchmarks.origins_trial import ALARM, BESIDE, RAISES, RIGHT, SILENT, TOOLS, WRONG, Trial

_ORDER = (RIGHT, BESIDE, WRONG, SILENT, ALARM, RAISES)


def tables(trials: list[Trial]) -> Iterator[Table]:
    """The summaries."""
    planted, legal = (
        [trial for trial in trials if not trial.legal],
        [trial for trial in trials if trial.legal],
    )
    yield _verdicts("Planted origins: is the place named?", planted)
    yield _verdicts("Legal infinities and clean steps: is it silent?", legal)
    yield _rights("Planted origins named, and legal steps left alone, by model and type", trials)


def full(trials: Iterable[Trial]) -> Table:
    """One line a trial."""
    table = grid("Every trial", "model", "type", "origin", "right", *TOOLS, right=())
    for trial in trials:
        cells = [
            _colored(f"{said.verdict}: {said.place}" if said.place else said.verdict, trial, tool)
            for tool, said in trial.said.items()
        ]
        row = [
            trial.model,
            trial.dtype,
            trial.origin,
            f"not tried: {trial.skipped}" if trial.skipped else trial.right,
        ]
        table.add_row(*row, *cells, *[""] * (len(TOOLS) - len(cells)))
    return table


def wrong(trials: Iterable[Trial]) -> list[str]:
    """One line for each trial of which the watch does not say what is right."""
    return [
        f"{trial.model}, {trial.dtype}, {trial.origin}:"
        f" {said.verdict}{': ' if said.place else ''}{said.place}; right: {trial.right}"
        for trial in trials
        if (said := trial.said.get("watch")) and not said.is_right(trial.legal)
    ]


def _verdicts(title: str, trials: list[Trial]) -> Table:
    table = grid(title, "", "trials", *TOOLS, "not tried", right=("trials",))
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.origin, []).append(trial)
    for name, group in groups.items():
        left = [trial.skipped for trial in group if trial.skipped]
        table.add_row(
            name,
            *_row(group, True),
            f"{len(left)}: {', '.join(dict.fromkeys(left))}" if left else "",
        )
    table.add_section()
    table.add_row("all", *_row(trials, False), f"{sum(bool(trial.skipped) for trial in trials)}")
    return table


def _row(group: list[Trial], examples: bool) -> list[str | Text]:
    tried = [trial for trial in group if trial.said]
    cells: list[str | Text] = [str(len(tried))]
    for tool in TOOLS:
        count = Counter(trial.said[tool].verdict for trial in tried)
        words = ", ".join(f"{count[verdict]} {verdict}" for verdict in _ORDER if count[verdict])
        places = [
            trial.said[tool].place for trial in tried if trial.said[tool].verdict in (WRONG, ALARM)
        ]
        example = f", such as {places[0].partition(' [')[0][:50]}" if places and examples else ""
        good = all(trial.said[tool].is_right(trial.legal) for trial in tried)
        cells.append(Text(words + example, "green" if good else "red"))
    return cells


def _rights(title: str, trials: list[Trial]) -> Table:
    table = grid(title, "", *TOOLS, right=tuple(TOOLS))
    for name in dict.fromkeys(f"{trial.model}, {trial.dtype}" for trial in trials):
        group = [
            trial for trial in trials if trial.said and name == f"{trial.model}, {trial.dtype}"
        ]
        cells = [
            f"{sum(trial.said[tool].is_right(trial.legal) for trial in group)} of {len(group)}"
            for tool in TOOLS
        ]
        table.add_row(name, *cells)
    return table


def _colored(words: str, trial: Trial, tool: str) -> Text:
    return Text(words, "green" if trial.said[tool].is_right(trial.legal) else "red")
