"""Every metric against exact arithmetic, for every dtype, magnitude and block size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accucompare.compare.measuring.blocks import Blocks
from accucompare.compare.measuring.measure import Metrics, measure_pair
from accucompare.numbers import kernel, sums
from accucompare.numbers.dtypes import DTYPES, Array, DType, round_to, widen
from accucompare.numbers.sums import BLOCK, SEGMENT
from tests.combinations import pairwise
from tests.compare.builder import in_blocks, random_bits
from tests.compare.reference import (
    ALL,
    COMPLEXES,
    FLOATS,
    INTS,
    disagreements,
    reference,
    same,
    values_of,
)
from tests.numbers.both_kernels import both_kernels  # noqa: F401

FLOAT64 = DTYPES["float64"]
HUGE = float(np.finfo(np.float64).max)
TINY = 5e-324


def measured(
    golden: Any,
    candidate: Any,
    golden_dtype: DType | str = "float64",
    candidate_dtype: DType | str | None = None,
    block: int = 1 << 16,
    **options: Any,
) -> Metrics:
    ours = DTYPES[golden_dtype] if isinstance(golden_dtype, str) else golden_dtype
    theirs = (
        ours
        if candidate_dtype is None
        else DTYPES[candidate_dtype]
        if isinstance(candidate_dtype, str)
        else candidate_dtype
    )
    golden, candidate = np.asarray(golden, ours.storage), np.asarray(candidate, theirs.storage)
    return measure_pair(
        in_blocks(golden, block),
        in_blocks(candidate, block),
        (ours, theirs),
        golden.shape,
        **options,
    )


def wrong(
    golden: Any,
    candidate: Any,
    golden_dtype: str = "float64",
    candidate_dtype: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """What ``measure_pair`` and the reference disagree on."""
    ours, theirs = DTYPES[golden_dtype], DTYPES[candidate_dtype or golden_dtype]
    golden, candidate = np.asarray(golden, ours.storage), np.asarray(candidate, theirs.storage)
    expected = reference(values_of(golden, ours), values_of(candidate, theirs), **options)
    return disagreements(measured(golden, candidate, ours, theirs, **options), expected)


def near(dtype: DType, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Golden and a candidate that differs in the last bits, the usual case."""
    rng = np.random.default_rng(seed)
    if dtype.kind.value in ("int", "bool"):
        golden = random_bits(dtype, count, seed)
        candidate = golden.copy()
        candidate[:: max(count // 7, 1)] = random_bits(dtype, count, seed + 1)[
            :: max(count // 7, 1)
        ]
        return golden, candidate
    if dtype.kind.value == "complex":
        parts = [rng.normal(size=2 * count) for _ in range(2)]
        part = {"complex128": np.float64, "complex64": np.float32, "complex32": np.float16}[
            dtype.name
        ]
        golden, candidate = parts[0].astype(part), (parts[0] * (1 + 1e-3 * parts[1])).astype(part)
        return golden.view(dtype.storage), candidate.view(dtype.storage)
    values = rng.normal(size=count)
    noisy = values * (1 + 4 * dtype.rounding * rng.normal(size=count))
    if dtype.name == "float64":
        return values, noisy
    if not dtype.signed:
        values, noisy = np.abs(values), np.abs(noisy)
    return round_to(values, dtype), round_to(noisy, dtype)


def wrong_against(
    ours: DType, others: tuple[DType, ...], seed: int, **limits: float
) -> dict[str, Any]:
    """What disagrees where a candidate of each other type is compared, by the type's name."""
    golden = random_bits(ours, 60, seed)
    return {
        theirs.name: found
        for theirs in others
        if theirs is not ours
        and (
            found := wrong(
                golden, random_bits(theirs, 60, seed + 1), ours.name, theirs.name, **limits
            )
        )
    }


# Agreement with exact arithmetic


@pytest.mark.parametrize("dtype", ALL, ids=lambda dtype: dtype.name)
def test_metrics_of_rounding_noise_agree_with_exact_arithmetic(dtype: DType) -> None:
    golden, candidate = near(dtype, 301, seed=1)
    assert not wrong(golden, candidate, dtype.name, atol=1e-3, rtol=1e-2)


@pytest.mark.parametrize("dtype", ALL, ids=lambda dtype: dtype.name)
def test_metrics_of_any_bit_patterns_agree_with_exact_arithmetic(dtype: DType) -> None:
    golden, candidate = random_bits(dtype, 300, seed=2), random_bits(dtype, 300, seed=3)
    assert not wrong(golden, candidate, dtype.name, atol=1.0, rtol=0.5)


@pytest.mark.parametrize("ours", FLOATS, ids=lambda dtype: dtype.name)
def test_mixed_floating_types_are_compared_after_exact_widening(ours: DType) -> None:
    assert wrong_against(ours, FLOATS, seed=4, atol=1e-3, rtol=1e-3) == {}


@pytest.mark.parametrize("ours", INTS, ids=lambda dtype: dtype.name)
def test_mixed_integer_types_are_compared_exactly(ours: DType) -> None:
    assert wrong_against(ours, INTS, seed=6) == {}


@pytest.mark.parametrize("ours", COMPLEXES, ids=lambda dtype: dtype.name)
def test_mixed_complex_types_are_compared_as_pairs_of_reals(ours: DType) -> None:
    assert wrong_against(ours, COMPLEXES, seed=8, atol=1e-3) == {}


ANY_FLOAT = st.one_of(
    st.floats(),
    st.floats(-10, 10),
    st.sampled_from(
        [
            0.0,
            -0.0,
            TINY,
            -TINY,
            1e-300,
            -1e-300,
            1e300,
            -1e300,
            HUGE,
            -HUGE,
            1e-160,
            1e160,
            math.inf,
            -math.inf,
            math.nan,
        ]
    ),
)


@given(
    st.lists(st.tuples(ANY_FLOAT, ANY_FLOAT), max_size=12),
    st.sampled_from([None, 0.0, 1e-3, 1e300]),
    st.sampled_from([None, 0.0, 1e-3, 0.5]),
)
def test_any_float64_values_agree_with_exact_arithmetic(
    pairs: list[tuple[float, float]], atol: float | None, rtol: float | None
) -> None:
    found = wrong([pair[0] for pair in pairs], [pair[1] for pair in pairs], atol=atol, rtol=rtol)
    for name in ("over_tolerance", "over_1e3", "over_5e3"):  # sharp limits: a last bit may decide
        found.pop(name, None)
    # rtol * golden is rounded to a few bits
    if any(0 < abs(golden) < 1e-300 for golden, _ in pairs):
        found.pop("tolerance_used", None)
    assert not found


@given(
    st.lists(
        st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**64 - 1)),
        min_size=1,
        max_size=20,
    ),
    st.booleans(),
)
def test_int64_against_uint64_agrees_with_exact_arithmetic(
    pairs: list[tuple[int, int]], swapped: bool
) -> None:
    signed, unsigned = (
        np.array([a for a, _ in pairs], np.int64),
        np.array([b for _, b in pairs], np.uint64),
    )
    if swapped:
        assert not wrong(unsigned, signed, "uint64", "int64")
    else:
        assert not wrong(signed, unsigned, "int64", "uint64")


