"""Who calls a module that no other module calls: seen from outside, before PyTorch looks at the module's hooks."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from accucompare.live.hooks import in_backward


class OutermostCalls:
    """Tells of outermost module calls, while it is on.

    A global hook of PyTorch's would come too late: the hooks of a call are collected before the first one runs, so that what it puts on
    does not see that very call; it is given no keyword arguments, and compiled modules warn of it. So as long as this is on, another
    function stands in the place of ``nn.Module.__call__``.
    """

    def __init__(self, before: Callable[[nn.Module], None], after: Callable[[nn.Module], None]) -> None:
        """
        Args:
            before: called with the module before an outermost call.
            after: and when that is over, also if it raised.
        """
        self._before = before
        self._after = after
        self._inside: set[int] = set()  # threads that are in an outermost call
        self._original: Callable[..., Any] | None = None
        self._ours: Callable[..., Any] | None = None

    @property
    def on(self) -> bool:
        return self._original is not None

    def install(self) -> None:
        """Look at calls from the next one on."""
        if self._original is None:
            self._original = nn.Module.__call__
            self._ours = self._watching(self._original)
            _tell_the_compiler(self._original, self._ours)
            nn.Module.__call__ = self._ours  # type: ignore[method-assign]

    def remove(self) -> None:
        """Look no more. Where somebody else has put a function of theirs over ours, ours stays below, and does nothing."""
        if self._original is not None:
            if nn.Module.__call__ is self._ours:
                nn.Module.__call__ = self._original  # type: ignore[method-assign]
            _tell_the_compiler(self._ours, self._original)
            self._original = self._ours = None

    def _watching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        inside = self._inside

        @functools.wraps(original)
        def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # comes first: the compiler follows no further
                return original(module, *args, **kwargs)
            thread = threading.get_ident()
            if thread in inside or self._ours is not call or not _is_real():
                return original(module, *args, **kwargs)
            inside.add(thread)
            try:
                self._before(module)
                return original(module, *args, **kwargs)
            finally:
                inside.discard(thread)
                self._after(module)

        _hide_from_the_compiler(call)
        return call


def _is_real() -> bool:
    """Whether a call computes: no part of a backward that runs a forward again, nor of tracing."""
    if in_backward() or torch._C._get_tracing_state() is not None:
        return False
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None


def _tell_the_compiler(before: Any, now: Any) -> None:
    """Tell ``torch.compile`` which ``nn.Module.__call__`` nobody has changed, so that it looks into modules as it does without us.

    It remembers what it finds when it is imported, which the first optimizer does.
    """
    for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
        module = sys.modules.get(name)
        if module is not None and getattr(module, "unpatched_nn_module_call", None) is before:
            module.unpatched_nn_module_call = now  # type: ignore[attr-defined]


def _hide_from_the_compiler(function: Any) -> None:
    """Let ``torch.compile`` pass over a function as over PyTorch's own in whose place it stands, so that it compiles what it would have.

    It goes by the file that a function's code says it is from.
    """
    function.__code__ = function.__code__.replace(co_filename=nn.Module._call_impl.__code__.co_filename)
