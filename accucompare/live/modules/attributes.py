"""Plain attributes of modules, such as counters of calls: kept, and put back for a second run."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, MutableSet
from functools import lru_cache
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import nn

from accucompare.errors import CaptureError
from accucompare.live.modules.names import Modules
from accucompare.live.values import leaves, replaced

#: By module and name. Containers are copies; tensors, rarely written into, are the objects.
Attributes = dict[nn.Module, dict[str, Any]]

_UNCHANGING = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    type,
    FunctionType,
)
_RANDOM = (random.Random, np.random.Generator, np.random.RandomState)
_CONTAINERS = (MutableMapping, MutableSequence, MutableSet, tuple)
#: What every module has, such as hooks and children.
OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}


def attributes_of(modules: Modules) -> Attributes:
    """The numbers, strings, tensors, containers and random generators that modules keep."""
    return {module: _kept(module) for module in modules.named.values()}


def set_attributes(attributes: Attributes, modules: Modules) -> None:
    """Give modules copies of these attributes, and of all their other ones. Raises CaptureError if
    a module keeps an iterator that cannot be copied."""
    shared: list[Any] = [*modules.named.values(), *(tensor for *_, tensor in modules.tensors())]
    memo = {id(each): each for each in shared}
    for module in modules.named.values():
        kept = attributes.get(module, {})
        for name, value in list(vars(module).items()):
            if name not in OF_EVERY_MODULE and not isinstance(value, _UNCHANGING):
                vars(module)[name] = _fresh(kept.get(name, value), memo, name)
        vars(module).update(
            {name: value for name, value in kept.items() if isinstance(value, _UNCHANGING)}
        )


def plain_numbers(module: nn.Module) -> dict[str, Any]:
    """The numbers and strings that a module keeps."""
    return {
        name: value
        for name, value in vars(module).items()
        if name not in OF_EVERY_MODULE and isinstance(value, (int, float, str))
    }


def generators_of(module: nn.Module) -> list[str]:
    """The names of a module's own random generators."""
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, (torch.Generator, *_RANDOM))
    ]


class _GeneratorState:
    def __init__(self, generator: torch.Generator) -> None:
        self.device = generator.device
        self.state = generator.get_state()

    def __deepcopy__(self, memo: Any) -> torch.Generator:
        generator = torch.Generator(self.device)
        generator.set_state(self.state)
        return generator


def _itself(value: Any) -> Any:
    return value


@lru_cache(maxsize=1024)
def _way_of(kind: type) -> Callable[[Any], Any] | None:
    """What an attribute of a class is kept as; ``None`` if it is not kept."""
    if issubclass(kind, torch.Generator):
        return _GeneratorState
    if issubclass(kind, _RANDOM):
        return copy.deepcopy
    if issubclass(kind, _CONTAINERS):
        return copy.copy
    return _itself if issubclass(kind, (*_UNCHANGING, torch.Tensor, np.ndarray)) else None


def _kept(module: nn.Module) -> dict[str, Any]:
    kept = {}
    for name, value in vars(module).items():
        kind: Any = type(value)
        if name not in OF_EVERY_MODULE and (way := _way_of(kind)) is not None:
            kept[name] = way(value)
    return kept


def _fresh(value: Any, memo: dict[int, Any], name: str) -> Any:
    if isinstance(value, torch.Generator):
        value = _GeneratorState(value)
    if isinstance(value, _CONTAINERS) and any(
        isinstance(part, torch.Generator) for _, part in leaves(value)
    ):
        value = replaced(
            value,
            {
                path: _GeneratorState(part)
                for path, part in leaves(value)
                if isinstance(part, torch.Generator)
            },
        )
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad and value.is_leaf)
    try:
        tensors = {
            id(part): part.detach().clone()
            for _, part in leaves(value)
            if isinstance(part, torch.Tensor) and id(part) not in memo
        }
        return copy.deepcopy(value, {**memo, **tensors})
    except Exception as error:  # a class may refuse in any way
        if isinstance(value, Iterator):
            raise CaptureError(
                f"a module keeps an iterator ({name}), which cannot be put back"
            ) from error
        return value
