"""One trial: a training with a fault, and whether its diff names the fault."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import accucompare as ac
from accucompare.bundle.format import GlobalRecord, Record, Role
from accucompare.bundle.reading import open_bundle
from accucompare.compare.decide import decide
from accucompare.compare.facts import BareFact, GivenDifferently
from accucompare.compare.origins import Culprit, Stage
from accucompare.compare.preflight_facts import OddMicrobatches
from accucompare.compare.remarks import (
    NotRecordedOn,
    PartsMissing,
    RanksDiffer,
    ReducedHere,
    Swapped,
    TokensElsewhere,
)
from accucompare.compare.rows import Row, Status
from accucompare.compare.runs import Parting
from planted.rank_faults import RankFault
from planted.rank_training import plain

#: Half a unit in the last place of one.
ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8}
#: A fault that changes no record by more than so many roundoffs cannot be seen.
_VISIBLE = {"float32": 64.0, "bfloat16": 8.0}
#: What a user without this product might set: a tolerance of relative errors.
_FIXED = {"float32": 1e-4, "bfloat16": 2e-2}


@dataclass(frozen=True)
class Setup:
    """What is trained, without the fault.

    Attributes:
        layout: of ``planted.rank_models``.
        dtype: of the weights, or of what is computed with them.
        clip: whether gradients are clipped.
        fed: whether each rank is fed with its part of golden.
    """

    layout: str
    dtype: str = ""
    seed: int = 5
    steps: int = 2
    clip: bool = False
    fed: bool = False

    def __post_init__(self) -> None:
        if not self.dtype:
            object.__setattr__(self, "dtype", dtype_of(self.layout))

    def __str__(self) -> str:
        clip = ", clipped" if self.clip else ""
        fed = ", fed" if self.fed else ""
        return f"{self.layout}, {self.dtype}, seed {self.seed}, {self.steps} steps{clip}{fed}"


@dataclass
class Trial:
    """What was said of a fault.

    Attributes:
        change: the largest relative change of a record by the fault, in roundoffs.
        named, ranks: of the first culprit, in words; and the ranks that its row names.
        module, rank: whether they are right.
        unified: the first row of global tensors over its limit.
        naive: each rank's records against golden's: the first of equal shape over a tolerance.
        fed: what was said of the same training, each rank fed with its part of golden.
    """

    fault: RankFault
    answer: str = ""
    change: float = math.inf
    named: str = ""
    ranks: tuple[int, ...] = ()
    remarks: tuple[str, ...] = ()
    module: bool = False
    rank: bool = False
    unified: str = ""
    unified_right: bool = False
    naive: str = ""
    naive_right: bool = False
    error: str = ""
    fed: Trial | None = None

    @property
    def fed_verdict(self) -> str:
        return "" if self.fed is None else replace(self.fed, change=self.change).verdict

    @property
    def visible(self) -> bool:
        return self.change > _VISIBLE[dtype_of(self.fault.layout)]

    @property
    def verdict(self) -> str:
        if self.error:
            return "error"
        if not self.visible:
            return "invisible"
        if self.module and self.rank:
            return "right"
        return "another rank" if self.module else "another place" if self.named else "silent"


@dataclass
class CleanPair:
    """What was said of a training without a fault."""

    setup: Setup
    answer: str = ""
    exit_code: int = 0
    rows: int = 0
    uncompared: int = 0
    alarms: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def alarm(self) -> bool:
        return bool(self.alarms) or self.exit_code == 1 or bool(self.error)


def judge(fault: RankFault, golden: Path, baseline: Path | None, faulty: Path) -> Trial:
    """Compare a faulty training with golden."""
    trial = Trial(fault)
    result = _diff(golden, faulty, baseline)
    trial.answer = decide(result).answer.value
    first = result.first_divergence
    if first is not None:
        trial.unified = result.place(first)
        trial.unified_right = _is_row(first.record, fault)
    blamed = _blamed(result, first)
    if blamed is not None:
        row = blamed.row if isinstance(blamed, Culprit) else blamed
        trial.named = _told(result, blamed)
        trial.module = is_right(blamed, fault)
        trial.ranks = ranks_of(row, blamed.wrong if isinstance(blamed, Culprit) else ())
        trial.remarks = tuple(map(str, row.verdict.remarks))
    parting = next((each for each in decide(result).facts if isinstance(each, Parting)), None)
    if parting is not None and parting.setting is not None:
        trial.named = f"step {parting.step}: {parting.setting.setting.value}, {trial.named}"
        trial.module = bool({"update", "between"} & {*fault.stages})
        trial.ranks = parting.setting.ranks or trial.ranks
    given = next(
        (each for each in decide(result).facts if isinstance(each, GivenDifferently)), None
    )
    if given is not None and isinstance(odd := given.finding.fact, OddMicrobatches):
        trial.named, trial.ranks, trial.module = str(odd), odd.ranks, "input" in fault.stages
    trial.rank = not fault.ranks or {*trial.ranks} == {*fault.ranks}
    trial.naive, trial.naive_right = naive(golden, faulty, fault)
    return trial


def compare_clean(setup: Setup, golden: Path, baseline: Path | None, candidate: Path) -> CleanPair:
    result = _diff(golden, candidate, baseline)
    decision = decide(result)
    return CleanPair(
        setup,
        decision.answer.value,
        decision.exit_code,
        result.compared,
        len(result.uncompared),
        [
            f"{result.place(row)}: {row.reason.value}"
            for row in result.rows
            if row.status is Status.FAIL
        ],
    )


def _diff(golden: Path, candidate: Path, baseline: Path | None) -> Any:
    return ac.diff(golden, candidate, baseline=baseline, work=ac.Work(workers=1))


def _blamed(result: Any, first: Row | None) -> Culprit | Row | None:
    """What a user is told first: another input, another setting of a step, or the first culprit."""
    said = decide(result).facts
    if BareFact.INPUTS_DIFFER in said or any(isinstance(fact, Parting) for fact in said):
        return first
    return next(iter(result.culprits), first)


def is_right(blamed: Culprit | Row, fault: RankFault) -> bool:
    """Whether what is blamed is where the fault was planted."""
    if isinstance(blamed, Row):
        return _is_row(blamed.record, fault)
    culprit = blamed
    record = culprit.row.record
    stages = {culprit.stage.value}
    if record is not None and record.role is Role.CLIPPED_NORM:
        stages = {"norm"}
    if culprit.scaled is not None and culprit.stage is Stage.UPDATE:
        stages.add("norm")  # all gradients by one factor
    named = "*" in fault.where or culprit.name in fault.where
    return named and bool(stages & {*fault.stages})


def ranks_of(row: Row, parts: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The ranks that a row says are wrong; ``parts``: those whose own parts are."""
    for remark in row.verdict.remarks:
        if isinstance(remark, RanksDiffer) and remark.wrong:
            return remark.wrong
        if isinstance(remark, PartsMissing) and remark.lacking:
            return remark.lacking
        if isinstance(remark, TokensElsewhere) and remark.ranks:
            return remark.ranks
        if isinstance(remark, (Swapped, ReducedHere, NotRecordedOn)):
            return remark.ranks
    candidate, metrics = row.candidate, row.metrics
    if parts:
        return parts
    if isinstance(candidate, GlobalRecord):
        worst = getattr(metrics, "max_abs_index", None)
        held = candidate.ranks if worst is None else candidate.holders(worst)
        alike = {
            record.rank
            for box in candidate.boxes
            if box.same and {record.rank for record in box.terms} & {*held}
            for terms in box.replicas
            for record in terms
        }
        return tuple(sorted({*held} | alike))
    return ()


