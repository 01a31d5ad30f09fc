"""Sketches: what they are by their definition, with the kernel and without, and how well a distance
is estimated by them.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from accucompare.numbers.dtypes import DTYPES, round_to
from accucompare.numbers.sketch import (
    GROUPS,
    ROWS,
    SKETCH_BLOCK,
    TABLES,
    block_places,
    deviation,
    distance,
    sign_tables,
    sketch_of,
    sketch_values,
)
from accucompare.numbers.statistics import summarize
from tests.numbers.both_kernels import both_kernels  # noqa: F401

SIZE = 64
FLOAT64 = DTYPES["float64"]


def by_definition(values: np.ndarray, size: int = SIZE) -> list[float]:
    """The sketch of float64 values, element by element, each sum exact."""
    signs, buckets, group_signs = (table.tolist() for table in sign_tables(size))
    rotations, block_signs = (
        table.tolist() for table in block_places(0, -(-len(values) // SKETCH_BLOCK), size)
    )
    terms: list[list[float]] = [[] for _ in range(size)]
    for place, value in enumerate(values.tolist()):
        block, rest = divmod(place, SKETCH_BLOCK)
        row, group = divmod(rest, GROUPS)
        sign = signs[row][group] * group_signs[block % TABLES][group] * block_signs[block]
        terms[(buckets[block % TABLES][group] + rotations[block]) % size].append(sign * value)
    return [math.fsum(each) for each in terms]


def of(values: Any, dtype: str = "float64", size: int = SIZE) -> np.ndarray:
    return sketch_values([np.asarray(values)], DTYPES[dtype], size)


def test_it_is_the_sum_by_definition() -> None:
    values = np.random.default_rng(0).standard_normal(2 * SKETCH_BLOCK + 12345)
    assert of(values) == pytest.approx(by_definition(values), rel=1e-12, abs=1e-11)


@pytest.mark.parametrize("dtype", [name for name, each in DTYPES.items() if each.digits])
def test_every_floating_type_is_widened_exactly(dtype: str) -> None:
    # a few bits, so that fp8 holds them
    values = np.random.default_rng(1).integers(-8, 9, 3000).astype("f8")
    kind = DTYPES[dtype]
    if dtype.startswith("complex"):
        raw = (
            np.ascontiguousarray(values).view("c16").astype("c8" if dtype == "complex64" else "c16")
            if dtype != "complex32"
            else None
        )
        raw = values.astype("f2").view(kind.storage) if raw is None else raw
    elif kind.ml_dtype:
        values = np.abs(values) + 1 if "e8m0" in dtype else values
        raw = round_to(values, kind)
        values = raw.view(getattr(ml_dtypes, dtype)).astype("f8")
    else:
        raw = values.astype(kind.storage)
    assert of(raw.astype(kind.storage), dtype) == pytest.approx(by_definition(values), abs=1e-9)


@pytest.mark.parametrize(
    "cuts",
    [
        [1],
        [SKETCH_BLOCK, SKETCH_BLOCK + 1],
        [TABLES * SKETCH_BLOCK],
        [5, TABLES * SKETCH_BLOCK - 5],
        [8 * 131072, 131072],
    ],
)
def test_how_the_values_are_cut_changes_no_bit(cuts: list[int]) -> None:
    values = np.random.default_rng(2).standard_normal(9 * SKETCH_BLOCK + 77).astype("f4")
    parts = np.split(values, np.minimum(np.cumsum(cuts), len(values)).astype(int))
    assert np.array_equal(sketch_values(parts, DTYPES["float32"], SIZE), of(values, "float32"))


def test_both_kernels_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    from accucompare.numbers import kernel

    values = np.random.default_rng(3).standard_normal(SKETCH_BLOCK + 5).astype("f4")
    values[[7, SKETCH_BLOCK + 1]] = np.nan, np.inf
    found = of(values, "float32")
    monkeypatch.setattr(kernel, "_kernel", None)
    assert np.array_equal(of(values, "float32"), found)


def test_it_is_linear() -> None:
    one, other = np.random.default_rng(4).standard_normal((2, 20000))
    assert of(3.0 * one - other) == pytest.approx(3.0 * of(one) - of(other), abs=1e-11)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
@pytest.mark.parametrize("axes", [(0,), (2,), (0, 1)], ids=str)
def test_the_sketches_of_shards_add_up_to_that_of_the_whole(
    dtype: str, axes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, columns, both; with many runs of the whole, and many blocks before the last shard."""
    monkeypatch.setattr("accucompare.numbers.sketch._RUN", 1 << 14)
    kind, shape = DTYPES[dtype], (6, 35, 500)
    values = np.random.default_rng(11).standard_normal(
        math.prod(shape) * (2 if dtype == "complex64" else 1)
    )
    raw = (
        round_to(values, kind)
        if kind.ml_dtype
        else values.astype("f4").view("c8")
        if dtype == "complex64"
        else values.astype(kind.storage)
    )
    raw = raw.reshape(shape)
    total = np.zeros(SIZE)
    cuts = [
        (0, length // 3, length) if axis in axes else (0, length)
        for axis, length in enumerate(shape)
    ]
    for ends in itertools.product(*(itertools.pairwise(each) for each in cuts)):
        part = np.ascontiguousarray(raw[tuple(slice(*each) for each in ends)])
        found = sketch_of(
            part, kind, summarize(part, kind), SIZE, shape, [first for first, _ in ends]
        )
        assert found is not None
        total += found
    whole = of(raw, dtype)
    assert np.linalg.norm(total - whole) <= 1e-15 * np.linalg.norm(
        raw.ravel().view("f4") if dtype == "complex64" else values
    )


@pytest.mark.parametrize("dtype", ["float32", "float8_e8m0fnu"])
def test_a_shard_far_behind_the_start_has_the_places_of_the_whole(dtype: str) -> None:
    """Behind more blocks than there are tables; and of the type that has no zero."""
    kind, start = DTYPES[dtype], 9 * SKETCH_BLOCK + 5
    part = np.array([3.0, 5.0]).astype("f4") if dtype == "float32" else np.array([128, 129], "u1")
    found = sketch_of(part, kind, summarize(part, kind), SIZE, (start + 8,), (start,))
    whole = np.zeros(start + 8)
    whole[start : start + 2] = [3.0, 5.0] if dtype == "float32" else [2.0, 4.0]
    assert np.array_equal(found, of(whole))  # type: ignore[arg-type]


def test_both_kernels_give_the_same_bits_of_a_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    from accucompare.numbers import kernel

    part = np.random.default_rng(12).standard_normal((3, 40, 50)).astype("f4")
    place = DTYPES["float32"], summarize(part, DTYPES["float32"]), SIZE, (8, 400, 50), (5, 200, 0)
    found = sketch_of(part, *place)
    monkeypatch.setattr(kernel, "_kernel", None)
    assert np.array_equal(found, sketch_of(part, *place))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "start"),
    [((4,), (0, 0)), ((4, 4), (0,)), ((4, 4), (0, 2)), ((4, 4), (-1, 0)), ((1, 4), (0, 0))],
)
def test_a_shard_that_does_not_lie_in_the_whole_is_refused(
    shape: tuple[int, ...], start: tuple[int, ...]
) -> None:
    part = np.ones((2, 3))
    with pytest.raises(ValueError, match="does not lie in a tensor of"):
        sketch_of(part, FLOAT64, summarize(part, FLOAT64), SIZE, shape, start)


