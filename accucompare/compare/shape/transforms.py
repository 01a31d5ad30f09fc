"""Simple descriptions of what turned golden's values into the candidate's, each with the share of
the error left unexplained.

A description with k free numbers that leaves a share r of the error of n carriers has a
log-likelihood ratio against chance of -n/2 log r, less k/2 log n (Schwarz's criterion, BIC). It is
reported if that exceeds ``CERTAIN`` and r is at most ``LEFT``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accucompare.compare.shape.marginals import (
    CERTAIN,
    LISTED,
    LONGEST,
    SumsOfSlices,
    Tensors,
    carriers_of,
)
from accucompare.compare.shape_facts import Axis, Pattern, PatternKind
from accucompare.numbers import Float64

# share of the squared error that a description may leave: noise of a tenth of the error takes 1 %
LEFT = 0.1
FLOOR = 1e-4  # a smaller share left counts as none: among exact descriptions the shortest wins
NEAR_ONE = 0.05  # a scale this near to 0 or -1 counts as that
# of golden's RMS: a fainter channel counts as this large, so its noise does not hide errors
FAINT = 0.05
# of fitting rows' factors and channels' biases in turn; after 2, a wrong eps fits as well as it can
TURNS = 4
FITTED = 1 << 22  # the most elements that rows' factors are fitted to


@dataclass(frozen=True, slots=True)
class Description:
    """One description of what may have turned golden's values into the candidate's."""

    pattern: Pattern
    left: float  # share of the squared error that it does not explain
    numbers: float  # how many free numbers it has
    carriers: float  # how many elements carry the error that it explains

    def evidence(self) -> float:
        """Nats for the description and against chance."""
        explained = self.carriers * math.log(max(self.left, FLOOR))
        return -0.5 * explained - 0.5 * self.numbers * math.log(self.carriers + 1)

    def certain(self) -> bool:
        """Whether it explains enough, has two elements per free number, and beats chance."""
        explains = self.left <= LEFT and self.numbers <= self.carriers / 2
        return explains and self.evidence() >= CERTAIN


def describe(pair: Tensors, sums: SumsOfSlices) -> Description | None:
    """The certain description with the most evidence; ``None`` if none is certain."""
    all_of_them = itertools.chain(
        _zero(pair, sums),
        scales_and_offsets(pair, sums),
        _row_scales(pair),
        _clipped(pair, sums),
        _softmax_again(pair, sums),
        _moved_slices(pair, sums),
        _layouts(pair, sums),
    )
    certain = filter(Description.certain, all_of_them)
    return max(certain, key=Description.evidence, default=None)


def _left(pair: Tensors, guess: Float64) -> float:
    """The share of the squared error left if ``guess`` stands for the candidate."""
    missed, diff = (pair.candidate - guess).reshape(-1), (pair.candidate - pair.golden).reshape(-1)
    return float(missed @ missed) / float(diff @ diff)


def _left_of_both(pair: Tensors, guess: Float64) -> float:
    """The larger share left, of error or candidate's variance: a small candidate fits any guess."""
    missed = (pair.candidate - guess).reshape(-1)
    varies = float(np.var(pair.candidate)) * missed.size
    return max(_left(pair, guess), float(missed @ missed) / varies if varies else 1.0)


def _zero(pair: Tensors, sums: SumsOfSlices) -> Iterator[Description]:
    zero = pair.candidate == 0
    count = np.count_nonzero(zero & (pair.golden != 0))
    if zero.all():
        # a fact about every element
        yield Description(Pattern(PatternKind.ZERO), 0.0, 0, zero.size)
    elif count:
        zeros = Pattern(PatternKind.SOME_ZEROS, share=count / zero.size)
        left = _left(pair, np.where(zero, 0.0, pair.golden))
        yield Description(zeros, left, 2, sums.carriers)


def scales_and_offsets(pair: Tensors, sums: SumsOfSlices) -> Iterator[Description]:
    """One scale or offset for all elements, for each slice along a dimension, or for each row."""
    size, error = pair.golden.size, float(sums.leading[1].sum())
    rms = math.sqrt(float(sums.leading[3].sum()) / size)
    for kept, axis in _groupings(pair):
        over = sums.over(kept)
        if over is None or over.shape[1] > sums.carriers / 2:
            continue
        diff, _, product, squares = over
        groups = over.shape[1]
        # the least squares fit; scales are 1 + excess
        excess, offsets = _ratio(product, squares), diff * groups / size
        scaled, moved = (
            _unexplained(float(part.sum()) / error) for part in (product * excess, diff * offsets)
        )
        scale = _scale(1 + excess, axis) if kept else _scale_of_all(1 + excess)
        if scale.kind is not PatternKind.NEARLY_ZERO:
            scaled = max(
                scaled, _not_golden(scaled * error, error + float((2 * product + squares).sum()))
            )
        yield Description(scale, scaled, groups, sums.carriers)
        low, high = (value / rms if rms else None for value in _range(offsets))
        several = Pattern(PatternKind.OFFSETS, axis, low, high)
        offset = several if kept else Pattern(PatternKind.OFFSET, low=low)
        yield Description(offset, moved, groups, sums.carriers)


