"""Sees module calls that no other module makes, before PyTorch looks at the module's hooks."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from accucompare.live.modules import in_backward, in_trial_call


class OutermostCalls:
    """Reports outermost module calls while installed.

    Replaces ``nn.Module.__call__``. A global hook of PyTorch's comes too late: a call's hooks are
    collected before the first one runs, so a hook that it adds misses this very call. It is also
    given no keyword arguments, and compiled modules warn of it."""

    def __init__(
        self,
        before: Callable[[nn.Module], None],
        after: Callable[[nn.Module, BaseException | None], None],
    ) -> None:
        """``before`` is called with the module before an outermost call; ``after`` after it, with
        the module and what the call raised, if anything."""
        self._before = before
        self._after = after
        # By thread in an outermost call: the exception being handled when it began.
        self._inside: dict[int, BaseException | None] = {}
        self._original: Callable[..., Any] | None = None
        self._ours: Callable[..., Any] | None = None

    @property
    def on(self) -> bool:
        return self._original is not None

    def install(self) -> None:
        global _on
        if self._original is None:
            self._original = nn.Module.__call__
            if self._original is _TORCHS_OWN and _IN_ITS_PLACE is not None:
                self._ours, _on = _IN_ITS_PLACE, self
            else:  # another library has replaced it: ours calls theirs, and shows in tracebacks
                self._ours = self._watching(self._original)
            _tell_the_compiler(self._original, self._ours)
            nn.Module.__call__ = self._ours  # type: ignore[method-assign]

    def remove(self) -> None:
        """Stop looking. If another library wraps our function, it stays and does nothing."""
        global _on
        if self._original is not None:
            _on = None if _on is self else _on
            if nn.Module.__call__ is self._ours:
                nn.Module.__call__ = self._original  # type: ignore[method-assign]
            _tell_the_compiler(self._ours, self._original)
            self._original = self._ours = None

    def begin(self, module: nn.Module) -> Callable[[nn.Module], None] | None:
        """Note that a call begins; return what to call at its end, ``None`` unless outermost."""
        thread = threading.get_ident()
        if thread in self._inside or not _is_real() or in_trial_call():
            return None
        self._inside[thread] = sys.exc_info()[1]
        try:
            self._before(module)
        except BaseException:
            self._end(module)
            raise
        return self._end

    def _end(self, module: nn.Module) -> None:
        handled, raised = self._inside.pop(threading.get_ident(), None), sys.exc_info()[1]
        self._after(module, None if raised is handled else raised)

    def _watching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            # comes first: the compiler follows no further
            if torch.compiler.is_compiling() or self._ours is not call:
                return original(module, *args, **kwargs)
            over = self.begin(module)
            try:
                return original(module, *args, **kwargs)
            finally:
                if over is not None:
                    over(module)

        _hide_from_the_compiler(call)
        return call


#: The instance that the copy of torch's own function reports to.
_on: OutermostCalls | None = None
_TORCHS_OWN: Any = getattr(nn.Module, "_wrapped_call_impl", None)


def _begun(module: nn.Module) -> Callable[[nn.Module], None] | None:
    return None if torch.compiler.is_compiling() or _on is None else _on.begin(module)


def _wrapped_call_impl(self: Any, *args: Any, **kwargs: Any) -> Any:
    over = _begun(self)
    # From here on equal to torch's own, down to columns and distances between lines, so that a
    # traceback shows torch's.
    try:
        if self._compiled_call_impl is not None:
            return self._compiled_call_impl(*args, **kwargs)
        else:  # noqa: RET505
            return self._call_impl(*args, **kwargs)
    finally:
        if over is not None:
            over(self)


def _as_torchs_own() -> Callable[..., Any] | None:
    """``_wrapped_call_impl`` with file and line numbers of torch's own, so that tracebacks of the
    script do not show it; ``None`` if this version of torch has another function."""
    marks = (
        "return self._compiled_call_impl(*args, **kwargs)",
        "return self._call_impl(*args, **kwargs)",
    )
    places = []
    for function in (_TORCHS_OWN, _wrapped_call_impl):
        try:
            lines, first = inspect.getsourcelines(function)
        except (OSError, TypeError):
            return None
        found = [
            first + at
            for mark in marks
            for at, line in enumerate(lines)
            if line.startswith(" " * 12 + mark)
        ]
        if len(found) != 2:
            return None
        places.append(found)
    (theirs, theirs_last), (ours, ours_last) = places
    if theirs_last - theirs != ours_last - ours:
        return None
    code = _wrapped_call_impl.__code__
    _hide_from_the_compiler(_wrapped_call_impl)
    _wrapped_call_impl.__code__ = _wrapped_call_impl.__code__.replace(
        co_firstlineno=code.co_firstlineno + theirs - ours
    )
    return functools.wraps(_TORCHS_OWN)(_wrapped_call_impl)


def _is_real() -> bool:
    """Whether a call computes: not while tracing, and not when a backward runs a forward again."""
    if in_backward() or torch._C._get_tracing_state() is not None:
        return False
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None


def _tell_the_compiler(before: Any, now: Any) -> None:
    """Tell ``torch.compile`` that ours is the unpatched ``nn.Module.__call__``: it then traces
    modules as ever.

    It remembers the one at its import, which the first optimizer triggers."""
    for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
        module = sys.modules.get(name)
        if module is not None and getattr(module, "unpatched_nn_module_call", None) is before:
            module.unpatched_nn_module_call = now  # type: ignore[attr-defined]


def _hide_from_the_compiler(function: Any) -> None:
    """Make ``torch.compile`` skip a function as it skips PyTorch's own, so that it compiles the
    same as without us. It decides by the file in the function's code."""
    function.__code__ = function.__code__.replace(
        co_filename=nn.Module._call_impl.__code__.co_filename
    )


_IN_ITS_PLACE = _as_torchs_own()
