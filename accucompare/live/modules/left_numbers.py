"""Numbers and texts among modules' attributes: those that steps have changed."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from accucompare.live.modules.attribute_walk import AttributeWalk, containers_of, is_of_torch
from accucompare.live.modules.attributes import OF_EVERY_MODULE
from accucompare.live.modules.names import Modules

#: By the module's name and the place in it.
_Numbers = dict[tuple[str, str], Any]

_KINDS = (bool, int, float, complex, str)
#: Where a model is and what it is called; how long something took.
_OF_NO_STATE = re.compile(r"device|dtype|name_or_path|(.*[_.])?(elapsed|duration|latency|\w*_time)")
_CLOCKS: tuple[Callable[[], float], ...] = (time.time, time.monotonic, time.perf_counter)
#: Larger integers are addresses, or times in nanoseconds.
_LARGEST = 1 << 32
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class NumbersKept:
    """The numbers and texts that modules keep when this is made."""

    def __init__(self, modules: Modules, known: Mapping[str, Mapping[str, Any]]) -> None:
        """``known``: the configuration in the manifest."""
        self._modules = modules
        self._known = known
        self._began = [clock() for clock in _CLOCKS]
        self._before = _numbers(modules)

    def left(self) -> dict[str, dict[str, dict[str, Any]]]:
        """For the manifest: what is not as it was, or was not there, by module, with what it was;
        and what is, but is not in the configuration. Times of a clock are left out."""
        changed: dict[str, dict[str, Any]] = {}
        unchanged: dict[str, dict[str, Any]] = {}
        now = [clock() for clock in _CLOCKS]
        for (name, path), value in _numbers(self._modules).items():
            before = self._before.get((name, path))
            if before is not None and _same(before, value):
                known = self._known.get(name, {}).get(path)
                if type(value) is not str and known != value and path[0] != "(":
                    unchanged.setdefault(name, {})[path] = _plain(value)
                continue
            times = zip(self._began, now, strict=True)
            if isinstance(value, float) and any(first <= value <= last for first, last in times):
                continue
            changed.setdefault(name, {})[path] = [_plain(before), _plain(value)]
        return {"numbers": changed, "unchanged": unchanged}


def _plain(value: Any) -> Any:
    """As JSON can hold it."""
    plain = not isinstance(value, (float, complex)) or (
        isinstance(value, float) and math.isfinite(value)
    )
    return value if plain else repr(value)


def _same(one: Any, other: Any) -> bool:
    return bool(one == other and type(one) is type(other)) or repr(one) == repr(other)


def numbers_inside(table: Any) -> dict[str, Any]:
    """The numbers in a nested table, by path."""
    return {
        each.path: _plain(each.value)
        for each in AttributeWalk({}).inside(table)
        if type(each.value) in _KINDS
    }


def _numbers(modules: Modules) -> _Numbers:
    walk, found = AttributeWalk({}), _Numbers()
    for name, module in modules.named.items():
        own = {key: each for key, each in vars(module).items() if key not in OF_EVERY_MODULE}
        for attribute in () if is_of_torch(module) else containers_of(module):
            own.update((each.path, each.value) for each in walk.of(module, attribute))
        own.update((f"({what})", count) for what, count in _counts(module))
        found.update(((name, path), value) for path, value in own.items() if _is_state(path, value))
    return found


def _is_state(path: str, value: Any) -> bool:
    large = type(value) is int and abs(value) >= _LARGEST
    return type(value) in _KINDS and not large and not _OF_NO_STATE.fullmatch(path)


def _counts(module: nn.Module) -> Iterator[tuple[str, int]]:
    """How much of what every module has is there."""
    parameters = [each for each in module._parameters.values() if each is not None]
    yield "children", len(module._modules)
    yield "parameters", len(parameters)
    yield "hooks", sum(len(vars(module).get(table) or ()) for table in _HOOKS)
