"""The small pairs of some tasks, read and measured together before each is judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from accucompare.bundle.format import Record
from accucompare.bundle.reading import Bundle
from accucompare.compare.judging.sides import KnownMetrics, Sides, elementwise, metrics_of_identical
from accucompare.compare.limits import EXACT, Tolerance
from accucompare.compare.measuring import is_small, may_hold_masks, measure_small
from accucompare.compare.rows import Task, same_bits
from accucompare.numbers import DTYPES, kernel

_Pair = tuple[Record, Record, Tolerance]


def with_small_pairs(sides: Sides, tasks: Sequence[Task]) -> Sides:
    """The sides, which now know the metrics of the tasks' small pairs: of golden and the candidate,
    of golden and the baseline, and of the candidate's two runs.
    """
    pairs = [
        (task, task.pair.golden, task.pair.candidate)
        for task in tasks
        if task.pair.golden is not None and task.pair.candidate is not None
    ]
    known: KnownMetrics = {}
    _measure(
        known,
        sides,
        (sides.golden, sides.candidate),
        ((golden, candidate, task.tolerance) for task, golden, candidate in pairs),
    )
    _measure(
        known,
        sides,
        (sides.golden, sides.baseline),
        (
            (golden, task.baseline, EXACT)
            for task, golden, candidate in pairs
            if task.baseline is not None
            and task.baseline.error is None
            and (sides.verify or not same_bits(candidate, task.baseline))
        ),
    )
    _measure(
        known,
        sides,
        (sides.candidate, sides.repeat),
        ((own, task.repeat, EXACT) for task, _, own in pairs if task.repeat is not None),
    )
    return replace(sides, known=known)


def _measure(
    known: KnownMetrics, sides: Sides, bundles: tuple[Bundle, Bundle | None], pairs: Iterable[_Pair]
) -> None:
    """Add the metrics of those pairs that are small and intact, and need nothing more."""
    left, right = bundles
    asked = [pair for pair in pairs if _is_plain(pair[0], pair[1])]
    if right is None or not asked:
        return
    ours, our_places = left.small_data([pair[0] for pair in asked])
    theirs, their_places = right.small_data([pair[1] for pair in asked])
    placed: list[kernel.PlacedPair] = []
    measured: list[_Pair] = []
    for pair, our_place, their_place in zip(asked, our_places, their_places, strict=True):
        golden, candidate, tolerance = pair
        if our_place < 0 or their_place < 0:
            continue
        identical = same_bits(golden, candidate)
        if golden.statistics is not None and identical and not sides.verify:
            known[id(golden), id(candidate)] = metrics_of_identical(
                golden, golden.statistics, tolerance
            )
            continue
        dtypes = DTYPES[golden.dtype], DTYPES[candidate.dtype]
        if (
            identical
            or not may_hold_masks(dtypes[0], golden.statistics)
            or not may_hold_masks(dtypes[1], candidate.statistics)
        ):
            limits = elementwise(golden, tolerance)
            placed.append(kernel.PlacedPair(our_place, their_place, golden.shape, *dtypes, *limits))
            measured.append(pair)
    if placed:
        for (golden, candidate, _), metrics in zip(
            measured, measure_small(ours, theirs, placed), strict=True
        ):
            if metrics is not None:
                known[id(golden), id(candidate)] = metrics


def _is_plain(golden: Record, candidate: Record) -> bool:
    """Whether two records are tensors of one shape and kind, and small."""
    if golden.member is None or candidate.member is None or golden.shape != candidate.shape:
        return False
    ours, theirs = DTYPES[golden.dtype], DTYPES[candidate.dtype]
    return ours.kind is theirs.kind and is_small((ours, theirs), golden.shape)
