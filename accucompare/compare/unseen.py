"""What could not be compared and may hide an error, so that no all-clear covers it.

**On the way.** What a call gives is judged by the rows of its outputs. An output that holds values without data to compare (nested,
sparse, quantized, inside vmap, unreadable) is judged by nothing, and what follows it may make its error small: a normalisation, a
wide limit. An object that cannot be looked into may hold such values; it counts where the call gives nothing that is compared, and
something after it is: a cache beside the hidden states, or an object that the whole model gives at its end, hides no step between
compared ones. What is handed *to* a call shows in what the call gives.

**Chosen.** Where rounding changes a shape or how often a call is made, as the baseline shows, there is nothing to judge by.

**Many.** Where more than half of the tensors could not be compared, whatever they are, too little was.

**Unless it is proven.** Where a call gives bit for bit what golden gives, nothing inside it can have gone wrong; fed, only if all that
was compared inside it is golden's, too: what is off there was replaced by golden's and went no further.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from accucompare.bundle.records import Layout, Record, Role
from accucompare.compare.operator_rows import is_operator
from accucompare.compare.reasons import Call
from accucompare.compare.rows import Reason, Row, Status

#: How tensors are held that are listed without data. A meta tensor has no values to be wrong.
_WITHOUT_DATA = (Layout.NESTED, Layout.SPARSE, Layout.QUANTIZED, Layout.BATCHED, Layout.UNREADABLE)

#: More than one tensor in so many that could not be compared are too many.
_TOO_MANY = 2


@dataclass(frozen=True)
class Unseen:
    """Rows, in execution order, that could not be compared and may hide an error; ``count``: all those that may hold values."""

    first: Row
    count: int


def unseen(rows: Sequence[Row], fed: bool) -> Unseen | None:
    """What may hide an error; ``None`` if nothing does. ``fed``: whether the candidate was."""
    suspects = [row for row in rows if _holds_values(row)]
    if not suspects:
        return None
    proven = _Proven(rows, fed)
    suspects = [row for row in suspects if not proven(row)]
    compared = sum(row.status is Status.PASS for row in rows)
    on_the_way = _on_the_way(suspects, rows)
    if on_the_way:
        return Unseen(on_the_way[0], len(suspects))
    many = [row for row in suspects if row.golden is not None and row.golden.layout is not Layout.OPAQUE]
    if len(many) * _TOO_MANY > len(many) + compared:
        return Unseen(many[0], len(suspects))
    return None


def _holds_values(row: Row) -> bool:
    """Whether a row without data to compare may hold what was computed: not what is there on one side only, nor an object given."""
    ours, theirs = row.golden, row.candidate
    if row.verdict.chosen:
        return True
    if row.reason is not Reason.NOT_COMPARABLE or ours is None or theirs is None:
        return False
    if is_operator(ours) or ours.role is Role.COMPUTED_BUFFER:
        return False
    if ours.layout is Layout.OPAQUE:
        return ours.role is Role.OUTPUT
    return ours.layout is not Layout.META


def _on_the_way(suspects: Iterable[Row], rows: Sequence[Row]) -> list[Row]:
    """The outputs that no row judges."""
    judged = {_call(row.record) for row in rows if row.status is Status.PASS and row.record is not None and row.record.role is Role.OUTPUT}
    last: dict[tuple[int, int], int] = {}  # the order of the last row that was compared, by rank and step
    for row in rows:
        if row.status is Status.PASS and row.golden is not None:
            step = row.golden.rank, row.golden.step
            last[step] = max(last.get(step, 0), row.golden.order)
    found = []
    for row in suspects:
        record = row.record
        assert record is not None
        if row.verdict.chosen:
            found.append(row)
            continue
        between = record.order < last.get((record.rank, record.step), -1)
        alone = record.layout is Layout.OPAQUE and between and _call(record) not in judged
        if record.role is Role.OUTPUT and (record.layout in _WITHOUT_DATA or alone):
            found.append(row)
    return found


class _Proven:
    """Whether the call that a row is of, or one around it, gives nothing but what golden gives, bit for bit."""

    def __init__(self, rows: Iterable[Row], fed: bool) -> None:
        others: set[Call] = set()  # that made something else, which was not passed on
        self.parents: dict[Call, Call | None] = {}
        self.same: dict[Call, bool] = {}
        for row in rows:
            record = row.record
            if record is None:
                continue
            call = _call(record)
            self.parents[call] = None if record.parent is None else (record.rank, record.step, *record.parent)
            if record.role is Role.OUTPUT and record.layout is not Layout.OPAQUE:
                self.same[call] = self.same.get(call, True) and row.reason is Reason.IDENTICAL
            if fed and row.reason not in (Reason.IDENTICAL, Reason.NOT_COMPARABLE) and not is_operator(record):
                others.add(call)
        for call in others:
            above = self.parents.get(call)
            while above is not None:
                self.same[above] = False
                above = self.parents.get(above)

    def __call__(self, row: Row) -> bool:
        call: Call | None = _call(row.record)  # whose own output that was not compared makes it unproven
        while call is not None:
            if self.same.get(call):
                return True
            call = self.parents.get(call)
        return False


def _call(record: Record | None) -> Call:
    assert record is not None
    return record.rank, record.step, record.name, record.call
