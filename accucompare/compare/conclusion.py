"""Rounding or a bug, and where: what is concluded of the result of a diff."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from accucompare.bundle.format import GRADIENT_ROLES, SERIES_ROLES, WRITTEN_ROLES, Role
from accucompare.compare.origins import STRUCTURAL, Culprit, Stage, different_values, is_choice, is_of_glue
from accucompare.compare.result import Result
from accucompare.compare.rows import STATUS_OF, UNMATCHED, About, PreflightFinding, Reason, Row, Status
from accucompare.compare.runs import JudgedBy, Parting, TrainingResult, clipped, number_of, number_words
from accucompare.selection import RoleGroup
from accucompare.text import counted

#: How often the first culprit was the right one among planted faults (`make bench-faults`), as the report says it.
TRUST = {
    "free": "without a baseline, the first layer over tolerance is where the error was made in about half of the cases only",
    "free baseline": "free-running, the first culprit is the right one in about 9 of 10 cases; a fed capture is surer",
}


#: Follows what is over limits that the user gave.
_OVER_GIVEN = "over the tolerance asked for"


class Answer(str, Enum):
    """What a comparison concludes. It decides the exit code."""

    IDENTICAL = "identical"
    ROUNDING = "rounding"
    WITHIN = "within tolerance"  # the user's own
    BUG = "bug"
    DIFFERENT = "different"  # over its limits, and nothing tells that from rounding, or which error is a bug
    NOT_SURE = "not sure"


#: 0: nothing is wrong; 1: a difference that fails; 2: nothing to rely on.
EXIT_CODES = {
    Answer.IDENTICAL: 0,
    Answer.ROUNDING: 0,
    Answer.WITHIN: 0,
    Answer.BUG: 1,
    Answer.DIFFERENT: 1,
    Answer.NOT_SURE: 2,
}

#: Answers that find nothing wrong. In words they begin with the answer.
ALL_CLEAR = tuple(answer for answer, code in EXIT_CODES.items() if not code)


def exit_code(answer: Answer) -> int:
    """The exit code of an answer: 0, 1 or 2."""
    return EXIT_CODES[answer]


class Conclusion(NamedTuple):
    """The conclusion of a comparison.

    Attributes:
        answer: in one word, to decide by.
        words: in one sentence; of an all-clear it begins with the answer.
    """

    answer: Answer
    words: str

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return exit_code(self.answer) == 0

    @property
    def trouble(self) -> str:
        """Why there is no answer to rely on; ``""`` if there is one."""
        return self.words if self.answer is Answer.NOT_SURE else ""

    def __str__(self) -> str:
        """One line that begins with the answer."""
        return self.words if self.answer in ALL_CLEAR else f"{self.answer.value}: {self.words}"


def conclude(result: Result) -> Conclusion:
    """What is concluded of a result, by the first rule that has an answer."""
    return next(conclusion for rule in _RULES if (conclusion := rule(result)) is not None)


def trust(result: Result) -> str:
    """How far the first culprit can be trusted; ``""`` where it is the right one nearly always."""
    if result.fed or not result.culprits:
        return ""
    return TRUST["free" if result.baseline is None else "free baseline"]


#: What may do more than rounding, and too little to show.
_GIVEN = {
    About.CONFIGURATION: "configured otherwise",
    About.MODE: "run otherwise",
    About.WEIGHTS: "given otherwise",
    About.GIVEN: "given otherwise",
}


def _given_otherwise(result: Result) -> Iterator[str]:
    """Weights, inputs, modes and attributes of modules that differ. Where all bits agree, they do nothing."""
    found: dict[str, list[str]] = {}
    for finding in result.preflight:
        if finding.about in _GIVEN and finding.serious and not finding.of_baseline:
            found.setdefault(_GIVEN[finding.about], []).append(finding.message)
    for row in result.rows:  # a limit of the user's may be larger than a number that an optimizer was given
        record, metrics = row.record, row.metrics
        if record is not None and record.is_of_group and metrics is not None and metrics.max_abs:
            found.setdefault("trained otherwise", []).append(f"{result.place(row)}: {_both(row)}")
    for how, messages in found.items():
        yield f"{how}: {messages[0]}" + (f", and {len(messages) - 1} more" if len(messages) > 1 else "")


def _chosen(result: Result) -> Iterator[str]:
    """What of a model was asked for, where that is not all."""
    asked: dict[str, list[str]] = {}
    for name, side in (("golden", result.golden), ("the candidate", result.candidate)):
        options = side.manifest.options
        words = [f"--{option} {value}" for option, values in (("only", options.only), ("skip", options.skip)) for value in values or ()]
        groups = [group for group in RoleGroup if group is not RoleGroup.SERIES]
        if options.roles is not None and not options.no_backward and not set(groups) <= set(options.roles):
            words.append(f"--roles {','.join(options.roles)}")
        if words:
            asked.setdefault(" ".join(words), []).append(name)
    yield from (f"{' and '.join(names)} captured with {words}" for words, names in asked.items())
    if result.left_out:
        yield f"{counted(result.left_out, 'record')} left out by --only and --skip"


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
    if overruled := result.candidate.manifest.options.overruled:
        more = f", and {len(overruled) - 2} more" if len(overruled) > 2 else ""
        yield f"not golden's in the case, and replaced by golden's: {', '.join(overruled[:2])}{more}"
    if all(result.hashes):
        yield "by hashes of another tool: no values were read, and those of other values may be equal"
    counts = [len(manifest.series if result.series_only else manifest.steps) for manifest in sides]
    if result.training is not None and (bad := result.training.not_finite) is not None:
        yield f"NaN or Inf on both sides from step {bad.step} on"
    if counts[0] != counts[1]:
        yield f"{min(counts)} of {max(counts)} steps"
    for name, side in (("golden", sides[0]), ("the candidate", sides[1])):
        if side.options.imported is None and not side.options.written and side.model.get("buffers"):
            yield f"what calls write into buffers was not compared: {name} was captured by a version that does not record it"
            break
    yield from _chosen(result)
    if uncompared := result.uncompared:
        first = f"{result.place(uncompared[0])}, {uncompared[0].verdict.detail}"
        yield f"{len(uncompared)} of {len(result.rows)} rows could not be compared, the first {first}"
    if broadcast := result.broadcast:
        yield f"{counted(len(broadcast), 'row')} of two shapes, the first {result.place(broadcast[0])}, the same when broadcast"
    if alone := result.unmatched():
        first = result.place(alone[0])
        yield f"{counted(len(alone), 'row')} on one side only, the first {first}, and all that both compute around it agrees"
    if result.by_statistics and result.baseline is not None:
        yield f"{counted(result.by_statistics, 'row')} judged by statistics alone"
    if result.by_sketch:
        yield f"{counted(result.by_sketch, 'row')} judged by sketches"
    if result.without_baseline:
        yield f"{counted(result.without_baseline, 'row')} judged without the baseline"
    if result.not_proved:
        yield f"the baseline is not proved: {result.not_proved}"
    if result.golden_made_here:
        yield "golden was made here, in the candidate's environment, whose own faults are not seen"
    if driven := sum(row.verdict.conditioned for row in result.rows):
        yield f"{counted(driven, 'row')} far off, as golden's own code is on rounded values"
    if result.by_digests and result.by_digests == result.compared and not all(result.hashes):
        steps = 0 if result.training is None else result.training.judged
        yield "by digests alone, no values were read" + (f" but losses and gradient norms of {counted(steps, 'step')}" if steps else "")


def _by_standard(result: Result) -> Conclusion | None:
    """A standard that was asked for decides in place of the rows."""
    accepted = result.acceptance
    if accepted is None:
        return None
    if trouble := accepted.trouble_of(result.training, result.incomplete):
        return Conclusion(Answer.NOT_SURE, trouble)
    if accepted.passed:
        return Conclusion(Answer.WITHIN, f"within tolerance: meets the standard {accepted.standard.value}")
    return Conclusion(Answer.DIFFERENT, f"does not meet the standard {accepted.standard.value}")


def _without_verdict(result: Result) -> Conclusion | None:
    """Too little was compared, or what was compared proves nothing."""
    return Conclusion(Answer.NOT_SURE, result.trouble_of_rows) if result.trouble_of_rows else None


def _poorly_judged(result: Result) -> Conclusion | None:
    """Rows fail by a baseline that cannot judge. A limit of the user's needs none."""
    doubt = result.poor_baseline or result.judged_by_few
    return Conclusion(Answer.NOT_SURE, doubt) if doubt and not result.by_user else None


