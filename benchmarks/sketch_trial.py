"""Sketches beside tensors, on the planted faults of a forward: is the same culprit named, and
nothing where there is no fault?
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

import accucompare as ac
from accucompare.api import Comparison
from accucompare.compare.rows.rows import Status
from accucompare.report.words import culprit_place
from accucompare.selection import Mode
from benchmarks import faults_trial
from benchmarks.faults_trial import cast, rank, told
from benchmarks.figures import Entry
from planted.faults_alone import RISES
from planted.faults_kinds import Fault
from planted.faults_orders import COARSER, ORDERS

#: How candidate and baseline are captured; golden has tensors.
METHODS = ("tensors", "sketches")
SETUPS = ("bfloat16", "float32")
_MODES = dict(zip(METHODS, (Mode.TENSORS, Mode.SKETCH), strict=True))
#: Targets: of the faults that tensors name, how many sketches name the same.
_SAME = 0.97


@dataclass
class Trial:
    """What became of one fault, or without one (``fault`` is ``""``) of another order.

    Attributes:
        rank: by method, the place of the right culprit among those named, from 1; 0 if it is not
            among them.
        named: by method, what was named first.
        alarms: by method, the rows over their limits where there is no fault.
        error: what was raised, if something was.
    """

    architecture: str
    setup: str
    fault: str
    order: str
    rank: dict[str, int] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)
    alarms: dict[str, list[str]] = field(default_factory=dict)
    error: str = ""


class Bench(faults_trial.Bench):
    """The bundles of one model in one setup, and a fed baseline that keeps sketches."""

    def __init__(self, architecture: str, setup: str, folder: Path) -> None:
        super().__init__(architecture, setup, folder)
        trusted = cast(self.model, self.how.baseline)
        self._judges = {
            "tensors": self.baselines[self.golden],
            "sketches": self.capture(
                trusted, "baseline-sketched", feed=self.golden, record=Mode.SKETCH
            ),
        }

    def compared(self, fault: Fault | None, order: str) -> Iterator[tuple[str, Comparison]]:
        """The fed candidate, by each method."""
        model = copy.deepcopy(self.model)
        if fault is not None:
            fault.plant(model.get_submodule(fault.name))
        for method, mode in _MODES.items():
            with ({**ORDERS, **COARSER})[order]():
                candidate = self.capture(
                    model,
                    f"candidate-{method}",
                    feed=ac.FedWith(self.golden, force=True),
                    overwrite=True,
                    record=mode,
                )
            yield (
                method,
                ac.diff(
                    self.golden, candidate, baseline=self._judges[method], work=ac.Work(workers=1)
                ),
            )

    def tried(self, fault: Fault | None, order: str) -> Trial:
        trial = Trial(self.architecture, self.setup, str(fault or ""), order)
        try:
            for method, comparison in self.compared(fault, order):
                trial.named[method] = (
                    culprit_place(comparison.culprits[0]) if comparison.culprits else ""
                )
                if fault is None:
                    trial.alarms[method] = [
                        told(row) for row in comparison.rows if row.status is Status.FAIL
                    ]
                else:
                    trial.rank[method] = rank(comparison, fault)
        except Exception as error:  # one trial must not cost the others; it is shown and counted
            trial.error = f"{type(error).__name__}: {error}"
        return trial


def run(architecture: str, setup: str, most: int, pairs: bool) -> dict[str, list[dict[str, Any]]]:
    """Everything about one model in one setup: ``trials`` and ``pairs``."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="accucompare-sketches-") as folder:
        bench = Bench(architecture, setup, Path(folder))
        faults = [fault for fault in bench.faults(most) if bench.rise(fault) >= RISES]
        orders = list(ORDERS)[:-1]
        trials = [
            bench.tried(fault, orders[count % len(orders)]) for count, fault in enumerate(faults)
        ]
        free = [bench.tried(None, order) for order in (*ORDERS, *COARSER)] if pairs else []
    return {"trials": [asdict(each) for each in trials], "pairs": [asdict(each) for each in free]}


def tables(found: dict[str, list[Entry]]) -> Iterator[Table]:
    """How often each names the right culprit, how often both the same, and what is said where there
    is no fault.
    """
    table = Table(
        "setup",
        "faults",
        *(f"right, by {method}" for method in METHODS),
        "the same",
        "pairs without fault",
        "alarms by sketches",
    )
    for setup in SETUPS:
        trials, pairs = (
            [each for each in found.get(key, []) if each["setup"] == setup]
            for key in ("trials", "pairs")
        )
        if trials or pairs:
            right = [
                str(sum(each["rank"].get(method) == 1 for each in trials)) for method in METHODS
            ]
            alarms = sum(bool(each["alarms"].get("sketches")) for each in pairs)
            table.add_row(
                setup,
                str(len(trials)),
                *right,
                str(sum(map(_same, trials))),
                str(len(pairs)),
                str(alarms),
            )
    yield table


def missed(found: dict[str, list[Entry]], method: str) -> Iterator[str]:
    """The faults for which another culprit comes first than with tensors, the alarms, and what
    raised.
    """
    for each in found.get("trials", []):
        if each["error"] or not _same(each):
            by = {name: each["named"].get(name) for name in ("tensors", "sketches")}
            why = each["error"] or f"{by['tensors']!r} by tensors, {by['sketches']!r} by sketches"
            yield f"{each['architecture']}, {each['setup']}: {each['fault']}: {why}"
    for each in found.get("pairs", []):
        for told_of in each["alarms"].get("sketches", []) or [each["error"]] * bool(each["error"]):
            yield f"{each['architecture']}, {each['setup']}, {each['order']}, no fault: {told_of}"


def judge(found: dict[str, list[Entry]]) -> list[str]:
    """The targets that are missed."""
    trials, pairs = found.get("trials", []), found.get("pairs", [])
    same, alarms = (
        sum(map(_same, trials)),
        sum(bool(each["alarms"].get("sketches")) for each in pairs),
    )
    failed = sum(bool(each["error"]) for each in (*trials, *pairs))
    short = (
        [f"the same culprit by sketches as by tensors: {same} of {len(trials)}"]
        if same < _SAME * len(trials)
        else []
    )
    short += (
        [f"{alarms} of {len(pairs)} pairs without a fault raise an alarm by sketches"]
        if alarms
        else []
    )
    return short + ([f"{failed} trials raised an error"] if failed else [])


def _same(trial: Entry) -> bool:
    return not trial["error"] and trial["named"].get("tensors") == trial["named"].get("sketches")
