"""Every reason a row can have, on small bundles."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import accucompare as ac
from accucompare.bundle.format.records import OPERATOR_ROLES, Layout, Record, Role
from accucompare.compare.judging.judge import judge_pair, judge_without_data
from accucompare.compare.limits.tolerance import EXACT, Tolerance
from accucompare.compare.measuring.measure import measure_pair
from accucompare.compare.origins.trace import Trace
from accucompare.compare.rows.rows import STATUS_OF, Reason, Row, Status, Verdict
from accucompare.numbers.dtypes import DTYPES
from accucompare.report.words import limit_words, verdict_words
from accucompare.text import with_article
from tests.compare.builder import Item, compare, in_blocks, item, write

ONES = np.ones(4, np.float32)
OFF = ONES * np.float32(1.5)


def verdict(golden: Item, candidate: Item, **limits: float) -> Verdict:
    """What is said of a pair of records alone."""
    without_data = judge_without_data(golden.record, candidate.record)
    if without_data is not None and (golden.array is None or candidate.array is None):
        return without_data
    ours, theirs = DTYPES[golden.record.dtype], DTYPES[candidate.record.dtype]
    assert golden.array is not None
    assert candidate.array is not None
    metrics = measure_pair(
        in_blocks(golden.array, 1 << 16),
        in_blocks(candidate.array, 1 << 16),
        (ours, theirs),
        golden.record.shape,
        atol=limits.get("atol"),
        rtol=limits.get("rtol"),
    )
    tolerance = EXACT if ours.kind.value in ("int", "bool") else Tolerance(**limits)
    return judge_pair(golden.record, candidate.record, metrics, tolerance)


def only_row(tmp_path: Path, golden: Item, candidate: Item, **options: Any) -> Row:
    (row,) = compare(tmp_path, [golden], [candidate], **options).rows
    return row


def reasons(tmp_path: Path, golden: list[Item], candidate: list[Item], **options: Any) -> list[str]:
    return [row.reason.value for row in compare(tmp_path, golden, candidate, **options).rows]


def test_every_reason_has_a_status_and_a_meaning() -> None:
    assert set(STATUS_OF) == {*verdict_words.MEANING, Reason.OVER} == set(Reason)


@pytest.mark.parametrize(
    "role", [Role.INPUT, Role.OUTPUT, Role.COMPUTED_BUFFER, Role.OP_INPUT, Role.OP_OUTPUT]
)
@pytest.mark.parametrize("fed", [False, True])
def test_what_is_over_its_limit_is_given_a_reason_when_it_is_traced(fed: bool, role: Role) -> None:
    path = "aten.mul.Tensor#0.self" if role in OPERATOR_ROLES else ""
    record = Record(0, 0, "a", 0, role, path, 0, "Linear", ("", 0), (2,), "float32", Layout.STRIDED)
    own = {Role.INPUT: Reason.GLUE, Role.OP_INPUT: Reason.GLUE}.get(role, Reason.INTRODUCED)
    assert Trace(fed).trace(record, Verdict(Reason.OVER)) == Verdict(own)


# One pair


def test_equal_bits_are_identical(tmp_path: Path) -> None:
    row = only_row(tmp_path, item(values=ONES), item(values=ONES.copy()))
    assert (row.reason, row.status) == (Reason.IDENTICAL, Status.PASS)


def test_nan_payloads_and_signs_of_zero_are_no_difference_but_not_identical(tmp_path: Path) -> None:
    golden = np.array([0x7FC00000, 0x80000000], np.uint32).view(np.float32)
    candidate = np.array([0x7FC00001, 0x00000000], np.uint32).view(np.float32)
    assert (
        only_row(tmp_path, item(values=golden), item(values=candidate), atol=0.0).reason
        is Reason.OK
    )


def test_a_small_difference_is_ok(tmp_path: Path) -> None:
    row = only_row(tmp_path, item(values=ONES), item(values=ONES + np.float32(1e-6)))
    assert (row.reason, limit_words.judging_limits(row.verdict.limit)) == (
        Reason.OK,
        "rel_l2 0.0001",
    )


def test_a_difference_over_half_the_limit_is_near(tmp_path: Path) -> None:
    assert only_row(tmp_path, item(values=[1.0]), item(values=[1.5]), atol=0.6).verdict.near
    assert not only_row(tmp_path, item(values=[1.0]), item(values=[1.5]), atol=1.1).verdict.near
    assert not only_row(tmp_path, item(values=[1.0]), item(values=[1.5]), atol=0.4).verdict.near


def test_float32_against_bfloat16_is_compared_by_value_and_is_no_failure(tmp_path: Path) -> None:
    values = np.linspace(-3, 3, 50, dtype=np.float32)
    row = only_row(tmp_path, item(values=values), item(values=values, dtype="bfloat16"))
    assert (row.reason, limit_words.rule(row.verdict.limit)) == (Reason.OK, "default for bfloat16")
    assert row.metrics is not None
    assert 0 < row.metrics.rel_l2 < DTYPES["bfloat16"].rounding


def test_values_that_bfloat16_holds_exactly_are_ok_at_no_tolerance(tmp_path: Path) -> None:
    assert (
        only_row(
            tmp_path, item(values=ONES), item(values=ONES, dtype="bfloat16"), atol=0.0, rtol=0.0
        ).reason
        is Reason.OK
    )


def test_another_shape_fails_with_both_shapes(tmp_path: Path) -> None:
    row = only_row(tmp_path, item(values=np.ones((2, 3))), item(values=np.ones((3, 2))))
    assert (row.reason, row.status) == (Reason.SHAPE, Status.FAIL)
    assert verdict_words.detail(row) == "golden is [2, 3], the candidate [3, 2]"


def test_empty_tensors_of_different_shapes_differ(tmp_path: Path) -> None:
    assert (
        only_row(tmp_path, item(values=np.ones((0, 3))), item(values=np.ones((0, 4)))).reason
        is Reason.SHAPE
    )


def test_empty_tensors_of_one_shape_are_identical(tmp_path: Path) -> None:
    assert (
        only_row(tmp_path, item(values=np.ones((0, 3))), item(values=np.ones((0, 3)))).reason
        is Reason.IDENTICAL
    )


@pytest.mark.parametrize(
    ("golden", "candidate"),
    [
        ("float32", "int32"),
        ("int64", "bool"),
        ("bool", "float16"),
        ("complex64", "float32"),
        ("uint8", "bfloat16"),
    ],
)
def test_another_kind_of_number_fails_with_both_types(
    tmp_path: Path, golden: str, candidate: str
) -> None:
    row = only_row(
        tmp_path, item(values=[1], dtype=golden), item(values=[1], dtype=candidate), atol=10.0
    )
    assert (row.reason, verdict_words.detail(row)) == (
        Reason.DTYPE,
        f"golden is {golden}, the candidate {candidate}",
    )


@pytest.mark.parametrize(
    ("golden", "candidate", "detail"),
    [
        ([1.0, 2.0], [1.0, math.nan], "golden has 0 NaN, the candidate 1; the first at [1]"),
        ([math.nan, 2.0], [1.0, 2.0], "golden has 1 NaN, the candidate 0; the first at [0]"),
        ([1.0, 2.0], [math.inf, 2.0], "golden has 0 Inf, the candidate 1; the first at [0]"),
        ([math.inf, 2.0], [-math.inf, 2.0], "NaN or Inf in 1 different places; the first at [0]"),
        ([math.nan, 1.0], [1.0, math.nan], "NaN or Inf in 2 different places; the first at [0]"),
    ],
)
def test_nonfinite_on_one_side_fails_whatever_the_tolerance(
    tmp_path: Path, golden: list[float], candidate: list[float], detail: str
) -> None:
    row = only_row(tmp_path, item(values=golden), item(values=candidate), atol=1e300, rtol=1e300)
    assert (row.reason, row.status, row.verdict.over_limit) == (
        Reason.NON_FINITE,
        Status.FAIL,
        math.inf,
    )
    assert verdict_words.detail(row) == f"{detail}; begins here"
    assert row.verdict.needed == ""


def test_nan_and_inf_in_the_same_places_are_equal_and_counted(tmp_path: Path) -> None:
    row = only_row(
        tmp_path,
        item(values=[math.nan, math.inf, 1.0]),
        item(values=[math.nan, math.inf, 1.25]),
        atol=0.3,
    )
    assert row.reason is Reason.OK
    assert row.metrics is not None
    assert (row.metrics.golden_nan, row.metrics.candidate_inf, row.metrics.compared) == (1, 1, 1)


def test_saturation_is_told_from_infinity(tmp_path: Path) -> None:
    golden = item(values=np.array([1e5, 1.0], np.float32))
    saturated = only_row(tmp_path, golden, item(values=np.array([65504, 1.0], np.float16)))
    overflowed = only_row(tmp_path, golden, item(values=np.array([np.inf, 1.0], np.float16)))
    assert saturated.reason is Reason.INTRODUCED
    assert (
        verdict_words.detail(saturated)
        == "1 value(s) saturated at float16's largest, 65504, where golden is larger"
    )
    assert (overflowed.reason, verdict_words.detail(overflowed)) == (
        Reason.NON_FINITE,
        "golden has 0 Inf, the candidate 1; the first at [0]; begins here",
    )


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64", "bool"])
def test_integers_and_booleans_are_exact_whatever_the_tolerance(tmp_path: Path, dtype: str) -> None:
    row = only_row(
        tmp_path,
        item(values=[0, 1], dtype=dtype),
        item(values=[0, 0], dtype=dtype),
        atol=1e9,
        rtol=1e9,
    )
    assert (
        row.reason,
        limit_words.judging_limits(row.verdict.limit),
        row.verdict.over_limit,
        row.verdict.needed,
    ) == (Reason.INTRODUCED, "exact", math.inf, "")
    assert verdict_words.detail(row) == "1 of 2 differ, and none may"


def test_integers_of_different_widths_are_compared_by_value(tmp_path: Path) -> None:
    assert (
        only_row(
            tmp_path,
            item(values=[2**40, 1], dtype="int64"),
            item(values=[2**40, 1], dtype="uint64"),
        ).reason
        is Reason.OK
    )


@pytest.mark.parametrize(
    "layout", ["sparse", "meta", "quantized", "nested", "batched", "unreadable"]
)
def test_values_without_data_are_listed_as_not_comparable(tmp_path: Path, layout: str) -> None:
    golden = item("fc", dtype="float32", layout=layout, shape=(2, 3))
    row = only_row(tmp_path, golden, golden)
    assert (row.reason, row.status) == (Reason.NOT_COMPARABLE, Status.NOT_COMPARED)
    assert verdict_words.detail(row) == f"{with_article(layout)} float32 tensor"


def test_meta_tensors_of_different_shapes_fail(tmp_path: Path) -> None:
    sides = [item(dtype="float32", layout="meta", shape=shape) for shape in ((2,), (3,))]
    assert only_row(tmp_path, *sides).reason is Reason.SHAPE


def test_strings_are_compared_by_digest(tmp_path: Path) -> None:
    one, other = (item(layout="opaque", detail=f"str {text!r}", digest=text * 32) for text in "ab")
    assert only_row(tmp_path, one, one).reason is Reason.IDENTICAL
    row = only_row(tmp_path, one, other)
    assert (row.reason, verdict_words.detail(row)) == (
        Reason.INTRODUCED,
        "golden is str 'a', the candidate str 'b'",
    )


def test_a_value_of_another_sort_fails(tmp_path: Path) -> None:
    row = only_row(tmp_path, item(values=ONES), item(dtype="float32", layout="sparse", shape=(4,)))
    assert (row.reason, verdict_words.detail(row)) == (
        Reason.DTYPE,
        "golden is float32, the candidate a sparse float32 tensor",
    )


def test_a_python_number_is_compared_with_a_tensor_of_no_dimensions(tmp_path: Path) -> None:
    assert (
        only_row(tmp_path, item(values=2.0, layout="scalar"), item(values=2.0)).reason
        is Reason.IDENTICAL
    )


def test_all_limits_must_be_kept(tmp_path: Path) -> None:
    sides = item(values=[1.0, 100.0]), item(values=[1.1, 100.0])
    assert only_row(tmp_path, *sides, limits=ac.Tolerance(rel_l2=1e-2)).status is Status.PASS
    assert (
        only_row(tmp_path, *sides, limits=ac.Tolerance(rel_l2=1e-2), atol=1e-2).status
        is Status.FAIL
    )


def test_garbage_against_an_all_zero_golden_fails_whatever_the_relative_limits(
    tmp_path: Path,
) -> None:
    sides = item(values=np.zeros(4)), item(values=np.full(4, 1e-30))
    for limits in (
        {"rtol": 1e300},
        {"limits": ac.Tolerance(rel_l2=1e300)},
        {"limits": ac.Tolerance(cosine=0.5)},
        {},
    ):
        row = only_row(tmp_path, *sides, **limits)
        assert (row.status, row.verdict.needed) == (Status.FAIL, ""), limits
    assert only_row(tmp_path, *sides, atol=1e-20).status is Status.PASS


def test_a_permutation_of_the_values_fails(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    assert only_row(tmp_path, item(values=values), item(values=values[::-1])).status is Status.FAIL


@pytest.mark.parametrize(
    ("limits", "needed"),
    [
        ({"atol": 0.0}, "atol 1.26e-1"),
        ({"atol": 0.01, "rtol": 0.1}, "atol 2.51e-2"),
        ({"rtol": 0.1}, "rtol 1.26e-1"),
        ({"limits": ac.Tolerance(rel_l2=0.01)}, "rel_l2 5.60e-2"),
        ({"limits": ac.Tolerance(cosine=0.99999, rel_l2=0.01)}, "rel_l2 5.60e-2, cosine 0.9988"),
    ],
)
def test_the_smallest_limit_that_would_pass_is_told_with_three_digits(
    tmp_path: Path, limits: dict[str, float], needed: str
) -> None:
    row = only_row(tmp_path, item(values=[1.0, 2.0]), item(values=[1.1251, 2.0]), **limits)
    assert (row.reason, row.verdict.needed) == (Reason.INTRODUCED, needed)


SMALL = st.floats(-1e6, 1e6)
EXTREME = st.sampled_from([5e-324, -5e-324, 1e-300, 1e300, -1.7e308, 1.7e308, 1 + 2**-52])


@given(
    st.lists(st.tuples(SMALL | EXTREME, SMALL | EXTREME), min_size=1, max_size=6),
    st.sampled_from(
        [
            {"atol": 0.0},
            {"rtol": 1e-9},
            {"rel_l2": 0.0},
            {"cosine": 1.0},
            {"atol": 1e-3, "rtol": 1e-2},
        ]
    ),
    st.sampled_from([1.0, 1e-3, 1e-8, 1e-12, 1e-16]),
)
def test_the_smallest_limit_that_is_told_does_pass(
    pairs: list[tuple[float, float]], limits: dict[str, float], mix: float
) -> None:
    left = np.array([pair[0] for pair in pairs])
    with np.errstate(all="ignore"):
        right = left + mix * np.array([pair[1] for pair in pairs])
    assume(np.isfinite(right).all())
    golden, candidate = item(values=left, digest="a"), item(values=right, digest="b")
    needed = verdict(golden, candidate, **limits).needed
    assume(needed)
    name, value = needed.split()
    assert verdict(golden, candidate, **{**limits, name: float(value)}).status is Status.PASS, (
        needed
    )


def test_where_no_cosine_limit_would_pass_none_is_told(tmp_path: Path) -> None:
    assert (
        only_row(
            tmp_path,
            item(values=[1.0, 0.0]),
            item(values=[0.0, 1.0]),
            limits=ac.Tolerance(cosine=0.9),
        ).verdict.needed
        == ""
    )


def test_where_the_difference_is_beyond_float64_no_limit_is_told(tmp_path: Path) -> None:
    assert (
        only_row(tmp_path, item(values=[1.7e308]), item(values=[-1.7e308]), atol=1.0).verdict.needed
        == ""
    )


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(1e-6, 1.0))
def test_a_row_passes_exactly_if_no_more_than_its_tolerance_is_used(
    golden: float, candidate: float, limit: float
) -> None:
    for name in ("atol", "rtol", "rel_l2"):
        found = verdict(
            item(values=[golden], digest="a"), item(values=[candidate], digest="b"), **{name: limit}
        )
        assert found.over_limit is not None
        assert (found.status is Status.PASS) == (found.over_limit <= 1.0)


# Where an error comes from


def block(
    fc_in: Any = ONES,
    fc_out: Any = ONES,
    act_in: Any = ONES,
    act_out: Any = ONES,
    out: Any = ONES,
    root_in: Any = ONES,
) -> list[Item]:
    """A root module with the children ``fc`` and ``act``, in execution order."""
    return [
        item("", root_in, role="input", path="0", parent=None, type="Net"),
        item("fc", fc_in, role="input", path="0"),
        item("fc", fc_out),
        item("act", act_in, role="input", path="0"),
        item("act", act_out),
        item("", out, parent=None, type="Net"),
    ]


SAME = "identical"


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        (block(), [SAME] * 6),
        (block(fc_out=OFF), [SAME, SAME, "introduced", SAME, SAME, SAME]),
        (
            block(fc_out=OFF, act_in=OFF, act_out=OFF, out=OFF),
            [SAME, SAME, "introduced", "inherited", "inherited", "inherited"],
        ),
        (
            block(act_in=OFF, act_out=OFF, out=OFF),
            [SAME, SAME, SAME, "glue", "inherited", "inherited"],
        ),
        (block(fc_in=OFF), [SAME, "glue", SAME, SAME, SAME, SAME]),
        (block(out=OFF), [SAME, SAME, SAME, SAME, SAME, "glue"]),
        (
            block(root_in=OFF, fc_in=OFF, fc_out=OFF),
            ["inputs differ", "inherited", "inherited", SAME, SAME, SAME],
        ),
    ],
    ids=["same", "module", "module and on", "between", "before", "after", "inputs"],
)
def test_where_an_error_comes_from(
    tmp_path: Path, candidate: list[Item], expected: list[str]
) -> None:
    assert reasons(tmp_path, block(), candidate) == expected


def test_the_first_divergence_is_the_first_row_that_fails(tmp_path: Path) -> None:
    comparison = compare(tmp_path, block(), block(act_in=OFF, act_out=OFF))
    assert comparison.first_divergence is not None
    assert comparison.first_divergence.place == "act input.0"


def test_an_error_that_nan_brought_is_inherited(tmp_path: Path) -> None:
    candidate = block(fc_in=ONES * np.float32(np.nan), fc_out=OFF)
    assert reasons(tmp_path, block(), candidate)[1:3] == ["non-finite", "inherited"]


def test_an_error_in_another_call_or_step_or_rank_is_not_inherited(tmp_path: Path) -> None:
    def calls(first: Any, second: Any, **place: int) -> list[Item]:
        return [
            item("fc", first, role="input", path="0", parent=("", 0)),
            item("fc", ONES),
            item("fc", ONES, role="input", path="0", parent=("", 0), **{"call": 1, **place}),
            item("fc", second, **{"call": 1, **place}),
        ]

    for place in ({}, {"call": 0, "step": 1}):
        assert (
            reasons(tmp_path, calls(ONES, ONES, **place), calls(OFF, OFF, **place))[3]
            == "introduced"
        )


def test_a_module_without_inputs_inherits_from_its_children(tmp_path: Path) -> None:
    def net(child: Any, out: Any) -> list[Item]:
        return [item("fc", ONES, role="input"), item("fc", child), item("", out, parent=None)]

    assert reasons(tmp_path, net(ONES, ONES), net(OFF, OFF)) == [
        "identical",
        "introduced",
        "inherited",
    ]
    assert reasons(tmp_path, net(ONES, ONES), net(ONES, OFF)) == ["identical", "identical", "glue"]


def test_without_its_parent_an_input_is_inherited_if_anything_was_over_before(
    tmp_path: Path,
) -> None:
    def parts(first: Any) -> list[Item]:
        return [
            item("block.0.fc", first, parent=("block.0", 0)),
            item("block.1.fc", OFF if first is OFF else ONES, role="input", parent=("block.1", 0)),
        ]

    assert reasons(tmp_path, parts(ONES), parts(OFF)) == ["introduced", "inherited"]
    golden = [item("block.1.fc", ONES, role="input", parent=("block.1", 0))]
    assert reasons(
        tmp_path, golden, [item("block.1.fc", OFF, role="input", parent=("block.1", 0))]
    ) == ["glue"]


def test_origins_leave_verdicts_that_pass_as_they_are() -> None:
    passed = Verdict(Reason.OK)
    assert Trace().trace(item(values=ONES, role=Role.INPUT.value).record, passed) is passed


@pytest.mark.parametrize("apart", [{"rank": 1}, {"step": 1}])
def test_an_error_is_not_inherited_from_another_step_or_rank_by_a_call_whose_parent_was_left_out(
    tmp_path: Path, apart: dict[str, int]
) -> None:
    inside = ("p", 0)  # of which there is no record
    golden, candidate = (
        [
            item("p.a", np.ones(3) * factor, parent=inside),
            item("p.a", np.ones(3), parent=inside, **apart),
            item("p.b", np.ones(3) * factor, role="input", parent=inside, **apart),
        ]
        for factor in (1, 2)
    )
    paths = [
        write(tmp_path / str(number), side, ranks=1 + apart.get("rank", 0))
        for number, side in enumerate((golden, candidate))
    ]
    assert [row.reason for row in ac.diff(*paths).rows] == [
        Reason.INTRODUCED,
        Reason.IDENTICAL,
        Reason.GLUE,
    ]


@pytest.mark.parametrize(
    ("candidate", "passes"),
    [
        ([11, 9, 10, 12, 8, 10, 10, 10], True),
        ([9, 11, 12, 8, 11, 9, 11, 9], True),
        ([20, 0, 20, 0, 20, 0, 10, 10], False),
    ],
)
def test_counts_that_rounding_changes_are_judged_by_how_far(
    tmp_path: Path, candidate: list[int], passes: bool
) -> None:
    """Such as the tokens of each expert: nearly all are others in the baseline, too."""
    sides = {"golden": [10] * 8, "candidate": candidate, "baseline": [11, 9, 11, 9, 11, 9, 10, 10]}
    paths = {
        name: write(tmp_path / name, [item(values=np.array(values, "int64"))])
        for name, values in sides.items()
    }
    assert ac.diff(paths["golden"], paths["candidate"], baseline=paths["baseline"]).passed is passes
