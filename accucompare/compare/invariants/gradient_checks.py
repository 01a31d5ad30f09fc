"""Whether the gradients that an update was given are the sum, or the mean, of what the calls of all
ranks gave."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from accucompare.bundle.format import GlobalRecord, Record, Role, StepSeries
from accucompare.compare.constants import FEWEST_GRADIENTS, MOST_TERMS, REDUCED_WITHIN
from accucompare.compare.invariants.rank_facts import (
    NotSeen,
    NotSeenWhy,
    OtherGradient,
    RankFact,
    ScaledGradient,
    Tally,
    UnevenGradient,
)
from accucompare.compare.invariants.run_of_ranks import (
    ByRank,
    RunOfRanks,
    StepOfRanks,
    has_values,
    place_of_record,
)
from accucompare.compare.layouts import IncompleteError
from accucompare.numbers import Float64


@dataclass(frozen=True)
class _Term:
    """What one call gave on ranks that share out a tensor; ``place`` is that of their rows."""

    record: GlobalRecord
    call: tuple[str, int]
    place: Any


@dataclass(frozen=True)
class _Fit:
    """How a gradient is made of terms.

    Attributes:
        factor: on their sum.
        error: what is left, as a share of the terms' norms.
        weights: of each term, if one factor does not do and these do.
    """

    record: Record
    ranks: tuple[int, ...]
    terms: Sequence[_Term]
    factor: float
    error: float
    weights: tuple[float, ...] = ()

    @property
    def even(self) -> bool:
        return self.error <= REDUCED_WITHIN

    @property
    def places(self) -> int:
        return len({term.place for term in self.terms})

    @property
    def calls(self) -> int:
        return len({term.call for term in self.terms})


def check_reduction(run: RunOfRanks, step: StepOfRanks, tally: Tally) -> None:
    given = [*step.of(Role.PARAM_GRAD)]
    if not given:
        return
    if max(key.call for key, _ in given):
        tally.unseen = NotSeen(NotSeenWhy.SEVERAL_UPDATES)
        return
    terms = _terms(run, step)
    if not terms:
        tally.unseen = NotSeen(NotSeenWhy.NO_CALL_GRADIENTS)
        return
    fits: list[_Fit] = []
    for _, group in given:
        name = run.parameter_of(group[min(group)])
        fit = _best_fit(run, group, name, terms.get(run.tied.get(name, name), ()))
        if fit is None:
            tally.left += 1
        else:
            fits.append(fit)
    if not fits:
        tally.unseen = NotSeen(NotSeenWhy.NO_VALUES)
        return
    _judge(run, step, fits, tally)


def _judge(run: RunOfRanks, step: StepOfRanks, fits: Sequence[_Fit], tally: Tally) -> None:
    scale = _of_loop(run, step)
    factors = [_known(fit.factor / scale * fit.places) for fit in fits if fit.even]
    usual, times = Counter(factors).most_common(1)[0] if factors else (1.0, 0)
    explained = sum(fit.even or bool(fit.weights) for fit in fits)
    if explained <= len(fits) / 2 or (times <= len(factors) / 2 and len(factors) > 2):
        tally.unseen = NotSeen(NotSeenWhy.CHANGED_BY_LOOP)
        tally.left += len(fits)
        return
    for fit in fits:
        tally.see(step.number)
        fact = _wrong(run, fit, scale, usual if times >= FEWEST_GRADIENTS else None)
        if fact is not None:
            tally.fail(fact, place_of_record(fit.record, fit.ranks))
        elif fit.even:
            tally.told["error"] = max(tally.told.get("error") or 0.0, fit.error)
    first = next((fit for fit in fits if fit.even), fits[0])
    tally.told["reduced"] = "sum" if _near(usual, first.places) and first.places > 1 else "mean"
    if not any(_near(usual, each) for each in _right(first)):
        tally.told["factor"] = usual


def _wrong(run: RunOfRanks, fit: _Fit, scale: float, usual: float | None) -> RankFact | None:
    if not fit.even:
        if not fit.weights:
            return OtherGradient(fit.error)
        weights = tuple(
            (tuple(term.record.ranks), term.call[1], round(weight / scale, 3))
            for term, weight in zip(fit.terms, fit.weights, strict=True)
        )
        return UnevenGradient(weights)
    of_mean = fit.factor / scale * fit.places
    if any(_near(of_mean, right) for right in _right(fit)):
        return None
    if usual is not None and _near(of_mean, usual) and not _is_of_mesh(run, of_mean, fit):
        return None  # the loop scales all gradients
    return ScaledGradient(float(f"{of_mean:.4g}"), fit.places, usual)


def _right(fit: _Fit) -> tuple[float, ...]:
    """The factors on the mean over ranks that a right reduction has: of the mean over ranks, or
    over calls too; of the sum."""
    return 1.0, 1.0 / fit.calls, float(fit.places), fit.places / fit.calls


def _is_of_mesh(run: RunOfRanks, factor: float, fit: _Fit) -> bool:
    """Whether a factor is a number of ranks: of other dimensions, or of these again."""
    sizes = [size for size in run.mesh.sizes.values() if size > 1]
    products = {
        math.prod(chosen)
        for count in range(1, len(sizes) + 1)
        for chosen in itertools.combinations(sizes, count)
    } | {fit.places**2}
    return any(_near(factor, each) or _near(factor, 1 / each) for each in products if each > 1)


def _near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=REDUCED_WITHIN)


def _known(factor: float) -> float:
    return float(f"{factor:.2g}")


def _of_loop(run: RunOfRanks, step: StepOfRanks) -> float:
    """What the loop multiplied all gradients with, as far as it is known: clipping, and the loss's
    scale taken back."""
    scales = [entry.loss_scale for entry in run.series(step.number).values() if entry.loss_scale]
    return clipped_by(run, step) / (scales[0] if scales else 1.0)


def clipped_by(run: RunOfRanks, step: StepOfRanks) -> float:
    """By what the recorded gradients of an update were clipped; 1 if they were recorded before."""
    for rank, entry in run.series(step.number).items():
        factor = clip_factor(entry)
        norms = [run.norm(group[rank]) for _, group in step.of(Role.PARAM_GRAD) if rank in group]
        if factor is None or None in norms or entry.clipped_norm is None:
            continue
        own = math.hypot(*(norm for norm in norms if norm is not None))
        return factor if math.isclose(own, entry.clipped_norm, rel_tol=REDUCED_WITHIN) else 1.0
    return 1.0


def clip_factor(entry: StepSeries) -> float | None:
    """By what a rank's gradients were multiplied as they were clipped; ``None`` if they were
    not."""
    if entry.clipped_norm is None or not entry.grad_norm:
        return None
    return entry.clipped_norm / entry.grad_norm


def _terms(run: RunOfRanks, step: StepOfRanks) -> dict[str, list[_Term]]:
    """What each call gave, by parameter."""
    found: dict[str, list[_Term]] = {}
    for key, group in step.of(Role.CALL_GRAD):
        own, _, full = key.path.rpartition("/")
        name = full if own or "/" in key.path else ".".join(filter(None, (key.name, key.path)))
        name = run.tied.get(name, name)
        seen = set()
        try:
            wholes = run.wholes(group)
        except IncompleteError:
            continue
        for whole in wholes:
            place = run.data_place(step, whole.ranks[0])
            digests = tuple(term.digest for box in whole.boxes for term in box.terms)
            if (place, digests) not in seen:  # another replica
                seen.add((place, digests))
                found.setdefault(name, []).append(_Term(whole, (key.name, key.call), place))
    return found


def _best_fit(run: RunOfRanks, group: ByRank, name: str, terms: Sequence[_Term]) -> _Fit | None:
    """How a gradient is made of what calls gave: on the ranks of its own place along the
    dimensions that do not share out the rows, or else on all."""
    try:
        record = run.wholes(group)[0]
    except (IncompleteError, IndexError):
        return None
    others = run.mesh.without(run.data)
    place = run.place(record.ranks[0], others)
    own = [term for term in terms if run.place(term.record.ranks[0], others) == place]
    fit = _fitted(run, record, tuple(sorted(group)), own)
    if len(own) == len(terms) or name in run.by_hand or (fit is not None and fit.even):
        return fit
    return _fitted(run, record, tuple(sorted(group)), terms)


def _fitted(
    run: RunOfRanks, record: GlobalRecord, ranks: tuple[int, ...], terms: Sequence[_Term]
) -> _Fit | None:
    records = [record, *(term.record for term in terms)]
    if len(records) < 2 or not all(map(has_values, records)):
        return None
    if len({each.shape for each in records}) > 1:
        return None
    products = _products(run, records)
    if not np.isfinite(products).all() or not products[1:, 1:].any():
        return None
    norms = np.sqrt(np.diag(products))[1:]
    total = products[1:, 1:].sum()
    factor = float(products[0, 1:].sum() / total) if total else 0.0
    ones = np.full(len(terms), factor)
    error = _error(products, ones, norms)
    if error > REDUCED_WITHIN and 1 < len(terms) <= MOST_TERMS:
        weights: Float64 = np.linalg.pinv(products[1:, 1:], rcond=1e-8) @ products[1:, 0]
        if _error(products, weights, norms) <= REDUCED_WITHIN:
            return _Fit(record, ranks, terms, factor, error, tuple(map(float, weights)))
    return _Fit(record, ranks, terms, factor, error)


def _error(products: Float64, weights: Float64, norms: Float64) -> float:
    """What is left of the gradient without weighted terms, as a share of the terms' norms."""
    all_weights = np.concatenate([[-1.0], weights])
    left = max(float(all_weights @ products @ all_weights), 0.0)
    added = max(float(np.abs(weights) @ norms), math.sqrt(products[0, 0]))
    return math.sqrt(left) / added if added else 0.0


def _products(run: RunOfRanks, records: Sequence[Record]) -> Float64:
    """The inner products of some tensors' values; of many terms, those of the sum alone."""
    found = np.zeros((len(records), len(records)))
    for blocks in zip(*(run.blocks(record) for record in records), strict=True):
        rows = np.stack(blocks)
        found += rows @ rows.T
    return found
