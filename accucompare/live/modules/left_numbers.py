"""Numbers and texts among modules' attributes: those that steps have changed."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from typing import Any

from accucompare.live.modules.attribute_walk import AttributeWalk, containers_of, is_of_torch
from accucompare.live.modules.attributes import OF_EVERY_MODULE
from accucompare.live.modules.names import Modules

#: By the module's name and the place in it.
_Numbers = dict[tuple[str, str], Any]

_KINDS = (bool, int, float, str)
#: Where a model is and what it is called; how long something took.
_OF_NO_STATE = re.compile(
    r"device|dtype|name_or_path|.*\.time"
    r"|(.*[_.])?(elapsed|duration|latency|\w*_time|(time_)?(ms|secs|seconds))"
)
_CLOCKS: tuple[Callable[[], float], ...] = (time.time, time.monotonic, time.perf_counter)
#: Larger integers are addresses, or times in nanoseconds.
_LARGEST = 1 << 32
#: Numbers in one attribute that are looked at; more are a vocabulary, or another's settings.
_MOST = 64


class NumbersKept:
    """The numbers and texts that modules keep when this is made."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._began = [clock() for clock in _CLOCKS]
        self._before = _numbers(modules)

    def left(self) -> dict[str, dict[str, dict[str, Any]]]:
        """For the manifest: what is not as it was, or was not there, by module, with what it was;
        and what is, apart from the configuration. Times of a clock are left out."""
        changed: dict[str, dict[str, Any]] = {}
        unchanged: dict[str, dict[str, Any]] = {}
        now = [clock() for clock in _CLOCKS]
        for place, value in _numbers(self._modules).items():
            name, path = place
            before = self._before.get(place)
            if before is not None and _same(before, value):
                if type(value) is not str and ("." in path or path.startswith("_")):
                    unchanged.setdefault(name, {})[path] = _plain(value)
                continue
            times = zip(self._began, now, strict=True)
            if isinstance(value, float) and any(first <= value <= last for first, last in times):
                continue
            changed.setdefault(name, {})[path] = [_plain(before), _plain(value)]
        return {"numbers": changed, "unchanged": unchanged}


def _plain(value: Any) -> Any:
    """As JSON can hold it."""
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _same(one: Any, other: Any) -> bool:
    return bool(one == other and type(one) is type(other)) or repr(one) == repr(other)


def _numbers(modules: Modules) -> _Numbers:
    walk, found = AttributeWalk({}), _Numbers()
    for name, module in modules.named.items():
        for attribute, value in vars(module).items():
            if attribute not in OF_EVERY_MODULE and type(value) in _KINDS:
                found[name, attribute] = value
        for attribute in () if is_of_torch(module) else containers_of(module):
            inside = [each for each in walk.of(module, attribute) if type(each.value) in _KINDS]
            if len(inside) <= _MOST and type(vars(module)[attribute]) is not tuple:
                found.update(((name, each.path), each.value) for each in inside)
    return {
        (name, path): value
        for (name, path), value in found.items()
        if not _OF_NO_STATE.fullmatch(path) and not (type(value) is int and abs(value) >= _LARGEST)
    }
