"""What statistics prove: never more than exact arithmetic finds of the values, and no less than
they can.
"""

from __future__ import annotations

import math
import sys
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from accucompare.bundle.format.records import Record
from accucompare.compare.judging.bounds import can_bound, judge_bounds, lower_bounds
from accucompare.compare.judging.judge import judge_pair
from accucompare.compare.limits.tolerance import EXACT, Tolerance
from accucompare.compare.measuring.measure import Metrics
from accucompare.compare.rows.rows import Reason, Row, Status, Verdict
from accucompare.numbers import kernel
from accucompare.numbers.digests import digest
from accucompare.numbers.dtypes import DTYPES, DType
from accucompare.numbers.statistics import Statistics, summarize
from accucompare.report.words import verdict_words
from tests.compare.builder import item
from tests.compare.reference import ALL, reference, values_of
from tests.compare.test_measure import measured, near, random_bits
from tests.numbers.both_kernels import both_kernels  # noqa: F401

BOUNDED = ("rel_l2", "one_minus_cosine", "max_abs", "mean_abs", "rmse", "nonfinite_mismatch")
COUNTED = ("elements", "golden_nan", "candidate_nan", "golden_inf", "candidate_inf")


def stored(values: Any, dtype: DType) -> np.ndarray:
    array = item(values=values, dtype=dtype.name).array
    assert array is not None
    return array


def record(raw: np.ndarray, dtype: str = "float64") -> Record:
    """What a capture of statistics keeps of a tensor."""
    return replace(
        item(dtype=dtype, shape=raw.shape).record,
        digest=digest(np.ascontiguousarray(raw)),
        statistics=summarize(raw, DTYPES[dtype]),
    )


def bounds(
    golden: Any, candidate: Any, dtype: str = "float64", candidate_dtype: str | None = None
) -> Metrics:
    ours, theirs = DTYPES[dtype], DTYPES[candidate_dtype or dtype]
    return lower_bounds(
        record(stored(golden, ours), ours.name), record(stored(candidate, theirs), theirs.name)
    )


def broken(
    golden: np.ndarray, candidate: np.ndarray, dtype: str, candidate_dtype: str | None = None
) -> dict[str, tuple[Any, Any]]:
    """The bounds that the values themselves, in exact arithmetic, do not keep."""
    ours, theirs = DTYPES[dtype], DTYPES[candidate_dtype or dtype]
    claimed = lower_bounds(record(golden, ours.name), record(candidate, theirs.name))
    true = reference(values_of(golden, ours), values_of(candidate, theirs))
    found = {
        name: (getattr(claimed, name), true[name])
        for name in COUNTED
        if getattr(claimed, name) != true[name]
    }
    if true["nonfinite_mismatch"] and not claimed.nonfinite_mismatch:
        return found  # not finite in different places, which statistics cannot tell
    for name in BOUNDED:
        if not 0 <= getattr(claimed, name) <= true[name]:
            found[name] = (getattr(claimed, name), true[name])
    if not (claimed.bias == 0 or 0 < claimed.bias / true["bias"] <= 1 or math.isinf(true["bias"])):
        found["bias"] = (claimed.bias, true["bias"])
    return found


# Never more than the truth


