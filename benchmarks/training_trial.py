"""One model, trained in one setup: its golden, its baselines, and what is said of each fault of its
training, and of fault-free pairs.
"""

from __future__ import annotations

import contextlib
import copy
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import accucompare as ac
from accucompare.api import Comparison
from accucompare.bundle.format.records import TRAINING_ROLES, UPDATE_ROLES, Record, Role
from accucompare.bundle.reading.reader import Bundle, open_bundle
from accucompare.compare.origins import parameter_of
from accucompare.compare.origins.sites import Culprit, Stage
from accucompare.compare.rows.rows import Row, Status
from accucompare.report.words import culprit_place
from benchmarks.faults_trial import ITS_OWN
from planted.faults_alone import ROUNDOFF
from planted.faults_orders import ORDERS
from planted.training_catalogue import draw_faults
from planted.training_faults import TrainingFault, wrong_update
from planted.training_models import ACCUMULATED, PLAIN, TRAININGS, Loop, build_training, train

#: The ways to name a place; and whether the loss curve is off at all, which names none. The first
#: one over tolerance is the first row of the free-running capture that is over the limit which
#: its baseline sets.
METHODS = ("fed, baseline", "free, baseline", "first over tolerance", "largest norm change")
CURVE = "loss curve"


@dataclass(frozen=True)
class Setup:
    """In what candidate and baseline compute; golden computes in float32, and all have the
    candidate's weights.
    """

    candidate: torch.dtype
    baseline: torch.dtype


SETUPS = {
    "bfloat16": Setup(torch.bfloat16, torch.bfloat16),
    "float32": Setup(torch.float32, torch.float64),
}

#: Fault-free candidates: the order in which sums are added, and what the loop does otherwise.
PAIRS: dict[str, tuple[str, Loop]] = {
    "other number of threads": ("other number of threads", PLAIN),
    "split-K": ("split-K", PLAIN),
    "reversed": ("reversed", PLAIN),
    "foreach optimizer": ("blocks, truncated", replace(PLAIN, optimizer={"foreach": True})),
    "fused optimizer": ("float64 accumulation", replace(PLAIN, optimizer={"fused": True})),
    "micro-batches in another order": ("without oneDNN", replace(ACCUMULATED, from_the_last=True)),
}

#: The orders of candidates with a fault.
_ORDERS = ("split-K", "reversed", "blocks, truncated")
_ALL_ORDERS = {**ORDERS, ITS_OWN: contextlib.nullcontext}


@dataclass
class Trial:
    """What became of one fault.

    Attributes:
        rise: how far the fault changes what shows it, as a multiple of what rounding does there;
            see ``Bench.rise``.
        rank: by method, the place of the right culprit among those named, from 1; 0 if it is not
            among them.
        named: by method, what was named first.
        noticed: whether the loss curve, or the norms of all gradients together, are over
            MindFormers' limits.
        used: of the fed capture with baseline, the largest error as a multiple of its limit among
            the rows that can show it.
        error: what was raised, if something was.
    """

    architecture: str
    setup: str
    kind: str
    site: str
    fault: str
    order: str
    rise: float = 0.0
    rank: dict[str, int] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)
    noticed: bool = False
    used: float | None = None
    error: str = ""


@dataclass
class FaultFree:
    """What is said of a candidate without fault; ``alarms`` by method, the rows over their limits,
    and ``rows``, how many there are.
    """

    architecture: str
    setup: str
    order: str
    alarms: dict[str, list[str]] = field(default_factory=dict)
    rows: int = 0
    error: str = ""


@dataclass(frozen=True)
class _Run:
    """A capture, and the loss of each of its steps."""

    path: Path
    losses: list[float]


