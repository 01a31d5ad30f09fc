"""Which modules of a model are compiled, each alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property

from torch import nn

from accucompare.live.modules import Modules, class_of, only_holds_modules


class ModuleTree:
    """A model's modules as a tree, in which repeated blocks are found.

    A block is a module with children in a list (``ModuleList``), or in a ``Sequential`` that
    repeats its class. A block may hold blocks.
    """

    def __init__(self, modules: Modules) -> None:
        self._named = modules.named
        self._children: dict[str, list[str]] = defaultdict(list)
        for name in self._named:
            if name:
                self._children[name.rpartition(".")[0]].append(name)

    def levels(self) -> tuple[tuple[str, ...], ...]:
        """Ways to cut the model into regions, the finest first.

        The layers of the innermost blocks; those blocks; and the whole model. What is outside of
        blocks is cut where the blocks are.
        """
        cuts = (tuple(self._cut("", inside)) for inside in (True, False))
        return tuple(dict.fromkeys([*cuts, ("",)]))

    def children(self, name: str) -> tuple[str, ...]:
        """The modules that a module calls: of a mere holder those that it holds."""
        return tuple(self._callable(self._children[name]))

    def inside(self, regions: Iterable[str]) -> set[str]:
        """All modules inside of these."""
        found: set[str] = set()
        waiting = [each for name in regions for each in self._children[name]]
        while waiting:
            name = waiting.pop()
            found.add(name)
            waiting += self._children[name]
        return found

    def _callable(self, names: Iterable[str]) -> Iterator[str]:
        for name in names:
            if only_holds_modules(self._named[name]):
                yield from self._callable(self._children[name])
            else:
                yield name

    def _cut(self, name: str, inside_blocks: bool) -> Iterator[str]:
        if name not in self._around_blocks:
            # the model itself is always a level of its own
            yield from self._callable([name]) if name else self.children(name) or ("",)
            return
        for child in self._children[name]:
            block = name in self._holders and bool(self._children[child])
            if block and inside_blocks and child not in self._around_blocks:
                yield from self.children(child)
            else:
                yield from self._cut(child, inside_blocks)

    @cached_property
    def _holders(self) -> set[str]:
        """The modules whose children are blocks."""
        return {name for name in self._named if self._holds_blocks(name)}

    @cached_property
    def _around_blocks(self) -> set[str]:
        """The holders of blocks and all modules around them."""
        found: set[str] = set()
        for name in self._holders:
            found.add(name)
            while name:
                name = name.rpartition(".")[0]
                found.add(name)
        return found

    def _holds_blocks(self, name: str) -> bool:
        module = self._named[name]
        kinds = Counter(
            class_of(self._named[child]) for child in self._children[name] if self._children[child]
        )
        if isinstance(module, nn.Sequential):
            return bool(kinds) and max(kinds.values()) > 1
        return bool(kinds) and only_holds_modules(module)