def test_int64_beyond_2_to_the_53_differ_by_what_integers_say() -> None:
    metrics = measured([2**53, 2**62], [2**53 + 1, 2**62], "int64")
    assert (metrics.max_abs, metrics.max_abs_index) == (1.0, (0,))
    assert (metrics.golden_at_max, metrics.candidate_at_max) == (2**53, 2**53 + 1)


def test_cancelling_differences_leave_a_bias_right_to_the_size_of_the_differences() -> None:
    rng = np.random.default_rng(10)
    golden = rng.normal(size=50_000)
    noise = rng.normal(size=25_000) * 1e3
    candidate = golden + np.concatenate([noise, -noise])
    metrics = measured(golden, candidate)
    exact = math.fsum(candidate - golden) / golden.size
    assert abs(metrics.bias - exact) <= 1e-12 * metrics.mean_abs


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_over_many_chunks_agree_with_fsum(dtype: str) -> None:
    golden, candidate = near(DTYPES[dtype], 100_003, seed=11)
    metrics = measured(golden, candidate, dtype)
    g, c = golden.astype(np.float64), candidate.astype(np.float64)
    d = c - g
    assert same(metrics.rel_l2, math.sqrt(math.fsum(d * d) / math.fsum(g * g)))
    assert same(metrics.mean_abs, math.fsum(np.abs(d)) / d.size)
    assert same(metrics.rmse, math.sqrt(math.fsum(d * d) / d.size))
    assert metrics.max_abs == np.abs(d).max()
    assert metrics.max_abs_index == (np.abs(d).argmax(),)


