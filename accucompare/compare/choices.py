"""Shapes and numbers of calls that rounding itself changes: boxes that are kept, an equation solver's steps.

The baseline shows it: where its shape is not golden's, or it makes another number of calls, then so may the candidate, and neither its
shape nor its values there tell of a bug. How far it may be off is judged as a choice among nearly equal values is (``judge``): such
counts are as good as Poisson variables. What is not judged is no pass either.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from accucompare.bundle.records import OPERATOR_ROLES, Key, Record, Role
from accucompare.compare.align import Pair, Renaming, rename

#: (rank, step, name).
_Module = tuple[int, int, str]
_Call = tuple[int, int, str, int]


def most_changed(different: int) -> float:
    """How many of a kind rounding may change, where it changed so many in the baseline: hardly ever more."""
    return different + 3.0 * math.sqrt(2.0 * different) + 1.0


def _may_be(golden: int, candidate: int, baseline: int) -> bool:
    """Whether rounding may change a count so, as far as the baseline tells."""
    return golden == candidate or (golden != baseline and abs(candidate - golden) <= most_changed(abs(baseline - golden)))


def chosen_shape(golden: Record, candidate: Record, baseline: Record | None) -> str:
    """How rounding changes the shape of a value, in words; ``""`` if it does not, or not so far."""
    if baseline is None or baseline.shape == golden.shape or len({len(each.shape) for each in (golden, candidate, baseline)}) > 1:
        return ""
    if not all(map(_may_be, golden.shape, candidate.shape, baseline.shape)):
        return ""
    return _changed("golden is", list(golden.shape), list(candidate.shape), list(baseline.shape))


def given_otherwise(golden: Iterable[Record], baselines: Mapping[Key, Record]) -> set[_Call]:
    """The calls that were given another shape in the baseline, so that it could not be fed there: it shows nothing of the call itself.

    Args:
        golden: the records.
        baselines: the baseline's record for each of golden's.
    """
    inputs = (record for record in golden if record.role is Role.INPUT and record.key in baselines)
    return {_call(record) for record in inputs if baselines[record.key].shape != record.shape}


def judged_by_limits(pair: Pair, given: Collection[_Call]) -> bool:
    """Whether a fed candidate's call was fed where the baseline's was not, and so gave golden's shape: its error is its own."""
    golden, candidate = pair.golden, pair.candidate
    if golden is None or candidate is None or golden.role is not Role.OUTPUT:
        return False
    return golden.shape == candidate.shape and _call(golden) in given


def _call(record: Record) -> _Call:
    return record.rank, record.step, record.name, record.call


@dataclass(frozen=True)
class Calls:
    """How often each module is called in a step, on the three sides.

    Attributes:
        golden, candidate, baseline: the number of calls by rank, step and name.
        renamings: of golden's names.
    """

    golden: Mapping[_Module, int]
    candidate: Mapping[_Module, int]
    baseline: Mapping[_Module, int]
    renamings: list[Renaming]

    @classmethod
    def of(cls, golden: list[Record], candidate: list[Record], baseline: list[Record], renamings: list[Renaming]) -> Calls:
        return cls(_counted(golden), _counted(candidate), _counted(baseline), renamings)

    def chosen(self, pair: Pair) -> str:
        """How rounding changes the number of calls, in words, of a record that one side alone has for that; else ``""``."""
        record = pair.golden or pair.candidate
        if record is None or None not in (pair.golden, pair.candidate) or record.role in OPERATOR_ROLES:
            return ""
        at = record.rank, record.step, record.name
        golden, candidate, baseline = self.golden.get(at, 0), self._other(self.candidate, at), self._other(self.baseline, at)
        if record.call < min(golden, candidate) or golden == candidate or not golden or not _may_be(golden, candidate, baseline):
            return ""
        return _changed("calls: golden makes", golden, candidate, baseline)

    def _other(self, counts: Mapping[_Module, int], at: _Module) -> int:
        new = rename(at[2], self.renamings)
        return counts.get(at, 0) if new is None else counts.get((*at[:2], new), counts.get(at, 0))


def _counted(records: Iterable[Record]) -> dict[_Module, int]:
    calls: dict[_Module, int] = {}
    for record in records:
        at = record.rank, record.step, record.name
        calls[at] = max(calls.get(at, 0), record.call + 1)
    return calls


def _changed(what: str, golden: object, candidate: object, baseline: object) -> str:
    return f"{what} {golden}, the candidate {candidate}; the baseline {baseline}, so rounding changes it"
