"""The owner of each gradient: module call and operator, output, or parameter.

When a module call ends, it owns the autograd nodes that lead to its outputs and are not older than
the call, except those of the calls inside it. Each gets a hook. Nothing is put into the graph, and
nothing in it is kept alive.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from accucompare.live.around import has_sharded_parameters
from accucompare.live.autograd.graph import (
    ACCUMULATES,
    ENTRANCE,
    PASSING_ON,
    Observer,
    entered,
    nodes_outside,
    observe_backward,
    observe_backward_no_more,
)
from accucompare.live.modules import Hook, Listener, Modules, Unsaved, in_backward
from accucompare.live.values import writes_into

#: The number of every node that accumulates a leaf's gradient.
_OF_LEAVES = (1 << 64) - 1

Grads = tuple[torch.Tensor | None, ...]
#: What stands for a module call; the listener chooses.
P = TypeVar("P")


class Parameter(NamedTuple):
    """A parameter under its first name, its module's name (``owner``), and its own name there."""

    name: str
    own: str
    owner: str
    tensor: torch.Tensor


class OperatorOfGradient(NamedTuple):
    """An operator that a module's own code called, known by the autograd node that it made.

    Attributes:
        name, number: of the node; the name is such as ``LogBackward0``.
        near: the child called last before it, as ``after fc1``; else the next, as ``before fc1``.
        line: the source line that called it, if that was asked for.
    """

    name: str
    near: str
    line: str
    number: int


