"""Whether the gradients that an update was given are the sum, or the mean, of what the calls of all
ranks gave."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from accucompare.bundle.format import GlobalRecord, Record, Role, StepSeries
from accucompare.compare.constants import FEWEST_GRADIENTS, REDUCED_WITHIN
from accucompare.compare.invariants import rank_facts as facts
from accucompare.compare.invariants.rank_facts import NotSeen, NotSeenWhy, RankFact, Tally
from accucompare.compare.invariants.run_of_ranks import (
    ByRank,
    RunOfRanks,
    StepOfRanks,
    has_values,
    place_of_record,
)
from accucompare.compare.layouts import IncompleteError
from accucompare.numbers import Float64

#: The most terms whose factors are found apart; of more, only the sum is looked at.
_MOST_TERMS = 16
#: Terms whose directions differ by less, squared, are told apart by rounding only.
_SAME_DIRECTION = 1e-8


@dataclass(frozen=True)
class _Term:
    """What one call gave on ranks that share out a tensor; ``place`` is that of their rows."""

    record: GlobalRecord
    call: tuple[str, int]
    place: Any


@dataclass(frozen=True)
class _Fit:
    """How a gradient is made of terms."""

    record: Record
    ranks: tuple[int, ...]
    terms: Sequence[_Term]
    factor: float  # on their sum
    error: float  # what is left, as a share of the terms' norms
    weights: tuple[float, ...] = ()  # of each term, if one factor does not do and these do

    @property
    def even(self) -> bool:
        return self.error <= REDUCED_WITHIN


@dataclass(frozen=True)
class _Shared:
    """Among how many a step's rows were shared out: ``places``, each with so many calls of the
    model; and what the loop multiplied all gradients with, as far as it is known."""

    places: int
    calls: int
    scale: float

    def of_mean(self, fit: _Fit) -> float:
        """A gradient's factor on the mean over all places, whichever of them gave something."""
        return fit.factor / self.scale * self.places

    @property
    def right(self) -> tuple[float, ...]:
        """The factors on the mean that a right reduction has: of the mean over places, or over
        calls too; of the sum."""
        return 1.0, 1.0 / self.calls, float(self.places), self.places / self.calls


def check_reduction(run: RunOfRanks, step: StepOfRanks, tally: Tally) -> None:
    given = [*step.given_gradients()]
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
    for group in (each for _, held in given for each in run.by_stage(held)):
        name = run.parameter_of(group[min(group)])
        fit = _best_fit(run, group, name, terms.get(run.one_weight.get(name, name), ()))
        if fit is None:
            tally.left += 1
        else:
            fits.append(fit)
    if not fits:
        tally.unseen = NotSeen(NotSeenWhy.NO_VALUES)
        return
    _judge(run, step, fits, tally)


def _judge(run: RunOfRanks, step: StepOfRanks, fits: Sequence[_Fit], tally: Tally) -> None:
    shared = _Shared(
        len({run.data_place(step, rank) for rank in run.bundle.manifests}),
        max((len(calls) for calls in step.batches.values()), default=1),
        _of_loop(run, step),
    )
    factors = [shared.of_mean(fit) for fit in fits if fit.even]
    usual = statistics.median_low(factors or [1.0])  # most are near it, if most are alike
    times = sum(_near(each, usual) for each in factors)
    explained = sum(fit.even or bool(fit.weights) for fit in fits)
    if explained <= len(fits) / 2 or (times <= len(factors) / 2 and len(factors) > 2):
        tally.unseen = NotSeen(NotSeenWhy.CHANGED_BY_LOOP)
        tally.left += len(fits)
        return
    for fit in fits:
        tally.see(step.number)
        fact = _wrong(run, fit, shared, usual if times >= FEWEST_GRADIENTS else None)
        if fact is not None:
            tally.fail(fact, place_of_record(fit.record, fit.ranks))
        elif fit.even:
            tally.told["error"] = max(tally.told.get("error") or 0.0, fit.error)
    summed = shared.places > 1 and _near(usual, shared.places)
    tally.told["reduced"] = "sum" if summed else "mean"
    if not any(_near(usual, each) for each in shared.right):
        tally.told["factor"] = usual


def _wrong(run: RunOfRanks, fit: _Fit, shared: _Shared, usual: float | None) -> RankFact | None:
    if not fit.even:
        if not fit.weights:
            return facts.OtherGradient(fit.error)
        weights = tuple(
            (tuple(term.record.ranks), term.call[1], round(weight / shared.scale, 3))
            for term, weight in zip(fit.terms, fit.weights, strict=True)
        )
        return facts.UnevenGradient(weights)
    of_mean = shared.of_mean(fit)
    if any(_near(of_mean, right) for right in shared.right):
        return None
    if usual is not None and _near(of_mean, usual) and not _is_of_mesh(run, of_mean, shared):
        return None  # the loop scales all gradients
    return facts.ScaledGradient(float(f"{of_mean:.4g}"), shared.places, usual)


def _is_of_mesh(run: RunOfRanks, factor: float, shared: _Shared) -> bool:
    """Whether a factor is a number of ranks: of other dimensions, or of these again."""
    sizes = [size for size in run.mesh.sizes.values() if size > 1]
    products = {
        math.prod(chosen)
        for count in range(1, len(sizes) + 1)
        for chosen in itertools.combinations(sizes, count)
    } | {shared.places**2}
    return any(_near(factor, each) or _near(factor, 1 / each) for each in products if each > 1)


def _near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=REDUCED_WITHIN)


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
        name = run.one_weight.get(name, name)
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
    if name in run.stages_weights:
        own = [*terms]
    if (held := run.local_experts.get(name)) is not None:
        first = held.get(record.ranks[0])
        own = [term for term in terms if held.get(term.record.ranks[0]) == first]
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
    many = len(terms) > _MOST_TERMS
    products, norms = _products(run, records, many)
    if not np.isfinite(products).all() or not norms.any():
        return None
    total = float(products[1:, 1:].sum())
    factor = float(products[0, 1:].sum()) / total if total else 0.0
    error = _error(products, np.full(len(products) - 1, factor), abs(factor) * norms)
    if error > REDUCED_WITHIN and len(terms) > 1 and not many:
        inverse = np.linalg.pinv(products[1:, 1:], rcond=_SAME_DIRECTION)
        weights: Float64 = inverse @ products[1:, 0]
        if _error(products, weights, np.abs(weights) * norms) <= REDUCED_WITHIN:
            return _Fit(record, ranks, terms, factor, error, tuple(map(float, weights)))
    return _Fit(record, ranks, terms, factor, error)


def _error(products: Float64, weights: Float64, added: Float64) -> float:
    """What is left of the gradient without weighted terms, as a share of what is ``added``: the
    norms of the weighted terms."""
    all_weights = np.concatenate([[-1.0], weights])
    left = max(float(all_weights @ products @ all_weights), 0.0)
    most = max(float(added.sum()), math.sqrt(products[0, 0]))
    return math.sqrt(left) / most if most else 0.0


def _products(run: RunOfRanks, records: Sequence[Record], summed: bool) -> tuple[Float64, Float64]:
    """The inner products of a gradient and of terms, of their sum alone if ``summed``; and the
    norms of the terms."""
    size = 2 if summed else len(records)
    found, squares = np.zeros((size, size)), np.zeros(len(records) - 1)
    for gradient, *terms in zip(*(run.blocks(record) for record in records), strict=True):
        rows = np.stack([gradient, *([np.sum(terms, 0)] if summed else terms)])
        found += rows @ rows.T
        squares += [float(term @ term) for term in terms]
    return found, np.sqrt(squares)
