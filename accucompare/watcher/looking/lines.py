"""The source lines of operators outside of the model; noted seldom, since it takes time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from accucompare.live.autograd import NodeLines

#: How many changed losses make lines be noted once more, in the step after the change.
_MOST_AGAIN = 8


class Lines:
    """The source lines of operators outside of the model; ``always``: note them in every step.

    A loss is computed alike in each step, so the lines of the first step are enough while the graph
    stays the same. If it changes, the next step notes lines again, a few times at most."""

    def __init__(self) -> None:
        self.always = False
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._noting = NodeLines()
        self._loss_was_new = False
        self._left = _MOST_AGAIN

    def begin(self) -> None:
        """Operators called from now on are outside of the model."""
        if (
            self.always or self._loss_was_new or not self._known
        ) and not torch.is_anomaly_enabled():
            self._noting.begin()

    def end(self) -> None:
        """Operators called from now on are inside, or need no line."""
        self._noting.end()

    def give_up(self) -> None:
        """The step is over without a loss."""
        if self._noting.noted:
            self._known.setdefault((), ())
        self.end()

    def of(self, nodes: Sequence[Any], line: Callable[[Any], str]) -> tuple[str, ...]:
        """The line of each node, read by ``line`` if it was noted; else empty."""
        names = tuple(node.name() for node in nodes)
        if nodes and not self._noting.noted and names not in self._known and self._left:
            self._loss_was_new = True
            self._left -= 1
        if self._noting.noted:
            self._loss_was_new = False
            self._known[names] = tuple(map(line, nodes))
            if len(self._known) > 8:
                del self._known[next(iter(self._known))]
        return self._known.get(names, ("",) * len(nodes))
