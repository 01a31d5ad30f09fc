"""What a compiled call does beside its values: draws random numbers, overwrites weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from accucompare.live.operators import get_state, set_state

#: Parts of names of functions that draw random numbers.
_RANDOM = ("rand", "bernoulli", "multinomial", "normal_", "uniform_", "exponential_", "rrelu")


def draws_of(graph: torch.fx.GraphModule) -> Iterator[str]:
    """The functions of a graph, and of those inside of it, that draw random numbers by name."""
    graphs = [each for each in graph.modules() if isinstance(each, torch.fx.GraphModule)]
    for node in (node for each in graphs for node in each.graph.nodes):
        if node.op not in ("call_function", "call_method"):
            continue
        name = node.target if isinstance(node.target, str) else _name_of(node.target)
        if "dropout" in name or "rrelu" in name:
            rate = node.kwargs.get("p", node.args[1] if len(node.args) > 1 else 0.5)
            trains = node.kwargs.get("training", node.args[2] if len(node.args) > 2 else True)
            if rate and trains:
                yield name
        elif name == "scaled_dot_product_attention":
            if node.kwargs.get("dropout_p", node.args[4] if len(node.args) > 4 else 0.0):
                yield name
        elif any(part in name for part in _RANDOM):
            yield name


def _name_of(target: Any) -> str:
    return str(getattr(target, "__name__", target))


class BeforeCall:
    """Random generators and, of a first call, the module's buffers, as they are before a call."""

    def __init__(self, module: nn.Module, first: bool, args: Any, kwargs: Any) -> None:
        tensors = [*module.parameters(), *module.buffers(), *pytree.tree_leaves((args, kwargs))]
        devices = {each.device for each in tensors if isinstance(each, torch.Tensor)}
        devices = {each for each in devices if each.type != "meta"} | {torch.device("cpu")}
        self._states = {each: get_state(each) for each in devices}
        buffers = module.buffers() if first else ()
        self._buffers = [(each, each.detach().clone()) for each in buffers]
        # a training capture looks at all that a step leaves behind
        held = (*module.named_parameters(), *module.named_buffers())
        self._held = [
            (name, each, each._version, _sum_of_bits(each))
            for name, each in (held if first and not module.training else ())
            if each.device.type != "meta" and not each.is_inference()
        ]

    @property
    def has_drawn(self) -> bool:
        """Whether random numbers have been drawn since."""
        return any(not torch.equal(get_state(at), was) for at, was in self._states.items())

    @property
    def overwritten(self) -> str | None:
        """A parameter or buffer that changed since, though no write was counted: the compiled code
        has written where no operator of the model does."""
        return next(
            (
                name
                for name, each, version, before in self._held
                if each._version == version and _sum_of_bits(each) != before
            ),
            None,
        )

    def restore(self) -> None:
        for device, state in self._states.items():
            set_state(device, state)
        with torch.no_grad():
            for buffer, was in self._buffers:
                buffer.data.copy_(was)


#: Integers of as many bytes.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _sum_of_bits(tensor: torch.Tensor) -> int | None:
    """Tells whether a tensor was written into; ``None`` for types that are not looked at."""
    if tensor.layout is not torch.strided or tensor.element_size() not in _BITS:
        return None
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    bits = tensor.detach().contiguous().view(_BITS[tensor.element_size()])
    return int(bits.sum(dtype=torch.int64))
