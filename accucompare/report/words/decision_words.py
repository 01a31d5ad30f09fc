"""A decision in every report: a sentence for each fact, and the verdict in one word."""

from __future__ import annotations

import math

from accucompare.bundle.format import SERIES_ROLES, WRITTEN_ROLES, Role
from accucompare.compare import facts
from accucompare.compare.decide import Answer, Decision
from accucompare.compare.facts import (
    BareFact,
    Clear,
    Differs,
    Fact,
    Judged,
    Order,
    Otherwise,
    Trouble,
)
from accucompare.compare.limits import float_dtype
from accucompare.compare.origins import STRUCTURAL, Culprit, Stage
from accucompare.compare.preflight_facts import OtherModel
from accucompare.compare.result import Result
from accucompare.compare.rows import UNMATCHED, Reason, Row
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
        return _BARE[fact]
    if isinstance(fact, facts.OfCompiling):
        return compiled_words.compiling_words(fact)
    if isinstance(fact, Trouble):
        return _trouble(fact, result)
    if isinstance(fact, Differs):
        return _differs(fact, result)
    return _clear(fact, result) if isinstance(fact, Clear) else _uncovered(fact, result)


_BARE = {
    BareFact.NOTHING_COMPARED: "nothing could be compared",
    BareFact.INPUTS_DIFFER: "the two models were given different inputs",
    BareFact.OVER_GIVEN: "over the tolerance asked for",
    BareFact.RUNS_BY_FIXED_LIMITS: (
        "by fixed limits: a baseline, or a second golden run, tells how far such runs wander"
    ),
    BareFact.AT_PADDING: (
        "all of the error is at padding (attention_mask is 0), where attention kernels may differ;"
        " real tokens are within tolerance"
    ),
    BareFact.IDENTICAL: "identical",
    BareFact.IDENTICAL_SO_FAR: "identical in what was compared",
    BareFact.ROUNDING_AT_MOST: "rounding at most",
    BareFact.ROUNDING: "rounding",
    BareFact.ROUNDING_BY_FIXED_LIMITS: "rounding, as far as fixed limits tell",
    BareFact.FORWARD_ONLY: "forward only: the case has a loss, but no gradient was compared",
    BareFact.PARTS_ALONE: (
        "only parts of the model were called: its own code around them was not seen"
    ),
    BareFact.NOT_COMPILED: (
        "the candidate's compiled code ran eagerly, so its own numbers were not seen; capture it"
        " with --compile own"
    ),
    BareFact.BY_HASHES: (
        "by hashes of another tool: no values were read, and different values may have equal hashes"
    ),
    BareFact.GOLDEN_MADE_HERE: (
        "golden was made here, in the candidate's environment: faults of that environment are not"
        " seen"
    ),
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
}

_JUDGED = {
    Judged.BY_STATISTICS: "judged by statistics alone",
    Judged.BY_SKETCHES: "judged by sketches",
    Judged.WITHOUT_BASELINE: "judged without the baseline",
    Judged.BY_GOLDENS_CODE: "far off, as golden's own code is on rounded values",
}


