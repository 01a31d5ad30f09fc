"""The compiled kernel's edges, and its results beside NumPy's; both are tested against exact
arithmetic with their callers.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from types import ModuleType
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from accucompare import numbers
from accucompare.compare.measuring.measure import measure_pair
from accucompare.numbers import kernel
from accucompare.numbers.dtypes import DTYPES, Array, DType, Kind, round_to, widen
from accucompare.numbers.statistics import summarize
from accucompare.numbers.sums import CHUNK, as_reals
from tests.compare.builder import in_blocks
from tests.compare.reference import same

FLOAT32, FLOAT64, BFLOAT16, INT32 = (
    DTYPES[name] for name in ("float32", "float64", "bfloat16", "int32")
)
KNOWN = [dtype for dtype in DTYPES.values() if kernel.can_summarize(dtype)]


# Wrong input


def measured(
    golden: Array,
    candidate: Array,
    golden_dtype: DType = FLOAT32,
    candidate_dtype: DType | None = None,
    atol: float | None = None,
    rtol: float | None = None,
) -> tuple[kernel.Measured, list[list[float]]]:
    measurement = kernel.Measurement(
        golden_dtype, candidate_dtype or golden_dtype, atol, rtol, golden.size
    )
    measurement.add(golden, candidate)
    return measurement.result(), measurement.chunk_sums()


def test_blocks_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="equally many"):
        measured(np.zeros(9, "f4"), np.zeros(8, "f4"))


@pytest.mark.parametrize("wrong", ["f8", "u4", "f2", ">f4", "c8"])
def test_blocks_that_are_not_of_the_given_type_are_refused(wrong: str) -> None:
    right, other = np.zeros(8, "f4"), np.zeros(8, wrong)
    for golden, candidate in ((right, other), (other, right)):
        with pytest.raises(
            ValueError, match="a block of float32 must be an array of float32, not "
        ):
            measured(golden, candidate)
    with pytest.raises(ValueError, match="a block of float32 must be an array of float32, not "):
        kernel.summarize_block(other, FLOAT32)


def test_blocks_with_gaps_are_refused() -> None:
    right, gaps = np.zeros(8, "f4"), np.zeros(16, "f4")[::2]
    for golden, candidate in ((right, gaps), (gaps, right)):
        with pytest.raises(ValueError, match="contiguous"):
            measured(golden, candidate)
    with pytest.raises(ValueError, match="contiguous"):
        kernel.summarize_block(np.zeros((4, 4), "f4").T, FLOAT32)


def test_blocks_of_two_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="float32 and int32 are numbers of different kinds"):
        measured(np.zeros(8, "f4"), np.zeros(8, "i4"), FLOAT32, INT32)


def test_types_that_the_kernel_lacks_are_refused() -> None:
    for name in DTYPES.keys() - {dtype.name for dtype in KNOWN}:
        values = np.zeros(8, DTYPES[name].storage)
        with pytest.raises(ValueError, match="there is no element type"):
            measured(values, values, DTYPES[name])
        with pytest.raises(ValueError, match="there is no element type"):
            kernel.summarize_block(values, DTYPES[name])


def test_more_elements_than_were_announced_are_refused() -> None:
    measurement = kernel.Measurement(FLOAT32, FLOAT32, None, None, CHUNK)
    chunk = np.zeros(CHUNK, "f4")
    measurement.add(chunk, chunk)
    with pytest.raises(ValueError, match="no room"):
        measurement.add(chunk, chunk)


def test_a_block_behind_one_that_ends_inside_a_chunk_is_refused() -> None:
    measurement = kernel.Measurement(FLOAT32, FLOAT32, None, None, CHUNK)
    measurement.add(np.zeros(9, "f4"), np.zeros(9, "f4"))
    with pytest.raises(ValueError, match="inside a chunk"):
        measurement.add(np.zeros(9, "f4"), np.zeros(9, "f4"))


# Where data lie, and what serves where there is no kernel


def test_data_at_any_address_gives_the_same() -> None:
    rng = np.random.default_rng(0)
    golden, candidate = rng.standard_normal((2, 3000)).astype("f4")
    expected = measured(golden, candidate, atol=1e-3)
    for shift in range(1, 8):
        memory = np.empty(golden.nbytes + shift, "u1")
        memory[shift:] = golden.view("u1")
        assert measured(memory[shift:].view("f4"), candidate, atol=1e-3) == expected


def test_numpy_serves_where_the_kernel_is_switched_off() -> None:
    program = "from accucompare.numbers import kernel; print(kernel.description())"
    environment = {**os.environ, "ACCUCOMPARE_KERNEL": "numpy"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "NumPy (switched off by ACCUCOMPARE_KERNEL)\n"


def test_a_kernel_that_does_not_exist_is_told() -> None:
    program = "from accucompare.numbers import kernel"
    environment = {**os.environ, "ACCUCOMPARE_KERNEL": "bogus"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert (
        done.stderr
        == "ACCUCOMPARE_KERNEL=bogus: numpy is its only value; the compiled kernel is used\n"
    )


# The compiled form beside NumPy's


def awkward_bits(dtype: DType) -> list[int]:
    """Both zeros, the ends of the subnormals and of the normal numbers, 1 and its neighbours,
    infinities, NaN with payloads.
    """
    width = 8 * dtype.storage.itemsize // (2 if dtype.kind is Kind.COMPLEX else 1)
    if dtype.kind is Kind.BOOL:
        return [0, 1]
    if dtype.kind is Kind.INT:
        return [0, 1, 2, (1 << width) - 1, 1 << (width - 1), (1 << (width - 1)) - 1]
    hidden, infinity = 1 << (dtype.digits - 1), (1 << (width - 1)) - (1 << (dtype.digits - 1))
    one = infinity // 2 // hidden * hidden
    magnitudes = (
        0,
        1,
        hidden - 1,
        hidden,
        hidden + 1,
        one - 1,
        one,
        one + 1,
        infinity - 1,
        infinity,
        infinity + 1,
        infinity + hidden // 2,
        one // 2,
    )
    return [magnitude | sign for magnitude in magnitudes for sign in (0, 1 << (width - 1))]


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Array, Array, DType, DType]:
    """Bits of any kind, golden and a candidate that is independent of it or close to it, over one
    or more strips and chunks.
    """
    ours = draw(st.sampled_from(KNOWN))
    theirs = draw(st.sampled_from([ours, *(dtype for dtype in KNOWN if dtype.kind is ours.kind)]))
    parts = 2 if ours.kind is Kind.COMPLEX else 1
    length = draw(
        st.sampled_from([0, 1, 3, 7, 8, 9, 40, 511, 512, 513, 1031, CHUNK - 1, CHUNK, CHUNK + 9])
    )
    seed, usual = (
        draw(st.integers(0, 2**32)),
        draw(st.sampled_from(["any bits", "normal", "awkward"])),
    )
    rng = np.random.default_rng(seed)

    def side(dtype: DType) -> Array:
        word = np.dtype(f"u{dtype.storage.itemsize // parts}")
        if dtype.kind is Kind.BOOL:
            bits = rng.integers(0, 2, length, word)
        elif usual == "normal" and dtype.kind in (Kind.FLOAT, Kind.COMPLEX):
            values = rng.normal(size=length * parts) * 10.0 ** draw(st.sampled_from([-3, 0, 3]))
            float_type = {53: "f8", 24: "f4", 11: "f2", 8: "f4"}[dtype.digits]
            bits = values.astype(float_type).view(f"u{float_type[1]}")
            bits = (bits >> 16).astype(word) if dtype.digits == 8 else bits
        else:
            bits = np.frombuffer(rng.bytes(length * dtype.storage.itemsize), word).copy()
        awkward = np.array(awkward_bits(dtype), np.uint64).astype(word)
        share = 1.0 if usual == "awkward" else draw(st.sampled_from([0.0, 0.0, 0.01]))
        return np.where(rng.random(len(bits)) < share, rng.choice(awkward, len(bits)), bits)

    golden, candidate = side(ours), side(theirs)
    # differences of a few last bits, here and there: sums cancel
    if ours is theirs and draw(st.booleans()):
        nudge = rng.integers(0, 2 if ours.kind is Kind.BOOL else 4, len(golden)).astype(
            golden.dtype
        )
        candidate = np.where(rng.random(len(golden)) < 0.5, golden ^ nudge, golden)
    return golden.view(ours.storage), candidate.view(theirs.storage), ours, theirs


def test_the_largest_ratios_are_found_where_products_have_but_a_few_digits() -> None:
    """A strip is searched only if a product with the largest ratio before it says so, which
    rounding must not hide.
    """
    golden, candidate = np.ones((2, 1000))
    golden[[0, 999]], candidate[[0, 999]] = np.array([38, 33]) * 5e-324, np.array([40, 35]) * 5e-324
    found, _ = measured(golden, candidate, FLOAT64, rtol=1.0)
    assert (found.max_rel, found.tolerance_used) == (2 / 33, 2 / 33)


FROM_SUMS = ("rel_l2", "one_minus_cosine", "mean_abs", "rmse", "bias", "in_part")
U = 2.0**-53


@given(blocks(), st.sampled_from([None, 0.0, 1e-3, 1e300]), st.sampled_from([None, 0.0, 1e-3]))
def test_metrics_are_those_of_numpy(
    pair: tuple[Array, Array, DType, DType], atol: float | None, rtol: float | None
) -> None:
    """Exactly, but for what is made of sums, where each form has its order: up to the bound of any
    order, 2 n u (see below).
    """
    golden, candidate, ours, theirs = pair
    sides = in_blocks(golden, CHUNK), in_blocks(candidate, CHUNK)
    compiled = msgspec.structs.asdict(
        measure_pair(*sides, (ours, theirs), golden.shape, atol=atol, rtol=rtol)
    )
    with patch.object(kernel, "_kernel", None):
        numpy = msgspec.structs.asdict(
            measure_pair(*sides, (ours, theirs), golden.shape, atol=atol, rtol=rtol)
        )
    slack = 8 * CHUNK * U
    for name in ("rel_l2", "rmse", "mean_abs", "in_part"):
        assert same(compiled[name], numpy[name], rel=slack)
    assert same(compiled["bias"], numpy["bias"], rel=slack, floor=slack * numpy["mean_abs"])
    assert same(compiled["one_minus_cosine"], numpy["one_minus_cosine"], rel=1e-8, floor=1e-24)
    for name in FROM_SUMS:
        del compiled[name], numpy[name]
    assert compiled == numpy


@given(blocks())
def test_chunk_sums_are_those_of_numpy(pair: tuple[Array, Array, DType, DType]) -> None:
    """Two sums of the same n terms, added in any two orders, differ by at most 2 (n - 1) u times
    the sum of their magnitudes (N. Higham, Accuracy and Stability of Numerical Algorithms, 4.2);
    rounding each term, or not where NumPy fuses, adds a few u more."""
    golden, candidate, ours, theirs = pair
    _, sums = measured(golden, candidate, ours, theirs)
    with np.errstate(all="ignore"):
        a, b = (
            as_reals(widen(*side)).astype(np.float64)
            for side in ((golden, ours), (candidate, theirs))
        )
        finite = np.isfinite(a) & np.isfinite(b)
        a, b = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
        d = b - a
        expected = [
            (a, a),
            (b, b),
            (d, d),
            (d, a + b),
            (np.abs(d), np.ones_like(d)),
            (d, np.ones_like(d)),
        ]
        for found, (left, right) in zip(sums[:6], expected, strict=True):
            assert len(found) == -(-len(a) // CHUNK)
            for k, total in enumerate(found):
                x, y = left[k * CHUNK : (k + 1) * CHUNK], right[k * CHUNK : (k + 1) * CHUNK]
                magnitude = float(np.abs(x * y).sum())
                if magnitude < 1e308:  # the sum cannot overflow in any order
                    assert (
                        abs(total - float(np.vecdot(x, y)))
                        <= 2 * (len(x) + 3) * U * magnitude + len(x) * 5e-324
                    )


@given(blocks())
@example((np.array([np.nan, -0.0, np.inf]), np.zeros(3), FLOAT64, FLOAT64))
def test_statistics_are_those_of_numpy(pair: tuple[Array, Array, DType, DType]) -> None:
    """Exactly, but for mean and norm: those to the bound above."""
    values, _, dtype, _ = pair
    compiled = msgspec.structs.asdict(summarize(values, dtype))
    with patch.object(kernel, "_kernel", None):
        numpy = msgspec.structs.asdict(summarize(values, dtype))
    largest = max(abs(numpy["min"] or 0.0), abs(numpy["max"] or 0.0))
    assert same(compiled.pop("mean"), numpy.pop("mean"), floor=8 * CHUNK * U * float(largest))
    assert same(compiled.pop("l2"), numpy.pop("l2"), rel=8 * CHUNK * U)
    assert compiled == numpy
    assert all(type(compiled[name]) is type(numpy[name]) for name in ("min", "max"))


def test_a_kernel_built_from_another_version_of_its_source_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its numbers would be taken for others."""
    monkeypatch.delenv("ACCUCOMPARE_KERNEL", raising=False)
    monkeypatch.setattr(
        numbers, "_kernel", ModuleType("accucompare.numbers._kernel"), raising=False
    )
    spec = importlib.util.spec_from_file_location("another_kernel", kernel.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "another_kernel", module)
    spec.loader.exec_module(module)
    assert (
        module.description()
        == "NumPy (the built one is of another version; install accucompare again)"
    )


@pytest.mark.skipif(not kernel.is_compiled(), reason="the kernel is not built")
@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("count", [1, 5, 16, 511, 513, 5000, 70_000])
def test_a_range_is_that_of_extrema(name: str, count: int) -> None:
    dtype, rng = DTYPES[name], np.random.default_rng(count)
    for special in ((), (np.inf,), (-np.inf, -0.0), (1e-42,), (np.nan,), (np.nan, np.inf)):
        values = rng.normal(size=count) * 1e-3
        values[rng.integers(0, count, len(special))] = special
        bits = np.ascontiguousarray(round_to(values, dtype))
        wide = widen(bits, dtype).astype(np.float64)
        found = kernel.range_at(bits.ctypes.data, count, name)
        if np.isnan(wide).any():
            assert found is None
        else:
            assert found == (wide.min(), wide.max(), np.abs(wide).min())
            assert found == kernel.extrema_at(bits.ctypes.data, count, name)[:3]  # type: ignore