def _all_clear(result: Result) -> Conclusion | None:
    if result.failed:
        return None
    answer, words = _without_failure(result)
    otherwise = _given_otherwise(result) if answer is not Answer.IDENTICAL else []
    return Conclusion(answer, "; ".join([words, *otherwise, *_not_looked_at(result)]))


def _parted(result: Result) -> Conclusion | None:
    """No row fails, but two runs of training part."""
    training, parting = result.training, result.parting
    if training is None or parting is None or result.counts_by_status()[Status.FAIL]:
        return None
    return _of_parting(training, parting)


def _parted_before(result: Result) -> Conclusion | None:
    """Rows fail, but two runs of training part before any of them does."""
    training, parting = result.training, result.parting
    if training is None or parting is None or not _before_culprits(parting, result.culprits):
        return None
    return _of_parting(training, parting)


def _of_parting(training: TrainingResult, parting: Parting) -> Conclusion:
    if parting.quantity is None:
        return Conclusion(Answer.DIFFERENT, str(parting))
    if training.judged_by is JudgedBy.GIVEN and not (parting.clips_alone or parting.of_no_number):
        return Conclusion(Answer.DIFFERENT, f"{parting}; {_OVER_GIVEN}")
    if training.judged_by is JudgedBy.DEFAULT and not parting.clips_otherwise:
        return Conclusion(
            Answer.DIFFERENT, f"{parting}; by fixed limits: a baseline, or a second golden run, tells how far such runs wander"
        )
    return Conclusion(Answer.BUG, str(parting))