def _trouble(fact: Trouble, result: Result) -> str:
    match fact:
        case facts.StandardNotJudged(acceptance, training, incomplete):
            return training_words.acceptance_trouble(acceptance, training, incomplete)
        case facts.HashesOfOneSide(golden):
            side, other = _sides(golden)
            return (
                f"{side} holds hashes of operators, {other} holds values: compare {side} with"
                " another log of hashes"
            )
        case facts.NotVerified(findings):
            more = f"; and {len(findings) - 1} more" if len(findings) > 1 else ""
            return preflight_words.message(findings[0]) + more
        case facts.Damaged(count):
            return f"{count} record(s) could not be read"
        case facts.Unfinished(sides):
            return f"what was recorded agrees, but {preflight_words.unfinished_words(sides)}"
        case facts.NotDeterministic(rows):
            return (
                f"{len(rows)} row(s) are not deterministic, the first {result.place(rows[0])}"
                f" ({verdict_words.detail(rows[0])})"
            )
        case facts.PoorBaseline(finding):
            return preflight_words.message(finding)
        case facts.StepsProveNothing(training):
            return training_words.proves_nothing(training)
        case facts.WithinFixedLimits(since):
            why = (
                _unproved(since, result)
                if isinstance(since, facts.Unproved)
                else preflight_words.refused_words(since)
            )
            return f"everything is within fixed limits, which miss small faults, and {why}"
        case facts.JudgedByFew(judged, compared):
            return f"the baseline judges {judged} of {compared} compared rows only"
        case facts.FarBeyond(row, failed):
            other = "" if failed else ", or rounding changed a choice before; a fed capture tells"
            return (
                f"{result.place(row)} is off{_by_how_much(row)}, far beyond rounding, and so is the"
                f" baseline: it may have the fault too{other}"
            )
        case (
            facts.MayHide()
            | facts.WeightsNotShown()
            | facts.OtherModels()
            | facts.OptimizersDiffer()
        ):
            return f"what was compared agrees, but {_doubt(fact, result)}"
        case facts.NoOutput(given):
            return (
                f"nothing that the model returned for {result.place(given)}, or wrote into"
                " arguments or buffers, could be compared"
            )


def _doubt(
    fact: facts.MayHide | facts.WeightsNotShown | facts.OtherModels | facts.OptimizersDiffer,
    result: Result,
) -> str:
    match fact:
        case facts.MayHide(first, count, total):
            return (
                f"{count} of {total} rows could not be compared, and an error may hide there: first"
                f" {result.place(first)} ({verdict_words.detail(first)})"
            )
        case facts.WeightsNotShown(names):
            return f"does not depend on parameters that differ: {first_few(names)}"
        case facts.OtherModels(names):
            return f"models of the script were not captured: {first_few(names)}; choose by --model"
        case facts.OptimizersDiffer(code):
            return (
                f"the optimizer's code differs ({preflight_words.other_code_words(code)}), and no"
                " update was compared"
            )


def _by_how_much(row: Row) -> str:
    if row.metrics is None:
        return ""
    if row.metrics.rel_l2 > 1:  # such as a gradient that is 0 but for rounding
        return f" by {row.metrics.rel_l2:.3g} times golden's own size"
    return f" by rel_l2 {row.metrics.rel_l2:.3g}"


def _differs(fact: Differs, result: Result) -> str:
    match fact:
        case facts.StandardMissed(standard):
            return f"does not meet the standard {standard.value}"
        case OtherModel():
            return preflight_words.other_model_words(fact)
        case Parting():
            return training_words.parting_words(fact)
        case facts.GivenDifferently(finding):
            return preflight_words.message(finding)
        case facts.NoOwnError(counts):
            failed = ", ".join(f"{count} {reason.value}" for reason, count in counts)
            return f"rows fail ({failed}), but none shows in which layer the error began"
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
        case facts.Unproved():
            return _unproved(fact, result)
        case facts.ByFixedLimits(refused):
            if refused is None:
                return "by fixed limits; a baseline tells rounding from a bug"
            return f"by fixed limits, since {preflight_words.refused_words(refused)}"


def _clear(fact: Clear, result: Result) -> str:
    match fact:
        case facts.StandardMet(standard):
            return f"within tolerance: meets the standard {standard.value}"
        case facts.WithinGiven(tolerance):
            return f"within tolerance ({limit_words.tolerance_words(tolerance)})"
        case facts.OverPrecise(rows):
            return f"{len(rows)} over-precise, the first {result.place(rows[0])}"
        case facts.MadeOtherwise(how, findings):
            first = preflight_words.message(findings[0])
            return f"{_OTHERWISE[how]}: {first}{_and_more(len(findings))}"
        case facts.TrainedOtherwise(rows):
            more = _and_more(len(rows))
            return f"trained otherwise: {result.place(rows[0])}: {_both(rows[0])}{more}"


