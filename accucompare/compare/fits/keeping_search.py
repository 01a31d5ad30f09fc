"""The order in which choices of modules are tried: first the cheapest that should do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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


#: Of up to so many blocks, all subsets are estimated.
MOST_BLOCKS = 14
#: Of a path through all modules, so many points are estimated as vectors.
PATH_POINTS = 256
#: What another run must save to be worth it: of the share that is kept, and of the model.
WORTH_A_RUN, LEAST_WORTH = 0.03, 0.01
#: A run that is off its estimate by this factor shows that estimates mislead.
MISLED = 1.5
#: A smaller share is not halved.
LEAST_HALVED = 0.08
#: So much of the model is kept beside what is needed, if names become fewer.
FOR_FEWER_NAMES = 0.005


class Choice(NamedTuple):
    """Modules to keep.

    Attributes:
        share: of the model's cost.
        expected: error, before any run has told how good estimates are.
    """

    kept: Mask
    share: float
    expected: float


class KeepingSearch:
    """Proposes choices, and learns from what their runs show.

    Attributes:
        path: choices from nothing kept to everything, module by module.
        misled: whether a run was far from its estimate, as where experts are chosen.
    """

    def __init__(self, tree: CalledTree, terms: ErrorTerms, cost: NDArray[np.float64]) -> None:
        """``cost``: of each module's own code."""
        self._tree, self._terms = tree, terms
        self._cost = cost / (cost.sum() or 1.0)
        self._seen: list[tuple[float, float]] = []  # expected and real errors
        self._run: set[bytes] = set()
        self._shares_run: list[float] = []
        self.misled = False
        self.blocks, self._outer = tree.blocks(cost)
        self.path = self._chosen(_thinned(self._lowered_one_by_one()))
        self._by_block = self._chosen(self._subsets())

    def share(self, kept: Mask) -> float:
        return float(self._cost[kept].sum())

    def saw(self, kept: Mask, error: float) -> None:
        """What a run has shown."""
        self._run.add(kept.tobytes())
        self._shares_run.append(self.share(kept))
        expected = float(self._terms.expected(kept))
        if expected > 0 and 0 < error < math.inf:
            told = self.corrected(expected)
            self.misled |= bool(self._seen) and not told / MISLED < error < told * MISLED
            self._seen.append((expected, error))

    def corrected(self, expected: float) -> float:
        """An estimate times what the run with the most similar one was off by."""
        if not self._seen or expected <= 0:
            return expected
        nearest = min(self._seen, key=lambda run: abs(math.log(run[0] / expected)))
        return expected * nearest[1] / nearest[0]

    def smoothly_corrected(self, expected: float) -> float:
        """An estimate times what runs were off by on the whole, for a curve without jumps."""
        logs = [math.log(error / told) for told, error in self._seen]
        return expected * math.exp(sum(logs) / max(len(logs), 1))

    def cheapest_block_choice(self, limit: float, below: float) -> Choice | None:
        """The cheapest choice of whole blocks that should be within the limit, not run yet.

        ``below``: the share that it must stay below.
        """
        return self._cheapest(self._by_block, limit, below)

    def cheapest_module_choice(self, limit: float, below: float) -> Choice | None:
        """The same of single modules, each whole or its own code alone."""
        found = self._cheapest(self.path, limit, math.inf)
        if found is None:
            return None
        found = self._with_fewer_names(self._with_less(found, limit))
        saved = below - found.share
        if saved < max(below * WORTH_A_RUN, LEAST_WORTH) or found.kept.tobytes() in self._run:
            return None
        return found

    def half_of(self, share: float) -> Choice | None:
        """The choice of about half a share with the least error expected; for where estimates
        mislead, so that a choice that failed tells nothing of others."""
        if share < LEAST_HALVED:
            return None
        pool = [
            each
            for each in (*self._by_block, *self.path)
            if 0.3 * share < each.share < 0.8 * share
            and all(abs(each.share - own) > 0.1 * share for own in self._shares_run)
        ]
        return min(pool, key=lambda each: each.expected, default=None)

    def best_within(self, budget: float) -> list[Choice]:
        """The choices that should be best for a share: of single modules, of whole blocks."""
        found = {}
        for choices in (self.path, self._by_block):
            if pool := [each for each in choices if each.share <= budget]:
                best = min(pool, key=lambda each: each.expected)
                found[best.kept.tobytes()] = best
        return [*found.values()]

    def _cheapest(self, choices: Iterable[Choice], limit: float, below: float) -> Choice | None:
        most = below - max(below * WORTH_A_RUN, LEAST_WORTH) if math.isfinite(below) else math.inf
        fits = (
            each
            for each in choices
            if each.share <= most
            and self.corrected(each.expected) <= limit
            and each.kept.tobytes() not in self._run
        )
        return min(fits, key=lambda each: (each.share, each.expected), default=None)

    def _with_less(self, choice: Choice, limit: float) -> Choice:
        """A choice without the modules that it can do without, the dearest first."""
        kept = choice.kept.copy()
        for number in sorted(np.flatnonzero(kept), key=lambda each: -self._cost[each]):
            kept[number] = False
            made = self._tree.with_tied(kept)
            if self.corrected(float(self._terms.expected(made))) > limit:
                kept[number] = True
        return self._chosen([kept])[0]

    def _with_fewer_names(self, choice: Choice) -> Choice:
        """A choice with all modules of the same name but for numbers, where that costs little."""
        kept, room = choice.kept.copy(), FOR_FEWER_NAMES
        for group in sorted(self._tree.groups, key=lambda group: float(self._cost[group].sum())):
            more = [number for number in group if not kept[number]]
            cost = float(self._cost[more].sum())
            if 0 < len(more) < len(group) and cost <= room:
                kept[more] = True
                room -= cost
        return self._chosen([kept])[0]

    def _chosen(self, masks: Iterable[Mask]) -> list[Choice]:
        listed = np.array([self._tree.with_tied(mask) for mask in masks])
        return [
            Choice(kept, self.share(kept), float(error))
            for kept, error in zip(listed, self._terms.expected(listed), strict=True)
        ]

    def _subsets(self) -> Iterator[Mask]:
        """Choices of whole blocks; what is around them is kept, too, as it costs nearly nothing."""
        inside = [self._tree.mask([block]) for block in self.blocks]
        outer = self._tree.mask([], self._outer)
        if len(inside) <= MOST_BLOCKS:
            for chosen in itertools.product((False, True), repeat=len(inside)):
                picked = [own for own, is_in in zip(inside, chosen, strict=True) if is_in]
                yield np.logical_or.reduce([outer, *picked])
            return
        kept = np.logical_or.reduce([outer, *inside])
        while True:
            yield kept
            without = [kept & ~own for own in inside if (kept & own).any()]
            if not without:
                return
            saved = np.array([self.share(kept) - self.share(each) for each in without])
            errors = np.square(self._terms.expected(np.array(without)))
            kept = without[int(np.argmin(errors / np.maximum(saved, 1e-12)))]

    def _lowered_one_by_one(self) -> list[Mask]:
        """Choices from everything to nothing: next comes what adds least for what it saves."""
        tree, kept = self._tree, np.ones(len(self._tree), np.bool_)
        low, leaving, entering = self._terms.squares.max(0)[[LOW, LEAVING, ENTERING]]
        inner = tree.parents >= 0
        together = [tree.with_tied(each) for each in np.eye(len(tree), dtype=np.bool_)]
        cost = np.array([self.share(each) for each in together])
        found = [kept.copy()]
        while kept.any():
            around = np.where(inner, kept[tree.parents], True)
            # what is in a module then leaves to a lower type, and no longer enters one
            changes = np.where(kept, leaving, -entering)
            of_children = np.zeros(len(tree))
            np.add.at(of_children, tree.parents[inner], changes[inner])
            added = low + np.where(around, entering, -leaving) + of_children
            for group in tree.tied:
                added[group] = added[group].sum()
            added = np.where(kept, added / np.maximum(cost, 1e-12), np.inf)
            kept &= ~together[int(np.argmin(added))]
            found.append(kept.copy())
        return found


def _thinned(masks: Sequence[Mask]) -> list[Mask]:
    if len(masks) <= PATH_POINTS:
        return [*masks]
    places = np.unique(np.linspace(0, len(masks) - 1, PATH_POINTS).astype(int))
    return [masks[place] for place in places]
