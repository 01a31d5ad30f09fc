"""Where an error is: the few slices of a tensor that hold nearly all of the squared error.

Slices are named if they hold nearly all of it (``SHARE``), far more than noise by chance
(``CERTAIN``). Let n elements carry the error (its participation ratio, (sum d^2)^2 / sum d^4, so
that one large element counts as one). Chance puts a share s of the error into slices with an
expected s0 with probability at most exp(-n KL(s || s0)), times the ways to choose the slices
(Chernoff's bound). Expected is the slices' share of the elements or of golden's squares, whichever
is larger: rounding errors are in proportion to values, so large values alone are no fault."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from accucompare.compare.measuring import Sample
from accucompare.compare.shape_facts import Axis, NamedSlices
from accucompare.numbers import Float64

# nats by which a claim must beat chance: 2e-9, or 1e-7 for the dozens of claims on a record
CERTAIN = 20.0
# of the squared error in the slices named: noise of a tenth of the error takes 1 % of it
SHARE = 0.9
# brightness of the faintest slice named over the brightest other; below, the line is arbitrary
GAP = 4.0
DARKEST = 1e-4  # of the brightest slice: fainter ones count as this bright
LONGEST = 1 << 20  # the most slices along one dimension that are looked at one by one
FEWEST_EACH = 4.0  # carriers of each slice: with fewer, a run of bright ones may be chance
FEWEST_OTHERS = 3  # slices beside a run, that are all darker: one or two may be so by chance
# slices: the shortest dimension searched for a run; the edge on each side of a run's end
SHORTEST, EDGE = 8, 4
# of two levels of brightness to a run and the rest; the run is stable after three or four
FITS = 8
LISTED = 8  # the most slices that are named one by one


@dataclass(frozen=True, slots=True)
class Slices:
    """A dimension, or some of its slices (``chosen``, in order); a sample sees one in ``step``."""

    axis: Axis
    size: int
    chosen: NDArray[np.intp]
    step: int = 1

    @property
    def is_run(self) -> bool:
        """Whether these are several slices side by side, and not all."""
        return 1 < len(self.chosen) < self.size and int(
            self.chosen[-1] - self.chosen[0]
        ) == self.step * (len(self.chosen) - 1)

    def named(self) -> NamedSlices:
        few, last = tuple(self.chosen[:LISTED].tolist()), int(self.chosen[-1])
        return NamedSlices(self.axis, self.size, len(self.chosen), few, last, self.step)


@dataclass(frozen=True, slots=True)
class Tensors:
    """Two tensors, or their wrong part; finite, C-contiguous, no dimension of one slice."""

    golden: Float64
    candidate: Float64
    places: tuple[Slices, ...]  # of each dimension

    def part(self, chosen: list[Slices]) -> Tensors:
        by_axis = {place.axis: place for place in chosen}
        places = tuple(by_axis.get(place.axis, place) for place in self.places)
        both = zip(self.places, places, strict=True)
        index = np.ix_(*(np.searchsorted(own.chosen, place.chosen) for own, place in both))
        return Tensors(self.golden[index], self.candidate[index], places)

    def rest(self, chosen: Slices) -> Tensors | None:
        """All but these slices along their dimension; ``None`` if there are no others."""
        place = next(place for place in self.places if place.axis == chosen.axis)
        others = np.setdiff1d(place.chosen, chosen.chosen)
        return self.part([replace(place, chosen=others)]) if len(others) else None


@dataclass(frozen=True, slots=True)
class SumsOfSlices:
    """Sums of d, d^2, d * golden, golden^2 (first axis) over the last dimension, and the others."""

    leading: Float64
    last: Float64
    carriers: float  # elements that carry the error: its participation ratio

    def over(self, kept: tuple[int, ...]) -> Float64 | None:
        """The sums of every slice along ``kept`` dimensions, 4 x slices; ``None`` if too many."""
        last, sums = self.leading.ndim - 1, self.last
        if kept != (last,):
            others = tuple(dim + 1 for dim in range(last) if dim not in kept)
            sums = self.leading.sum(others).reshape(4, -1)
        return sums if sums.shape[1] <= LONGEST else None


def pair_of(golden: Float64, candidate: Float64, sample: Sample) -> Tensors:
    """The pair, scaled if fourth powers may overflow. ``sample``: which part of a whole it is."""
    largest = max(float(np.abs(values).max(initial=0.0)) for values in (golden, candidate))
    exponent = math.frexp(largest)[1]
    if abs(exponent) > 60:
        golden, candidate = np.ldexp(golden, -exponent), np.ldexp(candidate, -exponent)
    chosen = sample.indices()
    places = tuple(
        Slices(Axis(dim, golden.ndim), size, chosen[dim], sample.steps[dim])
        for dim, size in enumerate(sample.shape)
        if golden.shape[dim] != 1
    )
    shape = tuple(len(place.chosen) for place in places)
    golden, candidate = (np.ascontiguousarray(values) for values in (golden, candidate))
    return Tensors(golden.reshape(shape), candidate.reshape(shape), places)


def sums_of(pair: Tensors) -> SumsOfSlices:
    """The sums of a pair of one dimension or more."""
    shape = pair.golden.shape
    golden = pair.golden.reshape(-1, shape[-1])
    diff = pair.candidate.reshape(-1, shape[-1]) - golden
    products = ((diff, diff), (diff, golden), (golden, golden))
    leading = np.stack([diff.sum(1), *(np.einsum("ij,ij->i", *two) for two in products)])
    last = np.stack([diff.sum(0), *(np.einsum("ij,ij->j", *two) for two in products)])
    return SumsOfSlices(leading.reshape(4, *shape[:-1]), last, carriers_of(diff))


def carriers_of(diff: Float64) -> float:
    """How many elements carry the error: n if all n are equal, 1 if only one, 0 if none."""
    squares = diff * diff
    total, fourth = float(squares.sum()), float(np.vdot(squares, squares))
    return min(total * (total / fourth), float(diff.size)) if fourth else 0.0


def beyond_chance(share: Float64, expected: Float64, carriers: float) -> Float64:
    """Nats against chance for more than the expected share: carriers * KL(share || expected)."""
    share, expected = np.clip(share, 1e-12, 1 - 1e-12), np.clip(expected, 1e-300, 1 - 1e-12)
    divergence: Float64 = share * np.log(share / expected) + (1 - share) * np.log(
        (1 - share) / (1 - expected)
    )
    return np.where(share > expected, carriers * divergence, 0.0)


def shares(over: Float64) -> tuple[Float64, Float64]:
    """Each slice's share of the squared error, and its expected share."""
    return over[1] / over[1].sum(), np.maximum(1 / over.shape[1], over[3] / (over[3].sum() or 1.0))