def _given_other_things(result: Result) -> Conclusion | None:
    """Another model, other weights or other inputs: then the errors say nothing of the code."""
    if result.other_model is not None:
        return Conclusion(Answer.DIFFERENT, str(result.other_model))
    different = _given_differently(result.preflight)
    different = different or ("the two models were given different inputs" if result.counts()[Reason.INPUTS_DIFFER] else "")
    return Conclusion(Answer.DIFFERENT, different) if different else None


def _far_beyond(result: Result) -> Conclusion | None:
    """Only rows fail that the baseline itself has no explanation for."""
    if result.far_beyond and all(culprit.row.verdict.beyond or culprit.reason in STRUCTURAL for culprit in result.culprits):
        return Conclusion(Answer.NOT_SURE, result.far_beyond)
    return None


def _first_over(result: Result) -> Conclusion | None:
    """Rows fail, but nothing tells which of them shows a bug."""
    if not result.culprits:
        counts = result.counts()
        reasons = ", ".join(f"{count} {reason.value}" for reason, count in counts.items() if STATUS_OF[reason] is Status.FAIL)
        return Conclusion(Answer.DIFFERENT, f"rows fail ({reasons}), and none of them shows in which layer that began")
    culprit = result.culprits[0]
    if not result.fed and result.baseline is None and culprit.scaled is None and not culprit.row.lost:
        first = min(result.culprits, key=_when)
        if culprit is first:
            which = "is the first over tolerance"
        else:
            which = "is over tolerance in most steps" if culprit.seen > first.seen else "is over tolerance"
        return Conclusion(Answer.DIFFERENT, f"{_named(result, culprit)} {which}; {TRUST['free']}")
    if culprit.reason in STRUCTURAL and is_of_glue(culprit):
        off = any(row.status is Status.FAIL and row.reason not in (*STRUCTURAL, *UNMATCHED) for row in result.rows)
        after = "values after it are off, and may be for that" if off else "no value after it shows an error of its own"
        return Conclusion(Answer.DIFFERENT, f"{_named(result, culprit)}; {after}")
    return None


