"""Statistics of one tensor against exact sums."""

from __future__ import annotations

import math
from fractions import Fraction
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accucompare.numbers import statistics, sums
from accucompare.numbers.dtypes import DTYPES, DType, Kind
from accucompare.numbers.statistics import Statistics, summarize
from tests.compare.reference import root, same, to_float, values_of
from tests.numbers.both_kernels import both_kernels  # noqa: F401


def exactly(raw: np.ndarray, dtype: DType) -> Statistics:
    values = values_of(raw, dtype)
    finite = [Fraction(value) for value in values if math.isfinite(value)]
    nan, inf = sum(map(math.isnan, values)), sum(map(math.isinf, values))
    if not finite:
        return Statistics(None, None, None, 0.0, nan, inf)
    l2 = root(sum((value * value for value in finite), Fraction()))
    mean = to_float(sum(finite, Fraction()) / len(finite))
    return Statistics(min(finite), max(finite), mean, l2 if math.isfinite(l2) else None, nan, inf)  # type: ignore[arg-type]


def check(raw: np.ndarray, dtype: DType) -> None:
    found, expected = summarize(raw, dtype), exactly(raw, dtype)
    assert (found.min, found.max, found.nan, found.inf) == (
        expected.min,
        expected.max,
        expected.nan,
        expected.inf,
    )
    magnitude = max(abs(found.min or 0), abs(found.max or 0))
    assert same(found.mean, expected.mean, floor=1e-14 * float(magnitude))
    assert same(
        math.inf if found.l2 is None else found.l2, math.inf if expected.l2 is None else expected.l2
    )


def random_bits(dtype: DType, count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype.kind is Kind.BOOL:
        return rng.integers(0, 2, count).astype(bool)
    return np.frombuffer(rng.bytes(count * dtype.storage.itemsize), dtype.storage)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("count", [1, 500])
def test_statistics_of_any_bit_patterns_agree_with_exact_sums(dtype: DType, count: int) -> None:
    for seed in range(3):
        check(random_bits(dtype, count, seed), dtype)


@given(
    st.lists(
        st.floats() | st.sampled_from([5e-324, 1e-300, 1e300, 1.7e308, math.inf, math.nan]),
        max_size=15,
    )
)
def test_statistics_of_any_float64_values_agree_with_exact_sums(values: list[float]) -> None:
    check(np.array(values, np.float64), DTYPES["float64"])


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, -math.inf, math.nan]])
def test_without_a_finite_value_there_are_no_extrema(values: list[float]) -> None:
    found = summarize(np.array(values, np.float64), DTYPES["float64"])
    assert (found.min, found.max, found.mean, found.l2) == (None, None, None, 0.0)


def test_extrema_of_64_bit_integers_are_exact() -> None:
    found = summarize(np.array([2**63 - 1, -(2**63) + 1]), DTYPES["int64"])
    assert (found.min, found.max) == (-(2**63) + 1, 2**63 - 1)


def test_a_norm_beyond_float64_is_left_out_but_the_mean_is_there() -> None:
    found = summarize(np.full(100, 1.7e308), DTYPES["float64"])
    assert (found.l2, found.mean) == (None, 1.7e308)


def test_the_shape_does_not_matter() -> None:
    values = np.arange(24.0)
    assert summarize(values.reshape(2, 3, 4), DTYPES["float64"]) == summarize(
        values, DTYPES["float64"]
    )


@settings(max_examples=30)
@given(st.integers(0, 100), st.integers(1, 9), st.sampled_from(list(DTYPES.values())))
def test_block_size_changes_no_bit(count: int, blocks: int, dtype: DType) -> None:
    raw = random_bits(dtype, count, seed=count)
    with patch.object(sums, "CHUNK", 4):
        found = []
        for block in (4 * 2 * blocks, 1 << 16):
            with patch.object(statistics, "BLOCK", block):
                found.append(repr(summarize(raw, dtype)))
    assert found[0] == found[1]
