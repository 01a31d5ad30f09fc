"""What a diff says of bundles that keep sketches: beside what it says of the same bundles with
their tensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import accucompare as ac
from accucompare.bundle.format.manifest import Manifest
from accucompare.bundle.reading.verification import verify
from accucompare.bundle.writing.writer import BundleWriter
from accucompare.compare.decide import Answer
from accucompare.compare.judging.estimates import can_estimate, room
from accucompare.compare.judging.judge import judge_pair
from accucompare.compare.limits.baseline import Expected, excess_limit, ratio_limit
from accucompare.compare.limits.tolerance import Tolerance
from accucompare.compare.measuring.measure import Metrics
from accucompare.compare.rows.rows import Reason
from accucompare.errors import BundleError
from accucompare.numbers.dtypes import DTYPES
from accucompare.numbers.sketch import GROUPS, deviation, sign_tables, sketch_values
from accucompare.report.terminal.terminal import print_comparison
from accucompare.report.words import verdict_words
from accucompare.selection import Mode
from tests.compare.builder import item

DRAW = np.random.default_rng(0)
GOLDEN = DRAW.standard_normal((40, 100)).astype("f4")
#: Errors of several shapes and sizes, by a name.
ERRORS = {
    "noise": (GOLDEN * (1 + 1e-3 * DRAW.standard_normal(GOLDEN.shape))).astype("f4"),
    "channel": np.where(np.arange(100) == 7, GOLDEN * np.float32(1.5), GOLDEN),
    "one element": np.where(np.arange(4000).reshape(40, 100) == 77, np.float32(9), GOLDEN),
    "all": GOLDEN * np.float32(0.5),
    "other": DRAW.standard_normal((40, 100)).astype("f4"),
}
FACTS = {"sketch": {"version": 1, "size": 256}}


def bundle(
    folder: Path, values: dict[str, Any], mode: Mode = Mode.SKETCH, size: int = 256, **facts: Any
) -> Path:
    capture = {"mode": mode.value, "sketch": {"version": 1, "size": size}, **facts}
    writer = BundleWriter(
        folder,
        Manifest(complete=True, capture=capture, model={"sources": {}}),
        mode=mode,
        sketch_size=size,
    )
    for order, (name, array) in enumerate(values.items()):
        each = item(name, array, parent=("", 0), order=order)
        writer.add(each.record, each.array)
    writer.end_step(0)
    writer.close()
    return folder


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, Mode], Path]:
    folder = tmp_path_factory.mktemp("kept")
    return {
        (side, mode): bundle(folder / f"{side}-{mode.value}", values, mode)
        for side, values in (("golden", dict.fromkeys(ERRORS, GOLDEN)), ("candidate", ERRORS))
        for mode in (Mode.TENSORS, Mode.SKETCH)
    }


@pytest.mark.parametrize(
    "sides", [(Mode.SKETCH, Mode.SKETCH), (Mode.TENSORS, Mode.SKETCH), (Mode.SKETCH, Mode.TENSORS)]
)
def test_errors_are_estimated_to_their_deviation(
    kept: dict[tuple[str, Mode], Path], sides: tuple[Mode, Mode]
) -> None:
    true = ac.diff(kept["golden", Mode.TENSORS], kept["candidate", Mode.TENSORS])
    found = ac.diff(kept["golden", sides[0]], kept["candidate", sides[1]])
    for one, other in zip(true.rows, found.rows, strict=True):
        assert one.metrics is not None
        assert other.metrics is not None
        assert other.metrics.deviation == deviation(256)
        assert other.metrics.rel_l2 == pytest.approx(one.metrics.rel_l2, rel=5 * deviation(256)), (
            one.place
        )
        assert other.metrics.one_minus_cosine == pytest.approx(
            one.metrics.one_minus_cosine, rel=10 * deviation(256), abs=1e-14
        ), one.place
        assert other.metrics.bias == pytest.approx(one.metrics.bias, rel=1e-6, abs=1e-9)
        assert other.reason is one.reason
    assert found.by_sketch == len(ERRORS)


def test_a_sketch_is_that_of_the_tensor_wherever_it_is_made(
    kept: dict[tuple[str, Mode], Path],
) -> None:
    found = ac.diff(kept["candidate", Mode.TENSORS], kept["candidate", Mode.SKETCH])
    assert {row.reason for row in found.rows} == {Reason.IDENTICAL}


def test_an_exact_factor_is_told_by_sketches(kept: dict[tuple[str, Mode], Path]) -> None:
    found = ac.diff(kept["golden", Mode.SKETCH], kept["candidate", Mode.SKETCH])
    row = next(row for row in found.rows if row.module == "all")
    assert row.metrics is not None
    assert row.metrics.one_minus_cosine == pytest.approx(0.0, abs=1e-15)
    assert row.metrics.rel_l2 == pytest.approx(0.5, rel=0.2)


def test_a_pair_is_estimated_the_same_alone_and_among_neighbours(
    kept: dict[tuple[str, Mode], Path], tmp_path: Path
) -> None:
    neighbours = ac.diff(kept["golden", Mode.SKETCH], kept["candidate", Mode.SKETCH])
    # other sketches at each number
    moved = bundle(
        tmp_path / "moved", {"first": DRAW.standard_normal((40, 100)).astype("f4"), **ERRORS}
    )
    alone = {row.module: row.metrics for row in ac.diff(kept["golden", Mode.SKETCH], moved).rows}
    assert {row.module: row.metrics for row in neighbours.rows} == {
        name: alone[name] for name in ERRORS
    }


@pytest.mark.parametrize("error", [1e-1, 1e-4, 1e-7])
@pytest.mark.parametrize("size", [1e-3, 1e18, 1e-18, 1e30])
def test_the_angle_of_two_sketches_is_right_however_small_it_is(
    tmp_path: Path, error: float, size: float
) -> None:
    """Beside the formula by normalised vectors, with a factor that no angle sees."""
    golden = GOLDEN.astype(np.float64) * size
    candidate = 1.25 * golden * (1 + error * DRAW.standard_normal(golden.shape))
    (row,) = ac.diff(
        bundle(tmp_path / "g", {"a": golden}), bundle(tmp_path / "c", {"a": candidate})
    ).rows
    sides = [
        sketch_values([side], DTYPES["float64"], 256) / np.linalg.norm(side)
        for side in (golden, candidate)
    ]
    assert row.metrics is not None
    assert row.metrics.one_minus_cosine == pytest.approx(
        np.sum((sides[1] - sides[0]) ** 2) / 2, rel=1e-6
    )
    exact = (
        np.sum((golden / np.linalg.norm(golden) - candidate / np.linalg.norm(candidate)) ** 2) / 2
    )
    assert row.metrics.one_minus_cosine == pytest.approx(exact, rel=10 * deviation(256))


def test_numbers_whose_squares_are_beyond_float64_are_estimated(tmp_path: Path) -> None:
    sides = {}
    for name, size in (("large", 1e200), ("small", 1e-200)):
        sides[name] = GOLDEN.astype(np.float64) * size
    off = {
        name: side * (1 + 1e-3 * DRAW.standard_normal(side.shape)) for name, side in sides.items()
    }
    for row in ac.diff(bundle(tmp_path / "g", sides), bundle(tmp_path / "c", off)).rows:
        assert row.metrics is not None
        assert row.metrics.rel_l2 == pytest.approx(1e-3, rel=0.3)
        assert row.metrics.one_minus_cosine == pytest.approx(5e-7, rel=0.5)


def test_an_error_that_a_sketch_can_lose_is_seen_by_the_extremes(tmp_path: Path) -> None:
    """One element that is off by more than all else: a sketch may be 15 % short, an extreme is
    not."""
    off = GOLDEN.copy()
    off[0, 0] = 1000.0
    found = ac.diff(bundle(tmp_path / "g", {"a": GOLDEN}), bundle(tmp_path / "c", {"a": off}))
    metrics = found.rows[0].metrics
    assert metrics is not None
    assert metrics.max_abs >= 1000.0 - GOLDEN.max()
    assert metrics.rmse >= (1000.0 - GOLDEN.max()) / np.sqrt(GOLDEN.size) * (1 - 1e-9)


def test_an_error_in_two_elements_that_a_sketch_loses_altogether_fails_by_the_extremes(
    tmp_path: Path,
) -> None:
    signs, buckets, group_signs = sign_tables(256)
    sides: dict[int, dict[int, int]] = {}
    for place in range(GOLDEN.size):
        row, group = divmod(place, GROUPS)
        sides.setdefault(int(buckets[0, group]), {}).setdefault(
            int(signs[row, group]) * int(group_signs[0, group]), place
        )
    one, other = next(tuple(found.values()) for found in sides.values() if len(found) == 2)
    off = np.zeros_like(GOLDEN)
    off.reshape(-1)[[one, other]] = 1.0
    assert not sketch_values([off], DTYPES["float32"], 256).any()
    found = ac.diff(
        bundle(tmp_path / "g", {"a": GOLDEN}),
        bundle(tmp_path / "c", {"a": GOLDEN + 64 * off}),
        limits=ac.Tolerance(rel_l2=0.1),
    )
    assert not found.passed
    assert found.rows[0].metrics is not None
    assert found.rows[0].metrics.rmse >= (64 - 2 * GOLDEN.max()) / np.sqrt(GOLDEN.size)


def test_an_excess_that_is_the_ratio_of_two_estimates_has_room_for_both() -> None:
    record = item("a", GOLDEN).record
    candidate = replace(record, digest="other")
    most, expected = excess_limit(GOLDEN.size, "float32"), Expected(rel_l2=1e-3)
    judged = {}
    for estimated in (0.0, deviation(256)):
        metrics = Metrics(
            elements=GOLDEN.size,
            compared=GOLDEN.size,
            rel_l2=1.1 * most * 1e-3,
            rmse=1e-3,
            deviation=estimated,
        )
        judged[estimated] = judge_pair(
            record, candidate, metrics, Tolerance(rel_l2=1.0, by_default=True), expected
        )
    assert [verdict.reason for verdict in judged.values()] == [Reason.OVER, Reason.OK]
    assert judged[deviation(256)].excess_limit == pytest.approx(most * ratio_limit(256))


def test_a_tensor_that_is_not_larger_than_its_sketch_is_kept_and_compared_exactly(
    tmp_path: Path,
) -> None:
    small = np.arange(512, dtype="f4")
    found = ac.diff(
        bundle(tmp_path / "g", {"a": small}), bundle(tmp_path / "c", {"a": small + 1}), atol=0.5
    )
    assert found.rows[0].golden is not None
    assert found.rows[0].golden.member is not None
    assert found.rows[0].metrics is not None
    assert (found.rows[0].metrics.max_abs, found.rows[0].metrics.deviation) == (1.0, 0.0)


def test_nan_on_one_side_fails(tmp_path: Path) -> None:
    bad = GOLDEN.copy()
    bad[3, 3] = np.nan
    found = ac.diff(
        bundle(tmp_path / "g", {"a": GOLDEN}),
        bundle(tmp_path / "c", {"a": bad}),
        limits=ac.Tolerance(rel_l2=10.0),
    )
    assert found.rows[0].reason is Reason.NON_FINITE


def test_integers_that_differ_fail(tmp_path: Path) -> None:
    ours = np.arange(4000)
    theirs = np.where(ours == 3000, 0, ours)
    found = ac.diff(bundle(tmp_path / "g", {"a": ours}), bundle(tmp_path / "c", {"a": theirs}))
    assert not found.passed


def test_limits_by_element_need_tensors(kept: dict[tuple[str, Mode], Path]) -> None:
    found = ac.diff(kept["golden", Mode.SKETCH], kept["candidate", Mode.SKETCH], atol=1e9)
    assert found.by_statistics == len(ERRORS)
    assert any("--atol and --rtol need tensors" in finding.message for finding in found.preflight)


def test_a_limit_leaves_room_for_the_estimate() -> None:
    """sqrt(chi2.999(k) / k): tables of the chi-square distribution have 149.449 at 100 degrees of
    freedom.
    """
    assert room(Metrics(deviation=deviation(100))) == pytest.approx(
        np.sqrt(149.449 / 100), rel=2e-4
    )
    assert room(Metrics()) == 1.0


def test_the_answer_says_that_sketches_judged(
    kept: dict[tuple[str, Mode], Path], tmp_path: Path
) -> None:
    found = ac.diff(
        kept["golden", Mode.SKETCH],
        kept["candidate", Mode.SKETCH],
        limits=ac.Tolerance(rel_l2=100.0),
    )
    assert found.passed
    assert "5 rows judged by sketches" in found.conclusion
    assert json.loads(found.to_json(tmp_path / "x.json").read_text())["by_sketch"] == 5


def test_the_verdict_says_once_that_sketches_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(1)
    rounded = [
        (GOLDEN * (1 + 1e-7 * draw.standard_normal(GOLDEN.shape))).astype("f4") for _ in range(2)
    ]
    golden = bundle(tmp_path / "golden", {"a": GOLDEN})
    candidate, baseline = (
        bundle(tmp_path / name, {"a": each}) for name, each in zip(("c", "b"), rounded, strict=True)
    )
    found = ac.diff(golden, candidate, baseline=baseline)
    print_comparison(found, [], quiet=True)
    said = capsys.readouterr().out
    assert "rounding; 1 row judged by sketches; " in said
    assert said.count("judged by sketches") == 1


def test_digests_alone_say_what_differs_and_no_more(tmp_path: Path) -> None:
    sides = [
        bundle(tmp_path / name, values, Mode.DIGEST)
        for name, values in (("g", dict.fromkeys(ERRORS, GOLDEN)), ("c", ERRORS))
    ]
    found = ac.diff(*sides)
    assert not found.passed
    assert "how far apart they are was not recorded" in verdict_words.detail(found.rows[0])


def test_digests_of_two_dtypes_tell_nothing(tmp_path: Path) -> None:
    sides = [
        bundle(tmp_path / dtype, {"a": GOLDEN.astype(dtype)}, Mode.DIGEST) for dtype in ("f4", "f2")
    ]
    found = ac.diff(*sides)
    assert (found.answer, found.passed) == (Answer.NOT_SURE, False)
    verdict = found.rows[0].verdict
    assert (verdict.reason, verdict_words.detail(found.rows[0])) == (
        Reason.NOT_COMPARABLE,
        "golden is float32, the candidate float16, of which digests tell nothing",
    )
    # none could tell more
    assert not any(finding.topic == "baseline" for finding in found.preflight)


# Bad input


def test_a_flipped_bit_of_a_sketch_is_found(tmp_path: Path) -> None:
    sides = bundle(tmp_path / "g", {"a": GOLDEN}), bundle(tmp_path / "c", {"a": ERRORS["noise"]})
    archive = sides[0] / "rank0/step0.npz"
    content = bytearray(archive.read_bytes())
    content[300] ^= 1
    archive.write_bytes(content)
    with pytest.raises(BundleError, match=r"'sketches\.0' is corrupt"):
        ac.diff(*sides)
    with ac.open_bundle(sides[0]) as opened:
        assert len(verify(opened).damage) == 1


def test_only_floating_numbers_are_estimated(kept: dict[tuple[str, Mode], Path]) -> None:
    with ac.open_bundle(kept["golden", Mode.SKETCH]) as opened:
        record = next(iter(opened.records()))
    assert can_estimate(record, record)
    assert not can_estimate(record, item("a", np.arange(9)).record)


@pytest.mark.parametrize(
    ("ours", "theirs"), [((np.inf, 0), (-np.inf, 0)), ((np.nan, 0), (np.nan, 1))]
)
def test_that_nan_and_inf_are_in_the_same_places_is_not_taken_for_granted(
    ours: tuple[float, int], theirs: tuple[float, int], tmp_path: Path
) -> None:
    sides = []
    for name, (value, place) in (("golden", ours), ("candidate", theirs)):
        values = GOLDEN.copy()
        values[0, :2] = 1e-3  # which is so small that its loss is within the limit
        values[0, place] = value
        sides.append(bundle(tmp_path / name, {"a": GOLDEN, "b": values}))
    comparison = ac.diff(*sides, limits=ac.Tolerance(rel_l2=0.01))
    assert [row.reason for row in comparison.rows] == [Reason.IDENTICAL, Reason.NOT_COMPARABLE]
    assert not comparison.passed


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(1.0, 1e-170), (1e-170, 1.0), (1e160, 1e-160), (1e-160, 1e160), (1e200, 1.5e200)],
)
def test_norms_whose_squares_are_beyond_float64_are_compared(
    tmp_path: Path, ours: float, theirs: float
) -> None:
    values = DRAW.standard_normal(1000)
    sides = (
        bundle(tmp_path / name, {"a": values * factor})
        for name, factor in (("golden", ours), ("candidate", theirs))
    )
    metrics = ac.diff(*sides).rows[0].metrics
    assert metrics is not None
    assert metrics.rel_l2 == pytest.approx(abs(theirs / ours - 1.0), rel=0.2)
    assert metrics.one_minus_cosine == pytest.approx(0.0, abs=1e-12)


def test_of_norms_beyond_float64_no_error_is_estimated(tmp_path: Path) -> None:
    values = np.full(2000, 1e307) * np.where(np.arange(2000) % 2, 1, -1)
    sides = (
        bundle(tmp_path / name, {"a": each})
        for name, each in (("golden", values), ("candidate", values * (1 + 1e-15)))
    )
    row = ac.diff(*sides).rows[0]
    assert (row.reason, row.by_statistics) == (Reason.OK, True)


def test_norms_beyond_float64_are_not_estimated_but_bounded(tmp_path: Path) -> None:
    """Relative to a norm that is not known, any distance was infinite."""
    sides = [
        bundle(tmp_path / name, {"x": np.full(40_000, value)})
        for name, value in (("golden", 1e306), ("candidate", 1.1e306))
    ]
    (row,) = ac.diff(*sides).rows
    assert row.reason is Reason.INTRODUCED
    assert row.metrics is not None
    assert 0 < row.metrics.rel_l2 <= 0.1 + 1e-9
