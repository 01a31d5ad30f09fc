"""Recording what every module call takes and gives."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from accucompare.bundle.records import Record, Role
from accucompare.bundle.writer import BundleWriter
from accucompare.errors import AccucompareError, CaptureError
from accucompare.live.hooks import Call, Listener, arguments_of
from accucompare.live.names import Modules
from accucompare.live.sources import FunctionsRun
from accucompare.live.tensors import HostValue, other_to_host, scalar_to_host, to_host
from accucompare.live.values import Scalar, leaves
from accucompare.recorder.feeding import Feed, Place
from accucompare.recorder.lending import Lent
from accucompare.recorder.operator_feed import OperatorFeed, storages
from accucompare.recorder.operators import Operators
from accucompare.selection import Selection


@dataclass(eq=False)
class _Call(Call):
    # of a fed capture:
    lent: Lent | None = None
    returned: tuple[Any, ...] = ()  # what the forward returned, if it has, before any other hook saw it
    operators: Operators | None = None  # of a capture of operators, where they are recorded


class Recorder(Listener[_Call]):
    """Records the inputs and outputs of every module call.

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
        super().__init__(modules, _Call)
        self.records = 0
        self.errors: list[str] = []
        self.failure: AccucompareError | None = None
        self.sees_returns = feed is not None or operators
        self._selection = selection
        self._writer = writer
        self._started = started
        self._feed = feed
        self._operators = operators
        self._state: frozenset[int] = frozenset()  # of operators that are fed: the storages of parameters and buffers
        self._seen: Counter[tuple[str, int, Role, str]] = Counter()
        self._functions = FunctionsRun()
        self._outermost: set[str] = set()  # modules whose first outermost call has begun

    @property
    def files_run(self) -> set[str]:
        """The files of the functions that ran in the first outermost call of each module."""
        return self._functions.files

    @property
    def called_compiled(self) -> bool:
        """Whether one of those functions was compiled by ``torch.compile``."""
        return self._functions.compiled

    @property
    def all_files_seen(self) -> bool:
        """Whether no other profiler kept them from being seen."""
        return not self._functions.disturbed

    def run(self, act: Callable[..., Any], name: str, arguments: tuple[Any, ...]) -> Any:
        if self._functions.running != threading.get_ident():
            return super().run(act, name, arguments)
        with self._functions.paused():
            return super().run(act, name, arguments)

    def remove(self) -> None:
        super().remove()
        self._functions.stop()

    def record_computed(self) -> None:
        """Record the buffers that the model computes itself, before the first call: they are not what ``--like`` brings, nor fed."""
        for name, buffer, tensor in self._modules.computed():
            if self._selection.allows(name):
                call = _Call(self._modules.named[name], name, 0, None, None)
                self._record_value(call, Role.COMPUTED_BUFFER, buffer, tensor, False)

    def next_step(self) -> None:
        """Number calls and records from 0 again."""
        super().next_step()
        self.records = 0
        self._seen.clear()
        if self._feed is not None:
            self._feed.end_step()

    def began(self, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        if call.parent is None:
            self._started()
            if call.name not in self._outermost:
                self._outermost.add(call.name)
                self._functions.start()
        self._record(call, Role.INPUT, arguments_of(args, kwargs))
        if self._feed is None or (self._operators and call.parent is not None and not self._is_selected(call)):
            self._watch(call)
            return None
        self.come_last(call)
        args, kwargs, call.lent = self._feed.inputs(Place(self.step, call.name, call.index, Role.INPUT), args, kwargs)
        self._watch(call)
        return args, kwargs

    def returned(self, call: _Call, output: Any) -> None:
        call.returned = (output,)

    def ended(self, call: _Call, output: Any) -> Any:
        self._record(call, Role.OUTPUT, leaves(output))
        if self._feed is None or (self._operators and not self._is_selected(call)):  # golden's selection is the same
            return None
        if call.returned and call.returned[0] is not output:
            name = call.name or "(root)"
            raise CaptureError(f"a forward hook on {name} replaces what the module returns, as --feed does; take the hook off")
        return self._feed.outputs(Place(self.step, call.name, call.index, Role.OUTPUT), output, call.lent)

    def left(self, call: _Call) -> None:
        """See no more of a call's operators and functions."""
        if call.operators is not None:
            call.operators.leave()
        if call.parent is None:
            self._functions.stop()

    def failed(self, error: Exception, name: str) -> None:
        """Note what goes wrong, or raise it if the model is fed."""
        place = f"step {self.step}, {name or '(root)'}"
        if self._feed is not None:
            self.listening = False
            self.failure = error if isinstance(error, AccucompareError) else _as_failure(error, place)
            raise self.failure from error
        self.errors.append(f"{place}: {type(error).__name__}: {error}")

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
        seen = self._seen[place] = self._seen.get(place, 0) + 1
        if seen > 1:
            path = f"{path}#{seen}"
        record = Record(  # by position as far as they are all given: it takes half as long
            0,
            self.step,
            call.name,
            call.index,
            role,
            path,
            self.records,
            operator or type(call.module).__name__,
            (call.name, call.index) if operator else call.parent,
            host.shape,
            host.dtype,
            host.layout,
            digest=host.digest,
            statistics=host.statistics,
            detail=host.detail,
            components=host.components,
            source_line=line,
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
    """Records the operators of one module call."""

    recorder: Recorder
    call: _Call

    def listening(self) -> bool:
        return self.recorder.is_running(self.call)

    def do(self, act: Callable[..., Any], *arguments: Any) -> Any:
        return self.recorder.run(act, self.call.name, arguments)

    def add(self, role: Role, path: str, value: Any, operator: str, line: str) -> None:
        self.recorder.add_operator(self.call, role, path, value, operator, line)


def _as_failure(error: Exception, place: str) -> CaptureError:
    return CaptureError(f"{place}: could not be fed: {type(error).__name__}: {error}")
