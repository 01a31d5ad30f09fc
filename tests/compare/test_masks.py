"""Masks: equal where both sides have one, whatever number it is; hiding nothing of the other
values, and no difference of their own.
"""

from __future__ import annotations

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import accucompare as ac
from accucompare.compare.measuring.measure import Metrics
from accucompare.compare.origins.describing import differing_choices
from accucompare.compare.rows.rows import Reason, Row
from accucompare.compare.shape_facts import ErrorShape, Pattern, PatternKind
from accucompare.numbers import sums
from accucompare.numbers.dtypes import DTYPES, DType, round_to
from accucompare.report.words import limit_words, verdict_words
from tests.combinations import pairwise
from tests.compare.builder import compare, item, write
from tests.compare.reference import disagreements, reference, values_of
from tests.compare.test_diff import without_values
from tests.compare.test_measure import measured
from tests.numbers.both_kernels import both_kernels  # noqa: F401

F16, BF16, F32, F64 = (
    -65504.0,
    -3.3895313892515355e38,
    -3.4028234663852886e38,
    -1.7976931348623157e308,
)
NAMES = ("float64", "float32", "bfloat16", "float16")
#: Numbers that are masks in each type, as NumPy, PyTorch and scores that were added make them.
MASKS = {
    "float64": (F64, F64 * 0.995, F32, BF16, F16, -math.inf),
    "float32": (F32, F32 * 0.995, BF16, F16, -math.inf),
    "bfloat16": (BF16, BF16 * 0.995, -65536.0, -math.inf),
    "float16": (F16, F16 + 32 * 19, -math.inf),
}
#: And numbers that are none, though they are large.
NUMBERS = {
    "float64": (F64 * 0.985, 2 * F32, -1e9, -65505.0, 65504.0, math.inf, math.nan, -F64),
    "float32": (F32 * 0.985, -1e9, -65503.0, -65505.0, 65504.0, math.inf, math.nan, -F32),
    "bfloat16": (BF16 * 0.985, -1e9, -66048.0, 65536.0, math.inf, math.nan, -BF16),
    "float16": (F16 * 0.985, -64832.0, 65504.0, math.inf, math.nan),
}
PAIRS = list(itertools.product(NAMES, NAMES))


def stored(values: Any, dtype: DType) -> np.ndarray:
    values = np.asarray(values, np.float64)
    if dtype.ml_dtype:
        return round_to(values, dtype)
    with np.errstate(over="ignore"):
        return values.astype(dtype.storage)


def apart_from_masks(
    golden: np.ndarray, candidate: np.ndarray, ours: DType, theirs: DType
) -> dict[str, Any]:
    """What exact arithmetic finds of what is not masked on both sides, told value by value in
    float64.
    """
    sides = list(zip(values_of(golden, ours), values_of(candidate, theirs), strict=True))
    kept = [
        pair for pair in sides if not (masked(pair[0], ours.name) and masked(pair[1], theirs.name))
    ]
    expected = reference([pair[0] for pair in kept], [pair[1] for pair in kept])
    infinite = {
        "golden_inf": sum(math.isinf(pair[0]) for pair in sides),
        "candidate_inf": sum(math.isinf(pair[1]) for pair in sides),
    }
    return {**expected, **infinite, "elements": len(sides), "masked": len(sides) - len(kept)}


def masked(value: float, dtype: str) -> bool:
    lowest, others = {
        "float64": (F64, (F32, BF16, F16)),
        "float32": (F32, (BF16, F16)),
        "bfloat16": (BF16, (-65536.0,)),
        "float16": (F16, ()),
    }[dtype]
    return value == -math.inf or value <= 0.99 * lowest or value in others


def some_values(dtype: str) -> st.SearchStrategy[float]:
    ordinary = st.floats(-8, 8)
    return st.one_of(
        ordinary, ordinary, ordinary, st.sampled_from(MASKS[dtype]), st.sampled_from(NUMBERS[dtype])
    )


