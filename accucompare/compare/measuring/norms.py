"""The norms of two tensors and their difference, and their angle, exact for any magnitude.

Of small pairs ``small`` has them, of sketches ``judging.estimates``, of statistics
``judging.bounds``."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from accucompare.compare.measuring.blocks import Block, PairOfTensors, Segment, scratch
from accucompare.numbers import Float64, chunk_dots, chunk_sums, kernel, power_of_two_near

#: A ``map``, or a thread pool's.
Run = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]

#: Veltkamp's constant: splits a float64 into two halves with exact products.
_SPLITTER = 2.0**27 + 1.0

#: With |candidate| / |golden| between these, d keeps all digits of the candidate's direction.
NEAR_LENGTHS = 1e-2, 1e6

#: The least share of a sum of squares that a difference must leave to keep its digits.
LEAST_LEFT = 1e-3

#: Chunk sums of golden^2, candidate^2, d^2, d * (golden + candidate), |d| and d, in this order;
#: from the kernel also each chunk's excess and rest (``kernel.Measurement.chunk_sums``).
Chunks = Sequence[list[float]]


class Scales(NamedTuple):
    """Powers of two for golden, candidate and d, so that squares fit float64; nearly always 1."""

    golden: float = 1.0
    candidate: float = 1.0
    diff: float = 1.0

    @classmethod
    def of(cls, golden: float, candidate: float, diff: float) -> Scales:
        """The scales for the largest magnitude of each; 0 needs none."""
        scales = power_of_two_near(golden), power_of_two_near(candidate), power_of_two_near(diff)
        return UNSCALED if scales == UNSCALED else cls(*scales)


UNSCALED = Scales()


class Totals(NamedTuple):
    """The totals: L2 norms times their scales, and the sums for the means times d's scale."""

    scales: Scales
    golden: float
    candidate: float
    diff: float
    # sum d * (golden + candidate) = candidate^2 - golden^2, times both scales, which must be equal
    cross: float
    absolute: float  # sum |d|
    signed: float  # sum d

    @property
    def rel_l2(self) -> float:
        """|d| / |golden|; 0 for 0/0, inf for x/0."""
        if not self.golden:
            return math.inf if self.diff else 0.0
        # their quotient may be beyond float64
        exponent = math.frexp(self.scales.golden)[1] - math.frexp(self.scales.diff)[1]
        try:
            ratio = math.ldexp(self.diff / self.golden, exponent)
        except OverflowError:
            return math.inf
        return ratio or (math.ulp(0.0) if self.diff else 0.0)  # too small for a float64, but not 0


class Sums:
    """Chunk sums with values scaled by powers of two."""

    def __init__(self, scales: Scales = UNSCALED, chunks: Chunks | None = None) -> None:
        self.scales = scales
        self.chunks = ([], [], [], [], [], [], [], []) if chunks is None else chunks

    def add(self, block: Block) -> None:
        golden, candidate, diff = block.golden, block.candidate, block.diff
        if self.scales != UNSCALED:
            # scale before the subtraction, for d itself may be beyond float64
            small = min(self.scales.diff, 1.0)
            diff = diff * self.scales.diff if small == 1.0 else candidate * small - golden * small
            golden, candidate = golden * self.scales.golden, candidate * self.scales.candidate
        free = scratch(3, len(diff))
        self.chunks[0].extend(chunk_dots(golden, golden))
        self.chunks[1].extend(chunk_dots(candidate, candidate))
        self.chunks[2].extend(chunk_dots(diff, diff))
        self.chunks[3].extend(chunk_dots(diff, np.add(golden, candidate, out=free)))
        self.chunks[4].extend(chunk_sums(np.abs(diff, out=free)))
        self.chunks[5].extend(chunk_sums(diff))

    def extend(self, chunks: Chunks) -> None:
        """Add the sums of what follows, which have the same scales."""
        for ours, theirs in zip(self.chunks, chunks, strict=True):
            ours.extend(theirs)

    def total(self) -> Totals:
        try:
            golden, candidate, diff, cross, absolute, signed = map(math.fsum, self.chunks[:6])
        except (OverflowError, ValueError):  # some are beyond float64
            golden, candidate, diff, cross, absolute, signed = map(_exact_sum, self.chunks[:6])
        return Totals(
            self.scales,
            math.sqrt(golden),
            math.sqrt(candidate),
            math.sqrt(diff),
            cross,
            absolute,
            signed,
        )

    def worst_chunk(self) -> float:
        """The largest |d| of a chunk, relative to golden's norm there or to the root mean square
        of the chunks' norms, whichever is larger; 0 where one chunk is all, or values are scaled.
        """
        if len(self.chunks[0]) < 2 or self.scales != UNSCALED:
            return 0.0
        golden, diff = (np.array(self.chunks[number]) for number in (0, 2))
        size = np.maximum(golden, golden.mean())
        return math.sqrt(float(np.max(diff / size))) if size.all() else 0.0

    def parts(self) -> tuple[float, float] | None:
        """Excess and |rest|^2 in candidate = (1 + excess) * golden + rest, rest perpendicular.

        The whole's rest is each chunk's rest plus the difference of the chunk's own multiple of
        golden from the whole's. ``None`` if the kernel did not give both for every chunk."""
        squares, (excesses, rests) = self.chunks[0], self.chunks[6:]
        if len(rests) != len(squares) or math.isnan(_exact_sum(rests)):
            return None
        total = _exact_sum(squares)
        excess = _exact_sum(map(operator.mul, excesses, squares)) / total if total else 0.0
        apart = [own - excess for own in excesses]
        return excess, _exact_sum(rests) + _exact_sum(
            own * own * square for own, square in zip(apart, squares, strict=True)
        )


