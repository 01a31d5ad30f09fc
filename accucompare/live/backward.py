"""What each module call adds to the gradients of its inputs and parameters.

Autograd numbers the nodes that a thread makes one after the other. So the nodes numbered while a call ran are the call's, and the
gradient that a call adds to an input is the sum of what its nodes give to the node that made the input. Nothing is put into the graph,
so that a backward gives the same bits with and without.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from accucompare.live.gradients import ReadingHook
from accucompare.live.graph import ACCUMULATES

#: What a gradient belongs to: the number of the node that made a tensor and which of its outputs it is, or ``(-1, id)`` of a leaf.
Edge = tuple[int, int]

C = TypeVar("C")


def edge_of(tensor: torch.Tensor) -> Edge | None:
    """Where the gradient of a tensor goes to; ``None`` if it has none, or one of ``torch.func``'s, which are no graph's."""
    if not tensor.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return None
    return (-1, id(tensor)) if tensor.grad_fn is None else (tensor.grad_fn._sequence_nr(), tensor.output_nr)


def edges_of(parts: Iterable[tuple[str, Any]]) -> dict[Edge, list[str]]:
    """The parts of a value that have gradients, by edge: their paths."""
    found: dict[Edge, list[str]] = {}
    for path, part in parts:
        edge = edge_of(part) if isinstance(part, torch.Tensor) else None
        if edge is not None:
            found.setdefault(edge, []).append(path)
    return found


def edge_to(node: Any, number: int) -> Edge:
    """The same of an entry of a node's ``next_functions``."""
    return (-1, id(node.variable)) if node.name() == ACCUMULATES else (node._sequence_nr(), number)


@dataclass
class Span(Generic[C]):
    """The nodes that one call has made: those numbered from ``first`` up to ``last``, which is not one of them.

    Attributes:
        call: whose they are.
        outer: the span of the call that it was made in.
        inputs: its inputs that have gradients, by edge: their paths.
        outputs: likewise its outputs.
    """

    call: C
    first: int
    last: int
    outer: Span[C] | None
    inputs: dict[Edge, list[str]] = field(default_factory=dict)
    outputs: dict[Edge, list[str]] = field(default_factory=dict)

    def __contains__(self, number: int) -> bool:
        """Whether the call made the node of this number, itself or in a call inside it."""
        return self.first <= number < self.last

    def chain(self) -> Iterator[Span[C]]:
        """This span and those around it, the innermost first."""
        span: Span[C] | None = self
        while span is not None:
            yield span
            span = span.outer


#: The end of a span whose call still runs: it may call ``autograd.grad`` itself.
_OPEN = 1 << 64


class Spans(Generic[C]):
    """The spans of the calls of one thread, in the order in which they began."""

    def __init__(self) -> None:
        self._all: list[Span[C]] = []
        self._firsts: list[int] = []
        self._giving: dict[Edge, list[Span[C]]] = {}
        self._known: set[int] = set()

    def begin(self, call: C, outer: Span[C] | None, inputs: dict[Edge, list[str]]) -> Span[C]:
        first = torch._C._autograd._get_sequence_nr()
        span = Span(call, first, _OPEN, outer, inputs)
        self._all.append(span)
        self._known.add(id(span))
        self._firsts.append(first)
        return span

    def end(self, span: Span[C]) -> None:
        """The call ends, unless it has; nodes made from now on are not its own."""
        if span.last == _OPEN:
            span.last = torch._C._autograd._get_sequence_nr()

    def __contains__(self, span: Span[C]) -> bool:
        """Whether it is of this step."""
        return id(span) in self._known

    def give(self, span: Span[C], outputs: dict[Edge, list[str]]) -> None:
        """The call hands on these."""
        span.outputs = outputs
        for edge in outputs:
            self._giving.setdefault(edge, []).append(span)

    def giving(self, edge: Edge) -> list[Span[C]]:
        """The spans of the calls that handed on what a gradient belongs to."""
        return self._giving.get(edge, [])

    def of(self, number: int) -> Span[C] | None:
        """The span of the innermost call that made the node of this number; ``None`` if no call did."""
        place = bisect_right(self._firsts, number) - 1
        if place < 0:
            return None
        return next((span for span in self._all[place].chain() if number in span), None)

    def clear(self) -> None:
        self._all.clear()
        self._firsts.clear()
        self._giving.clear()
        self._known.clear()


class Sum:
    """A gradient that several nodes give parts of, added up in the order in which they run, as autograd does."""

    def __init__(self, whole: Callable[[torch.Tensor | None], None]) -> None:
        """``whole``: called once with the sum, when all parts are there; ``None`` if no part was defined."""
        self._parts = 0
        self._total: torch.Tensor | None = None
        self._whole = whole

    @property
    def waits(self) -> bool:
        """Whether parts are still to come."""
        return self._parts > 0

    def expect(self) -> None:
        """One more part will come."""
        self._parts += 1

    def add(self, part: torch.Tensor | None) -> None:
        if part is not None:
            with torch.no_grad():  # in a backward that makes a graph, this sum is no part of it
                self._total = part if self._total is None else self._total + part
        self._parts -= 1
        if self._parts == 0:
            self.end()

    def end(self) -> None:
        """No further part will come."""
        total, self._total, self._parts = self._total, None, 0
        self._whole(total)


class GradientHook(ReadingHook):
    """A tensor's hook that may give another gradient to go on with."""

    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
        self._exchange = act

    def __call__(self, grad: torch.Tensor) -> torch.Tensor | None:  # type: ignore[override]
        return self._exchange(grad)