@st.composite
def tensors(draw: st.DrawFn) -> tuple[DType, DType, np.ndarray, np.ndarray]:
    """Two tensors with masks in the same places, in others, and large numbers that are no masks."""
    ours, theirs = draw(st.sampled_from(PAIRS))
    both = st.tuples(st.sampled_from(MASKS[ours]), st.sampled_from(MASKS[theirs]))
    pairs = draw(
        st.lists(st.one_of(both, st.tuples(some_values(ours), some_values(theirs))), max_size=40)
    )
    golden, candidate = ([pair[side] for pair in pairs] for side in (0, 1))
    return (
        DTYPES[ours],
        DTYPES[theirs],
        stored(golden, DTYPES[ours]),
        stored(candidate, DTYPES[theirs]),
    )


@given(tensors())
def test_metrics_are_those_of_what_is_not_masked_on_both_sides(
    drawn: tuple[DType, DType, np.ndarray, np.ndarray],
) -> None:
    ours, theirs, golden, candidate = drawn
    found = disagreements(
        measured(golden, candidate, ours, theirs, masks=True),
        apart_from_masks(golden, candidate, ours, theirs),
    )
    for name in ("over_1e3", "over_5e3"):  # sharp limits: a last bit may decide
        found.pop(name, None)
    assert not found


@given(tensors())
def test_as_many_are_masked_with_the_sides_swapped(
    drawn: tuple[DType, DType, np.ndarray, np.ndarray],
) -> None:
    ours, theirs, golden, candidate = drawn
    one, other = (
        measured(golden, candidate, ours, theirs, masks=True),
        measured(candidate, golden, theirs, ours, masks=True),
    )
    assert (one.masked, one.compared, one.nonfinite_mismatch) == (
        other.masked,
        other.compared,
        other.nonfinite_mismatch,
    )


@given(tensors(), st.integers(1, 6), st.integers(1, 6))
def test_neither_blocks_nor_threads_change_a_bit(
    drawn: tuple[DType, DType, np.ndarray, np.ndarray], chunks: int, segment: int
) -> None:
    ours, theirs, golden, candidate = drawn
    with patch.object(sums, "CHUNK", 4), ThreadPoolExecutor(2) as pool:
        whole = measured(golden, candidate, ours, theirs, block=64, masks=True, atol=1e-3)
        with patch.object(sums, "SEGMENT", 4 * chunks * segment):
            parts = measured(
                golden,
                candidate,
                ours,
                theirs,
                block=4 * chunks,
                masks=True,
                atol=1e-3,
                run=pool.map,
            )
    assert repr(whole) == repr(parts)


@given(st.sampled_from(PAIRS), st.lists(st.tuples(st.floats(-8, 8), st.floats(-8, 8)), max_size=20))
def test_looking_for_masks_changes_nothing_where_there_are_none(
    names: tuple[str, str], pairs: list[tuple[float, float]]
) -> None:
    ours, theirs = (DTYPES[name] for name in names)
    golden, candidate = (
        stored([pair[0] for pair in pairs], ours),
        stored([pair[1] for pair in pairs], theirs),
    )
    plain, looked = (
        measured(golden, candidate, ours, theirs, masks=masks) for masks in (False, True)
    )
    assert plain.masked == looked.masked == 0
    assert looked.rel_l2 == pytest.approx(plain.rel_l2, rel=1e-12)
    assert looked.one_minus_cosine == pytest.approx(plain.one_minus_cosine, rel=1e-9, abs=1e-28)


# Judged, as a diff finds it


def row_of(
    tmp_path: Path,
    golden: Any,
    candidate: Any,
    dtype: str = "float32",
    candidate_dtype: str = "",
    **options: Any,
) -> Row:
    sides = [
        [item("a", stored(values, DTYPES[name]), name)]
        for values, name in ((golden, dtype), (candidate, candidate_dtype or dtype))
    ]
    return compare(tmp_path, *sides, **options).rows[0]


def metrics_of(row: Row) -> Metrics:
    assert row.metrics is not None
    return row.metrics


