"""Qualified names: what each module and parameter is called, wrappers left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from accucompare.text import storable

#: Attributes under which wrappers of any class keep the module that they wrap.
_WRAPPED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
#: Classes that keep it under the ordinary name ``module``.
_WRAPPERS = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "DeepSpeedEngine", "AveragedModel"}


@dataclass
class Modules:
    """The modules of a model by qualified name.

    Attributes:
        named: each module once, under the first name it has; wrappers (DDP, FSDP, torch.compile, activation checkpointing)
            are passed over, so that a wrapped layer is called what it is called without them.
        aliases: further names of modules that are registered in several places, each with the first name.
        wrappers: the wrappers that were passed over.
    """

    named: dict[str, nn.Module] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    wrappers: list[nn.Module] = field(default_factory=list)

    def tensors(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """(``"parameters"`` or ``"buffers"``, qualified name, tensor) of each registered one, tied ones under every name."""
        for prefix, module in self.named.items():
            for kind, table in (("parameters", module._parameters), ("buffers", module._buffers)):
                for name, tensor in table.items():
                    if tensor is not None:
                        yield kind, f"{prefix}.{name}" if prefix else name, tensor


def name_modules(model: nn.Module) -> Modules:
    """Find every module of a model."""
    modules = Modules()
    names: dict[nn.Module, str] = {}

    def visit(module: nn.Module, name: str) -> None:
        modules.wrappers += wrappers_of(module)
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


def unwrapped(module: nn.Module) -> nn.Module:
    """What is inside all wrappers."""
    return [module, *_insides(module)][-1]


def wrappers_of(module: nn.Module) -> list[nn.Module]:
    """The wrappers around what is inside, the outermost first."""
    return [module, *_insides(module)][:-1]


def _insides(module: nn.Module) -> Iterator[nn.Module]:
    while True:
        inner = next((module._modules[name] for name in _WRAPPED if name in module._modules), None)
        if inner is None and type(module).__name__ in _WRAPPERS:
            inner = module._modules.get("module")
        if inner is None:
            return
        yield inner
        module = inner
