"""Where golden itself is not steady, as its second capture shows: what comes of it later is not steady for that alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from accucompare.bundle.records import Key, Record, Role
from accucompare.compare.reasons import Call


def begins(golden: Iterable[Record], again: Mapping[Key, Record]) -> dict[Key, Record]:
    """The second capture's records of a *fed* comparison's golden that tell whether the code that made a value is steady.

    Golden's own captures were not fed: behind a draw that differs, everything does, though each module is as steady as ever. A fed
    candidate was given the first capture's values, and is off for what it does itself. So the second capture says nothing of a value
    whose code was given others in it, as arguments or by the calls that it made.

    Args:
        golden: the records.
        again: those of the second capture.
    """
    kept: dict[Key, Record] = {}
    given: set[Call] = set()  # calls whose own code has had other values in the second capture until now
    for record in sorted(golden, key=lambda each: (each.rank, each.step, each.order)):
        call: Call = (record.rank, record.step, record.name, record.call)
        parent: Call | None = None if record.parent is None else (record.rank, record.step, *record.parent)
        source, to = (parent, call) if record.role is Role.INPUT else (call, parent)
        other = again.get(record.key)
        if other is not None and source not in given:
            kept[record.key] = other
        steady = other is not None and other.digest == record.digest  # both have none of an object that cannot be looked into
        if not steady and to is not None and record.role in (Role.INPUT, Role.OUTPUT):
            given.add(to)
    return kept
