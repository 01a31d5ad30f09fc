"""What the trials add up to: tables by kind of fault and by layout, and every trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from rich.table import Table

from benchmarks.figures import grid
from benchmarks.ranks_trial import CleanPair, Trial

#: The share of visible faults of which module and rank are named: of all, and of real ones.
_TARGET, _TARGET_OF_REAL, _TARGET_FED = 0.95, 0.9, 0.97
_TITLE = "Planted faults: are module, part of the step and rank named first?"
_COLUMNS = (
    "trials",
    "visible",
    "module",
    "module and rank",
    "%",
    "first over its limit",
    "rank by rank",
    "fed",
)


def tables(trials: list[Trial], pairs: list[CleanPair], full: bool) -> Iterator[Table]:
    yield _rights(trials, "by kind", _kind)
    yield _rights(trials, "by layout", lambda trial: trial.fault.layout)
    yield _rights(trials, "by fault", lambda trial: trial.fault.name)
    yield _clean(pairs)
    if full:
        yield _every(trials)


def missed(trials: list[Trial], pairs: list[CleanPair]) -> list[str]:
    """One line for each trial that is not right, and each clean pair that is not silent."""
    lines = []
    for trial in trials:
        for fed, each, verdict in (
            ("", trial, trial.verdict),
            ("fed, ", trial.fed, trial.fed_verdict),
        ):
            if each is not None and verdict not in ("right", "invisible"):
                said = each.error or f"{each.answer}, {each.named or 'nothing'}, ranks {each.ranks}"
                lines.append(f"{fed}{verdict}: {trial.fault}: {said} {'; '.join(each.remarks)}")
    for pair in pairs:
        if pair.alarm:
            said = pair.error or f"{pair.answer}: {len(pair.alarms)} rows: {pair.alarms[:3]}"
            lines.append(f"alarm: {pair.setup}: {said}")
        elif pair.exit_code:
            lines.append(f"not sure: {pair.setup}")
    return lines


def unmet(trials: list[Trial], pairs: list[CleanPair]) -> list[str]:
    """The targets that are not reached."""
    found = []
    seen = [trial for trial in trials if trial.verdict != "invisible"]
    real = [trial for trial in seen if trial.fault.real is not None]
    for what, least, told in (
        ("all", _TARGET, [trial.verdict for trial in seen]),
        ("real bugs", _TARGET_OF_REAL, [trial.verdict for trial in real]),
        ("fed", _TARGET_FED, [trial.fed_verdict for trial in seen]),
    ):
        right = told.count("right")
        if right < least * len(told):
            found.append(f"{what}: {right} of {len(told)} named, target {least:.0%}")
    if alarms := sum(pair.alarm for pair in pairs):
        found.append(f"{alarms} alarms of {len(pairs)} trainings without a fault, target 0")
    return found


def as_json(trials: list[Trial], pairs: list[CleanPair]) -> dict[str, Any]:
    return {
        "trials": [
            {
                **{
                    name: value
                    for name, value in vars(trial).items()
                    if name not in ("fault", "fed")
                },
                "fault": str(trial.fault),
                "kind": _kind(trial),
                "real": trial.fault.real,
                "verdict": trial.verdict,
                "fed": trial.fed_verdict,
            }
            for trial in trials
        ],
        "pairs": [asdict(pair) for pair in pairs],
    }


def _kind(trial: Trial) -> str:
    if trial.fault.arithmetic:
        return "arithmetic of one rank"
    return "real bugs" if trial.fault.real is not None else "layout and loop"


def _rights(trials: list[Trial], by: str, key: Callable[[Trial], str]) -> Table:
    table = grid(f"{_TITLE} ({by})", "", *_COLUMNS)
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(key(trial), []).append(trial)
    for name, group in groups.items():
        table.add_row(name, *_cells(group))
    table.add_section()
    table.add_row("all", *_cells(trials))
    return table


def _cells(group: list[Trial]) -> list[str]:
    seen = [trial for trial in group if trial.verdict != "invisible"]
    right = sum(trial.verdict == "right" for trial in seen)
    return [
        str(len(group)),
        str(len(seen)),
        str(sum(trial.module for trial in seen)),
        str(right),
        f"{100 * right / len(seen):.0f}" if seen else "",
        str(sum(trial.unified_right for trial in seen)),
        str(sum(trial.naive_right for trial in seen)),
        str(sum(trial.fed_verdict == "right" for trial in seen)),
    ]


def _clean(pairs: list[CleanPair]) -> Table:
    table = grid(
        "Trainings without a fault",
        "",
        "pairs",
        "rows compared",
        "not compared",
        "not sure",
        "alarms",
    )
    groups: dict[str, list[CleanPair]] = {}
    for pair in pairs:
        groups.setdefault(f"{pair.setup.layout}, {pair.setup.dtype}", []).append(pair)
    for name, group in (*groups.items(), ("all", pairs)):
        if name == "all":
            table.add_section()
        table.add_row(
            name,
            str(len(group)),
            str(sum(pair.rows for pair in group)),
            str(sum(pair.uncompared for pair in group)),
            str(sum(pair.exit_code == 2 for pair in group)),
            str(sum(pair.alarm for pair in group)),
        )
    return table


def _every(trials: list[Trial]) -> Table:
    table = grid("Every trial", "fault", "verdict", "named", "ranks", "rank by rank", right=())
    for trial in trials:
        ranks = ", ".join(map(str, trial.ranks))
        table.add_row(str(trial.fault), trial.verdict, trial.named, ranks, trial.naive)
    return table
