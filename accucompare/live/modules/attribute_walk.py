"""What modules keep in containers and plain objects among their attributes: tensors and numbers.

Only ``__dict__``, ``__slots__`` and the items of containers are read: no code of the model runs."""

from __future__ import annotations

import argparse
import enum
import re
import sys
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from types import MemberDescriptorType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from accucompare.live.modules.attributes import OF_EVERY_MODULE
from accucompare.live.modules.names import class_of
from accucompare.live.values import dtype_name
from accucompare.text import cut, storable

#: How many containers deep; how many items of one container; the longest name of an item.
_DEPTH, MOST_ITEMS, _LONGEST = 6, 1000, 80
#: Of the standard library, only these hold data of a model's.
_HOLDERS = (SimpleNamespace, argparse.Namespace, UserDict, UserList, ChainMap)
#: Packages whose objects hold models, optimizers, and views of parameters.
_FRAMEWORKS = {
    *("torch", "numpy", "accelerate", "apex", "deepspeed", "lightning", "lightning_fabric"),
    *("megatron", "pytorch_lightning", "transformer_engine", "accucompare"),
}
_NUMBERS = (bool, int, float)
_DEVICES = re.compile(r"(cpu|cuda|npu|xpu|mps|hpu|meta|privateuseone)(:\d+)?")


class Inner(NamedTuple):
    """A tensor, an array or a number inside of a module's attribute."""

    path: str  # its name in the module: ``cache.k``
    value: Any
    # holder, key: what puts another value in its place: ``holder[key] = …``; ``None`` if nothing
    # does
    holder: Any
    key: Any


def containers_of(module: nn.Module) -> list[str]:
    """The attributes that hold what may hold tensors, an array, or nothing yet."""
    return [
        name
        for name, value in vars(module).items()
        if name not in OF_EVERY_MODULE
        and (value is None or _way(value) in ("dict", "list", "object", "array"))
    ]


def is_of_torch(module: nn.Module) -> bool:
    """Whether a module's class is one of PyTorch's."""
    return class_of(module).__module__.startswith("torch.")


class AttributeWalk:
    """A walk through the attributes of a model's modules; each container is met once."""

    def __init__(self, names: Mapping[int, str]) -> None:
        """``names``: of parameters, by their ids: EMA's tables have them as keys."""
        self._names = names
        self._around: set[int] = set()
        self.met = 0  # how many items it has met
        self.too_many: list[str] = []  # the paths of containers with more items than are looked at

    def of(self, module: nn.Module, attribute: str) -> Iterator[Inner]:
        """What is inside of an attribute, or the attribute itself, if it is an array."""
        own = vars(module)
        value = own.get(attribute)
        way = _way(value)
        if way == "array":
            yield Inner(attribute, value, own, attribute)
        elif way in ("dict", "list", "object"):
            yield from self._of(value, attribute, 1, own, attribute)

    def _of(self, value: Any, path: str, depth: int, around: Any, place: Any) -> Iterator[Inner]:
        """``around``, ``place``: what holds the value."""
        if id(value) in self._around or depth > _DEPTH:
            return
        self._around.add(id(value))
        taken: set[str] = set()
        holder, items = self._items(value, path)
        if type(value) is tuple and around is not None:
            holder = _TupleItems(value, around, place)
        for key, child in items:
            way = _way(child)
            self.met += 1
            if way is None:
                continue
            name = self._name(key)
            if name in taken:
                name = f"{name}~{len(taken)}"
            taken.add(name)
            if way in ("tensor", "array", "number"):
                yield Inner(f"{path}.{name}", child, holder, key)
            else:
                yield from self._of(child, f"{path}.{name}", depth + 1, holder, key)

    def _items(self, value: Any, path: str) -> tuple[Any, Iterable[tuple[Any, Any]]]:
        """Its dictionary or list, and its items."""
        holder, items = _holder_and_items(value)
        if len(items) > MOST_ITEMS:
            if all(_way(child) in (None, "number") for _, child in items):
                return None, ()  # a vocabulary
            self.too_many.append(path)
        return holder, items[:MOST_ITEMS]

    def _name(self, key: Any) -> str:
        """A key in a path, the same on any device and in any type."""
        if isinstance(key, str):
            text = "device" if _DEVICES.fullmatch(key) else storable(key).replace("#", "_")
        elif isinstance(key, tuple):
            text = f"({','.join(map(self._name, key))})"
        elif isinstance(key, torch.dtype):
            text = "dtype" if key.is_floating_point else dtype_name(key)
        elif isinstance(key, torch.device):
            text = "device"
        elif id(key) in self._names:
            text = self._names[id(key)]
        elif isinstance(key, (*_NUMBERS, type(None))) and not _is_id(key):
            text = repr(key)
        else:
            text = type(key).__name__
        return cut(text, _LONGEST)


class _TupleItems:
    """Puts values into a tuple's place, by another tuple."""

    def __init__(self, value: tuple[Any, ...], around: Any, place: Any) -> None:
        self._items, self._around, self._place = [*value], around, place

    def __setitem__(self, index: int, value: Any) -> None:
        self._items[index] = value
        self._around[self._place] = tuple(self._items)


def _is_id(key: Any) -> bool:
    return isinstance(key, int) and abs(key) >= 1 << 32


def _holder_and_items(value: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    way = _way(value)
    if way == "dict":
        return value, list(islice(dict.items(value), MOST_ITEMS + 1))
    if way == "list":
        base: Any = next(each for each in (list, tuple, deque) if isinstance(value, each))
        items = islice(base.__iter__(value), MOST_ITEMS + 1)
        keys = getattr(type(value), "_fields", None) if base is tuple else None
        return value if base is not tuple else None, list(
            enumerate(items) if keys is None else zip(keys, items, strict=False)
        )
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = {}
    kind: Any = type(value)
    slots = [(name, _slot(slot, value)) for name, slot in _slots_of(kind)]
    return None if slots else own, [*islice(own.items(), MOST_ITEMS), *slots]


def _slot(slot: MemberDescriptorType, value: Any) -> Any:
    try:
        return slot.__get__(value, type(value))
    except AttributeError:  # not set
        return None


@lru_cache(maxsize=4096)
def _slots_of(kind: type) -> list[tuple[str, MemberDescriptorType]]:
    return [
        (name, slot)
        for base in kind.__mro__
        for name, slot in vars(base).items()
        if isinstance(slot, MemberDescriptorType) and not name.startswith("__")
    ]


def _way(value: Any) -> str | None:
    kind: Any = type(value)
    return _way_of(kind)


@lru_cache(maxsize=4096)
def _way_of(kind: type) -> str | None:
    """How a class's objects are looked into; ``None`` if they are not."""
    if kind in _NUMBERS:
        return "number"
    if issubclass(kind, (nn.Module, nn.Parameter, torch.optim.Optimizer, enum.Enum, type, str)):
        return None
    ways = {torch.Tensor: "tensor", np.ndarray: "array", dict: "dict"}
    ways |= dict.fromkeys((list, tuple, deque), "list")
    for base, way in ways.items():
        if issubclass(kind, base):
            return way
    package = str(kind.__module__).partition(".")[0]
    if package in sys.stdlib_module_names:
        return "object" if issubclass(kind, _HOLDERS) else None
    return None if package in _FRAMEWORKS or issubclass(kind, BaseException) else "object"
