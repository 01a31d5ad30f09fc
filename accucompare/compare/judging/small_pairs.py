"""Small pairs of some tasks, read and measured together before each is judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from accucompare.bundle.format import GlobalRecord, Record
from accucompare.bundle.reading import Bundle
from accucompare.compare.judging.sides import KnownMetrics, Sides, elementwise
from accucompare.compare.limits import EXACT, Tolerance
from accucompare.compare.measuring import (
    PlacedPair,
    may_hold_masks,
    measure_identical,
    measure_small,
    small_form,
)
from accucompare.compare.rows import Task, same_bits
from accucompare.numbers import kernel

_Pair = tuple[Record, Record, Tolerance]


def with_small_pairs(sides: Sides, tasks: Sequence[Task]) -> Sides:
    """The sides with small pairs' metrics: golden with candidate or baseline, and reruns."""
    if not kernel.is_compiled():
        return sides
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
    """Add the metrics of the small, intact pairs that need nothing more."""
    left, right = bundles
    asked = [
        (golden, candidate, form)
        for golden, candidate, tolerance in pairs
        if (form := _form(golden, candidate, tolerance)) is not None
    ]
    if right is None or not asked:
        return
    ours, our_places = left.small_data(golden for golden, _, _ in asked)
    theirs, their_places = right.small_data(candidate for _, candidate, _ in asked)
    measured: list[tuple[int, int]] = []
    placed: list[PlacedPair] = []
    for (golden, candidate, form), ours_at, theirs_at in zip(
        asked, our_places, their_places, strict=True
    ):
        if ours_at < 0 or theirs_at < 0:
            continue
        pair = id(golden), id(candidate)
        identical = same_bits(golden, candidate)
        if identical and golden.statistics is not None and not sides.verify:
            known[pair] = measure_identical(
                form.golden, form.shape, golden.statistics, form.asks_elements
            )
        elif (
            identical
            or not may_hold_masks(form.golden, golden.statistics)
            or not may_hold_masks(form.candidate, candidate.statistics)
        ):
            measured.append(pair)
            placed.append((ours_at, theirs_at, form))
    if placed:
        found = zip(measured, measure_small(ours, theirs, placed), strict=True)
        known.update((pair, metrics) for pair, metrics in found if metrics is not None)


def _form(golden: Record, candidate: Record, tolerance: Tolerance) -> kernel.PairForm | None:
    """What measuring a pair must know; ``None`` if it has to be measured alone."""
    if golden.member is None or candidate.member is None or golden.shape != candidate.shape:
        return None
    if isinstance(golden, GlobalRecord) or isinstance(candidate, GlobalRecord):
        return None
    limits = elementwise(golden, tolerance)
    return small_form(golden.dtype, candidate.dtype, golden.shape, *limits)
