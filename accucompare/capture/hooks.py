"""Recording what every module call takes and gives."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from accucompare.bundle.dtypes import Array
from accucompare.bundle.records import Record, Role
from accucompare.bundle.selection import Selection
from accucompare.capture.names import Modules
from accucompare.capture.tensors import HostValue, other_to_host, scalar_to_host, to_host
from accucompare.capture.values import Scalar, leaves

#: Takes a record, its bits (which nobody changes any more), and whether it is an input of the outermost call.
Sink = Callable[[Record, Array | None, bool], None]


@dataclass(frozen=True)
class _Call:
    module: nn.Module
    name: str
    index: int
    parent: tuple[str, int] | None


class Recorder:
    """Hooks on every module of a model.

    An input is copied before the module runs, since an in-place module overwrites it; an output when it is returned, since the
    next module may. Whatever goes wrong in a hook is noted in ``errors`` and never reaches the model.
    """

    def __init__(self, modules: Modules, selection: Selection, sink: Sink) -> None:
        self.step = 0
        self.recording = True
        self.records = 0
        self.errors: list[str] = []
        self.called: set[str] = set()
        self._modules = modules
        self._selection = selection
        self._sink = sink
        self._indices: Counter[str] = Counter()
        self._seen: Counter[tuple[str, int, Role, str]] = Counter()
        self._calls: dict[int, list[_Call]] = {}  # by thread: replicas may run in several
        self._lock = threading.RLock()
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def install(self) -> None:
        """Put the hooks on; they come last, so that they see what the next module sees."""
        for name, module in self._modules.named.items():
            self._handles.append(module.register_forward_pre_hook(self._before(name), with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._after(name), with_kwargs=True))

    def remove(self) -> None:
        """Take every hook off again."""
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

    def innermost_call(self) -> str | None:
        """The name of the module whose forward is running: the one that raised, if one did."""
        calls = self._calls.get(threading.get_ident())
        return calls[-1].name if calls else None

    def not_called(self) -> list[str]:
        """Registered modules that no forward has called."""
        return [name for name in self._modules.named if name not in self.called]

    def _before(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            if self._idle():
                return
            with self._lock, self._noting_errors(name):
                calls = self._calls.setdefault(threading.get_ident(), [])
                parent = (calls[-1].name, calls[-1].index) if calls else None
                call = _Call(module, name, self._indices[name], parent)
                calls.append(call)
                self._indices[name] += 1
                self.called.add(name)
                self._record(call, Role.INPUT, _arguments(args, kwargs))

        return before

    def _after(self, name: str) -> Callable[[nn.Module, Any, Any, Any], None]:
        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if self._idle():
                return
            with self._lock, self._noting_errors(name):
                calls = self._calls.get(threading.get_ident(), [])
                if not any(call.module is module for call in calls):
                    return  # it was called before recording began
                while calls[-1].module is not module:
                    calls.pop()  # a module that raised, and whose caller went on
                self._record(calls.pop(), Role.OUTPUT, leaves(output))

        return after

    def _idle(self) -> bool:
        # inside backward, activation checkpointing runs forwards again; those calls have been recorded
        return not self.recording or torch._C._current_graph_task_id() != -1

    def _record(self, call: _Call, role: Role, parts: Iterator[tuple[str, Any]]) -> None:
        outermost = role is Role.INPUT and call.parent is None
        if not (outermost or self._selection.allows(call.name)):
            return
        for path, value in parts:
            host = _host_value(value)
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
                detail=host.detail,
            )
            self.records += 1
            self._sink(record, host.array, outermost)

    def _noting_errors(self, name: str) -> _NotingErrors:
        return _NotingErrors(self.errors, f"step {self.step}, {name or '(root)'}")


class _NotingErrors:
    """Keeps an exception of ours from the user's model; a context manager without contextlib's frames in every hook."""

    def __init__(self, errors: list[str], place: str) -> None:
        self._errors = errors
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Exception):
            self._errors.append(f"{self._place}: {type(error).__name__}: {error}")
            return True
        return False


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from leaves(args)
    yield from leaves(kwargs)


def _host_value(value: Any) -> HostValue:
    if isinstance(value, torch.Tensor):
        return to_host(value)
    if isinstance(value, Scalar):
        return scalar_to_host(value)
    return other_to_host(value)