def slices_of_error(pair: Tensors, sums: SumsOfSlices) -> list[tuple[float, Slices]]:
    """The slices along each dimension with nearly all of the squared error, and their share.

    Without any, a run of slices with sharp ends, such as a tile: it may be more than half, or lie
    in noise."""
    located, runs = [], []
    for dim, place in enumerate(pair.places):
        over = sums.over((dim,))
        if over is not None and over[1].any():
            share, chosen = _brightest(*shares(over), sums.carriers)
            if len(chosen):
                located.append((share, replace(place, chosen=place.chosen[chosen])))
            elif (run := _run(*shares(over), sums.carriers)) is not None:
                share = float(over[1][run].sum() / over[1].sum())
                runs.append((share, replace(place, chosen=place.chosen[run])))
    return located or sorted(runs, key=lambda each: -each[0])[:1]


def _run(share: Float64, expected: Float64, carriers: float) -> slice | None:
    """Neighbouring slices ``GAP`` times as bright as all others, with a sharp edge, beyond chance.

    Two levels of brightness are fitted in turn: Kadane's algorithm finds the run of the largest
    likelihood for two levels; the levels are then those of the run and of the rest."""
    count, brightness = len(share), np.maximum(share / expected, DARKEST * (share / expected).max())
    if count < SHORTEST or carriers < FEWEST_EACH * count:
        return None
    each = carriers / count / 2  # of the likelihood that a slice has: half its carriers
    best: tuple[float, int, int] | None = None
    for low, high in (
        (np.quantile(brightness, 0.1), np.quantile(brightness, 0.9)),
        (np.median(brightness), brightness.max()),
    ):
        first, after = 0, count
        for _ in range(FITS):
            if not high > low:
                break
            first, after = _largest_sum(math.log(low / high) + brightness * (1 / low - 1 / high))
            inside = np.arange(first, after)
            outside = np.delete(brightness, inside)
            if not 1 < len(inside) < count:
                break
            low, high = float(outside.mean()), float(brightness[inside].mean())
        if not 1 < after - first <= count - FEWEST_OTHERS or not high > low:
            continue
        mean = float(brightness.mean())
        size = after - first
        gained = each * (
            count * math.log(mean) - size * math.log(high) - (count - size) * math.log(low)
        ) - 2 * math.log(count)
        if best is None or gained > best[0]:
            best = gained, first, after
    if best is None or best[0] < CERTAIN:
        return None
    _, first, after = best
    inside, outside = brightness[first:after], np.delete(brightness, np.arange(first, after))
    edges = [
        (brightness[max(at - EDGE, 0) : at], brightness[at : at + EDGE], at == after)
        for at in (first, after)
        if 0 < at < count
    ]
    sharp = all(
        part.mean() >= GAP * other.mean()
        for before, behind, ends in edges
        for part, other in ((before, behind) if ends else (behind, before),)
    )
    apart = inside.mean() >= GAP * outside.mean() and np.quantile(inside, 0.05) >= 2 * np.quantile(
        outside, 0.95
    )
    return slice(first, after) if sharp and apart else None


def _largest_sum(values: Float64) -> tuple[int, int]:
    """Where the neighbouring slices with the largest sum begin, and after which they end."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    lowest = np.minimum.accumulate(sums)
    after = int((sums - lowest).argmax())
    return int(sums[: after + 1].argmin()), after


def _brightest(
    share: Float64, expected: Float64, carriers: float
) -> tuple[float, NDArray[np.intp]]:
    """The slices above the widest gap in brightness, and their share, if beyond chance."""
    brightness = share / expected
    order = np.argsort(-brightness, kind="stable")[: len(share) // 2 + 1]
    brightness = np.maximum(brightness[order], brightness[order[0]] * DARKEST)
    together = np.cumsum(share[order])[:-1]
    expected = np.cumsum(expected[order])[:-1]
    counts = np.arange(1, len(order))
    # at least the logarithm of the ways to choose so many slices
    ways = counts * (np.log(len(share) / counts) + 1)
    certain = beyond_chance(together, np.minimum(expected, 1), carriers) - ways >= CERTAIN
    gaps = np.where(certain & (together >= SHARE), brightness[:-1] / brightness[1:], 0.0)
    if gaps.max(initial=0.0) < GAP:
        return 0.0, order[:0]
    count = int(gaps.argmax()) + 1
    return float(together[count - 1]), np.sort(order[:count])