class Bench:
    """The bundles of one model in one setup. Those that many trials need are made once, when they
    are first asked for.
    """

    def __init__(self, architecture: str, setup: str, folder: Path, device: str = "cpu") -> None:
        self.architecture, self.setup, self.folder = architecture, setup, folder
        self.device = torch.device(device)
        self.how = SETUPS[setup]
        self.training = build_training(architecture)
        self.model = _cast(self.training.model, self.how.candidate)
        self._made: dict[str, _Run] = {}

    def golden(self, loop: Loop) -> _Run:
        return self._once(f"golden{loop.micro_batches}", torch.float32, loop)

    def baseline(self, loop: Loop, fed: bool) -> _Run:
        name = f"baseline{loop.micro_batches}{'-fed' if fed else ''}"
        return self._once(
            name, self.how.baseline, loop, feed=self.golden(loop).path if fed else None
        )

    def right(self, loop: Loop, order: str) -> _Run:
        """The fed candidate without a fault."""
        feed = self.golden(loop).path
        with _ALL_ORDERS[order]():
            return self._once(
                f"right{loop.micro_batches}-{order}",
                self.how.candidate,
                loop,
                device=self.device,
                feed=feed,
            )

    def try_fault(self, fault: TrainingFault, order: str) -> Trial:
        """Plant a fault, and ask every method."""
        trial = Trial(self.architecture, self.setup, fault.kind, fault.site, str(fault), order)
        loop = ACCUMULATED if fault.loop else PLAIN
        try:
            golden, clean = self.golden(loop), self.right(loop, order)
            fed = self._candidate("fed", fault, order, loop, golden.path)
            comparison = ac.diff(
                golden.path,
                fed.path,
                baseline=self.baseline(loop, True).path,
                work=ac.Work(workers=1),
            )
            trial.rise = (
                math.inf if fault.certain else self.rise(comparison, fault, fed.path, clean.path)
            )
            shows = [
                row.verdict.over_limit
                for row in comparison.rows
                if _shows(row, fault) and row.verdict.over_limit is not None
            ]
            trial.used = max(shows, default=None)
            _note(trial, "fed, baseline", comparison.culprits, fault)
            free = self._candidate("free", fault, order, loop, None)
            judged = ac.diff(
                golden.path,
                free.path,
                baseline=self.baseline(loop, False).path,
                work=ac.Work(workers=1),
            )
            _note(trial, "free, baseline", judged.culprits, fault)
            first = judged.first_divergence
            trial.named["first over tolerance"] = first.place if first else ""
            trial.rank["first over tolerance"] = int(first is not None and _shows(first, fault))
            ours, theirs = _norms(golden.path), _norms(free.path)
            changed = _most_changed(ours, theirs)
            trial.named["largest norm change"] = changed
            trial.rank["largest norm change"] = int(
                bool(fault.name) and changed.rpartition(".")[0] == fault.name
            )
            trial.noticed = not _within_mindformers(golden.losses, free.losses, ours, theirs)
        except Exception as error:  # one trial must not cost the others; it is shown and counted
            trial.error = f"{type(error).__name__}: {error}"
        return trial

    def try_pair(self, name: str) -> FaultFree:
        """No fault, and another order."""
        order, loop = PAIRS[name]
        if self.device.type != "cpu":
            order = ITS_OWN
        known = ACCUMULATED if loop.micro_batches > 1 else PLAIN
        pair = FaultFree(self.architecture, self.setup, name)
        try:
            golden = self.golden(known).path
            for method, feed in (("fed, baseline", golden), ("free, baseline", None)):
                with _ALL_ORDERS[order]():
                    run = self._capture(
                        "pair", self.how.candidate, loop, device=self.device, feed=feed
                    )
                comparison = ac.diff(
                    golden,
                    run.path,
                    baseline=self.baseline(known, feed is not None).path,
                    work=ac.Work(workers=1),
                )
                pair.alarms[method] = [
                    _told(row) for row in comparison.rows if row.status is Status.FAIL
                ]
                pair.rows = len(comparison.rows)
        except Exception as error:
            pair.error = f"{type(error).__name__}: {error}"
        return pair

    def rise(
        self, comparison: Comparison, fault: TrainingFault, faulty: Path, clean: Path
    ) -> float:
        """How far a fault changes what shows it, as a multiple of rounding.

        Each record of the faulty call is compared with that of the fed candidate without the fault,
        computed in the same order. The change is a relative L2 error, as is the rounding: the
        baseline's own error there, or half a unit roundoff if that is more. The largest quotient
        counts; a record that is missing is infinitely far off."""
        rises = [0.0]
        with (
            open_bundle(faulty) as theirs,
            open_bundle(clean) as ours,
            open_bundle(comparison.golden.path) as golden,
        ):
            known = {
                _key(record): record for record in ours.records() if record.role in TRAINING_ROLES
            }
            for row in comparison.rows:
                if row.golden is None or not _shows(row, fault):
                    continue
                right = known.get(_key(row.golden))
                if right is None:
                    continue
                if row.candidate is None or row.candidate.shape != right.shape:
                    rises.append(math.inf)
                elif row.candidate.digest != right.digest:
                    rounding = max(row.baseline_error or 0.0, ROUNDOFF[self.how.candidate] / 2)
                    rises.append(
                        _distance(theirs, row.candidate, ours, right, golden, row.golden) / rounding
                    )
        return max(rises)

    def _candidate(
        self, name: str, fault: TrainingFault, order: str, loop: Loop, feed: Path | None
    ) -> _Run:
        wrong = wrong_update(fault.update) if fault.update else contextlib.nullcontext()
        with _ALL_ORDERS[order](), wrong:
            return self._capture(
                name,
                self.how.candidate,
                replace(loop, **fault.loop),
                fault.plant,
                self.device,
                feed=feed,
            )

    def _once(self, name: str, dtype: torch.dtype, loop: Loop, **options: Any) -> _Run:
        if name not in self._made:
            self._made[name] = self._capture(name, dtype, loop, **options)
        return self._made[name]

    def _capture(
        self,
        name: str,
        dtype: torch.dtype,
        loop: Loop,
        plant: Callable[[nn.Module], None] = lambda model: None,
        device: torch.device | None = None,
        **options: Any,
    ) -> _Run:
        model, out = _cast(self.model, dtype).to(device or "cpu"), self.folder / name
        plant(model)
        if device is not None and device.type != "cpu":
            options["numerics"] = ac.Arithmetic(hf32=False, tf32=False)
        with ac.capture(model, out, overwrite=True, **options) as session:
            losses = train(self.training, model, loop, session.step)
        return _Run(out, losses)


