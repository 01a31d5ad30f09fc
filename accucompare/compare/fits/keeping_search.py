"""The order in which choices of modules are tried: first the cheapest that should do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from accucompare.compare.fits.called_tree import CalledTree, Mask
from accucompare.compare.fits.error_terms import ENTERING, LEAVING, LOW, ErrorTerms
from accucompare.compare.fits.learned_errors import LearnedErrors

#: Of up to so many blocks, all subsets are estimated.
MOST_BLOCKS = 14
#: Of a path through all modules, so many points are estimated.
PATH_POINTS = 256
#: What another run is expected to save to be worth it: of the share that is kept, and of the model.
WORTH_A_RUN, LEAST_WORTH = 0.01, 0.003
#: Of the limit: how far off choices are made to be, of which the most promising is run.
MARGINS = (1.05, 1.0, 0.97, 0.94, 0.9, 0.8)
#: So many modules, the dearest, may be left out of a choice.
MOST_LEFT_OUT = 200
#: So much of the model is kept beside what is needed, if names become fewer.
FOR_FEWER_NAMES = 0.005


class Choice(NamedTuple):
    """Modules to keep; their share of the model's cost; and the error that is expected so."""

    kept: Mask
    share: float
    expected: float


class KeepingSearch:
    """Proposes choices, and learns from what their runs show.

    Attributes:
        blocks: the numbers of the blocks of which choices are made first.
    """

    def __init__(self, tree: CalledTree, terms: ErrorTerms, cost: NDArray[np.float64]) -> None:
        """``cost``: of each module's own code."""
        self._tree = tree
        self._cost = cost / (cost.sum() or 1.0)
        self._learned = LearnedErrors(terms)
        self._run: set[bytes] = set()
        self.blocks, self._outer = tree.blocks(cost)
        self._by_block = self._masks(self._subsets(terms))

    @property
    def misled(self) -> bool:
        """Whether a run was far from what was expected, as where experts are chosen."""
        return self._learned.misled

    def saw(self, kept: Mask, error: float) -> None:
        """What a run has shown."""
        self._run.add(kept.tobytes())
        self._learned.saw(kept, error)

    def path(self) -> list[Choice]:
        """Choices from everything kept to nothing, module by module."""
        return [self._choice(mask) for mask in self._path()]

    def block_choice(self, limit: float, below: float) -> Choice | None:
        """The choice of whole blocks that should save most by being within the limit.

        ``below``: the share that it must stay below. ``None``: none is worth a run.
        """
        return self._most_promising(self._by_block, limit, below)

    def module_choice(self, limit: float, below: float) -> Choice | None:
        """The same of single modules, each whole or its own code alone."""
        path = self._path()
        errors, shares = self._learned.expected(path).errors, path @ self._cost
        tried = [path]
        for target in limit * np.array(MARGINS):
            if (errors <= target).any():
                kept = path[np.where(errors <= target, shares, np.inf).argmin()]
                tried.append(self._with_fewer_names(self._with_less(kept, target))[None])
        return self._most_promising(np.concatenate(tried), limit, below)

    def best_within(self, budget: float, above: float) -> Choice | None:
        """The choice that should be best for a share; ``None`` if it was run, or none is expected
        to be nearer to golden than ``above``."""
        masks = np.concatenate([self._path(), self._by_block])
        masks = masks[masks @ self._cost <= budget + 1e-12]
        errors = self._learned.expected(masks).errors
        for number in np.argsort(errors):
            if masks[number].tobytes() not in self._run:
                found = self._choice(masks[number])
                return found if found.expected < above else None
        return None

    def _most_promising(self, masks: Mask, limit: float, below: float) -> Choice | None:
        shares = masks @ self._cost
        masks = masks[shares < below]
        new = [mask.tobytes() not in self._run for mask in masks]
        masks = masks[new]
        if not len(masks):
            return None
        expected = self._learned.expected(masks)
        room = (2 * math.log(limit) - expected.logs) / expected.deviations
        likely = np.array([math.erfc(-each / math.sqrt(2)) / 2 for each in room])
        saved = likely * (below - masks @ self._cost)
        best = int(saved.argmax())
        if saved[best] < max(below * WORTH_A_RUN, LEAST_WORTH):
            return None
        return self._choice(masks[best])

    def _choice(self, kept: Mask) -> Choice:
        expected = float(self._learned.expected(kept[None]).errors[0])
        return Choice(kept, float(self._cost[kept].sum()), expected)

    def _with_less(self, choice: Mask, limit: float) -> Mask:
        """A choice without the modules that it can do without, the dearest first."""
        kept = choice.copy()
        dearest = sorted(np.flatnonzero(kept), key=lambda each: -self._cost[each])
        for number in dearest[:MOST_LEFT_OUT]:
            kept[number] = False
            made = self._tree.with_tied(kept)
            if self._choice(made).expected > limit:
                kept[number] = True
        return self._tree.with_tied(kept)

    def _with_fewer_names(self, choice: Mask) -> Mask:
        """A choice with all modules of the same name but for numbers, where that costs little."""
        kept, room = choice.copy(), FOR_FEWER_NAMES
        for group in sorted(self._tree.groups, key=lambda group: float(self._cost[group].sum())):
            more = [number for number in group if not kept[number]]
            cost = float(self._cost[more].sum())
            if 0 < len(more) < len(group) and cost <= room:
                kept[more] = True
                room -= cost
        return self._tree.with_tied(kept)

    def _masks(self, masks: Iterable[Mask]) -> Mask:
        return np.array([self._tree.with_tied(mask) for mask in masks])

    def _path(self) -> Mask:
        return self._masks(_thinned(self._lowered_one_by_one(self._learned.corrected_terms())))

    def _subsets(self, terms: ErrorTerms) -> Iterator[Mask]:
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
            saved = np.array([float(self._cost[kept & ~each].sum()) for each in without])
            errors = np.square(terms.estimates(np.array(without)).errors)
            kept = without[int(np.argmin(errors / np.maximum(saved, 1e-12)))]

    def _lowered_one_by_one(self, terms: ErrorTerms) -> list[Mask]:
        """Choices from everything to nothing: next comes what adds least for what it saves."""
        tree, kept = self._tree, np.ones(len(self._tree), np.bool_)
        low, leaving, entering = terms.squares.max(0)[[LOW, LEAVING, ENTERING]]
        inner = tree.parents >= 0
        together = [tree.with_tied(each) for each in np.eye(len(tree), dtype=np.bool_)]
        cost = np.array(together) @ self._cost
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
