"""Whether a compiled region draws random numbers: by its graph, and by what a call has drawn."""

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

    @property
    def has_drawn(self) -> bool:
        """Whether random numbers have been drawn since."""
        return any(not torch.equal(get_state(at), was) for at, was in self._states.items())

    def restore(self) -> None:
        for device, state in self._states.items():
            set_state(device, state)
        with torch.no_grad():
            for buffer, was in self._buffers:
                buffer.data.copy_(was)
