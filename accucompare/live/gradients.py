"""Hearing a backward begin, and what is computed between the model's outputs and it: the loss of a loop's own.

Autograd tells nobody that a backward begins. While a watch lasts, its entrance for Python is replaced by one that first puts hooks on
the nodes outside of the model, and then goes on as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from accucompare.live.hooks import Unsaved
from accucompare.live.names import Modules

ACCUMULATES = "torch::autograd::AccumulateGrad"
#: What the backward of these gives is what it was given, in another order or shape, or with zeros in between.
PASSING_ON = frozenset(
    f"{name}Backward0"
    for name in (
        *("View", "UnsafeView", "ReshapeAlias", "T", "Transpose", "Permute", "Movedim", "Unsqueeze", "Squeeze", "Alias", "Clone"),
        *("Slice", "Select", "Split", "SplitWithSizes", "Unbind", "Cat", "Stack", "Unfold", "Diagonal", "Narrow"),
    )
)
#: The name of the entrance in ``torch.autograd``.
_ENTRANCE = "_engine_run_backward"
#: A loss has so many nodes at most.
_MOST = 500

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
        if node is None or id(node) in found or node.name() == ACCUMULATES:
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
    if not known and any(node is not None and node.name() != ACCUMULATES and not is_inside(node._sequence_nr()) for node in nodes):
        return set()
    nodes += [following for node in known for following, _ in node.next_functions]
    numbers = {node._sequence_nr() for node in nodes if node is not None and node.name() != ACCUMULATES}
    return {number for number in numbers if is_inside(number)}


class Parameter(NamedTuple):
    """A parameter under its first name, the module that it belongs to, and its name there."""

    name: str
    own: str
    owner: str
    tensor: torch.Tensor


def gradient_state(parameter: torch.Tensor) -> tuple[int, int]:
    """Which tensor a parameter's gradient is, and how often it has been written into."""
    return id(parameter.grad), -1 if parameter.grad is None or parameter.grad.is_inference() else parameter.grad._version


def register_first_hook(tensor: torch.Tensor, act: Callable[[torch.Tensor], Any]) -> torch.utils.hooks.RemovableHandle:
    """Register a tensor's hook that is called before those that it has."""
    handle: torch.utils.hooks.RemovableHandle = tensor.register_hook(act)  # type: ignore[no-untyped-call]
    hooks: Any = tensor._backward_hooks
    others = [(key, hook) for key, hook in hooks.items() if key != handle.id]
    for key, _ in others:  # autograd goes by the order in which they were put in, and not by that of the OrderedDict
        del hooks[key]
    hooks.update(others)
    return handle


class Returning(Unsaved):
    """A tensor's hook that leaves the gradient as it is, and is left behind where the tensor is saved."""

    __torch_unserializable__ = True

    def __init__(self, act: Callable[[torch.Tensor], None]) -> None:
        self._act = act

    def __call__(self, grad: torch.Tensor) -> None:
        self._act(grad)


def queue(act: Callable[[], None]) -> None:
    """Let something be done when the running backward is over."""
    torch.autograd.Variable._execution_engine.queue_callback(act)


def parameters_of(modules: Modules) -> Iterator[Parameter]:
    seen = set()
    for name, module in modules.named.items():
        for own, tensor in module._parameters.items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield Parameter(f"{name}.{own}" if name else own, own, name, tensor)
