"""The table of element types that a bundle can hold.

NumPy has no bfloat16 and no fp8: such tensors are stored as raw bits in an unsigned integer array,
and the record keeps PyTorch's name of the true type (``bfloat16``). ``widen`` turns raw bits into
values, always exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Kind(str, Enum):
    """What sort of number a type holds; only tensors of one kind are compared with each other."""

    FLOAT = "float"
    COMPLEX = "complex"
    INT = "int"
    BOOL = "bool"


@dataclass(frozen=True)
class DType:
    """One element type."""

    name: str  # PyTorch's name without ``torch.``
    kind: Kind
    storage: np.dtype[Any]  # the NumPy type in the ``.npz``
    widened: np.dtype[Any]  # the NumPy type whose values ``widen`` returns
    ml_dtype: str = ""  # the name in ``ml_dtypes`` of a type NumPy lacks, or ``""``
    digits: int = 0  # significand bits, the hidden one included (0 for ints and bools)
    largest: float = 0.0  # the largest finite value (0 for ints and bools)
    signed: bool = True  # whether the highest bit is a sign (false for ``float8_e8m0fnu``)

    @property
    def rounding(self) -> float:
        """Unit roundoff, 2**-digits: the largest relative error of rounding to this type."""
        return 2.0**-self.digits if self.digits else 0.0

    @property
    def spacing(self) -> float:
        """The distance of the numbers nearest to zero; 0 for ints and bools."""
        if not self.digits:
            return 0.0
        return math.ldexp(1.0, 3 - math.frexp(self.largest)[1] - self.digits)

    @property
    def flushed(self) -> float:
        """Numbers below this may count as zero; 0 for ints, and for types of few exponents.

        Accelerators keep float16's subnormal numbers, and flush those of float32 and bfloat16.
        """
        return math.ldexp(self.spacing, self.digits - 1) if self.largest > 1e38 else 0.0

    def reals(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A tensor's shape; complex numbers add a last 2 for real and imaginary parts."""
        return (*shape, 2) if self.kind is Kind.COMPLEX else shape


def _float(
    name: str,
    storage: str,
    widened: str,
    ml_dtype: str,
    digits: int,
    largest: float,
    signed: bool = True,
) -> DType:
    return DType(
        name, Kind.FLOAT, np.dtype(storage), np.dtype(widened), ml_dtype, digits, largest, signed
    )


_FLOAT16_MAX = 65504.0
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_FLOAT64_MAX = float(np.finfo(np.float64).max)

DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        _float("float64", "<f8", "<f8", "", 53, _FLOAT64_MAX),
        _float("float32", "<f4", "<f4", "", 24, _FLOAT32_MAX),
        _float("float16", "<f2", "<f2", "", 11, _FLOAT16_MAX),
        _float("bfloat16", "<u2", "<f4", "bfloat16", 8, 3.3895313892515355e38),
        _float("float8_e5m2", "u1", "<f4", "float8_e5m2", 3, 57344.0),
        _float("float8_e5m2fnuz", "u1", "<f4", "float8_e5m2fnuz", 3, 57344.0),
        _float("float8_e4m3fn", "u1", "<f4", "float8_e4m3fn", 4, 448.0),
        _float("float8_e4m3fnuz", "u1", "<f4", "float8_e4m3fnuz", 4, 240.0),
        _float("float8_e8m0fnu", "u1", "<f4", "float8_e8m0fnu", 1, 2.0**127, signed=False),
        DType("complex128", Kind.COMPLEX, np.dtype("<c16"), np.dtype("<c16"), "", 53, _FLOAT64_MAX),
        DType("complex64", Kind.COMPLEX, np.dtype("<c8"), np.dtype("<c8"), "", 24, _FLOAT32_MAX),
        DType("complex32", Kind.COMPLEX, np.dtype("<u4"), np.dtype("<c8"), "", 11, _FLOAT16_MAX),
        *(
            DType(
                name, Kind.INT, np.dtype(name).newbyteorder("<"), np.dtype(name).newbyteorder("<")
            )
            for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
        ),
        DType("bool", Kind.BOOL, np.dtype("?"), np.dtype("?")),
    )
}

#: For each floating type, the narrower ones that a candidate may run in, on rounded golden weights.
ROUNDS_TO = {"float64": ("float32", "float16", "bfloat16"), "float32": ("float16", "bfloat16")}


@cache
def _ml_dtype(name: str) -> np.dtype[Any]:
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


def widen(raw: Array, dtype: DType) -> Array:
    """Turn stored bits into values, exactly. Returns an array of the same shape and of type
    ``dtype.widened``; ``raw`` itself if the types agree.

    Args:
        raw: an array of ``dtype.storage``, any shape.
        dtype: its true type.
    """
    if dtype.storage == dtype.widened:
        return raw
    if dtype.name == "bfloat16":  # its bits are the upper half of a float32's
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype.name == "complex32":
        with np.errstate(invalid="ignore"):  # a signalling NaN is a value like any other here
            pairs = np.ascontiguousarray(raw).reshape(-1).view(np.float16).astype(np.float32)
        return pairs.view(np.complex64).reshape(raw.shape)
    return raw.view(_ml_dtype(dtype.ml_dtype)).astype(dtype.widened)


def round_to(values: Array, dtype: DType) -> Array:
    """Round float64 or float32 values to a narrower floating type, to nearest even, as
    ``tensor.to`` does.

    PyTorch rounds float64 to bfloat16 and float16 by way of float32; so does this. Returns the raw
    bits, an array of ``dtype.storage``."""
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(np.float32)
        if not dtype.ml_dtype:
            return single.astype(dtype.storage)
        return single.astype(_ml_dtype(dtype.ml_dtype)).view(dtype.storage)
