"""What the trials of historical bugs add up to: a table, sums, and what is not as it must be."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from benchmarks.history_catalogue import Bug
from benchmarks.history_trial import CLEAN, METHODS, Said, Trial


def table(trials: Iterable[Trial], bugs: dict[str, Bug]) -> Table:
    """One block a bug: what it is, what each command named and with which exit code."""
    result = Table(title="Historical bugs", title_justify="left", title_style="bold")
    for column in ("bug", "command", "exit", "named first", "says"):
        result.add_column(column, justify="right" if column == "exit" else "left", overflow="fold")
    for trial in trials:
        bug = bugs[trial.bug]
        releases = f"{bug.wrong.name} against {bug.right.name}"
        result.add_row(bug.name, Text(f"{releases}: {bug.what} ({bug.fix}); right: {', '.join(bug.places)}", "dim"), "", "", "")
        if trial.error:
            result.add_row("", "", "", "", Text(trial.error.splitlines()[0], "red"))
        for method, said in trial.said.items():
            before = f" ({said.command})" if said.command else ""
            good = clean(said) if method in CLEAN else said.right and said.code == 1
            result.add_row("", method, str(said.code), Text(said.named, "green" if good else "red"), said.verdict + before)
        result.add_section()
    return result


def sums(trials: list[Trial]) -> list[str]:
    """``diff names 5 of 8``, and the like for every command; how often a bug got exit 0; how many clean pairs were quiet."""
    tried = [trial for trial in trials if trial.said]
    lines = [
        f"{method} names {sum(trial.said[method].right for trial in tried)} of {len(tried)}"
        for method in METHODS
        if any(method in trial.said for trial in tried)
    ]
    lines.append(f"exit 0 for a bug: {len(all_clears(tried))} (must be 0)")
    quiet = sum(all(clean(trial.said[method]) for method in CLEAN) for trial in tried)
    lines.append(f"same release clean: {quiet} of {len(tried)}")
    return lines


def wrong(trials: list[Trial]) -> list[str]:
    """What must not be, one sentence each: a bug with exit 0, an alarm or trouble for a clean pair, a case that did not run."""
    found = [f"{trial.bug}: did not run: {trial.error}" for trial in trials if trial.error]
    found += [f"{name}, {method}: exit 0 for a bug" for name, method in all_clears(trials)]
    for trial in trials:
        loud = [method for method in CLEAN if method in trial.said and not clean(trial.said[method])]
        found += [f"{trial.bug}, {method}: exit {trial.said[method].code}: {trial.said[method].verdict}" for method in loud]
    return found


def all_clears(trials: Iterable[Trial]) -> list[tuple[str, str]]:
    """Bug and command where a bug got exit code 0."""
    return [(trial.bug, method) for trial in trials for method in METHODS if method in trial.said and not trial.said[method].code]


def clean(said: Said) -> bool:
    """Whether the same release on both sides was cleared."""
    return said.code == 0
