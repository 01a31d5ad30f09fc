"""Verdicts on routers' choices, on experts' rows without a partner, and on what came after."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from accucompare.bundle.format import Key, Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare import remarks
from accucompare.compare.constants import MUCH_FURTHER
from accucompare.compare.judging.after_choices import excuse_later
from accucompare.compare.limits import EXACT, why_not
from accucompare.compare.remarks import PairRemark
from accucompare.compare.rows import PairOutcome, Reason, Status, Task, Verdict, because
from accucompare.compare.tokens import PairedTokens, Routing, Scores
from accucompare.errors import BundleError

_Outcomes = list[PairOutcome | BundleError]


def settle_tokens(
    tasks: Sequence[Task], outcomes: _Outcomes, tokens: PairedTokens, fed: bool
) -> None:
    """Judge what tokens that were routed otherwise change. ``outcomes`` is changed.

    Args:
        tokens: of the same pairs.
        fed: whether each call of the candidate was given golden's values.
    """
    for place, scores in tokens.scores.items():
        outcome, ceiling = outcomes[place], tasks[place].tolerance.ceiling
        if isinstance(outcome, PairOutcome) and ceiling is not None:
            outcomes[place] = _with_use(outcome, scores, ceiling)
    excused = [_is_excused(routing, outcomes) for routing in tokens.routings]
    for routing, fine in zip(tokens.routings, excused, strict=True):
        for place in routing.choices:
            chosen = replace(routing.remark, by_rounding=fine)
            _judge_choices(outcomes, place, chosen, routing.inner)
    faulty = {
        place
        for own, fine in zip(tokens.forward, excused, strict=True)
        for place in own
        if not fine
    }
    for place, remark in tokens.elsewhere.items():
        outcome = outcomes[place]
        if isinstance(outcome, PairOutcome):
            if isinstance(remark, remarks.TokensElsewhere):
                explained = remark.by_rounding and place not in faulty
                remark = replace(remark, by_rounding=explained)
            outcomes[place] = _with_rest(outcome, remark, place in tokens.begins)
    if not fed:
        excuse_later(tasks, outcomes, tokens, excused)
    for routing, fine in zip(tokens.routings, excused, strict=True):
        if fed and fine and len(routing.tokens) and not routing.inner:
            _excuse_backward(tasks, outcomes, routing)


def _is_excused(routing: Routing, outcomes: _Outcomes) -> bool:
    """Whether rounding explains it: if the scores themselves pass."""
    if not routing.remark.by_rounding or not routing.scores:
        return False
    scores = [outcomes[place] for place in routing.scores]
    return all(
        isinstance(each, PairOutcome) and each.verdict.status is Status.PASS for each in scores
    )


def _with_use(outcome: PairOutcome, scores: Scores, ceiling: float) -> PairOutcome:
    """The outcome of scores that are only compared with a number, or led to golden's choice: they
    may be off as far relative to that number, or by more, but not by what a fault makes."""
    verdict, metrics = outcome.verdict, outcome.metrics
    if metrics is None or metrics.nonfinite_mismatch or not 0.0 < metrics.rel_l2 < math.inf:
        return outcome
    if verdict.status is not Status.FAIL and not verdict.beyond:
        return outcome
    own_limit = verdict.rel_l2_limit or 0.0
    limit = min(MUCH_FURTHER * own_limit if scores.same else own_limit, ceiling)
    own = metrics.rmse / metrics.rel_l2 if scores.same else 0.0
    most = limit * max(scores.number, own)
    if metrics.rmse > most:
        return outcome
    said = (remarks.UsedToChoose(scores.number, scores.same),)
    found = Verdict(Reason.OK, verdict.limit, over_limit=metrics.rmse / most, remarks=said)
    return replace(outcome, verdict=found)


def _judge_choices(
    outcomes: _Outcomes, place: int, remark: remarks.RoutedOtherwise, inner: bool
) -> None:
    """``inner``: whether the scores alone tell, however many choices the baseline changed."""
    outcome = outcomes[place]
    if not isinstance(outcome, PairOutcome) or outcome.verdict.status is Status.NOT_COMPARED:
        return
    passed = outcome.verdict.status is Status.PASS
    if passed and not inner:
        return
    if remark.by_rounding:
        verdict = Verdict(Reason.OK, EXACT.judged, over_limit=0.0, remarks=(remark,))
    elif passed:
        over = Verdict(Reason.OVER, EXACT.judged, over_limit=math.inf, evident=True)
        verdict = _remarked(over, remark)
    else:
        verdict = _remarked(outcome.verdict, remark)
    outcomes[place] = replace(outcome, verdict=verdict)


def _with_rest(
    outcome: PairOutcome, remark: remarks.TokensElsewhere | remarks.RowsAlike, begins: bool
) -> PairOutcome:
    """The outcome of the rows that have partners, and what the others mean for it. ``begins``:
    whether it is what the expert was given."""
    if begins and isinstance(remark, remarks.TokensElsewhere) and not remark.by_rounding:
        used = outcome.verdict.over_limit or math.inf
        lost = Verdict(Reason.OVER, EXACT.judged, over_limit=used, remarks=(remark,), evident=True)
        return replace(outcome, verdict=lost)
    if outcome.verdict.status is Status.PASS:
        return PairOutcome(None, Verdict(Reason.NOT_COMPARABLE, remarks=(remark,)))
    return replace(outcome, verdict=_remarked(outcome.verdict, remark))


def _remarked(verdict: Verdict, remark: PairRemark) -> Verdict:
    others = tuple(each for each in verdict.remarks if each != remark)
    return replace(verdict, remarks=(remark, *others))


def _excuse_backward(tasks: Sequence[Task], outcomes: _Outcomes, routing: Routing) -> None:
    """A fed router's own backward goes through its own choices, so what it gives shows nothing."""
    remark = remarks.AfterRouting(len(routing.tokens), routing.remark.of, routing.call[1], own=True)
    for place, (task, outcome) in enumerate(zip(tasks, outcomes, strict=True)):
        record = task.pair.record
        of_call = (
            record.role in (Role.GRAD_INPUT, Role.CALL_GRAD) and record.call == routing.call[2]
        )
        if (
            isinstance(outcome, PairOutcome)
            and outcome.verdict.status is Status.FAIL
            and (record.step, record.name) == routing.call[:2]
            and (of_call or record.role is Role.PARAM_GRAD)
        ):
            verdict = Verdict(Reason.NOT_COMPARABLE, remarks=(remark,), by_rounding=True)
            outcomes[place] = replace(outcome, metrics=None, verdict=verdict)


