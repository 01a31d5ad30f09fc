"""Records and modules of one side alone: the other did not run, record or call them, or it is another way to compute the same.

**Vouched for.** Refactorings pass a flag, return attention weights, or call a module that the other side does without. Such a value matters
by what is computed of it. A value that goes into a call is vouched for by that call; one that comes out of a call, or of a call that
one side alone makes, by the call around it, whose code goes on with it. That call agrees if all of its outputs that both sides have are
within their limits, and so is all that it hands to the calls inside it. Then the value is listed, and fails nothing. Nothing vouches for
what the model itself returns, nor for a gradient of what both sides have, nor for what an update leaves behind.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property

from msgspec.structs import replace

from accucompare.bundle.reader import Bundle
from accucompare.bundle.records import GRADIENT_ROLES, NODE_ROLES, TRAINING_ROLES, UPDATE_ROLES, WAYS_OF_UPDATING, Layout, Record, Role
from accucompare.compare.align import Pair
from accucompare.compare.asked import not_asked
from accucompare.compare.dumps import of_dumps
from accucompare.compare.operator_rows import is_operator
from accucompare.compare.outcomes import Outcome
from accucompare.compare.reasons import Call, call_of, caller_of
from accucompare.compare.rows import Reason, Row, Status, Verdict
from accucompare.selection import Selection


def explained(golden: Bundle, candidate: Bundle, pairs: Sequence[Pair]) -> dict[int, Outcome]:
    """The outcomes of records without partner, where the other side is known not to have run, recorded or been asked for them.

    Returns:
        The outcomes by the pair's place among the pairs; a record whose absence nothing explains has none.
    """
    steps = {(rank, entry.step) for rank, entry in candidate.steps()} if candidate.manifest.fed else None
    untrained, classes, dumps = _untrained(golden, candidate), _other_classes(golden, candidate), of_dumps(golden, candidate, pairs)
    options = golden.manifest.options, candidate.manifest.options
    found: dict[int, Outcome] = {}
    for place, pair in enumerate(pairs):
        if pair.golden is not None and pair.candidate is not None:
            continue
        why = (
            not_asked(pair, *options)
            or dumps.get(place)
            or _other_state(pair, classes)
            or _no_gradient(pair)
            or _not_trained(pair.record, untrained)
            or _not_run(pair, steps)
        )
        if why:
            found[place] = Outcome(None, Verdict(Reason.NOT_COMPARABLE, detail=why))
    return found


def vouched_for(rows: list[Row]) -> list[Row]:
    """The rows, with those of one side that what both sides compute around them vouches for as ``ONE_SIDED``, which is no failure.

    Args:
        rows: in execution order, each with its reason.
    """
    alone = [row for row in rows if row.reason in (Reason.MISSING, Reason.EXTRA)]
    if not alone:
        return rows
    calls = _Calls(rows)
    values = {_value(row.record) for row in alone if row.record is not None and row.record.role in (Role.INPUT, Role.OUTPUT)}
    listed = {id(row) for row in alone if calls.vouch_for(row, values)}
    return [replace(row, verdict=replace(row.verdict, reason=Reason.ONE_SIDED)) if id(row) in listed else row for row in rows]


#: What a gradient is the gradient of.
_FORWARD = {Role.GRAD_OUTPUT: Role.OUTPUT, Role.GRAD_INPUT: Role.INPUT}

#: A value of a module call: the call, its role, and its path.
_Value = tuple[Call, Role, str]


def _value(record: Record) -> _Value:
    return call_of(record), record.role, record.path


class _Calls:
    """Which module calls both sides made, and whether what both have of them agrees, forward and backward."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._callers: tuple[dict[Call, Call | None], dict[Call, Call | None]] = ({}, {})  # golden's, the candidate's
        self._golden: dict[Call, Call] = {}  # by the candidate's call
        self._agree: dict[tuple[Call, bool], bool] = {}  # by golden's call, and whether its backward
        self._returns: set[Call] = set()  # calls of golden with an output that both have
        for row in rows:
            ours, theirs = row.golden, row.candidate
            for callers, record in zip(self._callers, (ours, theirs), strict=True):
                if record is not None and not is_operator(record):
                    callers.setdefault(call_of(record), caller_of(record))
            if ours is None or theirs is None or is_operator(ours) or ours.role in UPDATE_ROLES:
                continue
            self._golden[call_of(theirs)] = call_of(ours)
            backward, passes = ours.role in GRADIENT_ROLES, row.status is Status.PASS
            own = ours.role in (Role.OUTPUT, Role.GRAD_INPUT, Role.CALL_GRAD)
            whose = call_of(ours) if own else caller_of(ours)
            if whose is None or row.reason is Reason.NOT_COMPARABLE:
                continue
            if own and passes and ours.layout is Layout.STRIDED and (not backward or ours.role is Role.GRAD_INPUT):
                self._returns.add(whose) if not backward else self._agree.setdefault((whose, True), True)
            self._agree[whose, backward] = passes and self._agree.get((whose, backward), True)

    def vouch_for(self, row: Row, alone: Collection[_Value]) -> bool:
        """Whether what both sides compute around a row of one side agrees. ``alone``: the values that one side alone has."""
        record = row.record
        assert record is not None
        if is_operator(record) or record.role not in (Role.INPUT, Role.OUTPUT, *GRADIENT_ROLES):
            return False
        backward, golden = record.role in GRADIENT_ROLES, row.golden is not None
        call: Call | None = call_of(record)
        if backward and self._known(call, golden) is not None and (call, _FORWARD.get(record.role), record.path) not in alone:
            return False  # of a value that both have
        if record.role not in (Role.INPUT, Role.GRAD_OUTPUT) or self._known(call, golden) is None:
            call = caller_of(record)
        while call is not None and self._known(call, golden) is None:
            call = self._callers[not golden].get(call)
        shared = self._known(call, golden)
        if shared is None or shared not in self._returns:
            return False
        return self._agree.get((shared, False), False) and (not backward or self._agree.get((shared, True), False))

    def _known(self, call: Call | None, golden: bool) -> Call | None:
        """Golden's call, if both sides made it."""
        if call is None:
            return None
        if golden:
            return call if call in self._shared else None
        return self._golden.get(call)

    @cached_property
    def _shared(self) -> frozenset[Call]:
        return frozenset(self._golden.values())