def _exact_sum(chunks: Iterable[float]) -> float:
    try:
        return math.fsum(chunks)
    except (OverflowError, ValueError):  # beyond float64, which scaled sums never are
        return math.inf


def one_minus_cosine(sums: Sums, total: Totals, pair: PairOfTensors, run: Run) -> float:
    """1 - cosine similarity from unit vectors u, v: |u - v|^2 / 2.

    By the sums it is (|d|^2 - (|candidate| - |golden|)^2) / (2 |golden| |candidate|). If the
    difference is mostly one of length, that subtraction cancels. Then it follows from the sine if
    the kernel gave its terms; else the tensors are read again to sum |u - v|^2 itself."""
    if not total.golden or not total.candidate:
        return 0.0 if total.golden == total.candidate else 1.0
    if total.scales.golden == total.scales.candidate:
        across, along = total.diff, abs(total.cross) / (total.golden + total.candidate)
        if not across:
            return 0.0
        if (across - along) * (across + along) > LEAST_LEFT * across * across:
            rescale = total.scales.golden / total.scales.diff
            return (
                0.5
                * ((across - along) / total.golden * rescale)
                * ((across + along) / total.candidate * rescale)
            )
    parts = sums.parts()
    if parts is not None and NEAR_LENGTHS[0] <= total.candidate / total.golden <= NEAR_LENGTHS[1]:
        cosine = (1 + parts[0]) * total.golden / total.candidate
        sine = math.sqrt(max(parts[1], 0.0)) / total.candidate
        return sine * sine / (1 + cosine) if cosine > 0 else 1 - cosine
    return 0.5 * _apart_squared(total, pair, run)


def _apart_squared(total: Totals, pair: PairOfTensors, run: Run) -> float:
    """|u - v|^2 with |u| = |v| = 1, in a pass of its own."""
    golden_length, golden_exponent = math.frexp(total.golden)
    candidate_length, candidate_exponent = math.frexp(total.candidate)
    powers = math.ldexp(1.0, -golden_exponent), math.ldexp(1.0, -candidate_exponent)
    compiled = pair.compiled and total.scales == UNSCALED

    @np.errstate(all="ignore")  # it holds for one thread only
    def apart(segment: Segment) -> list[float]:
        squares: list[float] = []
        if compiled:
            for raw in pair.raw_blocks(segment):
                squares += kernel.apart_block(
                    *raw,
                    pair.golden_dtype,
                    pair.candidate_dtype,
                    powers,
                    (golden_length, candidate_length),
                )
            return squares
        for block in pair.blocks(segment):
            golden = np.ldexp(block.golden * total.scales.golden, -golden_exponent)
            candidate = np.ldexp(block.candidate * total.scales.candidate, -candidate_exponent)
            left, left_error = _product(candidate, golden_length)
            right, right_error = _product(golden, candidate_length)
            difference = (left - right) + (left_error - right_error)
            squares += chunk_dots(difference, difference)
        return squares

    squares = itertools.chain.from_iterable(run(apart, pair.segments(run is not map)))
    return _exact_sum(squares) / (golden_length * candidate_length) ** 2


def _product(values: Float64, factor: float) -> tuple[Float64, Float64]:
    """Rounded products and their exact rounding errors (T. J. Dekker, Numer. Math. 18, 1971)."""
    product = values * factor
    high = values * _SPLITTER
    high -= high - values
    low = values - high
    factor_high = factor * _SPLITTER
    factor_high -= factor_high - factor
    factor_low = factor - factor_high
    return product, low * factor_low - (
        ((product - high * factor_high) - low * factor_high) - high * factor_low
    )
