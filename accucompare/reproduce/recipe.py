"""Writing down, as readable Python, how a live module is made; and the functions that this Python
calls.

A constructor does not keep its arguments, so they are guessed from attributes of the same name. A
guess counts only after it was evaluated and the result compared with the live module: classes,
names, shapes and plain attributes of every part. If no guess holds, the module is assembled of its
parts without its constructor, each part made in one of the two ways."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import re
import sys
import textwrap
import types
import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from accucompare.live.modules import unwrapped
from accucompare.live.operators import random_state_kept
from accucompare.reproduce.class_import import CannotRebuildError, import_lines
from accucompare.reproduce.constructor_arguments import (
    MISSING,
    constructor_parameters,
    guessed,
    is_default,
)
from accucompare.reproduce.likeness import attributes, is_transformers_config, same, unlike
from accucompare.text import with_article

_WIDTH = 100


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a module is made: import lines to run first, and an expression."""

    imports: list[str]
    text: str


def recipe(module: nn.Module, directory: Path | None = None) -> Recipe:
    """How to make a module like this one; its tensors' values are left to be restored.

    Args:
        directory: the script's, which paths in it are relative to.

    The text was evaluated, and gave a module of the same parts, names and shapes.

    Raises:
        CannotRebuildError: if no such text was found.
    """
    writer = _Writer(directory)
    muted = logging.root.manager.disable
    logging.disable()  # transformers would repeat its warnings
    try:
        with warnings.catch_warnings(), random_state_kept(torch.device("cpu")):
            warnings.simplefilter("ignore")
            text = writer.module(module)
    finally:
        logging.disable(muted)
    return Recipe(writer.imports_of(text), text)


def assemble(kind: type[nn.Module], parts: Mapping[str, Any]) -> nn.Module:
    """A module made without its constructor, of named children, parameters, buffers, attributes."""
    module: nn.Module = kind.__new__(kind)
    nn.Module.__init__(module)
    for name, part in parts.items():
        if isinstance(part, nn.Module):
            module._modules[name] = part
        elif isinstance(part, nn.Parameter):
            module._parameters[name] = part
        elif isinstance(part, torch.Tensor):
            module._buffers[name] = part
        else:
            module.__dict__[name] = part
    return module


def parameter(*shape: int) -> nn.Parameter:
    """A parameter whose values are to be restored."""
    return nn.Parameter(torch.zeros(shape))


def buffer(*shape: int) -> torch.Tensor:
    """A buffer whose values are to be restored."""
    return torch.zeros(shape)


