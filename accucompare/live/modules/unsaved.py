"""Copies and pickles of a model leave out our hooks, so a watched model is saved alone."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

#: A module's tables of hooks, each with the tables of flags by the hook's number.
_HOOKS = {
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
}

_hiding = 0
_original: Any = None


def _nothing(*arguments: Any) -> None:
    """Replaces a hook of ours where a class has its own way of copying."""


class Unsaved:
    """A hook that is left out of the model's copies and pickles."""

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (_nothing,)


def hide() -> None:
    """Leave ``Unsaved`` hooks out of copies and pickles until as many calls of ``hide_no_more``."""
    global _hiding, _original
    _hiding += 1
    if _hiding == 1:
        _original = nn.Module.__reduce_ex__
        nn.Module.__reduce_ex__ = _reduce_ex  # type: ignore[assignment, method-assign]


def hide_no_more() -> None:
    global _hiding
    _hiding -= 1
    if _hiding == 0 and nn.Module.__reduce_ex__ is _reduce_ex:
        if _original is object.__reduce_ex__:
            del nn.Module.__reduce_ex__
        else:
            nn.Module.__reduce_ex__ = _original  # type: ignore[method-assign]


def _reduce_ex(module: nn.Module, protocol: Any) -> Any:
    reduced = _original(module, protocol)
    return tuple(map(_unhooked, reduced)) if isinstance(reduced, tuple) else reduced


def _unhooked(part: Any) -> Any:
    """A part of ``__reduce_ex__``'s result: a module's attributes, or its arguments."""
    if type(part) is tuple:
        return tuple(map(_unhooked, part))
    if type(part) is not dict:
        return part
    changed: dict[str, Any] = {}
    for table, asked in _HOOKS.items():
        ours = {number for number, hook in part.get(table, {}).items() if isinstance(hook, Unsaved)}
        for name in (table, *asked) if ours else ():
            changed[name] = type(part[name])(
                (number, each) for number, each in part[name].items() if number not in ours
            )
    part = {**part, **changed} if changed else part
    if isinstance(part.get("forward"), Unsaved):  # a copy computes by its class
        part = {name: value for name, value in part.items() if name != "forward"}
    return part
