"""Catching operators wherever they are called: in a forward, a backward, or another operator.

Kernels are registered at a dispatch key that PyTorch leaves unused, and the key is switched on for
the capturing thread only (and for the backward threads that it starts). All other operators fall
through at that key, which costs nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch.library import Library, fallthrough_kernel
from torch.utils._python_dispatch import TorchDispatchMode

_T = TypeVar("_T")

_KEY = "TESTING_ONLY_GenericMode"
_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
# by thread: what switches the key off again, and the number of open contexts
_switched_on: dict[int, list[Any]] = {}
_libraries: list[Library] = []  # keeps the kernels alive


def register(kernels: Iterable[tuple[str, Callable[..., Any]]]) -> None:
    """Call kernels in place of operators such as ``bernoulli_.float`` while ``intercepting``.

    This cannot be undone: do it only once. Raises AttributeError, RuntimeError, TypeError if this
    torch does not let operators be caught."""
    if not _libraries:
        fallback = Library("_", "IMPL")  # type: ignore[no-untyped-call]
        fallback.fallback(fallthrough_kernel, _KEY)  # type: ignore[no-untyped-call]
        _libraries.append(fallback)
    library = Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for name, kernel in kernels:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", _KEY):
            library.impl(name, kernel, _KEY)  # type: ignore[no-untyped-call]
    _libraries.append(library)


def registered_name(op: Any) -> str:
    """An operator's name as ``register`` takes it: ``bernoulli_.float``."""
    return str(op._schema.name).removeprefix("aten::") + (
        f".{op._schema.overload_name}" if op._schema.overload_name else ""
    )


@contextlib.contextmanager
def intercepting() -> Iterator[None]:
    """Catch operators on this thread until the last of its contexts has ended, in any order. Raises
    AttributeError, RuntimeError, TypeError if this torch does not let operators be caught."""
    key = _key()
    # torch.cond, flex_attention: they have no general fallthrough
    for operator in torch._ops._higher_order_ops.values():
        operator.fallthrough(key)  # type: ignore[no-untyped-call]
    thread = threading.get_ident()
    if thread not in _switched_on:
        guard = torch._C._IncludeDispatchKeyGuard(key)
        guard.__enter__()  # type: ignore[no-untyped-call]
        _switched_on[thread] = [guard, 0]
    _switched_on[thread][1] += 1
    try:
        yield
    finally:
        _switched_on[thread][1] -= 1
        if not _switched_on[thread][1]:
            _switched_on.pop(thread)[0].__exit__(None, None, None)


class Inside:
    """Lets a mode see what an operator does inside; autocast and ``matched_randomness``, too.

    They do so only if they would without the mode: autocast not, if it knows the operator itself.
    """

    def __init__(self, *devices: str) -> None:
        """``devices`` whose autocast counts, named as in dispatch keys: ``CPU``."""
        self._autocast = [f"Autocast{device}" for device in devices]
        self._decided = False

    @contextlib.contextmanager
    def of(self, op: Any, mode: TorchDispatchMode) -> Iterator[None]:
        """To be entered inside the mode's handling of this operator."""
        outer = self._decided
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        self._decided = outer or any(has_kernel(op.name(), key) for key in self._autocast)
        try:
            with _seeing_inside(mode, [_KEY] if self._decided else [_KEY, *self._autocast]):
                yield
        finally:
            self._decided = outer


@contextlib.contextmanager
def _seeing_inside(mode: TorchDispatchMode, names: Iterable[str]) -> Iterator[None]:
    """In a mode's handling of an operator, let it and these dispatch keys see the calls inside.

    A key that was switched off where Python called the operator stays off. Keys that this torch
    does not know are left out.
    """
    # as it was when Python called
    with torch._C._RestorePythonTLSSnapshot():  # type: ignore[attr-defined]
        keys = [
            key for key in map(torch._C._parse_dispatch_key, names) if key and not _is_excluded(key)
        ]
    with contextlib.ExitStack() as stack:
        for key in keys:
            stack.enter_context(torch._C._SetExcludeDispatchKeyGuard(key, False))
        with mode:
            yield


def of_this_thread(active: Sequence[tuple[int, _T]]) -> _T | None:
    """This thread's last entry; on a backward's thread, which has none, the last of all."""
    thread = threading.get_ident()
    return next(
        (entered for by, entered in reversed(active) if by == thread),
        active[-1][1] if active else None,
    )


def without_dispatch(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator without catching it."""
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_key())):
        return op(*args, **kwargs)


def _key() -> torch._C.DispatchKey:
    key = torch._C._parse_dispatch_key(_KEY)
    if key is None:
        raise RuntimeError(f"this torch has no dispatch key {_KEY}")
    return key
