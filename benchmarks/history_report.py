"""What the trials of historical bugs add up to: a table, sums, and what went wrong."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from benchmarks.history_catalogue import Bug, Refactor
from benchmarks.history_trial import CLEAN, DIFF, LOCATE, METHODS, Said, Trial

#: The share of bugs that a method must name right, and of refactors that it must clear.
NAMED, CLEARED = 0.95, 11 / 12

Pairs = dict[str, Bug | Refactor]


def table(trials: Iterable[Trial], pairs: Pairs) -> Table:
    """One block a pair: what it is, what each command named and with which exit code."""
    result = Table(title="Historical bugs and refactors", title_justify="left", title_style="bold")
    for column in ("pair", "command", "exit", "named first", "says"):
        result.add_column(column, justify="right" if column == "exit" else "left", overflow="fold")
    for trial in trials:
        pair = pairs[trial.name]
        right, other = pair.environments
        about = f"{other.name} against {right.name}: {pair.what}"
        if isinstance(pair, Bug):
            about += f" ({pair.fix}); right: {expected(pair)}"
        result.add_row(pair.name, Text(about, "dim"), "", "", "")
        if trial.error:
            result.add_row("", "", "", "", Text(trial.error.splitlines()[0], "red"))
        for method, said in trial.said.items():
            before = f" ({said.command})" if said.command else ""
            to_clear = method in CLEAN or isinstance(pair, Refactor)
            good = clean(said) if to_clear else said.right and said.code == 1
            result.add_row(
                "",
                method,
                str(said.code),
                Text(said.named, "green" if good else "red"),
                said.verdict + before,
            )
        result.add_section()
    return result


def expected(bug: Bug) -> str:
    """Where a bug is, in words."""
    stages = f"; {' or '.join(bug.stages)}" if bug.stages else ""
    return ", ".join(bug.places) + stages + ("" if bug.step is None else f"; step {bug.step}")


def sums(trials: list[Trial], pairs: Pairs) -> list[str]:
    """``diff names 5 of 8``, and the like for every command; how often a bug got exit 0; how many
    clean pairs were quiet.
    """
    bugs, refactors = _tried(trials, pairs)
    lines = [
        f"{method} names {sum(trial.said[method].right for trial in bugs)} of {len(bugs)}"
        for method in METHODS
        if any(method in trial.said for trial in bugs)
    ]
    lines.append(f"exit 0 for a bug: {len(all_clears(bugs))} (must be 0)")
    quiet = sum(all(clean(trial.said[method]) for method in CLEAN) for trial in bugs)
    lines.append(f"same release clean: {quiet} of {len(bugs)}")
    lines += [
        f"{method} clears {_cleared(refactors, method)} of {len(refactors)} refactors"
        for method in (DIFF, LOCATE)
        if refactors
    ]
    return lines


def wrong(trials: list[Trial], pairs: Pairs) -> list[str]:
    """One sentence for each failure: a bug with exit 0 or named elsewhere, an alarm or trouble for
    a clean pair, a command that did not run.
    """
    bugs, refactors = _tried(trials, pairs)
    found = [f"{trial.name}: did not run: {trial.error}" for trial in trials if trial.error]
    found += [f"{name}, {method}: exit 0 for a bug" for name, method in all_clears(bugs)]
    for trial in bugs:
        loud = [
            method for method in CLEAN if method in trial.said and not clean(trial.said[method])
        ]
        found += [
            f"{trial.name}, {method}: exit {trial.said[method].code}: {trial.said[method].verdict}"
            for method in loud
        ]
    for trial in bugs:
        said = trial.said.get(LOCATE)
        if said is not None and said.code and not said.right:
            found.append(f"{trial.name}, {LOCATE}: names {said.named or 'nothing'}: {said.verdict}")
    for trial in refactors:
        loud = [method for method, said in trial.said.items() if not clean(said)]
        found += [
            f"{trial.name}, {method}: exit {trial.said[method].code}: {trial.said[method].verdict}"
            for method in loud
        ]
    return found


def missed(trials: list[Trial], pairs: Pairs) -> list[str]:
    """The targets that were missed, one sentence each."""
    bugs, refactors = _tried(trials, pairs)
    found = [f"{trial.name} did not run" for trial in trials if trial.error]
    named = sum(trial.said[LOCATE].right for trial in bugs)
    if named < NAMED * len(bugs):
        found.append(f"{LOCATE} names {named} of {len(bugs)}: less than {NAMED:.0%}")
    if cleared := all_clears(bugs):
        found.append(f"exit 0 for a bug: {len(cleared)}")
    if loud := [
        trial.name for trial in bugs if not all(clean(trial.said[method]) for method in CLEAN)
    ]:
        found.append(f"the same release is not clean: {', '.join(loud)}")
    if (quiet := _cleared(refactors, LOCATE)) < CLEARED * len(refactors):
        found.append(f"{LOCATE} clears {quiet} of {len(refactors)} refactors: less than 11 of 12")
    return found


def all_clears(bugs: Iterable[Trial]) -> list[tuple[str, str]]:
    """Bug and command where a bug got exit code 0."""
    return [
        (trial.name, method)
        for trial in bugs
        for method in METHODS
        if method in trial.said and not trial.said[method].code
    ]


def _tried(trials: Iterable[Trial], pairs: Pairs) -> tuple[list[Trial], list[Trial]]:
    """The trials that were made, of bugs and of refactors."""
    made = [trial for trial in trials if trial.said]
    bugs = [trial for trial in made if isinstance(pairs[trial.name], Bug)]
    return bugs, [trial for trial in made if isinstance(pairs[trial.name], Refactor)]


def _cleared(refactors: Iterable[Trial], method: str) -> int:
    return sum(clean(trial.said[method]) for trial in refactors)


def clean(said: Said) -> bool:
    """Whether a pair without a bug was cleared."""
    return said.code == 0
