"""Where golden is not deterministic, as its second capture shows; later values then differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from accucompare.bundle.format import Key, Record, Role
from accucompare.compare.origins.module_calls import CallKey, call_of, caller_of


def begins(golden: Iterable[Record], again: Mapping[Key, Record]) -> dict[Key, Record]:
    """Golden's second capture where it shows, for a *fed* diff, whether code is deterministic.

    Golden's own captures were not fed: after one different random number everything differs,
    although each module is deterministic. A fed candidate got the first capture's values, so its
    errors are its own. So ignore a value of the second capture if its code received different
    inputs there: arguments, or results of the calls it made. ``again``: the records of the second
    capture."""
    kept: dict[Key, Record] = {}
    changed: set[CallKey] = set()  # calls whose code got other values in the second capture
    for record in sorted(golden, key=lambda each: (each.rank, each.step, each.order)):
        call, caller = call_of(record), caller_of(record)
        source, to = (caller, call) if record.role is Role.INPUT else (call, caller)
        other = again.get(record.key)
        if other is not None and source not in changed:
            kept[record.key] = other
        # both are None for an opaque object
        steady = other is not None and other.digest == record.digest
        if not steady and to is not None and record.role in (Role.INPUT, Role.OUTPUT):
            changed.add(to)
    return kept
