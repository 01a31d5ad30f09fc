"""Sketches as values: their sums, means and multiples beside those of the tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

import accucompare as ac
from accucompare.bundle.reading.reader import Bundle
from accucompare.errors import RecordError, UsageError
from accucompare.numbers.sketch import deviation
from accucompare.selection import Mode
from tests.compare.builder import item, write

DRAW = np.random.default_rng(0)
PARTS = DRAW.standard_normal((4, 30, 100))
BAD = np.where(np.arange(3000) == 5, np.nan, DRAW.standard_normal(3000))
OFF = deviation(256)


@pytest.fixture(scope="module", params=[Mode.SKETCH, Mode.TENSORS])
def kept(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Bundle]:
    """Four gradients, their sum, and the sum with an error of 1 %; a tensor with NaN; one of
    another shape; an object.
    """
    total = PARTS.sum(0)
    off = total + 0.01 * np.linalg.norm(total) / math.sqrt(3000) * DRAW.standard_normal(total.shape)
    items = [
        item(str(number), each)
        for number, each in enumerate([*PARTS, total, off, BAD, total.T.copy()])
    ]
    folder = write(
        tmp_path_factory.mktemp("kept") / "b",
        [*items, item("object", layout="opaque")],
        mode=request.param,
    )
    with ac.open_bundle(folder) as bundle:
        yield bundle


def of(bundle: Bundle, name: object, size: int | None = None) -> ac.Sketch:
    return ac.Sketch.of(bundle, bundle.find(str(name)), size)


def total_of(bundle: Bundle) -> ac.Sketch:
    return sum((of(bundle, number) for number in range(1, 4)), of(bundle, 0))


def test_a_sum_over_ranks_is_that_of_the_tensors(kept: Bundle) -> None:
    total = total_of(kept)
    assert total.error(of(kept, 4)).value < 1e-15
    assert total.norm().deviation == pytest.approx(OFF * total.norm().value)
    assert total.norm().value == pytest.approx(np.linalg.norm(PARTS.sum(0)), rel=4 * OFF)


def test_pythons_sum_adds_them(kept: Bundle) -> None:
    assert np.array_equal(
        sum([of(kept, 0), of(kept, 1)]).numbers, (of(kept, 0) + of(kept, 1)).numbers
    )  # type: ignore[union-attr]


def test_a_mean_over_microbatches_and_a_factor_are_those_of_the_tensors(kept: Bundle) -> None:
    assert (total_of(kept) / 4).error(0.25 * of(kept, 4)).value < 1e-15
    assert (of(kept, 0) * -2.0).norm() == (pytest.approx(2.0 * np.linalg.norm(PARTS[0])), 0.0)


def test_an_error_is_estimated_with_its_deviation(kept: Bundle) -> None:
    single, of_sum = of(kept, 5).error(of(kept, 4)), of(kept, 5).error(total_of(kept))
    assert single.value == pytest.approx(0.01, rel=4 * OFF)
    assert single.deviation == pytest.approx(single.value * OFF)
    # both norms are estimates
    assert of_sum.deviation == pytest.approx(of_sum.value * OFF * math.sqrt(2))
    assert (of(kept, 5) - of(kept, 4)).norm().value == pytest.approx(
        single.value * np.linalg.norm(PARTS.sum(0))
    )


def test_nan_on_one_side_is_no_small_error(kept: Bundle) -> None:
    bad = of(kept, 6)
    assert bad.nonfinite == 1
    clean = ac.Sketch(bad.numbers, bad.shape, bad.l2)
    assert (bad.error(clean).value, clean.error(bad).value, bad.error(bad).value) == (
        math.inf,
        math.inf,
        0.0,
    )
    # two of three are on one side
    assert ac.Sketch(bad.numbers, bad.shape, bad.l2, 3).error(bad).value == math.inf
    # of a sum, they may be in one place
    assert ac.Sketch(bad.numbers, bad.shape, None, 3).error(bad).value == 0.0


def test_numbers_that_exceed_float64_are_no_small_error(kept: Bundle) -> None:
    with np.errstate(over="ignore"):
        endless = of(kept, 0) * 1e308 * 1e10
    assert endless.error(endless).value == math.inf


def test_sketches_of_two_shapes_or_sizes_are_not_put_together(kept: Bundle) -> None:
    with pytest.raises(UsageError, match=r"two shapes, \[30, 100\] and \[100, 30\]"):
        of(kept, 0) + of(kept, 7)
    other = ac.Sketch(np.zeros(64), (30, 100))
    with pytest.raises(
        UsageError,
        match="256 and 64 numbers cannot be put together; capture with one --sketch-size",
    ):
        of(kept, 0).error(other)


def test_what_has_neither_values_nor_a_sketch_is_refused(kept: Bundle) -> None:
    with pytest.raises(RecordError, match="has neither values nor a sketch"):
        of(kept, "object")


def test_a_sketch_is_of_the_size_that_it_was_captured_with(kept: Bundle) -> None:
    if kept.manifest.options.sketch is None:
        assert len(of(kept, 0, 64).numbers) == 64
        return
    with pytest.raises(
        RecordError, match="has a sketch of 256 numbers, not of 64; capture with one --sketch-size"
    ):
        of(kept, 0, 64)