@pytest.mark.parametrize("dtype", ALL, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("count", [1, 2, 301])
def test_bounds_of_rounding_noise_hold(dtype: DType, count: int) -> None:
    assert not broken(*near(dtype, count, seed=1), dtype.name)


@pytest.mark.parametrize("dtype", ALL, ids=lambda dtype: dtype.name)
def test_bounds_of_any_bit_patterns_hold(dtype: DType) -> None:
    for seed in range(0, 8, 2):
        count = (1, 2, 10, 300)[seed // 2]
        assert not broken(
            random_bits(dtype, count, seed), random_bits(dtype, count, seed + 1), dtype.name
        )


@pytest.mark.parametrize("ours", ["float64", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("theirs", ["float32", "float16", "float8_e4m3fn"])
def test_bounds_between_different_types_hold(ours: str, theirs: str) -> None:
    assert not broken(
        random_bits(DTYPES[ours], 40, seed=4), random_bits(DTYPES[theirs], 40, seed=5), ours, theirs
    )


EXTREME = st.sampled_from(
    [
        0.0,
        -0.0,
        5e-324,
        -5e-324,
        1e-320,
        1e-300,
        1e-160,
        1e160,
        1e300,
        1.7e308,
        -1.7e308,
        1 + 2**-52,
    ]
)
ANY = EXTREME | st.floats(allow_nan=False, allow_infinity=False) | st.floats(-10, 10)


@given(st.lists(st.tuples(ANY, ANY), max_size=6))
def test_bounds_of_any_float64_values_hold(pairs: list[tuple[float, float]]) -> None:
    golden, candidate = (np.array([pair[side] for pair in pairs], np.float64) for side in (0, 1))
    assert not broken(golden, candidate, "float64")


@given(
    st.lists(ANY, min_size=1, max_size=6),
    st.floats(-2, 2),
    st.floats(-1e-6, 1e-6) | st.floats(-10, 10),
    st.sampled_from([0.0, 1e-16, 1e-13, 1e-9, 1e-3]),
)
def test_bounds_are_kept_by_a_scaled_and_shifted_tensor(
    values: list[float], factor: float, shift: float, noise: float
) -> None:
    """The case of equality: all of d that is not noise is seen by the statistics."""
    golden = np.array(values)
    with np.errstate(all="ignore"):
        candidate = golden * factor + shift
        candidate += noise * np.cos(np.arange(len(values))) * candidate
    assert not broken(golden, candidate, "float64")


@pytest.mark.parametrize("magnitude", [1.0, 1e-310, 1e300])
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e8])
def test_bounds_of_many_values_hold(magnitude: float, offset: float) -> None:
    """Several chunks, and means that dwarf what is about them."""
    rng = np.random.default_rng(0)
    golden = (offset + rng.normal(size=20_000)) * magnitude
    for noise in (0.0, 1e-15, 1e-12, 1e-6):
        candidate = golden * (1 + noise * rng.normal(size=golden.size))
        claimed, true = bounds(golden, candidate), measured(golden, candidate)
        for name in BOUNDED:
            assert 0 <= getattr(claimed, name) <= getattr(true, name), (name, noise)
        assert abs(claimed.bias) <= abs(true.bias)


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "bfloat16", "float16", "complex64", "int32"]
)
def test_the_rounding_of_another_kernel_is_no_difference(dtype: str) -> None:
    values = np.random.default_rng(1).normal(3e4, 1.0, 30_000)
    plain = values.astype(dtype) if dtype == "complex64" else stored(values, DTYPES[dtype])
    for raw in (random_bits(DTYPES[dtype], 30_000, seed=1), plain):
        golden = record(raw, dtype)
        with patch.object(kernel, "_kernel", None):
            candidate = replace(record(raw[::-1].copy(), dtype), digest=golden.digest)
        claimed = lower_bounds(golden, candidate)
        assert [getattr(claimed, name) for name in BOUNDED] == [0] * len(BOUNDED)


# No less than statistics can prove


def test_a_permutation_is_invisible() -> None:
    golden = np.random.default_rng(0).normal(size=1000)
    claimed = bounds(golden, np.random.default_rng(1).permutation(golden))
    assert [getattr(claimed, name) for name in (*BOUNDED, "bias")] == [0] * (len(BOUNDED) + 1)


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
@pytest.mark.parametrize("eps", [1e-3, -1e-3, 0.5])
def test_a_scaled_tensor_is_seen_in_full(dtype: str, eps: float) -> None:
    golden = stored(np.random.default_rng(0).normal(0.3, 1.0, 1000), DTYPES["float64"]).astype(
        dtype
    )
    candidate = (golden * (1 + eps)).astype(dtype)
    assert bounds(golden, candidate, dtype).rel_l2 == pytest.approx(abs(eps), rel=1e-4)


def test_a_shifted_tensor_is_seen_in_full() -> None:
    golden = np.random.default_rng(0).normal(size=1000)
    claimed = bounds(golden, golden - 0.25)
    true = measured(golden, golden - 0.25)
    for name in ("rel_l2", "max_abs", "mean_abs", "rmse", "bias", "one_minus_cosine"):
        assert getattr(claimed, name) == pytest.approx(
            getattr(true, name), rel=1e-8 if name != "one_minus_cosine" else 0.1
        ), name


def test_another_spread_about_a_large_mean_is_seen_though_the_norms_agree() -> None:
    noise = np.random.default_rng(0).normal(size=1000)
    noise -= noise.mean()
    assert bounds(100 + noise, 100 + 2 * noise).rmse == pytest.approx(noise.std(), rel=1e-3)


