"""Recording the backward: gradients at the outputs, inputs and parameters of every module call."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import torch

from accucompare.bundle.format import Role
from accucompare.live.around import has_sharded_parameters
from accucompare.live.autograd import (
    OPEN,
    WRITES_INTO_VIEW,
    Edge,
    GradientHook,
    Graph,
    Observer,
    Span,
    Spans,
    Sum,
    backward_of,
    cast_parameter,
    edge_of,
    edge_to,
    has_foreign_hooks,
    hook_arriving,
    made_by_backward,
    observe_backward,
    observe_backward_no_more,
    parameters_of,
    reachable,
    seeded,
)
from accucompare.live.modules import Call, Modules
from accucompare.live.values import added
from accucompare.recorder.feeding import IN_PLACE_OF, is_in_place
from accucompare.recorder.recording.contributions import (
    Cast,
    Exchanged,
    Gift,
    NodeOutput,
    Running,
    Uses,
    add_as,
)
from accucompare.recorder.recording.guard import Guard, guarded
from accucompare.recorder.recording.nodes import Nodes

_C = TypeVar("_C", bound=Call)

#: FSDP gives calls views of one flat parameter, whose gradients cannot be told apart.
_FLAT = "FullyShardedDataParallel"


class Backward(Generic[_C]):
    """The backward's part of a recorder.

    For each module call it records ``grad_output``, the whole gradient that arrives at an output;
    ``grad_input``, what this call adds to the gradient of an input; and ``call_grad``, what it adds
    to the gradient of a parameter. The path of a ``call_grad`` is the parameter's name in its
    module. A shared parameter that was first met in another module has ``/`` and its full name
    there. Nothing is put into autograd's graph.

    Attributes:
        other_threads: whether calls of one step were made in several threads. Gradients of such
            steps are not recorded: autograd numbers the nodes of each thread separately.
        late: gradients that arrived after their step had ended; they are not recorded.
        past: steps that had calls and backwards, but no backward through a call.
        apart: gradients whose parts lie differently on the ranks.
    """

    def __init__(
        self,
        modules: Modules,
        guard: Guard,
        record: Callable[[_C, Role, str, torch.Tensor], None],
        nodes: Nodes[_C] | None = None,
    ) -> None:
        """``nodes`` also records the autograd nodes of some calls."""
        self.count = self.late = self.past = self.apart = 0
        self.other_threads = False
        # whether a backward of this step went through a call; None before the first
        self._reached: bool | None = None
        self._guard = guard
        self._record = record
        self._nodes = nodes
        self._spans: Spans[_C] = Spans()
        # by thread: spans of calls that are run again, until the backward through them begins
        self._again: dict[int, Spans[_C]] = {}
        self._threads: set[int] = set()  # in which calls of this step were made
        self._second = False  # a backward made a graph, which another may go through
        self._running: list[Running] = []  # nested, for reentrant checkpoints
        self._handles: list[Any] = []
        self._outputs: dict[NodeOutput, weakref.ref[torch.Tensor]] = {}
        # outputs on which the user had put hooks by the time the call returned them
        self._hooked: set[NodeOutput] = set()
        self._changing: dict[str, None] = {}  # names of modules that use such an output themselves
        self._overwritten: dict[str, None] = {}  # of modules that returned parts of a tensor
        self._observer = Observer(self._begins, self._ends)
        # by name, it and its children, whose weights it may use without a call; of sharded models
        self._near: dict[str, list[tuple[str, Any]]] = {}
        for name, module in modules.named.items() if has_sharded_parameters(modules) else ():
            for holder in {name, name.rpartition(".")[0]}:
                self._near.setdefault(holder, []).append((name, module))
        self.flat = any(type(wrapper).__name__ == _FLAT for wrapper in modules.wrappers)
        # by id: what takes the place of sharded parameters
        self._gathered: dict[int, torch.Tensor] = {}
        self._parameters: dict[int, str] = {}
        self._own: dict[tuple[str, int], str] = {}
        for each in parameters_of(modules):
            self._own[each.owner, id(each.tensor)] = each.own
            self._parameters[id(each.tensor)] = f"/{each.name}"

    def install(self) -> None:
        observe_backward(self._observer)

    def remove(self) -> None:
        observe_backward_no_more(self._observer)
        self.next_step()

    def next_step(self) -> None:
        self.past += self._reached is False
        self._reached = None
        self._spans.clear()
        self._again.clear()
        self._threads.clear()
        self._outputs.clear()
        self._hooked.clear()
        if self._nodes is not None:
            self._nodes.next_step()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def call_began(
        self, call: _C, outer: Span[_C] | None, parts: Iterable[tuple[str, Any]]
    ) -> Span[_C] | None:
        """A call that autograd follows begins; ``None`` if its gradients are not recorded."""
        for name, module in self._near.get(call.name, ()):
            self._gather(name, module)
        if self._again and (again := self._again.get(threading.get_ident())) is not None:
            return again.begin(call, outer, parts)
        self._threads.add(threading.get_ident())
        if len(self._threads) > 1:
            self.other_threads = True
            return None
        return self._spans.begin(call, outer, parts)

    def _gather(self, name: str, module: Any) -> None:
        """Learn what FSDP puts in place of parameters: gradients of this rank, not yet summed."""
        for own, tensor in module._parameters.items():
            if tensor is not None and tensor.is_leaf and id(tensor) not in self._parameters:
                self._gathered[id(tensor)] = tensor
                self._own[name, id(tensor)] = own
                self._parameters[id(tensor)] = f"/{name}.{own}" if name else f"/{own}"

    def run_again(self) -> None:
        """A backward on this thread will run calls whose first run autograd did not follow."""
        self._again[threading.get_ident()] = Spans()

    @property
    def runs_again(self) -> bool:
        """Whether calls that begin now on this thread are run again."""
        return threading.get_ident() in self._again

    def span_ended(self, span: Span[_C]) -> None:
        """A call ends; later nodes are not its own. Can be called twice."""
        self._spans.end(span)

    def notes(self) -> list[str]:
        found = []
        if self.other_threads:
            found.append(
                "calls of one step were made in several threads; gradients of such steps are not"
                " recorded"
            )
        if self._changing:
            found.append(
                "an output that its module uses, too, has a hook of your own"
                f" ({', '.join(list(self._changing)[:3]) or '(root)'}): its grad_output is what"
                " arrives from outside before that hook, and what the hook changes is not fed"
            )
        if self._overwritten:
            found.append(
                "a part of a tensor, which a module returned, was written into later"
                f" ({', '.join(list(self._overwritten)[:3]) or '(root)'}): its grad_output is not"
                " recorded"
            )
        if self.flat and self.count:
            found.append(
                "what a call adds to the gradient of a parameter (call_grad) is not recorded under"
                f" {_FLAT}"
            )
        if self.past:
            found.append(
                f"in {self.past} step(s) no backward went through a call of the model: the loss is"
                " of none of its outputs, or of detached ones; those steps have no gradients of"
                " layers"
            )
        if self.apart:
            found.append(
                f"{self.apart} gradient(s) come from parts that lie differently on the ranks; they"
                " are not recorded, for adding the parts would wait for other ranks"
            )
        if self.late:
            found.append(
                f"{self.late} gradient(s) arrived after session.step(), and are not recorded"
            )
        return found

    def gave(
        self,
        span: Span[_C],
        parts: Iterable[tuple[str, Any]],
        exchange: Callable[[str, torch.Tensor], torch.Tensor] | None,
    ) -> None:
        """A call has given outputs. ``exchange`` maps a path and the gradient that arrives there to
        the one to go on with."""
        parts = list(parts)
        spans = self._again.get(threading.get_ident(), self._spans)
        spans.give(span, parts, [path for path, part in parts if is_in_place(part)])
        for path, part in parts:
            if isinstance(part, torch.Tensor) and (edge := edge_of(part)) is not None:
                self._outputs[id(span), edge] = weakref.ref(part)
                if has_foreign_hooks(part):
                    self._hooked.add((id(span), edge))
                arrived = functools.partial(
                    guarded, self._guard, self._arrived, span.call.name, path, span, edge, exchange
                )
                if part.is_leaf:  # a leaf outlives its graph
                    hook = GradientHook(arrived)
                    self._handles.append(part.register_hook(hook))  # type: ignore[no-untyped-call]
                else:
                    hook_arriving(part, arrived)

    def passed_on(self, span: Span[_C], pairs: Iterable[tuple[Any, torch.Tensor]]) -> None:
        """A fed call returned its own input: gradients of the caller's tensor reach inner calls,
        too.

        Without a feed, a tensor that inner calls pass on unchanged is one tensor, so its gradient
        is recorded for each of them. ``pairs``: (what the call returned, the caller's own tensor).
        """
        spans = self._again.get(threading.get_ident(), self._spans)
        for returned, own in pairs:
            edge = edge_of(returned) if isinstance(returned, torch.Tensor) else None
            if edge is None:
                continue
            for inner in list(spans.giving(edge)):
                if inner is not span and any(each is span for each in inner.chain()):
                    self.gave(inner, [(path, own) for path in inner.outputs[edge]], None)

    def from_outside(
        self,
        span: Span[_C],
        path: str,
        grad: torch.Tensor,
        exchange: Callable[[str, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """What a fed backward goes on with in place of an output's gradient from outside the call:
        itself, unless the call also uses the output. Then part of what arrives is from inside."""
        running = self._running_through(span)
        used = running is not None and any(
            path in paths and (id(span), edge) in running.used_inside
            for edge, paths in span.outputs.items()
        )
        return exchange(path, grad) if used else grad

    def _running_through(self, span: Span[_C]) -> Running | None:
        """The backward that runs through a call; ``None`` if the call's step has ended."""
        return next((running for running in reversed(self._running) if span in running.spans), None)

    def _arrived(
        self,
        path: str,
        span: Span[_C],
        edge: Edge,
        exchange: Callable[[str, torch.Tensor], torch.Tensor] | None,
        grad: torch.Tensor | None,
    ) -> torch.Tensor | None:
        running = self._running_through(span)
        if running is None:
            self.late += bool(self._running)
            return None
        if len(self._threads) > 1:
            return None
        if grad is None or (id(span), edge) in running.used_inside:
            return None
        self._record(span.call, Role.GRAD_OUTPUT, path, grad)
        return exchange and exchange(path, grad)

    def _begins(self, roots: Any, seeds: Any, makes_graph: bool) -> None:
        again = (
            self._again.pop(threading.get_ident(), None)
            if torch._C._current_graph_task_id() >= 0
            else None
        )
        running = Running(self._spans if again is None else again, Graph() if makes_graph else None)
        self._running.append(running)
        self._second = self._second or makes_graph
        if self._guard.listening:
            self.count += 1
            self._guard.run(self._follow, "a backward", (roots, seeds, running))

    def _follow(self, roots: Any, seeds: Any, running: Running) -> None:
        """Put hooks on the nodes that give something to an input or a parameter of their call."""
        if len(self._threads) > 1:
            return
        self._reached = self._reached or not running.spans
        uses: dict[NodeOutput, Uses[_C]] = {}  # of outputs that are used after their call ended
        casts: dict[int, Cast[_C]] = {}  # by the number of the node
        for edge, seed in seeded(roots, seeds):
            for giver in running.spans.giving(edge):
                uses.setdefault((id(giver), edge), Uses(giver)).seeds.append(seed)
        for node in reachable(roots):
            made, span = self._made(node, running)
            if self._nodes is not None and span is not None and made != OPEN:
                running.handles += self._nodes.follow(node, made, span.call)
            gifts: list[Gift] = []
            for index, (following, number) in enumerate(node.next_functions):
                # its gradient is not recorded
                if following is None or (self._second and made_by_backward(following)):
                    continue
                edge = edge_to(following, number)
                for giver in running.spans.giving(edge):
                    if made < giver.last or (
                        made == OPEN
                        and span is not None
                        and any(each is giver for each in span.chain())
                    ):
                        running.used_inside.add((id(giver), edge))
                    else:
                        uses.setdefault((id(giver), edge), Uses(giver)).nodes.append((node, index))
                for giver in running.spans.written_into(node, made, edge):
                    self._written_later(giver, edge, (node, index), uses, running)
                if span is not None:
                    gifts += self._to_inputs(span, node, index, edge, running)
                gifts += self._to_parameters(span, node, index, edge, casts, running)
            if gifts:
                self._hook(node, "" if span is None else span.call.name, gifts, running)
            self._reached = self._reached or span is not None
        self._reached = self._reached or bool(uses)
        for cast in casts.values():
            self._cast(cast, running)
        # only a part of what arrives there is from outside
        for key in running.used_inside & uses.keys() - running.lost:
            self._outside(uses[key], key[1], running)

    def _made(self, node: Any, running: Running) -> tuple[int, Span[_C] | None]:
        """The number of a node and the innermost call's span. Nodes of a backward come last."""
        if self._second and made_by_backward(node):
            made, span = OPEN, backward_of(node)
        else:
            made = node._sequence_nr()
            span = running.spans.of(made)
        if running.graph is not None:
            running.graph.add(node)
            tell = functools.partial(self._tell, running.graph, span)
            running.handles.append(
                node.register_hook(functools.partial(guarded, self._guard, tell, "a backward"))
            )
        return made, span

    def _tell(
        self,
        graph: Graph[_C],
        span: Span[_C] | None,
        given: tuple[Any, ...],
        arrived: tuple[Any, ...],
    ) -> None:
        graph.tell(None, arrived)  # autograd makes the sums itself
        graph.tell(span, given)

    def _hook(self, node: Any, name: str, gifts: list[Gift], running: Running) -> None:
        """Add what a node of the module ``name`` gives, when it has run."""
        for gift in gifts:
            gift.total.expect()
        running.handles.append(
            node.register_hook(functools.partial(guarded, self._guard, self._add, name, gifts))
        )

    def _to_inputs(
        self, span: Span[_C], node: Any, index: int, edge: Edge, running: Running
    ) -> Iterable[Gift]:
        """Parts of the input gradients of the node's call and those around it, from one edge."""
        for each in span.chain():
            for path in each.inputs.get(edge, ()):
                yield Gift(index, self._sum(each.call, Role.GRAD_INPUT, path, running))
            if index == 0 and edge in each.views and node.name() == WRITES_INTO_VIEW:
                for path, cut in each.views[edge]:
                    yield Gift(index, self._sum(each.call, Role.GRAD_INPUT, path, running), cut)

    def _to_parameters(
        self,
        span: Span[_C] | None,
        node: Any,
        index: int,
        edge: Edge,
        casts: dict[int, Cast[_C]],
        running: Running,
    ) -> Iterable[Gift]:
        """Parts of a parameter's gradient, for the innermost call that was not given it."""
        owner = None if span is None else span.owner(edge)
        following = node.next_functions[index][0]
        if edge[0] >= 0:
            parameter = cast_parameter(following)
            if parameter is not None and id(parameter) in self._parameters:
                casts.setdefault(edge[0], Cast(parameter)).users.append((owner, node, index))
        elif edge[1] in self._parameters and (parameter := cast_parameter(node)) is not None:
            casts.setdefault(node._sequence_nr(), Cast(parameter)).maker = owner, node, index
        elif edge[1] in self._parameters and owner is not None:
            yield Gift(index, self._of_parameter(owner.call, edge[1], running))

    def _cast(self, cast: Cast[_C], running: Running) -> None:
        """Put hooks on the users of a parameter's cast; on its maker if no other call uses it."""
        maker, node, index = cast.maker or (None, None, 0)
        if all(owner is maker for owner, *_ in cast.users):
            if maker is not None:
                self._hook(
                    node,
                    maker.call.name,
                    [Gift(index, self._of_parameter(maker.call, id(cast.parameter), running))],
                    running,
                )
            return
        # by the id of the call's span; added up in the type in which autograd does it
        parts: dict[int, Sum] = {}
        for owner, node, index in cast.users:
            if owner is None:
                continue
            if id(owner) not in parts:
                total = self._of_parameter(owner.call, id(cast.parameter), running)
                total.expect()
                parts[id(owner)] = self._new_sum(
                    functools.partial(add_as, total, cast.parameter.dtype)
                )
                running.parts.append(parts[id(owner)])
            self._hook(node, owner.call.name, [Gift(index, parts[id(owner)])], running)

    def _outside(self, uses: Uses[_C], edge: Edge, running: Running) -> None:
        """Record what arrives from outside at an output that its own call uses, too."""
        giver = uses.giver
        output = self._outputs.get((id(giver), edge))
        if (id(giver), edge) in self._hooked or (
            output is not None and has_foreign_hooks(output())
        ):
            self._changing[giver.call.name] = None
        for path in giver.outputs[edge]:
            total = self._sum(giver.call, Role.GRAD_OUTPUT, path, running)
            for _ in uses.seeds:
                total.expect()
            for node, index in uses.nodes:
                kind = Exchanged if node.name() == IN_PLACE_OF else Gift
                self._hook(node, giver.call.name, [kind(index, total)], running)
            for seed in uses.seeds:  # autograd begins its sum with them
                total.add(seed)

    def _written_later(
        self,
        giver: Span[_C],
        base: Edge,
        writer: tuple[Any, int],
        uses: dict[NodeOutput, Uses[_C]],
        running: Running,
    ) -> None:
        """An output is a view of a tensor that was written into after the call: what comes from
        later users arrives at the writer, not at the output."""
        whole, (node, index) = giver.has_alone(base), writer
        for path, cut in giver.given[base]:
            own = next(edge for edge, paths in giver.outputs.items() if path in paths)
            running.used_inside.add((id(giver), own))
            if whole:
                total = self._sum(giver.call, Role.GRAD_OUTPUT, path, running)
                self._hook(node, giver.call.name, [Gift(index, total, cut)], running)
                uses.setdefault((id(giver), own), Uses(giver))
            else:
                running.lost.add((id(giver), own))
                self._overwritten[giver.call.name] = None

    def _of_parameter(self, call: _C, parameter: int, running: Running) -> Sum:
        path = self._own.get((call.name, parameter)) or self._parameters[parameter]
        return self._sum(call, Role.CALL_GRAD, path, running)

    def _sum(self, call: _C, role: Role, path: str, running: Running) -> Sum:
        key = id(call), role, path
        if key not in running.sums:
            running.sums[key] = self._new_sum(functools.partial(self._whole, call, role, path))
        return running.sums[key]

    def _new_sum(self, whole: Callable[[torch.Tensor | None], None]) -> Sum:
        return Sum(whole, functools.partial(added, lend=self._guard.lend))

    def _add(self, gifts: list[Gift], given: tuple[Any, ...], arrived: tuple[Any, ...]) -> None:
        """A node has run and gives ``given``, one entry for each of its ``next_functions``."""
        for gift in gifts:
            gift.total.add(gift.taken(given, arrived))

    def _whole(self, call: _C, role: Role, path: str, total: torch.Tensor | None) -> None:
        if total is not None:
            self._record(call, role, path, total)

    def _ends(self, given: Sequence[Any]) -> None:
        if not self._running:
            return
        running = self._running.pop()
        if running.graph is not None and self._guard.listening:
            running.graph.tell(None, given)
        for handle in running.handles:
            handle.remove()
        self.apart += sum(each.apart for each in running.sums.values())
        if self._guard.listening:
            for each in (*running.parts, *running.sums.values()):
                if each.waits:  # a backward with inputs= left out some of its nodes
                    self._guard.run(each.end, "a backward", ())