# 1 - cosine


@pytest.mark.parametrize(
    ("factor", "noise", "count"),
    pairwise(
        (1.0, 1.01, 3.0, 1e-200, 1e200, 1 / 3), (1e-2, 1e-4, 1e-5, 4e-7, 1e-7, 4e-8), (2, 3, 40)
    ),
)
def test_one_minus_cosine_is_right_however_small_and_however_different_the_lengths(
    factor: float, noise: float, count: int
) -> None:
    rng = np.random.default_rng(12)
    for _ in range(6):
        golden = rng.normal(size=count)
        candidate = (golden + noise * rng.normal(size=count)) * factor
        expected = reference(golden.tolist(), candidate.tolist())["one_minus_cosine"]
        assert 0 < expected < 0.1
        assert same(measured(golden, candidate).one_minus_cosine, expected, rel=1e-9, floor=1e-26)


def test_one_minus_cosine_of_1e_13_between_float32_tensors_keeps_nine_digits() -> None:
    rng = np.random.default_rng(13)
    golden = rng.normal(size=200).astype(np.float32)
    candidate = (golden * np.float32(1 + 1e-6 * 0.45)).astype(np.float32)
    expected = reference(golden.tolist(), candidate.tolist())["one_minus_cosine"]
    assert 1e-16 < expected < 1e-12
    assert same(measured(golden, candidate, "float32").one_minus_cosine, expected, rel=1e-9)


@pytest.mark.parametrize(
    ("noise", "factor", "dtype"),
    pairwise(
        (1e-2, 1e-5, 4e-8, 0.0),
        (1.0, 1.01, 3.0, 8.0, 1 / 3, 0.02, 1e-20, 1e15),
        ("float32", "bfloat16"),
    ),
)
def test_one_minus_cosine_of_narrow_types_is_right_too(
    factor: float, noise: float, dtype: str
) -> None:
    known, rng = DTYPES[dtype], np.random.default_rng(14)
    for _ in range(5):
        golden = rng.normal(size=40)
        sides = [
            round_to(side, known)
            for side in (golden, (golden + noise * rng.normal(size=40)) * factor)
        ]
        expected = reference(*(widen(side, known).tolist() for side in sides))["one_minus_cosine"]
        assert same(measured(*sides, dtype).one_minus_cosine, expected, rel=1e-9, floor=1e-26)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_tensors_that_differ_by_a_factor_are_read_once(dtype: str) -> None:
    """The angle between them is what d leaves beside golden; summing it must not take a pass of its
    own over what may be gigabytes.
    """
    if kernel._kernel is None:
        pytest.skip("NumPy's form takes a second pass")
    known = DTYPES[dtype]
    golden = np.random.default_rng(5).normal(size=3 * SEGMENT // 2).astype(np.float32)
    sides = [
        round_to(golden * factor, known) if dtype != "float32" else golden * np.float32(factor)
        for factor in (1.0, 1.1)
    ]
    reads: list[int] = []

    def counted(array: Array) -> Blocks:
        def blocks(start: int, stop: int) -> Iterator[Array]:
            reads.append(start)
            return in_blocks(array, BLOCK)(start, stop)

        return blocks

    metrics = measure_pair(*map(counted, sides), (known, known), golden.shape)
    assert reads == [0, 0]
    wide = [widen(side, known).astype(np.longdouble) for side in sides]
    unit = [side / np.sqrt(side @ side) for side in wide]
    expected = float(((unit[0] - unit[1]) ** 2).sum() / 2)
    assert metrics.one_minus_cosine == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    ("golden", "candidate", "expected"),
    [
        ([1.0, 2.0], [2.0, 4.0], 0.0),
        ([1.0, 2.0], [-1.0, -2.0], 2.0),
        ([1.0, 0.0], [0.0, 1.0], 1.0),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([0.0, 0.0], [0.0, 1.0], 1.0),
        ([0.0, 1.0], [0.0, 0.0], 1.0),
        ([TINY], [HUGE], 0.0),
        ([-TINY], [HUGE], 2.0),
    ],
)
def test_one_minus_cosine_of_plain_cases(
    golden: list[float], candidate: list[float], expected: float
) -> None:
    assert measured(golden, candidate).one_minus_cosine == pytest.approx(
        expected, rel=1e-15, abs=1e-30
    )


