"""One decision: ordered rules turn a result's facts into the answer, which gives the exit code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from accucompare.bundle.format import SERIES_ROLES
from accucompare.compare import facts
from accucompare.compare.constants import NEAR
from accucompare.compare.facts import BareFact, Fact
from accucompare.compare.judging import but_plain
from accucompare.compare.limits import other_configuration
from accucompare.compare.origins import STRUCTURAL, Culprit, Stage, is_choice, is_of_glue
from accucompare.compare.preflight_facts import About, BesideGolden, PreflightFinding
from accucompare.compare.remarks import TermsCancel
from accucompare.compare.result import Result
from accucompare.compare.rows import UNMATCHED, Reason, Status
from accucompare.compare.runs import JudgedBy, Parting, TrainingResult
from accucompare.selection import RoleGroup


class Answer(str, Enum):
    """What a comparison concludes. It decides the exit code."""

    IDENTICAL = "identical"
    IDENTICAL_SO_FAR = "identical in what was compared"  # some rows could not be compared
    ROUNDING = "rounding"
    WITHIN = "within tolerance"  # the user's own
    BUG = "bug"
    # over its limits, and nothing tells rounding from a bug, or which error is the bug
    DIFFERENT = "different"
    NOT_SURE = "not sure"


#: 0: nothing is wrong; 1: a difference that fails; 2: nothing to rely on.
EXIT_CODES = {
    Answer.IDENTICAL: 0,
    Answer.IDENTICAL_SO_FAR: 0,
    Answer.ROUNDING: 0,
    Answer.WITHIN: 0,
    Answer.BUG: 1,
    Answer.DIFFERENT: 1,
    Answer.NOT_SURE: 2,
}


@dataclass(frozen=True)
class Decision:
    """What is decided of a result."""

    answer: Answer
    # what it rests on, the most telling first; what an all-clear does not cover is last
    facts: tuple[Fact, ...]

    @property
    def exit_code(self) -> int:
        """0, 1 or 2."""
        return EXIT_CODES[self.answer]

    @property
    def passed(self) -> bool:
        return not self.exit_code


def decide(result: Result) -> Decision:
    """The decision of the first rule that has one."""
    return next(decision for rule in _RULES if (decision := rule(result)) is not None)


def _by_standard(result: Result) -> Decision | None:
    accepted = result.acceptance
    if accepted is None:
        return None
    if accepted.trouble_of(result.training, result.incomplete):
        return _not_sure(BareFact.STANDARD_NOT_JUDGED)
    if accepted.passed:
        return Decision(Answer.WITHIN, (BareFact.STANDARD_MET,))
    return _different(BareFact.STANDARD_MISSED)


def _nothing_to_rely_on(result: Result) -> Decision | None:
    trouble = next(_trouble(result), None)
    if trouble is None and not result.failed:
        trouble = next(_trouble_of_an_all_clear(result), None)
    return None if trouble is None else _not_sure(trouble)


def _all_clear(result: Result) -> Decision | None:
    if result.failed:
        return None
    answer, clear = _without_failure(result)
    otherwise = (
        () if answer in (Answer.IDENTICAL, Answer.IDENTICAL_SO_FAR) else _made_otherwise(result)
    )
    return Decision(
        answer,
        (
            *clear,
            *_near_float64(result),
            *otherwise,
            *_not_captured(result),
            *_not_compared(result),
            *_poorly_compared(result),
        ),
    )


def _by_poor_baseline(result: Result) -> Decision | None:
    if result.by_user:
        return None
    if result.poor_baseline is not None:
        return _not_sure(BareFact.POOR_BASELINE)
    return _not_sure(BareFact.JUDGED_BY_FEW) if _judged_by_few(result) else None


def _parted(result: Result) -> Decision | None:
    training, parting = result.training, result.parting
    if training is None or parting is None or result.counts_by_status()[Status.FAIL]:
        return None
    return _of_parting(training, parting)


def _given_other_things(result: Result) -> Decision | None:
    if result.other_model is not None:
        return _different(result.other_model)
    given = (
        each
        for each in result.preflight
        if each.serious and not each.of_baseline and each.about in (About.GIVEN, About.WEIGHTS)
    )
    if (finding := next(given, None)) is not None:
        return _different(facts.GivenDifferently(finding))
    return _different(BareFact.INPUTS_DIFFER) if result.counts()[Reason.INPUTS_DIFFER] else None


def _far_beyond(result: Result) -> Decision | None:
    if (row := result.far_beyond) is None:
        return None
    # its step made weights of gradients that are rounding alone
    last = row.record.step if row.record and row.verdict.says(TermsCancel) else math.inf
    explained = (
        each.row.verdict.beyond
        or each.reason in STRUCTURAL
        or (each.row.record is not None and each.row.record.step > last)
        for each in result.culprits
    )
    return _not_sure(BareFact.FAR_BEYOND) if all(explained) else None


def _at_padding(result: Result) -> Decision | None:
    if result.culprits and result.culprits[0].padding:
        return _different(_blamed(result, result.culprits), BareFact.AT_PADDING)
    return None


def _parted_before(result: Result) -> Decision | None:
    training, parting = result.training, result.parting
    if training is None or parting is None or not _before_culprits(parting, result.culprits):
        return None
    return _of_parting(training, parting)


def _first_over(result: Result) -> Decision | None:
    if not result.culprits:
        return _different(BareFact.NO_OWN_ERROR)
    culprit = result.culprits[0]
    if (
        not result.fed
        and result.baseline is None
        and culprit.scaled is None
        and not culprit.row.lost
    ):
        first = min(result.culprits, key=lambda each: (each.record.step, each.record.order))
        later = facts.Order.MOST_STEPS if culprit.seen > first.seen else facts.Order.LATER
        return _different(
            facts.FirstOver(culprit, facts.Order.FIRST if culprit is first else later)
        )
    if culprit.reason in STRUCTURAL and is_of_glue(culprit):
        off = any(
            row.status is Status.FAIL and row.reason not in (*STRUCTURAL, *UNMATCHED)
            for row in but_plain(result.rows)
        )
        return _different(facts.OtherGlue(culprit, off))
    return None


def _by_limits(result: Result) -> Decision | None:
    if any(_is_no_rounding(result, culprit) for culprit in result.culprits):
        return None
    candidate = result.culprits[0].row.candidate
    given = candidate is not None and result.in_force.of_user(candidate) is not None
    limits = BareFact.OVER_GIVEN if given else BareFact.BY_FIXED_LIMITS
    return _different(_blamed(result, result.culprits), *_unproved(result), limits)


def _bug(result: Result) -> Decision:
    told = [culprit for culprit in result.culprits if _is_no_rounding(result, culprit)]
    blamed = _blamed(
        result, [*told, *(culprit for culprit in result.culprits if culprit not in told)]
    )
    refused = () if result.refused is None else (BareFact.BY_FIXED_LIMITS,)
    operator = None if result.compiled is None else result.compiled.operator
    where = () if operator is None else (BareFact.OPERATOR_BLAMED,)
    return Decision(Answer.BUG, (blamed, *where, *_unproved(result), *refused))


#: The first that has a decision decides.
_RULES: tuple[Callable[[Result], Decision | None], ...] = (
    _by_standard,  # a standard that was asked for decides in place of the rows
    _nothing_to_rely_on,  # not sure: too little was compared, or what was compared proves nothing
    # no row fails and no run parts: identical (maybe so far), rounding, or within tolerance
    _all_clear,
    # not sure: rows fail by a baseline that cannot judge (the user's limits need none)
    _by_poor_baseline,
    _parted,  # bug, different: no row fails, but two runs of training part
    # different: with another model, weights or inputs, errors say nothing about the code
    _given_other_things,
    _at_padding,  # different: no real token is off
    _far_beyond,  # not sure: the baseline itself does not explain the rows that fail
    _parted_before,  # bug, different: two runs of training part before any row fails
    _first_over,  # different: rows fail, but nothing tells which of them shows a bug
    # different: the limits do not tell rounding from a bug
    _by_limits,
    _bug,  # what is left
)


def _not_sure(fact: Fact) -> Decision:
    return Decision(Answer.NOT_SURE, (fact,))


def _different(*found: Fact) -> Decision:
    return Decision(Answer.DIFFERENT, found)


def _trouble(result: Result) -> Iterator[Fact]:
    """Why rows and steps give no reliable verdict, whether rows fail or not."""
    if any(result.hashes) and not all(result.hashes):
        yield BareFact.HASHES_OF_ONE_SIDE
    if not result.compared and not result.steps_judged:
        yield BareFact.NOTHING_COMPARED
    if result.unverified:
        yield BareFact.NOT_VERIFIED
    if result.damage:
        yield BareFact.DAMAGED
    if result.incomplete and (not result.failed or result.only_unfinished):
        yield BareFact.UNFINISHED
    unsteady = tuple(
        row for row in but_plain(result.rows) if row.reason is Reason.NOT_DETERMINISTIC
    )
    if unsteady and not result.counts_by_status()[Status.FAIL]:
        yield facts.NotDeterministic(unsteady)


def _trouble_of_an_all_clear(result: Result) -> Iterator[Fact]:
    """Why passing rows prove nothing. The user's limits, and the same bits, need no baseline."""
    if result.eager:
        yield BareFact.RAN_EAGERLY
    if result.candidate.manifest.options.eager and not result.golden.manifest.options.eager:
        yield BareFact.NOT_COMPILED
    by_baseline = not result.by_user and not _identical(result)
    if by_baseline and result.poor_baseline is not None:
        yield BareFact.POOR_BASELINE
    if result.training is not None and result.training.proves_nothing:
        yield BareFact.STEPS_PROVE_NOTHING
    if by_baseline and result.unproved:
        yield BareFact.WITHIN_UNPROVED
    if by_baseline and _judged_by_few(result):
        yield BareFact.JUDGED_BY_FEW
    if result.far_beyond is not None:
        yield BareFact.FAR_BEYOND
    if result.part_beyond is not None:
        yield BareFact.PART_BEYOND
    if result.may_hide is not None:
        yield BareFact.MAY_HIDE
    if result.weights_not_shown:
        yield BareFact.WEIGHTS_NOT_SHOWN
    if result.other_models:
        yield BareFact.OTHER_MODELS
    if result.without_output is not None:
        yield BareFact.NO_OUTPUT
    if result.refused is not None and by_baseline:
        yield BareFact.WITHIN_REFUSED
    yield from _near_otherwise(result)
    if result.unseen:
        yield BareFact.OPTIMIZERS_DIFFER
    yield from _left_otherwise(result)


