"""Hearing a backward: every operator's gradient, with the module call that ran the operator forward, and every parameter's norm.

When a call ends, the autograd nodes that lead to its outputs and are not older than it are its own, but for those of the calls in it,
which ended before. Each gets a hook, which is told what its backward gives. Nothing is put into the graph, and nothing in it is kept.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from accucompare.findings.origins import OUTSIDE, Place, What
from accucompare.live.hooks import Hook
from accucompare.live.names import Modules
from accucompare.live.operator_calls import CALLERS
from accucompare.live.ranks import has_sharded_parameters
from accucompare.watcher import loss
from accucompare.watcher.extrema import Extrema
from accucompare.watcher.loss import Lines
from accucompare.watcher.notes import Notes

#: What the backward of these gives is what it was given, in another order or shape, or with zeros in between.
_PASSING_ON = frozenset(
    f"{name}Backward0"
    for name in (
        *("View", "UnsafeView", "ReshapeAlias", "T", "Transpose", "Permute", "Movedim", "Unsqueeze", "Squeeze", "Alias", "Clone"),
        *("Slice", "Select", "Split", "SplitWithSizes", "Unbind", "Cat", "Stack", "Unfold", "Diagonal", "Narrow"),
    )
)
#: Directories whose code is not the user's.
_PACKAGES = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))
_ACCUMULATES = "torch::autograd::AccumulateGrad"


class Parameter(NamedTuple):
    """A parameter under its first name, the module that it belongs to, and its name there."""

    name: str
    own: str
    owner: Place
    tensor: torch.Tensor


class Gradients:
    """The backward's part of a ``Watcher``.

    Attributes:
        norms: of each parameter that has a gradient, its L2 norm when the last backward ended, by name.
        extrema: of these gradients, likewise.
        states: by name, what tells whether a gradient still is what it was then.
        late: of each gradient that an update begins with and that is another than then, its norm.
        backwards: how many there were in this step.
        parameters: all, each once.
        order: the names of parameters in the order in which their gradients came.
    """

    def __init__(self, notes: Notes, modules: Modules, distributed: bool) -> None:
        self.norms: dict[str, Extrema] = {}
        self.extrema: dict[str, Extrema] = {}
        self.states: dict[str, tuple[int, int]] = {}
        self.late: dict[str, Extrema] = {}
        self.backwards = 0
        self.order: dict[str, None] = {}
        self.parameters = list(_parameters(modules))
        self._notes = notes
        self._modules = modules
        self._distributed = distributed
        self._gathered: dict[int, torch.Tensor] = {}  # by id: what takes the place of sharded parameters, and has a hook
        self._followed: set[int] = set()  # numbers of nodes that have a hook
        self._uses: defaultdict[int, list[str]] = defaultdict(list)  # by a node's number, the modules that use what it gave
        self._types = {name: type(module).__name__ for name, module in modules.named.items()}
        self._ending = False  # whether the end of the running backward will be told
        self._task = -1  # autograd's number of that backward
        self._calls: list[tuple[int, int]] = []  # of outermost calls: the numbers of the nodes that they have made, from and to
        self._began: tuple[int, int] = -1, 0  # of a backward that makes a graph: its thread, and the number of the first node that it makes
        self._entered: set[int] = set()  # numbers of the nodes at which the running backward comes in; empty if that is not known
        self.lines = Lines()
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def install(self) -> None:
        for parameter in self.parameters:
            if is_lazy(parameter.tensor):
                continue
            if parameter.tensor.requires_grad and type(parameter.tensor.data) is torch.Tensor:
                hook = functools.partial(self._guarded, self._own_gradient, parameter)
                self._handles.append(register_first_hook(parameter.tensor, _Returning(hook)))
        loss.tell(self._backward_begins)
        if self._distributed and has_sharded_parameters(self._modules):
            for name in {parameter.owner.name for parameter in self.parameters}:
                gather = Hook(self._notes, functools.partial(self._gather, name), name)
                self._handles.append(self._modules.named[name].register_forward_pre_hook(gather))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._gathered.clear()
        self.lines.end()
        loss.tell_no_more(self._backward_begins)

    def begin(self) -> None:
        """An outermost call begins: no backward is running."""
        self._ending = False
        self._followed.clear()
        self._uses.clear()
        self.lines.end()

    def end(self, first: int) -> None:
        """An outermost call ends that has made the autograd nodes from this number on; what follows is the loop's own."""
        last = torch._C._autograd._get_sequence_nr()
        if last > first and torch.is_grad_enabled():
            self._calls.append((first, last))
            self.lines.begin()

    def forget(self) -> None:
        """A step ends."""
        self.lines.give_up()
        self._calls.clear()
        self._entered = set()
        self.norms = {}
        self.states = {}
        self.late = {}
        self.backwards = 0
        self.order = {}

    def follow(self, place: Place, first: int, children: Sequence[tuple[int, str]], outputs: Iterable[torch.Tensor], exact: bool) -> None:
        """Put hooks on the autograd nodes that a call has made.

        Args:
            place: of the call.
            first: the number of the first node that it may have made.
            children: the calls in it, each with the number of the first node after it.
            outputs: that it gives.
            exact: look at what arrives at a node, too, and note the line that called its operator; needs torch's anomaly mode.
        """
        nodes = [tensor.grad_fn for tensor in outputs]
        visited = set()
        while nodes:
            node = nodes.pop()
            if node is None or (name := node.name()) == _ACCUMULATES:
                continue
            number = node._sequence_nr()
            if number < first or number in visited:
                continue
            visited.add(number)
            nodes.extend(following for following, _ in node.next_functions)
            if number in self._followed:  # of a call in this one; this one's own may lie behind it
                continue
            self._followed.add(number)
            if exact:
                for following, _ in node.next_functions:
                    if following is not None:
                        self._uses[following._sequence_nr()].append(place.name)
            if exact or name not in _PASSING_ON:
                line = _line(node) if exact else ""
                before = [name for after, name in children if after <= number]
                near = f"after {before[-1]}" if before else f"before {children[0][1]}" if children else ""
                node.register_hook(functools.partial(self._guarded, self._operator, place, name, line, near, number if exact else None))

    def expect(self, place: Place, path: str, output: torch.Tensor, tell: Callable[[torch.Tensor], None]) -> None:
        """Hear the gradient of what an outermost call gave."""
        if output.grad_fn is not None:
            came_in = functools.partial(self._came_in, output.grad_fn._sequence_nr(), weakref.ref(output))
            hook = functools.partial(self._guarded, self._arrived, place, path, tell, came_in)
            output.register_hook(_Returning(hook))  # type: ignore[no-untyped-call]

    def _backward_begins(self, roots: Any, makes_graph: bool) -> None:
        if not self._notes.idle():
            self._notes.run(self._begin_backward, "a backward", (roots, makes_graph))

    def _begin_backward(self, roots: Any, makes_graph: bool) -> None:
        nodes = loss.nodes_outside(roots, self._is_the_models)
        for node, line in zip(nodes, self.lines.of(nodes, _line), strict=True):
            if node.name() not in _PASSING_ON:
                node.register_hook(functools.partial(self._guarded, self._of_loss, node.name(), line))
        self.lines.end()
        if torch._C._current_graph_task_id() < 0:  # else it is a checkpoint's, inside another
            self._entered = loss.entered(roots, nodes, self._is_the_models) if len(self._calls) == 1 else set()
        if makes_graph:
            self._began = threading.get_ident(), torch._C._autograd._get_sequence_nr()

    def _is_the_models(self, number: int) -> bool:
        return number in self._followed or any(first <= number < last for first, last in self._calls)

    def _of_loss(self, name: str, line: str, given: tuple[Any, ...], arrived: tuple[Any, ...]) -> None:
        new = [(str(index), grad) for index, grad in enumerate(given) if grad is not None and not any(grad is each for each in arrived)]
        self._notes.note(What.LOSS, OUTSIDE, [("grad", path, grad) for path, grad in new], name, line)

    def _follow_again(self, place: Place, near: str, grads: Iterable[torch.Tensor | None]) -> None:
        """Put hooks on what a backward has made of a call's gradients, for a second backward that goes through them."""
        thread, first = self._began
        if thread != threading.get_ident():  # nodes are numbered by thread
            return
        waiting = [grad.grad_fn for grad in grads if grad is not None]
        while waiting:
            node = waiting.pop()
            if node is None or node.name() == _ACCUMULATES or node._sequence_nr() < first or node._sequence_nr() in self._followed:
                continue
            self._followed.add(node._sequence_nr())
            waiting += [following for following, _ in node.next_functions]
            if node.name() not in _PASSING_ON:
                node.register_hook(functools.partial(self._guarded, self._operator_again, place, node.name(), near))

    def _operator_again(self, place: Place, name: str, near: str, given: tuple[Any, ...], arrived: tuple[Any, ...]) -> None:
        new = [(str(index), grad) for index, grad in enumerate(given) if grad is not None and not any(grad is each for each in arrived)]
        self._notes.note(What.SECOND, place, [("grad", path, grad) for path, grad in new], name, near=near)

    def _gather(self, name: str, module: nn.Module, args: Any) -> None:
        """Hear the gradients of what FSDP, for a call, puts in the place of a module's parameters: this rank's own, not yet summed."""
        for parameter in self.parameters:
            gathered = getattr(module, parameter.own, None) if parameter.owner.name == name else None
            if not isinstance(gathered, torch.Tensor) or gathered is parameter.tensor or id(gathered) in self._gathered:
                continue
            if gathered.requires_grad and type(gathered.data) is torch.Tensor:
                hook = functools.partial(self._guarded, self._own_gradient, parameter)
                handle = gathered.register_hook(_Returning(hook))  # type: ignore[no-untyped-call]
                if gathered.is_leaf:  # of FSDP2, which takes the same one again; FSDP1's are views, new in each call
                    self._gathered[id(gathered)] = gathered
                    self._handles.append(handle)

    def _guarded(self, act: Callable[..., None], *arguments: Any) -> None:
        if not self._notes.idle():
            self._notes.run(functools.partial(self._heard, act), "a gradient", arguments)

    def _heard(self, act: Callable[..., None], *arguments: Any) -> None:
        if not self._ending or self._was_given_up():
            self._ending, self._task = True, torch._C._current_graph_task_id()
            self.backwards += 1
            # only a callback that is queued by another comes after that of DistributedDataParallel, which sums gradients
            end = functools.partial(_queue, functools.partial(self._guarded, self._ended))
            _queue(end)
        act(*arguments)

    def _was_given_up(self) -> bool:
        """Whether the backward that was running has raised: this one is another, and is not inside it, as a checkpoint's is."""
        if torch._C._current_graph_task_id() == self._task:
            return False
        running, frame = 0, sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            running += frame.f_code.co_name == "_engine_run_backward"
        return running == 1

    def _operator(
        self,
        place: Place,
        name: str,
        line: str,
        near: str,
        number: int | None,
        given: tuple[Any, ...],
        arrived: tuple[Any, ...],
    ) -> None:
        """``given``: what the node gives to those after it; as autograd calls it, its grad_inputs."""
        new = [(str(index), grad) for index, grad in enumerate(given) if grad is not None and not any(grad is each for each in arrived)]
        if number is not None:
            parts = [("grad", str(index), grad) for index, grad in enumerate(arrived) if grad is not None]
            self._notes.note(What.SUM, self._used_in(number, place), parts)
        self._notes.note(What.GRADIENT, place, [("grad", path, grad) for path, grad in new], name, line, near)
        if torch.is_grad_enabled():
            self._follow_again(place, near, given)
        self._notes.look_at_flag_backward(place, name)

    def _used_in(self, number: int, place: Place) -> Place:
        """The innermost module in which all uses are of what a node gave; the gradients of the uses are summed there."""
        paths = [name.split(".") if name else [] for name in self._uses[number]]
        shared = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
        name = ".".join(parts[0] for parts in shared) if paths else place.name
        return Place(name, 0, self._types.get(name, ""), None)

    def _arrived(
        self, place: Place, path: str, tell: Callable[[torch.Tensor], None], came_in: Callable[[], bool], grad: torch.Tensor
    ) -> None:
        self._notes.note(What.ARRIVED, place, [("grad", path, grad)])
        if came_in():  # else what is kept for a second run would be as large as logits are, and comes about there again
            tell(grad)

    def _came_in(self, number: int, output: weakref.ref[torch.Tensor]) -> bool:
        """Whether an output's gradient may be made of one from outside the model, or of a hook of the user's."""
        tensor = output()
        hooks: Any = getattr(tensor, "_backward_hooks", None) or {}
        return not self._entered or number in self._entered or any(not isinstance(hook, _Returning) for hook in hooks.values())

    def _own_gradient(self, parameter: Parameter, grad: torch.Tensor) -> None:
        self.order[parameter.name] = None
        if self._distributed:  # before gradients are summed over ranks
            self._notes.note(What.PARAMETER, parameter.owner, [("grad", parameter.name, grad)], parameter=parameter.own)
        hooks: Any = parameter.tensor._backward_hooks or {}  # none, where FSDP has put another one in its place
        if any(not isinstance(hook, _Returning) for hook in hooks.values()):  # the user's own, which may change it
            self._notes.note(What.SUM, parameter.owner, [("grad", parameter.name, grad)], parameter=parameter.own)
            node = torch.autograd.graph.get_gradient_edge(parameter.tensor).node
            handles: list[Any] = []
            handles.append(node.register_prehook(functools.partial(self._guarded, self._after_hooks, parameter, handles)))

    def _after_hooks(self, parameter: Parameter, handles: list[Any], grads: tuple[Any, ...]) -> None:
        handles.pop().remove()
        self._notes.note(What.HOOKED, parameter.owner, [("grad", parameter.name, grads[0])], parameter=parameter.own)

    def _ended(self) -> None:
        self._ending = False
        having = [parameter for parameter in self.parameters if parameter.tensor.grad is not None]
        norms = self._notes.meter.norm([parameter.tensor.grad for parameter in having if parameter.tensor.grad is not None])
        self.norms = {parameter.name: norm for parameter, norm in zip(having, norms, strict=True)}
        looked = {parameter.name: self._notes.meter.look(parameter.tensor.grad) for parameter in having}
        self.extrema = {name: extrema for name, extrema in looked.items() if extrema is not None}
        self.states = {parameter.name: gradient_state(parameter.tensor) for parameter in having}

    def look_again(self, tensors: Iterable[torch.Tensor]) -> None:
        """An update of these begins: look at gradients that were written since the backward, as by clipping."""
        updated = {id(tensor) for tensor in tensors}
        having = [each for each in self.parameters if id(each.tensor) in updated and each.tensor.grad is not None]
        late = [each for each in having if gradient_state(each.tensor) != self.states.get(each.name)]
        norms = self._notes.meter.norm([each.tensor.grad for each in late if each.tensor.grad is not None])
        self.late |= {each.name: norm for each, norm in zip(late, norms, strict=True)}