class GradientListener(Generic[P]):
    """Is called with the gradients of a backward; subclasses say what follows. It changes none."""

    def __init__(self, listener: Listener[Any], modules: Modules, distributed: bool) -> None:
        self.parameters = list(parameters_of(modules))
        self.backwards = 0  # how many there were in this step
        # by a node's number, the calls that use its output, if lines were asked for
        self.uses: defaultdict[int, list[P]] = defaultdict(list)
        # runs the work of hooks, and is idle while gradients are not wanted
        self._listener = listener
        self._modules = modules
        self._distributed = distributed  # whether gradients of what FSDP gathers are included
        # by id: what takes the place of sharded parameters, and has a hook
        self._gathered: dict[int, torch.Tensor] = {}
        self._followed: set[int] = set()  # numbers of nodes that have a hook
        # of the running outermost call: by the number of a node that an inner call has made, the
        # nodes from before that call to which the inner call's lead
        self._behind: dict[int, list[Any]] = {}
        self._end_queued = False  # whether the end of the running backward will be seen
        self._task = -1  # autograd's number of the running backward
        # by outermost call: the numbers of the nodes that it has made, from and to
        self._calls: list[tuple[int, int]] = []
        # for a backward that makes a graph: its thread, and the number of the first node it makes
        self._second: tuple[int, int] = (-1, 0)
        # numbers of the nodes at which the running backward enters the model; empty if unknown
        self._entered: set[int] = set()
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._observer = Observer(self._begins)

    # for subclasses

    def backward_began(self, outside: Sequence[Any]) -> None:
        """A backward begins. ``outside``: the nodes before the model's, such as a loss's."""

    def operator_gradient(
        self, call: P, operator: OperatorOfGradient, grad_inputs: Grads, grad_outputs: Grads
    ) -> None:
        """The backward of an operator has run.

        Args:
            call: whose code called the operator.
            grad_inputs: what it gives, one for each of the node's ``next_functions``.
            grad_outputs: what arrived at its outputs.
        """

    def second_gradient(
        self, call: P, operator: OperatorOfGradient, grad_inputs: Grads, grad_outputs: Grads
    ) -> None:
        """The same in a second backward, of operators called to compute a gradient of ``call``."""

    def output_gradient(self, call: P, path: str, grad: torch.Tensor, from_outside: bool) -> None:
        """The whole gradient of an output, after its hooks.

        ``from_outside``: whether a part may come from outside the model, or from a hook.
        """

    def parameter_gradient(self, parameter: Parameter, grad: torch.Tensor, hooked: bool) -> None:
        """This backward's gradient, before the user's hooks. ``hooked``: whether there are any."""

    def hooked_gradient(self, parameter: Parameter, grad: torch.Tensor) -> None:
        """What the user's hooks have made of it."""

    def backward_ended(self) -> None:
        """All gradients are accumulated, and summed over ranks."""

    # lifetime

    def install(self) -> None:
        """Put hooks on the parameters, and listen to backwards that begin."""
        for parameter in self.parameters:
            if (
                not is_lazy(parameter.tensor)
                and parameter.tensor.requires_grad
                and type(parameter.tensor.data) is torch.Tensor
            ):
                hook = functools.partial(self._guarded, self._parameter_gradient, parameter)
                self._handles.append(register_first_hook(parameter.tensor, ReadingHook(hook)))
        observe_backward(self._observer)
        if self._distributed and has_sharded_parameters(self._modules):
            for name in {parameter.owner for parameter in self.parameters}:
                gather = Hook(self._listener, functools.partial(self._gather, name), name)
                self._handles.append(self._modules.named[name].register_forward_pre_hook(gather))

    def remove(self) -> None:
        """Take the hooks off the parameters; those on nodes go with the graph."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._gathered.clear()
        observe_backward_no_more(self._observer)

    def begin(self) -> None:
        """An outermost call begins: no backward is running."""
        self._end_queued = False
        self._followed.clear()
        self._behind.clear()
        self.uses.clear()

    def over(self) -> None:
        """An outermost call is over, even if it raised: keep nothing of its graph."""
        self._behind.clear()

    def end(self, first: int) -> bool:
        """An outermost call ends. Returns whether it made autograd nodes, from ``first`` on."""
        last = torch._C._autograd._get_sequence_nr()
        if last > first and torch.is_grad_enabled():
            self._calls.append((first, last))
            return True
        return False

    def forget(self) -> None:
        self._calls.clear()
        self._entered = set()
        self.backwards = 0

    # hooks

    def follow(
        self,
        call: P,
        first: int,
        children: Sequence[tuple[int, str]],
        outputs: Iterable[torch.Tensor],
        line: Callable[[Any], str] | None = None,
    ) -> None:
        """Put hooks on the autograd nodes that a call has made.

        Args:
            call: the call, which ends.
            first: the lowest number that its nodes may have.
            children: the calls in it, each with the number of the first node after it.
            line: gives a node's source line. If given, nodes that only pass a gradient on get a
                hook, too, and ``uses`` is filled.
        """
        nodes = [tensor.grad_fn for tensor in outputs]
        visited: set[int] = set()
        before_call: list[Any] = []
        crossed: set[int] = set()  # ids of lists in _behind
        while nodes:
            node = nodes.pop()
            if node is None or (number := node._sequence_nr()) in visited:
                continue
            if number < first:
                before_call.append(node)
                continue
            if number == _OF_LEAVES:
                continue
            visited.add(number)
            # an inner call's; this call's own may lie behind it
            if (behind := self._behind.get(number)) is not None:
                if id(behind) not in crossed:
                    crossed.add(id(behind))
                    nodes += behind
                continue
            nodes += [following for following, _ in node.next_functions]
            if number in self._followed:
                continue
            self._followed.add(number)
            if line is not None:
                for following, _ in node.next_functions:
                    if following is not None:
                        self.uses[following._sequence_nr()].append(call)
            name = node.name()
            if line is not None or name not in PASSING_ON:
                before = [name for after, name in children if after <= number]
                near = (
                    f"after {before[-1]}"
                    if before
                    else f"before {children[0][1]}"
                    if children
                    else ""
                )
                operator = OperatorOfGradient(
                    name, near, line(node) if line is not None else "", number
                )
                self.hook(node, functools.partial(self._operator_gradient, call, operator))
        if not in_backward():  # a second run's graph must not outlive it
            self._behind |= dict.fromkeys(visited, before_call)

    def expect(self, call: P, path: str, output: torch.Tensor) -> None:
        """Put a hook on an output's node: gradients arrive there after all hooks of the tensor."""
        if output.grad_fn is not None:
            grad_outputs = functools.partial(
                self._output_gradient,
                call,
                path,
                output.grad_fn._sequence_nr(),
                weakref.ref(output),
            )
            hook = functools.partial(self._guarded, grad_outputs, output.output_nr)
            output.grad_fn.register_prehook(hook)

    def hook(self, node: Any, act: Callable[..., None]) -> None:
        """Put a hook on a node: ``act`` is called with what its backward gives and what arrived."""
        node.register_hook(functools.partial(self._guarded, act))

    def _guarded(self, act: Callable[..., None], *arguments: Any) -> None:
        if not self._listener.idle():
            self._listener.run(self._run, "a gradient", (act, *arguments))

    def _run(self, act: Callable[..., None], *arguments: Any) -> None:
        if not self._end_queued or self._was_given_up():
            self._end_queued, self._task = True, torch._C._current_graph_task_id()
            self.backwards += 1
            # DistributedDataParallel sums gradients in a callback that it queues from a callback;
            # only one queued from a callback comes after that
            _queue(functools.partial(_queue, functools.partial(self._guarded, self._ended)))
        act(*arguments)

    def _ended(self) -> None:
        self._end_queued = False
        self.backward_ended()

    def _was_given_up(self) -> bool:
        """Whether the running backward has raised, and this is a new one, not one nested in it."""
        if torch._C._current_graph_task_id() == self._task:
            return False
        running, frame = 0, sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            running += frame.f_code.co_name == ENTRANCE
        return running == 1

    def _begins(self, roots: Any, seeds: Any, makes_graph: bool) -> None:
        if not self._listener.idle():
            self._listener.run(self._backward_began, "a backward", (roots, makes_graph))

    def _backward_began(self, roots: Any, makes_graph: bool) -> None:
        nodes = nodes_outside(roots, self._is_the_models)
        self.backward_began(nodes)
        if torch._C._current_graph_task_id() < 0:  # else a checkpoint's, nested
            self._entered = (
                entered(roots, nodes, self._is_the_models) if len(self._calls) == 1 else set()
            )
        if makes_graph:
            self._second = threading.get_ident(), torch._C._autograd._get_sequence_nr()

    def _is_the_models(self, number: int) -> bool:
        return number in self._followed or any(
            first <= number < last for first, last in self._calls
        )

    def _operator_gradient(
        self, call: P, operator: OperatorOfGradient, grad_inputs: Grads, grad_outputs: Grads
    ) -> None:
        self.operator_gradient(call, operator, grad_inputs, grad_outputs)
        thread, first = self._second
        # nodes are numbered by thread
        if not torch.is_grad_enabled() or thread != threading.get_ident():
            return
        # what this backward has made, for a second one through it
        waiting = [grad.grad_fn for grad in grad_inputs if grad is not None]
        while waiting:
            node = waiting.pop()
            if (
                node is None
                or node.name() == ACCUMULATES
                or node._sequence_nr() < first
                or node._sequence_nr() in self._followed
            ):
                continue
            self._followed.add(node._sequence_nr())
            waiting += [following for following, _ in node.next_functions]
            if node.name() not in PASSING_ON:
                again = OperatorOfGradient(node.name(), operator.near, "", node._sequence_nr())
                self.hook(node, functools.partial(self.second_gradient, call, again))

    def _output_gradient(
        self,
        call: P,
        path: str,
        number: int,
        output: weakref.ref[torch.Tensor],
        output_number: int,
        grads: Grads,
    ) -> None:
        grad = grads[output_number]
        if grad is not None:
            from_outside = (
                not self._entered or number in self._entered or has_foreign_hooks(output())
            )
            self.output_gradient(call, path, grad, from_outside)

    def _parameter_gradient(self, parameter: Parameter, grad: torch.Tensor) -> None:
        hooked = has_foreign_hooks(parameter.tensor)
        self.parameter_gradient(parameter, grad, hooked)
        if hooked:
            node = torch.autograd.graph.get_gradient_edge(parameter.tensor).node
            handles: list[Any] = []
            handles.append(
                node.register_prehook(
                    functools.partial(self._guarded, self._hooked_gradient, parameter, handles)
                )
            )

    def _hooked_gradient(
        self, parameter: Parameter, handles: list[Any], grads: tuple[torch.Tensor, ...]
    ) -> None:
        handles.pop().remove()
        self.hooked_gradient(parameter, grads[0])

    def _gather(self, name: str, module: nn.Module, args: Any) -> None:
        """Put hooks on what FSDP puts in place of parameters: gradients of this rank, unsummed."""
        for parameter in self.parameters:
            gathered = getattr(module, parameter.own, None) if parameter.owner == name else None
            if (
                not isinstance(gathered, torch.Tensor)
                or gathered is parameter.tensor
                or id(gathered) in self._gathered
            ):
                continue
            if gathered.requires_grad and type(gathered.data) is torch.Tensor:
                hook = functools.partial(self._guarded, self._parameter_gradient, parameter)
                handle = gathered.register_hook(ReadingHook(hook))  # type: ignore[no-untyped-call]
                # FSDP2 uses the same tensor again; FSDP1's are views, new in each call
                if gathered.is_leaf:
                    self._gathered[id(gathered)] = gathered
                    self._handles.append(handle)


