"""Who calls a module that no other module calls: seen from outside, before PyTorch looks at the
module's hooks."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from accucompare.live.modules import in_backward


class OutermostCalls:
    """Tells of outermost module calls, while it is on.

    A global hook of PyTorch's would come too late: the hooks of a call are collected before the
    first one runs, so that what it puts on does not see that very call; it is given no keyword
    arguments, and compiled modules warn of it. So as long as this is on, another function stands in
    the place of ``nn.Module.__call__``."""

    def __init__(
        self,
        before: Callable[[nn.Module], None],
        after: Callable[[nn.Module, BaseException | None], None],
    ) -> None:
        """
        Args:
            before: called with the module before an outermost call.
            after: and when that is over; also with what it raised, if it did.
        """
        self._before = before
        self._after = after
        # by thread that is in an outermost call: the exception being handled when it began
        self._inside: dict[int, BaseException | None] = {}
        self._original: Callable[..., Any] | None = None
        self._ours: Callable[..., Any] | None = None

    @property
    def on(self) -> bool:
        return self._original is not None

    def install(self) -> None:
        """Look at calls from the next one on."""
        global _on
        if self._original is None:
            self._original = nn.Module.__call__
            if self._original is _TORCHS_OWN and _IN_ITS_PLACE is not None:
                self._ours, _on = _IN_ITS_PLACE, self
            else:  # somebody else's function stands there: ours calls it, and stands in tracebacks
                self._ours = self._watching(self._original)
            _tell_the_compiler(self._original, self._ours)
            nn.Module.__call__ = self._ours  # type: ignore[method-assign]

    def remove(self) -> None:
        """Look no more. Where somebody else has put a function of theirs over ours, ours stays
        below, and does nothing."""
        global _on
        if self._original is not None:
            _on = None if _on is self else _on
            if nn.Module.__call__ is self._ours:
                nn.Module.__call__ = self._original  # type: ignore[method-assign]
            _tell_the_compiler(self._ours, self._original)
            self._original = self._ours = None

    def begin(self, module: nn.Module) -> Callable[[nn.Module], None] | None:
        """A call begins. Returns what is to be called when it is over; ``None`` if it is no
        outermost one."""
        thread = threading.get_ident()
        if thread in self._inside or not _is_real():
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


#: Whoever looks at calls by the function that does what torch's own does.
_on: OutermostCalls | None = None
_TORCHS_OWN: Any = getattr(nn.Module, "_wrapped_call_impl", None)


def _begun(module: nn.Module) -> Callable[[nn.Module], None] | None:
    return None if torch.compiler.is_compiling() or _on is None else _on.begin(module)


def _wrapped_call_impl(self: Any, *args: Any, **kwargs: Any) -> Any:
    over = _begun(self)
    # from here on as torch's own, with its lines as far apart and as far to the right, so that a
    # traceback shows these
    try:
        if self._compiled_call_impl is not None:
            return self._compiled_call_impl(*args, **kwargs)
        else:  # noqa: RET505
            return self._call_impl(*args, **kwargs)
    finally:
        if over is not None:
            over(self)


def _as_torchs_own() -> Callable[..., Any] | None:
    """``_wrapped_call_impl`` with the file and the lines of torch's, in whose place it stands: no
    traceback of the script's tells of it.

    ``None`` with a version of torch whose function is another."""
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
    """Whether a call computes: no part of a backward that runs a forward again, nor of tracing."""
    if in_backward() or torch._C._get_tracing_state() is not None:
        return False
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None


def _tell_the_compiler(before: Any, now: Any) -> None:
    """Tell ``torch.compile`` which ``nn.Module.__call__`` nobody has changed, so that it looks into
    modules as it does without us.

    It remembers what it finds when it is imported, which the first optimizer does."""
    for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
        module = sys.modules.get(name)
        if module is not None and getattr(module, "unpatched_nn_module_call", None) is before:
            module.unpatched_nn_module_call = now  # type: ignore[attr-defined]


def _hide_from_the_compiler(function: Any) -> None:
    """Let ``torch.compile`` pass over a function as over PyTorch's own in whose place it stands, so
    that it compiles what it would have.

    It goes by the file that a function's code says it is from."""
    function.__code__ = function.__code__.replace(
        co_filename=nn.Module._call_impl.__code__.co_filename
    )


_IN_ITS_PLACE = _as_torchs_own()
