"""A model in a lower type, but for some modules in float32: what ``fit`` runs, and gives to paste.

It stands alone, so that the code that was proven is the code that is pasted."""

import copy
import functools
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn


def keep_in_float32(
    model: nn.Module,
    dtype: torch.dtype,
    whole: tuple[str, ...] = (),
    own: tuple[str, ...] = (),
    autocast: str = "",
) -> nn.Module:
    """Cast a float32 model, but for some modules, in place of ``model.to(dtype)``.

    A module casts what it is called with to its own type, and what it returns to its caller's.

    Args:
        whole: modules that stay in float32 with all that is in them, as globs: ``layers.*.norm``.
        own: modules of which the own code stays in float32: what they compute between the calls of
            the modules in them that have weights. "" is the model's.
        autocast: a device type: cast nothing, but turn its autocast off in these modules.
    """
    named = dict(model.named_modules())
    types = {}
    for name, module in named.items():
        is_kept = any(_matches(name, glob) for glob in own)
        is_kept = is_kept or any(_matches(name, glob, inside=True) for glob in whole)
        types[name] = torch.float32 if is_kept else dtype
        if name and not [*module.parameters(), *module.buffers()]:
            types[name] = types[_caller(name, named)]  # an activation is its caller's code
    owners: dict[int, set[str]] = {}
    for name, module in named.items():
        for tensor in module._parameters.values():
            if tensor is not None:
                owners.setdefault(id(tensor), set()).add(name)
    shared = [names for names in owners.values() if len(names) > 1]
    for _ in shared:  # a weight has one type, so modules that share it do
        for names in shared:
            if any(types[name] == torch.float32 for name in names):
                types.update(dict.fromkeys(names, torch.float32))
    for name, module in named.items():
        for tensor in [*module._parameters.values(), *module._buffers.values()]:
            if tensor is not None and tensor.is_floating_point() and not autocast:
                tensor.data = tensor.data.to(types[name])
    for name, module in named.items():
        outside = types[_caller(name, named)] if name else None
        if outside != types[name] and not isinstance(module, torch.jit.ScriptModule):
            module.forward = _with_doors(module.forward, types[name], outside, autocast)
    return model


def _matches(name: str, glob: str, inside: bool = False) -> bool:
    """Whether a module's name matches; ``inside``: or that of one around it."""
    parts, globs = name.split("."), glob.split(".")
    fits = len(parts) >= len(globs) if inside else len(parts) == len(globs)
    return fits and all(map(fnmatchcase, parts, globs))


def _caller(name: str, named: dict[str, nn.Module]) -> str:
    """The module around a module; lists of modules have no code."""
    around = name.rpartition(".")[0]
    while around and isinstance(named.get(around), (nn.ModuleList, nn.ModuleDict)):
        around = around.rpartition(".")[0]
    return around


def _with_doors(
    forward: Any, inside: torch.dtype, outside: torch.dtype | None, autocast: str
) -> Any:
    """A forward that casts its arguments to one type, and its results to another."""

    @functools.wraps(forward)
    def computed(*args: Any, **kwargs: Any) -> Any:
        if autocast:
            on = inside != torch.float32
            with torch.autocast(autocast, inside if on else None, enabled=on):
                if not on:
                    args, kwargs = _cast(args, inside), _cast(kwargs, inside)
                return forward(*args, **kwargs)
        output = forward(*_cast(args, inside), **_cast(kwargs, inside))
        return output if outside is None else _cast(output, outside)

    return computed


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Floating tensors in tuples, lists, mappings and model outputs, cast."""
    if isinstance(value, torch.Tensor):
        if not value.is_floating_point() or value.dtype == dtype:
            return value
        made = value.to(dtype)
        if dtype == torch.float32:
            return made
        # a mask's lowest number stays the lowest: it would become -inf
        return made.masked_fill(value == torch.finfo(value.dtype).min, torch.finfo(dtype).min)
    if isinstance(value, dict):
        table = copy.copy(value)
        for key in value:
            table[key] = _cast(value[key], dtype)
        return table
    if isinstance(value, (tuple, list)):
        parts = [_cast(part, dtype) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