def _not_run(pair: Pair, steps: Collection[tuple[int, int]] | None) -> str:
    """Why a fed candidate, which ran these steps of these ranks, has no record; ``""`` if it should, or nothing was fed (``None``)."""
    record = pair.golden
    return "" if steps is None or record is None or (record.rank, record.step) in steps else "a step that was not fed"


def _untrained(golden: Bundle, candidate: Bundle) -> str:
    """Which side was captured without gradients, on request or because no backward ran; ``""`` if neither was."""
    if not golden.manifest.options.backward:
        return "golden"
    return "" if candidate.manifest.options.no_backward is False else "the candidate"  # an older bundle does not say


def _not_trained(record: Record, side: str) -> str:
    """Why ``side``, which was captured without gradients, has no record of a backward or an update."""
    return f"{side} was captured without gradients" if side and record.role in (*TRAINING_ROLES, *NODE_ROLES) else ""


def _no_gradient(pair: Pair) -> str:
    """Why one side has no part of an input's gradient that is zero everywhere on the other.

    It is one and the same: autograd adds nothing. A module that works in place on a part of a tensor gives zeros for what it has written
    over, and none where that was a tensor of its own, as it is when it is fed.
    """
    found = pair.record.statistics
    if pair.record.role is not Role.GRAD_INPUT or found is None or found.nan or found.inf or (found.min, found.max) != (0, 0):
        return ""
    has, lacks = ("golden", "the candidate") if pair.golden is not None else ("the candidate", "golden")
    return f"{has}'s is zero everywhere, and {lacks} adds none, which is the same"


def _other_state(pair: Pair, classes: tuple[str, str] | None) -> str:
    """Why one side has no such state of an optimizer: the other's is of another class, or says how it computes (``AdamW.0.foreach``)."""
    record = pair.record
    if classes is not None and record.role in (Role.STATE_BEFORE, Role.STATE_AFTER):
        return f"golden's optimizer is {classes[0]}, the candidate's {classes[1]}"
    if not record.name and record.role is Role.STATE_BEFORE and record.path.rpartition(".")[2] in WAYS_OF_UPDATING:
        return "how an update is computed, not what; newer captures do not record it"
    return ""


def _other_classes(golden: Bundle, candidate: Bundle) -> tuple[str, str] | None:
    """The names of the classes of the two optimizers, if they differ."""
    ours, theirs = ((bundle.manifest.options.optimizer or "").partition(" of ")[0].rpartition(".")[2] for bundle in (golden, candidate))
    return (ours, theirs) if ours and theirs and ours != theirs else None


def never_called(golden: Bundle, candidate: Bundle, selection: Selection) -> list[Row]:
    """A row for each registered module that neither side called, or that one side did not call."""
    sides = [bundle.manifest.model for bundle in (golden, candidate)]
    idle = [set(side.get("not_called") or ()) for side in sides]
    modules = [side.get("modules") or {} for side in sides]
    rows = []
    for name in [*modules[0], *(name for name in modules[1] if name not in modules[0])]:
        where = [side for side, names in zip(("golden", "candidate"), idle, strict=True) if name in names]
        if where and selection.allows(name):
            kind = modules[0].get(name) or modules[1].get(name)
            detail = f"{kind}, never called" if len(where) == 2 else f"{kind}, never called in {where[0]}"
            rows.append(Row(None, None, Verdict(Reason.NOT_CALLED, detail=detail), module=name))
    return rows
