"""Recording what every module call takes and gives."""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from accucompare.bundle.records import Record, Role
from accucompare.bundle.selection import Selection
from accucompare.bundle.writer import BundleWriter
from accucompare.capture.feeding import Feed, Place
from accucompare.capture.lending import Lent
from accucompare.capture.names import Modules
from accucompare.capture.operators import OperatorFeed, Operators, storages
from accucompare.capture.tensors import HostValue, other_to_host, scalar_to_host, to_host
from accucompare.capture.values import Scalar, leaves
from accucompare.errors import AccucompareError, CaptureError


@dataclass(eq=False)
class _Call:
    module: nn.Module
    name: str
    index: int
    parent: tuple[str, int] | None
    handling: BaseException | None  # what was being handled when the call began
    # of a fed capture:
    lent: Lent | None = None
    returned: tuple[Any, ...] = ()  # what the forward returned, if it has, before any other hook saw it
    operators: Operators | None = None  # of a capture of operators, where they are recorded


class Recorder:
    """Hooks on every module of a model.

    An input is recorded before the module runs, since an in-place module overwrites it; an output when it is returned, since the
    next module may. Whatever goes wrong in a hook is noted in ``errors`` and never reaches the model.

    With a ``feed``, the hooks hand on golden's values instead. A model that is not fed as it should be would be measured wrongly, so
    that whatever then goes wrong in a hook is raised, and kept as ``failure`` in case that the model catches it.
    """

    def __init__(
        self,
        modules: Modules,
        selection: Selection,
        writer: BundleWriter,
        started: Callable[[], None],
        feed: Feed | None = None,
        operators: bool = False,
    ) -> None:
        """``started`` is called when an outermost call begins; ``operators``: record those of the selected modules, too."""
        self.step = 0
        self.recording = True
        self.records = 0
        self.errors: list[str] = []
        self.failure: AccucompareError | None = None
        self.called: set[str] = set()
        self._modules = modules
        self._selection = selection
        self._writer = writer
        self._started = started
        self._feed = feed
        self._operators = operators
        self._state: frozenset[int] = frozenset()  # of operators that are fed: the storages of parameters and buffers
        self._busy: set[int] = set()  # threads that are in a hook
        self._last: dict[str, int] = {}  # of a fed capture: the ids of the hooks that come last
        self._indices: Counter[str] = Counter()
        self._seen: Counter[tuple[str, int, Role, str]] = Counter()
        self._calls: dict[int, list[_Call]] = {}  # by thread: replicas may run in several
        self._raised: dict[int, str] = {}  # by thread: the module that raised, until another one is called
        self._lock = threading.RLock()
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def install(self) -> None:
        """Put the hooks on; they come last, so that they see what the next module sees."""
        for name, module in self._modules.named.items():
            before = _Hook(self, functools.partial(self._before, name), name)
            after = _Hook(self, functools.partial(self._after, name), name)
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            self._handles.append(module.register_forward_hook(after, with_kwargs=True, always_call=True))
            if self._feed is not None:
                self._last[name] = self._handles[-1].id
            if self._feed is not None or self._operators:
                returned = _Hook(self, self._returned, name)
                self._handles.append(module.register_forward_hook(returned, prepend=True))

    def remove(self) -> None:
        """Take every hook off again."""
        self.recording = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._leave_all()

    def _leave_all(self) -> None:
        """See no more of operators in calls that did not end as they should."""
        for call in self._calls.get(threading.get_ident(), ()):
            _leave(call)

    def next_step(self) -> None:
        """Number calls and records from 0 again."""
        self.step += 1
        self.records = 0
        self._indices.clear()
        self._seen.clear()
        self._leave_all()
        self._calls.clear()
        self._raised.clear()
        if self._feed is not None:
            self._feed.end_step()

    def failing_call(self) -> str | None:
        """The name of the innermost module whose forward is running or has just raised; ``None`` if there is none."""
        thread = threading.get_ident()
        calls = self._calls.get(thread)
        return self._raised.get(thread, calls[-1].name if calls else None)

    def not_called(self) -> list[str]:
        """Registered modules that no forward has called."""
        return [name for name in self._modules.named if name not in self.called]

    def _before(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        thread = threading.get_ident()
        self._raised.pop(thread, None)
        calls = self._calls.setdefault(thread, [])
        parent = (calls[-1].name, calls[-1].index) if calls else None
        call = _Call(module, name, self._indices[name], parent, sys.exc_info()[1])
        calls.append(call)
        self._indices[name] += 1
        self.called.add(name)
        if parent is None:
            self._started()
        self._record(call, Role.INPUT, _arguments(args, kwargs))
        if self._feed is None or (self._operators and call.parent is not None and not self._is_selected(call)):
            self._watch(call)
            return None
        hooks, last = module._forward_hooks, self._last[name]
        if next(reversed(hooks)) != last and last in hooks:  # the user has added one since
            hooks[last] = hooks.pop(last)
        args, kwargs, call.lent = self._feed.inputs(Place(self.step, name, call.index, Role.INPUT), args, kwargs)
        self._watch(call)
        return args, kwargs

    def _watch(self, call: _Call) -> None:
        """From now on see the operators that a module calls, if they are to be recorded."""
        if self._operators and self._selection.allows(call.name):
            feed = None
            if self._feed is not None:
                self._state = self._state or storages(tensor for *_, tensor in self._modules.tensors())
                feed = OperatorFeed(self._feed, self.step, call.name, call.index, self._state)
            call.operators = Operators(_Inside(self, call), feed)
            call.operators.enter()

    def _is_selected(self, call: _Call) -> bool:
        """Whether a call is recorded; those made by a module whose operators are, too, since they are parts of its own code."""
        caller = call.parent is not None and self._operators and self._selection.allows(call.parent[0])
        return caller or self._selection.allows(call.name)

    def _returned(self, module: nn.Module, args: Any, output: Any) -> None:
        """Keep what a forward returned, before a hook of the user's sees it."""
        calls = self._calls.get(threading.get_ident())
        if calls and calls[-1].module is module:
            calls[-1].returned = (output,)
            _leave(calls[-1])

    def _after(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        thread = threading.get_ident()
        calls = self._calls.get(thread, [])
        if not any(call.module is module for call in calls):
            return None  # it was called before recording began
        while calls[-1].module is not module:
            _leave(calls.pop())  # a module whose hook did not run; its caller went on
        call = calls.pop()
        _leave(call)
        if sys.exc_info()[1] is not call.handling:  # the forward raised; the hook runs all the same, and the caller may go on
            self._raised.setdefault(thread, name)
            return None
        self._raised.pop(thread, None)
        self._record(call, Role.OUTPUT, leaves(output))
        if self._feed is None or (self._operators and not self._is_selected(call)):  # golden's selection is the same
            return None
        if call.returned and call.returned[0] is not output:
            raise CaptureError(f"a forward hook on {name or '(root)'} replaces what the module returns, as --feed does; take the hook off")
        return self._feed.outputs(Place(self.step, name, call.index, Role.OUTPUT), output, call.lent)

    def idle(self) -> bool:
        """Whether a hook has nothing to do now."""
        # inside backward, activation checkpointing runs forwards again; those calls have been recorded
        return not self.recording or torch._C._current_graph_task_id() != -1

    def run(self, act: Callable[..., Any], name: str, arguments: tuple[Any, ...]) -> Any:
        """Do what a hook does, one thread at a time, and note what goes wrong, or raise it if the model is fed."""
        with self._lock:
            self._busy.add(threading.get_ident())
            try:
                return act(*arguments)
            except Exception as error:
                if self._feed is not None:
                    self.recording = False
                    self.failure = _as_failure(error, f"step {self.step}, {name or '(root)'}")
                    raise self.failure from error
                self.errors.append(f"step {self.step}, {name or '(root)'}: {type(error).__name__}: {error}")
                return None
            finally:
                self._busy.discard(threading.get_ident())

    def is_running(self, call: _Call) -> bool:
        """Whether a module's own code runs on this thread: none of a child's, of a hook's, or of a backward's."""
        thread = threading.get_ident()
        calls = self._calls.get(thread, [])
        return calls[-1:] == [call] and thread not in self._busy and not self.idle()

    def add_operator(self, call: _Call, role: Role, path: str, value: Any, operator: str, line: str) -> None:
        """Record what an operator took or gave."""
        if self._writer.failure is None:
            self._record_value(call, role, path, value, False, operator, line)

    def _record(self, call: _Call, role: Role, parts: Iterator[tuple[str, Any]]) -> None:
        outermost = role is Role.INPUT and call.parent is None
        if self._writer.failure is not None or not (outermost or self._is_selected(call)):
            return
        given = outermost and self.records == 0  # a later call may be given what an earlier one computed
        for path, value in parts:
            self._record_value(call, role, path, value, given)

    def _record_value(self, call: _Call, role: Role, path: str, value: Any, given: bool, operator: str = "", line: str = "") -> None:
        host = self._host_value(value, given)
        place = (call.name, call.index, role, path)
        self._seen[place] += 1
        if self._seen[place] > 1:
            path = f"{path}#{self._seen[place]}"
        record = Record(
            rank=0,
            step=self.step,
            name=call.name,
            call=call.index,
            role=role,
            path=path,
            order=self.records,
            type=operator or type(call.module).__name__,
            parent=(call.name, call.index) if operator else call.parent,
            shape=host.shape,
            dtype=host.dtype,
            layout=host.layout,
            digest=host.digest,
            statistics=host.statistics,
            detail=f"{host.detail} at {line}" if host.detail and line else host.detail or line,
        )
        self.records += 1
        self._writer.add(record, host.array, given, host.lease, host.ready)

    def _host_value(self, value: Any, needed: bool) -> HostValue:
        if isinstance(value, torch.Tensor):
            return to_host(value, self._writer, needed)
        if isinstance(value, Scalar):
            return scalar_to_host(value)
        return other_to_host(value)


@dataclass(frozen=True)
class _Inside:
    """What the operators of one module call are told to."""

    recorder: Recorder
    call: _Call

    def listening(self) -> bool:
        return self.recorder.is_running(self.call)

    def do(self, act: Callable[..., Any], *arguments: Any) -> Any:
        return self.recorder.run(act, self.call.name, arguments)

    def add(self, role: Role, path: str, value: Any, operator: str, line: str) -> None:
        self.recorder.add_operator(self.call, role, path, value, operator, line)


class _Hook:
    """One hook of a recorder. A copy or a pickle of the model, made while it is captured, gets one that does nothing."""

    def __init__(self, recorder: Recorder, act: Callable[..., Any], name: str) -> None:
        self._recorder = recorder
        self._act = act
        self._name = name

    def __call__(self, *arguments: Any) -> Any:
        return None if self._recorder.idle() else self._recorder.run(self._act, self._name, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (_nothing,)


def _as_failure(error: Exception, place: str) -> AccucompareError:
    if isinstance(error, AccucompareError):
        return error
    return CaptureError(f"{place}: could not be fed: {type(error).__name__}: {error}")


def _leave(call: _Call) -> None:
    if call.operators is not None:
        call.operators.leave()


def _nothing(*arguments: Any) -> None:
    pass


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from leaves(args)
    yield from leaves(kwargs)
