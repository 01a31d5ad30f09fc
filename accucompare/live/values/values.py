"""Nested values: their parts, and the path of each."""

from __future__ import annotations

import copy
import dataclasses
import enum
import re
from collections.abc import Iterator, Mapping, MutableMapping
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

#: Kinds of tensors, which a call returns only if it is asked about its tensors.
_TYPES = (torch.dtype, torch.layout, torch.memory_format)

#: What ``repr`` says all of.
_WRITABLE = (range, type(...), Decimal, Fraction, date, timedelta, np.dtype, *_TYPES)

#: Names of devices, which differ between captures to be compared.
_DEVICES = re.compile(r"(cpu|cuda|npu|xpu|mps|hpu|meta|privateuseone)(:\d+)?")

#: How deep tensors are looked for in an object's attributes.
_DEPTH = 4

#: Python numbers, which are recorded as 0-d arrays.
Scalar = (bool, int, float, complex)

_LEAVES = (torch.Tensor, str, bytes, *Scalar)


def leaves(
    value: Any, path: str = "", inside: tuple[int, ...] = (), types: bool = False
) -> Iterator[tuple[str, Any]]:
    """Every part of a value that holds no further parts, with its path.

    Goes into tuples, lists, mappings (``ModelOutput`` is one), dataclasses, named tuples, types
    registered with PyTorch's pytree, and other objects with tensors among their attributes (a batch
    of graphs, a list of images). ``None`` and devices yield nothing; nor do dtypes and their like
    unless ``types``. Anything else is yielded whole, as is a container inside itself (``inside``
    holds the ids of the containers around).
    """
    if type(value) is torch.Tensor:  # the most common case in every call
        yield path, value
        return
    if value is None or isinstance(value, torch.device):
        return
    if isinstance(value, _TYPES) and not types:
        return
    children = None if id(value) in inside else _children(value)
    if children is None:
        yield path, value
        return
    for part, child in children:
        place = f"{path}.{part}" if path else part
        if type(child) is torch.Tensor:
            yield place, child
        elif child is not None:
            yield from leaves(child, place, (*inside, id(value)), types)


def replaced(
    value: Any, by_path: Mapping[str, Any], rebuilt: list[tuple[Any, Any]] | None = None
) -> Any:
    """A value with some parts replaced; the containers around them are built anew, of equal types.
    Returns the new value, or the old one if nothing is replaced. A KV cache, which the calls of a
    model share, and a container that cannot be built anew stay unchanged, with all their parts.

    Args:
        value: is not changed; containers without replaced parts are kept.
        by_path: new parts by the paths that ``leaves`` gives.
        rebuilt: gets the (old, new) pairs of lists, mappings and objects, which may be written
            into.
    """

    return _replaced(value, "", (), by_path, rebuilt)


def _replaced(
    part: Any,
    path: str,
    inside: tuple[int, ...],
    by_path: Mapping[str, Any],
    rebuilt: list[tuple[Any, Any]] | None,
) -> Any:
    if part is None:
        return None
    children = None if id(part) in inside else _children(part)
    if children is None:
        return by_path.get(path, part)
    around = (*inside, id(part))
    new = [
        _replaced(child, f"{path}.{name}" if path else name, around, by_path, rebuilt)
        for name, child in children
    ]
    if all(after is before for after, (_, before) in zip(new, children, strict=True)):
        return part
    if is_cache(part):
        return part
    try:
        result = _rebuilt(part, new)
    except Exception:  # a user's class may refuse in any way
        return part
    if rebuilt is not None and (isinstance(part, (list, MutableMapping)) or has_attributes(part)):
        rebuilt.append((part, result))
    return result


def is_cache(value: Any) -> bool:
    """Whether a value is transformers' KV cache, which a model's calls share and write into."""
    return any(base.__name__ == "Cache" for base in type(value).__mro__)


def _rebuilt(value: Any, children: list[Any]) -> Any:
    """A container like this one with other children, in the order of ``_children``."""
    if isinstance(value, MutableMapping):
        mapping = copy.copy(value)
        # a BatchEncoding iterates otherwise
        for key, child in zip(value.keys(), children, strict=True):
            mapping[key] = child
        return mapping
    if isinstance(value, Mapping):
        return type(value)(dict(zip(value.keys(), children, strict=True)))  # type: ignore[call-arg]
    if isinstance(value, tuple):
        return value._make(children) if hasattr(value, "_make") else type(value)(children)
    if isinstance(value, list):
        items = copy.copy(value)
        items[:] = children
        return items
    if dataclasses.is_dataclass(value):
        instance: Any = copy.copy(value)
        for field, child in zip(dataclasses.fields(value), children, strict=True):
            if child is not getattr(value, field.name, None):
                object.__setattr__(instance, field.name, child)  # works for frozen ones, too
        return instance
    node = pytree.SUPPORTED_NODES.get(type(value))
    if node is None:
        made = copy.copy(value)
        vars(made).update(
            (name, child)
            for name, child in zip(_attributes(value), children, strict=True)
            if child is not vars(value)[name]
        )
        return made
    return node.unflatten_fn(children, node.flatten_fn(value)[1])