def _uncovered(fact: facts.Uncovered, result: Result) -> str:
    match fact:
        case facts.SeriesOnly(steps):
            return (
                f"by the losses and gradient norms of {steps:,} steps alone: no layer was compared"
            )
        case facts.WeightsReplaced(names):
            more = ", …" if len(names) > 1 else ""
            return (
                f"{len(names)} of the case's own weights were not golden's, and were replaced by"
                f" them ({names[0]}{more})"
            )
        case facts.CaseOverruled(names):
            return f"the case has its own, which golden's replaced: {first_few(names, 2)}"
        case facts.NotFiniteFrom(step):
            return f"NaN or Inf on both sides from step {step} on"
        case facts.FewerSteps(compared, total):
            return f"{compared} of {total} steps"
        case facts.BuffersNotRecorded(golden):
            return (
                f"what calls write into buffers was not compared: {_sides(golden)[0]} was captured"
                " by a version that does not record it"
            )
        case facts.CapturedInPart(sides, only, skip, roles):
            options = [f"--only {value}" for value in only]
            options += [f"--skip {value}" for value in skip]
            options += [f"--roles {','.join(roles)}"] if roles else []
            return f"{preflight_words.sides_words(sides)} captured with {' '.join(options)}"
        case facts.RecordsLeftOut(count):
            return left_out_words(count)
        case facts.WeightsInParts(names):
            return (
                f"{len(names)} parameter(s) lie in parts on the ranks, and their values were not"
                f" compared, the first {names[0]}"
            )
        case facts.NotCompared() | facts.BroadcastRows() | facts.AloneRows() | facts.NanOnBoth():
            return _rows_apart(fact, result)
        case facts.RowsJudged(how, count):
            return f"{counted(count, 'row')} {_JUDGED[how]}"
        case facts.BaselineNotProved(why):
            return f"the baseline is not proved: {preflight_words.not_proved_words(why)}"
        case facts.BaselineNotUsed(why):
            return f"the baseline was not used: {preflight_words.unfit_words(why)}"
        case facts.DigestsAlone(steps):
            but = f" but losses and gradient norms of {counted(steps, 'step')}" if steps else ""
            return f"by digests alone, no values were read{but}"


def left_out_words(count: int) -> str:
    return f"{counted(count, 'record')} left out by --only and --skip"


def _rows_apart(
    fact: facts.NotCompared | facts.BroadcastRows | facts.AloneRows | facts.NanOnBoth,
    result: Result,
) -> str:
    """How many rows an all-clear does not cover as the others, and the first of them."""
    first = result.place(fact.rows[0])
    match fact:
        case facts.NotCompared(rows, total):
            return (
                f"{len(rows)} of {total} rows could not be compared, the first"
                f" {first}, {verdict_words.detail(rows[0])}"
            )
        case facts.BroadcastRows(rows):
            return (
                f"{counted(len(rows), 'row')} of two shapes, the first {first}, the"
                " same when broadcast"
            )
        case facts.AloneRows(rows):
            return (
                f"{counted(len(rows), 'row')} on one side only, the first {first}, and all that"
                " both compute around it agrees"
            )
        case facts.NanOnBoth(rows):
            return f"NaN on both sides in {counted(len(rows), 'row')}, first in {first}"


def _and_more(count: int) -> str:
    return f", and {count - 1} more" if count > 1 else ""


def _unproved(fact: facts.Unproved, result: Result) -> str:
    """Where the candidate's environment does not compute golden's own values."""
    places = list(dict.fromkeys(result.place(row) for row in fact.rows))
    precision = float_dtype(result.golden.manifest)
    also = f", also in {precision}" if precision else ""
    return (
        f"the candidate's environment does not compute golden's own values{also}:"
        f" {places[0]}{_and_more(len(places))}"
    )


def _named(culprit: Culprit, result: Result) -> str:
    record = culprit.row.record
    assert record is not None
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
