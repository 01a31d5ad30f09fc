"""The module calls and parameters that records belong to, and how far off a call's own code was."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from accucompare.bundle.format import Record
from accucompare.compare.constants import MUCH_FURTHER
from accucompare.compare.rows import Verdict

#: (rank, step, name, call index).
CallKey = tuple[int, int, str, int]


def call_of(record: Record) -> CallKey:
    """The module call that a record belongs to."""
    return record.rank, record.step, record.name, record.call


def caller_of(record: Record) -> CallKey | None:
    """The call that made a record's call; ``None`` for the root's."""
    return None if record.parent is None else (record.rank, record.step, *record.parent)


def parameter_of(record: Record) -> str:
    """The qualified name of a parameter, from a record of its gradient, value or update."""
    # under its first name; the module that used it has another, or none
    if record.path.startswith("/"):
        return record.path[1:].partition("#")[0]
    own = record.path.partition("#")[0]  # without the number of a gradient that was recorded again
    return f"{record.name}.{own}" if record.name else own


@dataclass
class GlueSoFar:
    """How far over its limit each call's own code, or its backward, has been so far."""

    _used: dict[CallKey | None, float] = field(default_factory=dict)

    def passes_on(self, source: CallKey | None, verdict: Verdict) -> bool:
        """Whether an earlier value of a call's code was about as wrong."""
        before, now = self._used.get(source), verdict.used or 0.0
        # another choice, or something tiny where golden is zero, says nothing about later values
        if math.isinf(now):
            return False
        self._used[source] = max(before or 0.0, now)
        return before is not None and now <= MUCH_FURTHER * before
