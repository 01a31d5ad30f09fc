"""Hearing a backward begin, and what is computed between the model's outputs and it: the loss of a loop's own.

Autograd tells nobody that a backward begins. While a watch lasts, its entrance for Python is replaced by one that first puts hooks on
the nodes outside of the model, and then goes on as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

_ACCUMULATES = "torch::autograd::AccumulateGrad"
#: The name of the entrance in ``torch.autograd``.
_ENTRANCE = "_engine_run_backward"
#: A loss has so many nodes at most.
_MOST = 500
#: For so many losses computed otherwise than those before, lines are noted once more, in the step after the one that shows it.
_MOST_AGAIN = 8

#: Those that are told of each backward of this process.
_told: list[Callable[[Any, bool], None]] = []


def tell(act: Callable[[Any, bool], None]) -> None:
    """Tell of each backward that begins from now on: its roots, and whether gradients of gradients are to follow."""
    if not _told and hasattr(torch.autograd, _ENTRANCE):
        original = getattr(torch.autograd, _ENTRANCE)

        def run_backward(roots: Any, *args: Any, **kwargs: Any) -> Any:
            for each in list(_told):
                each(roots, bool(args[2] if len(args) > 2 else kwargs.get("create_graph")))
            return original(roots, *args, **kwargs)

        run_backward.__wrapped__ = original  # type: ignore[attr-defined]
        setattr(torch.autograd, _ENTRANCE, run_backward)
    _told.append(act)


def tell_no_more(act: Callable[[Any, bool], None]) -> None:
    """Take that back."""
    if act in _told:
        _told.remove(act)
        original = getattr(getattr(torch.autograd, _ENTRANCE, None), "__wrapped__", None)
        if not _told and original is not None:
            setattr(torch.autograd, _ENTRANCE, original)


def nodes_outside(roots: Iterable[Any], is_inside: Callable[[int], bool]) -> list[Any]:
    """The autograd nodes from a backward's roots on, up to those that are the model's, always in the same order.

    Args:
        roots: tensors or edges of the graph.
        is_inside: says of a node's number whether it is the model's.

    Returns:
        None, if the model is not among what they lead to, or they are too many, as those of another model are.
    """
    waiting = [getattr(root, "grad_fn", None) or getattr(root, "node", None) for root in roots]
    found: dict[int, Any] = {}  # by id; that the nodes are kept lets no other one have it
    reached = False
    while waiting and len(found) <= _MOST:
        node = waiting.pop()
        if node is None or id(node) in found or node.name() == _ACCUMULATES:
            continue
        if is_inside(node._sequence_nr()):
            reached = True
            continue
        found[id(node)] = node
        waiting += [following for following, _ in node.next_functions]
    return list(found.values()) if reached and len(found) <= _MOST else []


def entered(roots: Iterable[Any], outside: Iterable[Any], is_inside: Callable[[int], bool]) -> set[int]:
    """The numbers of the model's nodes that a backward comes to from outside of it: at its roots, and behind the nodes outside.

    Args:
        roots, is_inside: as for ``nodes_outside``.
        outside: what that returned.

    Returns:
        None, if it is not known: a root is outside, and the nodes from there on are not.
    """
    nodes = [getattr(root, "grad_fn", None) or getattr(root, "node", None) for root in roots]
    known = list(outside)
    if not known and any(node is not None and node.name() != _ACCUMULATES and not is_inside(node._sequence_nr()) for node in nodes):
        return set()
    nodes += [following for node in known for following, _ in node.next_functions]
    numbers = {node._sequence_nr() for node in nodes if node is not None and node.name() != _ACCUMULATES}
    return {number for number in numbers if is_inside(number)}


class Lines:
    """The source lines of operators outside of the model, which torch's anomaly mode notes.

    It takes long. A loss is computed in the same way in each step, so that its first step is enough, if the graph is the same; where it is
    another, the next step is noted too, a few times.

    Attributes:
        always: note them in every step.
    """

    def __init__(self) -> None:
        self.always = False
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._on = False
        self._again = False  # the last loss was a new one
        self._left = _MOST_AGAIN

    def begin(self) -> None:
        """Operators that are called from now on are outside of the model."""
        if (self.always or self._again or not self._known) and not torch.is_anomaly_enabled():
            torch.autograd.set_detect_anomaly(True, check_nan=False)
            self._on = True

    def end(self) -> None:
        """Those that are called from now on are not, or need no line. A mode of the user's own is left as it is."""
        if self._on and not torch.is_anomaly_check_nan_enabled():
            torch.autograd.set_detect_anomaly(False)
            self._on = False

    def give_up(self) -> None:
        """A step is over: what had no loss in it will have none."""
        if self._on:
            self._known.setdefault((), ())
        self.end()

    def of(self, nodes: list[Any], line: Callable[[Any], str]) -> tuple[str, ...]:
        """The line of each node, as ``line`` finds it if it was noted; empty if it is not known."""
        names = tuple(node.name() for node in nodes)
        if nodes and not self._on and names not in self._known and self._left:
            self._again = True
            self._left -= 1
        if self._on:
            self._again = False
            self._known[names] = tuple(map(line, nodes))
            if len(self._known) > 8:
                del self._known[next(iter(self._known))]
        return self._known.get(names, ("",) * len(nodes))
