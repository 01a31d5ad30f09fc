"""Taking nested values apart, and naming the place of each part."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

#: Python numbers, which are recorded as 0-d arrays.
Scalar = (bool, int, float, complex)


def leaves(value: Any, path: str = "", inside: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every part of a value that holds no further parts, with its path.

    Goes into tuples, lists, mappings (``ModelOutput`` is one), dataclasses, named tuples, and types registered with PyTorch's
    pytree. ``None`` is no value and yields nothing; whatever else cannot be taken apart is yielded as it is, and so is a container
    inside itself (``inside`` holds the ids of those around it).
    """
    if value is None:
        return
    whole = isinstance(value, (torch.Tensor, str, bytes, *Scalar)) or id(value) in inside
    children = None if whole else _children(value)
    if children is None:
        yield path, value
    else:
        for part, child in children:
            yield from leaves(child, f"{path}.{part}" if path else part, (*inside, id(value)))


def _children(value: Any) -> list[tuple[str, Any]] | None:
    """The parts of a container with their names; ``None`` if it is none."""
    if isinstance(value, Mapping):
        return [(_part(key), child) for key, child in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(str(name), child) for name, child in zip(value._fields, value, strict=True)]
    if isinstance(value, (tuple, list)):
        return [(str(index), child) for index, child in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    node = pytree.SUPPORTED_NODES.get(type(value))
    if node is not None:
        return [(str(index), child) for index, child in enumerate(node.flatten_fn(value)[0])]
    return None


def _part(key: Any) -> str:
    """A mapping's key as part of a path: plain strings and ints as they are, others so that no two keys look alike."""
    if isinstance(key, str):
        plain = key and "." not in key and "[" not in key and not key.isdigit()
        return key if plain else f"[{key!r}]"
    return str(key) if type(key) is int else f"[{key!r}]"


def describe(value: Any) -> str:
    """What an opaque value is, in a few words."""
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, (str, bytes)):
        return f"{name} {value[:80]!r}"
    if isinstance(value, int):
        return f"int of {value.bit_length()} bits"
    return name
