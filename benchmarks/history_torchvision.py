"""A stand-in for torchvision, which timm imports for parts that no case uses: the index has none
for a torch without CUDA.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torch import nn

_NAME = "torchvision"


class _Named(type):
    """A class whose attributes are names, as those of an enumeration."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Empty(ModuleType):
    """A module that has a class of every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Named(name, (nn.Module,), {"__module__": self.__name__})


class _StandIn(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return (
            ModuleSpec(fullname, self, is_package=True)
            if fullname.partition(".")[0] == _NAME
            else None
        )

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def stand_in() -> None:
    """From now on, ``import torchvision`` gives modules with nothing behind their names."""
    sys.meta_path.insert(0, _StandIn())