# Adversarial magnitudes


@pytest.mark.parametrize("size", [1e-310, 1e-300, 1e-160, 1e-120, 1e120, 1e160, 1e300])
@pytest.mark.parametrize("apart", [1e-13, 1e-3, 1.0, 1e3])
def test_huge_and_tiny_float64_values_agree_with_exact_arithmetic(
    size: float, apart: float
) -> None:
    rng = np.random.default_rng(14)
    golden = rng.normal(size=50) * size
    rtol = 1e-6 if size > 1e-300 else None  # of a subnormal value, it is rounded to a few bits
    assert not wrong(
        golden, golden + golden * apart * rng.normal(size=50), atol=size * 1e-6, rtol=rtol
    )


@pytest.mark.parametrize(
    ("golden", "candidate"),
    [
        ([1.0], [HUGE / 2]),
        ([TINY], [HUGE]),
        ([TINY, -HUGE], [1e-47, HUGE]),
        ([1.0, 1e-200], [1.0, 2e-200]),  # a tiny difference beside ordinary values
        ([1e300, 1e-300], [1e300, 2e-300]),  # and beside huge ones
        ([1e300, 1.0], [1e300, 1.0 + 1e-10]),
        ([1e-200] * 3, [1e100] * 3),  # two sides of very different size
        ([1e200] * 3, [1e-100] * 3),
        ([HUGE] * 100, [HUGE / 2] * 100),  # sums beyond float64, means within
        ([TINY] * 3, [2 * TINY] * 3),
        ([2.5e-323] * 7, [0.0] * 7),
    ],
)
def test_mixed_magnitudes_agree_with_exact_arithmetic(
    golden: list[float], candidate: list[float]
) -> None:
    assert not wrong(golden, candidate, atol=1e-250, rtol=0.0)


def test_a_difference_beyond_float64_is_infinite_but_its_ratios_are_right() -> None:
    metrics = measured([1.7e308, 1.0], [-1.7e308, 1.0], atol=0.0, rtol=2.0)
    assert metrics.max_abs == math.inf
    assert metrics.max_rel == 2.0
    assert metrics.rel_l2 == pytest.approx(2.0)
    assert metrics.over_tolerance == 0.0
    assert metrics.tolerance_used == 1.0
    assert metrics.rmse == math.inf


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "complex64"])
def test_the_extremes_of_narrower_types_need_no_scaling(dtype: str) -> None:
    largest = DTYPES[dtype].largest
    raw = (
        round_to(np.array([largest, -largest, 1e-45, 1.0]), DTYPES[dtype])
        if dtype != "complex64"
        else np.array([largest + 1e-45j])
    )
    assert not wrong(raw, raw[::-1].copy(), dtype, atol=1.0)


# Zeros, empties, single elements, non-finite values


def test_zero_against_zero_is_equal_whatever_the_signs() -> None:
    metrics = measured([0.0, -0.0, 0.0], [-0.0, 0.0, 0.0], atol=0.0, rtol=0.0)
    assert (metrics.rel_l2, metrics.max_abs, metrics.max_rel, metrics.max_ulp) == (0.0, 0.0, 0.0, 0)
    assert (metrics.over_tolerance, metrics.tolerance_used, metrics.max_abs_index) == (
        0.0,
        0.0,
        None,
    )


