"""The result of a diff, and what is concluded of it."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from accucompare.bundle.manifest import Manifest
from accucompare.bundle.records import GRADIENT_ROLES, Record, Role
from accucompare.compare.acceptance import Acceptance
from accucompare.compare.culprits import STRUCTURAL, different_values, is_of_glue
from accucompare.compare.ladder import JudgedBy, Parting, TrainingResult
from accucompare.compare.models import OtherModel
from accucompare.compare.operator_rows import is_operator
from accucompare.compare.provenance import OtherCode
from accucompare.compare.rows import STATUS_OF, UNMATCHED, About, Finding, Reason, RefusedBaseline, Row, Status
from accucompare.compare.sites import Culprit
from accucompare.compare.step_pairs import percent
from accucompare.compare.tolerance import Tolerances
from accucompare.compare.unseen import unseen

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


@dataclass(frozen=True)
class Side:
    """One of the two bundles, as the report shows it."""

    path: Path
    manifest: Manifest
    complete: bool = True  # on every rank


@dataclass(frozen=True, repr=False)
class Result:
    """Two bundles compared.

    Attributes:
        golden, candidate: the bundles.
        rows: every pair and every unmatched record, in golden's execution order; modules never called come last.
        preflight: what differs about how the two were captured, the most telling first.
        tolerances: the limits in force.
        left_out: how many records ``only`` and ``skip`` left out, both sides together.
        damage: records that could not be read (only with ``keep_going``; without it the first one raises).
        baseline: the bundle that shows how large an error rounding alone makes; ``None`` if none was given.
        culprits: where errors are made, the most certain first.
        without_baseline: how many compared rows the baseline has no record of.
        refused: the baseline that was given or needed, if it may not judge; ``baseline`` is ``None`` then.
        unseen: what differs in the code of the two cases' optimizers, whose updates no record shows.
        maps: the renamings of golden's layers in force, as ``--map`` takes them.
        verified: whether tensors of equal digests were read too.
        other_model: what shows that the two bundles are not of one model, for which no culprit is named; ``None`` if they are.
        proposed_maps: those that would bring more layers together.
        training: the steps of two runs of training, compared; ``None`` where neither bundle has a series of numbers of them.
        acceptance: what came of the standard that was asked for, which then decides in place of the rows; ``None`` if none was.
    """

    golden: Side
    candidate: Side
    rows: list[Row]
    preflight: list[Finding] = field(default_factory=list)
    tolerances: Tolerances = field(default_factory=Tolerances)
    left_out: int = 0
    damage: list[str] = field(default_factory=list)
    baseline: Side | None = None
    culprits: list[Culprit] = field(default_factory=list)
    without_baseline: int = 0
    refused: RefusedBaseline | None = None
    unseen: OtherCode = field(default_factory=OtherCode)
    maps: list[str] = field(default_factory=list)
    verified: bool = False
    other_model: OtherModel | None = None
    proposed_maps: list[str] = field(default_factory=list)
    training: TrainingResult | None = None
    acceptance: Acceptance | None = None

    @property
    def fed(self) -> bool:
        """Whether each of the candidate's module calls was given golden's values, so that its error is its own."""
        return self.candidate.manifest.fed

    @property
    def conclusion(self) -> str:
        """Rounding or a bug, and where, in one line that begins with ``rounding``, ``bug``, ``not sure`` or ``identical``."""
        answer, words = _conclude(self)
        return words if answer in ALL_CLEAR else f"{answer.value}: {words}"

    @property
    def answer(self) -> Answer:
        """The conclusion in one word, to decide by."""
        return _conclude(self)[0]

    @property
    def trust(self) -> str:
        """How far the first culprit can be trusted, where that must be said."""
        if self.fed or not self.culprits:
            return ""
        return TRUST["free" if self.baseline is None else "free baseline"]

    @property
    def compared(self) -> int:
        """How many rows are about both sides: those that pass, and those that fail for another reason than being alone."""
        return sum(row.status is not Status.NOT_COMPARED and row.reason not in UNMATCHED for row in self.rows)

    @property
    def by_statistics(self) -> int:
        """How many rows were judged by statistics alone."""
        return sum(row.by_statistics for row in self.rows)

    @property
    def by_digests(self) -> int:
        """How many rows are identical by the digests that were taken when they were captured: their values were not read now."""
        rows = (row for row in self.rows if row.reason is Reason.IDENTICAL and row.metrics is not None)
        return sum(not self.verified or None in (row.golden and row.golden.member, row.candidate and row.candidate.member) for row in rows)

    @property
    def nonfinite_on_both(self) -> int:
        """How many rows hold NaN or Inf on both sides, which agree as far as they are in the same places."""
        return sum(_nonfinite(row.golden) and _nonfinite(row.candidate) for row in self.rows)

    @property
    def incomplete(self) -> list[str]:
        """The sides whose capture did not run to its end: ``golden``, ``the candidate``."""
        return [name for name, side in (("golden", self.golden), ("the candidate", self.candidate)) if not side.complete]

    @property
    def passed(self) -> bool:
        """Whether something was compared, nothing failed, nothing was unreadable, and both captures ran to their end.

        With a standard to meet, whether it is met.
        """
        if self.acceptance is not None:
            return self.acceptance.passed and not self.trouble
        counts = self.counts_by_status()
        return bool(counts[Status.PASS] or self.steps_judged) and not self.failed and not self.trouble

    @property
    def failed(self) -> bool:
        """Whether a row fails, or two runs of training part by more than rounding explains."""
        return bool(self.counts_by_status()[Status.FAIL]) or self.parting is not None

    @property
    def parting(self) -> Parting | None:
        """Where two runs of training part; ``None`` if they do not, or nothing tells."""
        return None if self.training is None else self.training.parting

    @property
    def steps_judged(self) -> int:
        """How many steps of training were judged by their losses and gradient norms."""
        return 0 if self.training is None else self.training.judged

    @property
    def series_only(self) -> bool:
        """Whether losses and gradient norms were compared, and no layer."""
        return bool(self.steps_judged) and not self.compared

    @property
    def trouble(self) -> str:
        """Why there is no verdict to rely on, in a few words; ``""`` if there is one."""
        return self.trouble_of_rows if self.acceptance is None else _trouble_of_standard(self, self.acceptance)

    @property
    def trouble_of_rows(self) -> str:
        """The same whatever standard was asked for."""
        if not self.compared and not self.steps_judged:
            return "nothing could be compared"
        if self.damage:
            return f"{len(self.damage)} record(s) could not be read"
        if unverified := [finding.message for finding in self.preflight if finding.about is About.UNVERIFIED]:
            return unverified[0] + (f"; and {len(unverified) - 1} more" if len(unverified) > 1 else "")
        if self.incomplete and not self.failed:
            return f"what there is agrees, but the capture of {' and of '.join(self.incomplete)} did not run to its end"
        unsteady = [row for row in self.rows if row.reason is Reason.NOT_DETERMINISTIC]
        if unsteady and not self.counts_by_status()[Status.FAIL]:
            return f"{len(unsteady)} row(s) are not deterministic, the first {self.place(unsteady[0])}"
        if self.failed:
            return ""
        if self.poor_baseline:
            return self.poor_baseline
        if self.training is not None and (unclear := _unclear_steps(self.training)):
            return unclear
        if 2 * self.without_baseline > self.compared:
            return f"the baseline judges {self.compared - self.without_baseline} of {self.compared} compared rows only"
        beyond = [row for row in self.rows if row.verdict.beyond]
        if beyond:
            error = "" if beyond[0].metrics is None else f" by rel_l2 {beyond[0].metrics.rel_l2:.3g}"
            return (
                f"{self.place(beyond[0])} is off{error}, far beyond rounding, and so is the baseline: "
                "it may have the fault too, or rounding changed a choice before; a fed capture tells"
            )
        if hidden := self.unseen_words:
            return hidden
        if self.refused is not None:
            return f"everything is within fixed limits, which miss small faults, and {self.refused}"
        if self.unseen:
            return f"what was compared agrees, but the optimizer's code differs ({self.unseen}), and no update was compared"
        return ""

    @property
    def unseen_words(self) -> str:
        """How much could not be compared where an error could begin, and where first; ``""`` if nothing that hides one."""
        found = unseen(self.rows, self.fed)
        if found is None:
            return ""
        where = f"{self.place(found.first)} ({found.first.verdict.detail})"
        return (
            f"what was compared agrees, but {found.count} of {len(self.rows)} rows could not be, and an error may hide there: first {where}"
        )

    @property
    def poor_baseline(self) -> str:
        """What the baseline was given otherwise than golden, weights or inputs or mode, so that it cannot judge; ``""`` if nothing."""
        return next((finding.message for finding in self.preflight if finding.serious and finding.of_baseline), "")

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {reason.value}" for reason, count in self.counts().items())
        passed = "passed" if self.passed else "not passed"
        return f"<{type(self).__name__} of {self.candidate.path} with {self.golden.path}: {passed}; {counts}>"

    @property
    def first_divergence(self) -> Row | None:
        """The first row that fails, in execution order; ``None`` if none does. Missing and extra records do not diverge."""
        return next((row for row in self.rows if row.status is Status.FAIL and row.reason not in UNMATCHED), None)

    @property
    def identical_until(self) -> Row | None:
        """The first row with other bits, where those before it are bit for bit identical, and some of them computed.

        ``None`` if no row has other bits, or nothing that was computed comes before it; and of a fed comparison, whose rows each
        stand alone. Rows without partner, and those whose bits are not known, are passed over.
        """
        if self.fed:
            return None
        computed = False
        for row in self.rows:
            if row.same_bits is False:
                return row if computed else None
            computed = computed or bool(row.same_bits and row.golden is not None and row.golden.role in (Role.OUTPUT, Role.OP_OUTPUT))
        return None

    def place(self, row: Row) -> str:
        """Where a row is, with its step and rank where there are several: ``encoder.0.fc1 output (step 2, rank 1)``."""
        return row.place + self.step_and_rank(row)

    def step_and_rank(self, row: Row) -> str:
        """`` (step 2, rank 1)``, where there are several of each; else ``""``."""
        manifests = (self.golden.manifest, self.candidate.manifest)
        numbers = []
        if row.record is not None and any(len(manifest.steps) > 1 for manifest in manifests):
            numbers.append(f"step {row.record.step}")
        if row.record is not None and any(manifest.ranks > 1 for manifest in manifests):
            numbers.append(f"rank {row.record.rank}")
        return f" ({', '.join(numbers)})" if numbers else ""

    def counts(self) -> Counter[Reason]:
        """Number of rows by reason; they add up to ``len(rows)``."""
        return Counter(row.reason for row in self.rows)

    def counts_by_status(self) -> Counter[Status]:
        return Counter(row.status for row in self.rows)

    def worst(self, count: int = 10) -> list[Row]:
        """The rows furthest over tolerance, then the largest relative L2 errors; rows without any difference left out."""
        different = (row for row in self.rows if row.metrics and _badness(row)[1:] > (0.0, 0.0))
        return heapq.nlargest(count, different, key=_badness)

    def unmatched(self) -> list[Row]:
        """The rows that have only one side."""
        return [row for row in self.rows if row.reason in UNMATCHED]


def _nonfinite(record: Record | None) -> bool:
    return record is not None and record.statistics is not None and bool(record.statistics.nan or record.statistics.inf)


def _badness(row: Row) -> tuple[int, float, float]:
    metrics = row.metrics
    assert metrics is not None
    return (row.status is Status.FAIL) + bool(metrics.nonfinite_mismatch), row.verdict.used or 0.0, metrics.rel_l2


def _conclude(result: Result) -> tuple[Answer, str]:
    """The answer, and the conclusion in words; see ``Result.conclusion``."""
    if result.trouble_of_rows or result.poor_baseline:
        return Answer.NOT_SURE, result.trouble_of_rows or result.poor_baseline
    if 2 * result.without_baseline > result.compared:
        judged = result.compared - result.without_baseline
        return Answer.NOT_SURE, f"the baseline judges {judged} of {result.compared} compared rows only"
    answer, words = _concluded(result)
    configured = _configured_otherwise(result) if answer is Answer.ROUNDING else []
    return answer, "; ".join([words, *configured, *_not_looked_at(result)]) if answer in ALL_CLEAR else words


def _configured_otherwise(result: Result) -> Iterator[str]:
    """What may be more than rounding and too small to show; where all is bit for bit identical, it makes no difference."""
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
    counts = [len(manifest.steps) for manifest in sides]
    if result.training is not None and (bad := result.training.not_finite) is not None:
        yield f"NaN or Inf on both sides from step {bad.step} on"
    if counts[0] != counts[1]:
        yield f"{min(counts)} of {max(counts)} steps"
    not_compared = (row.reason is Reason.NOT_COMPARABLE and not is_operator(row.record) for row in result.rows)
    if uncompared := sum(not_compared):
        yield f"{uncompared} of {len(result.rows)} rows could not be compared"
    if result.by_statistics and result.baseline is not None:
        yield f"{result.by_statistics} rows judged by statistics alone"
    if alone := result.without_baseline:
        yield f"{alone} row{'s' if alone > 1 else ''} judged without the baseline"
    if result.by_digests and result.by_digests == result.compared:
        yield "by digests alone, no values were read"


def _concluded(result: Result) -> tuple[Answer, str]:
    counts = result.counts()
    if not result.counts_by_status()[Status.FAIL]:
        return _without_failure(result) if result.training is None or result.parting is None else _parted(result.training, result.parting)
    if result.other_model is not None:
        return Answer.NOT_SURE, str(result.other_model)
    different = _given_differently(result.preflight) or (counts[Reason.INPUTS_DIFFER] and "the two models were given different inputs")
    if different:
        return Answer.NOT_SURE, different
    beyond = [row for row in result.rows if row.verdict.beyond]
    if beyond and all(culprit.row.verdict.beyond or culprit.reason in STRUCTURAL for culprit in result.culprits):
        error = "" if beyond[0].metrics is None else f" by rel_l2 {beyond[0].metrics.rel_l2:.3g}"
        where = result.place(beyond[0])
        return Answer.NOT_SURE, f"{where} is off{error}, far beyond rounding, and so is the baseline: it may have the fault too"
    if not result.culprits:
        reasons = ", ".join(f"{count} {reason.value}" for reason, count in counts.items() if STATUS_OF[reason] is Status.FAIL)
        return Answer.NOT_SURE, f"no place shows an error of its own ({reasons})"
    culprit = result.culprits[0]
    first = _named(result, culprit)
    if not result.fed and result.baseline is None:
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
    told = result.baseline is not None or (result.series_only and training is not None and training.judged_by in _TOLD)
    words = "rounding" if told else "rounding, as far as fixed limits tell"
    return Answer.ROUNDING, words + (f"; {len(precise)} over-precise, the first {result.place(precise[0])}" if precise else "")


#: What says how far runs may be apart, and is no fixed limit.
_TOLD = (JudgedBy.BASELINE, JudgedBy.REPEAT)


def _parted(training: TrainingResult, parting: Parting) -> tuple[Answer, str]:
    """The conclusion where no row fails, but the runs part."""
    if training.judged_by is JudgedBy.DEFAULT and parting.quantity is not None:
        return Answer.NOT_SURE, f"{parting}; by fixed limits: a baseline, or a second golden run, tells how far such runs wander"
    return (Answer.BUG if parting.quantity is not None else Answer.NOT_SURE), str(parting)


def _unclear_steps(training: TrainingResult) -> str:
    """Why steps that are within their limits prove nothing; ``""`` if they do."""
    if training.judged_by is JudgedBy.NOTHING:
        return ""
    if training.beyond is not None:
        pair, quantity, apart = training.beyond
        found = f"the {quantity.value} at step {pair.step} is {percent(abs(apart.relative))} off"
        return f"{found}, far beyond rounding, and so is the run that judges"
    if missing := training.alone[0]:
        return f"what there is agrees, but the candidate lacks {missing} of golden's {len(training.pairs) - training.alone[1]} steps"
    return ""


def _trouble_of_standard(result: Result, acceptance: Acceptance) -> str:
    """Why it cannot be said whether a standard is met."""
    if result.training is None or not result.training.compared:
        return (
            f"there are no losses to judge by the standard {acceptance.standard.value}: capture both sides with --roles series, of a case "
            "with a loss"
        )
    if result.incomplete and not acceptance.failed:
        return f"the standard is met as far as it goes, but the capture of {' and of '.join(result.incomplete)} did not run to its end"
    missing = result.training.alone[0]
    if missing and not acceptance.failed:
        return f"the standard is met as far as it goes, but the candidate lacks {missing} of golden's steps"
    return acceptance.trouble


def _given_differently(findings: Iterable[Finding]) -> str:
    """What pre-flight found of weights and inputs, which alone explains any difference."""
    return next((each.message for each in findings if each.serious and not each.of_baseline and each.about is About.GIVEN), "")


def _named(result: Result, culprit: Culprit) -> str:
    record = culprit.row.record
    assert record is not None
    several = any(len(side.manifest.steps) > 1 for side in (result.golden, result.candidate))
    step = f" in step {record.step}" if several else ""
    metrics = culprit.row.metrics
    if culprit.buffer and metrics is not None and metrics.max_rel is not None:
        return f"the model computes another {culprit.buffer}: max rel diff {metrics.max_rel:.3g}"
    if culprit.reason in (*STRUCTURAL, Reason.NON_FINITE):
        return f"{culprit.place}{step}, {culprit.reason.value}"
    if different := different_values(culprit.row):
        return f"{culprit.place}{step}, {different}"
    beyond = "excess" if culprit.excess is not None else "x limit"
    return f"{culprit.place}{step}, {beyond} {culprit.size:.3g}"
