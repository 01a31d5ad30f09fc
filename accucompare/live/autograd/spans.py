"""What each module call adds to the gradients of its inputs and parameters.

Autograd numbers the nodes that a thread makes. So the nodes numbered while a call ran are the
call's, and what a call adds to an input's gradient is the sum of what its nodes give to the node
that made the input. Nothing is put into the graph, so a backward gives the same bits with and
without.

``live/autograd/gradients.py`` answers the same question for a watch by walking the graph of each
output, because a watch needs the operator behind each node.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from accucompare.live.autograd.gradients import ReadingHook
from accucompare.live.autograd.graph import ACCUMULATES

#: A tensor in autograd's graph: (number of the node that made it, index among the node's outputs);
#: for a leaf, (-1, id of the tensor).
Edge = tuple[int, int]

_C = TypeVar("_C")


def edge_of(tensor: torch.Tensor) -> Edge | None:
    """Where a tensor's gradient goes; ``None`` if it has none, or is inside ``torch.func``."""
    if not tensor.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return None
    if tensor.grad_fn is None:
        return -1, id(tensor)
    return tensor.grad_fn._sequence_nr(), tensor.output_nr


def edges_of(parts: Iterable[tuple[str, Any]]) -> dict[Edge, list[str]]:
    """The paths of a value's parts that have gradients, by edge."""
    found: dict[Edge, list[str]] = {}
    for path, part in parts:
        edge = edge_of(part) if isinstance(part, torch.Tensor) else None
        if edge is not None:
            found.setdefault(edge, []).append(path)
    return found


def edge_to(node: Any, number: int) -> Edge:
    """The edge that an entry of a node's ``next_functions`` leads to."""
    return (-1, id(node.variable)) if node.name() == ACCUMULATES else (node._sequence_nr(), number)


class Cut(NamedTuple):
    """Where a view lies in its base tensor."""

    # shape, stride, offset: of the view; the offset counts from the base's first element
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    # whole, strides: the base's shape and strides
    whole: torch.Size
    strides: tuple[int, ...]

    def of(self, grad: torch.Tensor) -> torch.Tensor:
        """The view's part of the base's gradient."""
        with torch.no_grad():
            if grad.stride() != self.strides:
                grad = torch.empty_strided(
                    self.whole, self.strides, dtype=grad.dtype, device=grad.device
                ).copy_(grad)
            return grad.as_strided(self.shape, self.stride, grad.storage_offset() + self.offset)


#: The node of a write into a view; it replaces the node that made the base.
WRITES_INTO_VIEW = "torch::autograd::CopySlices"


def views_of(parts: Iterable[tuple[str, Any]]) -> dict[Edge, list[tuple[str, Cut]]]:
    """Paths and places of a value's views of tensors with gradients, by those tensors' edges."""
    found: dict[Edge, list[tuple[str, Cut]]] = {}
    for path, part in parts:
        if (
            not isinstance(part, torch.Tensor)
            or not part.requires_grad
            or not part._is_view()
            or part.layout is not torch.strided
        ):
            continue
        base = part._base
        edge = edge_of(base) if base is not None and base.layout is torch.strided else None
        if base is not None and edge is not None:
            cut = Cut(
                part.shape,
                part.stride(),
                int(part.storage_offset() - base.storage_offset()),
                base.shape,
                base.stride(),
            )
            found.setdefault(edge, []).append((path, cut))
    return found


def seeded(roots: Any, seeds: Any) -> Iterator[tuple[Edge, torch.Tensor]]:
    """The non-leaf roots of a backward as edges, each with its initial gradient."""
    for root, seed in zip(roots, seeds, strict=False):
        node, number = (
            (root.grad_fn, root.output_nr)
            if isinstance(root, torch.Tensor)
            else (root.node, root.output_nr)
        )
        if node is not None and isinstance(seed, torch.Tensor):
            yield edge_to(node, number), seed