@pytest.mark.parametrize(
    ("dtype", "candidate_dtype"), [pair for pair in PAIRS if pair[0] != pair[1]]
)
def test_the_lowest_numbers_of_two_types_are_equal_and_the_rest_is_measured(
    tmp_path: Path, dtype: str, candidate_dtype: str
) -> None:
    lowest = {"float64": F64, "float32": F32, "bfloat16": BF16, "float16": F16}
    row = row_of(
        tmp_path,
        [1.0, lowest[dtype], 2.0],
        [1.0, lowest[candidate_dtype], 2.5],
        dtype,
        candidate_dtype,
    )
    metrics = metrics_of(row)
    assert (metrics.compared, metrics.masked, metrics.max_abs, metrics.max_abs_index) == (
        2,
        1,
        0.5,
        (2,),
    )
    assert metrics.rel_l2 == pytest.approx(0.5 / math.sqrt(5))
    assert metrics.saturated == metrics.nonfinite_mismatch == 0


@pytest.mark.parametrize("dtype", NAMES)
def test_minus_infinity_is_equal_to_the_lowest_number(tmp_path: Path, dtype: str) -> None:
    lowest = MASKS[dtype][0]
    for golden, candidate in ((lowest, -math.inf), (-math.inf, lowest)):
        row = row_of(tmp_path, [1.0, golden], [1.0, candidate], dtype)
        assert (row.reason, metrics_of(row).masked, metrics_of(row).rel_l2) == (Reason.OK, 1, 0.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_scores_added_to_a_mask_leave_it_a_mask(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2, 4, 16, 16)) * 10
    causal = np.triu(np.ones((16, 16), bool), 1)
    golden = scores + np.where(causal, F32, 0.0)
    candidate = scores * (1 + 1e-4 * rng.normal(size=scores.shape)) + np.where(
        causal, MASKS[dtype][0], 0.0
    )
    row = row_of(tmp_path, golden, candidate, "float32", dtype, limits=ac.Tolerance(rel_l2=0.01))
    assert row.reason is Reason.OK
    assert metrics_of(row).masked == 2 * 4 * int(causal.sum())
    assert (
        metrics_of(row).rel_l2 == pytest.approx(1e-4, rel=0.2)
        if dtype == "float32"
        else 1e-5 < metrics_of(row).rel_l2 < 5e-3
    )


@pytest.mark.parametrize(("dtype", "candidate_dtype"), PAIRS)
def test_tensors_of_nothing_but_masks_are_equal(
    tmp_path: Path, dtype: str, candidate_dtype: str
) -> None:
    golden, candidate = [MASKS[dtype][0]] * 3, [-math.inf] * 3
    metrics = metrics_of(row := row_of(tmp_path, golden, candidate, dtype, candidate_dtype))
    assert (row.reason, metrics.compared, metrics.masked, metrics.rel_l2) == (Reason.OK, 0, 3, 0.0)


@pytest.mark.parametrize(
    ("dtype", "candidate_dtype", "other"), pairwise(NAMES, NAMES, (0.0, math.inf, math.nan))
)
def test_what_is_masked_on_one_side_only_fails(
    tmp_path: Path, dtype: str, candidate_dtype: str, other: float
) -> None:
    lowest = MASKS[dtype][0]
    for mask in (lowest, -math.inf):
        row = row_of(tmp_path, [lowest, mask, 1.0], [-math.inf, other, 1.0], dtype, candidate_dtype)
        assert row.reason is (
            Reason.NON_FINITE if math.isinf(mask) or not math.isfinite(other) else Reason.INTRODUCED
        )
        assert metrics_of(row).masked == 1


@pytest.mark.parametrize("dtype", NAMES)
def test_the_largest_numbers_and_plus_infinity_are_no_masks(tmp_path: Path, dtype: str) -> None:
    row = row_of(tmp_path, [-MASKS[dtype][0], 1.0, -math.inf], [math.inf, 1.0, -math.inf], dtype)
    assert (row.reason, metrics_of(row).nonfinite_mismatch) == (Reason.NON_FINITE, 1)


def test_saturation_beside_masks_is_told(tmp_path: Path) -> None:
    row = row_of(
        tmp_path, [1e5, -1e5, F32, 1.0], [65504.0, -65504.0, -math.inf, 1.0], "float32", "float16"
    )
    assert (metrics_of(row).saturated, metrics_of(row).masked) == (2, 1)
    assert row.reason is Reason.INTRODUCED


