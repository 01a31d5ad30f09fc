"""What becomes of optimizers after their last update: rates that are set, state that changes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from accucompare.live.autograd import Parameter
from accucompare.live.values import leaves
from accucompare.recorder.recording.clipping import Clipping
from accucompare.recorder.recording.stepped_copies import numbers_of_groups


class LeftOptimizers:
    """The optimizers that have stepped, and how each update left them."""

    def __init__(self, clipping: Clipping) -> None:
        """``clipping`` knows the scaler."""
        self._clipping = clipping
        # by id: the optimizer, and the numbers that its last update was given
        self._numbers: dict[int, tuple[Callable[[], Any], dict[str, Any]]] = {}
        # by id of the optimizer: its parameters, and what tells that their state was written into
        self._states: dict[int, list[tuple[Parameter, dict[Any, Any]]]] = {}

    def begins(self, optimizer: Any, numbers: Iterable[tuple[str, Any]]) -> None:
        """An update begins, with these numbers of its groups."""
        given = {path: _number(value) for path, value in numbers}
        self._numbers[id(optimizer)] = weakref.ref(optimizer), given

    def stepped(self, optimizer: Any, parameters: Iterable[Parameter]) -> None:
        """An update has ended; the state of these parameters is recorded."""
        self._states[id(optimizer)] = [(each, _writes(optimizer, each)) for each in parameters]

    def changed(self) -> Iterator[tuple[Parameter | None, str, Any]]:
        """What is not as the last updates left it: a number of a group, or a parameter's state.

        Each with its path, as the next update would take it."""
        for key, (known, given) in self._numbers.items():
            optimizer = known()
            if optimizer is None:
                continue
            for path, value in numbers_of_groups(optimizer):
                if path not in given or _number(value) != given[path]:
                    yield None, path, value
            for each, writes in self._states.get(key, ()):
                now = _writes(optimizer, each)
                for path, value in leaves(dict(optimizer.state.get(each.tensor, {}))):
                    name = path.partition(".")[0]
                    if name not in writes or writes[name] != now.get(name):
                        yield each, f"{each.own}.{path}", value

    def tables(self) -> dict[str, dict[str, list[Any]]]:
        """By optimizer and scaler: numbers before and after. Of an optimizer, those of its groups
        that have changed since its last update, and how many parameters have lost their state."""
        found: dict[str, dict[str, list[Any]]] = {}
        for key, (known, given) in self._numbers.items():
            if (optimizer := known()) is None:
                continue
            kind = type(optimizer).__name__
            count = sum(name.partition(" ")[0] == kind for name in found)
            lost = sum(
                bool(writes) and not optimizer.state.get(each.tensor)
                for each, writes in self._states.get(key, ())
            )
            found[f"{kind} {count + 1}" if count else kind] = {
                **{
                    path.partition(".")[2]: [given.get(path), _number(value)]
                    for path, value in numbers_of_groups(optimizer)
                    if given.get(path) != _number(value)
                },
                **({"states lost": [0, lost]} if lost else {}),
            }
        scaler = self._clipping.scaler()
        if hasattr(scaler, "get_scale"):
            found[type(scaler).__name__] = {"scale": [None, scaler.get_scale()]}
        return found


def _number(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value


def _writes(optimizer: Any, parameter: Parameter) -> dict[Any, Any]:
    """By name: the tensor, and its count of writes; other values themselves."""
    return {
        name: (id(value), 0 if value.is_inference() else value._version)
        if isinstance(value, torch.Tensor)
        else value
        for name, value in optimizer.state.get(parameter.tensor, {}).items()
    }