def _left_otherwise(result: Result) -> Iterator[Fact]:
    """What the steps left in attributes, which no row shows."""
    if left := tuple(each for each in result.preflight if each.about is About.LEFT):
        yield facts.MadeOtherwise(facts.Otherwise.LEFT, left)


def _near_otherwise(result: Result) -> Iterator[Fact]:
    """Rows near fixed limits of modules that are configured otherwise: one may be why."""
    if result.by_user or result.baseline is not None:
        return
    manifests = result.golden.manifest, result.candidate.manifest
    options = {each[0]: each for each in other_configuration(*manifests)}
    for row in result.rows if options else ():
        option = None if row.golden is None else options.get(row.golden.name)
        if option is not None and (row.verdict.over_limit or 0.0) > NEAR:
            yield facts.NearOtherwise(row, option)


def _judged_by_few(result: Result) -> bool:
    return 2 * result.without_baseline > result.compared


def _unproved(result: Result) -> tuple[BareFact, ...]:
    return (BareFact.UNPROVED,) if result.unproved else ()


def _identical(result: Result) -> bool:
    """Whether all that was compared has the same bits on both sides."""
    training = result.training
    return (
        result.compared == result.counts()[Reason.IDENTICAL]
        and not any(result.hashes)
        and (training is None or training.other_bits is None or not training.judged)
        and bool(result.compared or (training is not None and training.identical))
    )


