"""Plain attributes of modules, such as counters of their calls: kept when a call begins, so that it can be run again with them."""

from __future__ import annotations

import copy
from collections.abc import MutableMapping, MutableSequence, MutableSet
from typing import Any

import torch
from torch import nn

from accucompare.capture.names import Modules
from accucompare.capture.values import leaves, replaced

#: By module and name. Containers are copies; tensors are the objects themselves, since most are never written into.
Attributes = dict[nn.Module, dict[str, Any]]

_PLAIN = (bool, int, float, complex, str, bytes, tuple, type(None), torch.Tensor)
_CONTAINERS = (MutableMapping, MutableSequence, MutableSet)
#: What every module has, hooks and children among it.
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}


def attributes_of(modules: Modules) -> Attributes:
    """What modules keep of numbers, strings, tensors, containers and random generators."""
    return {module: dict(_kept(module)) for module in modules.named.values()}


def set_attributes(attributes: Attributes, fresh: bool = False) -> None:
    """Give modules these attributes; ``fresh`` ones, that may be written into."""
    for module, values in attributes.items():
        for name, value in values.items():
            vars(module)[name] = _fresh(value) if fresh else value


class _State:
    """The state of a random generator."""

    def __init__(self, generator: torch.Generator) -> None:
        self.device = generator.device
        self.state = generator.get_state()


def _kept(module: nn.Module) -> Any:
    for name, value in vars(module).items():
        if name in _OF_EVERY_MODULE:
            continue
        if isinstance(value, torch.Generator):
            yield name, _State(value)
        elif isinstance(value, _CONTAINERS):
            yield name, copy.copy(value)
        elif isinstance(value, _PLAIN):
            yield name, value


def _fresh(value: Any) -> Any:
    if isinstance(value, _State):
        generator = torch.Generator(value.device)
        generator.set_state(value.state)
        return generator
    if isinstance(value, _CONTAINERS):
        value = copy.copy(value)
    copies = {path: _copied(part) for path, part in leaves(value) if isinstance(part, torch.Tensor)}
    return replaced(value, copies)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad and tensor.is_leaf)