def _children(value: Any) -> list[tuple[str, Any]] | None:
    """The parts of a container with their names; ``None`` if it is not one."""
    if type(value) is tuple:
        return [(str(index), child) for index, child in enumerate(value)]
    if isinstance(value, _LEAVES):
        return None
    if type(value) is dict or isinstance(value, Mapping):
        return [(_part(key), child) for key, child in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(str(name), child) for name, child in zip(value._fields, value, strict=True)]
    if isinstance(value, (tuple, list)):
        return [(str(index), child) for index, child in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [
            (field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)
        ]
    node = pytree.SUPPORTED_NODES.get(type(value))
    if node is not None:
        return [(str(index), child) for index, child in enumerate(node.flatten_fn(value)[0])]
    if has_attributes(value) and not is_cache(value) and _holds_tensor(value, _DEPTH):
        return [(name, vars(value)[name]) for name in _attributes(value)]
    return None


def has_attributes(value: Any) -> bool:
    """Whether an object may keep tensors: no function, module, class, nor anything callable."""
    return (
        hasattr(value, "__dict__")
        and not callable(value)
        and not isinstance(value, (torch.Tensor, ModuleType))
    )


def _attributes(value: Any) -> list[str]:
    """An object's attributes that hold tensors, and public ones with plain data or lists of it."""
    found = vars(value).items()
    return [
        name
        for name, child in found
        if _holds_tensor(child, _DEPTH - 1)
        or (not name.startswith("_") and _is_told(child, _DEPTH))
    ]


def _holds_tensor(value: Any, depth: int) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if depth == 0 or value is None or isinstance(value, (str, bytes, *Scalar)):
        return False
    if isinstance(value, Mapping):
        return any(_holds_tensor(child, depth - 1) for child in value.values())
    if isinstance(value, (tuple, list)):
        return any(_holds_tensor(child, depth - 1) for child in value)
    return has_attributes(value) and any(
        _holds_tensor(child, depth - 1) for child in list(vars(value).values())
    )


def _is_told(value: Any, depth: int) -> bool:
    if isinstance(value, (tuple, list)):
        return depth > 0 and all(_is_told(child, depth - 1) for child in value)
    if isinstance(value, (np.generic, *Scalar)):
        return True
    return not callable(value) and telling_name(value) is not None


def _part(key: Any) -> str:
    """A mapping's key in a path: plain strings and ints unchanged, others without ambiguity."""
    if isinstance(key, str):
        plain = key and "." not in key and "[" not in key and not key.isdigit()
        return key if plain else f"[{key!r}]"
    return str(key) if type(key) is int else f"[{key!r}]"


def describe_value(value: Any) -> str:
    """What an opaque value is, in a few words."""
    kind = type(value)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    if isinstance(value, (str, bytes)):
        return f"{name} {value[:80]!r}"
    if isinstance(value, int):
        return f"int of {value.bit_length()} bits"
    is_written = isinstance(value, (enum.Enum, slice, set, frozenset, *_WRITABLE))
    text = telling_name(value) if is_written else None
    return name if text is None else text[:80]


def telling_name(value: Any) -> str | None:
    """The text that says all of a value: of plain data, an enumeration's member, a class, a
    function, a module's method; the same for all names of devices.

    Functions that hold values of their own have none."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, (str, bytes, int)):
        is_device = isinstance(value, str) and _DEVICES.fullmatch(value)
        return "a device" if is_device else repr(value)
    parts = (value.start, value.stop, value.step) if isinstance(value, slice) else ()
    if isinstance(value, (set, frozenset)):
        parts = tuple(value)
    if parts and all(isinstance(part, (str, bytes, int, enum.Enum, type(None))) for part in parts):
        in_order = f"{{{', '.join(sorted(map(repr, parts)))}}}"
        return repr(value) if isinstance(value, slice) else in_order
    if isinstance(value, _WRITABLE) or (isinstance(value, (set, frozenset)) and not value):
        return repr(value)
    if isinstance(value, type):
        return value.__qualname__
    inner = value
    if isinstance(value, MethodType) and isinstance(value.__self__, torch.nn.Module):
        inner = value.__func__
    plain = isinstance(inner, (FunctionType, BuiltinFunctionType))
    return inner.__qualname__ if plain and not getattr(inner, "__closure__", None) else None
