"""The compiled kernel, if it was built: one pass over a block of tensors. NumPy can do the same.

``ACCUCOMPARE_KERNEL=numpy`` in the environment switches it off."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accucompare.numbers import sums
from accucompare.numbers.dtypes import Array, DType, Kind

#: Version of the kernel's arguments and results; its source has the same number.
KERNEL_VERSION = 4

_kernel: Any = None
_why_not = "switched off by ACCUCOMPARE_KERNEL"
if (_asked := os.environ.get("ACCUCOMPARE_KERNEL", "").lower()) != "numpy":
    if _asked:
        logging.getLogger(__name__).warning(
            "ACCUCOMPARE_KERNEL=%s: numpy is its only value; the compiled kernel is used", _asked
        )
    try:
        from accucompare.numbers import _kernel
    except ImportError as error:
        _why_not = f"not built: {error}"
    else:
        # its results would be misread
        if getattr(_kernel, "VERSION", 1) != KERNEL_VERSION:
            _kernel = None
            _why_not = "the built one is of another version; install accucompare again"

#: The kernel's numbers for element types, by dtype name; complex types are pairs of their real
#: type.
_TYPES = {
    "float64": 0, "complex128": 0, "float32": 1, "complex64": 1, "float16": 2, "bfloat16": 3,
    "int8": 4, "int16": 5, "int32": 6, "uint8": 7, "bool": 7, "uint16": 8, "uint32": 9,
}  # fmt: skip


#: Types of which the kernel finds extrema.
_REALS = (
    {name: _TYPES[name] for name in ("float64", "float32", "float16", "bfloat16")}
    if hasattr(_kernel, "extrema_at")
    else {}
)
_range_at = getattr(_kernel, "range_at", None)


def description() -> str:
    """Which form is in use, in words."""
    return f"NumPy ({_why_not})" if _kernel is None else "compiled"


class Measured(NamedTuple):
    """What the kernel measures of a pair, named as in ``compare.measuring.measure``, in the order
    of ``compare.measuring.scan``.

    ``max_abs_index`` and ``nonfinite_index`` are positions from the start of what was measured,
    ``None`` without a difference or mismatch. ``max_ulp`` means nothing unless both sides have the
    same floating type. All else leaves NaN and Inf out."""

    compared: int
    max_abs: float
    max_abs_index: int | None
    golden_at_max: float
    candidate_at_max: float
    max_rel: float
    max_ulp: int
    over_tolerance: int
    tolerance_used: float
    needed_atol: float
    over_1e3: int
    over_5e3: int
    golden_nan: int
    candidate_nan: int
    golden_inf: int
    candidate_inf: int
    nonfinite_mismatch: int
    nonfinite_index: int | None
    saturated: int
    largest_golden: float
    largest_candidate: float


#: What ``measure_pairs`` finds of each pair: the kernel's ``Result``, in the order of its fields.
RESULT = np.dtype(
    [
        *((name, "f8") for name in (
            "max_abs", "max_rel", "tolerance_used", "needed_atol", "largest_golden",
            "largest_candidate", "golden_at_max", "candidate_at_max",
        )),
        *((name, "i8") for name in (
            "seen", "max_abs_index", "nonfinite_index", "compared", "over_tolerance", "over_1e3",
            "over_5e3", "golden_nan", "candidate_nan", "golden_inf", "candidate_inf",
            "nonfinite_mismatch", "saturated",
        )),
        ("max_ulp", "u8"),
    ]
)  # fmt: skip


def _number(values: Array, dtype: DType) -> int:
    """The kernel's number for a type; it refuses -1. ValueError for another storage type."""
    if values.dtype != dtype.storage:
        raise ValueError(
            f"a block of {dtype.name} must be an array of {dtype.storage}, not {values.dtype}"
        )
    return _TYPES.get(dtype.name, -1)


def is_compiled() -> bool:
    """Whether there is a kernel."""
    return _kernel is not None


def can_take(golden: DType, candidate: DType) -> bool:
    """Whether a kernel can measure both types."""
    return golden.name in _TYPES and candidate.name in _TYPES


def can_measure(golden: DType, candidate: DType) -> bool:
    """Whether there is a kernel and it knows both types."""
    return is_compiled() and can_take(golden, candidate)


