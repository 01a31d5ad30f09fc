"""The same model, computed another way: ``python -m benchmarks.computed [GROUP…]``. Is a planted
fault named, and is a right run left alone?

A group is a module ``benchmarks.computed_GROUP`` with ``trials()``, which gives ``ComputedTrial``s.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.timing import ROOT

GROUPS = ("compiled", "cached", "batched", "repeated", "fused")

#: The share of visible faults that is named.
_TARGET = 0.95


@dataclass(frozen=True)
class Outcome:
    """What accucompare said of one trial.

    Attributes:
        exit_code: of the command; also where Python was called.
        told: its answer, in a line.
        module: the place that it names first; ``""`` if none.
        detail: what else it names, such as an operator, a token or a rank.
        visible: whether the fault changes a result by more than rounding.
    """

    exit_code: int
    told: str = ""
    module: str = ""
    detail: str = ""
    visible: bool = True


@dataclass(frozen=True)
class ComputedTrial:
    """One planted fault, or a model without one.

    Attributes:
        name: ``gelu by tanh: minilm, float32``.
        run: runs it, given an empty directory.
        right: whether what is named is right; ``None`` for a model without a fault.
        right_detail: the same of the detail, where that is promised.
    """

    name: str
    run: Callable[[Path], Outcome]
    right: Callable[[Outcome], bool] | None = None
    right_detail: Callable[[Outcome], bool] | None = None


@dataclass(frozen=True)
class ComputedResult:
    """A trial that was run."""

    group: str
    name: str
    planted: bool
    seconds: float
    outcome: Outcome | None = None
    verdict: str = ""
    error: str = ""


def tried(group: str, trial: ComputedTrial) -> ComputedResult:
    """A trial, run. An error in it must not cost the others, so it is kept."""
    begun = time.process_time()
    made = ComputedResult(group, trial.name, trial.right is not None, 0.0)
    try:
        with tempfile.TemporaryDirectory(prefix="computed-") as folder:
            outcome = trial.run(Path(folder))
        made = replace(made, outcome=outcome, verdict=_verdict(trial, outcome))
    except Exception as error:
        if os.environ.get("COMPUTED_DEBUG"):
            traceback.print_exc()
        made = replace(made, verdict="error", error=f"{type(error).__name__}: {error}")
    return replace(made, seconds=time.process_time() - begun)


def _verdict(trial: ComputedTrial, outcome: Outcome) -> str:
    if trial.right is None:
        return ("silent", "alarm", "not sure")[outcome.exit_code]
    if not outcome.visible:
        return "invisible"
    if outcome.exit_code == 0:
        return "passed"  # the worst of all
    if not trial.right(outcome):
        return "not sure" if outcome.exit_code == 2 else "elsewhere"
    if trial.right_detail is not None and not trial.right_detail(outcome):
        return "named"
    return "right"


def table(results: list[ComputedResult]) -> Table:
    shown = Table(title="The same model, computed another way")
    for title in ("group", "faults", "visible", "named", "with detail", "%", "clean", "alarms"):
        shown.add_column(title, justify="left" if title == "group" else "right")
    for group in dict.fromkeys(each.group for each in results):
        of_group = [each for each in results if each.group == group]
        seen = [each for each in of_group if each.planted and each.verdict != "invisible"]
        named = [each for each in seen if each.verdict in ("right", "named")]
        clean = [each for each in of_group if not each.planted]
        shown.add_row(
            group,
            str(sum(each.planted for each in of_group)),
            str(len(seen)),
            str(len(named)),
            str(sum(each.verdict == "right" for each in seen)),
            f"{100 * len(named) / len(seen):.1f}" if seen else "",
            str(len(clean)),
            str(sum(each.verdict in ("alarm", "error") for each in clean)),
        )
    return shown


def missed(results: Iterable[ComputedResult]) -> Iterator[str]:
    """One line for each trial that is not right."""
    for each in results:
        if each.verdict not in ("right", "silent", "invisible"):
            told = each.outcome
            said = each.error or (told and f"{told.told}; {told.module or 'nothing'} {told.detail}")
            yield f"{each.verdict}: {each.group}: {each.name}: {said}"


def unmet(results: list[ComputedResult]) -> Iterator[str]:
    """The targets that are not reached."""
    for group in dict.fromkeys(each.group for each in results):
        seen = [
            each
            for each in results
            if each.group == group and each.planted and each.verdict != "invisible"
        ]
        named = sum(each.verdict in ("right", "named") for each in seen)
        if named < _TARGET * len(seen):
            yield f"{group}: {named} of {len(seen)} named, target {_TARGET:.0%}"
    if passed := sum(each.verdict == "passed" for each in results):
        yield f"{passed} faults passed, target 0"
    clean = [each for each in results if not each.planted]
    if alarms := sum(each.verdict in ("alarm", "error") for each in clean):
        yield f"{alarms} alarms of {len(clean)} models without a fault, target 0"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}; all that are there")
    parser.add_argument("--only", default="", help="trials with this in their name")
    parser.add_argument("--json", type=Path, default=ROOT / "reports" / "computed.json")
    asked = parser.parse_args(arguments)
    console, results = Console(width=120), []
    for group in asked.groups or GROUPS:
        name = f"benchmarks.computed_{group}"
        if not asked.groups and importlib.util.find_spec(name) is None:
            continue
        for trial in importlib.import_module(name).trials():
            if asked.only in trial.name:
                result = tried(group, trial)
                results.append(result)
                print(
                    f"{result.verdict:10} {result.seconds:5.1f} s  {group}: {trial.name}"
                    f"  {result.outcome.told[:90] if result.outcome else result.error[:90]}",
                    file=sys.stderr,
                    flush=True,
                )
    console.print(table(results))
    for line in missed(results):
        console.print(line, markup=False, soft_wrap=True)
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_text(json.dumps([asdict(each) for each in results], indent=1))
    lacking = [*unmet(results), *([] if results else ["no trial ran"])]
    for line in lacking:
        console.print(f"missed: {line}", style="red", markup=False)
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
