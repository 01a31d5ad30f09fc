"""The source lines of operators outside of the model, without taking the time to note them in every
step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from accucompare.live.autograd import NodeLines

#: For so many losses computed otherwise than those before, lines are noted once more, in the step
#: after the one that shows it.
_MOST_AGAIN = 8


class Lines:
    """The source lines of operators outside of the model.

    A loss is computed in the same way in each step, so that its first step is enough, if the graph
    is the same; where it is another, the lines are noted in the next step again, a few times at
    most.

    Attributes:
        always: note them in every step.
    """

    def __init__(self) -> None:
        self.always = False
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._noting = NodeLines()
        self._again = False  # the last loss was a new one
        self._left = _MOST_AGAIN

    def begin(self) -> None:
        """Operators that are called from now on are outside of the model."""
        if (self.always or self._again or not self._known) and not torch.is_anomaly_enabled():
            self._noting.begin()

    def end(self) -> None:
        """Those that are called from now on are not, or need no line."""
        self._noting.end()

    def give_up(self) -> None:
        """A step is over: what had no loss in it will have none."""
        if self._noting.noted:
            self._known.setdefault((), ())
        self.end()

    def of(self, nodes: Sequence[Any], line: Callable[[Any], str]) -> tuple[str, ...]:
        """The line of each node, read by ``line`` if it was noted; else empty."""
        names = tuple(node.name() for node in nodes)
        if nodes and not self._noting.noted and names not in self._known and self._left:
            self._again = True
            self._left -= 1
        if self._noting.noted:
            self._again = False
            self._known[names] = tuple(map(line, nodes))
            if len(self._known) > 8:
                del self._known[next(iter(self._known))]
        return self._known.get(names, ("",) * len(nodes))