def dtype_of(layout: str) -> str:
    return "bfloat16" if layout.endswith("bfloat16") else "float32"


def change(faulty: Path, clean: Path, dtype: str) -> float:
    """How far a fault changes the ranks' records, in roundoffs; infinite if one is missing."""
    largest = 0.0
    with open_bundle(faulty) as theirs, open_bundle(clean) as ours:
        known = {record.key: record for record in ours.records()}
        found = {record.key: record for record in theirs.records()}
        if known.keys() != found.keys():
            return math.inf
        for key, record in found.items():
            right = known[key]
            if record.digest == right.digest or None in (record.member, right.member):
                continue
            if record.shape != right.shape:
                return math.inf
            wrong, value = (
                np.asarray(bundle.values(each), np.float64)
                for bundle, each in ((theirs, record), (ours, right))
            )
            size = float(np.linalg.norm(value))
            distance = float(np.linalg.norm(wrong - value))
            largest = max(largest, distance / size if size else math.inf)
        for rank, manifest in ours.manifests.items():
            for one, other in zip(manifest.series, theirs.manifests[rank].series, strict=False):
                for mine, its in (
                    (one.clipped_norm, other.clipped_norm),
                    *zip(one.losses, other.losses, strict=False),
                ):
                    if mine and its is not None:
                        largest = max(largest, abs(its / mine - 1.0))
    return largest / ROUNDOFF[dtype]


def naive(golden: Path, candidate: Path, fault: RankFault) -> tuple[str, bool]:
    """Rank by rank, in execution order, the first tensor of golden's shape over a tolerance."""
    limit = _FIXED[dtype_of(fault.layout)]
    with open_bundle(golden) as ours, open_bundle(candidate) as theirs:
        known = {record.key: record for record in ours.records()}
        for record in theirs.records():
            right = known.get(record.key._replace(rank=0))
            if (
                right is None
                or right.shape != record.shape
                or None in (right.member, record.member)
            ):
                continue
            value, wrong = (
                np.asarray(bundle.values(each), np.float64)
                for bundle, each in ((ours, right), (theirs, record))
            )
            size = float(np.linalg.norm(value))
            if float(np.linalg.norm(wrong - value)) > limit * size:
                place = f"{record.name} {record.role} (step {record.step}, rank {record.rank})"
                right_rank = not fault.ranks or record.rank in fault.ranks
                return place, _is_row(record, fault) and right_rank
    return "", False


def _is_row(record: Record | None, fault: RankFault) -> bool:
    """Whether a record is one of the faulty module's in the right stage."""
    if record is None:
        return False
    stages = {
        Role.INPUT: ("forward", "input"),
        Role.OUTPUT: ("forward",),
        Role.GRAD_OUTPUT: ("loss",) if record.parent is None else ("backward",),
        Role.GRAD_INPUT: ("backward",),
        Role.CALL_GRAD: ("backward",),
        Role.LOSS: ("loss",),
        Role.CLIPPED_NORM: ("norm",),
    }.get(record.role, ("update", "between"))
    named = "*" in fault.where or plain(record.name) in fault.where
    return named and bool({*stages} & {*fault.stages})


def _told(result: Any, blamed: Culprit | Row) -> str:
    if isinstance(blamed, Row):
        return f"{result.place(blamed)} [first row, {blamed.reason.value}]"
    how = f"{blamed.stage.value}, {blamed.site}, {blamed.row.reason.value}"
    return f"{result.place(blamed.row)} [{how}]"
