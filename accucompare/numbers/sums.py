"""Sums in float64 that come out the same however a tensor was cut into blocks.

A tensor is summed in chunks of ``CHUNK`` elements from its start, each by NumPy's pairwise
summation; the chunks' sums are added exactly (``math.fsum``, Shewchuk 1997). Blocks hold whole
chunks, so their ends change nothing."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Elements per chunk.
CHUNK = 8192
#: Elements that are read, widened and reduced at a time. A multiple of CHUNK.
BLOCK = 16 * CHUNK
#: Elements of a large tensor that one thread reads, verifies and measures. A multiple of BLOCK.
SEGMENT = 8 * BLOCK

#: Between these magnitudes, and at 0, squares fit float64.
SQUARES_FIT = 1e-120, 1e120

Float64 = NDArray[np.float64]


def chunk_sums(values: Float64) -> list[float]:
    """The sum of each chunk of a 1-d float64 array that starts at a chunk's start."""
    whole = len(values) // CHUNK * CHUNK
    sums: list[float] = (
        np.add.reduce(values[:whole].reshape(-1, CHUNK), axis=1).tolist() if whole else []
    )
    if whole < len(values):
        sums.append(float(np.add.reduce(values[whole:])))
    return sums


def chunk_dots(left: Float64, right: Float64) -> list[float]:
    """The inner product of each chunk of two such arrays of equal length.

    ``np.vecdot`` works row by row and never enters threaded BLAS, whose last bits depend on the
    number of threads."""
    whole = len(left) // CHUNK * CHUNK
    dots: list[float] = []
    if whole:
        dots = np.vecdot(left[:whole].reshape(-1, CHUNK), right[:whole].reshape(-1, CHUNK)).tolist()
    if whole < len(left):
        dots.append(float(np.vecdot(left[whole:], right[whole:])))
    return dots


def power_of_two_near(magnitude: float) -> float:
    """The scale with which squares of values up to ``magnitude`` neither overflow nor vanish; 1 if
    none is needed.

    Scaling by a power of two is exact. Only float64 tensors need it: squares of float32's extremes
    fit float64."""
    if magnitude == 0 or SQUARES_FIT[0] < magnitude < SQUARES_FIT[1]:
        return 1.0
    exponent = math.frexp(min(magnitude, sys.float_info.max))[1]
    # 2**1000 is enough for subnormals and is still finite
    return math.ldexp(1.0, min(-exponent, 1000))


def as_reals(values: NDArray[Any]) -> NDArray[Any]:
    """A 1-d view of contiguous values; complex ones as pairs of reals (real, imaginary, …)."""
    flat = values.reshape(-1)
    return flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat
