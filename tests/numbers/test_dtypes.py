"""Bits and values of the types NumPy lacks, against PyTorch's own conversions."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from accucompare.numbers.dtypes import DTYPES, ROUNDS_TO, DType, Kind, round_to, widen

NARROW = [
    dtype for dtype in DTYPES.values() if dtype.kind is Kind.FLOAT and dtype.storage.itemsize <= 2
]


def every_bit_pattern(dtype: DType) -> np.ndarray:
    width = dtype.storage.itemsize
    return np.arange(1 << (8 * width)).astype(f"u{width}").view(dtype.storage)


def as_torch(raw: np.ndarray, dtype: DType) -> torch.Tensor:
    return torch.from_numpy(raw.view(f"i{raw.itemsize}").copy()).view(getattr(torch, dtype.name))


def same_bits_but_for_nan(one: np.ndarray, other: np.ndarray) -> bool:
    nan = np.isnan(one)
    bits = f"u{one.itemsize}"
    return bool(
        (nan == np.isnan(other)).all() and (one.view(bits)[~nan] == other.view(bits)[~nan]).all()
    )


@pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: dtype.name)
def test_every_bit_pattern_widens_to_the_value_it_has_in_torch(dtype: DType) -> None:
    raw = every_bit_pattern(dtype)
    assert same_bits_but_for_nan(
        widen(raw, dtype).astype(np.float32), as_torch(raw, dtype).to(torch.float32).numpy()
    )


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_the_table_tells_what_torch_tells(dtype: DType) -> None:
    kind = getattr(torch, dtype.name)
    assert dtype.storage.itemsize == kind.itemsize
    assert (dtype.kind is Kind.COMPLEX, dtype.kind is Kind.FLOAT) == (
        kind.is_complex,
        kind.is_floating_point,
    )
    if dtype.kind in (Kind.FLOAT, Kind.COMPLEX):
        assert dtype.largest == torch.finfo(kind).max
        # PyTorch's is wrong for float8_e5m2fnuz
        eps = ml_dtypes.finfo(dtype.ml_dtype).eps if dtype.ml_dtype else torch.finfo(kind).eps
        assert 2 * dtype.rounding == eps
    if dtype.kind is Kind.FLOAT and "fn" not in dtype.name:
        bits = torch.ones(1, dtype=getattr(torch, f"int{8 * kind.itemsize}"))
        assert dtype.spacing == bits.view(kind).double().item()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (2, 3)])
def test_widening_keeps_the_shape(dtype: DType, shape: tuple[int, ...]) -> None:
    widened = widen(np.zeros(shape, dtype.storage), dtype)
    assert (widened.shape, widened.dtype) == (shape, dtype.widened)


def test_types_that_numpy_has_are_widened_without_a_copy() -> None:
    raw = np.ones(3, np.float32)
    assert widen(raw, DTYPES["float32"]) is raw


def test_complex32_is_a_pair_of_halves() -> None:
    raw = np.array([1.5, -2.0, 0.0, 65504.0], np.float16).view(np.uint32)
    assert widen(raw, DTYPES["complex32"]).tolist() == [1.5 - 2j, 65504j]


def between(dtype: DType, wide: type) -> np.ndarray:
    """Every finite value of a type, the midpoints between neighbours, what is just beside those,
    and what overflows.
    """
    values = widen(every_bit_pattern(dtype), dtype).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    middles = (values[:-1] + values[1:]) / 2
    edges = np.concatenate(
        [values, middles, [dtype.largest * 1.01, -dtype.largest * 4, np.inf, -np.inf, np.nan]]
    ).astype(wide)
    return np.concatenate(
        [edges, np.nextafter(edges, wide(np.inf)), np.nextafter(edges, wide(-np.inf))]
    )


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        (wide, narrow)
        for wide, names in ROUNDS_TO.items()
        for narrow in names
        if narrow != "float32"
    ],
)
def test_rounding_is_that_of_tensor_to(wide: str, narrow: str) -> None:
    with np.errstate(all="ignore"):
        values = between(DTYPES[narrow], np.dtype(wide).type)
        rounded = widen(round_to(values, DTYPES[narrow]), DTYPES[narrow]).astype(np.float32)
    expected = torch.from_numpy(values).to(getattr(torch, narrow)).to(torch.float32).numpy()
    assert same_bits_but_for_nan(rounded, expected)


def test_rounding_float64_to_float32_is_that_of_tensor_to() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=20_000) * 10.0 ** rng.uniform(-50, 50, 20_000)
    assert same_bits_but_for_nan(
        round_to(values, DTYPES["float32"]), torch.from_numpy(values).to(torch.float32).numpy()
    )


@pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: dtype.name)
def test_rounding_undoes_widening(dtype: DType) -> None:
    raw = every_bit_pattern(dtype)
    finite = raw[np.isfinite(widen(raw, dtype))]
    assert (round_to(widen(finite, dtype), dtype) == finite).all()


def test_every_type_that_numpy_lacks_is_in_ml_dtypes() -> None:
    assert all(hasattr(ml_dtypes, dtype.ml_dtype) for dtype in DTYPES.values() if dtype.ml_dtype)
