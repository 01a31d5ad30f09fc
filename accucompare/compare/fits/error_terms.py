"""How far off an output is expected to be, for any choice of modules that are kept in float32.

A module's own error e moves the output by J · e, where J is the output's derivative with respect to
what the module returns. Of each J · e some numbers are known: its products with random directions
v, which one backward of golden gives for all modules at once, since v · J · e = (vᵀJ) · e. The mean
of their squares is ‖J · e‖². An output that has no more elements than there are directions is known
element by element: then errors are added as vectors, and may cancel. Else they are taken to be at
right angles, as roundings are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from accucompare.compare.fits.called_tree import CalledTree, Mask

#: The terms of a module: computed in the lower type; kept, and cast for a caller in the lower type;
#: computed in the lower type from what a caller in float32 gives it.
LOW, LEAVING, ENTERING = range(3)
#: Stands for an overflow: no sum with it is within any tolerance.
_OVERFLOW = 1e30
#: Where runs alone tell errors: what a door adds, as a share of the squared error of a module, in
#: which its weights and its result are rounded.
AT_DOORS = 0.5
_FITTED_TIMES = 20
#: Of so many terms of choices, sums are made at once.
_MOST_AT_ONCE = 1 << 23


class TermEstimates(NamedTuple):
    """Of some choices, without any run."""

    errors: NDArray[np.float64]  # the largest relative L2 error of an output
    # the sum of products of its terms' shares with those of other choices
    overlaps: NDArray[np.float64]
    alone: NDArray[np.float64]  # the same with its own


@dataclass(frozen=True)
class ErrorTerms:
    """The products of errors with directions, relative to golden's norm."""

    tree: CalledTree
    products: NDArray[np.float64]  # of shape (outputs, 3, modules, directions)
    # how many each output has; where it has fewer than others, zeros follow
    directions: NDArray[np.intp]
    exact: NDArray[np.bool_]  # of each output, whether the directions are its elements

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

    @classmethod
    def of_runs(
        cls,
        tree: CalledTree,
        groupings: Sequence[Sequence[Sequence[int]]],
        errors: Sequence[Sequence[float]],
    ) -> ErrorTerms:
        """Of runs in which one group of modules alone was in the lower type.

        Args:
            groupings: two ways to divide all modules into groups.
            errors: of each group's run.
        """
        places = np.zeros((2, len(tree)), np.intp)
        for way, groups in enumerate(groupings):
            for number, group in enumerate(groups):
                places[way, [*group]] = number
        found = np.ones(len(tree))
        for _ in range(_FITTED_TIMES):  # the sums of each way are to be the runs', the first last
            for way in (1, 0):
                wanted = np.square(np.minimum(errors[way], _OVERFLOW))
                sums = np.bincount(places[way], found, len(wanted))
                found *= (wanted / np.maximum(sums, 1e-300))[places[way]]
        products = np.zeros((1, 3, len(tree), 1))
        products[0, :, :, 0] = np.sqrt(found) * np.sqrt([[1.0], [AT_DOORS], [AT_DOORS]])
        return cls(tree, products, np.array([1]), np.array([False]))

    def estimates(self, kept: Mask, weights: NDArray[np.float64] | None = None) -> TermEstimates:
        """How far off each choice should be.

        Args:
            kept: masks, of shape (choices, modules).
            weights: of other choices, to be held against these: of shape (others, 3 * modules).
        """
        others = np.zeros((0, 3 * len(self.tree))) if weights is None else weights
        size = max(1, _MOST_AT_ONCE // (3 * len(self.tree)))
        parts = [
            self._estimates(kept[start : start + size], others)
            for start in range(0, len(kept), size)
        ]
        return TermEstimates(*map(np.concatenate, zip(*parts, strict=True)))

    def _estimates(self, kept: Mask, others: NDArray[np.float64]) -> TermEstimates:
        active = self.active(kept)
        flat, flat_squares = (
            active.reshape(len(kept), -1),
            self.squares.reshape(len(self.exact), -1),
        )
        sums = flat @ flat_squares.T
        worst = sums.argmax(-1)
        overlaps, alone = np.zeros((len(kept), len(others))), np.zeros(len(kept))
        for number, squares in enumerate(flat_squares):
            picked = worst == number
            terms, total = flat[picked], np.maximum(sums[picked, number], 1e-150)
            overlaps[picked] = terms @ (others * squares).T / total[:, None]
            alone[picked] = terms @ np.square(squares) / np.square(total)
        for output in np.flatnonzero(self.exact):
            together = np.einsum("ctm,tmd->cd", active, self._finite[output])
            sums[:, output] = np.square(together).sum(-1)
        return TermEstimates(np.sqrt(sums.max(-1)), overlaps, alone)

    def weights(self, kept: Mask) -> NDArray[np.float64]:
        """The share of each term in the squared error of the worst output, of one choice."""
        squares = self.active(kept).reshape(-1) * self.squares.reshape(len(self.exact), -1)
        totals = squares.sum(-1)
        found: NDArray[np.float64] = squares[totals.argmax()] / (totals.max() or 1.0)
        return found

    def scaled(self, factors: NDArray[np.float64]) -> ErrorTerms:
        """Terms with squares that are so much larger; ``factors`` has one for each."""
        roots = np.sqrt(factors).reshape(3, len(self.tree))
        return replace(self, products=self._finite * roots[None, :, :, None])

    def shares(self, groups: Sequence[Sequence[int]]) -> list[float]:
        """Of groups of modules, nothing kept: the share of the worst output's squared error."""
        active = self.active(np.zeros(len(self.tree), np.bool_))
        squares = (active * self.squares).sum(1)
        worst = squares[squares.sum(-1).argmax()]
        total = float(worst.sum()) or 1.0
        return [float(worst[[*group]].sum()) / total for group in groups]