def test_anything_against_an_all_zero_golden_is_infinitely_wrong() -> None:
    metrics = measured([0.0, 0.0], [0.0, 1e-30], atol=0.0, rtol=1.0)
    assert (metrics.rel_l2, metrics.max_rel, metrics.tolerance_used) == (
        math.inf,
        math.inf,
        math.inf,
    )
    assert metrics.over_tolerance == 0.5


@pytest.mark.parametrize("dtype", ALL, ids=lambda dtype: dtype.name)
def test_empty_tensors_have_no_differences(dtype: DType) -> None:
    raw = np.empty((0, 3), dtype.storage)
    metrics = measured(raw, raw, dtype, atol=0.0)
    assert (metrics.elements, metrics.rel_l2, metrics.one_minus_cosine, metrics.over_tolerance) == (
        0,
        0.0,
        0.0,
        0.0,
    )
    assert metrics.max_abs_index is None


def test_a_scalar_has_an_empty_index() -> None:
    metrics = measured(np.float64(2.0), np.float64(2.5))
    assert (metrics.max_abs_index, metrics.golden_at_max, metrics.candidate_at_max) == (
        (),
        2.0,
        2.5,
    )
    assert metrics.rel_l2 == 0.25


def test_nan_in_the_same_place_is_equal_and_counted_whatever_its_payload() -> None:
    payload = np.array([0x7FF8000000000001, 0xFFF0000000000123], np.uint64).view(np.float64)
    metrics = measured([math.nan, math.nan, 1.0], [*payload, 1.0])
    assert (metrics.golden_nan, metrics.candidate_nan, metrics.nonfinite_mismatch) == (2, 2, 0)
    assert (metrics.compared, metrics.rel_l2) == (1, 0.0)


@pytest.mark.parametrize(
    ("golden", "candidate", "mismatches"),
    [
        (math.nan, 1.0, 1),
        (1.0, math.nan, 1),
        (math.inf, -math.inf, 1),
        (math.inf, math.inf, 0),
        (math.inf, math.nan, 1),
        (1.0, math.inf, 1),
    ],
)
def test_values_that_are_not_finite_on_one_side_are_mismatches(
    golden: float, candidate: float, mismatches: int
) -> None:
    metrics = measured([golden, 2.0, 3.0], [candidate, 2.0, 3.5])
    assert metrics.nonfinite_mismatch == mismatches
    assert (metrics.compared, metrics.max_abs, metrics.max_abs_index) == (2, 0.5, (2,))


def test_nonfinite_values_hide_nothing_elsewhere_in_the_tensor() -> None:
    golden, candidate = near(FLOAT64, 200, seed=15)
    golden[[3, 50]], candidate[[3, 77]] = math.nan, math.inf
    assert not wrong(golden, candidate, atol=1e-16)


def test_numbers_of_different_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="float32 and int64 are numbers of different kinds"):
        measured([1.0], [1], "float32", "int64")


# Saturation


def test_saturation_is_told_from_infinity() -> None:
    golden = np.array([1e5, -1e5, 7e4, 65504.0, 1.0], np.float32)
    candidate = np.array([65504.0, -65504.0, np.inf, 65504.0, 1.0], np.float16)
    metrics = measured(golden, candidate, "float32", "float16")
    assert (metrics.saturated, metrics.candidate_inf, metrics.nonfinite_mismatch) == (2, 1, 1)


def test_saturation_is_seen_between_equal_types_where_golden_overflowed() -> None:
    metrics = measured(
        np.array([np.inf, 1.0], np.float16), np.array([65504.0, 1.0], np.float16), "float16"
    )
    assert (metrics.saturated, metrics.nonfinite_mismatch) == (1, 1)


