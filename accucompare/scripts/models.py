"""The models of a process: what is called from outside, and what an optimizer trains."""

from __future__ import annotations

import gc
import inspect
import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from accucompare.live.autograd import stepped_by
from accucompare.live.modules import unwrapped
from accucompare.scripts.handshake import SeenModel

#: Where Megatron keeps the copy of a parameter that the optimizer steps.
_COPY = "main_param"


class Together(nn.Module):
    """Several models that one optimizer trains, as the parts of one."""

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        super().__init__()
        counted: Counter[str] = Counter()
        for part in parts:
            self.add_module(_numbered(type(unwrapped(part)).__name__, counted), part)
            self.training = part.training


class Optimizers:
    """The optimizers of a process, noted when made or at the latest when they step."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Any]] = {}

    def note(self, optimizer: Any) -> None:
        if id(optimizer) not in self._known or self._known[id(optimizer)]() is not optimizer:
            self._known[id(optimizer)] = weakref.ref(optimizer)

    def alive(self) -> list[Any]:
        """The living ones that hold parameters."""
        found = (reference() for reference in self._known.values())
        return [each for each in found if each is not None and getattr(each, "param_groups", None)]

    def of(self, model: nn.Module) -> list[Any]:
        return [each for each in self.alive() if _shares(model, _Stepped(each))]


class Scalers:
    """The loss scalers of a process, noted when made or when they step an optimizer."""

    def __init__(self) -> None:
        self._known: list[weakref.ref[Any]] = []
        # pairs of a scaler and an optimizer that it stepped
        self._stepped: list[tuple[weakref.ref[Any], weakref.ref[Any]]] = []

    def note(self, scaler: Any) -> None:
        self._known = [each for each in self._known if each() not in (None, scaler)]
        self._known.append(weakref.ref(scaler))

    def steps(self, scaler: Any, optimizer: Any) -> None:
        if not any(each() is scaler and other() is optimizer for each, other in self._stepped):
            self._stepped = [each for each in self._stepped if None not in (each[0](), each[1]())]
            self._stepped.append((weakref.ref(scaler), weakref.ref(optimizer)))

    def of(self, optimizers: Iterable[Any]) -> Any:
        """The scaler that has stepped one of these optimizers; ``None`` if none has."""
        ours = {id(each) for each in optimizers}
        found = (scaler() for scaler, optimizer in self._stepped if id(optimizer()) in ours)
        return next((each for each in found if each is not None and each.is_enabled()), None)

    def likely(self, optimizers: Iterable[Any]) -> Any:
        """The scaler that stepped one of these optimizers; else the last made that stepped none."""
        busy = {id(scaler()) for scaler, _ in self._stepped}
        free = [
            each
            for each in (known() for known in self._known)
            if each is not None and id(each) not in busy and each.is_enabled()
        ]
        return self.of(optimizers) or (free[-1] if free else None)


def held_by(optimizers: Iterable[Any]) -> set[int]:
    """The ids of everything that optimizers update."""
    return {key for each in optimizers for key in stepped_by(each)}


class _Stepped:
    """What an optimizer steps: its tensors' ids, and the memory that they are parts of."""

    def __init__(self, optimizer: Any) -> None:
        self.ids = held_by((optimizer,))
        self._parts = {
            memory
            for group in optimizer.param_groups
            for tensor in group["params"]
            if not isinstance(tensor, nn.Parameter) and (memory := _memory_of(tensor))
        }

    def has(self, parameter: torch.Tensor) -> bool:
        """Whether it steps a parameter; or, as Megatron's do, a copy or a part of it instead."""
        copied = getattr(parameter, _COPY, None)
        return (
            id(parameter) in self.ids
            or (copied is not None and id(copied) in self.ids)
            or (bool(self._parts) and _memory_of(parameter) in self._parts)
        )