def where_fed_alike(tasks: list[Task], unlike: Collection[tuple[int, str]]) -> list[Task]:
    """The tasks, those without a baseline that give on what another call made, if the candidate's
    was not fed and the baseline's was: that baseline makes no error. ``unlike``: steps and modules
    whose outputs were not fed in the candidate alone."""
    if not unlike:
        return tasks
    outputs = {
        _pattern(task.pair.record.name) for task in tasks if task.pair.record.role is Role.OUTPUT
    }
    callers = set()
    for step, name in unlike:
        around = name.rpartition(".")[0]
        while around and _pattern(around) not in outputs:  # such as a list of modules
            around = around.rpartition(".")[0]
        callers.add((step, _pattern(around)))
    return [
        replace(task, baseline=None)
        if task.baseline is not None
        and (record := task.pair.record).role is Role.OUTPUT
        and (record.step, _pattern(record.name)) in callers
        else task
        for task in tasks
    ]


def _pattern(name: str) -> str:
    """A name without its numbers: those of experts are a rank's own."""
    return re.sub(r"\d+", "#", name)


def with_baseline_rows(
    tasks: list[Task],
    tokens: PairedTokens,
    baseline: Bundle | None,
    records: Mapping[Key, Record] | None,
) -> list[Task]:
    """The tasks with the baseline's rows of the tokens that are compared. ``records``: the
    baseline's, by golden's keys."""
    if baseline is None or records is None:
        return tasks
    tasks = list(tasks)
    for place, chosen in tokens.chosen.items():
        golden, candidate = tasks[place].pair.golden, tasks[place].pair.candidate
        if golden is None or candidate is None:
            continue
        record, tolerance = chosen.of(baseline, records), tasks[place].tolerance
        why = why_not(golden, candidate, record)
        if why is not None:
            record, tolerance = None, because(tolerance, why)
        elif tolerance.by_default:
            tolerance = dataclasses.replace(tolerance, unjudged=())
        tasks[place] = replace(
            tasks[place],
            baseline=record,
            tolerance=tolerance,
            by_rounding=None,
            proof=None,
            rounded=None,
        )
    return tasks
