"""What something other than an update has changed in a parameter on one side alone, as far as it is no more than rounding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from accucompare.bundle.reader import Bundle
from accucompare.bundle.records import Record, Role
from accucompare.compare.align import Pair
from accucompare.compare.outcomes import Outcome
from accucompare.compare.rows import Reason, Verdict
from accucompare.numbers.dtypes import DTYPES
from accucompare.numbers.sums import Float64

#: A change is rounding up to so many roundings of its type, relative to the parameter's norm: averaged weights that are swapped in and
#: out again are rounded twice.
ROUNDINGS = 2.0

#: Free-running, clamping may cut what another update has made of other gradients: up to this share of that update, relative to its norm
#: (Adam's first update makes 1.5e-2 of gradients that are 1e-5 off).
SHARE_OF_UPDATE = 0.05

#: (rank, name, path).
_Parameter = tuple[int, str, str]


def small_changes(golden: Bundle, candidate: Bundle, pairs: Sequence[Pair]) -> dict[int, Outcome]:
    """The outcomes of such records, by the pair's place among the pairs. Where no tensors were kept, none is known to be small.

    Errors as ``Bundle.values``.
    """
    alone = [(place, pair) for place, pair in enumerate(pairs) if _is_alone(pair)]
    if not alone:
        return {}
    sides = (
        _Side(golden, (pair.golden for pair in pairs)),
        _Side(candidate, (pair.candidate for pair in pairs)),
    )
    found = {}
    for place, pair in alone:
        change = sides[pair.golden is None].change(pair.record)
        if change is None:
            continue
        size, norm, update = change
        share = 0.0 if candidate.manifest.fed else SHARE_OF_UPDATE
        if size <= ROUNDINGS * DTYPES[pair.record.dtype].rounding * norm + share * update:
            detail = (
                f"changed between two updates on this side alone, by no more than rounding: relative L2 {size / norm if norm else 0.0:.2g}"
            )
            found[place] = Outcome(None, Verdict(Reason.NOT_COMPARABLE, detail=detail))
    return found


def _is_alone(pair: Pair) -> bool:
    return None in (pair.golden, pair.candidate) and pair.record.role is Role.PARAM_CHANGED and pair.record.member is not None


@dataclass
class _Side:
    """The parameters of one side, with what was recorded of them in the order of time: (step, update, 1 for what the update made)."""

    bundle: Bundle
    records: Iterable[Record | None]
    _known: dict[_Parameter, dict[tuple[int, int, int], Record]] = field(default_factory=dict)
    _given: dict[tuple[_Parameter, int, int], Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for record in self.records:
            if record is None or record.member is None:
                continue
            parameter = record.rank, record.name, record.path
            if record.role in (Role.PARAM_CHANGED, Role.PARAM_UPDATE):
                time = record.step, record.call, int(record.role is Role.PARAM_UPDATE)
                self._known.setdefault(parameter, {})[time] = record
            elif record.role is Role.PARAM_BEFORE:
                self._given[parameter, record.step, record.call] = record

    def change(self, record: Record) -> tuple[float, float, float] | None:
        """The L2 norms of a change, of the parameter, and of the last update; ``None`` if it is not known what that had left."""
        parameter = record.rank, record.name, record.path
        earlier = [time for time in self._known.get(parameter, {}) if time < (record.step, record.call, 0)]
        if not earlier:
            return None
        last = self._known[parameter][max(earlier)]
        left, update = self._values(last), 0.0
        if last.role is Role.PARAM_UPDATE:
            given = self._given.get((parameter, last.step, last.call))
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