def test_a_lowest_number_of_fp8_is_an_ordinary_value(tmp_path: Path) -> None:
    row = row_of(
        tmp_path, [-448.0, 1.0, -math.inf], [-448.0, 1.0, -448.0], "float32", "float8_e4m3fn"
    )
    assert metrics_of(row).masked == 0
    assert row.reason is Reason.NON_FINITE


def test_a_number_that_other_values_are_below_is_no_mask(tmp_path: Path) -> None:
    """A mask is the smallest value of its tensor, or it would mask nothing."""
    metrics = metrics_of(row_of(tmp_path, [F16, -1e6, 1.0], [F16, -1e6, 2.0]))
    assert (metrics.masked, metrics.compared) == (0, 3)


def test_identical_masks_stay_identical(tmp_path: Path) -> None:
    for verify in (False, True):
        row = row_of(
            tmp_path, [F32, -math.inf, 1.0], [F32, -math.inf, 1.0], work=ac.Work(verify=verify)
        )
        assert (row.reason, metrics_of(row).compared, metrics_of(row).masked) == (
            Reason.IDENTICAL,
            2,
            0,
        )


def test_tensors_that_can_hold_no_mask_take_the_compiled_pass(tmp_path: Path) -> None:
    looks = []
    with patch(
        "accucompare.compare.measuring.blocks.is_masked",
        side_effect=lambda values, dtype: looks.append(dtype) or np.zeros(values.shape, bool),
    ):
        row_of(tmp_path, [1.0, -65503.0], [1.0, -65505.0])
        row_of(tmp_path, [1.0, F32], [1.0, -65505.0])
        assert not looks
        row_of(tmp_path, [1.0, F32], [1.0, F16])
        assert looks


def test_a_float64_baseline_of_a_masked_tensor_tells_what_rounding_makes(tmp_path: Path) -> None:
    """As where a module returns its scores: golden in float32, the candidate in float32, the
    baseline in float64.
    """
    rng = np.random.default_rng(1)
    scores, hidden = rng.normal(size=(4, 64, 64)), np.triu(np.ones((64, 64), bool), 1)
    single = [scores * (1 + 3e-7 * rng.normal(size=scores.shape)) for _ in range(2)]
    golden, candidate = (np.where(hidden, F32, each + 0.0) for each in single)
    bundles = [
        write(tmp_path / name, [item("a", stored(values, DTYPES[dtype]), dtype)])
        for name, values, dtype in (
            ("golden", golden, "float32"),
            ("candidate", np.where(hidden, -math.inf, candidate), "float32"),
            ("baseline", np.where(hidden, F64, scores), "float64"),
        )
    ]
    row = ac.diff(*bundles[:2], baseline=bundles[2]).rows[0]
    assert (row.reason, limit_words.rule(row.verdict.limit)) == (Reason.OK, "baseline")
    assert row.verdict.excess == pytest.approx(math.sqrt(2), rel=0.1)
    assert row.baseline_error == pytest.approx(3e-7, rel=0.1)


