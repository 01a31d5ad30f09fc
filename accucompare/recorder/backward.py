"""Recording the backward: the gradients at the outputs, the inputs and the parameters of every module call."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import torch

from accucompare.bundle.records import Role
from accucompare.live.backward import Edge, GradientHook, Span, Spans, Sum, edge_of, edge_to, edges_of
from accucompare.live.graph import Observer, observe, observe_no_more, reachable
from accucompare.live.hooks import Call
from accucompare.live.names import Modules

C = TypeVar("C", bound=Call)


class Guard(Protocol):
    """What the hooks of a backward ask of the recorder."""

    listening: bool

    def run(self, act: Callable[..., Any], name: str, arguments: tuple[Any, ...]) -> Any:
        """Do what a hook does, one thread at a time."""


@dataclass
class _Running:
    """A backward that is running: what is to be ended with it."""

    handles: list[Any] = field(default_factory=list)
    sums: dict[tuple[int, Role, str], Sum] = field(default_factory=dict)  # by a call's id, role and path
    used_inside: set[tuple[int, Edge]] = field(default_factory=set)  # by a span's id: outputs that were used before the call ended


class Backward(Generic[C]):
    """The backward's part of a recorder.

    Of each module call it records ``grad_output``, the whole gradient that arrives at an output; ``grad_input``, what this call adds to
    the gradient of an input; and ``call_grad``, what it adds to that of a parameter. The path of the last is the parameter's name in its
    module; of one that another module has under its first name, ``/`` and that name. Nothing is put into autograd's graph.

    Attributes:
        count: how many backwards there were.
        other_threads: whether calls were made in other threads than the first one's, whose gradients are not recorded.
        late: how many gradients arrived at calls of a step that had ended, and are not recorded.
    """

    def __init__(self, modules: Modules, guard: Guard, record: Callable[[C, Role, str, torch.Tensor], None]) -> None:
        self.count = 0
        self.other_threads = False
        self.late = 0
        self._guard = guard
        self._record = record
        self._spans: Spans[C] = Spans()
        self._thread: int | None = None
        self._running: list[_Running] = []  # one inside the other, as a reentrant checkpoint's is
        self._handles: list[Any] = []
        self._observer = Observer(self._begins, self._ends)
        self._parameters: dict[int, str] = {}
        self._own: dict[tuple[str, int], str] = {}
        for name, module in modules.named.items():
            for own, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in self._parameters:
                    self._own[name, id(parameter)] = own
                    self._parameters[id(parameter)] = f"/{name}.{own}" if name else f"/{own}"

    def install(self) -> None:
        observe(self._observer)

    def remove(self) -> None:
        observe_no_more(self._observer)
        self.next_step()

    def next_step(self) -> None:
        self._spans.clear()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def began(self, call: C, outer: Span[C] | None, parts: Iterable[tuple[str, Any]]) -> Span[C] | None:
        """A call begins with these inputs; ``None`` if autograd does not follow it."""
        if not torch.is_grad_enabled():
            return None
        self._thread = self._thread or threading.get_ident()
        if self._thread != threading.get_ident():
            self.other_threads = True
            return None
        return self._spans.begin(call, outer, edges_of(parts))

    def ended(self, span: Span[C]) -> None:
        """A call ends; nodes made from now on are not its own. Can be called again."""
        self._spans.end(span)

    def notes(self) -> list[str]:
        """What is not recorded, one sentence each."""
        if not self.count:
            return ["no backward ran (a case needs a loss, and golden of --feed gradients), so no gradient is recorded"]
        found = ["calls were made in several threads; the gradients of the first one's are recorded"] if self.other_threads else []
        return found + ([f"{self.late} gradient(s) arrived after session.step(), and are not recorded"] if self.late else [])

    def gave(self, span: Span[C], parts: Iterable[tuple[str, Any]], exchange: Callable[[str, torch.Tensor], torch.Tensor] | None) -> None:
        """A call has given these.

        Args:
            span: of the call.
            parts: of its outputs.
            exchange: gives what the backward goes on with in place of the gradient that arrives at a path.
        """
        parts = list(parts)
        self._spans.give(span, edges_of(parts))
        for path, part in parts:
            if isinstance(part, torch.Tensor) and (edge := edge_of(part)) is not None:
                arrived = functools.partial(self._guarded, self._arrived, span.call, path, span, edge, exchange)
                handle = part.register_hook(GradientHook(arrived))  # type: ignore[no-untyped-call]
                if part.is_leaf:  # which outlives its graph
                    self._handles.append(handle)

    def used_inside(self, span: Span[C], path: str) -> bool:
        """Whether the running backward has gradients of an output from the call itself, too."""
        return bool(self._running) and any(
            path in paths and (id(span), edge) in self._running[-1].used_inside for edge, paths in span.outputs.items()
        )

    def _guarded(self, act: Callable[..., Any], call: C, *arguments: Any) -> Any:
        return self._guard.run(act, call.name, (call, *arguments)) if self._guard.listening else None

    def _arrived(
        self,
        call: C,
        path: str,
        span: Span[C],
        edge: Edge,
        exchange: Callable[[str, torch.Tensor], torch.Tensor] | None,
        grad: torch.Tensor | None,
    ) -> torch.Tensor | None:
        if grad is None or not self._running or (id(span), edge) in self._running[-1].used_inside:
            return None
        if span not in self._spans:  # of a step that has ended
            self.late += 1
            return None
        self._record(call, Role.GRAD_OUTPUT, path, grad)
        return exchange and exchange(path, grad)

    def _begins(self, roots: Any, makes_graph: bool) -> None:
        running = _Running()
        self._running.append(running)
        if self._guard.listening:
            self.count += 1
            self._guard.run(self._follow, "a backward", (roots, running))

    def _follow(self, roots: Any, running: _Running) -> None:
        """Put hooks on the nodes that give something to an input or a parameter of the call that made them."""
        uses: dict[tuple[int, Edge], tuple[Span[C], list[tuple[Any, int]]]] = {}  # of outputs, after the calls that gave them
        for node in reachable(roots):
            made = node._sequence_nr()
            span = self._spans.of(made)
            sums = []
            for index, (following, number) in enumerate(node.next_functions):
                if following is None:
                    continue
                edge = edge_to(following, number)
                for giver in self._spans.giving(edge):
                    if made < giver.last:
                        running.used_inside.add((id(giver), edge))
                    else:
                        uses.setdefault((id(giver), edge), (giver, []))[1].append((node, index))
                if span is not None:
                    sums += [(index, each) for each in self._sums(span, edge, running)]
            if span is not None and sums:
                self._hook(node, span.call, sums, running)
        for key in running.used_inside & uses.keys():  # what arrives there is not all from outside
            giver, nodes = uses[key]
            for path in giver.outputs[key[1]]:
                total = self._sum(giver.call, Role.GRAD_OUTPUT, path, running)
                for node, index in nodes:
                    self._hook(node, giver.call, [(index, total)], running)

    def _hook(self, node: Any, call: C, sums: list[tuple[int, Sum]], running: _Running) -> None:
        for _, each in sums:
            each.expect()
        running.handles.append(node.register_hook(functools.partial(self._guarded, self._add, call, sums)))

    def _sums(self, span: Span[C], edge: Edge, running: _Running) -> Iterable[Sum]:
        """What a gradient that a node of a call gives along an edge belongs to."""
        for each in span.chain():
            for path in each.inputs.get(edge, ()):
                yield self._sum(each.call, Role.GRAD_INPUT, path, running)
        if edge[0] < 0 and edge[1] in self._parameters:
            path = self._own.get((span.call.name, edge[1])) or self._parameters[edge[1]]
            yield self._sum(span.call, Role.CALL_GRAD, path, running)

    def _sum(self, call: C, role: Role, path: str, running: _Running) -> Sum:
        key = id(call), role, path
        if key not in running.sums:
            running.sums[key] = Sum(functools.partial(self._whole, call, role, path))
        return running.sums[key]

    def _add(self, call: C, sums: list[tuple[int, Sum]], given: tuple[Any, ...], arrived: tuple[Any, ...]) -> None:
        """A node has run; ``given`` is what it gives on, one entry for each of its ``next_functions``."""
        for index, each in sums:
            each.add(given[index])

    def _whole(self, call: C, role: Role, path: str, total: torch.Tensor | None) -> None:
        if total is not None:
            self._record(call, role, path, total)

    def _ends(self) -> None:
        if not self._running:
            return
        running = self._running.pop()
        for handle in running.handles:
            handle.remove()
        if self._guard.listening:
            for each in running.sums.values():
                if each.waits:  # nodes that a backward with inputs= left out
                    self._guard.run(each.end, "a backward", ())
