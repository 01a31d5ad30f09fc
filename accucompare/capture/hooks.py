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
from accucompare.capture.names import Modules
from accucompare.capture.tensors import HostValue, other_to_host, scalar_to_host, to_host
from accucompare.capture.values import Scalar, leaves


@dataclass(frozen=True)
class _Call:
    module: nn.Module
    name: str
    index: int
    parent: tuple[str, int] | None
    handling: BaseException | None  # what was being handled when the call began


class Recorder:
    """Hooks on every module of a model.

    An input is recorded before the module runs, since an in-place module overwrites it; an output when it is returned, since the
    next module may. Whatever goes wrong in a hook is noted in ``errors`` and never reaches the model.
    """

    def __init__(self, modules: Modules, selection: Selection, writer: BundleWriter, started: Callable[[], None]) -> None:
        """``started`` is called when an outermost call begins."""
        self.step = 0
        self.recording = True
        self.records = 0
        self.errors: list[str] = []
        self.called: set[str] = set()
        self._modules = modules
        self._selection = selection
        self._writer = writer
        self._started = started
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

    def remove(self) -> None:
        """Take every hook off again."""
        self.recording = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def next_step(self) -> None:
        """Number calls and records from 0 again."""
        self.step += 1
        self.records = 0
        self._indices.clear()
        self._seen.clear()
        self._calls.clear()
        self._raised.clear()

    def failing_call(self) -> str | None:
        """The name of the innermost module whose forward is running or has just raised; ``None`` if there is none."""
        thread = threading.get_ident()
        calls = self._calls.get(thread)
        return self._raised.get(thread, calls[-1].name if calls else None)

    def not_called(self) -> list[str]:
        """Registered modules that no forward has called."""
        return [name for name in self._modules.named if name not in self.called]

    def _before(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
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

    def _after(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        thread = threading.get_ident()
        calls = self._calls.get(thread, [])
        if not any(call.module is module for call in calls):
            return  # it was called before recording began
        while calls[-1].module is not module:
            calls.pop()  # a module whose hook did not run; its caller went on
        call = calls.pop()
        if sys.exc_info()[1] is not call.handling:  # the forward raised; the hook runs all the same, and the caller may go on
            self._raised.setdefault(thread, name)
            return
        self._raised.pop(thread, None)
        self._record(call, Role.OUTPUT, leaves(output))

    def idle(self) -> bool:
        """Whether a hook has nothing to do now."""
        # inside backward, activation checkpointing runs forwards again; those calls have been recorded
        return not self.recording or torch._C._current_graph_task_id() != -1

    def run(self, act: Callable[..., None], name: str, arguments: tuple[Any, ...]) -> None:
        """Do what a hook does, one thread at a time, and note what goes wrong."""
        with self._lock:
            try:
                act(*arguments)
            except Exception as error:
                self.errors.append(f"step {self.step}, {name or '(root)'}: {type(error).__name__}: {error}")

    def _record(self, call: _Call, role: Role, parts: Iterator[tuple[str, Any]]) -> None:
        outermost = role is Role.INPUT and call.parent is None
        if self._writer.failure is not None or not (outermost or self._selection.allows(call.name)):
            return
        given = outermost and self.records == 0  # a later call may be given what an earlier one computed
        for path, value in parts:
            self._record_value(call, role, path, value, given)

    def _record_value(self, call: _Call, role: Role, path: str, value: Any, given: bool) -> None:
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
            type=type(call.module).__name__,
            parent=call.parent,
            shape=host.shape,
            dtype=host.dtype,
            layout=host.layout,
            digest=host.digest,
            statistics=host.statistics,
            detail=host.detail,
        )
        self.records += 1
        self._writer.add(record, host.array, given, host.lease, host.ready)

    def _host_value(self, value: Any, needed: bool) -> HostValue:
        if isinstance(value, torch.Tensor):
            return to_host(value, self._writer, needed)
        if isinstance(value, Scalar):
            return scalar_to_host(value)
        return other_to_host(value)


class _Hook:
    """One hook of a recorder. A copy or a pickle of the model, made while it is captured, gets one that does nothing."""

    def __init__(self, recorder: Recorder, act: Callable[..., None], name: str) -> None:
        self._recorder = recorder
        self._act = act
        self._name = name

    def __call__(self, *arguments: Any) -> None:
        if not self._recorder.idle():
            self._recorder.run(self._act, self._name, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (_nothing,)


def _nothing(*arguments: Any) -> None:
    pass


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from leaves(args)
    yield from leaves(kwargs)
