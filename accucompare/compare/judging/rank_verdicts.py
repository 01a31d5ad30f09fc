"""The verdict on a tensor of several ranks: which of them is wrong, or what is left to do."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from accucompare.bundle.format import GRADIENT_ROLES, GlobalRecord, Record, Role
from accucompare.compare import remarks
from accucompare.compare.layouts import interleaved, reordered, scaled, with_replicas, with_sums
from accucompare.compare.remarks import PairRemark
from accucompare.compare.rows import PairOutcome, Reason, Status, Task, Verdict
from accucompare.errors import BundleError
from accucompare.numbers import DTYPES, Kind

#: (rank, step, name, call index).
_Call = tuple[int, int, str, int]

#: Judges the task with another tensor in the candidate's place.
Rejudge = Callable[[GlobalRecord], PairOutcome]
#: Judges a task so.
RejudgeTask = Callable[[Task, GlobalRecord], PairOutcome]


def settle_ranks(task: Task, outcome: PairOutcome, judge: Rejudge) -> PairOutcome:
    """The outcome, after a look at replicas, sums and other arrangements of the ranks' tensors.

    Args:
        task: its candidate is a ``GlobalRecord``.
        outcome: with the first rank's replicas in the likeliest arrangement.
    """
    candidate = task.pair.candidate
    assert isinstance(candidate, GlobalRecord)
    settled = _settled(task, candidate, outcome, judge)
    if settled.verdict.status is Status.PASS:
        return settled
    for other in task.arranged:
        found = _settled(task, other, judge(other), judge)
        if found.verdict.status is Status.PASS:
            return found
        if found.summed is not None and settled.summed is None:
            settled = found
    nearest = settled
    for layers, other in interleaved(candidate):
        found = _settled(task, other, judge(other), judge)
        if found.verdict.status is Status.PASS:
            return _remarked(found, remarks.Interleaved(layers))
        if _is_nearer(found, nearest):  # a wrong layout misplaces right values
            nearest = found
    if (order := _order(candidate, judge)) is not None:
        return _remarked(settled, remarks.Swapped(order))
    return nearest


def _settled(
    task: Task, candidate: GlobalRecord, outcome: PairOutcome, judge: Rejudge
) -> PairOutcome:
    """The outcome of one arrangement."""
    outcome = replace(outcome, arranged=candidate)
    gradient = candidate.role in GRADIENT_ROLES
    if candidate.same:
        if outcome.verdict.status is Status.FAIL and gradient:
            return _by_mean(task, candidate, judge) or outcome
        return outcome
    held = [(each, judge(each)) for each in with_replicas(candidate)]
    wrong = [each for each, found in held if found.verdict.status is Status.FAIL]
    worst = max((found for _, found in held), key=_error)
    worst = replace(worst, arranged=candidate)
    ranks = tuple(candidate.ranks)
    if not wrong:
        compared = all(found.verdict.status is Status.PASS for _, found in held)
        return _remarked(
            worst, remarks.RanksDiffer(ranks) if compared else remarks.SumUnknown(ranks)
        )
    right = next((each for each, found in held if found.verdict.status is Status.PASS), None)
    of_call = candidate.role in (*GRADIENT_ROLES, Role.INPUT, Role.OUTPUT)  # may be terms
    of_call = of_call and candidate.dtype != "bool"  # a mask that one rank lost is no term
    terms = None
    for summed in (
        with_sums(candidate, task.means)
        if of_call or (right is None and candidate.dtype != "bool")
        else ()
    ):
        found = judge(summed)
        if found.verdict.status is Status.PASS:
            remark = remarks.ReducedHere(summed.reduced, ranks)
            # a number of each rank's own batch, such as its loss, is a term, too
            own = task.means and (not candidate.shape or _counts_tokens(candidate))
            if gradient or own:
                return _remarked(replace(found, arranged=summed), remark)
            if right is None:
                return replace(_failed(worst, remark), summed=summed)
            terms = terms or summed  # or what the other ranks lost: they hold zeros
        if found.verdict.status is Status.NOT_COMPARED and right is None:
            return _remarked(replace(found, arranged=summed), remarks.SumUnknown(ranks))
    worst = replace(worst, summed=terms)
    off = tuple(sorted({rank for each in wrong for rank in _off(each, right, judge)}))
    if len(wrong) < len(held):
        return _failed(worst, remarks.RanksDiffer(ranks, off))
    return _remarked(worst, remarks.RanksDiffer(ranks, off))


def _counts_tokens(record: GlobalRecord) -> bool:
    """Whether a record says how many tokens each expert is given."""
    whole = record.dtype in DTYPES and DTYPES[record.dtype].kind is Kind.INT
    return whole and len(record.shape) == 1 and "expert" in record.name.lower()


def _off(wrong: GlobalRecord, right: GlobalRecord | None, judge: Rejudge) -> list[int]:
    """The ranks whose parts fail in place of the right ones; all, if none fails by itself."""
    found: set[int] = set()
    for number, box in enumerate(() if right is None else wrong.boxes):
        assert right is not None
        boxes = (*right.boxes[:number], box, *right.boxes[number + 1 :])
        if judge(replace(right, boxes=boxes)).verdict.status is Status.FAIL:
            found |= {record.rank for record in box.terms}
    return sorted(found) or wrong.ranks


def _by_mean(task: Task, candidate: GlobalRecord, judge: Rejudge) -> PairOutcome | None:
    """The outcome if each rank's gradient is of the mean loss of its own batch."""
    for divisor in task.means:
        record = scaled(candidate, 1.0 / divisor)
        found = judge(record)
        if found.verdict.status is Status.PASS:
            return _remarked(replace(found, arranged=record), remarks.TimesRanks(divisor))
    return None


