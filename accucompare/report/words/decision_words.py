"""A decision in every report: a sentence for each fact, and the verdict in one word."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from accucompare.bundle.format import SERIES_ROLES, WRITTEN_ROLES, Role
from accucompare.compare import facts
from accucompare.compare.decide import Answer, Decision
from accucompare.compare.facts import BareFact, Differs, Fact, Order, Otherwise
from accucompare.compare.limits import float_dtype
from accucompare.compare.origins import STRUCTURAL, Culprit, Stage
from accucompare.compare.preflight_facts import OtherModel
from accucompare.compare.remarks import BeyondLikeBaseline, TermsCancel
from accucompare.compare.result import Result
from accucompare.compare.rows import STATUS_OF, UNMATCHED, Reason, Row, Status
from accucompare.compare.runs import Parting, number_of
from accucompare.report.headline import Headline
from accucompare.report.words import (
    compiled_words,
    limit_words,
    preflight_words,
    training_words,
    verdict_words,
)
from accucompare.report.words.culprit_place import culprit_place, different_values, scaled_words
from accucompare.text import counted, first_few, printable

_Found = TypeVar("_Found")

_VERDICTS = {
    Answer.IDENTICAL: Headline.IDENTICAL,
    Answer.IDENTICAL_SO_FAR: Headline.PASS,
    Answer.ROUNDING: Headline.PASS,
    Answer.WITHIN: Headline.PASS,
    Answer.BUG: Headline.FAIL,
    Answer.DIFFERENT: Headline.FAIL,
    Answer.NOT_SURE: Headline.TROUBLE,
}

#: How often the first culprit was the right one among planted faults (`make bench-faults`).
FREE = (
    "without a baseline, the first layer over tolerance is where the error was made in about half"
    " of the cases only"
)
FREE_WITH_BASELINE = (
    "free-running, the first culprit is the right one in about 9 of 10 cases; a fed capture is"
    " surer"
)


def verdict(answer: Answer) -> str:
    """The answer as IDENTICAL, PASS, FAIL or TROUBLE."""
    return _VERDICTS[answer].value


def words(decision: Decision, result: Result) -> str:
    """The facts in one sentence; an all-clear begins with the answer."""
    return "; ".join(_said(fact, result) for fact in decision.facts)


def conclusion(decision: Decision, result: Result) -> str:
    """One line that begins with the answer."""
    said = "; ".join(filter(None, [words(decision, result), reference_words(result)]))
    return said if decision.passed else f"{decision.answer.value}: {said}"


def reference_words(result: Result) -> str:
    """Whether the candidate or the reference is nearer to golden; ``""`` without a reference."""
    found = result.beside_reference
    if found is None or result.reference is None:
        return ""
    name = printable(result.reference.path.name)
    if not found.rows:
        return f"nothing of the reference {name} could be compared"
    median = found.median
    if median is None or median == 1:
        rows = counted(found.rows, "row")
        return f"the candidate is as near to golden as the reference {name}, in {rows}"
    near, count = (("nearer to", found.nearer), ("further from", found.further))[median > 1]
    which = "smaller" if median < 1 else "larger"
    return (
        f"the candidate is {near} golden than the reference {name}: error {which} in {count:,}"
        f" of {counted(found.rows, 'row')}, x {median:.2g} in the median"
    )


def trouble(decision: Decision, result: Result) -> str:
    """Why no answer can be relied on; ``""`` if one can."""
    return words(decision, result) if decision.answer is Answer.NOT_SURE else ""


def trust(result: Result) -> str:
    """How far the first culprit can be trusted; ``""`` where it is nearly always right."""
    if result.fed or not result.culprits:
        return ""
    return FREE if result.baseline is None else FREE_WITH_BASELINE


def _said(fact: Fact, result: Result) -> str:
    if isinstance(fact, BareFact):
        told = _BARE[fact]
        return told if isinstance(told, str) else told(result)
    return _differs(fact, result) if isinstance(fact, Differs) else _qualifying(fact, result)


def _is(found: _Found | None) -> _Found:
    """What a fact says is there."""
    assert found is not None
    return found


def _hashes_of_one_side(result: Result) -> str:
    side, other = _sides(result.hashes[0])
    return (
        f"{side} holds hashes of operators, {other} holds values: compare {side} with"
        " another log of hashes"
    )


def _not_verified(result: Result) -> str:
    found = result.unverified
    more = f"; and {len(found) - 1} more" if len(found) > 1 else ""
    return preflight_words.message(found[0]) + more


def _within_fixed_limits(why: str) -> str:
    return f"everything is within fixed limits, which miss small faults, and {why}"


def _far_beyond(result: Result) -> str:
    row = _is(result.far_beyond)
    other = "" if result.failed else ", or rounding changed a choice before; a fed capture tells"
    dtype = "" if row.candidate is None else row.candidate.dtype
    if row.verdict.says(TermsCancel):
        return (
            f"{result.place(row)} is off{_by_how_much(row)}, but the terms that make it up cancel,"
            " and rounding them makes as much: it tells nothing, nor do the gradients behind it; a"
            " fed capture tells, or another loss"
        )
    if any(isinstance(said, BeyondLikeBaseline) and said.alone for said in row.verdict.remarks):
        other = (
            f"; golden's own code on values rounded to {dtype} is not off, so computing in {dtype}"
            " makes it: by a wrong kernel, a long sum, or a choice"
        )
    return (
        f"{result.place(row)} is off{_by_how_much(row)}, far beyond rounding, and so is the"
        f" baseline: it may have the fault too{other}"
    )


def _part_beyond(result: Result) -> str:
    row = _is(result.part_beyond)
    return (
        f"{result.place(row)} is off{_by_how_much(row)}, and a part of it by"
        f" {_is(row.metrics).in_part:.3g}, far beyond rounding: some of its values are wrong, or"
        " rounding changed a choice (a router's) before; a baseline or a fed capture tells"
    )


def _by_how_much(row: Row) -> str:
    if row.metrics is None:
        return ""
    if row.metrics.rel_l2 > 1:  # such as a gradient that is 0 but for rounding
        return f" by {row.metrics.rel_l2:.3g} times golden's own size"
    return f" by rel_l2 {row.metrics.rel_l2:.3g}"


def _may_hide(result: Result) -> str:
    found = _is(result.may_hide)
    return (
        f"what was compared agrees, but {found.count} of {len(result.rows)} rows could not be"
        f" compared, and an error may hide there: first {result.place(found.first)}"
        f" ({verdict_words.detail(found.first)})"
    )


def _no_own_error(result: Result) -> str:
    failed = ", ".join(
        f"{count} {reason.value}"
        for reason, count in result.counts().items()
        if STATUS_OF[reason] is Status.FAIL
    )
    return f"rows fail ({failed}), but none shows in which layer the error began"


def _by_fixed_limits(result: Result) -> str:
    if result.refused is None:
        return "by fixed limits; a baseline tells rounding from a bug"
    return f"by fixed limits, since {preflight_words.refused_words(result.refused)}"


def _unproved(result: Result) -> str:
    """Where the candidate's environment does not compute golden's own values."""
    places = list(dict.fromkeys(result.place(row) for row in result.unproved))
    precision = float_dtype(result.golden.manifest)
    also = f", also in {precision}" if precision else ""
    return (
        f"the candidate's environment does not compute golden's own values{also}:"
        f" {places[0]}{_and_more(len(places))}"
    )


def _weights_replaced(result: Result) -> str:
    first, *others = result.candidate.manifest.options.replaced
    return (
        f"{len(others) + 1} of the case's own weights were not golden's, and were replaced by"
        f" them ({first}{', …' if others else ''})"
    )


def _not_compared(result: Result) -> str:
    rows = result.uncompared
    return (
        f"{len(rows)} of {len(result.rows)} rows could not be compared, the first"
        f" {result.place(rows[0])}, {verdict_words.detail(rows[0])}"
    )


def _alone_rows(result: Result) -> str:
    rows = result.unmatched()
    return (
        f"{counted(len(rows), 'row')} on one side only, the first {result.place(rows[0])}, and all"
        " that both compute around it agrees"
    )


def _baseline_not_used(result: Result) -> str:
    unfit = result.refused or _is(result.poor_baseline)
    return f"the baseline was not used: {preflight_words.unfit_words(unfit)}"


def _digests_alone(result: Result) -> str:
    steps = 0 if result.training is None else result.training.judged
    but = f" but losses and gradient norms of {counted(steps, 'step')}" if steps else ""
    return f"by digests alone, no values were read{but}"


def left_out_words(count: int) -> str:
    return f"{counted(count, 'record')} left out by --only and --skip"


def _and_more(count: int) -> str:
    return f", and {count - 1} more" if count > 1 else ""


_BARE: dict[BareFact, str | Callable[[Result], str]] = {
    # why there is no answer to rely on
    BareFact.STANDARD_NOT_JUDGED: lambda result: training_words.acceptance_trouble(
        _is(result.acceptance), result.training, result.incomplete
    ),
    BareFact.HASHES_OF_ONE_SIDE: _hashes_of_one_side,
    BareFact.NOTHING_COMPARED: "nothing could be compared",
    BareFact.NOT_VERIFIED: _not_verified,
    BareFact.DAMAGED: lambda result: f"could not read {counted(len(result.damage), 'record')}",
    BareFact.UNFINISHED: lambda result: (
        f"what was recorded agrees, but {preflight_words.unfinished_words(result.incomplete)}"
    ),
    BareFact.POOR_BASELINE: lambda result: preflight_words.message(_is(result.poor_baseline)),
    BareFact.STEPS_PROVE_NOTHING: lambda result: training_words.proves_nothing(
        _is(result.training)
    ),
    BareFact.WITHIN_UNPROVED: lambda result: _within_fixed_limits(_unproved(result)),
    BareFact.WITHIN_REFUSED: lambda result: _within_fixed_limits(
        preflight_words.refused_words(_is(result.refused))
    ),
    BareFact.JUDGED_BY_FEW: lambda result: (
        f"the baseline judges {result.compared - result.without_baseline} of {result.compared}"
        " compared rows only"
    ),
    BareFact.FAR_BEYOND: _far_beyond,
    BareFact.PART_BEYOND: _part_beyond,
    BareFact.MAY_HIDE: _may_hide,
    BareFact.WEIGHTS_NOT_SHOWN: lambda result: (
        "what was compared agrees, but does not depend on parameters that differ:"
        f" {first_few(result.weights_not_shown)}"
    ),
    BareFact.OTHER_MODELS: lambda result: (
        "what was compared agrees, but models of the script were not captured:"
        f" {first_few(result.other_models)}; choose by --model"
    ),
    BareFact.NO_OUTPUT: lambda result: (
        f"nothing that the model returned for {result.place(_is(result.without_output))}, or wrote"
        " into arguments or buffers, could be compared"
    ),
    BareFact.OPTIMIZERS_DIFFER: lambda result: (
        "what was compared agrees, but the optimizer's code differs"
        f" ({preflight_words.other_code_words(result.unseen)}), and no update was compared"
    ),
    BareFact.RAN_EAGERLY: lambda result: compiled_words.ran_eagerly(result.eager),
    # what differs, and what judged it
    BareFact.STANDARD_MISSED: lambda result: (
        f"does not meet the standard {_is(result.acceptance).standard.value}"
    ),
    BareFact.INPUTS_DIFFER: "the two models were given different inputs",
    BareFact.NO_OWN_ERROR: _no_own_error,
    BareFact.UNPROVED: _unproved,
    BareFact.BY_FIXED_LIMITS: _by_fixed_limits,
    BareFact.OVER_GIVEN: "over the tolerance asked for",
    BareFact.RUNS_BY_FIXED_LIMITS: (
        "by fixed limits: a baseline, or a second golden run, tells how far such runs wander"
    ),
    BareFact.AT_PADDING: (
        "all of the error is at padding (attention_mask is 0), where attention kernels may differ;"
        " real tokens are within tolerance"
    ),
    BareFact.OPERATOR_BLAMED: lambda result: compiled_words.blamed(
        _is(_is(result.compiled).operator)
    ),
    # what an all-clear begins with
    BareFact.STANDARD_MET: lambda result: (
        f"within tolerance: meets the standard {_is(result.acceptance).standard.value}"
    ),
    BareFact.WITHIN_GIVEN: lambda result: (
        f"within tolerance ({limit_words.tolerance_words(result.in_force.otherwise)})"
    ),
    BareFact.IDENTICAL: "identical",
    BareFact.IDENTICAL_SO_FAR: "identical in what was compared",
    BareFact.ROUNDING_AT_MOST: "rounding at most",
    BareFact.ROUNDING: "rounding",
    BareFact.ROUNDING_BY_FIXED_LIMITS: "rounding, as far as fixed limits tell",
    BareFact.NEAR_FLOAT64: lambda result: compiled_words.near_float64(
        _is(_is(result.compiled).nearer)
    ),
    # what an all-clear does not cover
    BareFact.SERIES_ONLY: lambda result: (
        f"by the losses and gradient norms of {result.steps_judged:,} steps alone: no layer was"
        " compared"
    ),
    BareFact.FORWARD_ONLY: "forward only: the case has a loss, but no gradient was compared",
    BareFact.PARTS_ALONE: (
        "only parts of the model were called: its own code around them was not seen"
    ),
    BareFact.NOT_COMPILED: (
        "the candidate's compiled code ran eagerly, so its own numbers were not seen; capture it"
        " with --compile own"
    ),
    BareFact.WEIGHTS_REPLACED: _weights_replaced,
    BareFact.CASE_OVERRULED: lambda result: (
        "the case has its own, which golden's replaced:"
        f" {first_few(result.candidate.manifest.options.overruled, 2)}"
    ),
    BareFact.BY_HASHES: (
        "by hashes of another tool: no values were read, and different values may have equal hashes"
    ),
    BareFact.NOT_FINITE_FROM: lambda result: (
        f"NaN or Inf on both sides from step {_is(_is(result.training).not_finite).step} on"
    ),
    BareFact.FEWER_STEPS: lambda result: (
        f"{min(result.step_counts)} of {max(result.step_counts)} steps"
    ),
    BareFact.AROUND_REGIONS: lambda result: (
        f"{counted(len(_is(result.candidate.manifest.options.compiled).regions), 'region')} ran"
        " compiled, and the code around them eagerly"
    ),
    BareFact.RECORDS_LEFT_OUT: lambda result: left_out_words(result.left_out),
    BareFact.WEIGHTS_IN_PARTS: lambda result: (
        f"{len(result.weights_in_parts)} parameter(s) lie in parts on the ranks, and their values"
        f" were not compared, the first {result.weights_in_parts[0]}"
    ),
    BareFact.NOT_COMPARED: _not_compared,
    BareFact.NAN_ON_BOTH: lambda result: (
        f"NaN on both sides in {counted(len(result.nan_on_both), 'row')}, first in"
        f" {result.place(result.nan_on_both[0])}"
    ),
    BareFact.BROADCAST_ROWS: lambda result: (
        f"{counted(len(result.broadcast), 'row')} of two shapes, the first"
        f" {result.place(result.broadcast[0])}, the same when broadcast or in a row"
    ),
    BareFact.ALONE_ROWS: _alone_rows,
    BareFact.BY_STATISTICS: lambda result: (
        f"{counted(result.by_statistics, 'row')} judged by statistics alone"
    ),
    BareFact.BY_SKETCHES: lambda result: f"{counted(result.by_sketch, 'row')} judged by sketches",
    BareFact.WITHOUT_BASELINE: lambda result: (
        f"{counted(result.without_baseline, 'row')} judged without the baseline"
    ),
    BareFact.BASELINE_NOT_USED: _baseline_not_used,
    BareFact.BASELINE_NOT_PROVED: lambda result: (
        f"the baseline is not proved: {preflight_words.not_proved_words(result.not_proved)}"
    ),
    BareFact.GOLDEN_MADE_HERE: (
        "golden was made here, in the candidate's environment: faults of that environment are not"
        " seen"
    ),
    BareFact.BY_GOLDENS_CODE: lambda result: (
        f"{counted(result.ill_conditioned, 'row')} far off, as golden's own code is on rounded"
        " values"
    ),
    BareFact.DIGESTS_ALONE: _digests_alone,
}

_ORDER = {
    Order.FIRST: "is the first over tolerance",
    Order.MOST_STEPS: "is over tolerance in most steps",
    Order.LATER: "is over tolerance",
}

_OTHERWISE = {
    Otherwise.CONFIGURED: "configured otherwise",
    Otherwise.RUN: "run otherwise",
    Otherwise.GIVEN: "given otherwise",
    Otherwise.LEFT: "left otherwise",
}


def _differs(fact: Differs, result: Result) -> str:
    match fact:
        case OtherModel():
            return preflight_words.other_model_words(fact)
        case Parting():
            return training_words.parting_words(fact)
        case facts.GivenDifferently(finding):
            return preflight_words.message(finding)
        case facts.FirstOver(culprit, order):
            return f"{_named(culprit, result)} {_ORDER[order]}; {FREE}"
        case facts.OtherGlue(culprit, values_off):
            after = (
                "values after it are off, perhaps because of it"
                if values_off
                else "no value after it shows an error of its own"
            )
            return f"{_named(culprit, result)}; {after}"
        case facts.Blamed(culprits, more):
            named = [_named(culprit, result) for culprit in culprits]
            return "; and ".join(named + ([f"{more} more"] if more else []))


def _qualifying(fact: facts.Qualifying, result: Result) -> str:
    match fact:
        case facts.NotDeterministic(rows):
            return (
                f"{len(rows)} row(s) are not deterministic, the first {result.place(rows[0])}"
                f" ({verdict_words.detail(rows[0])})"
            )
        case facts.NearOtherwise(row, (name, key, ours, theirs)):
            return (
                f"{name}.{key} is {ours!r} in golden, {theirs!r} in the candidate, and"
                f" {result.place(row)} is near its fixed limit ({row.verdict.over_limit:.2g} x): a"
                " baseline tells rounding from a fault"
            )
        case facts.OverPrecise(rows):
            return f"{len(rows)} over-precise, the first {result.place(rows[0])}"
        case facts.MadeOtherwise(how, findings):
            first = preflight_words.message(findings[0])
            return f"{_OTHERWISE[how]}: {first}{_and_more(len(findings))}"
        case facts.TrainedOtherwise(rows):
            more = _and_more(len(rows))
            return f"trained otherwise: {result.place(rows[0])}: {_both(rows[0])}{more}"
        case facts.CapturedInPart(sides, only, skip, roles):
            options = [f"--only {value}" for value in only]
            options += [f"--skip {value}" for value in skip]
            options += [f"--roles {','.join(roles)}"] if roles else []
            return f"{preflight_words.sides_words(sides)} captured with {' '.join(options)}"


def _named(culprit: Culprit, result: Result) -> str:
    record = _is(culprit.row.record)
    several = any(len(side.manifest.steps) > 1 for side in (result.golden, result.candidate))
    metrics = culprit.row.metrics
    if record.role in SERIES_ROLES:
        return _number_named(culprit, record.step if several else None)
    place = culprit_place(culprit)
    if several and culprit.stage is not Stage.BETWEEN:
        place += f" in step {record.step}"
    if culprit.scaled is not None:
        return f"{place}: {scaled_words(culprit.scaled)}"
    if culprit.buffer and metrics is not None and metrics.max_rel is not None:
        return f"the model computes another {culprit.buffer}: max rel diff {metrics.max_rel:.3g}"
    if record.role in WRITTEN_ROLES and culprit.reason in UNMATCHED:
        return f"{place}: only {_sides(culprit.row.candidate is None)[0]} writes there"
    if culprit.row.lost:
        has, lacks = _sides(culprit.reason is Reason.MISSING)
        if culprit.stage is Stage.BETWEEN:
            return f"{place}, in {has} alone"
        if record.role is Role.PARAM_UPDATE or culprit.whole:
            return f"{place}: {has} makes it, {lacks} does not"
        return f"{place}: {has} has a gradient there, {lacks} has none"
    if culprit.reason in (*STRUCTURAL, Reason.NON_FINITE):
        finite = metrics is not None and not metrics.candidate_nan + metrics.candidate_inf
        alone = " in golden alone" if finite and culprit.reason is Reason.NON_FINITE else ""
        return f"{place}, {culprit.reason.value}{alone}"
    if different := different_values(culprit.row):
        return f"{place}, {different}"
    # a number of a parameter group
    if record.role is Role.STATE_BEFORE and metrics is not None and metrics.elements == 1:
        return f"{place}: {_both(culprit.row)}"
    if not culprit.size:  # digests differ, and nothing was measured
        return f"{place}, other bits"
    beyond = "excess" if culprit.excess is not None else "x limit"
    return f"{place}, {beyond} {culprit.size:.3g}"


def _sides(golden: bool) -> tuple[str, str]:
    """The side that has something, and the other."""
    return ("golden", "the candidate") if golden else ("the candidate", "golden")


def _number_named(culprit: Culprit, step: int | None) -> str:
    """``the loss in step 2: 0.5464 in the candidate, 0.0464 in golden``."""
    golden, candidate = (
        None if record is None else number_of(record)
        for record in (culprit.row.golden, culprit.row.candidate)
    )
    if culprit.stage is Stage.UPDATE:
        clipped = training_words.clipped(golden, candidate)
        return clipped if step is None else f"{clipped}, step {step}"
    where = culprit_place(culprit) + ("" if step is None else f" in step {step}")
    ours, theirs = (training_words.number_words(value) for value in (golden, candidate))
    return f"{where}: {theirs} in the candidate, {ours} in golden"


def _both(row: Row) -> str:
    """A number on both sides, by its statistics, which every mode keeps."""
    golden, candidate = (
        math.nan if record is None else number_of(record) for record in (row.golden, row.candidate)
    )
    return f"{golden:g} in golden, {candidate:g} in the candidate"
