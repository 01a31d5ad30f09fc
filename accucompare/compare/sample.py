"""An even sample of a tensor that is too large to be looked at whole: every so many slices along each dimension."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Slices that are left along a dimension before the last one, which holds channels more often than not, is thinned.
FEWEST_SLICES = 32


@dataclass(frozen=True)
class Sample:
    """Which elements are looked at.

    Attributes:
        shape: of the whole.
        starts, steps: of each dimension, the first slice that is looked at, and one in how many is.
    """

    shape: tuple[int, ...]
    starts: tuple[int, ...]
    steps: tuple[int, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], most: int, around: tuple[int, ...]) -> Sample:
        """A sample of at most so many elements.

        Args:
            shape: of the whole, at least one element.
            most: elements.
            around: an index that is in it.
        """
        steps = [1] * len(shape)
        while math.prod(counts := [-(-size // step) for size, step in zip(shape, steps, strict=True)]) > most:
            before = [dim for dim in range(len(shape) - 1) if counts[dim] > FEWEST_SLICES]
            steps[max(before or range(len(shape)), key=counts.__getitem__)] *= 2
        return cls(shape, tuple(at % step for at, step in zip(around, steps, strict=True)), tuple(steps))

    @property
    def slices(self) -> tuple[slice, ...]:
        """It as an index of the whole."""
        return tuple(slice(start, None, step) for start, step in zip(self.starts, self.steps, strict=True))

    def indices(self) -> list[NDArray[np.intp]]:
        """Of each dimension, the slices that are looked at."""
        return [np.arange(*each) for each in zip(self.starts, self.shape, self.steps, strict=True)]

    def share(self) -> str:
        """``a sample of 1 in 32 elements``."""
        return f"a sample of 1 in {math.prod(self.steps):,} elements"
