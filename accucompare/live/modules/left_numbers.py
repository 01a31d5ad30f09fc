"""Numbers and texts among modules' attributes: those that steps have changed."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from typing import Any

from accucompare.live.modules.attribute_walk import AttributeWalk, containers_of
from accucompare.live.modules.attributes import OF_EVERY_MODULE
from accucompare.live.modules.names import Modules

#: By the module's name and the place in it.
_Numbers = dict[tuple[str, str], Any]

_KINDS = (bool, int, float, str)
#: Where a model is and what it is called; how long something took.
_OF_NO_STATE = re.compile(r"device|dtype|name_or_path|(.*[_.])?(elapsed|duration|latency|\w*_time)")
_CLOCKS: tuple[Callable[[], float], ...] = (time.time, time.monotonic, time.perf_counter)
#: Larger integers are addresses, or times in nanoseconds.
_LARGEST = 1 << 32


class NumbersKept:
    """The numbers and texts that modules keep when this is made."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._began = [clock() for clock in _CLOCKS]
        self._before = _numbers(modules)

    def changed(self) -> dict[str, dict[str, Any]]:
        """What is not as it was, or was not there, by module; times of a clock are left out."""
        found: dict[str, dict[str, Any]] = {}
        now = [clock() for clock in _CLOCKS]
        for place, value in _numbers(self._modules).items():
            if place in self._before and _same(self._before[place], value):
                continue
            times = zip(self._began, now, strict=True)
            if isinstance(value, float) and any(first <= value <= last for first, last in times):
                continue
            name, path = place
            found.setdefault(name, {})[path] = value if _is_plain(value) else repr(value)
        return found


def _is_plain(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _same(one: Any, other: Any) -> bool:
    return bool(one == other and type(one) is type(other)) or repr(one) == repr(other)


def _numbers(modules: Modules) -> _Numbers:
    walk, found = AttributeWalk({}), _Numbers()
    for name, module in modules.named.items():
        for attribute, value in vars(module).items():
            if attribute not in OF_EVERY_MODULE and type(value) in _KINDS:
                found[name, attribute] = value
        for attribute in containers_of(module):
            for inner in walk.of(module, attribute):
                if type(inner.value) in _KINDS:
                    found[name, inner.path] = inner.value
    return {
        (name, path): value
        for (name, path), value in found.items()
        if not _OF_NO_STATE.fullmatch(path) and not (type(value) is int and abs(value) >= _LARGEST)
    }