def _without_failure(result: Result) -> tuple[Answer, tuple[Fact, ...]]:
    training = result.training
    if _identical(result):
        if result.uncompared or any(_out_of_sight(result)):
            return Answer.IDENTICAL_SO_FAR, (BareFact.IDENTICAL_SO_FAR,)
        return Answer.IDENTICAL, (BareFact.IDENTICAL,)
    if result.by_user:
        return Answer.WITHIN, (BareFact.WITHIN_GIVEN,)
    if any(result.hashes):
        return Answer.ROUNDING, (BareFact.ROUNDING_AT_MOST,)
    by_run = training is not None and training.judged_by in (JudgedBy.BASELINE, JudgedBy.REPEAT)
    told = result.baseline is not None or (result.series_only and by_run)
    precise = tuple(row for row in but_plain(result.rows) if row.reason is Reason.OVER_PRECISE)
    how = BareFact.ROUNDING if told else BareFact.ROUNDING_BY_FIXED_LIMITS
    return Answer.ROUNDING, (how, facts.OverPrecise(precise)) if precise else (how,)


#: Differences that may do more than rounding, yet too little to show.
_OTHERWISE = {
    About.CONFIGURATION: facts.Otherwise.CONFIGURED,
    About.MODE: facts.Otherwise.RUN,
    About.WEIGHTS: facts.Otherwise.GIVEN,
    About.GIVEN: facts.Otherwise.GIVEN,
}