def _order(candidate: GlobalRecord, judge: Rejudge) -> tuple[int, ...] | None:
    """The ranks in the order in which their parts pass; ``None`` if that is their own."""
    own = [box.terms[0].rank for box in candidate.boxes]
    for order, record in reordered(candidate):
        ranks = [own[number] for number in order]
        if ranks != own and judge(record).verdict.status is Status.PASS:
            return tuple(ranks)
    return None


def _is_nearer(one: PairOutcome, other: PairOutcome) -> bool:
    """Whether one is nearer to golden, and also if golden may be multiplied by any number."""
    errors, away = [], []
    for each in (one.metrics, other.metrics):
        errors.append(math.inf if each is None else each.rel_l2)
        away.append(1.0 if each is None else -abs(1.0 - each.one_minus_cosine))
    return errors[0] < errors[1] and away[0] < away[1]


def _error(outcome: PairOutcome) -> tuple[bool, float]:
    failed = outcome.verdict.status is Status.FAIL
    return failed, 0.0 if outcome.metrics is None else outcome.metrics.rel_l2


def _remarked(outcome: PairOutcome, remark: PairRemark) -> PairOutcome:
    verdict = outcome.verdict
    return replace(outcome, verdict=replace(verdict, remarks=(*verdict.remarks, remark)))


def _failed(outcome: PairOutcome, remark: PairRemark) -> PairOutcome:
    verdict = replace(outcome.verdict, reason=Reason.OVER, remarks=(remark,), evident=True)
    return replace(outcome, verdict=verdict)


def pass_used_terms(
    tasks: Sequence[Task],
    outcomes: list[PairOutcome | BundleError],
    judge: RejudgeTask,
    fed: bool = False,
) -> None:
    """Pass values that ranks hold as terms of a sum, if what is computed of them is right.

    The caller's own code then makes the sum. ``outcomes`` is changed.

    Args:
        judge: judges a task with another tensor in the candidate's place.
        fed: whether calls were given golden's values. A value of which a rank holds all was then
            given to each rank whole: what is computed of it is right where no sum is made.
    """
    wrong: dict[_Call | None, bool] = {}
    terms = []
    for place, (task, outcome) in enumerate(zip(tasks, outcomes, strict=True)):
        if isinstance(outcome, BundleError):
            continue
        record = task.pair.record
        if record.role is Role.OUTPUT:
            call = record.rank, record.step, record.name, record.call
            failed = outcome.verdict.status is Status.FAIL
            wrong[call] = failed or wrong.get(call, False)
        is_sum = outcome.summed is not None and (not fed or _is_reduced_here(outcome))
        if record.role in (Role.INPUT, Role.OUTPUT) and is_sum:
            terms.append(place)
    for place in terms:
        task, outcome = tasks[place], outcomes[place]
        assert isinstance(outcome, PairOutcome)
        record, summed = task.pair.record, outcome.summed
        called = (record.name, record.call) if record.role is Role.INPUT else record.parent
        if called is None or not isinstance(summed, GlobalRecord):
            continue
        if wrong.get((record.rank, record.step, *called)) is False:
            found = replace(judge(task, summed), arranged=summed)
            outcomes[place] = _remarked(
                found, remarks.ReducedHere(summed.reduced, tuple(summed.ranks))
            )


def fail_left_terms(
    tasks: Sequence[Task], outcomes: list[PairOutcome | BundleError], judge: RejudgeTask
) -> None:
    """Fail gradients that ranks hold as terms of a sum, if an update was given terms for that.

    A sum may be made after a module's backward; where it never was, the parameters' gradients show
    it. They came from the gradient at their module's output, and that from where its bits were.
    ``judge``: as that of ``pass_used_terms``."""
    updates = {
        (task.pair.record.step, task.pair.record.name)
        for task, outcome in zip(tasks, outcomes, strict=True)
        if task.pair.record.role is Role.PARAM_GRAD and _is_reduced_here(outcome)
    }
    terms = {
        place: _bits(record)
        for place, (task, outcome) in enumerate(zip(tasks, outcomes, strict=True))
        if task.pair.record.role in GRADIENT_ROLES
        and _is_reduced_here(outcome)
        and isinstance(record := task.pair.candidate, GlobalRecord)
    }
    given = {
        (record.step, record.name): bits
        for place, bits in terms.items()
        if (record := tasks[place].pair.record).role is Role.GRAD_OUTPUT
        and (record.step, record.name) in updates
    }
    left = {*given.values()}
    for place, bits in terms.items():
        outcome, (record, candidate) = outcomes[place], _sides(tasks[place])
        if bits in left or (record.step, record.name) in given:
            assert isinstance(outcome, PairOutcome)
            held = (judge(tasks[place], each) for each in with_replicas(candidate))
            worst = replace(max(held, key=_error), arranged=candidate)
            outcomes[place] = _failed(worst, outcome.verdict.remarks[-1])


