"""Comparing a rebuilt module with the live one, except for tensors' values."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from argparse import Namespace
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from accucompare.live.modules import unwrapped
from accucompare.text import with_article

#: What nn.Module itself keeps, and frameworks' notes on a module that do not change its results.
_BOOKKEEPING = {
    *vars(nn.Module()),
    "_is_hf_initialized",
    "_gradient_checkpointing_func",
    "gradient_checkpointing",
    "generation_config",
    "_is_torch_compile",
    "_forward_hooks_always_called",
}
#: What accelerate leaves on a module to move its inputs between devices; the module alone does not
#: need it.
_ACCELERATE = {"forward", "_old_forward", "_hf_hook"}


def unlike(live: nn.Module, made: nn.Module) -> str | None:
    """The first difference of a rebuilt module from the live one, tensors' values aside."""
    parts, others = dict(_parts(live)), dict(_parts(made))
    if parts.keys() != others.keys():
        return (
            "made anew, it has other children:"
            f" {', '.join(sorted(parts.keys() ^ others.keys())[:3])}"
        )
    for name, part in parts.items():
        reason = _own_difference(part, others[name])
        if reason is not None:
            return f"made anew, {name or 'it'} {reason}"
    return None


def _own_difference(live: nn.Module, made: nn.Module) -> str | None:
    if parametrize.type_before_parametrizations(
        live
    ) is not parametrize.type_before_parametrizations(made):
        return f"is {with_article(type(made).__name__)} and not {with_article(type(live).__name__)}"
    for kind in ("_parameters", "_buffers"):
        shapes, others = (
            {
                name: None if tensor is None else tuple(tensor.shape)
                for name, tensor in getattr(module, kind).items()
            }
            for module in (live, made)
        )
        others = {name: shape for name, shape in others.items() if shape is not None}
        shapes = {name: shape for name, shape in shapes.items() if shape is not None}
        if shapes != others:
            return f"has other {kind[1:]}: {others}, not {shapes}"
    here, there = (
        {name: value for name, value in attributes(module).items() if value is not None}
        for module in (live, made)
    )
    for name in [*here, *(name for name in there if name not in here)]:
        if name not in here or name not in there or not same(here[name], there[name]):
            return f"has another {name!r}"
    return None


def attributes(module: nn.Module) -> dict[str, Any]:
    """A module's own attributes without tensors, which are restored."""
    left_out = {*_BOOKKEEPING, *(_ACCELERATE if "_hf_hook" in vars(module) else ())}
    return {
        name: value
        for name, value in vars(module).items()
        if name not in left_out and not isinstance(value, torch.Tensor)
    }


def _parts(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """A module and everything in it, without wrappers, under each of its names."""
    module = unwrapped(module)
    yield name, module
    for child_name, child in module._modules.items():
        if child is not None:
            yield from _parts(child, f"{name}.{child_name}" if name else child_name)


def same(one: Any, other: Any) -> bool:
    """Whether two attributes are alike; opaque objects are if they have one class."""
    one, other = (
        value.item() if isinstance(value, np.generic) else value for value in (one, other)
    )
    if one is other:
        return True
    if isinstance(one, torch.device) and isinstance(other, torch.device):
        return True
    if type(one) is not type(other):
        return (
            isinstance(one, (tuple, list))
            and isinstance(other, (tuple, list))
            and _simple(one)
            and list(one) == list(other)
        )
    if isinstance(one, (torch.Tensor, nn.Module)):
        return not isinstance(one, torch.Tensor) or one.shape == other.shape
    if is_transformers_config(one):
        attention = [getattr(config, "_attn_implementation", None) for config in (one, other)]
        return attention[0] == attention[1] and _without_dtype(one.to_dict()) == _without_dtype(
            other.to_dict()
        )
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, functools.partial):
        return (
            one.func is other.func
            and same(one.args, other.args)
            and same(one.keywords, other.keywords)
        )
    if inspect.isroutine(one) or isinstance(one, type):
        return False
    if isinstance(one, float):
        return repr(one) == repr(other)  # NaN too
    if (
        _simple(one)
        or dataclasses.is_dataclass(one)
        or isinstance(one, (Namespace, types.SimpleNamespace, Enum))
    ):
        return bool(one == other)
    return True


def _simple(value: Any) -> bool:
    if isinstance(value, (tuple, list, set, frozenset)):
        return all(map(_simple, value))
    return value is None or isinstance(
        value, (bool, int, float, complex, str, bytes, range, slice, torch.dtype)
    )


def is_transformers_config(value: Any) -> bool:
    return any(
        base.__name__ in ("PretrainedConfig", "PreTrainedConfig") for base in type(value).__mro__
    )


def _without_dtype(table: dict[str, Any]) -> dict[str, Any]:
    """A configuration's fields without the one for the type that a model is loaded in."""
    return {key: value for key, value in table.items() if key not in ("dtype", "torch_dtype")}