def _made_otherwise(result: Result) -> Iterator[Fact]:
    """Weights, inputs, modes and attributes that differ; harmless where all bits agree."""
    found: dict[facts.Otherwise, list[PreflightFinding]] = {}
    for finding in result.preflight:
        if finding.about in _OTHERWISE and finding.serious and not finding.of_baseline:
            found.setdefault(_OTHERWISE[finding.about], []).append(finding)
    yield from (facts.MadeOtherwise(how, tuple(findings)) for how, findings in found.items())
    # the user's limit may be larger than an optimizer's number
    numbers = (
        row for row in but_plain(result.rows) if row.record is not None and row.record.is_of_group
    )
    if trained := tuple(row for row in numbers if row.metrics is not None and row.metrics.max_abs):
        yield facts.TrainedOtherwise(trained)


def _near_float64(result: Result) -> Iterator[Fact]:
    if result.compiled is not None and result.compiled.nearer is not None:
        yield BareFact.NEAR_FLOAT64


def _not_captured(result: Result) -> Iterator[Fact]:
    """What an all-clear does not cover because it was not captured."""
    sides = result.golden.manifest, result.candidate.manifest
    if result.series_only:
        yield BareFact.SERIES_ONLY
    elif any(manifest.options.loss for manifest in sides) and not result.has_gradients:
        yield BareFact.FORWARD_ONLY
    yield from _out_of_sight(result)
    if result.candidate.manifest.options.replaced:
        yield BareFact.WEIGHTS_REPLACED
    if result.candidate.manifest.options.overruled:
        yield BareFact.CASE_OVERRULED
    if all(result.hashes):
        yield BareFact.BY_HASHES
    if result.training is not None and result.training.not_finite is not None:
        yield BareFact.NOT_FINITE_FROM
    if len({*result.step_counts}) > 1:
        yield BareFact.FEWER_STEPS


def _out_of_sight(result: Result) -> Iterator[BareFact]:
    """Code of the model that no record tells of."""
    sides = result.golden.manifest, result.candidate.manifest
    never = any("" in (side.model.get("not_called") or ()) for side in sides)
    if never and result.compared and not result.has_gradients:
        yield BareFact.PARTS_ALONE
    if result.candidate.manifest.options.eager:
        yield BareFact.NOT_COMPILED


