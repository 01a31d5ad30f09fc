"""The shares of a sum that ranks are fed, and how much more than the sum they are rounded."""

from __future__ import annotations

import math
from collections.abc import Sequence

from accucompare.bundle.format import GlobalRecord, Record, Role
from accucompare.compare.pairing import Pair


def share_of(number: int, terms: int) -> float:
    """How many times golden's value a rank gets of a sum. Shares are unlike, so that a sum that is
    missing shows; they are powers of two, no sum over a dimension of the mesh is 0, and all of them
    make 1: 2 and -1, or 2, -2 and 1, or products of these."""
    share = 1.0
    while terms > 1:
        base = next(each for each in range(2, terms + 1) if terms % each == 0)
        number, place = divmod(number, base)
        terms //= base
        last = place == base - 1
        share *= (-1.0 if base == 2 else 1.0) if last else (-2.0 if place % 2 else 2.0)
    return share


def size_of_terms(record: Record, whole: Record) -> float:
    """How many times as large as a whole the terms are of which a record is the sum: as often, each
    being rounded by itself, is their sum's rounding that of the whole. At least 1, and no more than
    the shares that ranks are fed. ``whole``: golden's record."""
    if not isinstance(record, GlobalRecord) or whole.statistics is None or not whole.statistics.l2:
        return 1.0
    most = max((len(box.terms) for box in record.boxes), default=1)
    norms = [
        box.factor * term.statistics.l2
        for box in record.boxes
        for term in box.terms
        if term.statistics is not None and term.statistics.l2 is not None
    ]
    if most == 1 or len(norms) < sum(len(box.terms) for box in record.boxes):
        return 1.0
    return min(max(math.hypot(*norms) / whole.statistics.l2, 1.0), _largest(most))


def sizes_of_fed_sums(pairs: Sequence[Pair]) -> dict[int, float]:
    """The same of gradients that the ranks have added up of shares they were fed, by their places:
    of the gradients that the calls beside one, or in its own, give their inputs."""
    shares: dict[tuple[int, tuple[str, int] | None], list[tuple[int, Record]]] = {}
    whole: list[tuple[int, Record]] = []
    for place, pair in enumerate(pairs):
        golden, held = pair.golden, pair.candidate
        if golden is None or golden.statistics is None or not isinstance(held, GlobalRecord):
            continue
        terms = max(len(box.terms) + (0 if box.same else len(box.replicas)) for box in held.boxes)
        if terms > 1 and golden.role is Role.GRAD_INPUT:
            shares.setdefault((golden.step, golden.parent), []).append((terms, golden))
        elif terms == 1 and golden.role in (Role.GRAD_INPUT, Role.GRAD_OUTPUT):
            whole.append((place, golden))
    found = {}
    for place, golden in whole:
        inside = golden.role is Role.GRAD_INPUT
        call = (golden.name, golden.call) if inside else golden.parent
        length = _length(golden)
        sizes = [
            _largest(terms) * _length(each) / length
            for terms, each in shares.get((golden.step, call), ())
            if length and each.shape == golden.shape
        ]
        found[place] = max(1.0, math.hypot(*sizes))
    return found


def _length(record: Record) -> float:
    return (record.statistics and record.statistics.l2) or 0.0


def _largest(terms: int) -> float:
    """How many times as large as golden's value the shares of a sum are."""
    return math.hypot(*(share_of(number, terms) for number in range(terms)))
