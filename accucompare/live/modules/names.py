"""Qualified names: what each module and parameter is called, wrappers left out."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from accucompare.bundle.format import WRAPPER_NAMES
from accucompare.text import storable

#: Classes that keep the module that they wrap under the ordinary name ``module``.
_WRAPPERS = {
    "DistributedDataParallel",
    "Float16Module",
    "DataParallel",
    "FullyShardedDataParallel",
    "DeepSpeedEngine",
    "AveragedModel",
}


#: What ``fully_shard`` and ``replicate`` make a module's class inherit from.
_MIXED_IN = ("FSDPModule", "ReplicateModule")


@dataclass
class Modules:
    """The modules of a model by qualified name."""

    # each module once, under its first name; wrappers (DDP, FSDP, torch.compile, activation
    # checkpointing) are left out, so names are the same with and without them
    named: dict[str, nn.Module] = field(default_factory=dict)
    # further names of modules, each with the first name
    aliases: dict[str, str] = field(default_factory=dict)
    wrappers: list[nn.Module] = field(default_factory=list)  # the wrappers that were left out
    # modules inside of regions, which run as one: their calls are not seen
    hidden: set[str] = field(default_factory=set)

    def tensors(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """(``"parameters"`` or ``"buffers"``, qualified name, tensor), tied ones for every name."""
        for prefix, module in self.named.items():
            for kind, table in (("parameters", module._parameters), ("buffers", module._buffers)):
                for name, tensor in table.items():
                    if tensor is not None:
                        yield kind, f"{prefix}.{name}" if prefix else name, tensor

    def tied(self) -> dict[str, str]:
        """Further names of tied tensors, each with the first, except names from ``aliases``."""
        firsts: dict[int, str] = {}
        return {
            name: first
            for _, name, tensor in self.tensors()
            if (first := firsts.setdefault(id(tensor), name)) != name
        }

    def computed(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """(module, buffer, tensor) of buffers that checkpoints leave out: the model computes them.

        Rotary frequencies, masks and tables are registered with ``persistent=False``. Read from a
        private set of ``nn.Module``, as ``state_dict`` does.
        """
        for name, module in self.named.items():
            for buffer, tensor in module._buffers.items():
                if tensor is not None and buffer in module._non_persistent_buffers_set:
                    yield name, buffer, tensor

    def outline(self) -> dict[str, Any]:
        """Classes, shapes and further names: a manifest's table of a model without values."""
        tables: dict[str, dict[str, Any]] = {"parameters": {}, "buffers": {}}
        for kind, name, tensor in self.tensors():
            tables[kind][name] = {"shape": list(tensor.shape)}
        modules = {name: class_of(module).__name__ for name, module in self.named.items()}
        return {"modules": modules, "aliases": self.aliases, "tied": self.tied(), **tables}

    def signatures(self) -> dict[str, list[str]]:
        """Each class's positional ``forward`` parameters, by class name; none if ambiguous."""
        found: dict[str, list[str] | None] = {}
        for module in {class_of(module): module for module in self.named.values()}.values():
            try:
                parameters = inspect.signature(module.forward).parameters.values()
            except (TypeError, ValueError):  # a scripted module's
                continue
            positional = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
            names = [parameter.name for parameter in parameters if parameter.kind in positional]
            name = class_of(module).__name__
            found[name] = names if found.get(name, names) == names else None
        return {name: names for name, names in found.items() if names}


def name_modules(model: nn.Module) -> Modules:
    modules = Modules()
    names: dict[nn.Module, str] = {}

    def visit(module: nn.Module, name: str) -> None:
        modules.wrappers += [module, *_insides(module)][:-1]  # the outermost first
        module = unwrapped(module)
        if module in names:
            modules.aliases[name] = names[module]
            return
        names[module] = name
        modules.named[name] = module
        for child_name, child in module._modules.items():
            if child is not None:
                child_name = storable(child_name)
                visit(child, f"{name}.{child_name}" if name else child_name)

    visit(model, "")
    return modules


def class_of(module: nn.Module) -> type:
    """A module's class; the user's own, where ``fully_shard`` has made a class of it."""
    bases = type(module).__bases__
    made = len(bases) == 2 and bases[0].__name__ in _MIXED_IN
    return bases[1] if made else type(module)


def unwrapped(module: nn.Module) -> nn.Module:
    """What is inside all wrappers."""
    return [module, *_insides(module)][-1]


def _insides(module: nn.Module) -> Iterator[nn.Module]:
    while True:
        inner = next(
            (module._modules[name] for name in WRAPPER_NAMES if name in module._modules), None
        )
        if inner is None and type(module).__name__ in _WRAPPERS:
            inner = module._modules.get("module")
        if inner is None:
            return
        yield inner
        module = inner