def _not_compared(result: Result) -> Iterator[Fact]:
    """What an all-clear does not cover because it was not chosen or has no partner."""
    asked: dict[tuple[tuple[str, ...], ...], list[BesideGolden]] = {}
    groups = {group for group in RoleGroup if group is not RoleGroup.SERIES}
    for name, side in zip(BesideGolden, (result.golden, result.candidate), strict=False):
        options = side.manifest.options
        chosen = (
            options.roles is not None
            and not options.no_backward
            and not groups <= set(options.roles)
        )
        part = (
            tuple(options.only or ()),
            tuple(options.skip or ()),
            tuple(options.roles or ()) if chosen else (),
        )
        if any(part):
            asked.setdefault(part, []).append(name)
    yield from (facts.CapturedInPart(tuple(names), *part) for part, names in asked.items())
    compiled = result.candidate.manifest.options.compiled
    whole = result.compiled is not None and result.compiled.whole
    if compiled is not None and compiled.backend and not (whole or "" in compiled.regions):
        yield BareFact.AROUND_REGIONS
    for holds, fact in (
        (result.left_out, BareFact.RECORDS_LEFT_OUT),
        (result.weights_in_parts, BareFact.WEIGHTS_IN_PARTS),
        (result.uncompared, BareFact.NOT_COMPARED),
        (result.nan_on_both, BareFact.NAN_ON_BOTH),
        (result.broadcast, BareFact.BROADCAST_ROWS),
        (result.unmatched(), BareFact.ALONE_ROWS),
    ):
        if holds:
            yield fact


def _poorly_compared(result: Result) -> Iterator[Fact]:
    """What an all-clear covers by less than all values and a proved baseline."""
    unfit = (result.refused or result.poor_baseline) and _identical(result)
    by_digests = result.by_digests and result.by_digests == result.compared
    for holds, fact in (
        (result.by_statistics, BareFact.BY_STATISTICS),
        (result.by_sketch, BareFact.BY_SKETCHES),
        (result.without_baseline, BareFact.WITHOUT_BASELINE),
        (unfit, BareFact.BASELINE_NOT_USED),
        (result.not_proved, BareFact.BASELINE_NOT_PROVED),
        (result.golden_made_here, BareFact.GOLDEN_MADE_HERE),
        (result.ill_conditioned, BareFact.BY_GOLDENS_CODE),
        (by_digests and not all(result.hashes), BareFact.DIGESTS_ALONE),
    ):
        if holds:
            yield fact


def _of_parting(training: TrainingResult, parting: Parting) -> Decision:
    if parting.quantity is None:
        return _different(parting)
    if training.judged_by is JudgedBy.GIVEN and not (parting.clips_alone or parting.of_no_number):
        return _different(parting, BareFact.OVER_GIVEN)
    if training.judged_by is JudgedBy.DEFAULT and not parting.clips_otherwise:
        return _different(parting, BareFact.RUNS_BY_FIXED_LIMITS)
    return Decision(Answer.BUG, (parting,))


def _before_culprits(parting: Parting, culprits: Iterable[Culprit]) -> bool:
    """Whether a step's numbers or settings show an error before any row does."""
    first = {
        Stage.UPDATE: parting.clips_otherwise,
        Stage.BACKWARD: parting.of_no_number,
        Stage.LOSS: parting.of_no_number,
    }
    later = [
        each.record.step > parting.step
        or (each.record.step == parting.step and first.get(each.stage, False))
        for each in culprits
    ]
    return parting.row is None and all(later)


def _blamed(result: Result, culprits: Sequence[Culprit]) -> facts.Blamed:
    """The first culprit; fed, where each error is its own, the first two."""
    shown = 2 if result.fed else 1
    return facts.Blamed(tuple(culprits[:shown]), max(0, len(culprits) - shown) if result.fed else 0)


def _is_no_rounding(result: Result, culprit: Culprit) -> bool:
    """Whether a baseline, or the kind of error, shows that it is not rounding."""
    row, record = culprit.row, culprit.record
    if (
        culprit.scaled is not None
        or culprit.reason in (*STRUCTURAL, *UNMATCHED, Reason.NON_FINITE)
        or row.verdict.evident
    ):
        return True
    if (
        row.golden is None
        or row.candidate is None
        or record.is_of_group
        or row.verdict.option is not None
    ):
        return True
    if is_choice(row):  # fewer than many may be choices among nearly equal values
        return math.isinf(culprit.size)
    return (
        record.role in SERIES_ROLES
        and result.baseline is not None
        and result.in_force.of_user(row.candidate) is None
    )