def _not_golden(missed: float, candidate: float) -> float:
    """The share of the candidate's own squares that a multiple of golden misses.

    A candidate small beside golden is nearly all error; nearly any multiple of golden explains most
    of it."""
    return missed / candidate if candidate else 1.0


def _unexplained(share: float) -> float:
    """1 less the share explained; above 1, or NaN, is an overflow and explains nothing."""
    return max(0.0, 1 - share) if share <= 1 + FLOOR else 1.0


def _groupings(pair: Tensors) -> Iterator[tuple[tuple[int, ...], Axis | None]]:
    """Sets of dimensions with a number for each combination of slices; the axis, if it is one."""
    rows = tuple(range(len(pair.places) - 1))
    yield (), None
    if rows:
        yield rows, None
        yield from (((dim,), place.axis) for dim, place in enumerate(pair.places) if (dim,) != rows)


def _ratio(part: Float64, whole: Float64) -> Float64:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def _range(values: Float64) -> tuple[float, float]:
    """The range of all but the outermost tenth of ``values``."""
    low, high = np.quantile(values, (0.05, 0.95), method="nearest")
    return float(low), float(high)


def _scale(scales: Float64, axis: Axis | None = None) -> Pattern:
    return Pattern(PatternKind.SCALES, axis, *_range(scales))


def _scale_of_all(scales: Float64) -> Pattern:
    scale = float(scales[0])
    if abs(scale + 1) < NEAR_ONE:
        return Pattern(PatternKind.SIGN)
    if abs(scale) < NEAR_ONE:
        return Pattern(PatternKind.NEARLY_ZERO)
    return Pattern(PatternKind.SCALE, low=scale)