def test_a_fault_beside_masks_is_seen_against_a_float64_baseline(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    scores, hidden = rng.normal(size=(8, 32)), np.arange(32) > 20
    sides = (
        ("golden", 1.0, F32, "float32"),
        ("candidate", 1.001, -math.inf, "float32"),
        ("baseline", 1.0 + 1e-8, F64, "float64"),
    )
    bundles = [
        write(
            tmp_path / name,
            [item("a", stored(np.where(hidden, mask, scores * scale), DTYPES[dtype]), dtype)],
        )
        for name, scale, mask, dtype in sides
    ]
    row = ac.diff(*bundles[:2], baseline=bundles[2]).rows[0]
    assert row.reason is Reason.INTRODUCED
    assert metrics_of(row).rel_l2 == pytest.approx(1e-3, rel=1e-3)


def test_a_culprits_shape_is_of_the_values_beside_its_masks(tmp_path: Path) -> None:
    scores, hidden = (
        np.random.default_rng(3).normal(size=(32, 32)),
        np.triu(np.ones((32, 32), bool), 1),
    )
    comparison = compare(
        tmp_path,
        [item("a", np.where(hidden, F32, scores).astype(np.float32))],
        [item("a", np.where(hidden, -np.inf, 1.5 * scores).astype(np.float32))],
    )
    (culprit,) = comparison.culprits
    factor = Pattern(PatternKind.SCALE, low=pytest.approx(1.5))
    assert culprit.shape == ErrorShape(patterns=(factor,))


# In every report


def test_masked_positions_are_counted_in_table_and_json(tmp_path: Path) -> None:
    golden, candidate = (
        [item("a", np.float32([F32, 1.0, 2.0]))],
        [item("a", np.float32([-math.inf, 1.0, 2.0]))],
    )
    comparison = compare(tmp_path, golden, candidate)
    assert comparison.to_dataframe()["masked"][0] == 1
    assert '"masked": 1' in comparison.to_json(tmp_path / "x.json").read_text()


def test_a_mismatch_beside_masks_says_that_they_are_equal(tmp_path: Path) -> None:
    row = row_of(tmp_path, [F32, F32, 1.0, 2.0], [-math.inf, -math.inf, math.nan, 2.0])
    assert "2 masked on both sides are equal; the first at [2]" in verdict_words.detail(row)


# By statistics alone


def by_statistics(
    tmp_path: Path, golden: Any, candidate: Any, candidate_dtype: str = "float32"
) -> Row:
    number = len(list(tmp_path.iterdir()))
    sides = [
        without_values(
            write(tmp_path / f"{number}{name}", [item("a", stored(values, DTYPES[dtype]), dtype)])
        )
        for name, values, dtype in (
            ("golden", golden, "float32"),
            ("candidate", candidate, candidate_dtype),
        )
    ]
    return ac.diff(*sides).rows[0]


@pytest.mark.parametrize(
    ("golden", "candidate", "dtype"),
    [
        ([F32, 1.0, 2.0], [BF16, 1.0, 2.0], "bfloat16"),
        ([F32, 1.0, 2.0], [-math.inf, 1.0, 2.0], "float32"),
        ([-math.inf, 1.0, 2.0], [F16, 1.0, 2.0], "float16"),
        ([F32, F32, -math.inf], [-math.inf] * 3, "float64"),
        ([F32, 1.0, 2.0], [F32, 1.0, 3.0], "float32"),
    ],
)
def test_statistics_of_masks_prove_no_difference_and_no_agreement(
    tmp_path: Path, golden: Any, candidate: Any, dtype: str
) -> None:
    row = by_statistics(tmp_path, golden, candidate, dtype)
    assert (row.reason, row.metrics, row.by_statistics) == (Reason.NOT_COMPARABLE, None, False)
    assert "may be masks" in verdict_words.detail(row)


def test_statistics_tell_identical_masks_and_masks_on_one_side_only(tmp_path: Path) -> None:
    assert by_statistics(tmp_path, [F32, 1.0], [F32, 1.0]).reason is Reason.IDENTICAL
    assert by_statistics(tmp_path, [F32, 1.0], [2.0, 1.0]).reason is Reason.INTRODUCED
    assert by_statistics(tmp_path, [3.0, 1.0], [-math.inf, 1.0]).reason is Reason.NON_FINITE


def test_statistics_tell_nan_beside_masks(tmp_path: Path) -> None:
    row = by_statistics(tmp_path, [F32, 1.0, 2.0], [-math.inf, 1.0, math.nan])
    assert (row.reason, metrics_of(row).nonfinite_mismatch) == (Reason.NON_FINITE, 1)


def test_infinities_alone_are_bounded_as_ever(tmp_path: Path) -> None:
    row = by_statistics(tmp_path, [-math.inf, 1.0, 2.0], [-math.inf, 1.0, 4.0])
    assert (row.reason, metrics_of(row).max_abs) == (Reason.INTRODUCED, 2.0)


# A boolean mask against a floating one


ATTENDED = np.tril(np.ones((2, 1, 6, 6), bool))


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("swapped", [False, True])
def test_a_boolean_mask_equals_a_floating_one_that_says_the_same(
    tmp_path: Path, dtype: str, swapped: bool
) -> None:
    for mask in MASKS[dtype]:
        sides = (
            [item("a", ATTENDED)],
            [item("a", stored(np.where(ATTENDED, 0.0, mask), DTYPES[dtype]), dtype)],
        )
        row = compare(tmp_path, *(reversed(sides) if swapped else sides)).rows[0]
        assert (row.reason, metrics_of(row).masked, metrics_of(row).compared) == (
            Reason.OK,
            2 * 15,
            2 * 21,
        )
        assert "masks that say the same" in verdict_words.detail(row)


def test_the_blocks_of_a_large_mask_are_all_looked_at(tmp_path: Path) -> None:
    attended = np.ones((3, sums.BLOCK), bool)
    numbers = np.zeros(attended.shape, np.float32)
    numbers[2, -1] = -math.inf
    assert (
        compare(tmp_path, [item("a", attended)], [item("a", numbers)]).rows[0].reason
        is Reason.INTRODUCED
    )
    attended[2, -1] = False
    assert (
        compare(tmp_path, [item("a", attended)], [item("a", numbers)]).rows[0].reason is Reason.OK
    )


@pytest.mark.parametrize(
    "numbers",
    [
        np.where(ATTENDED, 0.0, 1.0),
        np.where(ATTENDED, 0.0, -1e9),
        np.where(ATTENDED, 0.0, math.nan),
        np.where(ATTENDED, 0.0, F32)[..., :-1],  # of no shape that the other could have
    ],
)
def test_other_floating_tensors_are_of_another_kind_than_a_boolean_one(
    tmp_path: Path, numbers: np.ndarray
) -> None:
    row = compare(tmp_path, [item("a", ATTENDED)], [item("a", numbers.astype(np.float32))]).rows[0]
    assert (row.reason, row.metrics) == (Reason.DTYPE, None)


def test_a_scalar_is_no_mask(tmp_path: Path) -> None:
    sides = (
        [item("a", np.array(True), layout="scalar")],
        [item("a", np.array(0.0), layout="scalar")],
    )
    assert compare(tmp_path, *sides).rows[0].reason is Reason.DTYPE


@pytest.mark.parametrize(
    ("numbers", "different"),
    [
        (np.where(ATTENDED, F32, 0.0), ATTENDED.size),  # the other way round
        (np.where(ATTENDED, 1.0, F32), int(ATTENDED.sum())),  # adds to what it lets through
        (np.where(ATTENDED, 0.0, math.inf), int((~ATTENDED).sum())),
        (
            np.where(np.roll(ATTENDED, 1, -1), 0.0, F32),
            int((np.roll(ATTENDED, 1, -1) != ATTENDED).sum()),
        ),
        (np.zeros(ATTENDED.shape), int((~ATTENDED).sum())),  # lets everything through
    ],
)
def test_masks_of_two_kinds_differ_where_one_alone_lets_through(
    tmp_path: Path, numbers: np.ndarray, different: int
) -> None:
    for golden, candidate in itertools.permutations(
        [item("a", ATTENDED), item("a", numbers.astype(np.float32))]
    ):
        found = compare(tmp_path, [golden], [candidate])
        assert found.exit_code == 1
        assert (
            f"let through other positions: {different} of {ATTENDED.size} differ"
            in verdict_words.detail(found.rows[0])
        )
        assert differing_choices(found.culprits[0].row) == different


def test_masks_of_two_kinds_are_compared_in_the_shape_that_both_fill(tmp_path: Path) -> None:
    padding = np.array([[True, True, False], [True, False, False]])[:, None, None, :]
    numbers = np.where(np.broadcast_to(padding, (2, 1, 3, 3)), 0.0, F32).astype(np.float32)
    row = compare(tmp_path, [item("a", padding)], [item("a", numbers)]).rows[0]
    assert (row.reason, metrics_of(row).masked, metrics_of(row).elements) == (Reason.OK, 9, 18)
    numbers[1, 0, 2, 1] = 0.0
    assert (
        compare(tmp_path, [item("a", padding)], [item("a", numbers)]).rows[0].reason
        is Reason.INTRODUCED
    )
