"""Gradients that one side alone computes and no update takes: a discriminator that the generator's
step does not freeze, a teacher that is not frozen, a generator's output that is not detached.

They are harmless if nothing fails, and nothing that both sides have is made of them:

- what a call adds to a *parameter's gradient*, if the next update of the parameter takes a gradient
  that is nearer to golden's than that, so that it was set to zero in between. In the last steps, an
  earlier step tells.
- the gradient of a *parameter that no optimizer has*, and what calls add to it.
- the gradient of an *output*, if the call's whole backward is on that side alone.
- that of an *input*, if the calls that made it, or else the call whose code did, have their
  gradients on that side alone.

The gradient of what the caller of the model gives is the caller's, and not known, as is what later
updates would take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from accucompare.bundle.format import GRADIENT_ROLES, Record, Role
from accucompare.compare.constants import TELLS_LAYOUT
from accucompare.compare.origins.module_calls import CallKey, call_of, caller_of, parameter_of
from accucompare.compare.rows import UNMATCHED, Row, Status

#: A tensor of a step: (rank, step, digest).
_Tensor = tuple[int, int, str]


def unused_gradients(rows: Iterable[Row], parameters: Mapping[str, str]) -> dict[int, bool]:
    """One-sided gradients that fail, by their rows' ids; and whether each is known to be harmless.
    None if another row fails, or one of them went into what both sides have.

    Args:
        rows: in execution order.
        parameters: golden's names to the candidate's other first names.
    """
    rows = list(rows)
    failing = [(place, row) for place, row in enumerate(rows) if row.status is Status.FAIL]
    updates = any(
        row.golden is not None and row.candidate is not None and row.golden.role is Role.PARAM_GRAD
        for row in rows
    )
    if not updates or not all(_is_alone(row) for _, row in failing):
        return {}
    sides = {side: _Side(rows, side, parameters) for side in (True, False)}
    found: dict[int, bool] = {}
    for place, row in failing:
        harmless = sides[row.golden is not None].is_unused(place, row)
        if harmless is False:
            return {}
        found[id(row)] = harmless is True
    return found


def _is_alone(row: Row) -> bool:
    role = None if row.record is None else row.record.role
    return row.reason in UNMATCHED and role in (*GRADIENT_ROLES, Role.PARAM_GRAD)


class _Side:
    """What one side's gradients go into."""

    def __init__(self, rows: list[Row], golden: bool, parameters: Mapping[str, str]) -> None:
        self._others = {} if golden else {new: old for old, new in parameters.items()}
        # by parameter: places of the rows of what updates take, and of what calls add for these
        self._taken: defaultdict[tuple[int, str], list[tuple[int, Row]]] = defaultdict(list)
        self._added: defaultdict[tuple[int, str], list[tuple[int, float]]] = defaultdict(list)
        self._updated: set[tuple[int, str]] = set()
        self._both: set[tuple[CallKey, Role]] = set()  # calls with such a gradient on both sides
        self._around: set[CallKey | None] = set()  # these calls, and those that made them
        self._made: defaultdict[_Tensor, set[CallKey]] = defaultdict(set)
        self._given: dict[tuple[CallKey, str], str | None] = {}
        self._callers: dict[CallKey, CallKey | None] = {}
        self._given_to_model: set[_Tensor] = set()
        self._zeroed: set[tuple[object, ...]] = set()
        for place, row in enumerate(rows):
            record = row.golden if golden else row.candidate
            if record is None:
                continue
            both = row.golden is not None and row.candidate is not None
            if record.role in (Role.OUTPUT, Role.INPUT):
                # golden's bits: fed calls are given these, and give their own
                digest = (row.golden or record).digest
                if record.role is Role.INPUT:
                    if record.parent is None:
                        self._given_to_model.add((record.rank, record.step, digest or ""))
                    self._callers[call_of(record)] = caller_of(record)
                    self._given[call_of(record), record.path] = digest
                elif digest:
                    self._made[record.rank, record.step, digest].add(call_of(record))
            elif record.role in GRADIENT_ROLES and both:
                self._both.add((call_of(record), record.role))
                self._around |= {call_of(record), caller_of(record)}
                if record.role is Role.CALL_GRAD and record.statistics is not None:
                    self._added[self._parameter(record)].append(
                        (place, record.statistics.l2 or 0.0)
                    )
            elif record.role in (Role.PARAM_UPDATE, Role.PARAM_CHANGED):
                self._updated.add(self._parameter(record))
            elif record.role is Role.PARAM_GRAD and both:
                self._taken[self._parameter(record)].append((place, row))

    def _parameter(self, record: Record) -> tuple[int, str]:
        name = parameter_of(record)
        return record.rank, self._others.get(name, name)

    def is_unused(self, place: int, row: Row) -> bool | None:
        """Whether a one-sided gradient goes into nothing that both have; ``None`` if unknown."""
        record = row.record
        assert record is not None
        if record.role in (Role.CALL_GRAD, Role.PARAM_GRAD):
            if self._updated and self._parameter(record) not in self._updated:
                return True
            return record.role is Role.CALL_GRAD and self._is_zeroed(place, record)
        call = call_of(record)
        if record.role is Role.GRAD_OUTPUT:
            return not {(call, Role.GRAD_INPUT), (call, Role.CALL_GRAD)} & self._both
        digest = self._given.get((call, record.path.partition("#")[0]))
        around, caller = {call}, caller_of(record)
        while caller is not None:
            around.add(caller)
            caller = self._callers.get(caller)
        given = record.rank, record.step, digest or ""
        made = self._made.get(given, set()) - around
        if not made:
            return None if given in self._given_to_model else caller_of(record) not in self._around
        both = {(each, Role.GRAD_OUTPUT) in self._both for each in made}
        return not both.pop() if len(both) == 1 else None

    def _is_zeroed(self, place: int, record: Record) -> bool | None:
        parameter = self._parameter(record)
        size = None if record.statistics is None else record.statistics.l2
        known = record.role, record.name, record.call, record.path
        if size is None:
            return None
        before = max((at for at, _ in self._taken[parameter] if at < place), default=-1)
        later = next(((at, row) for at, row in self._taken[parameter] if at > place), None)
        if later is None:
            return True if known in self._zeroed else None
        at, taken = later
        if taken.golden is None or taken.golden.statistics is None:
            return None
        whole = taken.golden.statistics.l2 or 0.0
        error = 0.0 if taken.metrics is None else taken.metrics.rel_l2 * whole
        # what the update takes may be clipped, or unscaled
        most = max((each for own, each in self._added[parameter] if before < own < at), default=0.0)
        share = min(1.0, whole / most) if most else 1.0
        if taken.status is not Status.PASS:
            return False
        if error >= TELLS_LAYOUT * share * size:  # about as large, or lost in rounding
            return False if error * TELLS_LAYOUT < share * size else None
        self._zeroed.add(known)
        return True