def run(
    architecture: str, setup: str, most: int, pairs: bool, device: str = "cpu"
) -> dict[str, list[dict[str, Any]]]:
    """Everything about one model in one setup: ``trials`` and ``pairs``."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="accucompare-training-") as folder:
        bench = Bench(architecture, setup, Path(folder), device)
        orders = _ORDERS if device == "cpu" else (ITS_OWN,)
        draw = np.random.default_rng(
            [list(TRAININGS).index(architecture), list(SETUPS).index(setup)]
        )
        faults = draw_faults(bench.model, most, draw)
        trials = [
            bench.try_fault(fault, orders[count % len(orders)])
            for count, fault in enumerate(faults)
        ]
        free = [bench.try_pair(name) for name in PAIRS] if pairs else []
    return {"trials": [asdict(each) for each in trials], "pairs": [asdict(each) for each in free]}


def is_right(culprit: Culprit, fault: TrainingFault) -> bool:
    """Whether a culprit is where the fault was planted: the same module and gradient, or the same
    part of the loss or of the update.
    """
    record = culprit.row.record
    if (
        record is None
        or record.role not in fault.roles
        or not parameter_of(record).endswith(fault.path)
    ):
        return False
    if fault.site == "loss":
        return culprit.stage is Stage.LOSS
    if fault.site == "update":
        return culprit.stage is Stage.UPDATE and (not fault.name or culprit.name == fault.name)
    if fault.site in ("buffer", "between"):  # its role tells
        return culprit.name == fault.name
    return culprit.stage is Stage.BACKWARD and (culprit.name, culprit.site) == (
        fault.name,
        fault.site,
    )


def _note(trial: Trial, method: str, culprits: Sequence[Culprit], fault: TrainingFault) -> None:
    trial.named[method] = culprit_place(culprits[0]) if culprits else ""
    trial.rank[method] = next(
        (place for place, culprit in enumerate(culprits, 1) if is_right(culprit, fault)), 0
    )


def _shows(row: Row, fault: TrainingFault) -> bool:
    """Whether a row can show a fault."""
    record = row.record
    if (
        record is None
        or record.role not in fault.roles
        or not parameter_of(record).endswith(fault.path)
    ):
        return False
    if fault.site == "loss":
        return record.parent is None
    if fault.site in ("update", "between"):
        return record.role in UPDATE_ROLES and (not fault.name or record.name == fault.name)
    if fault.site == "glue" and record.role is Role.GRAD_OUTPUT:
        return record.parent is not None and record.parent[0] == fault.name
    return record.name == fault.name


def _key(record: Record) -> tuple[int, str, int, Role, str]:
    return record.step, record.name, record.call, record.role, record.path


def _distance(
    faulty: Bundle, theirs: Record, clean: Bundle, ours: Record, golden: Bundle, truth: Record
) -> float:
    """How far two records are apart, relative to golden's norm."""
    if None in (theirs.member, ours.member, truth.member):
        return math.inf
    wrong, right, norm = (
        np.asarray(bundle.values(record), np.float64)
        for bundle, record in ((faulty, theirs), (clean, ours), (golden, truth))
    )
    distance, size = float(np.linalg.norm(wrong - right)), float(np.linalg.norm(norm))
    return distance / size if size else math.inf if distance else 0.0