def gradient_state(parameter: torch.Tensor) -> tuple[int, int]:
    """Which tensor a parameter's gradient is, and how often it has been written into."""
    return id(parameter.grad), -1 if parameter.grad is None or parameter.grad.is_inference() else parameter.grad._version


def register_first_hook(tensor: torch.Tensor, act: Callable[[torch.Tensor], Any]) -> torch.utils.hooks.RemovableHandle:
    """Register a tensor's hook that is called before those that it has."""
    handle: torch.utils.hooks.RemovableHandle = tensor.register_hook(act)  # type: ignore[no-untyped-call]
    hooks: Any = tensor._backward_hooks
    others = [(key, hook) for key, hook in hooks.items() if key != handle.id]
    for key, _ in others:  # autograd goes by the order in which they were put in, and not by that of the OrderedDict
        del hooks[key]
    hooks.update(others)
    return handle


class _Returning:
    """A tensor's hook that leaves the gradient as it is, and is left behind where the tensor is saved."""

    __torch_unserializable__ = True

    def __init__(self, act: Callable[[torch.Tensor], None]) -> None:
        self._act = act

    def __call__(self, grad: torch.Tensor) -> None:
        self._act(grad)

    def __deepcopy__(self, memo: Any) -> Any:
        return functools.partial(_nothing)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (_nothing,)


def _nothing(*arguments: Any) -> None:
    pass


def _queue(act: Callable[[], None]) -> None:
    """Let something be done when the running backward is over."""
    torch.autograd.Variable._execution_engine.queue_callback(act)


def _parameters(modules: Modules) -> Iterable[Parameter]:
    seen = set()
    for name, module in modules.named.items():
        owner = Place(name, 0, type(module).__name__, None)
        for own, tensor in module._parameters.items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield Parameter(f"{name}.{own}" if name else own, own, owner, tensor)


def _line(node: Any) -> str:
    """Where the operator of a node was called, if torch's anomaly mode has noted it: ``File "model.py", line 57, in forward``."""
    for frame in reversed(node.metadata.get("traceback_") or ()):
        match = re.match(r'\s*File "(.+)", line (\d+)', frame)
        if match is not None and match[1] in CALLERS:
            break
        if match is not None and not match[1].startswith(_PACKAGES):
            return f"{Path(match[1]).name}:{match[2]}"
    return ""
