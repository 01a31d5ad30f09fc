"""What came, free-running, after rounding chose otherwise: which errors that explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter

from msgspec.structs import replace

from accucompare.bundle.format import Record, Role
from accucompare.compare.constants import OF_CHOSEN
from accucompare.compare.limits import differing
from accucompare.compare.pairing import Pair, most_changed
from accucompare.compare.remarks import AfterRouting, TokensElsewhere
from accucompare.compare.rows import PairOutcome, Reason, Status, Task, Verdict
from accucompare.compare.tokens import PairedTokens, Routing, call_of_pair
from accucompare.errors import BundleError
from accucompare.numbers import DTYPES

#: What operators in a call's own code take and give.
_INSIDE = (Role.OP_INPUT, Role.OP_OUTPUT)
#: Values of the forward; what a flip makes of a gradient, or of an update, is not bounded.
_FORWARD = (Role.INPUT, Role.OUTPUT, *_INSIDE)


def excuse_later(
    tasks: Sequence[Task],
    outcomes: list[PairOutcome | BundleError],
    tokens: PairedTokens,
    excused: Sequence[bool],
) -> None:
    """What fails after rounding chose otherwise shows nothing, if that explains as much; except in
    experts' calls, where the tokens that were routed otherwise are left out. ``outcomes`` is
    changed. ``excused``: whether rounding explains each of the ``tokens.routings``."""
    explained = [
        (routing, own)
        for routing, own, fine in zip(tokens.routings, tokens.forward, excused, strict=True)
        if fine and len(routing.tokens) and routing.decides
    ]
    if not explained:
        return
    first, own = min(explained, key=lambda each: each[0].place)
    later = [
        routing
        for routing, fine in zip(tokens.routings, excused, strict=True)
        if routing.place > first.place and (fine or routing.right) and routing.decides
    ]
    of_choices = {place: each for each in tokens.routings for place in each.choices if each.inner}
    inside = {each.call: each.order for each in reversed([first, *later]) if each.inner}
    flips = sorted([first, *later], key=attrgetter("place"))
    told = first.remark
    remark = AfterRouting(told.tokens, told.of, first.call[1], of_operator=told.of_operator)
    for place, (task, outcome) in enumerate(zip(tasks, outcomes, strict=True)):
        record = task.pair.record
        if (
            place in own
            or (record.step, record.order) <= first.place
            or not isinstance(outcome, PairOutcome)
            or outcome.verdict.status is not Status.FAIL
            or _beside(record, first)
        ):
            continue
        if place in of_choices:
            explains = of_choices[place].right
        elif record.role in _INSIDE and record.order > inside.get(
            call_of_pair(task.pair), math.inf
        ):
            explains = not _chooses_more(task.pair)
        else:
            explains = record.role not in _FORWARD or _explain(flips, task, outcome)
        if explains:
            verdict = Verdict(Reason.NOT_COMPARABLE, remarks=(remark,), by_rounding=True)
            outcomes[place] = replace(outcome, metrics=None, verdict=verdict)


def _beside(record: Record, routing: Routing) -> bool:
    """Whether a value is of the router's own call: what it gave does not come after it."""
    own = (record.step, record.name) == routing.call[:2]
    return own and record.role in (Role.INPUT, Role.OUTPUT) and not routing.inner


def _explain(routings: Sequence[Routing], task: Task, outcome: PairOutcome) -> bool:
    """Whether a value of the forward may be as far off since these chose other rows before."""
    golden, candidate, metrics = task.pair.golden, task.pair.candidate, outcome.metrics
    if golden is None or candidate is None:
        return True
    place = golden.step, golden.order
    before = [each.remark for each in routings if each.place < place]
    rows = sum(each.tokens for each in before)
    for remark in outcome.verdict.remarks:
        if isinstance(remark, TokensElsewhere):
            return remark.golden + remark.candidate <= most_changed(rows)
    if golden.shape != candidate.shape:
        if len(golden.shape) != len(candidate.shape) or _chooses_more(task.pair):
            return False
        apart = (abs(a - b) for a, b in zip(golden.shape, candidate.shape, strict=True))
        return max(apart) <= most_changed(rows)
    if metrics is None:
        return False
    whole = max(1, math.prod(golden.shape[:-1] or golden.shape))
    if not DTYPES[golden.dtype].digits:
        return differing(metrics) * whole <= most_changed(rows) * max(1, metrics.compared)
    share = max(rows / whole, sum(each.tokens / each.of for each in before))
    return metrics.rel_l2 <= OF_CHOSEN * math.sqrt(share)


def _chooses_more(pair: Pair) -> bool:
    """Whether as many rows choose another number each."""
    golden, candidate = pair.golden, pair.candidate
    if golden is None or candidate is None or golden.role is not Role.OP_OUTPUT:
        return False
    return golden.shape != candidate.shape and golden.shape[:-1] == candidate.shape[:-1]