class _Writer:
    """Writes expressions and collects their imports; ``names``: what names in them stand for."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self.names: dict[str, Any] = {"nn": nn, "torch": torch}
        self._imports: dict[str, list[str]] = {
            "nn": ["from torch import nn"],
            "torch": ["import torch"],
        }

    def imports_of(self, text: str) -> list[str]:
        """The lines that an expression needs, each once: paths, imports, names; they use
        ``sys``."""
        words = set(re.findall(r"\w+", re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "", text)))
        lines = list(
            dict.fromkeys(
                line for name, needed in self._imports.items() if name in words for line in needed
            )
        )
        named: dict[str, list[str]] = {}
        for line in lines:
            if line.startswith("from "):
                home, _, name = line.partition(" import ")
                named.setdefault(home, []).append(name)
        return [
            *(line for line in lines if line.startswith("sys.path")),
            *sorted(line for line in lines if line.startswith("import ")),
            *(
                f"{home} import {', '.join(sorted(set(names)))}"
                for home, names in sorted(named.items())
            ),
            *(line for line in lines if not line.startswith(("sys.path", "import ", "from "))),
        ]

    def module(self, live: nn.Module) -> str:
        """An expression for a module. Errors as ``recipe``."""
        live = unwrapped(live)
        if isinstance(live, torch.jit.ScriptModule):
            raise CannotRebuildError("it is a scripted or traced module")
        # raises if its class cannot be imported: then there is no way
        self.reference(parametrize.type_before_parametrizations(live))
        reasons = []
        for write in _WAYS:
            try:
                text = write(self, live)
                reason = unlike(live, self._evaluated(text))
            except CannotRebuildError as error:
                reason = str(error)
            # a constructor with a wrong guess may raise anything
            except Exception as error:
                reason = f"its constructor raised {type(error).__name__}: {str(error)[:200]}"
            if reason is None:
                return text
            reasons.append(reason)
        raise CannotRebuildError(f"{type(live).__name__}: {reasons[-1]}")

    def _evaluated(self, text: str) -> nn.Module:
        """What an expression makes, with unallocated tensors if its constructors permit."""
        try:
            with torch.device("meta"):
                made: nn.Module = eval(text, dict(self.names))
        except Exception:
            made = eval(text, dict(self.names))
        return made

    def _wrapped_in_norms(self, live: nn.Module, text: str) -> str:
        """The expression with ``parametrize``, ``weight_norm`` or ``spectral_norm`` around it."""
        if parametrize.is_parametrized(live):
            self._use("parametrize", parametrize, "from torch.nn.utils import parametrize")
            for name, applied in live.parametrizations.items():  # type: ignore[union-attr, operator]
                for one in applied:
                    if type(one).__name__ == "_SpectralNorm":  # its constructor takes the weight
                        arguments = [
                            text,
                            repr(name),
                            repr(one.n_power_iterations),
                            repr(one.eps),
                            repr(one.dim),
                        ]
                        text = _call("nn.utils.parametrizations.spectral_norm", arguments)
                        continue
                    text = _call(
                        "parametrize.register_parametrization",
                        [text, repr(name), self.module(one), "unsafe=True"],
                    )
        for hook in live._forward_pre_hooks.values():
            kind: str = type(hook).__module__
            if kind == "torch.nn.utils.weight_norm":
                text = _call("nn.utils.weight_norm", [text, repr(hook.name), repr(hook.dim)])  # type: ignore[attr-defined]
            elif kind == "torch.nn.utils.spectral_norm":
                text = _call(
                    "nn.utils.spectral_norm",
                    [text, *(repr(getattr(hook, key)) for key in _SPECTRAL)],
                )
        return text

    def constructed(self, live: nn.Module, searched: bool) -> str:
        """A constructor call. ``searched``: look for optional parameters in the children, too."""
        kind = parametrize.type_before_parametrizations(live)
        if kind in (nn.Sequential, nn.ModuleList):
            if list(live._modules) != [str(index) for index in range(len(live._modules))]:
                raise CannotRebuildError("its children have names of their own")
            children = [self.module(child) for child in live._modules.values() if child is not None]
            if kind is nn.Sequential:
                return _call(self.reference(kind), children)
            return f"nn.ModuleList({self._list(children)})"
        arguments, by_name = [], False
        for parameter in constructor_parameters(kind):
            value = guessed(live, parameter, searched)
            required = parameter.default is inspect.Parameter.empty
            if value is MISSING and required:
                raise CannotRebuildError(
                    f"its constructor takes {parameter.name!r}, which the module does not keep"
                )
            by_name = by_name or not required or parameter.kind is parameter.KEYWORD_ONLY
            if value is MISSING or (not required and is_default(value, parameter.default)):
                continue
            text = (
                self.module(value)
                if isinstance(value, nn.Module)
                else self.value(value, parameter.name)
            )
            arguments.append(f"{parameter.name}={text}" if by_name else text)
        return self._wrapped_in_norms(live, _call(self.reference(kind), arguments))

    def assembled(self, live: nn.Module) -> str:
        if parametrize.is_parametrized(live):
            raise CannotRebuildError(
                "it is parametrized, and its constructor's arguments are not known"
            )
        parts: dict[str, str] = {}
        for name, value in attributes(live).items():
            parts[name] = self.value(value, name)
        # transformers reads it; a module alone needs no checkpointing
        if "gradient_checkpointing" in vars(live):
            parts["gradient_checkpointing"] = "False"
        for kind, table in (("parameter", live._parameters), ("buffer", live._buffers)):
            for name, tensor in table.items():
                parts[name] = (
                    "None" if tensor is None else f"{kind}({', '.join(map(str, tensor.shape))})"
                )
                self._use(kind, globals()[kind], f"from accucompare.reproduce import {kind}")
        for name, child in live._modules.items():
            parts[name] = "None" if child is None else self.module(child)
        self._use("assemble", assemble, "from accucompare.reproduce import assemble")
        items = [f"{name!r}: {text}" for name, text in parts.items()]
        return _call("assemble", [self.reference(type(live)), _enclosed("{", items, "}")])

    def _list(self, items: list[str]) -> str:
        return _enclosed("[", items, "]")

    def value(self, value: Any, name: str) -> str:
        """An expression for an attribute's value. Raises CannotRebuildError if it is neither simple
        nor importable."""
        kind = type(value)
        if value is None or kind in (bool, int, str, bytes) or value is ...:
            return "..." if value is ... else repr(value)
        if kind is float:
            return repr(value) if abs(value) < float("inf") else f"float({str(value)!r})"
        if kind in (complex, range, slice):
            return repr(value)
        if isinstance(value, np.generic):
            return self.value(value.item(), name)
        if isinstance(value, torch.dtype):
            return str(value)
        if isinstance(value, torch.device):
            return "torch.device('cpu')"  # and moved with the module
        if isinstance(value, Enum):
            return f"{self.reference(kind)}.{value.name}"
        if isinstance(value, (list, set, frozenset, tuple, dict)):
            return self._container(value, name)
        if isinstance(value, functools.partial):
            self._use("functools", functools, "import functools")
            keywords = [f"{key}={self.value(child, name)}" for key, child in value.keywords.items()]
            return _call(
                "functools.partial",
                [
                    self.value(value.func, name),
                    *(self.value(arg, name) for arg in value.args),
                    *keywords,
                ],
            )
        if isinstance(value, type) or inspect.isroutine(value):
            return self.reference(value)
        if is_transformers_config(value):
            return self._config(value, name)
        if dataclasses.is_dataclass(value):
            fields = {
                field.name: getattr(value, field.name)
                for field in dataclasses.fields(value)
                if field.init
            }
            return _call(
                self.reference(kind),
                [f"{key}={self.value(child, name)}" for key, child in fields.items()],
            )
        if kind in (Namespace, types.SimpleNamespace):
            return _call(
                self.reference(kind),
                [f"{key}={self.value(child, name)}" for key, child in vars(value).items()],
            )
        raise CannotRebuildError(
            f"its attribute {name!r} is"
            f" {with_article(f'{kind.__module__}.{kind.__qualname__}')}, which cannot be"
            " written down"
        )

    def _container(
        self,
        value: list[Any] | set[Any] | frozenset[Any] | tuple[Any, ...] | dict[Any, Any],
        name: str,
    ) -> str:
        kind = type(value)
        if isinstance(value, dict):
            items = [
                f"{self.value(key, name)}: {self.value(child, name)}"
                for key, child in value.items()
            ]
            text = _enclosed("{", items, "}")
            return text if kind is dict else _call(self.reference(kind), [text])
        items = [self.value(child, name) for child in value]
        if kind is list:
            return self._list(items)
        if kind in (tuple, torch.Size):
            return _enclosed("(", items, ",)" if len(items) == 1 else ")")
        if hasattr(value, "_fields"):  # a named tuple
            return _call(self.reference(kind), items)
        return _call(self.reference(kind), [self._list(items)])

    def _config(self, value: Any, name: str) -> str:
        """A transformers configuration: its class, and what differs from the class's defaults."""
        kind = type(value)
        attention = getattr(value, "_attn_implementation", None)
        extra = {"attn_implementation": attention} if attention is not None else {}
        every = {
            key: child
            for key, child in value.to_dict().items()
            if key not in ("transformers_version", "model_type", "dtype")
        }
        usual = kind().to_dict()
        for fields in (
            {key: child for key, child in every.items() if key not in usual or usual[key] != child},
            every,
        ):
            if same(value, kind(**fields, **extra)):
                return _call(
                    self.reference(kind),
                    [
                        f"{key}={self.value(child, name)}"
                        for key, child in {**fields, **extra}.items()
                    ],
                )
        raise CannotRebuildError(
            f"its {kind.__name__} cannot be made again of what to_dict() gives"
        )

    def reference(self, thing: Any) -> str:
        """The name of a class or function, which its import brings in. Raises CannotRebuildError if
        it cannot be imported without running a training."""
        name = getattr(thing, "__name__", "")
        for home, prefix in ((nn, "nn"), (nn.functional, "nn.functional"), (torch, "torch")):
            if getattr(home, name, None) is thing:
                return f"{prefix}.{name}"
        qualname = getattr(thing, "__qualname__", "")
        home_name = getattr(thing, "__module__", None) or ""
        if home_name == "builtins":
            return name
        if "<locals>" in qualname or "<lambda>" in qualname:
            raise CannotRebuildError(
                f"{qualname} is defined inside a function, so that it cannot be imported"
            )
        found: Any = sys.modules.get(home_name)
        for part in qualname.split("."):
            found = getattr(found, part, None)
        if found is None or found is not thing:
            raise CannotRebuildError(
                f"{home_name}.{qualname or name} cannot be imported by that name"
            )
        outer, _, rest = qualname.partition(".")
        short = outer
        while short in self.names and self.names[short] is not getattr(
            sys.modules[home_name], outer
        ):
            short += "_"
        self._use(
            short,
            getattr(sys.modules[home_name], outer),
            *import_lines(sys.modules[home_name], outer, short, self._directory),
        )
        return f"{short}.{rest}" if rest else short

    def _use(self, name: str, thing: Any, *lines: str) -> None:
        self.names[name] = thing
        self._imports[name] = list(lines)


_SPECTRAL = ("name", "n_power_iterations", "eps", "dim")
#: The ways to write a module, the most readable first.
_WAYS: tuple[Callable[[_Writer, nn.Module], str], ...] = (
    lambda writer, live: writer.constructed(live, searched=True),
    lambda writer, live: writer.constructed(live, searched=False),
    _Writer.assembled,
)


def _call(head: str, arguments: list[str]) -> str:
    return _enclosed(f"{head}(", arguments, ")")


def _enclosed(opening: str, items: list[str], closing: str) -> str:
    """On one line if it fits, else an item a line."""
    line = opening + ", ".join(items) + closing
    if len(line) <= _WIDTH and "\n" not in line:
        return line
    return (
        opening
        + "\n"
        + "".join(textwrap.indent(item, "    ") + ",\n" for item in items)
        + closing.lstrip(",")
    )
