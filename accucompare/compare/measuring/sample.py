"""An even sample of a tensor too large to read: one slice in so many along each dimension."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: The fewest slices left elsewhere before the last dimension, usually the channels, is thinned.
FEWEST_SLICES = 32


@dataclass(frozen=True)
class Sample:
    """Which elements of a tensor are read.

    Attributes:
        shape: of the whole.
        starts, steps: each dimension's first slice, and the step to the next.
    """

    shape: tuple[int, ...]
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
