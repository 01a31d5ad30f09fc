"""Statistics of one tensor: extrema, mean, L2 norm, and the numbers of NaN and Inf."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any

import msgspec
import numpy as np

from accucompare.numbers import kernel
from accucompare.numbers.dtypes import Array, DType, Kind, widen
from accucompare.numbers.sharing import shared
from accucompare.numbers.sums import (
    BLOCK,
    SEGMENT,
    as_reals,
    chunk_dots,
    chunk_sums,
    power_of_two_near,
)

#: A count, as a record's line may hold it.
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
#: A number of any type; integers and booleans keep their type.
AnyNumber = int | float | bool


class Statistics(msgspec.Struct, frozen=True, gc=False):
    """Statistics over a tensor's finite values; complex tensors count as pairs of reals."""

    # min, max: extrema, exact; ``None`` where no value is finite
    min: AnyNumber | None
    max: AnyNumber | None
    mean: float | None  # arithmetic mean; ``None`` likewise
    l2: float | None  # Euclidean norm; ``None`` where it exceeds float64
    nan: Count  # how many values are NaN
    inf: Count  # how many are +Inf or -Inf
    # how wrong mean and norm may be, relative to the mean magnitude and to the norm; 0 for sums in
    # float64
    rounding: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.0

    def to_json(self) -> dict[str, Any]:
        known = {
            "min": self.min,
            "max": self.max,
            "mean": self.mean,
            "l2": self.l2,
            "nan": self.nan,
            "inf": self.inf,
        }
        return {**known, "rounding": self.rounding} if self.rounding else known


def summarize(raw: Array, dtype: DType, helped: bool = False) -> Statistics:
    """Statistics of one tensor, in float64 and block by block.

    Args:
        raw: contiguous array of ``dtype.storage``, any shape.
        dtype: its true type.
        helped: a second thread does a part of a large one.
    """
    stored = raw.reshape(-1)
    compiled = kernel.can_summarize(dtype)
    low, high, nan, inf, *sums = (
        _compiled(stored, dtype, helped) if compiled else _extrema(stored, dtype)
    )
    if low is None or high is None:
        return Statistics(None, None, None, 0.0, nan, inf)
    scale = power_of_two_near(max(abs(float(low)), abs(float(high))))
    values, squares = sums if sums and scale == 1.0 else _sums(stored, dtype, scale)
    count = stored.size * (2 if dtype.kind is Kind.COMPLEX else 1) - nan - inf
    l2 = math.sqrt(math.fsum(squares)) / scale
    return Statistics(
        low, high, math.fsum(values) / count / scale, l2 if math.isfinite(l2) else None, nan, inf
    )


_EXACT: dict[Kind, type[int]] = {Kind.INT: int, Kind.BOOL: bool}


def _compiled(
    stored: Array, dtype: DType, helped: bool
) -> tuple[float | None, float | None, int, int, list[float], list[float]]:
    if helped and stored.size > SEGMENT:

        def of_segment(place: int) -> Any:
            return kernel.summarize_block(stored[place * SEGMENT : (place + 1) * SEGMENT], dtype)

        lows, highs, nans, infs, *parts = zip(
            *shared(of_segment, -(-stored.size // SEGMENT)), strict=True
        )
        low, high, nan, inf = min(lows), max(highs), sum(nans), sum(infs)
        sums, squares = (list(chain.from_iterable(each)) for each in parts)
    else:
        low, high, nan, inf, sums, squares = kernel.summarize_block(stored, dtype)
    if low > high:
        return None, None, nan, inf, sums, squares
    exact = _EXACT.get(dtype.kind, float)
    return exact(low), exact(high), nan, inf, sums, squares


@np.errstate(invalid="ignore")  # a signalling NaN is a value like any other here
def _sums(stored: Array, dtype: DType, scale: float) -> tuple[list[float], list[float]]:
    """Chunk sums of the finite values and of their squares."""
    sums: list[float] = []
    squares: list[float] = []
    for block in _blocks(stored, dtype):
        values = block.astype(np.float64)
        if block.dtype.kind == "f":
            values[~np.isfinite(values)] = 0.0
        if scale != 1.0:
            values *= scale
        sums += chunk_sums(values)
        squares += chunk_dots(values, values)
    return sums, squares


def _blocks(stored: Array, dtype: DType) -> Iterator[Array]:
    step = BLOCK // 2 if dtype.kind is Kind.COMPLEX else BLOCK
    for start in range(0, stored.size, step):
        yield as_reals(widen(stored[start : start + step], dtype))


@np.errstate(invalid="ignore")
def _extrema(stored: Array, dtype: DType) -> tuple[float | None, float | None, int, int]:
    low: float | None = None
    high: float | None = None
    nan = inf = 0
    for values in _blocks(stored, dtype):
        if values.dtype.kind == "f":
            least, most = values.min(), values.max()
            if not (np.isfinite(least) and np.isfinite(most)):
                nan += int(np.isnan(values).sum())
                inf += int(np.isinf(values).sum())
                values = values[np.isfinite(values)]
                if not values.size:
                    continue
        least, most = values.min().item(), values.max().item()
        low = least if low is None else min(low, least)
        high = most if high is None else max(high, most)
    return low, high, nan, inf
