"""The modules that golden called, as a tree: what each computes itself, and what that costs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from accucompare.compare.fits.fit_facts import KeptPlaces

#: A block is expanded into the modules in it if it costs more than this share of the model.
LARGEST_BLOCK = 1 / 6
#: Parts, and kinds of modules by name, of which each is run alone.
MOST_PARTS, MOST_KINDS = 8, 12
#: Containers without a forward of their own.
_LISTS = ("ModuleList", "ModuleDict")

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class CalledTree:
    """The modules that golden called, in that order, the root first.

    A module without any parameter or buffer, such as an activation, counts as its caller's code."""

    # names, classes: of each
    names: Sequence[str]
    classes: Sequence[str]
    # of each, the number of the nearest called module around it; -1 for the root
    parents: NDArray[np.intp]
    modules: Sequence[str]  # the names of all modules of the model
    # by number, the names of modules that nobody calls, and whose parameters its own code computes
    # with
    attached: Mapping[int, Sequence[str]]
    numbers: Mapping[str, int]  # by name, also of those that count as their caller's
    # the numbers of modules that share a weight, which has one type
    tied: Sequence[Sequence[int]] = ()
    _children: list[list[int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        children: list[list[int]] = [[] for _ in self.names]
        for number, parent in enumerate(self.parents):
            if parent >= 0:
                children[parent].append(number)
        object.__setattr__(self, "_children", children)

    @classmethod
    def of(
        cls,
        called: Iterable[str],
        modules: Mapping[str, str],
        tensors: Iterable[str],
        tied: Mapping[str, str] = MappingProxyType({}),
    ) -> CalledTree:
        """
        Args:
            called: names of modules, each once.
            modules: all modules, with their classes.
            tensors: qualified names of parameters and buffers.
            tied: further names of shared parameters, each with the first.
        """
        owners = {name.rpartition(".")[0] for name in tensors}
        holding = {around for name in owners for around in _around(name)}
        called = [*called]
        names = ["", *(name for name in called if name and name in holding)]
        numbers = {name: number for number, name in enumerate(names)}

        def around(name: str) -> int:
            while name:
                name = name.rpartition(".")[0]
                if name in numbers:
                    return numbers[name]
            return -1

        attached: dict[int, list[str]] = {}
        for name, kind in modules.items():
            holds = name in owners or (
                kind not in _LISTS and any(each.startswith(f"{name}.") for each in names)
            )
            if name not in numbers and holds:
                attached.setdefault(around(name), []).append(name)
        sharing: dict[str, set[int]] = {}
        for further, first in tied.items():
            holders = (name.rpartition(".")[0] for name in (first, further))
            sharing.setdefault(first, set()).update(
                numbers[name] if name in numbers else max(around(name), 0) for name in holders
            )
        return cls(
            names,
            [modules.get(name, "") for name in names],
            np.array([around(name) for name in names], np.intp),
            [*modules],
            attached,
            {**{name: around(name) for name in called}, **numbers},
            [sorted(group) for group in sharing.values() if len(group) > 1],
        )

    @cached_property
    def owners(self) -> Mapping[str, int]:
        """By the name of a module with weights: whose own code computes with them."""
        found = {name: number for number, name in enumerate(self.names)}
        for number, names in self.attached.items():
            found.update(dict.fromkeys(names, number))
        return found

    def __len__(self) -> int:
        return len(self.names)

    def children(self, number: int) -> Sequence[int]:
        return self._children[number]

    def inside(self, number: int) -> list[int]:
        """A module, and all that are called in it."""
        found = [number]
        for each in found:
            found += self._children[each]
        return found

    @cached_property
    def _order(self) -> list[int]:
        """The root, then what it calls, and so on."""
        return self.inside(0)

    def with_inner(self, own: NDArray[np.float64]) -> NDArray[np.float64]:
        """A number of each module's own code, summed up with those of the modules in it."""
        total = own.astype(np.float64, copy=True)
        for number in reversed(self._order):
            if number:
                total[self.parents[number]] += total[number]
        return total

    def blocks(self, cost: NDArray[np.float64]) -> tuple[list[int], list[int]]:
        """The largest modules of which none is most of the model, and the modules around them."""
        total = self.with_inner(cost)
        outer, waiting, blocks = [0], list(self._children[0]), []
        while waiting:
            number = waiting.pop(0)
            if self._children[number] and total[number] > LARGEST_BLOCK * total[0]:
                outer.append(number)
                waiting[:0] = self._children[number]
            else:
                blocks.append(number)
        return blocks, outer

    def parts(self, cost: NDArray[np.float64]) -> list[list[int]]:
        """All modules in few groups: what is around blocks, and blocks, some in a row together."""
        blocks, outer = self.blocks(cost)
        size = -(-len(blocks) // MOST_PARTS)
        rows = [blocks[at : at + size] for at in range(0, len(blocks), size or 1)]
        return [outer, *([each for block in row for each in self.inside(block)] for row in rows)]

    def mask(self, wholes: Iterable[int], own: Iterable[int] = ()) -> Mask:
        """Which modules' own code is kept, if some are whole and of others the own code is."""
        made = np.zeros(len(self), np.bool_)
        made[[*own]] = True
        for number in wholes:
            made[self.inside(number)] = True
        return made

    def with_tied(self, mask: Mask) -> Mask:
        """These, and the modules that share a weight with one of them."""
        made = mask.copy()
        for _ in self.tied:
            for group in self.tied:
                made[group] = made[group].any()
        return made

    def places(self, kept: Mask) -> KeptPlaces:
        """The modules to name, so that these are kept: whole ones, and others' own code."""
        lowest = self.with_inner((~kept).astype(np.float64)) == 0  # nothing in it is low
        whole = [
            number
            for number in range(len(self))
            if lowest[number] and (number == 0 or not lowest[self.parents[number]])
        ]
        if whole == [0]:
            return KeptPlaces(("*",))
        own = [int(number) for number in np.flatnonzero(kept & ~self.mask(whole))]
        names = [self.names[number] for number in whole]
        inside = {
            module
            for module in self.modules
            if any(module == name or module.startswith(f"{name}.") for name in names)
        }
        others = [self.names[number] for number in own]
        others += [name for number in own for name in self.attached.get(number, ())]
        return KeptPlaces(
            tuple(self._globs(names, inside)), tuple(self._globs(others, inside | {*others}))
        )

    def _globs(self, names: Sequence[str], allowed: Collection[str]) -> list[str]:
        """The names; those that differ in numbers alone as one glob, if all it matches is
        allowed."""
        found = []
        for glob, alike in _alike(names).items():
            matched = {name for name in self.modules if _matches(name, glob)}
            together = len(alike) > 1 and matched <= {*allowed}
            found += [glob] if together else [_literal(name) for name in alike]
        return found

    @cached_property
    def groups(self) -> list[list[int]]:
        """The numbers of modules whose names differ in numbers alone, if there are several."""
        return [group for group in self._alike if len(group) > 1]

    @property
    def kinds(self) -> list[list[int]]:
        """All modules, by their names but for numbers; or by their class, if these are too many."""
        if len(self._alike) <= MOST_KINDS:
            return self._alike
        by_class: dict[str, list[int]] = {}
        for number, kind in enumerate(self.classes):
            by_class.setdefault(kind, []).append(number)
        return [*by_class.values()]

    @cached_property
    def _alike(self) -> list[list[int]]:
        alike = _alike([*self.names]).values()
        return [[self.numbers[name] for name in names] for names in alike]


def _around(name: str) -> Iterator[str]:
    """A name, and those of the modules around it."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _alike(names: Sequence[str]) -> dict[str, list[str]]:
    """Names that differ in numbers alone, by the glob that matches them."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(re.sub(r"(?<![^.])\d+(?![^.])", "*", name), []).append(name)
    return groups


def _matches(name: str, glob: str) -> bool:
    """Whether each part of a name matches the glob's; ``*`` goes over no dot."""
    parts, globs = name.split("."), glob.split(".")
    return len(parts) == len(globs) and all(map(fnmatchcase, parts, globs))


def _literal(name: str) -> str:
    """A glob that matches this name alone."""
    return re.sub(r"[\[*?]", lambda found: f"[{found[0]}]", name)