def _sides(task: Task) -> tuple[Record, GlobalRecord]:
    candidate = task.pair.candidate
    assert isinstance(candidate, GlobalRecord)
    return task.pair.record, candidate


def _is_reduced_here(outcome: PairOutcome | BundleError) -> bool:
    return isinstance(outcome, PairOutcome) and any(
        isinstance(remark, remarks.ReducedHere) for remark in outcome.verdict.remarks
    )


def _bits(record: GlobalRecord) -> frozenset[tuple[int, str | None]]:
    """What each rank holds, as digests."""
    return frozenset(
        (term.rank, term.digest)
        for box in record.boxes
        for terms in (box.terms, *box.replicas)
        for term in terms
    )


def judge_own_means(
    tasks: Sequence[Task], outcomes: list[PairOutcome | BundleError], judge: RejudgeTask
) -> None:
    """Measure wrong gradients as right ones are: if these are of the mean losses of the ranks' own
    batches, so are those. Their errors would else seem to change from row to row. If none is right,
    what makes the first one's error smallest counts. ``judge``: as that of ``pass_used_terms``."""
    times: Counter[float] = Counter()
    wrong = []
    for place, (task, outcome) in enumerate(zip(tasks, outcomes, strict=True)):
        if isinstance(outcome, BundleError) or task.pair.record.role not in GRADIENT_ROLES:
            continue
        verdict = outcome.verdict
        if verdict.status is Status.FAIL:
            wrong.append(place)
        elif verdict.status is Status.PASS and verdict.reason is not Reason.IDENTICAL:
            told = (each for each in verdict.remarks if isinstance(each, remarks.TimesRanks))
            times[next((each.times for each in told), 1.0)] += 1
    most = max(times, key=lambda each: times[each], default=None)
    for place in wrong:
        task, outcome = tasks[place], outcomes[place]
        assert isinstance(outcome, PairOutcome)
        if most == 1.0 or not isinstance(outcome.arranged, GlobalRecord):
            continue
        found = {}
        for each in task.means if most is None else [most]:
            record = scaled(outcome.arranged, 1.0 / each)
            own = replace(task, pair=replace(task.pair, candidate=record), arranged=())
            again = settle_ranks(own, judge(task, record), functools.partial(judge, task))
            found[each] = _remarked(again, remarks.TimesRanks(each))
        if most is None:  # the first wrong one tells
            found[1.0] = outcome
            most = min(found, key=lambda each: _error(found[each]))
        outcomes[place] = found[most]


def judge_own_clipping(
    tasks: Sequence[Task],
    outcomes: list[PairOutcome | BundleError],
    factors: Mapping[int, float],
    judge: RejudgeTask,
) -> None:
    """Judge gradients that the ranks' loop has clipped by itself as they were before.

    Args:
        factors: of the clipping, by step.
        judge: as that of ``pass_used_terms``.
    """
    for place, (task, outcome) in enumerate(zip(tasks, outcomes, strict=True)):
        candidate = task.pair.candidate
        if not isinstance(candidate, GlobalRecord) or candidate.role is not Role.PARAM_GRAD:
            continue
        factor = factors.get(candidate.step)
        if factor is None or isinstance(outcome, BundleError):
            continue
        if outcome.verdict.status is not Status.FAIL:
            continue
        arranged = outcome.arranged
        record = scaled(arranged if isinstance(arranged, GlobalRecord) else candidate, 1.0 / factor)
        own = replace(task, pair=replace(task.pair, candidate=record), arranged=())
        again = settle_ranks(own, judge(task, record), functools.partial(judge, task))
        outcomes[place] = _remarked(again, remarks.OwnClipping(factor))


def of_ranks(verdict: Verdict) -> Verdict:
    """The verdict on an error made here, with the reason that its ranks' values show."""
    if verdict.reason not in (Reason.INTRODUCED, Reason.GLUE):
        return verdict
    for remark in verdict.remarks:
        match remark:
            case remarks.ReducedHere():
                return replace(verdict, reason=Reason.UNREDUCED)
            case remarks.RanksDiffer(ranks, wrong) if wrong and wrong != ranks:
                return replace(verdict, reason=Reason.RANKS_DISAGREE)
    return verdict