def test_one_value_off_is_seen_where_it_is_the_largest() -> None:
    golden = np.random.default_rng(0).normal(size=100)
    candidate = golden.copy()
    candidate[7] = 50.0
    claimed = bounds(golden, candidate)
    assert claimed.max_abs == 50.0 - golden.max()
    assert claimed.rmse >= claimed.max_abs / 10 * (1 - 1e-9)
    assert claimed.mean_abs >= claimed.max_abs / 100 * (1 - 1e-9)


def test_a_tensor_that_is_not_zero_is_infinitely_far_from_one_that_is() -> None:
    claimed = bounds(np.zeros(3), [0.0, 0.0, 5e-324])
    assert (claimed.rel_l2, claimed.one_minus_cosine, claimed.max_abs) == (math.inf, 1.0, 5e-324)


def test_integers_of_another_digest_differ_by_one_at_least() -> None:
    assert bounds([1, 2, 3], [3, 2, 1], "int32").max_abs == 1.0


def test_a_norm_beyond_float64_leaves_the_other_bounds() -> None:
    claimed = bounds([1.7e308, 1.7e308, -1.7e308], [1.7e308, 1.7e308, 1.7e308])
    assert claimed.max_abs == math.inf
    assert 0.5 < claimed.rel_l2 < 2 / math.sqrt(3)


def test_differences_beyond_float64_are_claimed_of_nothing_that_is_not() -> None:
    """Here rmse is infinite and the relative error 2; there only the largest difference is
    infinite.
    """
    claimed = bounds([1.7e308] * 4, [-1.7e308] * 4)
    assert (claimed.rmse, claimed.rel_l2) == (math.inf, pytest.approx(1.06, abs=0.01))
    claimed = bounds([1.7e308] + [-2e307] * 15, [-2e307] * 16)
    assert (claimed.max_abs, claimed.rmse) == (math.inf, pytest.approx(sys.float_info.max / 4))


# NaN and Inf


def test_nan_and_inf_on_both_sides_are_taken_to_be_in_the_same_places() -> None:
    claimed = bounds([1.0, math.nan, math.inf, 3.0], [2.0, math.nan, -math.inf, 4.0])
    assert (claimed.compared, claimed.nonfinite_mismatch) == (2, 0)
    assert claimed.bias == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("golden", "candidate", "least"),
    [
        ([1.0, 2.0], [1.0, math.nan], 1),
        ([math.inf, 2.0], [math.nan, 2.0], 1),
        ([math.inf, math.nan, 1.0], [1.0, 1.0, 1.0], 2),
        ([math.inf, math.inf, 1.0, 1.0], [math.nan, 1.0, math.nan, 1.0], 2),
        ([math.nan, 1.0, 1.0, 1.0], [math.inf, math.inf, math.inf, 1.0], 3),
    ],
)
def test_different_counts_of_nan_or_inf_are_a_mismatch(
    golden: list[float], candidate: list[float], least: int
) -> None:
    claimed = bounds(golden, candidate)
    assert (claimed.nonfinite_mismatch, claimed.compared, claimed.rel_l2) == (least, 0, 0.0)


def test_complex_values_are_counted_by_their_parts() -> None:
    assert (
        bounds(
            [1 + 2j, complex(math.nan, 1.0)], [1 + 2j, complex(math.nan, 1.0)], "complex64"
        ).compared
        == 3
    )


# Statistics that nobody measured


NUMBER = (
    st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**308), 10**308)
)


@given(
    st.lists(
        st.tuples(NUMBER, NUMBER, NUMBER, NUMBER, st.integers(0, 9), st.integers(0, 9)),
        min_size=2,
        max_size=2,
    )
)
@example(
    [(0.0, 0.0, 0.0, 0.0, 0, 0), (1.0, -1.0, None, 0.0, 0, 0)]
)  # the smallest above the largest, and no mean
def test_any_statistics_that_a_bundle_may_claim_are_judged(claims: list[Any]) -> None:
    sides = [
        replace(item(dtype="float64", shape=(5,)).record, digest=str(n), statistics=Statistics(*c))
        for n, c in enumerate(claims)
    ]
    metrics = lower_bounds(sides[0], sides[1])
    assert not any(math.isnan(getattr(metrics, name)) for name in (*BOUNDED, "bias"))
    found = judge_bounds(
        sides[0], sides[1], metrics, Tolerance(atol=1.0, rtol=1.0, rel_l2=0.1, cosine=0.9)
    )
    if found.reason is not Reason.NOT_COMPARABLE:
        assert found.over_limit is not None
        assert (found.status is Status.FAIL) == (found.over_limit > 1)