class Measurement:
    """Measures a pair block by block, each in one pass, without the GIL."""

    #: Sums per chunk.
    SUMS = 8

    def __init__(
        self, golden: DType, candidate: DType, atol: float | None, rtol: float | None, elements: int
    ) -> None:
        """Prepare for two types. Raises ValueError if the types are of two kinds.

        Args:
            golden, candidate: the true types, both of one kind, for which ``can_measure`` holds.
            atol, rtol: as for ``compare.measuring.measure_pair``.
            elements: the most that will be added.
        """
        if golden.kind is not candidate.kind:
            raise ValueError(f"{golden.name} and {candidate.name} are numbers of different kinds")
        self._golden = golden
        self._candidate = candidate
        self._limits = _limits(candidate, atol, rtol)
        self._result = _kernel.new_result()
        reals = elements * (2 if golden.kind is Kind.COMPLEX else 1)
        self._sums = np.empty((-(-reals // sums.CHUNK), self.SUMS))

    def add(self, golden: Array, candidate: Array) -> None:
        """Measure the next block. Raises ValueError if the blocks are not equally long, not
        contiguous, not of the types' storage, or more than was announced. ``golden``,
        ``candidate``: stored bits, contiguous and equally long, starting at a chunk's start."""
        types = _number(golden, self._golden), _number(candidate, self._candidate)
        _kernel.measure_block(
            golden, candidate, *types, sums.CHUNK, *self._limits, self._result, self._sums
        )

    def result(self) -> Measured:
        """What was measured in all blocks."""
        return Measured._make(_kernel.read_result(self._result))

    def chunk_sums(self) -> list[list[float]]:
        """The sums of every chunk, once all blocks were added.

        They are golden^2, candidate^2, d^2, d * (golden + candidate), |d| and d; then ``excess``
        and the sum of squares of ``rest``, where the chunk's candidate is (1 + excess) * golden +
        rest, and rest is perpendicular to golden. These two are NaN for types of more than 24 bits.
        """
        return self._sums.T.tolist()


def measure_whole(
    golden: Array,
    candidate: Array,
    golden_dtype: DType,
    candidate_dtype: DType,
    atol: float | None,
    rtol: float | None,
) -> tuple[Measured, list[list[float]]]:
    """A ``Measurement``'s result and chunk sums for two whole tensors, in a single call. Raises
    ValueError as ``Measurement.add`` does.

    Args:
        golden, candidate: stored bits, contiguous and equally long.
        golden_dtype, candidate_dtype, atol, rtol: as for ``Measurement``, of one kind.
    """
    types = _number(golden, golden_dtype), _number(candidate, candidate_dtype)
    measured, chunks = _kernel.measure_whole(
        golden, candidate, *types, sums.CHUNK, *_limits(candidate_dtype, atol, rtol)
    )
    return Measured._make(measured), chunks


@dataclass(frozen=True, eq=False)
class PairForm:
    """What small pairs share: ``Measurement``'s arguments, and 1 to ``sums.CHUNK`` reals."""

    golden: DType
    candidate: DType
    shape: tuple[int, ...]
    atol: float | None
    rtol: float | None

    @cached_property
    def of_reals(self) -> tuple[int, ...]:
        """The shape, in reals."""
        return self.golden.reals(self.shape)

    @cached_property
    def reals(self) -> int:
        return math.prod(self.of_reals)

    @cached_property
    def asks_elements(self) -> bool:
        """Whether there are limits on elements."""
        return self.atol is not None or self.rtol is not None

    @cached_property
    def has_ulps(self) -> bool:
        """Whether values have a distance in units in the last place."""
        return self.golden is self.candidate and self.golden.digits > 0


def measure_pairs(
    golden: bytes,
    candidate: bytes,
    starts: NDArray[np.int64],
    forms: Sequence[PairForm],
    form_of: NDArray[np.intp],
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """A ``Measurement``'s results for many small pairs, in a single call. Returns results of the
    type ``RESULT``, -1 for the index of nothing, and the sums of their only chunks, of shape
    (pairs, SUMS). Raises ValueError if a pair lies outside of its buffers or has more than a chunk.

    Args:
        golden, candidate: the buffers.
        starts: where each pair's two tensors begin in them, of shape (pairs, 2).
        forms: of one kind each, with types for which ``can_take`` holds.
        form_of: the number of each pair's form.
    """
    sizes = [(form.reals, _TYPES[form.golden.name], _TYPES[form.candidate.name]) for form in forms]
    limits = np.array([_limits(form.candidate, form.atol, form.rtol) for form in forms])[form_of]
    places = np.ascontiguousarray(np.hstack([starts, np.array(sizes, np.int64)[form_of]]))
    results = np.empty(len(starts), RESULT)
    found = np.empty((len(starts), Measurement.SUMS))
    _kernel.measure_pairs(golden, candidate, places, limits, results, found, sums.CHUNK)
    return results, found


def _limits(candidate: DType, atol: float | None, rtol: float | None) -> tuple[float, float, float]:
    """atol, rtol and the candidate type's largest value, as the kernel takes them."""
    return atol or 0.0, -1.0 if atol is None and rtol is None else rtol or 0.0, candidate.largest


def apart_block(
    golden: Array,
    candidate: Array,
    golden_dtype: DType,
    candidate_dtype: DType,
    powers: tuple[float, float],
    lengths: tuple[float, float],
) -> list[float]:
    """The chunk sums of (candidate * |golden| - golden * |candidate|)^2 over a block, without the
    GIL. Raises ValueError as for ``Measurement.add``.

    Args:
        golden, candidate: as for ``Measurement.add``.
        golden_dtype, candidate_dtype: their true types.
        powers: of two, that golden's and the candidate's values are multiplied by first.
        lengths: |golden| and |candidate| after that.
    """
    types = _number(golden, golden_dtype), _number(candidate, candidate_dtype)
    (squares,) = _kernel.apart_block(golden, candidate, *types, sums.CHUNK, *powers, *lengths)
    return squares  # type: ignore[no-any-return]


def extrema_at(
    address: int, count: int, dtype: str
) -> tuple[float, float, float, int, int, int, int] | None:
    """The extrema of a small tensor at an address of this process, as a hook sees it. Returns the
    smallest and the largest value and the smallest magnitude, with infinities but without NaN; the
    numbers of NaN, Inf, zeros and subnormals. ``None`` if there is no kernel or it does not know
    the type.

    Args:
        address, count: where, and how many elements, at least one. Nothing is checked.
        dtype: their type.
    """
    number = _REALS.get(dtype)
    return None if number is None else _kernel.extrema_at(address, number, count)


def range_at(address: int, count: int, dtype: str) -> tuple[float, float, float] | None:
    """The smallest and the largest value and the smallest magnitude, in a tenth of the time of
    ``extrema_at``. ``None`` if there is a NaN, no kernel, or a type that it does not know."""
    number = _REALS.get(dtype)
    return None if number is None or _range_at is None else _range_at(address, number, count)


def can_summarize(dtype: DType) -> bool:
    """Whether there is a kernel and it knows the type."""
    return _kernel is not None and dtype.name in _TYPES


def summarize_block(
    values: Array, dtype: DType
) -> tuple[float, float, int, int, list[float], list[float]]:
    """Summarize a block in one pass, without the GIL. Returns smallest and largest finite value
    (inf and -inf where there is none), numbers of NaN and Inf, and the chunk sums of the finite
    values and of their squares. Raises ValueError if the block is not contiguous or not of the
    type's storage.

    Args:
        values: stored bits, contiguous, starting at a chunk's start.
        dtype: their true type, for which ``can_summarize`` holds.
    """
    low, high, nan, inf, (totals, squares) = _kernel.summarize_block(
        values, _number(values, dtype), sums.CHUNK
    )
    return low, high, nan, inf, totals, squares


def sketch_blocks(
    values: Array,
    dtype: DType,
    scale: float,
    tables: tuple[Array, Array, Array],
    places: tuple[Array, Array],
    sketch: Array,
) -> None:
    """Add some blocks of a tensor to its sketch, without the GIL; see ``numbers.sketch``. Raises
    ValueError if an array is not contiguous, too short or not of the type's storage.

    Args:
        values: stored bits, contiguous, starting at a block's start.
        dtype: their true type, for which ``can_summarize`` holds.
        scale: what values are multiplied by.
        tables: signs, int8, of shape (rows, groups); buckets, int32, of shape (at least as many as
            the blocks, groups); signs of the groups, int8, likewise.
        places: rotations, int32, and signs, int8, one per block.
        sketch: float64, which is added to.
    """
    _kernel.sketch_blocks(
        values, _number(values, dtype), scale, *tables[0].shape, *tables, *places, sketch
    )


def fill_uniform(seed: int, values: Array, below: float | None = None) -> bool:
    """Fill an array with what ``torch.rand`` draws on the CPU from a generator of this seed.
    Returns whether it was filled; False without a kernel.

    Args:
        seed: its low 32 bits count.
        values: contiguous, float32, any shape.
        below: fill in 1 where the draw is below this, and 0 elsewhere.
    """
    fill = getattr(_kernel, "fill_uniform", None)
    if fill is not None:
        fill(seed, values, math.nan if below is None else below)
    return fill is not None
