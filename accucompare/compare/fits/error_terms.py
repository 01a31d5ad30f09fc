"""How far off an output is expected to be, for any choice of modules that are kept in float32.

A module's own error e moves the output by J · e, where J is the output's derivative with respect to
what the module returns. Of each J · e some numbers are known: its products with random directions
v, which one backward of golden gives for all modules at once, since v · J · e = (vᵀJ) · e. The mean
of their squares is ‖J · e‖². An output that has no more elements than there are directions is known
element by element: then errors are added as vectors, and may cancel. Else they are taken to be at
right angles, as roundings are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from accucompare.compare.fits.called_tree import CalledTree, Mask

#: The terms of a module: computed in the lower type; kept, and cast for a caller in the lower type;
#: computed in the lower type from what a caller in float32 gives it.
LOW, LEAVING, ENTERING = range(3)
#: Stands for an overflow: no sum with it is within any tolerance.
_OVERFLOW = 1e30


@dataclass(frozen=True)
class ErrorTerms:
    """The products of errors with directions, relative to golden's norm.

    Attributes:
        products: of shape (outputs, 3, modules, directions).
        directions: how many each output has; where it has fewer than others, zeros follow.
        exact: of each output, whether the directions are its elements.
    """

    tree: CalledTree
    products: NDArray[np.float64]
    directions: NDArray[np.intp]
    exact: NDArray[np.bool_]

    @cached_property
    def squares(self) -> NDArray[np.float64]:
        """‖J · e‖² of each term, of shape (outputs, 3, modules)."""
        squared = np.square(self._finite)
        scale = np.where(self.exact, 1.0, 1 / self.directions)
        summed: NDArray[np.float64] = squared.sum(-1) * scale[:, None, None]
        return summed

    @cached_property
    def _finite(self) -> NDArray[np.float64]:
        return np.where(np.isfinite(self.products), self.products, _OVERFLOW)

    def active(self, kept: Mask) -> Mask:
        """Which terms there are, of shape (…, 3, modules); the root's caller is in float32."""
        around = np.where(self.tree.parents < 0, True, kept[..., self.tree.parents])
        found: Mask = np.stack([~kept, kept & ~around, ~kept & around], axis=-2)
        return found

    def expected(self, kept: Mask) -> NDArray[np.float64]:
        """The largest relative L2 error of an output, for each mask of shape (…, modules)."""
        active = self.active(kept)
        squares = np.einsum("...tm,otm->...o", active, self.squares)
        for number in np.flatnonzero(self.exact):
            sums = np.einsum("...tm,tmd->...d", active, self._finite[number])
            squares[..., number] = np.square(sums).sum(-1)
        found: NDArray[np.float64] = np.sqrt(squares.max(-1))
        return found

    def shares(self, groups: Sequence[Sequence[int]]) -> list[float]:
        """Of groups of modules, nothing kept: the share of the worst output's squared error."""
        active = self.active(np.zeros(len(self.tree), np.bool_))
        squares = (active * self.squares).sum(1)
        worst = squares[squares.sum(-1).argmax()]
        total = float(worst.sum()) or 1.0
        return [float(worst[[*group]].sum()) / total for group in groups]