def test_nan_and_inf_count_as_nothing() -> None:
    values = np.random.default_rng(5).standard_normal(5000)
    holes = values.copy()
    holes[[3, 900, 4999]] = np.nan, np.inf, -np.inf
    values[[3, 900, 4999]] = 0.0
    assert np.array_equal(of(holes), of(values))


@pytest.mark.parametrize("size", [64, 256])
def test_a_distance_is_estimated_to_its_deviation(size: int) -> None:
    """Of many errors of the kinds that layers make, by a chi-square test on their number of
    deviations.
    """
    draw = np.random.default_rng(6)
    shape, found = (8, 32, 96), []
    for turn in range(60):
        error = np.zeros(shape)
        kind = turn % 4
        if kind == 0:
            error = draw.standard_normal(shape)
        elif kind == 1:
            error[..., draw.integers(96)] = draw.standard_normal(shape[:-1])
        elif kind == 2:
            error[draw.integers(8), draw.integers(32)] = draw.standard_normal(96)
        else:
            error[draw.integers(8)] = draw.standard_normal((32, 96)) * np.exp(
                draw.standard_normal((32, 96))
            )
        true = math.sqrt(math.fsum(error.ravel() ** 2))
        found.append(
            (distance(of(error, size=size), np.zeros(size)) / true - 1.0) / deviation(size)
        )
    assert abs(np.mean(found)) < 0.6
    assert np.mean(np.square(found)) < 1.8
    assert max(map(abs, found)) < 5


def test_the_block_is_odd_in_neither_direction() -> None:
    """A complex value must not lie in two blocks, and a table must serve every block."""
    assert (SKETCH_BLOCK, SKETCH_BLOCK % 2) == (ROWS * GROUPS, 0)


def test_a_tensor_of_extreme_values_has_a_sketch_all_the_same() -> None:
    values = np.array([1e300, -2e300, 3e300])
    scaled = sketch_of(values, FLOAT64, summarize(values, FLOAT64), SIZE)
    assert scaled is not None
    assert scaled / 1e300 == pytest.approx(of(values / 1e300), rel=1e-12)


def test_a_tensor_whose_sums_exceed_float64_has_none() -> None:
    values = np.full(64 * 1021, 1.7e308)
    assert sketch_of(values, FLOAT64, summarize(values, FLOAT64), 16) is None


def test_the_construction_does_not_change() -> None:
    """Bundles are compared years later: another construction needs another version."""
    values = np.arange(1000, dtype="f8")
    pinned = [
        2335.0,
        -3126.0,
        298.0,
        -4564.0,
        896.0,
        -963.0,
        4445.0,
        5268.0,
        550.0,
        -466.0,
        -1057.0,
        -2094.0,
        0.0,
        9838.0,
        5847.0,
        1187.0,
    ]
    assert of(values, size=16).tolist() == pinned
