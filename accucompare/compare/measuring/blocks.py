"""Two tensors read in step, block by block, as float64 values that can be subtracted."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from accucompare.compare.measuring.masks import is_masked
from accucompare.numbers import Array, DType, Float64, Kind, as_reals, kernel, widen
from accucompare.numbers import sums as chunked

#: The fewest slices left elsewhere before the last dimension, usually the channels, is thinned.
FEWEST_SLICES = 32


@dataclass(frozen=True)
class Sample:
    """Which elements of a tensor are read."""

    shape: tuple[int, ...]  # of the whole
    # starts, steps: each dimension's first slice, and the step to the next
    starts: tuple[int, ...]
    steps: tuple[int, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], most: int, around: tuple[int, ...]) -> Sample:
        """A sample of at most ``most`` elements of a nonempty shape, with the index ``around``."""
        steps = [1] * len(shape)
        while (
            math.prod(counts := [-(-size // step) for size, step in zip(shape, steps, strict=True)])
            > most
        ):
            before = [dim for dim in range(len(shape) - 1) if counts[dim] > FEWEST_SLICES]
            steps[max(before or range(len(shape)), key=counts.__getitem__)] *= 2
        return cls(
            shape, tuple(at % step for at, step in zip(around, steps, strict=True)), tuple(steps)
        )

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Sample:
        return cls(shape, (0,) * len(shape), (1,) * len(shape))

    @property
    def slices(self) -> tuple[slice, ...]:
        """The sample as an index of the whole."""
        return tuple(
            slice(start, None, step) for start, step in zip(self.starts, self.steps, strict=True)
        )

    def indices(self) -> list[NDArray[np.intp]]:
        """The slices that are read, for each dimension."""
        return [np.arange(*each) for each in zip(self.starts, self.shape, self.steps, strict=True)]

    @property
    def one_in(self) -> int:
        """Of so many elements one is read."""
        return math.prod(self.steps)


#: Yields a tensor's stored bits from one element (a segment's first) to another, as 1-d blocks of
#: whole chunks, the last one shorter. May be called again, and by several threads at once.
Blocks = Callable[[int, int], Iterator[Array]]


class Segment(NamedTuple):
    """A stretch of both tensors, in stored elements, that one thread measures."""

    start: int
    stop: int


@dataclass(slots=True)
class Block:
    """A stretch of both tensors: bits, and float64 values, 0 where not finite or masked on both."""

    start: int
    golden_raw: Array
    candidate_raw: Array
    golden: Float64
    candidate: Float64
    diff: Float64
    # on both sides, and not masked on both; None: everything is
    finite: NDArray[np.bool_] | None = None
    masked: NDArray[np.bool_] | None = None  # on both sides; None: nothing is


class _Scratch(threading.local):
    """A thread's float64 arrays, used again for every block."""

    def __init__(self) -> None:
        self.arrays = [np.empty(0) for _ in range(6)]


_scratch = _Scratch()


def scratch(which: int, length: int) -> Float64:
    """``length`` elements of one of this thread's six arrays: 0 to 2 the block's, 3 to 5 free."""
    arrays = _scratch.arrays
    if len(arrays[which]) < length:
        arrays[which] = np.empty(length)
    return arrays[which][:length]


class PairOfTensors:
    """Two tensors of one shape and kind, read in step. ``masks``: whether to look for masks."""

    def __init__(
        self,
        golden: Blocks,
        candidate: Blocks,
        golden_dtype: DType,
        candidate_dtype: DType,
        elements: int,
        masks: bool = False,
    ) -> None:
        self._golden = golden
        self._candidate = candidate
        self.golden_dtype = golden_dtype
        self.candidate_dtype = candidate_dtype
        self.elements = elements
        self.masks = masks
        self.reals = 2 if golden_dtype.kind is Kind.COMPLEX else 1  # in an element

    @property
    def compiled(self) -> bool:
        """Whether the compiled kernel can measure it; the kernel does not look for masks."""
        return not self.masks and kernel.can_measure(self.golden_dtype, self.candidate_dtype)

    def segments(self, split: bool) -> list[Segment]:
        """The whole, or the parts that can be measured separately."""
        size = chunked.SEGMENT
        if self.elements <= size or not split:
            return [Segment(0, self.elements)]
        return [
            Segment(start, min(start + size, self.elements))
            for start in range(0, self.elements, size)
        ]

    def raw_blocks(self, segment: Segment) -> Iterator[tuple[Array, Array]]:
        """Both tensors' stored bits."""
        return zip(
            self._golden(segment.start, segment.stop),
            self._candidate(segment.start, segment.stop),
            strict=True,
        )

    def blocks(self, segment: Segment) -> Iterator[Block]:
        """Every block; its float64 arrays are 0 where not finite, or masked, on both sides."""
        start = segment.start * self.reals
        for golden_raw, candidate_raw in self.raw_blocks(segment):
            golden_values = as_reals(widen(golden_raw, self.golden_dtype))
            candidate_values = as_reals(widen(candidate_raw, self.candidate_dtype))
            length = len(golden_values)
            block = Block(
                start,
                golden_raw,
                candidate_raw,
                scratch(0, length),
                scratch(1, length),
                scratch(2, length),
            )
            np.copyto(block.golden, golden_values)
            np.copyto(block.candidate, candidate_values)
            if (
                golden_values.dtype.kind in "iu"
                and max(golden_values.dtype.itemsize, candidate_values.dtype.itemsize) == 8
            ):
                block.diff[:] = _integer_difference(golden_values, candidate_values)
            else:
                np.subtract(block.candidate, block.golden, out=block.diff)
                if self.masks:
                    block.masked = is_masked(block.golden, self.golden_dtype) & is_masked(
                        block.candidate, self.candidate_dtype
                    )
                if golden_values.dtype.kind == "f" and (
                    self.masks or not math.isfinite(float(np.add.reduce(block.diff)))
                ):
                    _set_aside_nonfinite(block)
            yield block
            start += length


def _set_aside_nonfinite(block: Block) -> None:
    finite = np.isfinite(block.golden) & np.isfinite(block.candidate)
    if block.masked is not None:
        finite &= ~block.masked
    if not finite.all():
        block.finite = finite
        block.golden[~finite] = 0.0
        block.candidate[~finite] = 0.0
        np.subtract(block.candidate, block.golden, out=block.diff)


def _integer_difference(golden: Array, candidate: Array) -> Float64:
    """candidate - golden of 64-bit integers, subtracted as integers and rounded once."""
    # int64 against uint64: split off the negative values
    if golden.dtype.kind != candidate.dtype.kind:
        signed, unsigned, sign = (
            (golden, candidate, 1.0) if golden.dtype.kind == "i" else (candidate, golden, -1.0)
        )
        negative = signed < 0
        plain = _integer_difference(
            np.where(negative, 0, signed).astype(np.uint64), unsigned.astype(np.uint64)
        )
        return sign * np.where(
            negative, unsigned.astype(np.float64) - signed.astype(np.float64), plain
        )
    wide = np.int64 if golden.dtype.kind == "i" else np.uint64
    golden, candidate = golden.astype(wide), candidate.astype(wide)
    larger = candidate >= golden  # modulo 2**64 the larger minus the smaller is always right
    up = (candidate.view(np.uint64) - golden.view(np.uint64)).astype(np.float64)
    down = (golden.view(np.uint64) - candidate.view(np.uint64)).astype(np.float64)
    return np.where(larger, up, -down)
