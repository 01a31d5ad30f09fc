"""Hooks on every module of a model, and the running calls by thread, numbered in forward order."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from accucompare.live.modules import unsaved
from accucompare.live.modules.names import Modules
from accucompare.live.modules.trial_calls import in_trial_call
from accucompare.live.modules.unsaved import Unsaved
from accucompare.live.values import leaves


@dataclass(eq=False)
class Call:
    """One call of a module."""

    module: nn.Module
    name: str
    index: int  # which of the module's calls in the step this is
    # (qualified name, call index) of the call around it; ``None`` for an outermost one
    parent: tuple[str, int] | None
    handling: BaseException | None  # the exception that was being handled when the call began


_C = TypeVar("_C", bound=Call)


@dataclass(frozen=True)
class Mark:
    """Where a forward stands."""

    step: int
    indices: Counter[str]  # how often each module has been called in the step
    parent: tuple[str, int] | None  # the call that is running


@dataclass
class RecomputedPart:
    """A part of a forward that is run again, with the call indices of its first run."""

    mark: Mark
    indices: Counter[str]


#: Threads that are in a hook of any listener: what they compute is none of the model's.
_busy: set[int] = set()


class Listener(Generic[_C]):
    """Is called when module calls begin and end; subclasses say what follows.

    Its hooks come last, so they see what the next module sees. They do nothing in a backward, where
    activation checkpointing runs calls again that have been seen; ``again`` turns them on there.
    Replicas of a model may run in several threads."""

    #: Whether ``forward_returned``, and ``forward_made``, are to be called.
    sees_returns = sees_made = False

    def __init__(self, modules: Modules, kind: type[_C]) -> None:
        """``kind``: the class of its calls."""
        self.step = 0
        self.listening = True  # whether the hooks do anything
        self.called: set[str] = set()  # the names of the modules that were called
        self._modules = modules
        self._kind = kind
        self._last: dict[str, int] = {}  # the ids of the hooks that came last
        self._indices: Counter[str] = Counter()
        self._calls: dict[int, list[_C]] = {}  # by thread
        self._second_runs: dict[int, list[RecomputedPart]] = {}  # by thread, nested
        # by thread: the module that raised, until another one is called
        self._raised: dict[int, str] = {}
        self._lock = threading.RLock()
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def call_began(
        self, call: _C, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any] | None:
        """A call begins. Returns what replaces its arguments, or ``None``."""
        raise NotImplementedError

    def forward_returned(self, call: _C, output: Any) -> None:
        """A forward has returned; the user's hooks have not run yet."""

    def forward_made(self, call: _C, output: Any) -> None:
        """Likewise, but the call still runs while the user's hooks do."""

    def call_ended(self, call: _C, output: Any) -> Any:
        """A call ends. Returns what replaces its output, or ``None``."""
        raise NotImplementedError

    def call_left(self, call: _C) -> None:
        """A call is over, even if it raised. May be called again for the same call."""

    def failed(self, error: Exception, name: str) -> None:
        """A hook on the module ``name`` has raised."""
        raise NotImplementedError

    def install(self) -> None:
        self.listening = True
        self._put_on()

    def remove(self) -> None:
        self.listening = False
        self._take_off()
        self._leave_all()

    @contextlib.contextmanager
    def without_hooks(self) -> Iterator[None]:
        """Take the hooks off between two calls: PyTorch chooses paths by whether hooks exist."""
        hooked = bool(self._handles)
        self._take_off()
        try:
            yield
        finally:
            if hooked:
                self._put_on()

    def _put_on(self) -> None:
        unsaved.hide()
        for name, module in self._modules.named.items():
            if name not in self._modules.hidden:
                self._hook(name, module)

    def see(self, names: Iterable[str]) -> None:
        """Put hooks on modules that were hidden until now."""
        for name in names:
            self._hook(name, self._modules.named[name])

    def _hook(self, name: str, module: nn.Module) -> None:
        before = Hook(self, functools.partial(self._before, name), name)
        after = Hook(self, functools.partial(self._after, name), name)
        # through nn.Module: a ScriptModule blocks the method, but runs the hooks when called from
        # Python
        self._handles.append(nn.Module.register_forward_pre_hook(module, before, with_kwargs=True))
        self._handles.append(
            nn.Module.register_forward_hook(module, after, with_kwargs=True, always_call=True)
        )
        self._last[name] = self._handles[-1].id
        if self.sees_returns:
            returned = Hook(self, self._returned, name)
            self._handles.append(nn.Module.register_forward_hook(module, returned, prepend=True))
        if self.sees_made:
            made = Hook(self, self._made, name)
            self._handles.append(nn.Module.register_forward_hook(module, made, prepend=True))

    def _take_off(self) -> None:
        if self._handles:
            unsaved.hide_no_more()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def next_step(self) -> None:
        self.step += 1
        self._indices.clear()
        self._leave_all()
        self._calls.clear()
        self._raised.clear()

    def failing_call(self) -> str | None:
        """The innermost module whose forward is running or has just raised, or ``None``."""
        thread = threading.get_ident()
        call = self.running()
        return self._raised.get(thread, call.name if call else None)

    def open_call(self) -> str | None:
        """The innermost module whose forward has begun and not ended, on any thread, if any."""
        return next((calls[-1].name for calls in [*self._calls.values()] if calls), None)

    def not_called(self) -> list[str]:
        """Registered modules that no forward has called, except mere holders (a ``ModuleList``)."""
        return [
            name
            for name, module in self._modules.named.items()
            if name not in self.called
            and name not in self._modules.hidden
            and not only_holds_modules(module)
        ]

    def running(self) -> _C | None:
        """The innermost call on this thread."""
        calls = self._calls.get(threading.get_ident())
        return calls[-1] if calls else None

    def caller(self, call: _C) -> _C | None:
        """The call around a running one; ``None`` for an outermost one."""
        for each in reversed(self._calls.get(threading.get_ident(), ())):
            if (each.name, each.index) == call.parent:
                return each
        return None

    def is_running(self, call: _C | None) -> bool:
        """Whether a call's own code runs on this thread: no child's, hook's or backward's; of
        ``None``, what is run again of it."""
        return self.running() is call and threading.get_ident() not in _busy and not self.idle()

    def idle(self) -> bool:
        """Whether hooks have nothing to do now."""
        return not self.listening or in_backward()

    def run(self, act: Callable[..., Any], name: str, arguments: tuple[Any, ...]) -> Any:
        """Run a hook's work, one thread at a time."""
        thread = threading.get_ident()
        with self._lock:
            inside = thread in _busy  # a hook that waits for a tensor may run what is put off
            _busy.add(thread)
            try:
                return act(*arguments)
            except Exception as error:
                self.failed(error, name)
                return None
            finally:
                if not inside:
                    _busy.discard(thread)

    def come_last(self, call: _C) -> None:
        """Move the hook at a call's end behind those that the user has added since."""
        hooks, last = call.module._forward_hooks, self._last.get(call.name, 0)
        if next(reversed(hooks)) != last and last in hooks:
            hooks[last] = hooks.pop(last)

    def number(self, name: str) -> int:
        """The index of the call of a module that begins now."""
        indices = self._indices
        if self._second_runs and (second := self.second_run()) is not None:
            indices = second.indices
        index = indices.get(name, 0)  # a Counter's own way takes long
        indices[name] = index + 1
        return index

    def mark(self) -> Mark:
        """Where the forward on this thread stands; in a second run, where the first one stood."""
        second, running = self.second_run(), self.running()
        step, indices = (
            (self.step, self._indices) if second is None else (second.mark.step, second.indices)
        )
        parent = (
            (running.name, running.index)
            if running is not None
            else None
            if second is None
            else second.mark.parent
        )
        return Mark(step, indices.copy(), parent)

    @contextlib.contextmanager
    def in_second_run(self, mark: Mark) -> Iterator[None]:
        """Within the context, this thread runs calls again from ``mark`` on, with its indices."""
        thread = threading.get_ident()
        calls, raised = self._calls.get(thread), self._raised.get(thread)
        self._calls[thread] = []
        self._second_runs.setdefault(thread, []).append(RecomputedPart(mark, mark.indices.copy()))
        try:
            yield
        finally:
            # checkpointing ends it by an exception as soon as it has what it needs
            self._leave_all()
            self._second_runs[thread].pop()
            if not self._second_runs[thread]:
                del self._second_runs[thread]
            self._calls[thread] = calls or []
            self._raised.pop(thread, None)
            if raised is not None:
                self._raised[thread] = raised

    def second_run(self) -> RecomputedPart | None:
        """The part that is run again on this thread, or ``None``."""
        running = self._second_runs.get(threading.get_ident()) if self._second_runs else None
        return running[-1] if running else None

    def indices(self) -> Counter[str]:
        return self._indices.copy()

    def _leave_all(self) -> None:
        for call in self._calls.get(threading.get_ident(), ()):
            self.call_left(call)

    def _before(
        self, name: str, module: nn.Module, args: Any, kwargs: Any
    ) -> tuple[Any, Any] | None:
        thread = threading.get_ident()
        if self._raised:
            self._raised.pop(thread, None)
        calls = self._calls.get(thread)
        if calls is None:
            calls = self._calls[thread] = []
        if calls:
            parent: tuple[str, int] | None = (calls[-1].name, calls[-1].index)
        elif in_trial_call():
            return None
        else:
            second = self.second_run()
            parent = None if second is None else second.mark.parent
        call = self._kind(module, name, self.number(name), parent, sys.exc_info()[1])
        calls.append(call)
        self.called.add(name)
        return self.call_began(call, args, kwargs)

    def _returned(self, module: nn.Module, args: Any, output: Any) -> None:
        call = self.running()
        if call is not None and call.module is module:
            self.forward_returned(call, output)
            self.call_left(call)

    def _made(self, module: nn.Module, args: Any, output: Any) -> None:
        call = self.running()
        if call is not None and call.module is module:
            self.forward_made(call, output)

    def _after(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        thread = threading.get_ident()
        calls = self._calls.get(thread)
        if not calls or not (
            calls[-1].module is module or any(call.module is module for call in calls)
        ):
            return None  # called before listening began
        while calls[-1].module is not module:
            self.call_left(calls.pop())  # its hook did not run, and its caller went on
        call = calls.pop()
        self.call_left(call)
        # the forward raised; the hook still runs, and the caller may go on
        if sys.exc_info()[1] is not call.handling:
            self._raised.setdefault(thread, name)
            return None
        if self._raised:
            self._raised.pop(thread, None)
        return self.call_ended(call, output)


class Hook(Unsaved):
    def __init__(self, listener: Listener[Any], act: Callable[..., Any], name: str) -> None:
        self._listener = listener
        self._act = act
        self._name = name

    def __call__(self, *arguments: Any) -> Any:
        listener = self._listener
        return None if listener.idle() else listener.run(self._act, self._name, arguments)


def only_holds_modules(module: nn.Module) -> bool:
    """Whether a module has no forward and no tensors of its own, as a ``ModuleList``."""
    forward = getattr(type(module), "forward", None)  # a scripted module's class has none
    callable_ = "forward" in vars(module) or forward is not nn.Module.forward
    return not callable_ and not (*module.parameters(recurse=False), *module.buffers(recurse=False))


def listens(module: nn.Module, kind: type[Listener[Any]]) -> bool:
    """Whether a listener of this class has its hooks on a module."""
    return any(
        isinstance(hook, Hook) and isinstance(hook._listener, kind)
        for hook in module._forward_pre_hooks.values()
    )


def in_backward() -> bool:
    """Whether this thread is inside a backward."""
    return torch._C._current_graph_task_id() != -1


def arguments_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every part of a module's arguments, with its path."""
    yield from leaves(args)
    if kwargs:
        yield from leaves(kwargs)