def _row_scales(pair: Tensors) -> Iterator[Description]:
    """Every row scaled by one factor, its own, or its own about a bias per channel: candidate =
    factor * (golden - bias) + bias.

    The last is what a wrong eps does. Channels are first divided by golden's RMS in them. Rounding
    errors are in proportion to it, so all channels count alike, and a few large ones do not hide
    what the others share."""
    length, step = pair.golden.shape[-1], -(-pair.golden.size // FITTED)
    golden = pair.golden.reshape(-1, length)[::step]
    diff = pair.candidate.reshape(-1, length)[::step] - golden
    if len(golden) == 1:
        return
    rms = np.sqrt(np.einsum("ij,ij->j", golden, golden) / len(golden))
    rms = np.maximum(rms, FAINT * math.sqrt(float(rms @ rms) / length))
    golden = golden / rms
    diff /= rms
    error, carriers = float(np.vdot(diff, diff)), carriers_of(diff)
    if not error:
        return
    product, squares = np.einsum("ij,ij->i", diff, golden), np.einsum("ij,ij->i", golden, golden)

    together = _ratio(product.sum(keepdims=True), squares.sum(keepdims=True))
    apart = _ratio(product, squares)
    candidate = error + float(np.sum(2 * product + squares))
    for excess, scale_of in ((together, _scale_of_all), (apart, _scale)):
        left = _unexplained(float(np.sum(excess * product)) / error)
        scale = scale_of(1 + excess)
        if scale.kind is not PatternKind.NEARLY_ZERO:
            left = max(left, _not_golden(left * error, candidate))
        yield Description(scale, left, len(excess), carriers)

    # this bias has the opposite sign: d = excess * (golden + bias)
    excess, bias = apart, np.zeros(length)
    for _ in range(TURNS):
        # no bias is above golden's RMS
        bias = np.nan_to_num((excess @ diff - excess**2 @ golden) / (excess @ excess)).clip(-1, 1)
        excess = _ratio(product + diff @ bias, squares + 2 * (golden @ bias) + bias @ bias)
    if np.abs(np.median(1 + excess)) < NEAR_ONE:  # every row is but the bias
        return
    missed = golden + bias
    missed *= excess[:, None]
    np.subtract(diff, missed, out=missed)
    left = float(np.vdot(missed, missed))
    left = max(left / error, _not_golden(left, candidate))
    yield Description(_scale(1 + excess), left, len(golden) + length, carriers)


def _clipped(pair: Tensors, sums: SumsOfSlices) -> Iterator[Description]:
    low, high = float(pair.candidate.min()), float(pair.candidate.max())
    below, above = float(pair.golden.min()) < low, float(pair.golden.max()) > high
    nearly_flat = high - low < NEAR_ONE * float(np.ptp(pair.golden))
    if not (nearly_flat or below or above):
        return
    guess = np.clip(pair.golden, low, high)
    if nearly_flat:
        flat = PatternKind.CONSTANT if high == low else PatternKind.NEARLY_CONSTANT
        yield Description(Pattern(flat), _left(pair, guess), 1, sums.carriers)
    else:
        clipped, numbers = Pattern(PatternKind.CLIPPED), 3
        if below is not above:
            kind = PatternKind.CLIPPED_BELOW if below else PatternKind.CLIPPED_ABOVE
            at = low if below else high
            clipped, numbers = Pattern(kind, low=None if at else 0.0), 2 if at else 1
        yield Description(clipped, _left_of_both(pair, guess), numbers, sums.carriers)


def _softmax_again(pair: Tensors, sums: SumsOfSlices) -> Iterator[Description]:
    """A second softmax along the last dimension. Golden's zeros were masked, maybe again."""
    golden, last = pair.golden, pair.places[-1]
    whole = len(last.chosen) == last.size
    if not whole or golden.min() < 0 or np.abs(golden.sum(-1) - 1).max() > NEAR_ONE:
        return
    powers = np.exp(golden)
    for kept in (powers, np.where(golden > 0, powers, 0.0)):
        guess = kept / kept.sum(-1, keepdims=True)
        left = _left_of_both(pair, guess)
        yield Description(Pattern(PatternKind.SOFTMAX_AGAIN), left, 1, sums.carriers)


def _moved_slices(pair: Tensors, sums: SumsOfSlices) -> Iterator[Description]:
    """Slices along one dimension that were shifted, or have changed places."""
    for dim, place in enumerate(pair.places):
        over, size = sums.over((dim,)), len(place.chosen)
        if over is None or place.step > 1 or not 1 < size <= LONGEST // 4:
            continue
        looked, matched = _matched(pair, dim, over[1])
        shifts, votes = np.unique((looked - matched) % size, return_counts=True)
        shift = int(shifts[votes.argmax()])
        if size > 2 and shift and votes.max() >= len(looked) / 2:
            by = shift if shift <= size // 2 else shift - size
            shifted = Pattern(PatternKind.SHIFTED, place.axis, indices=(by,))
            left = _left(pair, np.roll(pair.golden, shift, dim))
            yield Description(shifted, left, 1, sums.carriers)
        moved = place.chosen[looked[matched != looked]].tolist()
        if moved and np.array_equal(np.sort(matched), looked):
            order = np.arange(size)
            order[looked] = matched
            kind = PatternKind.SWAPPED if len(moved) == 2 else PatternKind.MOVED
            if len(moved) > 2 and np.array_equal(order[::-1], np.arange(size)):
                kind = PatternKind.REVERSED
            changed = Pattern(kind, place.axis, count=len(moved), indices=tuple(moved[:LISTED]))
            left = _left(pair, np.take(pair.golden, order, dim))
            yield Description(changed, left, len(moved), sums.carriers)


def _matched(
    pair: Tensors, dim: int, squares: Float64
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The candidate's worst slices, in order, and golden's nearest slice to each by 64 elements."""
    size, random = pair.golden.shape[dim], np.random.default_rng(0)
    looked = np.sort(np.argsort(-squares, kind="stable")[: max(16, min(512, (1 << 22) // size))])
    others = tuple(
        random.integers(n, size=64) for axis, n in enumerate(pair.golden.shape) if axis != dim
    )
    ours, theirs = (
        np.atleast_2d(np.moveaxis(values, dim, -1)[others])
        for values in (pair.golden, pair.candidate)
    )
    theirs = theirs[:, looked]
    length = (theirs**2).sum(0)
    distance = length[:, None] - 2 * theirs.T @ ours + (ours**2).sum(0)
    matched = distance.argmin(1)
    stays = distance[np.arange(len(looked)), looked] <= distance.min(1) + FLOOR * length
    return looked, np.where(stays, looked, matched)


def _layouts(pair: Tensors, sums: SumsOfSlices) -> Iterator[Description]:
    """Values in another order of dimensions, read in this one: transposed if sizes agree."""
    ndim, shape = pair.golden.ndim, pair.golden.shape
    if not 2 <= ndim <= 4 or any(place.step > 1 for place in pair.places):
        return
    some = np.random.default_rng(0).integers(pair.golden.size, size=4096)
    theirs, ours = pair.candidate.reshape(-1)[some], pair.golden.reshape(-1)[some]
    # without the first, which moves nothing
    for order in itertools.islice(itertools.permutations(range(ndim)), 1, None):
        moved = np.transpose(pair.golden, order)
        missed = theirs - moved[np.unravel_index(some, moved.shape)]
        if missed @ missed > 2 * LEFT * ((theirs - ours) @ (theirs - ours)):
            continue
        dims = [pair.places[dim].axis.dim for dim in order]
        changed = [dim for dim, other in zip(sorted(dims), dims, strict=True) if dim != other]
        layout = Pattern(PatternKind.LAID_OUT, indices=tuple(dims))
        if moved.shape == shape and len(changed) == 2:
            layout = Pattern(PatternKind.TRANSPOSED, indices=tuple(changed))
        left = _left(pair, np.ascontiguousarray(moved).reshape(shape))
        yield Description(layout, left, 2, sums.carriers)
