"""The compiled pass over a block of tensors, where it could be built; every caller has its NumPy form beside it.

``ACCUCOMPARE_KERNEL=numpy`` in the environment switches it off.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from accucompare.bundle import sums
from accucompare.bundle.dtypes import Array, DType

_kernel: Any = None
_why_not = "switched off by ACCUCOMPARE_KERNEL"
if os.environ.get("ACCUCOMPARE_KERNEL", "").lower() != "numpy":
    try:
        from accucompare.bundle import _kernel
    except ImportError as error:
        _why_not = f"not built: {error}"

#: The kernel's numbers for element types, by dtype name; complex types are pairs of their real type.
_TYPES = {
    "float64": 0, "complex128": 0, "float32": 1, "complex64": 1, "float16": 2, "bfloat16": 3,
    "int8": 4, "int16": 5, "int32": 6, "uint8": 7, "bool": 7, "uint16": 8, "uint32": 9,
}  # fmt: skip


def description() -> str:
    """Which form is in use, in words."""
    return f"NumPy ({_why_not})" if _kernel is None else "compiled"


class BlockMeasure(NamedTuple):
    """What one pass over a block of a pair finds; the names are those of ``compare.measure``.

    ``place`` is the first position of ``max_abs`` in the block, -1 where there is no difference; NaN and Inf are set aside.
    """

    compared: int
    max_abs: float
    place: int
    max_rel: float
    tolerance_used: float
    needed_atol: float
    over_tolerance: int
    over_1e3: int
    over_5e3: int
    max_ulp: int
    golden_nan: int
    candidate_nan: int
    golden_inf: int
    candidate_inf: int
    nonfinite_mismatch: int
    saturated: int
    largest_golden: float
    largest_candidate: float


def _number(values: Array, dtype: DType) -> int:
    """The kernel's number of a type, after a look at whether an array holds it; -1, which the kernel refuses, for one it lacks."""
    if values.dtype != dtype.storage:
        raise ValueError(f"a block of {dtype.name} must be an array of {dtype.storage}, not {values.dtype}")
    return _TYPES.get(dtype.name, -1)


def can_measure(golden: DType, candidate: DType) -> bool:
    """Whether the compiled pass is there and knows both types."""
    return _kernel is not None and golden.name in _TYPES and candidate.name in _TYPES


def measure_block(
    golden: Array, candidate: Array, golden_dtype: DType, candidate_dtype: DType, atol: float | None, rtol: float | None
) -> tuple[BlockMeasure, list[list[float]]]:
    """Measure a block of a pair in one pass, without the interpreter's lock.

    Args:
        golden, candidate: stored bits, contiguous and equally long, starting at a chunk's start.
        golden_dtype, candidate_dtype: their true types, both of one kind, that ``can_measure``.
        atol, rtol: as for ``compare.measure.measure``.

    Returns:
        What was found, and the chunk sums of golden^2, candidate^2, d^2, d * (golden + candidate), |d| and d, in this order.

    Raises:
        ValueError: if the blocks are not equally long, not contiguous, not of the types' storage, or of two kinds.
    """
    if golden_dtype.kind is not candidate_dtype.kind:
        raise ValueError(f"{golden_dtype.name} and {candidate_dtype.name} are numbers of different kinds")
    found, chunk_sums = _kernel.measure_block(
        golden,
        candidate,
        _number(golden, golden_dtype),
        _number(candidate, candidate_dtype),
        sums.CHUNK,
        atol or 0.0,
        -1.0 if atol is None and rtol is None else rtol or 0.0,
        candidate_dtype.largest,
    )
    return BlockMeasure._make(found), chunk_sums


def apart_block(
    golden: Array,
    candidate: Array,
    golden_dtype: DType,
    candidate_dtype: DType,
    powers: tuple[float, float],
    lengths: tuple[float, float],
) -> list[float]:
    """The chunk sums of (candidate * |golden| - golden * |candidate|)^2 over a block, without the interpreter's lock.

    Args:
        golden, candidate, golden_dtype, candidate_dtype: as for ``measure_block``.
        powers: of two, that golden's and the candidate's values are multiplied by first.
        lengths: |golden| and |candidate| after that.

    Raises:
        ValueError: as for ``measure_block``.
    """
    types = _number(golden, golden_dtype), _number(candidate, candidate_dtype)
    (squares,) = _kernel.apart_block(golden, candidate, *types, sums.CHUNK, *powers, *lengths)
    return squares  # type: ignore[no-any-return]


def can_summarize(dtype: DType) -> bool:
    """Whether the compiled pass is there and knows the type."""
    return _kernel is not None and dtype.name in _TYPES


def summarize_block(values: Array, dtype: DType) -> tuple[float, float, int, int, list[float], list[float]]:
    """Summarize a block in one pass, without the interpreter's lock.

    Args:
        values: stored bits, contiguous, starting at a chunk's start.
        dtype: their true type, one that ``can_summarize``.

    Returns:
        Smallest and largest finite value (inf and -inf where there is none), numbers of NaN and Inf, and the chunk sums of the
        finite values and of their squares.

    Raises:
        ValueError: if the block is not contiguous or not of the type's storage.
    """
    low, high, nan, inf, (totals, squares) = _kernel.summarize_block(values, _number(values, dtype), sums.CHUNK)
    return low, high, nan, inf, totals, squares
