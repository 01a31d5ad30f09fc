"""Rounding or a bug, and where: what is concluded of the result of a diff."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from accucompare.bundle.records import GRADIENT_ROLES, WRITTEN_ROLES, Role
from accucompare.compare.culprits import STRUCTURAL, different_values, is_of_glue
from accucompare.compare.ladder import JudgedBy, Parting, TrainingResult
from accucompare.compare.operator_rows import is_operator
from accucompare.compare.result import Result
from accucompare.compare.rows import STATUS_OF, UNMATCHED, About, Finding, Reason, Status
from accucompare.compare.sites import Culprit

#: How often the first culprit was the right one among planted faults (`make bench-faults`), as the report says it.
TRUST = {
    "free": "without a baseline, the first layer over tolerance is where the error was made in about half of the cases only",
    "free baseline": "free-running, the first culprit is the right one in about 9 of 10 cases; a fed capture is surer",
}


class Answer(str, Enum):
    """What a comparison concludes."""

    IDENTICAL = "identical"
    ROUNDING = "rounding"
    BUG = "bug"
    NOT_SURE = "not sure"


#: Answers that find no bug. In words they begin with the answer.
ALL_CLEAR = (Answer.IDENTICAL, Answer.ROUNDING)


class Conclusion(NamedTuple):
    """The conclusion of a comparison.

    Attributes:
        answer: in one word, to decide by.
        words: in one sentence; of an all-clear it begins with the answer.
    """

    answer: Answer
    words: str

    def __str__(self) -> str:
        """One line that begins with ``rounding``, ``bug``, ``not sure`` or ``identical``."""
        return self.words if self.answer in ALL_CLEAR else f"{self.answer.value}: {self.words}"


def conclude(result: Result) -> Conclusion:
    """What is concluded of a result."""
    if doubt := result.trouble_of_rows or result.poor_baseline or result.judged_by_few:
        return Conclusion(Answer.NOT_SURE, doubt)
    answer, words = _by_rows(result)
    configured = _configured_otherwise(result) if answer is Answer.ROUNDING else []
    return Conclusion(answer, "; ".join([words, *configured, *_not_looked_at(result)]) if answer in ALL_CLEAR else words)


def trust(result: Result) -> str:
    """How far the first culprit can be trusted; ``""`` where it is the right one nearly always."""
    if result.fed or not result.culprits:
        return ""
    return TRUST["free" if result.baseline is None else "free baseline"]


def _configured_otherwise(result: Result) -> Iterator[str]:
    """Attributes of modules that differ: they may do more than rounding, and too little to show. Where all bits agree, they do nothing."""
    if found := [finding.message for finding in result.preflight if finding.about is About.CONFIGURATION]:
        yield f"configured otherwise: {found[0]}" + (f", and {len(found) - 1} more" if len(found) > 1 else "")


def _not_looked_at(result: Result) -> Iterator[str]:
    """What an all-clear does not cover."""
    sides = result.golden.manifest, result.candidate.manifest
    gradients = (row.record is not None and row.record.role in GRADIENT_ROLES and row.golden and row.candidate for row in result.rows)
    if result.series_only:
        yield f"by the losses and gradient norms of {result.steps_judged:,} steps alone: no layer was compared"
    elif any(manifest.options.loss for manifest in sides) and not any(gradients):
        yield "forward only: the case has a loss, of which no gradient was compared"
    if replaced := result.candidate.manifest.options.replaced:
        more = ", …" if len(replaced) > 1 else ""
        yield f"{len(replaced)} of the case's own weights were not golden's, and were replaced by them ({replaced[0]}{more})"
    counts = [len(manifest.series if result.series_only else manifest.steps) for manifest in sides]
    if result.training is not None and (bad := result.training.not_finite) is not None:
        yield f"NaN or Inf on both sides from step {bad.step} on"
    if counts[0] != counts[1]:
        yield f"{min(counts)} of {max(counts)} steps"
    not_compared = (row.reason is Reason.NOT_COMPARABLE and not is_operator(row.record) for row in result.rows)
    for name, side in (("golden", sides[0]), ("the candidate", sides[1])):
        if side.options.imported is None and not side.options.written and side.model.get("buffers"):
            yield f"what calls write into buffers was not compared: {name} was captured by a version that does not record it"
            break
    if uncompared := sum(not_compared):
        yield f"{uncompared} of {len(result.rows)} rows could not be compared"
    if result.by_statistics and result.baseline is not None:
        yield f"{_rows(result.by_statistics)} judged by statistics alone"
    if result.by_sketch:
        yield f"{_rows(result.by_sketch)} judged by sketches"
    if result.without_baseline:
        yield f"{_rows(result.without_baseline)} judged without the baseline"
    if result.by_digests and result.by_digests == result.compared:
        yield "by digests alone, no values were read"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _by_rows(result: Result) -> tuple[Answer, str]:
    """The answer by the rows, or by the steps of a training where no row fails; and its words, without what it does not cover."""
    counts = result.counts()
    if not result.counts_by_status()[Status.FAIL]:
        return _without_failure(result) if result.training is None or result.parting is None else _parted(result.training, result.parting)
    if result.other_model is not None:
        return Answer.NOT_SURE, str(result.other_model)
    different = _given_differently(result.preflight) or (counts[Reason.INPUTS_DIFFER] and "the two models were given different inputs")
    if different:
        return Answer.NOT_SURE, different
    if result.far_beyond and all(culprit.row.verdict.beyond or culprit.reason in STRUCTURAL for culprit in result.culprits):
        return Answer.NOT_SURE, result.far_beyond
    if not result.culprits:
        reasons = ", ".join(f"{count} {reason.value}" for reason, count in counts.items() if STATUS_OF[reason] is Status.FAIL)
        return Answer.NOT_SURE, f"no place shows an error of its own ({reasons})"
    culprit = result.culprits[0]
    first = _named(result, culprit)
    if not result.fed and result.baseline is None and culprit.scaled is None:
        return Answer.NOT_SURE, f"{first} is the first over tolerance; {TRUST['free']}"
    if culprit.reason in STRUCTURAL and is_of_glue(culprit):
        return Answer.NOT_SURE, f"{first}; no value after it shows an error of its own"
    named = "; and ".join(_named(result, culprit) for culprit in result.culprits[: 2 if result.fed else 1])
    more = len(result.culprits) - 2
    words = named + (f"; and {more} more" if result.fed and more > 0 else "")
    return Answer.BUG, words + (f"; by fixed limits, since {result.refused}" if result.refused is not None else "")


def _without_failure(result: Result) -> tuple[Answer, str]:
    counts, training = result.counts(), result.training
    same_steps = training is None or training.other_bits is None or not training.judged
    precise = [row for row in result.rows if row.reason is Reason.OVER_PRECISE]
    if not result.compared - counts[Reason.IDENTICAL] and same_steps and (result.compared or (training is not None and training.identical)):
        return Answer.IDENTICAL, "identical"
    by_run = training is not None and training.judged_by in (JudgedBy.BASELINE, JudgedBy.REPEAT)
    told = result.baseline is not None or (result.series_only and by_run)
    words = "rounding" if told else "rounding, as far as fixed limits tell"
    return Answer.ROUNDING, words + (f"; {len(precise)} over-precise, the first {result.place(precise[0])}" if precise else "")


def _parted(training: TrainingResult, parting: Parting) -> tuple[Answer, str]:
    """The conclusion where no row fails, but the runs part."""
    if training.judged_by is JudgedBy.DEFAULT and parting.quantity is not None:
        return Answer.NOT_SURE, f"{parting}; by fixed limits: a baseline, or a second golden run, tells how far such runs wander"
    return (Answer.BUG if parting.quantity is not None else Answer.NOT_SURE), str(parting)


def _given_differently(findings: Iterable[Finding]) -> str:
    """What pre-flight found of weights and inputs, which alone explains any difference."""
    return next(
        (each.message for each in findings if each.serious and not each.of_baseline and each.about in (About.GIVEN, About.WEIGHTS)), ""
    )


def _named(result: Result, culprit: Culprit) -> str:
    record = culprit.row.record
    assert record is not None
    several = any(len(side.manifest.steps) > 1 for side in (result.golden, result.candidate))
    step = f" in step {record.step}" if several else ""
    metrics = culprit.row.metrics
    if culprit.scaled is not None:
        return f"{culprit.place}{step}: {culprit.scaled.words}"
    if culprit.buffer and metrics is not None and metrics.max_rel is not None:
        return f"the model computes another {culprit.buffer}: max rel diff {metrics.max_rel:.3g}"
    if record.role in WRITTEN_ROLES and culprit.reason in UNMATCHED:
        return f"{culprit.place}{step}: only {'golden' if culprit.row.candidate is None else 'the candidate'} writes there"
    if culprit.reason in (*STRUCTURAL, Reason.NON_FINITE):
        return f"{culprit.place}{step}, {culprit.reason.value}"
    if different := different_values(culprit.row):
        return f"{culprit.place}{step}, {different}"
    if record.role is Role.STATE_BEFORE and metrics is not None and metrics.elements == 1:  # a number of a parameter group
        return f"{culprit.place}{step}: {metrics.golden_at_max:g} in golden, {metrics.candidate_at_max:g} in the candidate"
    if not culprit.size:  # digests differ, and nothing was measured
        return f"{culprit.place}{step}, other bits"
    beyond = "excess" if culprit.excess is not None else "x limit"
    return f"{culprit.place}{step}, {beyond} {culprit.size:.3g}"