@dataclass
class Span(Generic[_C]):
    """The nodes that one call has made: numbers from ``first`` up to but not including ``last``."""

    call: _C
    first: int
    last: int
    outer: Span[_C] | None  # the span of the call around it
    # the paths of its inputs that have gradients, by edge
    inputs: dict[Edge, list[str]] = field(default_factory=dict)
    # likewise of inputs that are views, by the base's edge: an in-place module writes into the base
    views: dict[Edge, list[tuple[str, Cut]]] = field(default_factory=dict)
    outputs: dict[Edge, list[str]] = field(default_factory=dict)  # of its outputs, as ``inputs``
    # of its outputs that are views, as ``views``
    given: dict[Edge, list[tuple[str, Cut]]] = field(default_factory=dict)

    def __contains__(self, number: int) -> bool:
        """Whether the call, or a call inside it, made the node of this number."""
        return self.first <= number < self.last

    def chain(self) -> Iterator[Span[_C]]:
        """This span and those around it, the innermost first."""
        span: Span[_C] | None = self
        while span is not None:
            yield span
            span = span.outer

    def owner(self, edge: Edge) -> Span[_C] | None:
        """The innermost of ``chain`` that was not given the edge's tensor; ``None`` if all were."""
        return next((span for span in self.chain() if edge not in span.inputs), None)

    def has_alone(self, base: Edge) -> bool:
        """Whether the views that it gave are all there is of their base: the call made that, and
        they do not overlap."""
        cuts = dict.fromkeys(cut for _, cut in self.given[base])
        sizes = sum(cut.shape.numel() for cut in cuts)
        return base[0] >= self.first and all(sizes <= cut.whole.numel() for cut in cuts)


#: Above all numbers of nodes: ``last`` while the call runs, since it may call ``autograd.grad``.
OPEN = 1 << 64


class Spans(Generic[_C]):
    """The spans of one thread's calls, in the order in which they began."""

    def __init__(self) -> None:
        self._all: list[Span[_C]] = []
        self._firsts: list[int] = []
        self._giving: dict[Edge, list[Span[_C]]] = {}
        self._giving_views: dict[Edge, list[Span[_C]]] = {}
        self._known: set[int] = set()

    def begin(self, call: _C, outer: Span[_C] | None, parts: Iterable[tuple[str, Any]]) -> Span[_C]:
        parts = list(parts)
        # asking for a view's edge may make a node, which is not the call's
        inputs, views = edges_of(parts), views_of(parts)
        first = torch._C._autograd._get_sequence_nr()
        span = Span(call, first, OPEN, outer, inputs, views)
        self._all.append(span)
        self._known.add(id(span))
        self._firsts.append(first)
        return span

    def end(self, span: Span[_C]) -> None:
        """The call ends, unless it has; later nodes are not its own."""
        if span.last == OPEN:
            span.last = torch._C._autograd._get_sequence_nr()

    def __contains__(self, span: Span[_C]) -> bool:
        """Whether it is of this step."""
        return id(span) in self._known

    def __bool__(self) -> bool:
        return bool(self._all)

    def give(
        self, span: Span[_C], parts: Sequence[tuple[str, Any]], replaced: Collection[str] = ()
    ) -> None:
        """The call hands on more outputs; those ``replaced``, by path, are views of nothing."""
        outputs = edges_of(parts)
        views = views_of((path, part) for path, part in parts if path not in replaced)
        span.outputs, span.given = {**span.outputs, **outputs}, {**span.given, **views}
        for edge in outputs:
            self._giving.setdefault(edge, []).append(span)
        for edge in views:
            self._giving_views.setdefault(edge, []).append(span)

    def giving(self, edge: Edge) -> list[Span[_C]]:
        """The spans of the calls that handed on the tensor of this edge."""
        return self._giving.get(edge, [])

    def written_into(self, node: Any, made: int, base: Edge) -> list[Span[_C]]:
        """The spans of the calls that handed on views of a tensor, if a node, which was made after
        them, writes into it."""
        spans = self._giving_views.get(base, [])
        if not spans or node.name() != WRITES_INTO_VIEW:
            return []
        return [span for span in spans if made >= span.last]

    def of(self, number: int) -> Span[_C] | None:
        """The span of the innermost call that made the node of this number, or ``None``."""
        place = bisect_right(self._firsts, number) - 1
        if place < 0:
            return None
        return next((span for span in self._all[place].chain() if number in span), None)

    def clear(self) -> None:
        self._all.clear()
        self._firsts.clear()
        self._giving.clear()
        self._giving_views.clear()
        self._known.clear()


#: Metadata key of a backward's own nodes (``create_graph=True``): the span of that backward's call.
_MADE_BY = "accucompare: made in the backward of"


class Graph(Generic[_C]):
    """The nodes of a backward that makes a graph. Nodes that it makes are marked with their call.

    Numbers cannot tell the call: these nodes are made after it, and on a GPU or an NPU in another
    thread, which has its own count.
    """

    def __init__(self) -> None:
        # by id; keeping a node keeps its id from being reused
        self._nodes: dict[int, Any] = {}

    def add(self, node: Any) -> None:
        self._nodes[id(node)] = node

    def tell(self, span: Span[_C] | None, tensors: Iterable[Any]) -> None:
        """Mark all unmarked nodes of this backward that lead to these tensors as of this call."""
        waiting: list[Any] = [
            tensor.grad_fn for tensor in tensors if isinstance(tensor, torch.Tensor)
        ]
        while waiting:
            node = waiting.pop()
            if (
                node is None
                or id(node) in self._nodes
                or node.name() == ACCUMULATES
                or _MADE_BY in node.metadata
            ):
                continue
            node.metadata[_MADE_BY] = span
            waiting += [following for following, _ in node.next_functions]


