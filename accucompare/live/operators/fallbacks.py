"""Operators that run on the CPU because the device has no kernel for them.

torch_npu warns of them once a process, on standard error and not through Python. So operators
without a kernel of the device's are caught here.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from accucompare.live.operators.dispatch import (
    intercepting,
    of_this_thread,
    register,
    without_dispatch,
)
from accucompare.live.operators.randomness import register_kernels


class _Listener(NamedTuple):
    type: str
    operators: frozenset[str]
    seen: Callable[[str], None]


_active: list[tuple[int, _Listener]] = []
_registered: set[str] = set()


@contextlib.contextmanager
def noting_fallbacks(
    type: str, operators: Iterable[str], seen: Callable[[str], None]
) -> Iterator[None]:
    """Call ``seen`` with each of these operators that runs on such a device (``aten::huber_loss``).

    Sees none if this torch does not let operators be caught. Random operators, which are caught for
    their numbers, are not seen.
    """
    names = frozenset(name for name in operators if name.startswith("aten::"))
    with contextlib.ExitStack() as stack:
        if names:
            with contextlib.suppress(AttributeError, RuntimeError, TypeError):
                register_kernels()
                register(
                    (name.removeprefix("aten::"), _noting(name)) for name in names - _registered
                )
                _registered.update(names)
                stack.enter_context(intercepting())
        entered = (threading.get_ident(), _Listener(type, names, seen))
        _active.append(entered)
        try:
            yield
        finally:
            _active.remove(entered)


def _noting(name: str) -> Callable[..., Any]:
    base, _, overload = name.removeprefix("aten::").partition(".")
    op = getattr(getattr(torch.ops.aten, base), overload or "default")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        listener = of_this_thread(_active)
        if listener is not None and name in listener.operators:
            tensors = [
                value
                for value in pytree.tree_leaves((args, kwargs))
                if isinstance(value, torch.Tensor)
            ]
            if any(tensor.device.type == listener.type for tensor in tensors):
                listener.seen(name)
        return without_dispatch(op, *args, **kwargs)

    return kernel
