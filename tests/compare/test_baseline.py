"""Errors as multiples of what a baseline makes, and what rounding explains of them."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import accucompare as ac
from accucompare.api import Comparison
from accucompare.compare.judging import small_pairs
from accucompare.compare.limits.baseline import Expected, excess, excess_limit, floor, ratio_limit
from accucompare.compare.measuring.measure import Metrics
from accucompare.compare.measuring.small import PlacedPair
from accucompare.compare.rows.rows import Reason, Row, Status
from accucompare.errors import UsageError
from accucompare.report.words import limit_words, verdict_words
from tests.compare.builder import Item, item, set_fields, write

DRAW = np.random.default_rng(5)
VALUES = DRAW.normal(size=400).astype(np.float32)
NOISE = DRAW.normal(size=400)


def off(error: float, values: np.ndarray = VALUES, noise: np.ndarray = NOISE) -> np.ndarray:
    """The values with a relative L2 error of this size."""
    return values + noise * (error * np.linalg.norm(values) / np.linalg.norm(noise))


def compare(
    tmp_path: Path, golden: Any, candidate: Any, baseline: Any, **options: Any
) -> Comparison:
    """Compare bundles of one record, or of several, each."""
    number = len(list(tmp_path.iterdir()))
    sides = []
    for name, side in (("golden", golden), ("candidate", candidate), ("baseline", baseline)):
        sides.append(
            write(tmp_path / f"{name}{number}", side if isinstance(side, list) else [side])
        )
    return ac.diff(sides[0], sides[1], baseline=sides[2], **options)


def only_row(tmp_path: Path, *sides: Item, **options: Any) -> Row:
    (row,) = compare(tmp_path, *sides, **options).rows
    return row


# Numbers


@pytest.mark.parametrize("elements", [*range(1, 15), 20, 50, 100, 1000])
def test_the_limit_of_a_ratio_is_the_root_of_an_f_quantile(elements: int) -> None:
    ratio = mpmath.mpf(ratio_limit(elements)) ** 2
    half = mpmath.mpf(elements) / 2
    above = 1 - mpmath.betainc(half, half, 0, ratio / (1 + ratio), regularized=True)
    assert float(above) == pytest.approx(1e-3, rel=1e-3)


def test_the_limit_of_a_ratio_of_many_elements_is_that_of_a_normal_number() -> None:
    for elements in (10**5, 10**9):  # by the delta method, ln of the ratio has the variance 1 / n
        assert math.log(ratio_limit(elements)) == pytest.approx(
            3.0902323 / math.sqrt(elements), rel=1e-4
        )


def test_ratios_of_rounding_errors_exceed_their_limit_once_in_a_thousand() -> None:
    draw = np.random.default_rng(0)
    for elements in (1, 4, 10, 100):
        ratios = np.sqrt(draw.chisquare(elements, 200_000) / draw.chisquare(elements, 200_000))
        assert np.mean(ratios > ratio_limit(elements)) == pytest.approx(1e-3, rel=0.25)


def test_limits_shrink_with_the_number_of_elements_and_end_at_the_slack() -> None:
    limits = [excess_limit(elements, "bfloat16") for elements in (0, *range(1, 200), 10**4, 10**12)]
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] == pytest.approx(excess_limit(10**15, "float16"), rel=1e-5)
    assert excess_limit(100, "float32") > excess_limit(100, "bfloat16")


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("bfloat16", 2.0**-9),
        ("float16", 2.0**-12),
        ("float32", 2.0**-23),
        ("float64", 2.0**-52),
        ("complex64", 2.0**-23),
    ],
)
def test_the_floor_is_a_share_of_the_unit_roundoff(dtype: str, expected: float) -> None:
    assert floor(dtype) == expected


def test_rounding_to_a_half_type_errs_by_about_its_floor() -> None:
    values = np.random.default_rng(0).normal(size=100_000)
    for dtype, rounded in (
        ("float16", values.astype(np.float16)),
        ("bfloat16", item(values=values, dtype="bfloat16").array),
    ):
        if dtype == "bfloat16":
            rounded = (rounded.astype(np.uint32) << 16).view(np.float32)  # type: ignore[union-attr]
        error = np.linalg.norm(rounded - values) / np.linalg.norm(values)
        assert 0.5 < error / floor(dtype) < 1.5


@given(st.floats(1e-2, 1.0), st.floats(1e-2, 1.0), st.floats(1e-3, 1e3))
def test_scaling_both_errors_leaves_the_excess_as_it_is(
    candidate: float, baseline: float, scale: float
) -> None:
    before = excess(Metrics(rel_l2=candidate), Expected(baseline), "float32")
    assert excess(
        Metrics(rel_l2=candidate * scale), Expected(baseline * scale), "float32"
    ) == pytest.approx(before)


def test_where_golden_is_all_zeros_the_excess_is_one_of_absolute_errors() -> None:
    of = Metrics(rel_l2=math.inf, rmse=6.0)
    assert excess(of, Expected(math.inf, 2.0), "float32") == 3.0
    assert excess(of, Expected(0.0, 0.0), "float32") == math.inf
    assert excess(Metrics(rel_l2=0.0), Expected(math.inf, 2.0), "float32") == 0.0


# Verdicts


def test_an_error_is_told_as_a_multiple_of_the_baselines(tmp_path: Path) -> None:
    row = only_row(
        tmp_path,
        item(values=VALUES),
        item(values=off(3e-3)),
        item(values=off(1e-3, noise=NOISE[::-1])),
    )
    assert row.verdict.excess == pytest.approx(3.0, rel=1e-3)
    assert row.baseline_error == pytest.approx(1e-3, rel=1e-3)
    most = excess_limit(400, "float64")
    assert row.verdict.over_limit == pytest.approx(3.0 / most, rel=1e-3)
    assert row.verdict.rel_l2_limit == pytest.approx(most * 1e-3, rel=1e-3)
    assert (
        row.reason,
        limit_words.rule(row.verdict.limit),
        limit_words.judging_limits(row.verdict.limit),
    ) == (Reason.OK, "baseline", f"excess {most:.3g}")
    assert row.verdict.needed.startswith("excess 3")


def test_the_excess_that_is_needed_is_rounded_up(tmp_path: Path) -> None:
    row = only_row(tmp_path, item(values=VALUES), item(values=off(0.3)), item(values=off(1e-3)))
    assert row.verdict.excess is not None
    assert (
        row.verdict.excess
        <= float(row.verdict.needed.removeprefix("excess "))
        <= row.verdict.excess * 1.01
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_an_error_over_the_limit_fails_and_one_below_passes(tmp_path: Path, dtype: str) -> None:
    error = 1e-4 if dtype == "float32" else 0.02
    golden, baseline = item(values=VALUES), item(values=off(error), dtype=dtype)
    most = excess_limit(400, dtype)
    for share, status in ((0.9, Status.PASS), (1.1, Status.FAIL)):
        row = only_row(
            tmp_path, golden, item(values=off(error * most * share), dtype=dtype), baseline
        )
        assert (row.status, row.verdict.over_limit) == (status, pytest.approx(share, rel=0.02))


@pytest.mark.parametrize(
    ("dtype", "fed", "ceiling"),
    [("bfloat16", True, 0.125), ("bfloat16", False, 0.5), ("float32", True, 1e-3)],
)
def test_an_error_far_beyond_rounding_is_no_rounding_even_if_the_baseline_has_it_too(
    tmp_path: Path, dtype: str, fed: bool, ceiling: float
) -> None:
    golden = write(tmp_path / "golden", [item(values=VALUES)])
    feed = (
        {
            "capture": {
                "feed": {
                    "golden": "golden",
                    "identity": ac.open_bundle(golden).identity(),
                    "not_fed": [],
                }
            }
        }
        if fed
        else {}
    )
    for share, answer in ((0.9, "rounding"), (1.2, "not sure")):
        error = off(ceiling * share)
        sides = [
            write(tmp_path / f"{name}{share}", [item(values=error, dtype=dtype)], **feed)
            for name in ("candidate", "baseline")
        ]
        comparison = ac.diff(golden, sides[0], baseline=sides[1])
        assert (comparison.answer.value, comparison.passed) == (answer, answer == "rounding")
    (row,) = comparison.rows
    assert row.verdict.beyond
    assert (
        "far beyond rounding, and so is the baseline: it may have the fault too"
        in comparison.conclusion
    )
    if fed:
        assert (
            row.status,
            limit_words.rule(row.verdict.limit),
            limit_words.judging_limits(row.verdict.limit),
        ) == (Status.FAIL, "ceiling", f"rel_l2 {ceiling:g}")
    else:  # rounding may have changed a choice, in the baseline, too
        assert (row.status, comparison.trouble != "") == (Status.PASS, True)


@pytest.mark.parametrize(("spacings", "fails"), [(0, False), (1, False), (3, True)])
def test_numbers_next_to_zero_are_off_by_the_types_spacing(
    tmp_path: Path, spacings: int, fails: bool
) -> None:
    """Values of 3e-8, which float16 takes for 0 or 6e-8, on a device and in the baseline."""
    golden = (VALUES * 3e-8).astype(np.float32)
    baseline = golden.astype(np.float16)
    candidate = baseline + np.float16(spacings * 2.0**-24)
    row = only_row(tmp_path, *(item(values=each) for each in (golden, candidate, baseline)))
    assert (row.status is Status.FAIL, row.verdict.beyond) == (fails, False)


@pytest.mark.parametrize(("size", "fails"), [(1e-38, False), (1e-36, True)])
def test_numbers_too_small_to_be_normal_may_be_flushed_to_zero(
    tmp_path: Path, size: float, fails: bool
) -> None:
    golden = (VALUES * size).astype(np.float32)
    row = only_row(tmp_path, *(item(values=each) for each in (golden, 0 * golden, golden)))
    assert (row.status is Status.FAIL) is fails


@pytest.mark.parametrize(
    ("error", "words"),
    [(0.9, "is off by rel_l2 0.9, far"), (2.4e3, "is off by 2.4e+03 times golden's own size, far")],
)
def test_an_error_larger_than_golden_is_told_by_goldens_size(
    tmp_path: Path, error: float, words: str
) -> None:
    """As of a gradient that is 0 but for rounding."""
    golden = write(tmp_path / "golden", [item(values=VALUES)])
    sides = [
        write(tmp_path / name, [item(values=off(error))]) for name in ("candidate", "baseline")
    ]
    assert words in ac.diff(golden, sides[0], baseline=sides[1]).trouble


def test_what_a_module_copies_is_held_to_its_own_rounding(tmp_path: Path) -> None:
    golden = write(
        tmp_path / "golden", [item("embed", VALUES, type="Embedding"), item(values=VALUES)]
    )
    own = {"model": {"classes": {"Embedding": ["torch.nn.modules.sparse"]}}}
    feed = {
        "capture": {
            "feed": {
                "golden": "golden",
                "identity": ac.open_bundle(golden).identity(),
                "not_fed": [],
            }
        }
    }
    records = [item("embed", off(1e-5), type="Embedding"), item(values=off(1e-5))]
    sides = [write(tmp_path / name, records, **feed, **own) for name in ("candidate", "baseline")]
    assert [row.status for row in ac.diff(golden, sides[0], baseline=sides[1]).rows] == [
        Status.FAIL,
        Status.PASS,
    ]
    # of the same name, and it computes
    adapter = {"model": {"classes": {"Embedding": ["peft.tuners.lora.layer"]}}}
    sides = [
        write(tmp_path / f"{name}2", records, **feed, **adapter)
        for name in ("candidate", "baseline")
    ]
    assert ac.diff(golden, sides[0], baseline=sides[1]).conclusion == "rounding"


def test_a_baseline_closer_than_rounding_counts_as_the_floor(tmp_path: Path) -> None:
    row = only_row(
        tmp_path,
        item(values=VALUES),
        item(values=off(1e-2), dtype="bfloat16"),
        item(values=VALUES, dtype="bfloat16"),
    )
    assert row.baseline_error is not None
    assert row.baseline_error < floor("bfloat16")
    assert row.metrics is not None
    assert row.verdict.excess == row.metrics.rel_l2 / floor("bfloat16")


def test_the_same_bits_as_golden_are_identical_at_no_excess(tmp_path: Path) -> None:
    row = only_row(
        tmp_path,
        item(values=VALUES),
        item(values=VALUES),
        item(values=off(1e-3).astype(np.float32)),
    )
    assert (row.reason, row.verdict.excess, row.verdict.over_limit) == (Reason.IDENTICAL, 0.0, 0.0)


def test_a_permutation_of_all_three_changes_nothing(tmp_path: Path) -> None:
    order = np.random.default_rng(1).permutation(400)
    sides = VALUES, off(3e-3).astype(np.float32), off(1e-3, noise=NOISE[::-1]).astype(np.float32)
    before = only_row(tmp_path, *(item(values=side) for side in sides))
    after = only_row(tmp_path, *(item(values=side[order]) for side in sides))
    assert after.verdict.excess == pytest.approx(before.verdict.excess, rel=1e-12)


def test_what_the_user_gave_judges_and_the_excess_is_shown_beside_it(tmp_path: Path) -> None:
    sides = item(values=VALUES), item(values=off(0.3)), item(values=off(1e-3))
    row = only_row(tmp_path, *sides, limits=ac.Tolerance(rel_l2=0.5))
    assert (
        row.status,
        limit_words.judging_limits(row.verdict.limit),
        limit_words.rule(row.verdict.limit),
    ) == (Status.PASS, "rel_l2 0.5", "given for all layers")
    assert row.verdict.excess == pytest.approx(300.0, rel=1e-2)


def test_a_rule_of_a_file_judges_the_rows_that_it_applies_to(tmp_path: Path) -> None:
    rules = tmp_path / "limits.toml"
    rules.write_text('[[rule]]\nlayer = "a"\nrel_l2 = 0.5\n')
    sides = ([item(name, values) for name in "ab"] for values in (VALUES, off(0.3), off(1e-3)))
    rows = compare(tmp_path, *sides, limits=ac.Tolerance(tolerances=rules)).rows
    assert [(row.status, limit_words.rule(row.verdict.limit)) for row in rows] == [
        (Status.PASS, f"{rules}, rule 1"),
        (Status.FAIL, "baseline"),
    ]


def test_an_all_zero_golden_is_judged_by_absolute_errors(tmp_path: Path) -> None:
    zeros = item(values=np.zeros(100))
    sides = [item(values=np.full(100, value)) for value in (1e-9, 2e-9, 1e-3)]
    assert only_row(tmp_path, zeros, sides[1], sides[0]).status is Status.PASS
    assert only_row(tmp_path, zeros, sides[2], sides[0]).status is Status.FAIL
    row = only_row(tmp_path, zeros, sides[0], zeros)
    assert (row.status, row.verdict.needed, row.verdict.excess) == (Status.FAIL, "", math.inf)


def test_nonfinite_on_one_side_fails_though_the_baseline_has_it_too(tmp_path: Path) -> None:
    broken = item(values=np.where(np.arange(400) == 7, np.nan, VALUES))
    found = compare(tmp_path, item(values=VALUES), broken, broken)
    (row,), (culprit,) = found.rows, found.culprits
    assert (row.reason, row.verdict.excess, row.baseline_error) == (Reason.NON_FINITE, None, None)
    assert culprit.hints[0].startswith("golden's own code is not finite there in this precision")
    (alone,) = compare(tmp_path, item(values=VALUES), broken, item(values=off(1e-6))).culprits
    assert "in this precision" not in " ".join(alone.hints)


def test_a_baseline_that_is_not_finite_where_golden_is_cannot_judge(tmp_path: Path) -> None:
    broken = item(values=np.where(np.arange(400) == 7, np.inf, VALUES))
    row = only_row(tmp_path, item(values=VALUES), item(values=off(1e-6).astype(np.float32)), broken)
    assert (row.status, row.verdict.excess) == (Status.PASS, None)
    assert (
        limit_words.rule(row.verdict.limit)
        == "default for float32; the baseline has NaN or Inf where golden has not, or the other way"
        " round"
    )


def test_empty_tensors_pass(tmp_path: Path) -> None:
    empty = item(values=np.ones((0, 3)))
    assert only_row(tmp_path, empty, empty, empty).status is Status.PASS


@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_integers_are_exact_where_the_baseline_has_goldens(tmp_path: Path, dtype: str) -> None:
    golden, other = item(values=[1, 0, 1], dtype=dtype), item(values=[1, 1, 1], dtype=dtype)
    assert only_row(tmp_path, golden, other, golden).status is Status.FAIL
    assert only_row(tmp_path, golden, golden, other).status is Status.PASS


def test_integers_that_rounding_changes_in_the_baseline_may_change_as_often(tmp_path: Path) -> None:
    golden = np.arange(1000) % 8
    changed = [np.where(np.arange(1000) % step == 1, 7 - golden, golden) for step in (100, 90, 3)]
    few, alike, many = (item(values=side) for side in changed)
    row = only_row(tmp_path, item(values=golden), alike, few)
    assert (row.status, limit_words.rule(row.verdict.limit)) == (Status.PASS, "baseline")
    assert (
        verdict_words.detail(row)
        == "12 of 1000 differ; so do 10 in the baseline, by rounding alone"
    )
    assert only_row(tmp_path, item(values=golden), many, few).status is Status.FAIL


def test_large_integers_that_differ_by_little_are_counted_too(tmp_path: Path) -> None:
    golden = np.arange(1000) + 10**9
    few, many = (item(values=golden + (np.arange(1000) < count)) for count in (2, 500))
    row = only_row(tmp_path, item(values=golden), many, few)
    assert (row.status, verdict_words.detail(row)) == (
        Status.FAIL,
        "500 of 1000 differ; so do 2 in the baseline, by rounding alone",
    )


def test_a_half_type_that_is_much_closer_than_the_baseline_is_over_precise(tmp_path: Path) -> None:
    sides = [item(values=off(error), dtype="bfloat16") for error in (0.01, 0.1)]
    row = only_row(tmp_path, item(values=VALUES), *sides)
    assert (row.reason, row.status) == (Reason.OVER_PRECISE, Status.PASS)
    assert (
        only_row(tmp_path, item(values=VALUES), *(side for side in reversed(sides))).status
        is Status.FAIL
    )


@pytest.mark.parametrize(
    ("values", "dtype", "errors"),
    [
        (VALUES[:10], "bfloat16", (0.01, 0.1)),
        (VALUES, "float32", (0.001, 0.1)),
        (VALUES, "bfloat16", (0, 1e-3)),
    ],
)
def test_few_elements_or_other_types_or_errors_below_the_floor_prove_nothing(
    tmp_path: Path, values: np.ndarray, dtype: str, errors: tuple[float, float]
) -> None:
    sides = [item(values=off(error, values, NOISE[: len(values)]), dtype=dtype) for error in errors]
    assert only_row(tmp_path, item(values=values), *sides).reason is Reason.OK


# Which record of the baseline


def test_a_record_that_the_baseline_lacks_is_judged_without_it(tmp_path: Path) -> None:
    sides = [
        [item(name, side) for name in names]
        for names, side in (("ab", VALUES), ("ab", off(1e-3)), ("a", off(1e-3)))
    ]
    rows = compare(tmp_path, *sides).rows
    assert [limit_words.rule(row.verdict.limit) for row in rows] == [
        "baseline",
        "default for float32; the baseline has no such record",
    ]
    assert [row.baseline_error is None for row in rows] == [False, True]


def test_a_record_of_another_shape_or_a_wider_dtype_cannot_judge(tmp_path: Path) -> None:
    names, near = "abcd", off(1e-6).astype(np.float32)
    golden = [item(name, VALUES) for name in names]
    candidate = [item(name, near, "bfloat16" if name == "b" else "float32") for name in names]
    baseline = [item("a", near[:3]), *(item(name, VALUES) for name in "bcd")]
    rules = [
        limit_words.rule(row.verdict.limit)
        for row in compare(tmp_path, golden, candidate, baseline).rows
    ]
    assert rules[:2] == [
        "default for float32; the baseline's shape is [3]",
        "default for bfloat16; the baseline's dtype is float32",
    ]


def test_a_wider_dtype_than_the_baselines_is_a_missing_cast_judged_by_the_baselines_rounding(
    tmp_path: Path,
) -> None:
    def row(error: float) -> Row:
        dtypes = {"float32": off(error), "bfloat16": VALUES}
        candidate, baseline = (
            [item("a", values, dtype), item("b", VALUES, "bfloat16")]
            for dtype, values in dtypes.items()
        )
        return compare(tmp_path, [item(name, VALUES) for name in "ab"], candidate, baseline).rows[0]

    right, wrong = row(1e-6), row(0.1)
    assert (right.reason, verdict_words.detail(right)) == (
        Reason.OVER_PRECISE,
        "float32, where the baseline computes in bfloat16",
    )
    assert (
        limit_words.judging_limits(right.verdict.limit)
        == f"excess {excess_limit(400, 'bfloat16'):.3g}"
    )
    assert (wrong.status, wrong.verdict.excess) == (
        Status.FAIL,
        pytest.approx(0.1 / floor("bfloat16"), rel=1e-3),
    )


def test_rows_that_the_baseline_lacks_are_counted(tmp_path: Path) -> None:
    near = off(1e-6).astype(np.float32)

    def lacking(names: str) -> Comparison:
        sides = (
            [item(name, values) for name in kept]
            for values, kept in ((VALUES, "abc"), (near, "abc"), (near, names))
        )
        return compare(tmp_path, *sides)

    some, most = lacking("ab"), lacking("a")
    (finding,) = (finding for finding in some.preflight if finding.serious)
    assert (
        finding.message
        == "the baseline has no record of 1 of 3 compared rows (such as c output), which are judged"
        " without it"
    )
    assert some.conclusion.endswith("; 1 row judged without the baseline")
    assert most.conclusion == "not sure: the baseline judges 1 of 3 compared rows only"
    assert (lacking("abc").without_baseline, lacking("abc").preflight) == (0, [])


def test_the_baseline_is_looked_up_by_goldens_names_and_else_by_new_ones(tmp_path: Path) -> None:
    golden, candidate = [item("old", VALUES)], [item("new", off(1e-3))]
    for name in ("old", "new"):
        (row,) = compare(tmp_path, golden, candidate, [item(name, off(1e-3))], map="old=new").rows
        assert limit_words.rule(row.verdict.limit) == "baseline"


def test_float64_tells_the_rounding_of_golden_and_candidate_of_one_dtype(tmp_path: Path) -> None:
    sides = item(values=VALUES), item(values=off(2e-6).astype(np.float32)), item(values=off(1e-6))
    assert only_row(tmp_path, *sides).verdict.excess == pytest.approx(2.0, rel=1e-1)


def test_statistics_of_a_candidate_are_judged_without_the_baseline(tmp_path: Path) -> None:
    golden, candidate, baseline = (
        write(tmp_path / name, [item(values=VALUES)])
        for name in ("golden", "candidate", "baseline")
    )
    line = candidate / "rank0/step0.jsonl"
    set_fields(candidate, member=None, digest="0" * 32)
    assert json.loads(line.read_text())["member"] is None
    (row,) = ac.diff(golden, candidate, baseline=baseline).rows
    assert (
        limit_words.rule(row.verdict.limit)
        == "default for float32; values to compare with the baseline were not recorded"
    )


def test_equal_digests_of_candidate_and_baseline_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    measure = small_pairs.measure_small

    def counted(golden: bytes, candidate: bytes, pairs: list[PlacedPair]) -> list[Metrics | None]:
        calls.extend(pairs)
        return measure(golden, candidate, pairs)

    monkeypatch.setattr(small_pairs, "measure_small", counted)
    row = only_row(tmp_path, item(values=VALUES), item(values=off(1e-3)), item(values=off(1e-3)))
    assert (len(calls), row.verdict.excess) == (1, 1.0)


# Noise


def repeated(tmp_path: Path, candidate: np.ndarray, again: np.ndarray, **options: Any) -> Row:
    number = len(list(tmp_path.iterdir()))
    golden = write(tmp_path / f"golden{number}", [item(values=VALUES)])
    path = write(tmp_path / f"candidate{number}", [item(values=candidate.astype(np.float32))])
    write(path / "repeat1", [item(values=again.astype(np.float32))])
    (row,) = ac.diff(golden, path, **options).rows
    return row


def test_a_row_that_does_not_agree_with_itself_is_never_a_pass(tmp_path: Path) -> None:
    golden = write(tmp_path / "golden", [item("a", VALUES), item("b", VALUES)])
    runs = [
        [item("a", VALUES), item("b", off(1e-2, noise=noise).astype(np.float32))]
        for noise in (NOISE, NOISE[::-1])
    ]
    candidate = write(tmp_path / "npu", runs[0])
    write(candidate / "repeat1", runs[1])
    comparison = ac.diff(golden, candidate)
    assert not comparison.passed
    assert comparison.conclusion.startswith(
        "not sure: 1 row(s) are not deterministic, the first b output (two runs of the candidate"
        " differ by 1.44e-02 from each other)"
    )


def test_an_error_no_larger_than_what_two_runs_differ_by_is_not_deterministic(
    tmp_path: Path,
) -> None:
    row = repeated(tmp_path, off(1e-2), off(1e-2, noise=NOISE[::-1]))
    assert (row.reason, row.status) == (Reason.NOT_DETERMINISTIC, Status.NOT_COMPARED)
    assert row.noise == pytest.approx(1e-2 * math.sqrt(2), rel=0.1)
    assert (
        verdict_words.detail(row)
        == f"two runs of the candidate differ by {row.noise:.2e} from each other"
    )


def test_an_error_larger_than_the_noise_fails(tmp_path: Path) -> None:
    row = repeated(tmp_path, off(1e-2), off(1e-2) * (1 + 1e-4))
    assert (row.reason, row.noise) == (Reason.INTRODUCED, pytest.approx(1e-4, rel=1e-2))


def test_two_runs_of_the_same_bits_have_no_noise(tmp_path: Path) -> None:
    assert repeated(tmp_path, off(1e-2), off(1e-2)).noise == 0.0


def test_an_output_that_collapsed_to_jitter_is_no_noise(tmp_path: Path) -> None:
    row = repeated(tmp_path, NOISE * 1e-6, NOISE[::-1] * 1e-6)
    jitter = np.linalg.norm(NOISE - NOISE[::-1]) * 1e-6 / np.linalg.norm(VALUES)
    assert (row.reason, row.noise) == (Reason.INTRODUCED, pytest.approx(jitter, rel=1e-3))


def of_golden(
    tmp_path: Path, golden: np.ndarray, again: np.ndarray, candidate: np.ndarray, **options: Any
) -> Row:
    path = write(tmp_path / "golden", [item(values=golden.astype(np.float32))])
    write(path / "repeat1", [item(values=again.astype(np.float32))])
    (row,) = ac.diff(
        path, write(tmp_path / "candidate", [item(values=candidate.astype(np.float32))]), **options
    ).rows
    return row


@pytest.mark.parametrize(
    "again",
    [NOISE, np.zeros_like(NOISE), np.full_like(NOISE, np.nan)],
    ids=["noise", "zeros", "nan"],
)
def test_a_value_that_golden_itself_does_not_hold_steady_is_no_culprit(
    tmp_path: Path, again: np.ndarray
) -> None:
    row = of_golden(tmp_path, VALUES, again, VALUES * 1e6)
    assert (row.reason, row.status) == (Reason.NOT_DETERMINISTIC, Status.NOT_COMPARED)
    assert verdict_words.detail(row).startswith("two captures of golden differ by ")


def test_an_error_larger_than_what_goldens_two_captures_differ_by_fails(tmp_path: Path) -> None:
    assert of_golden(tmp_path, VALUES, VALUES * (1 + 1e-6), off(1e-2)).reason is Reason.INTRODUCED


def test_a_limit_that_the_user_gave_judges_also_where_golden_is_not_steady(tmp_path: Path) -> None:
    assert (
        of_golden(tmp_path, VALUES, NOISE, off(1e-2), limits=ac.Tolerance(rel_l2=1e-3)).reason
        is Reason.INTRODUCED
    )


def test_two_runs_that_are_not_finite_in_other_places_explain_nothing(tmp_path: Path) -> None:
    row = repeated(tmp_path, off(1e-2), np.where(np.arange(400) == 7, np.nan, off(1e-2)))
    assert (row.reason, row.noise) == (Reason.INTRODUCED, math.inf)


def test_noise_within_the_limit_is_ok_and_shown(tmp_path: Path) -> None:
    row = repeated(tmp_path, off(1e-6), off(1e-6, noise=NOISE[::-1]))
    assert (row.reason, row.noise is not None) == (Reason.OK, True)


def test_noise_over_a_limit_that_the_user_gave_fails_and_is_no_culprit(tmp_path: Path) -> None:
    row = repeated(
        tmp_path, off(1e-2), off(1e-2, noise=NOISE[::-1]), limits=ac.Tolerance(rel_l2=1e-4)
    )
    assert row.status is Status.FAIL
    assert "two runs of the candidate differ" in verdict_words.detail(row)


# What is refused


def fed_with(golden: Path) -> dict[str, Any]:
    return {
        "capture": {
            "feed": {
                "golden": str(golden),
                "identity": ac.open_bundle(golden).identity(),
                "not_fed": [],
            }
        }
    }


def test_bundles_that_do_not_belong_together_are_refused_with_the_cure(tmp_path: Path) -> None:
    golden, other, free, free_baseline = (
        write(tmp_path / name, [item(values=values)])
        for name, values in (
            ("golden", VALUES),
            ("other", VALUES + 1),
            ("free", VALUES),
            ("free-baseline", VALUES),
        )
    )
    fed, fed_baseline, fed_otherwise = (
        write(tmp_path / name, [item(values=VALUES)], **fed_with(source))
        for name, source in (("fed", golden), ("fed-baseline", golden), ("fed-otherwise", other))
    )
    stats = write(tmp_path / "stats", [item(values=VALUES)], capture={"mode": "stats"})
    incomplete = write(tmp_path / "incomplete", [item(values=VALUES)], complete=False)
    identity = ac.open_bundle(other).identity()
    for sides, baseline, message in (
        (
            (golden, fed),
            free,
            (
                f"{free}: is a free-running baseline, but the candidate {fed} is fed; capture it"
                f" with --feed {golden}"
            ),
        ),
        (
            (golden, free),
            fed,
            (
                f"{fed}: is a fed baseline, but the candidate {free} is free-running; capture it"
                " without --feed"
            ),
        ),
        (
            (golden, fed),
            fed_otherwise,
            (
                f"{fed_otherwise}: was fed with another bundle than {golden} ({other}, identity"
                f" {identity}); capture"
            ),
        ),
        (
            (other, fed),
            fed_baseline,
            f"{fed}: was fed with another bundle than {other} ({golden}, identity",
        ),
        ((other, fed), None, f"{fed}: was fed with another bundle than {other}"),
        (
            (golden, free),
            stats,
            (
                f"{stats}: holds no values (mode stats) to tell an error by; capture the baseline"
                " in mode tensors"
            ),
        ),
        (
            (golden, free),
            incomplete,
            f"{incomplete}: is incomplete, so it is no baseline; capture it again",
        ),
        ((golden, free), free, f"{free}: cannot be the baseline, too"),
        ((golden, free), golden, f"{golden}: cannot be the baseline, too"),
    ):
        with pytest.raises(UsageError) as refused:
            ac.diff(*sides, baseline=baseline)
        assert str(refused.value).startswith(message)
    assert ac.diff(golden, fed, baseline=fed_baseline).passed
    assert ac.diff(golden, free, baseline=free_baseline).passed


def test_a_copied_golden_is_the_same_golden(tmp_path: Path) -> None:
    golden = write(tmp_path / "golden", [item(values=VALUES)])
    fed = write(tmp_path / "fed", [item(values=VALUES)], **fed_with(golden))
    assert ac.diff(shutil.copytree(golden, tmp_path / "copy"), fed).passed


@pytest.mark.parametrize(
    ("dtypes", "message"),
    [
        (
            ("float32", "bfloat16", "float32"),
            "computes in float32, but the candidate in bfloat16; capture it with --dtype bfloat16",
        ),
        (
            ("float32", "bfloat16", "float64"),
            "computes in float64, but the candidate in bfloat16; capture it with --dtype bfloat16",
        ),
        (
            ("float32", "float32", "bfloat16"),
            (
                "computes in bfloat16, but the candidate in float32; capture it with --dtype"
                " float32 or float64"
            ),
        ),
    ],
)
def test_a_baseline_of_another_dtype_is_refused(
    tmp_path: Path, dtypes: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        compare(tmp_path, *(item(values=VALUES, dtype=dtype) for dtype in dtypes))