def _told_apart(result: Result) -> list[Culprit]:
    """The culprits whose error is no rounding: a baseline tells so, or no rounding makes such an error."""
    return [culprit for culprit in result.culprits if _is_no_rounding(result, culprit)]


def _is_no_rounding(result: Result, culprit: Culprit) -> bool:
    row, record = culprit.row, culprit.row.record
    if culprit.scaled is not None or culprit.reason in (*STRUCTURAL, *UNMATCHED, Reason.NON_FINITE) or row.verdict.evident:
        return True
    if record is None or row.golden is None or row.candidate is None or record.is_of_group or row.verdict.option is not None:
        return True
    if is_choice(row):  # fewer than many may be choices among nearly equal values
        return math.isinf(culprit.size)
    return record.role in SERIES_ROLES and result.baseline is not None and result.tolerances.of_user(row.candidate) is None


def _by_limits(result: Result) -> Conclusion | None:
    """Rows fail by limits that do not tell rounding from a bug, and by no more than rounding may be off."""
    if _told_apart(result):
        return None
    candidate = result.culprits[0].row.candidate
    if candidate is not None and result.tolerances.of_user(candidate) is not None:
        why = _OVER_GIVEN
    else:
        why = "by fixed limits: a baseline tells" if result.refused is None else f"by fixed limits, since {result.refused}"
    return Conclusion(Answer.DIFFERENT, "; ".join(filter(None, (_culprits_named(result, result.culprits), result.unproved_words, why))))


def _culprits_named(result: Result, culprits: Sequence[Culprit]) -> str:
    named = "; and ".join(_named(result, culprit) for culprit in culprits[: 2 if result.fed else 1])
    more = len(result.culprits) - 2
    return named + (f"; and {more} more" if result.fed and more > 0 else "")


def _when(culprit: Culprit) -> tuple[int, int]:
    record = culprit.row.record
    assert record is not None
    return record.step, record.order


def _bug(result: Result) -> Conclusion:
    told = _told_apart(result)
    words = _culprits_named(result, [*told, *(culprit for culprit in result.culprits if culprit not in told)])
    words += f"; {result.unproved_words}" if result.unproved else ""
    return Conclusion(Answer.BUG, words + (f"; by fixed limits, since {result.refused}" if result.refused is not None else ""))


#: In this order; the first that has an answer decides.
_RULES: tuple[Callable[[Result], Conclusion | None], ...] = (
    _by_standard,
    _without_verdict,
    _all_clear,
    _poorly_judged,
    _parted,
    _given_other_things,
    _far_beyond,
    _parted_before,
    _first_over,
    _by_limits,
    _bug,
)


def _without_failure(result: Result) -> tuple[Answer, str]:
    counts, training = result.counts(), result.training
    same_steps = training is None or training.other_bits is None or not training.judged
    precise = [row for row in result.rows if row.reason is Reason.OVER_PRECISE]
    identical = not result.compared - counts[Reason.IDENTICAL] and not any(result.hashes)
    if identical and same_steps and (result.compared or (training is not None and training.identical)):
        return Answer.IDENTICAL, "identical in what was compared" if result.uncompared else "identical"
    if result.by_user:
        return Answer.WITHIN, f"within tolerance ({result.tolerances.otherwise})"
    if any(result.hashes):
        return Answer.ROUNDING, "rounding at most"
    by_run = training is not None and training.judged_by in (JudgedBy.BASELINE, JudgedBy.REPEAT)
    told = result.baseline is not None or (result.series_only and by_run)
    words = "rounding" if told else "rounding, as far as fixed limits tell"
    return Answer.ROUNDING, words + (f"; {len(precise)} over-precise, the first {result.place(precise[0])}" if precise else "")