def _norms(path: Path) -> list[dict[str, float]]:
    """By step, the norm of each parameter's gradient."""
    found: dict[int, dict[str, float]] = {}
    with open_bundle(path) as bundle:
        for record in bundle.records():
            if record.role is Role.PARAM_GRAD and record.statistics is not None:
                found.setdefault(record.step, {})[parameter_of(record)] = (
                    record.statistics.l2 or 0.0
                )
    return [found[step] for step in sorted(found)]


def _most_changed(golden: list[dict[str, float]], candidate: list[dict[str, float]]) -> str:
    """The parameter whose gradient's norm differs most in the first step."""
    changes = {
        name: abs(candidate[0].get(name, 0.0) / norm - 1.0)
        for name, norm in golden[0].items()
        if norm
    }
    return max(changes, key=lambda name: changes[name], default="")


def _within_mindformers(
    golden: list[float],
    candidate: list[float],
    norms: list[dict[str, float]],
    theirs: list[dict[str, float]],
) -> bool:
    """MindFormers' standard for a migration: first loss within 0.005 or 0.5 %, mean within 0.01 or
    1 %, norms within 10 % in the mean.
    """
    first, mean = abs(candidate[0] - golden[0]), abs(np.mean(candidate) - np.mean(golden))
    totals = [[math.hypot(*step.values()) for step in side] for side in (norms, theirs)]
    of_norm = np.mean([abs(other / one - 1.0) for one, other in zip(*totals, strict=True) if one])
    return bool(
        (first < 0.005 or first < 0.005 * abs(golden[0]))
        and (mean < 0.01 or mean < 0.01 * abs(np.mean(golden)))
        and of_norm <= 0.1
    )


def _told(row: Row) -> str:
    excess = (
        f", excess {row.verdict.excess:.3g} of {row.verdict.excess_limit or 0:.3g}"
        if row.verdict.excess is not None
        else ""
    )
    record = row.record
    step = f" step {record.step}" if record is not None else ""
    return (
        f"{row.place}{step}: {row.reason.value}{excess} of"
        f" {list(record.shape) if record is not None else 0}"
    )


def _cast(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    return copy.deepcopy(model).to(dtype)
