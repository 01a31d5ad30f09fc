"""Shapes and numbers of calls that rounding alone can change: kept boxes, a solver's steps.

The baseline shows where: if its shape or number of calls is not golden's, the candidate's may
differ too, and neither its shape nor its values there show a bug. As for choices among nearly equal
values (``judge``), such counts are roughly Poisson, which limits how far they may differ. Such a
row is not comparable, so it does not pass either."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from accucompare.bundle.format import OPERATOR_ROLES, Key, Record, Role
from accucompare.compare.constants import DEVIATIONS
from accucompare.compare.pairing.align import Pair
from accucompare.compare.pairing.renames import Renaming, rename
from accucompare.compare.remarks import ByRounding

#: (rank, step, name).
_Module = tuple[int, int, str]
_Call = tuple[int, int, str, int]


def most_changed(different: float) -> float:
    """The most that rounding may change if it changed ``different`` in the baseline."""
    return different + DEVIATIONS * math.sqrt(2.0 * different) + 1.0


def _may_be(golden: int, candidate: int, baseline: int) -> bool:
    """Whether the baseline shows that rounding may turn golden's count into the candidate's."""
    return golden == candidate or (
        golden != baseline and abs(candidate - golden) <= most_changed(abs(baseline - golden))
    )


def chosen_shape(golden: Record, candidate: Record, baseline: Record | None) -> ByRounding | None:
    """How rounding changes a value's shape; ``None`` if it does not, or not that much."""
    if (
        baseline is None
        or baseline.shape == golden.shape
        or len({len(each.shape) for each in (golden, candidate, baseline)}) > 1
    ):
        return None
    if not all(map(_may_be, golden.shape, candidate.shape, baseline.shape)):
        return None
    return ByRounding(False, golden.shape, candidate.shape, baseline.shape)


def given_otherwise(golden: Iterable[Record], baselines: Mapping[Key, Record]) -> set[_Call]:
    """The calls whose inputs have another shape in the baseline, which therefore was not fed.
    ``baselines``: the baseline's record for each of golden's."""
    inputs = (record for record in golden if record.role is Role.INPUT and record.key in baselines)
    return {record.key[:4] for record in inputs if baselines[record.key].shape != record.shape}


def judged_by_limits(pair: Pair, others: Collection[_Call]) -> bool:
    """Whether limits judge: the candidate's call gave golden's shape, the baseline's was unfed."""
    golden, candidate = pair.golden, pair.candidate
    if golden is None or candidate is None or golden.role is not Role.OUTPUT:
        return False
    return golden.shape == candidate.shape and golden.key[:4] in others


@dataclass(frozen=True)
class Calls:
    """How often each module is called in a step, by rank, step and name."""

    golden: Mapping[_Module, int]
    candidate: Mapping[_Module, int]
    baseline: Mapping[_Module, int]
    renamings: list[Renaming]

    @classmethod
    def of(
        cls,
        golden: list[Record],
        candidate: list[Record],
        baseline: list[Record],
        renamings: list[Renaming],
    ) -> Calls:
        return cls(_counted(golden), _counted(candidate), _counted(baseline), renamings)

    def chosen(self, pair: Pair) -> ByRounding | None:
        """How rounding changes the number of calls, if that explains a one-sided record."""
        record = pair.record
        if None not in (pair.golden, pair.candidate) or record.role in OPERATOR_ROLES:
            return None
        at = record.rank, record.step, record.name
        golden = self.golden.get(at, 0)
        candidate = self._other(self.candidate, at)
        baseline = self._other(self.baseline, at)
        if (
            record.call < min(golden, candidate)
            or golden == candidate
            or not golden
            or not _may_be(golden, candidate, baseline)
        ):
            return None
        return ByRounding(True, (golden,), (candidate,), (baseline,))

    def _other(self, counts: Mapping[_Module, int], at: _Module) -> int:
        new = rename(at[2], self.renamings)
        return counts.get(at, 0) if new is None else counts.get((*at[:2], new), counts.get(at, 0))


def _counted(records: Iterable[Record]) -> dict[_Module, int]:
    calls: dict[_Module, int] = {}
    for record in records:
        at = record.rank, record.step, record.name
        calls[at] = max(calls.get(at, 0), record.call + 1)
    return calls