def made_by_backward(node: Any) -> bool:
    """Whether ``Graph`` has marked a node as made by a backward."""
    return node.name() != ACCUMULATES and _MADE_BY in node.metadata


def backward_of(node: Any) -> Span[Any] | None:
    """The span of the call in whose backward a marked node was made, or ``None``."""
    span: Span[Any] | None = node.metadata[_MADE_BY]
    return span


#: The node of a cast. Autocast keeps the cast of a parameter for all later calls.
_CASTS = "ToCopyBackward0"


def cast_parameter(node: Any) -> torch.Tensor | None:
    """The parameter, or other leaf, that a node casts to another type; ``None`` for other nodes."""
    if node.name() != _CASTS:
        return None
    following = node.next_functions[0][0]
    return following.variable if following is not None and following.name() == ACCUMULATES else None


class Sum:
    """A gradient added up from several nodes' parts, in the order in which autograd does it.

    ``apart``: whether parts lie so differently on the ranks that adding them would take the others:
    then there is no sum.
    """

    def __init__(
        self,
        whole: Callable[[torch.Tensor | None], None],
        add: Callable[[Any, Any], Any] = operator.add,
    ) -> None:
        """``whole`` is called once, with the sum of all parts; ``None`` if no part was defined.

        ``add`` adds two tensors that lie alike."""
        self.apart = False
        self._add = add
        self._parts = 0
        self._total: torch.Tensor | None = None
        self._whole = whole

    @property
    def waits(self) -> bool:
        return self._parts > 0

    def expect(self) -> None:
        """One more part will come."""
        self._parts += 1

    def add(self, part: torch.Tensor | None) -> None:
        if part is not None:
            with torch.no_grad():  # if the backward makes a graph, this sum is no part of it
                self._total = part if self._total is None else self._plus(self._total, part)
        self._parts -= 1
        if self._parts == 0:
            self.end()

    def _plus(self, total: Any, part: Any) -> Any:
        """A sum, computed on this rank alone."""
        ours, theirs = (getattr(each, "placements", ()) for each in (total, part))
        if ours == theirs:
            return self._add(total, part)
        common = [_common(*pair) for pair in zip(ours, theirs, strict=False)]
        if len(ours) != len(theirs) or None in common:
            self.apart = True
            return total
        return _lying(total, common) + _lying(part, common)

    def end(self) -> None:
        """No further part will come."""
        total, self._total, self._parts = self._total, None, 0
        self._whole(None if self.apart else total)


def _lying(part: Any, common: list[Any]) -> Any:
    """A ``DTensor`` that lies so; replicas are cut or made terms, which talks to nobody."""
    cut = [new if new.is_shard() else old for old, new in zip(part.placements, common, strict=True)]
    part = part.redistribute(placements=cut)
    ranks = math.prod(
        part.device_mesh.size(number)
        for number, (old, new) in enumerate(zip(cut, common, strict=True))
        if old != new
    )
    return type(part).from_local(
        part.to_local() / ranks,
        part.device_mesh,
        common,
        run_check=False,
        shape=part.shape,
        stride=part.stride(),
    )


def _common(one: Any, other: Any) -> Any:
    """How two parts of a ``DTensor``'s gradient can both lie along one dimension of the mesh, if
    one of them is replicated there, and so can be cut or made a term of the sum; else ``None``."""
    if one == other:
        return one
    given = other if one.is_replicate() else one if other.is_replicate() else None
    sums = given is not None and (given.is_shard() or getattr(given, "reduce_op", "") == "sum")
    return given if sums else None


class GradientHook(ReadingHook):
    """A tensor's hook that may return another gradient to go on with."""

    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
        self._exchange = act

    def __call__(self, grad: torch.Tensor) -> torch.Tensor | None:  # type: ignore[override]
        return self._exchange(grad)


def hook_arriving(tensor: torch.Tensor, act: Callable[[torch.Tensor], torch.Tensor | None]) -> Any:
    """Call ``act`` with the gradient that arrives at a non-leaf tensor, after all of its hooks.

    The node that made the tensor goes on with what ``act`` returns, unless that is ``None``. If
    only the tensor's own gradient is asked for (``autograd.grad``), the node does not run.
    """
    number = tensor.output_nr
    assert tensor.grad_fn is not None

    def arrives(grads: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...] | None:
        grad = grads[number]
        new = None if grad is None else act(grad)
        return None if new is None else (*grads[:number], new, *grads[number + 1 :])

    return tensor.grad_fn.register_prehook(arrives)