def _before_culprits(parting: Parting, culprits: Iterable[Culprit]) -> bool:
    """Whether numbers of a step, or what it was told to do, show an error before any row does."""
    found = [(each.row.record.step, each.stage) for each in culprits if each.row.record is not None]
    first = {Stage.UPDATE: parting.clips_otherwise, Stage.BACKWARD: parting.of_no_number, Stage.LOSS: parting.of_no_number}
    later = [step > parting.step or (step == parting.step and first.get(stage, False)) for step, stage in found]
    return parting.row is None and all(later)


def _given_differently(findings: Iterable[PreflightFinding]) -> str:
    """What pre-flight found of weights and inputs, which alone explains any difference."""
    return next(
        (each.message for each in findings if each.serious and not each.of_baseline and each.about in (About.GIVEN, About.WEIGHTS)), ""
    )


def _number_named(culprit: Culprit, step: int | None) -> str:
    """``the loss in step 2: 0.5464 in the candidate, 0.0464 in golden``."""
    golden, candidate = (None if record is None else number_of(record) for record in (culprit.row.golden, culprit.row.candidate))
    if culprit.stage is Stage.UPDATE:
        return clipped(golden, candidate) + ("" if step is None else f", step {step}")
    where = culprit.place + ("" if step is None else f" in step {step}")
    return f"{where}: {number_words(candidate)} in the candidate, {number_words(golden)} in golden"


def _both(row: Row) -> str:
    """A number on both sides, by its statistics, which every mode keeps."""
    golden, candidate = (math.nan if record is None else number_of(record) for record in (row.golden, row.candidate))
    return f"{golden:g} in golden, {candidate:g} in the candidate"


def _named(result: Result, culprit: Culprit) -> str:
    record = culprit.row.record
    assert record is not None
    several = any(len(side.manifest.steps) > 1 for side in (result.golden, result.candidate))
    step = f" in step {record.step}" if several and culprit.stage is not Stage.BETWEEN else ""
    metrics = culprit.row.metrics
    if record.role in SERIES_ROLES:
        return _number_named(culprit, record.step if several else None)
    if culprit.scaled is not None:
        return f"{culprit.place}{step}: {culprit.scaled.words}"
    if culprit.buffer and metrics is not None and metrics.max_rel is not None:
        return f"the model computes another {culprit.buffer}: max rel diff {metrics.max_rel:.3g}"
    if record.role in WRITTEN_ROLES and culprit.reason in UNMATCHED:
        return f"{culprit.place}{step}: only {'golden' if culprit.row.candidate is None else 'the candidate'} writes there"
    if culprit.row.lost:
        if culprit.stage is Stage.BETWEEN:
            return f"{culprit.place}, in {'golden' if culprit.reason is Reason.MISSING else 'the candidate'} alone"
        has, lacks = ("golden", "the candidate") if culprit.reason is Reason.MISSING else ("the candidate", "golden")
        what = "makes it" if record.role is Role.PARAM_UPDATE or culprit.whole else "has a gradient there"
        return f"{culprit.place}{step}: {has} {what}, {lacks} {'does not' if what == 'makes it' else 'has none'}"
    if culprit.reason in (*STRUCTURAL, Reason.NON_FINITE):
        return f"{culprit.place}{step}, {culprit.reason.value}"
    if different := different_values(culprit.row):
        return f"{culprit.place}{step}, {different}"
    if record.role is Role.STATE_BEFORE and metrics is not None and metrics.elements == 1:  # a number of a parameter group
        return f"{culprit.place}{step}: {_both(culprit.row)}"
    if not culprit.size:  # digests differ, and nothing was measured
        return f"{culprit.place}{step}, other bits"
    beyond = "excess" if culprit.excess is not None else "x limit"
    return f"{culprit.place}{step}, {beyond} {culprit.size:.3g}"