@pytest.mark.parametrize("missing", [{"statistics": None}, {"dtype": "float3"}])
def test_records_without_statistics_or_of_an_unknown_type_are_left_alone(
    missing: dict[str, Any],
) -> None:
    whole = record(np.ones(3))
    assert can_bound(whole, whole)
    assert not can_bound(whole, replace(whole, **missing))
    assert not can_bound(replace(whole, **missing), whole)


# Verdicts


def verdict(
    golden: Any,
    candidate: Any,
    dtype: str = "float64",
    candidate_dtype: str | None = None,
    **limits: float,
) -> Verdict:
    ours, theirs = DTYPES[dtype], DTYPES[candidate_dtype or dtype]
    sides = record(stored(golden, ours), ours.name), record(stored(candidate, theirs), theirs.name)
    return judge_bounds(*sides, lower_bounds(*sides), Tolerance(**limits) if limits else EXACT)


def row(golden: Any, candidate: Any, **limits: float) -> Row:
    known = DTYPES["float64"]
    sides = record(stored(golden, known)), record(stored(candidate, known))
    return Row(*sides, verdict(golden, candidate, **limits), lower_bounds(*sides))


def test_equal_digests_are_identical() -> None:
    assert verdict([1.0, math.nan], [1.0, math.nan], rel_l2=0.0) == Verdict(
        Reason.IDENTICAL, Tolerance(rel_l2=0.0).judged, over_limit=0.0, rel_l2_limit=0.0
    )


def test_equal_bits_of_another_type_are_not_identical() -> None:
    assert verdict([0.0], [0.0], "float16", "bfloat16", rel_l2=0.0).reason is Reason.OK


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"atol": 0.9}, Reason.OVER),
        ({"atol": 1.1}, Reason.OK),
        ({"rtol": 0.09}, Reason.OVER),
        ({"rtol": 0.11}, Reason.OK),
        ({"rel_l2": 0.09}, Reason.OVER),
        ({"rel_l2": 0.11}, Reason.OK),
        ({"rel_l2": 0.11, "atol": 0.9}, Reason.OVER),
        ({"cosine": 1.0}, Reason.OK),
    ],
    ids=str,
)
def test_a_pair_fails_if_a_bound_exceeds_a_limit(limits: dict[str, float], reason: Reason) -> None:
    found = verdict([10.0] * 4, [11.0] * 4, **limits)
    assert (found.reason, found.needed) == (reason, "")
    assert (
        verdict_words.detail(row([10.0] * 4, [11.0] * 4, **limits))
        == "by statistics alone: relative L2 error at least 9.99e-2, largest difference at least"
        " 1.00e+0"
    )


def test_a_cosine_limit_is_exceeded_by_another_ratio_of_mean_and_spread() -> None:
    golden = np.random.default_rng(0).normal(size=1000)
    assert verdict(golden, golden + 3.0, cosine=0.9).reason is Reason.OVER
    assert verdict(golden, golden + 0.1, cosine=0.9).reason is Reason.OK


def test_a_relative_limit_is_exceeded_by_all_together_where_an_outlier_would_allow_each() -> None:
    golden = np.ones(1000)
    golden[0] = 10.0
    candidate = golden * 1.5
    candidate[0] = 10.0  # so that 1 would be allowed by rtol 0.1 there, but nowhere else
    assert verdict(golden, candidate, rtol=0.1).reason is Reason.OVER
    assert verdict(golden, candidate, rtol=0.5).reason is Reason.OK


def test_a_limit_beyond_float64_is_not_exceeded() -> None:
    assert verdict([1.7e308], [-1.7e308], rtol=1e308).over_limit == 0.0


@pytest.mark.parametrize("rest", [[], [1.0, 2.0]], ids=["nothing finite", "some finite"])
def test_as_many_nan_and_inf_on_both_sides_are_no_pass(rest: list[float]) -> None:
    assert (
        verdict([math.inf, *rest], [-math.inf, *rest], rel_l2=1e-4).reason is Reason.NOT_COMPARABLE
    )


def test_a_proven_failure_beside_nan_stays_one() -> None:
    assert verdict([math.nan, 1.0], [math.nan, 2.0], rel_l2=1e-4).reason is Reason.OVER


