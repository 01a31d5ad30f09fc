"""Operators that a device has no kernel for, and that are run on the CPU in its place.

torch_npu says so by a warning that it writes to standard error, past Python, once a process, if it was not told to be quiet. What it
goes by is asked for here instead: whether the operator has a kernel of the device's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from accucompare.capture.interception import intercepting, plainly, register

Seen = Callable[[str], None]
_listening: list[tuple[str, Seen]] = []
_registered: set[str] = set()


@contextlib.contextmanager
def noting_fallbacks(type: str, operators: Iterable[str], seen: Seen) -> Iterator[None]:
    """Call ``seen`` with the name of each of these operators, such as ``aten::huber_loss``, that is run on a device's tensors.

    Where this version of torch does not let operators be caught, none is seen.
    """
    names = {name for name in operators if name.startswith("aten::")}
    try:
        register((name.removeprefix("aten::"), _noting(name)) for name in names - _registered)
        _registered.update(names)
        switch = contextlib.ExitStack()
        if names:
            switch.enter_context(intercepting())
    except (AttributeError, RuntimeError, TypeError):
        yield
        return
    listener = (type, seen)
    _listening.append(listener)
    try:
        with switch:
            yield
    finally:
        _listening.remove(listener)


def _noting(name: str) -> Callable[..., Any]:
    base, _, overload = name.removeprefix("aten::").partition(".")
    op = getattr(getattr(torch.ops.aten, base), overload or "default")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        types = {value.device.type for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)}
        for listener, seen in _listening:
            if listener in types:
                seen(name)
        return plainly(op, *args, **kwargs)

    return kernel
