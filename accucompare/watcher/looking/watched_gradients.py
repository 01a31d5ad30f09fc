"""What a watch sees of a backward: every operator's gradient, every parameter gradient's norm, and
the source lines of operators outside of the model."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from accucompare.findings.log import OUTSIDE, ModuleCall, What
from accucompare.live.autograd import (
    PASSING_ON,
    GradientListener,
    Grads,
    NodeLines,
    OperatorOfGradient,
    Parameter,
    gradient_state,
    line_of,
)
from accucompare.live.modules import Modules
from accucompare.watcher.looking.extrema import Extrema
from accucompare.watcher.looking.notes import NoteListener
from accucompare.watcher.looking.own_operators import OwnPart

#: How many changed losses make lines be noted once more, in the step after the change.
_MOST_AGAIN = 8


class Lines:
    """The source lines of operators outside of the model; ``always``: note them in every step.

    A loss is computed alike in each step, so the lines of the first step are enough while the graph
    stays the same. If it changes, the next step notes lines again, a few times at most."""

    def __init__(self) -> None:
        self.always = False
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._noting = NodeLines()
        self._loss_was_new = False
        self._left = _MOST_AGAIN

    def begin(self) -> None:
        """Operators called from now on are outside of the model."""
        if (
            self.always or self._loss_was_new or not self._known
        ) and not torch.is_anomaly_enabled():
            self._noting.begin()

    def end(self) -> None:
        """Operators called from now on are inside, or need no line."""
        self._noting.end()

    def give_up(self) -> None:
        """The step is over without a loss."""
        if self._noting.noted:
            self._known.setdefault((), ())
        self.end()

    def of(self, nodes: Sequence[Any], line: Callable[[Any], str]) -> tuple[str, ...]:
        """The line of each node, read by ``line`` if it was noted; else empty."""
        names = tuple(node.name() for node in nodes)
        if nodes and not self._noting.noted and names not in self._known and self._left:
            self._loss_was_new = True
            self._left -= 1
        if self._noting.noted:
            self._loss_was_new = False
            self._known[names] = tuple(map(line, nodes))
            if len(self._known) > 8:
                del self._known[next(iter(self._known))]
        return self._known.get(names, ("",) * len(nodes))


class Gradients(GradientListener[ModuleCall]):
    """The backward's part of a ``Watcher``."""

    def __init__(
        self,
        watcher: NoteListener,
        modules: Modules,
        distributed: bool,
        arrived: Callable[[ModuleCall, str, torch.Tensor], None],
    ) -> None:
        """``arrived``: called with the gradients that outermost outputs got from outside the
        model."""
        super().__init__(watcher, modules, distributed)
        # by name, the L2 norm of each parameter's gradient when the last backward ended
        self.norms: dict[str, Extrema] = {}
        self.extrema: dict[str, Extrema] = {}  # of these gradients, likewise
        # by name, the state of each gradient then, to tell whether it has changed
        self.states: dict[str, tuple[int, int]] = {}
        # by name, the norm of each gradient that changed between then and the update
        self.late: dict[str, Extrema] = {}
        # parameter names in the order in which their gradients came
        self.order: dict[str, None] = {}
        self.lines = Lines()  # of operators outside of the model
        self._watcher = watcher
        self._arrived = arrived
        self._types = {name: type(module).__name__ for name, module in modules.named.items()}

    def place_of(self, parameter: Parameter) -> ModuleCall:
        return ModuleCall(parameter.owner, 0, self._types[parameter.owner], None)

    def remove(self) -> None:
        super().remove()
        self.lines.end()

    def begin(self) -> None:
        super().begin()
        self.lines.end()

    def end(self, first: int) -> bool:
        made = super().end(first)
        if made:
            self.lines.begin()
        return made

    def forget(self) -> None:
        super().forget()
        self.lines.give_up()
        self.norms = {}
        self.states = {}
        self.late = {}
        self.order = {}

    def backward_began(self, outside: Sequence[Any]) -> None:
        def look(name: str, line: str, grad_inputs: Grads, grad_outputs: Grads) -> None:
            self._watcher.note(What.LOSS, OUTSIDE, _made(grad_inputs, grad_outputs), name, line)

        for node, line in zip(outside, self.lines.of(outside, line_of), strict=True):
            if node.name() not in PASSING_ON:
                self.hook(node, functools.partial(look, node.name(), line))
        self.lines.end()

    def operator_gradient(
        self,
        call: ModuleCall,
        operator: OperatorOfGradient,
        grad_inputs: Grads,
        grad_outputs: Grads,
    ) -> None:
        if self._watcher.scope.lines:
            self._watcher.note(What.SUM, self._used_in(operator.number, call), _parts(grad_outputs))
        self._watcher.note(
            What.GRADIENT,
            call,
            _made(grad_inputs, grad_outputs),
            operator.name,
            operator.line,
            operator.near,
        )
        self._watcher.look_at_flag_backward(call, operator.name)

    def second_gradient(
        self,
        call: ModuleCall,
        operator: OperatorOfGradient,
        grad_inputs: Grads,
        grad_outputs: Grads,
    ) -> None:
        self._watcher.note(
            What.SECOND, call, _made(grad_inputs, grad_outputs), operator.name, near=operator.near
        )

    def _used_in(self, number: int, place: ModuleCall) -> ModuleCall:
        """The innermost module with all uses of a node's output: their gradients are summed
        there."""
        paths = [used.name.split(".") if used.name else [] for used in self.uses[number]]
        shared = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
        name = ".".join(parts[0] for parts in shared) if paths else place.name
        return ModuleCall(name, 0, self._types.get(name, ""), None)

    def output_gradient(
        self, call: ModuleCall, path: str, grad: torch.Tensor, from_outside: bool
    ) -> None:
        self._watcher.note(What.ARRIVED, call, [("grad", path, grad)])
        # otherwise a second run would keep memory as large as logits, and it makes them again
        # anyway
        if from_outside:
            self._arrived(call, path, grad)

    def parameter_gradient(self, parameter: Parameter, grad: torch.Tensor, hooked: bool) -> None:
        self.order[parameter.name] = None
        if self._distributed:  # before gradients are summed over ranks
            self._note_parameter(What.PARAMETER, parameter, grad)
        if hooked:
            self._note_parameter(What.SUM, parameter, grad)

    def hooked_gradient(self, parameter: Parameter, grad: torch.Tensor) -> None:
        self._note_parameter(What.HOOKED, parameter, grad)

    def _note_parameter(self, what: What, parameter: Parameter, grad: torch.Tensor) -> None:
        self._watcher.note(
            what,
            self.place_of(parameter),
            [("grad", parameter.name, grad)],
            parameter=parameter.own,
        )

    def backward_ended(self) -> None:
        having = [parameter for parameter in self.parameters if parameter.tensor.grad is not None]
        self.norms = self._norms(having)
        # a finite norm means finite numbers
        doubtful = [each for each in having if not self.norms[each.name].finite]
        looked = {
            parameter.name: self._watcher.meter.look(parameter.tensor.grad)
            for parameter in doubtful
        }
        self.extrema = {name: extrema for name, extrema in looked.items() if extrema is not None}
        self.states = {parameter.name: gradient_state(parameter.tensor) for parameter in having}

    def look_again(self, tensors: Iterable[torch.Tensor]) -> None:
        """An update begins: look at gradients written into since the backward, as by clipping."""
        updated = {id(tensor) for tensor in tensors}
        having = [
            each
            for each in self.parameters
            if id(each.tensor) in updated and each.tensor.grad is not None
        ]
        self.late |= self._norms(
            [each for each in having if gradient_state(each.tensor) != self.states.get(each.name)]
        )

    def _norms(self, parameters: Sequence[Parameter]) -> dict[str, Extrema]:
        norms = self._watcher.meter.norm(
            [each.tensor.grad for each in parameters if each.tensor.grad is not None]
        )
        return {each.name: norm for each, norm in zip(parameters, norms, strict=True)}


def _parts(grads: Grads) -> list[OwnPart]:
    return [("grad", str(index), grad) for index, grad in enumerate(grads) if grad is not None]


def _made(grad_inputs: Grads, grad_outputs: Grads) -> list[OwnPart]:
    """What a node's backward has made itself, not only passed on."""
    passed_on = {*map(id, grad_outputs)}
    return [part for part in _parts(grad_inputs) if id(part[2]) not in passed_on]
