"""Autograd's graph: when a backward begins, and which nodes lie between its roots and a model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import TracingContext

ACCUMULATES = "torch::autograd::AccumulateGrad"
_KEEPING = (
    "View UnsafeView ReshapeAlias T Transpose Permute Movedim Unsqueeze Squeeze Alias Clone"
    " Slice Select Split SplitWithSizes Unbind Cat Stack Unfold Diagonal Narrow"
)
#: The backward of these gives its input reordered, reshaped, or padded with zeros.
PASSING_ON = frozenset(f"{name}Backward0" for name in _KEEPING.split())
#: The function in ``torch.autograd`` that every backward and ``autograd.grad`` of Python calls.
ENTRANCE = "_engine_run_backward"
#: The most nodes that a loss has.
_MOST = 500


@dataclass(frozen=True)
class Observer:
    """Who is called when a backward of this process begins and ends."""

    # called with roots, initial gradients, and whether the backward makes a graph
    begins: Callable[[Any, Any, bool], None]
    # called at the end with the gradients that were asked for; with none if it raised
    ends: Callable[[Sequence[Any]], None] = lambda given: None


_observers: list[Observer] = []


def observe_backward(observer: Observer) -> None:
    """Call an observer of each backward from now on.

    Autograd has no hook for it, so its Python entrance is replaced while there are observers.
    """
    if not _observers and hasattr(torch.autograd, ENTRANCE):
        original = getattr(torch.autograd, ENTRANCE)

        @functools.wraps(original)
        def run_backward(roots: Any, *args: Any, **kwargs: Any) -> Any:
            # while torch.compile traces a backward, none runs
            active = list(_observers) if TracingContext.try_get() is None else []
            for each in active:
                each.begins(
                    roots,
                    args[0] if args else (),
                    bool(args[2] if len(args) > 2 else kwargs.get("create_graph")),
                )
            given: Any = None
            try:
                given = original(roots, *args, **kwargs)
                return given
            finally:
                for each in active:
                    each.ends(given or ())

        setattr(torch.autograd, ENTRANCE, run_backward)
    _observers.append(observer)


def observe_backward_no_more(observer: Observer) -> None:
    """Undo ``observe_backward``."""
    if observer in _observers:
        _observers.remove(observer)
        original = getattr(getattr(torch.autograd, ENTRANCE, None), "__wrapped__", None)
        if not _observers and original is not None:
            setattr(torch.autograd, ENTRANCE, original)


def nodes_outside(roots: Iterable[Any], is_inside: Callable[[int], bool]) -> list[Any]:
    """The autograd nodes from a backward's roots up to the model's, always in the same order.
    Returns the nodes; none if they do not lead to the model, or are too many, as another model's
    are.

    Args:
        roots: tensors or edges of the graph.
        is_inside: whether the node of this number is the model's.
    """
    waiting = _nodes(roots)
    nodes: dict[int, Any] = {}  # by id; keeping a node keeps its id from being reused
    reached = False
    while waiting and len(nodes) <= _MOST:
        node = waiting.pop()
        if node is None or id(node) in nodes or node.name() == ACCUMULATES:
            continue
        if is_inside(node._sequence_nr()):
            reached = True
            continue
        nodes[id(node)] = node
        waiting += [following for following, _ in node.next_functions]
    return list(nodes.values()) if reached and len(nodes) <= _MOST else []


def entered(
    roots: Iterable[Any], outside: Sequence[Any], is_inside: Callable[[int], bool]
) -> set[int]:
    """The model's nodes where a backward enters it: at its roots, and behind the nodes outside.
    Returns the numbers; none if unknown, since a root is outside and ``outside`` is empty.

    Args:
        roots, is_inside, outside: of ``nodes_outside``, and what it returned.
    """
    nodes = _nodes(roots)
    if not outside and any(
        node is not None and node.name() != ACCUMULATES and not is_inside(node._sequence_nr())
        for node in nodes
    ):
        return set()
    nodes += [following for node in outside for following, _ in node.next_functions]
    numbers = {
        node._sequence_nr() for node in nodes if node is not None and node.name() != ACCUMULATES
    }
    return {number for number in numbers if is_inside(number)}


def _nodes(roots: Iterable[Any]) -> list[Any]:
    return [getattr(root, "grad_fn", None) or getattr(root, "node", None) for root in roots]


def reachable(roots: Iterable[Any]) -> Iterator[Any]:
    """The nodes that a backward from these roots may run, each once, except accumulation nodes."""
    waiting = _nodes(roots)
    known: dict[int, Any] = {}  # by id; keeping a node keeps its id from being reused
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in known or node.name() == ACCUMULATES:
            continue
        known[id(node)] = node
        waiting += [following for following, _ in node.next_functions]
        yield node