class ReadingHook(Unsaved):
    """A tensor's hook that only reads the gradient, and is not saved with the tensor."""

    __torch_unserializable__ = True

    def __init__(self, act: Callable[[torch.Tensor], None]) -> None:
        self._act = act

    def __call__(self, grad: torch.Tensor) -> None:
        self._act(grad)


def has_foreign_hooks(tensor: torch.Tensor | None) -> bool:
    """Whether the user's hooks may change a tensor's gradient. FSDP removes a tensor's hooks."""
    hooks: Any = getattr(tensor, "_backward_hooks", None) or {}
    return any(not isinstance(hook, ReadingHook) for hook in hooks.values())


def register_first_hook(
    tensor: torch.Tensor, act: Callable[[torch.Tensor], Any]
) -> torch.utils.hooks.RemovableHandle:
    """Register a tensor's hook that is called before its present ones."""
    handle: RemovableHandle = tensor.register_hook(act)  # type: ignore[no-untyped-call]
    hooks: Any = tensor._backward_hooks
    others = [(key, hook) for key, hook in hooks.items() if key != handle.id]
    # autograd calls hooks in the order of insertion, whatever the OrderedDict's order
    for key, _ in others:
        del hooks[key]
    hooks.update(others)
    return handle


def _queue(act: Callable[[], None]) -> None:
    """Call ``act`` when the running backward is over."""
    torch.autograd.Variable._execution_engine.queue_callback(act)


def parameters_of(modules: Modules) -> Iterator[Parameter]:
    seen = set()
    for name, module in modules.named.items():
        for own, tensor in module._parameters.items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield Parameter(f"{name}.{own}" if name else own, own, name, tensor)


def stepped_by(optimizer: Any) -> dict[int, torch.Tensor]:
    """What an optimizer updates, by id."""
    return {id(tensor): tensor for group in optimizer.param_groups for tensor in group["params"]}


def gradient_state(parameter: torch.Tensor) -> tuple[int, int]:
    """Which tensor a parameter's gradient is, and its count of writes."""
    return id(parameter.grad), -1 if parameter.grad is None else writes_into(parameter.grad)