@pytest.mark.parametrize("nan", [False, True])
def test_saturation_is_counted_once_beside_nan(nan: bool) -> None:
    golden = np.array([1e5, np.nan if nan else 1.0], np.float32)
    candidate = np.array([65504.0, np.nan if nan else 1.0], np.float16)
    assert measured(golden, candidate, "float32", "float16").saturated == 1


# Units in the last place


def every_finite(dtype: DType) -> np.ndarray:
    raw = (
        np.arange(1 << (8 * dtype.storage.itemsize), dtype=np.uint32)
        .astype(f"u{dtype.storage.itemsize}")
        .view(dtype.storage)
    )
    return raw[np.isfinite(widen(raw, dtype))]


@pytest.mark.parametrize(
    "dtype",
    [dtype for dtype in FLOATS if dtype.storage.itemsize <= 2],
    ids=lambda dtype: dtype.name,
)
def test_ulp_distance_is_the_number_of_values_between(dtype: DType) -> None:
    raw = every_finite(dtype)
    ladder = np.unique(widen(raw, dtype))  # -0 and 0 are one rung
    rng = np.random.default_rng(16)
    for _ in range(60):
        golden, candidate = rng.choice(raw, 2)
        rungs = [
            int(np.searchsorted(ladder, widen(np.array([value], dtype.storage), dtype)[0]))
            for value in (golden, candidate)
        ]
        assert measured([golden], [candidate], dtype).max_ulp == abs(rungs[0] - rungs[1])


@pytest.mark.parametrize(
    ("numpy_type", "start", "steps"),
    pairwise(
        (np.float16, np.float32, np.float64),
        (1.0, -1.0, 2.0, -0.0, 3e-5, -6e-8, 60000.0),
        (1, 2, 7, 100),
    ),
)
def test_ulp_distance_counts_nextafter_steps(numpy_type: type, start: float, steps: int) -> None:
    golden = candidate = numpy_type(start)
    for _ in range(steps):
        candidate = np.nextafter(candidate, numpy_type(np.inf))
    assert measured([1.0, golden], [1.0, candidate], np.dtype(numpy_type).name).max_ulp == steps


@pytest.mark.parametrize(
    ("name", "bits"), [("float64", 64), ("float32", 32), ("bfloat16", 16), ("float16", 16)]
)
def test_ulp_distance_from_the_lowest_to_the_highest_value_does_not_overflow(
    name: str, bits: int
) -> None:
    dtype = DTYPES[name]
    top = (
        np.array([dtype.largest])
        if name == "float64"
        else round_to(np.array([dtype.largest]), dtype)
    )
    sign = np.array([1 << (bits - 1)], f"u{bits // 8}")
    bottom = (top.view(sign.dtype) | sign).view(dtype.storage)
    assert measured(top, bottom, dtype).max_ulp == 2 * int(top.view(sign.dtype)[0])


def test_ulp_distance_is_the_largest_of_a_tensor_whatever_signs_are_beside_it() -> None:
    one = np.float32(1)
    golden = np.array([1, -1, 0, 2], np.float32)
    candidate = np.array([one + np.spacing(one) * 5, -1, -1e-45, 2], np.float32)
    assert measured(golden, candidate, "float32").max_ulp == 5
    assert measured(candidate, golden, "float32").max_ulp == 5


def test_ulp_distance_leaves_out_what_is_not_finite() -> None:
    golden = np.array([np.nan, np.inf, 1.0, np.nan], np.float32)
    candidate = np.array(
        [1.0, -np.inf, np.nextafter(np.float32(1), np.float32(2)), np.nan], np.float32
    )
    assert measured(golden, candidate, "float32").max_ulp == 1


@pytest.mark.parametrize("names", [("float32", "bfloat16"), ("int32", "int32"), ("bool", "bool")])
def test_there_is_no_ulp_distance_between_types_or_of_integers(names: tuple[str, str]) -> None:
    assert measured([1, 0], [1, 1], *names).max_ulp is None


def test_ulp_distance_of_complex_numbers_is_that_of_their_parts() -> None:
    golden = np.array([1 + 1j], np.complex64)
    candidate = np.array([1 + np.nextafter(np.float32(1), np.float32(2)) * 1j], np.complex64)
    assert measured(golden, candidate, "complex64").max_ulp == 1


