"""The checklist's layer *run*: findings, its end, its curves, its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from accucompare.findings.analysis import Analysis
from accucompare.findings.checklist.checks import (
    Check,
    CheckOutcome,
    Evidence,
    Layer,
    Need,
    failed,
    not_looked_at,
    passed,
)
from accucompare.findings.checklist.checks_loss_curve import LOSS_CURVE
from accucompare.findings.log import Ending, Number, remark


def _finite(seen: Evidence) -> CheckOutcome:
    if seen.run.findings:
        first = seen.run.findings[0]
        measured = remark("gave", place=first.place, kinds=first.kinds)
        return failed(measured, step=first.step, place=first.place)
    if seen.run.unexplained:
        return failed(remark("unexplained"), step=seen.run.unexplained[0].step)
    return passed(remark("all-finite", steps=len(seen.run.steps)))


def _ended(seen: Evidence) -> CheckOutcome:
    end = seen.run.end
    if end is None:
        return not_looked_at(seen.run.ending)
    if end.ending is not Ending.FAILED or end.error == "SystemExit":
        return passed(remark("loop-ended", steps=end.steps, ending=end.ending.value))
    return failed(remark("loop-failed", steps=end.steps, reason=end.reason), step=end.steps)


def _ranks_agree(seen: Evidence) -> CheckOutcome:
    """Norms of weights that each rank holds whole: replicas compute the same bits."""
    if _split(seen.ranks):
        return not_looked_at(remark("ranks-hold-parts"))
    found = first_difference(seen.ranks)
    if found is not None:
        return found
    compared = sum(1 for _ in _pairs_of_ranks(seen.ranks))
    if not compared:
        return not_looked_at(remark("nothing-on-two-ranks"))
    return passed(remark("weights-agree", weights=compared, ranks=len(seen.ranks)))


def _split(runs: Sequence[Analysis]) -> bool:
    """Whether ranks hold different parts of a model."""
    return any(
        set(run.start.coordinates) - {"dp", "data", "replicate", "dp_replicate"} for run in runs
    )


def first_difference(runs: Sequence[Analysis]) -> CheckOutcome | None:
    """The first weight that differs between replicas; ``None`` also if ranks split a model."""
    if _split(runs):
        return None
    apart = [each for each in _pairs_of_ranks(runs) if each.mine != each.theirs]
    if not apart:
        return None
    found = min(apart, key=lambda each: each.step)
    measured = remark(
        "weights-differ",
        mine=found.mine,
        rank=runs[0].start.rank,
        theirs=found.theirs,
        other=found.rank,
    )
    return failed(measured, step=found.step, place=found.name)


class _OnTwoRanks(NamedTuple):
    """A weight's norm on the first rank and on another."""

    step: int
    name: str
    rank: int
    mine: Number
    theirs: Number


def _pairs_of_ranks(runs: Sequence[Analysis]) -> Iterator[_OnTwoRanks]:
    first, *others = runs
    norms = {each.step: each.layers.get("weight", []) for each in first.vitals if each.layers}
    parameters = first.setups[-1].parameters if first.setups else []
    for other in others:
        for each in other.vitals:
            if not each.layers or each.step not in norms:
                continue
            for parameter, mine, theirs in zip(
                parameters, norms[each.step], each.layers.get("weight", []), strict=False
            ):
                if not parameter.sharded and mine is not None and theirs is not None:
                    yield _OnTwoRanks(each.step, parameter.name, other.start.rank, mine, theirs)


#: Also the first verdict of a watch.
FINITE = Check("finite", Layer.RUN, _finite, needs=())
RUN = (
    FINITE,
    Check("ended", Layer.RUN, _ended, needs=()),
    *LOSS_CURVE,
    Check("ranks-agree", Layer.RUN, _ranks_agree, across=True, needs=(Need.RANKS, Need.VITALS)),
)