def _memory_of(tensor: Any) -> int:
    """Where a tensor's storage begins; 0 if it has none of its own."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (AttributeError, RuntimeError, NotImplementedError, ValueError):
        return 0


class Models:
    """The called models by the users' names: ``Net``; ``Net:2`` is the second of its class."""

    def __init__(self) -> None:
        self.seen: list[SeenModel] = []
        self._counted: Counter[str] = Counter()
        self._known: dict[int, tuple[weakref.ref[nn.Module], SeenModel]] = {}
        self._trainers: set[int] = set()  # ids of the optimizers that have stepped

    def note(self, module: nn.Module) -> SeenModel:
        """Note a module that is called or trained; under its wrappers it may be known already."""
        inner = unwrapped(module)
        known = self._known.get(id(inner))
        if known is None or known[0]() is not inner:
            parameters = sum(each.numel() for each in inner.parameters() if not is_lazy(each))
            seen = SeenModel(
                name=_numbered(type(inner).__name__, self._counted), parameters=parameters
            )
            self.seen.append(seen)
            known = self._known[id(inner)] = weakref.ref(inner), seen
        return known[1]

    def mark_parts_of(self, model: nn.Module) -> None:
        """Mark parts of this model that were called alone, as by a parametrization."""
        whole = self.note(model)
        for reference, seen in self._known.values():
            module = reference()
            seen.part = seen.part or (
                seen is not whole and module is not None and contains(model, module)
            )

    def trained(self, optimizer: Any, counts: bool) -> None:
        """Note what a stepping optimizer trains; ``counts``: also count steps, which costs time."""
        known = id(optimizer) in self._trainers
        if known and not counts:
            return
        self._trainers.add(id(optimizer))
        held, name = _Stepped(optimizer), type(optimizer).__name__
        trained = [reference for reference, _ in self._known.values() if _shares(reference(), held)]
        if trained and not known and (first := trained[0]()) is not None:
            self.note(whole_of(first, (optimizer,)))
        for reference, seen in self._known.values():
            if _shares(reference(), held):
                seen.steps += counts
                if name not in seen.trained_by:
                    seen.trained_by.append(name)


def _shares(module: nn.Module | None, held: _Stepped) -> bool:
    return module is not None and any(map(held.has, module.parameters()))


def whole_of(root: nn.Module, optimizers: Iterable[Any]) -> nn.Module:
    """The trained model around a called root: itself, or the module whose parts are called.

    An optimizer may hold parameters outside the root: of the ``LightningModule`` around it, which
    is never called itself, or of a decoder beside the encoder. Their module is searched among all
    living ones.

    Args:
        root: a module that is called from outside.
        optimizers: those that hold parameters of it.
    """
    held = held_by(optimizers)
    own = _parameters(root)
    if held <= own or not held & own:  # as optimizers that step copies or parts instead
        return root
    tops: dict[int, nn.Module] = {}
    for module in _living():
        if held & _parameters(module):
            tops.setdefault(id(unwrapped(module)), module)
    if len(tops) > 1:
        return Together(tops.values())
    whole = next(iter(tops.values()), root)
    held &= _parameters(whole)
    while closer := [
        child for child in whole.children() if held <= _parameters(child) and contains(child, root)
    ]:
        whole = closer[0]
    return whole


def _living() -> list[nn.Module]:
    """The living modules that are no part of another."""
    modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    inner = {id(child) for module in modules for child in module.children()}
    return [each for each in modules if id(each) not in inner]


def beside(model: nn.Module, optimizers: Iterable[Any]) -> list[str]:
    """The classes of the other living models that optimizers train; without any, of all that have
    parameters, but for those that may have been copied into the model, as encoders copy a layer."""
    own, held = _parameters(model), held_by(optimizers)
    inner = unwrapped(model)
    copied = set() if held else {type(each) for each in inner.modules() if each is not inner}
    of_others = ((unwrapped(each), _parameters(each)) for each in _living())
    return sorted(
        {
            type(each).__name__
            for each, theirs in of_others
            if not theirs & own and (theirs & held if held else theirs) and type(each) not in copied
        }
    )


def is_one_being_made() -> bool:
    """Whether a module's ``__init__`` is calling a part of it, to find a shape or a weight."""
    frame = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if (
            code.co_name == "__init__"
            and code.co_argcount
            and isinstance(frame.f_locals.get(code.co_varnames[0]), nn.Module)
        ):
            return True
        frame = frame.f_back
    return False


def contains(model: nn.Module, module: nn.Module) -> bool:
    inner = unwrapped(module)
    return unwrapped(model) is inner or any(each is inner for each in model.modules())


def _parameters(module: nn.Module) -> set[int]:
    return {id(each) for each in module.parameters()}


def _numbered(name: str, counted: Counter[str]) -> str:
    counted[name] += 1
    return name if counted[name] == 1 else f"{name}:{counted[name]}"