# Where the largest difference is


@pytest.mark.parametrize("shape", [(6,), (2, 3), (3, 1, 2), (1, 6, 1)])
def test_the_index_is_that_of_the_first_largest_difference(shape: tuple[int, ...]) -> None:
    golden = np.zeros(shape)
    candidate = np.array([0.0, 1.0, -3.0, 3.0, 2.0, -3.0]).reshape(shape)
    metrics = measured(golden, candidate)
    assert metrics.max_abs_index == tuple(np.unravel_index(2, shape))
    assert (metrics.golden_at_max, metrics.candidate_at_max) == (0.0, -3.0)


@pytest.mark.parametrize("block", [1, 2, 4])
def test_the_first_of_equal_differences_wins_across_blocks(block: int) -> None:
    with patch.object(sums, "CHUNK", 1):
        assert measured(
            np.zeros(8), np.array([0, 1, 0, 1, 1, 0, 1, 1.0]), block=block
        ).max_abs_index == (1,)


def test_the_index_into_a_complex_tensor_ends_in_real_or_imaginary() -> None:
    metrics = measured(np.zeros((2, 2), complex), np.array([[0, 1], [1, 3j]]), "complex128")
    assert (metrics.max_abs_index, metrics.candidate_at_max) == ((1, 1, 1), 3.0)


# Shares over a tolerance


@pytest.mark.parametrize(
    ("atol", "rtol"), [(1e-3, 0.0), (0.0, 1e-3), (1e-4, 1e-3), (1e-2, None), (None, 1e-2)]
)
def test_share_over_tolerance_is_that_of_torch_isclose(
    atol: float | None, rtol: float | None
) -> None:
    rng = np.random.default_rng(17)
    golden = rng.normal(size=5000)
    candidate = golden + 1e-3 * rng.normal(size=5000)
    close = torch.isclose(
        torch.from_numpy(candidate), torch.from_numpy(golden), rtol=rtol or 0.0, atol=atol or 0.0
    )
    found = measured(golden, candidate, atol=atol, rtol=rtol).over_tolerance
    assert found == (~close).sum().item() / 5000
    assert (
        found
        == np.count_nonzero(~np.isclose(candidate, golden, rtol=rtol or 0.0, atol=atol or 0.0))
        / 5000
    )


def test_there_is_no_share_over_tolerance_where_none_was_asked_for() -> None:
    metrics = measured([1.0], [2.0])
    assert (metrics.over_tolerance, metrics.tolerance_used, metrics.needed_atol) == (
        None,
        None,
        None,
    )


# Block size


@given(
    st.sampled_from(ALL),
    st.sampled_from(ALL),
    st.integers(0, 200),
    st.tuples(st.integers(1, 20), st.integers(1, 20)),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_block_size_changes_no_bit(
    ours: DType, theirs: DType, count: int, chunks: tuple[int, int], seed: int, wild: bool
) -> None:
    if ours.kind is not theirs.kind:
        theirs = ours
    if wild:
        golden, candidate = random_bits(ours, count, seed), random_bits(theirs, count, seed + 1)
    else:
        golden, candidate = near(ours, count, seed)[0], near(theirs, count, seed)[1]
    with patch.object(sums, "CHUNK", 8):
        first, second = (
            measured(golden, candidate, ours, theirs, block=8 * each, atol=1e-3, rtol=1e-3)
            for each in chunks
        )
    assert repr(first) == repr(second)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int64", "complex64"])
def test_block_size_changes_no_bit_at_full_size(dtype: str) -> None:
    golden, candidate = near(DTYPES[dtype], 5 * sums.CHUNK + 7, seed=18)
    results = {
        repr(measured(golden, candidate, dtype, block=each * sums.CHUNK, atol=1e-3))
        for each in (1, 2, 3, 8)
    }
    assert len(results) == 1


def test_small_chunks_give_the_metrics_of_large_ones() -> None:
    golden, candidate = near(FLOAT64, 1000, seed=19)
    expected = reference(golden.tolist(), candidate.tolist())
    with patch.object(sums, "CHUNK", 4):
        assert not disagreements(measured(golden, candidate, block=12), expected)


# Invariants

SOME = st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=40)