def test_another_number_of_nan_is_non_finite() -> None:
    found = row([1.0, 2.0, math.inf], [1.0, math.nan, math.inf], atol=1e9)
    assert (found.reason, verdict_words.detail(found), found.verdict.over_limit) == (
        Reason.NON_FINITE,
        "golden has 0 NaN, the candidate 1",
        math.inf,
    )


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_integers_of_another_digest_fail_whatever_the_limits(dtype: str) -> None:
    found = verdict([0, 1], [1, 0], dtype)
    assert (found.reason, found.limit, found.over_limit) == (Reason.OVER, EXACT.judged, math.inf)


@pytest.mark.parametrize(("candidate", "reason"), [([1, 2], Reason.OK), ([1, 3], Reason.OVER)])
def test_integers_of_different_widths_are_judged_by_their_statistics(
    candidate: list[int], reason: Reason
) -> None:
    assert verdict([1, 2], candidate, "int64", "int32").reason is reason


@given(
    st.lists(st.tuples(ANY, ANY), min_size=1, max_size=5),
    st.sampled_from(
        [
            {"atol": 1e-3},
            {"rtol": 1e-3},
            {"atol": 1.0, "rtol": 0.5},
            {"rel_l2": 0.5},
            {"cosine": 0.9},
        ]
    ),
)
def test_what_fails_by_statistics_fails_by_its_values(
    pairs: list[tuple[float, float]], limits: dict[str, float]
) -> None:
    golden, candidate = (np.array([pair[side] for pair in pairs], np.float64) for side in (0, 1))
    tolerance, sides = Tolerance(**limits), (record(golden), record(candidate))
    metrics = measured(golden, candidate, atol=tolerance.atol, rtol=tolerance.rtol)
    if judge_bounds(*sides, lower_bounds(*sides), tolerance).status is Status.FAIL:
        assert judge_pair(*sides, metrics, tolerance).status is Status.FAIL


# Statistics of another tool: in the tensor's own type, without a digest


def in_float32(values: Any) -> Record:
    return record(np.asarray(values, np.float32), "float32")


def of_another_tool(values: Any, **statistics: Any) -> Record:
    ours = in_float32(values)
    assert ours.statistics is not None
    return replace(ours, digest=None, statistics=replace(ours.statistics, **statistics))


def verdict_on(golden: Record, candidate: Record) -> Verdict:
    return judge_bounds(golden, candidate, lower_bounds(golden, candidate), Tolerance(rel_l2=1e-4))


def test_another_tools_sums_in_float32_are_not_taken_for_exact() -> None:
    values = np.linspace(1.0, 2.0, 1000)
    exact = in_float32(values)
    assert exact.statistics is not None
    rounded = of_another_tool(
        values, l2=exact.statistics.l2 * (1 + 1e-6), mean=exact.statistics.mean * (1 - 1e-6)
    )
    found = lower_bounds(exact, rounded)
    assert (found.rmse, found.bias) == (0.0, 0.0)


def test_another_tools_statistics_show_an_error_beyond_their_rounding() -> None:
    values = np.linspace(1.0, 2.0, 1000)
    assert verdict_on(in_float32(values), of_another_tool(values * 1.02)).status is Status.FAIL


def test_without_mean_and_norm_extrema_are_judged() -> None:
    values = np.linspace(-1.0, 2.0, 100)
    alone = {"mean": None, "l2": None}
    assert verdict_on(in_float32(values), of_another_tool(values, **alone)).status is Status.PASS
    assert (
        verdict_on(in_float32(values), of_another_tool(values * 1.5, **alone)).status is Status.FAIL
    )


def test_two_records_without_digest_are_not_identical_for_that() -> None:
    assert verdict_on(of_another_tool([1.0, 2.0]), of_another_tool([1.0, 2.0])).reason is Reason.OK


def test_nan_that_is_not_counted_fails_on_one_side_only_and_is_not_compared_on_both() -> None:
    nan = of_another_tool([1.0, 2.0], min=None, max=None, mean=None, l2=None, nan=1)
    sides = in_float32([1.0, 1.0]), nan
    one = Row(*sides, verdict_on(*sides), lower_bounds(*sides))
    assert (one.reason, verdict_words.detail(one)) == (
        Reason.NON_FINITE,
        "golden has 0 NaN, the candidate at least 1",
    )
    assert verdict_on(in_float32([1.0, math.nan]), nan).reason is Reason.NOT_COMPARABLE
