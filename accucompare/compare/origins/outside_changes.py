"""One-sided changes of parameters and buffers outside updates and calls that are mere rounding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from accucompare.bundle.format import BUFFER_ROLES, Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.constants import ROUNDINGS_OF_CHANGE, SHARE_OF_UPDATE
from accucompare.compare.limits import is_half
from accucompare.compare.origins.module_calls import parameter_of
from accucompare.compare.pairing import Pair
from accucompare.compare.remarks import LeavesAsItIs, PairRemark, RoundedAway
from accucompare.compare.rows import PairOutcome, Reason, Verdict, buffer_of
from accucompare.numbers import DTYPES, Float64, fingerprint

#: What is looked at between updates and calls.
_CHANGED = (Role.PARAM_CHANGED, Role.BUFFER_BEFORE, Role.BUFFER_AFTER)

#: The rank, and the qualified name of a parameter or a buffer.
_Name = tuple[int, str]


def small_changes(
    golden: Bundle, candidate: Bundle, pairs: Sequence[Pair]
) -> dict[int, PairOutcome]:
    """The outcomes of such records, by the pair's place among the pairs.

    If the value before is unknown, as for its first change, the change may be too small for a
    half-type side; not if all parameters changed.

    Errors as ``Bundle.values``."""
    alone = [
        (place, pair)
        for place, pair in enumerate(pairs)
        if None in (pair.golden, pair.candidate) and pair.record.role in _CHANGED
    ]
    if not alone:
        return {}
    sides = (
        _Side(golden, (pair.golden for pair in pairs)),
        _Side(candidate, (pair.candidate for pair in pairs)),
    )
    found = {}
    for place, pair in alone:
        side, other = (sides[1], sides[0]) if pair.golden is None else sides
        dtype = other.dtype_of(pair.record)
        change = side.change(pair.record)
        if change is None:
            if is_half(dtype) and (
                pair.record.role is not Role.PARAM_CHANGED or pair.record.key[:2] in other.changed
            ):
                found[place] = _no_difference(LeavesAsItIs(pair.golden is None, dtype))
            continue
        size, norm, update = change
        share = 0.0 if candidate.manifest.fed else SHARE_OF_UPDATE
        rounding = max(DTYPES[each].rounding for each in (dtype, pair.record.dtype))
        if size <= ROUNDINGS_OF_CHANGE * rounding * norm + share * update:
            found[place] = _no_difference(RoundedAway(size / norm if norm else 0.0))
    return found


def _no_difference(remark: PairRemark) -> PairOutcome:
    return PairOutcome(None, Verdict(Reason.NOT_COMPARABLE, remarks=(remark,)))


@dataclass
class _Side:
    """The parameters and buffers of one side, with their records in time order: (step, order)."""

    bundle: Bundle
    records: Iterable[Record | None]
    _known: dict[_Name, dict[tuple[int, int], Record]] = field(default_factory=dict)
    _given: dict[tuple[_Name, int, int], Record] = field(default_factory=dict)
    # ranks and steps with a parameter changed by something else
    changed: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        for record in self.records:
            if record is None or record.member is None:
                continue
            if record.role in (Role.PARAM_UPDATE, Role.PARAM_CHANGED, *BUFFER_ROLES):
                self._known.setdefault(_name_of(record), {})[record.step, record.order] = record
                if record.role is Role.PARAM_CHANGED:
                    self.changed.add((record.rank, record.step))
            elif record.role is Role.PARAM_BEFORE:
                self._given[_name_of(record), record.step, record.call] = record

    def dtype_of(self, record: Record) -> str:
        """The type of this side's parameter or buffer; the given record's if this side has none."""
        found = str(self._at_start(record).get("dtype"))
        return found if found in DTYPES else record.dtype

    def _at_start(self, record: Record) -> dict[str, Any]:
        """What the manifest says of this side's parameter or buffer."""
        model, name = self.bundle.manifest.model, _name_of(record)[1]
        tables = (model.get(kind) or {} for kind in ("parameters", "buffers"))
        return next((table[name] for table in tables if name in table), {})

    def change(self, record: Record) -> tuple[float, float, float] | None:
        """L2 norms of change, value and last update; ``None`` if the value before is unknown."""
        known = self._known.get(_name_of(record), {})
        earlier = [time for time in known if time < (record.step, record.order)]
        if record.member is None or not DTYPES[record.dtype].digits:
            return None
        if not earlier:
            now_held = fingerprint(self.bundle.raw(record), DTYPES[record.dtype])[record.dtype]
            start = (self._at_start(record).get("digests") or {}).get(record.dtype)
            return (0.0, 0.0, 0.0) if now_held == start else None  # written, but as it was
        last = known[max(earlier)]
        left, update = self._values(last), 0.0
        if last.role is Role.PARAM_UPDATE:
            given = self._given.get((_name_of(record), last.step, last.call))
            if given is None:
                return None
            update = float(np.linalg.norm(left))
            left = left + self._values(given)
        now = self._values(record)
        if now.shape != left.shape or not (np.isfinite(now).all() and np.isfinite(left).all()):
            return None
        return float(np.linalg.norm(now - left)), float(np.linalg.norm(now)), update

    def _values(self, record: Record) -> Float64:
        return self.bundle.values(record).astype(np.float64).reshape(-1)


def _name_of(record: Record) -> _Name:
    return record.rank, buffer_of(record) if record.role in BUFFER_ROLES else parameter_of(record)