def sides(pairs: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    golden, candidate = zip(*pairs, strict=True)
    return np.array(golden), np.array(candidate)


@given(SOME)
def test_swapping_the_sides_keeps_what_is_symmetric(pairs: list[tuple[float, float]]) -> None:
    golden, candidate = sides(pairs)
    one, other = measured(golden, candidate), measured(candidate, golden)
    for name in ("max_abs", "mean_abs", "rmse", "max_ulp", "max_abs_index"):
        assert getattr(one, name) == getattr(other, name)
    assert one.bias == -other.bias
    assert same(one.one_minus_cosine, other.one_minus_cosine, rel=1e-9, floor=1e-28)


@given(SOME, st.integers(-300, 300))
def test_scaling_both_sides_by_a_power_of_two_scales_the_differences_and_keeps_the_ratios(
    pairs: list[tuple[float, float]], power: int
) -> None:
    golden, candidate = (np.where(np.abs(side) < 1e-200, 0.0, side) for side in sides(pairs))
    one, other = (
        measured(golden, candidate),
        measured(np.ldexp(golden, power), np.ldexp(candidate, power)),
    )
    assert other.max_abs == np.ldexp(one.max_abs, power)
    assert same(other.rel_l2, one.rel_l2)
    assert same(other.one_minus_cosine, one.one_minus_cosine, rel=1e-9, floor=1e-28)
    assert other.max_rel == one.max_rel
    assert other.over_1e3 == one.over_1e3


@given(SOME, st.randoms())
def test_reordering_both_sides_alike_changes_only_the_index(
    pairs: list[tuple[float, float]], random: Any
) -> None:
    shuffled = pairs.copy()
    random.shuffle(shuffled)
    one, other = measured(*sides(pairs)), measured(*sides(shuffled))
    assert (one.max_abs, one.max_rel, one.max_ulp, one.over_1e3) == (
        other.max_abs,
        other.max_rel,
        other.max_ulp,
        other.over_1e3,
    )
    assert same(one.rel_l2, other.rel_l2)
    assert same(one.bias, other.bias, floor=1e-12 * one.mean_abs)


@given(
    st.lists(ANY_FLOAT, max_size=30), st.sampled_from(["float64", "float32", "bfloat16", "float16"])
)
def test_a_tensor_does_not_differ_from_itself(values: list[float], dtype: str) -> None:
    raw = (
        np.array(values)
        if dtype == "float64"
        else round_to(np.array(values, np.float64), DTYPES[dtype])
    )
    metrics = measured(raw, raw, dtype, atol=0.0, rtol=0.0)
    assert (
        metrics.rel_l2,
        metrics.max_abs,
        metrics.max_rel,
        metrics.bias,
        metrics.nonfinite_mismatch,
    ) == (0.0, 0.0, 0.0, 0.0, 0)
    assert (metrics.one_minus_cosine, metrics.over_tolerance) == (0.0, 0.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "complex64"])
def test_the_first_mismatch_that_is_not_finite_is_told_in_any_block(dtype: str) -> None:
    golden = np.ones((3, 40_000), "c8" if dtype == "complex64" else "f4")
    candidate = golden.copy()
    golden[0, 7] = candidate[0, 7] = np.nan  # agrees
    candidate[2, 39_000] = np.inf
    candidate[2, 39_999] = np.nan
    if dtype not in ("float32", "complex64"):
        golden, candidate = (round_to(values, DTYPES[dtype]) for values in (golden, candidate))
    index = measured(golden, candidate, dtype, block=1 << 13).nonfinite_index
    assert index == ((2, 39_000, 0) if dtype == "complex64" else (2, 39_000))


def test_a_relative_error_too_small_for_a_float64_is_not_zero() -> None:
    assert measured([1e10, 0.0], [1e10, 5e-324]).rel_l2 == 5e-324
