"""The hooks of a watch: the inputs, outputs and gradients of every module call of a step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._C._functorch import TransformType

from accucompare.findings.log import OUTSIDE, ModuleCall, What, remark, within
from accucompare.live.autograd import line_of
from accucompare.live.modules import Modules, arguments_of, in_backward
from accucompare.live.values import leaves
from accucompare.watcher.looking.extrema import Extrema, Meter, plain
from accucompare.watcher.looking.notes import NoteListener, WatchedCall
from accucompare.watcher.looking.own_operators import OwnOperators, OwnPart
from accucompare.watcher.looking.watched_gradients import Gradients


class Watcher(NoteListener):
    """Hooks that look and change nothing; ``gradients`` has the part of the backward.

    A subclass is told what calls are given and give, and when one that no other module makes begins
    and ends."""

    def __init__(
        self,
        modules: Modules,
        meter: Meter,
        overflowed: Callable[[], bool | None] | None = None,
        distributed: bool = False,
    ) -> None:
        """Hook nothing yet.

        Args:
            overflowed: returns and clears the device's overflow flag, if it is to be asked at every
                call.
            distributed: whether gradients are summed over ranks, so that this rank's own must be
                looked at before.
        """
        super().__init__(modules, meter, overflowed, distributed)
        self.gradients = Gradients(self, modules, distributed, self.gradient_arrived)
        # how many of a module's calls activation checkpointing has run again
        self._second_runs_of: dict[str, int] = {}

    def install(self) -> None:
        super().install()
        self.gradients.install()

    def remove(self) -> None:
        super().remove()
        self.gradients.remove()

    def next_step(self) -> None:
        super().next_step()
        self.unseen = {}
        self.forget()

    def forget(self) -> None:
        """Drop what was seen in this step."""
        self.notes.clear()
        self.meter.forget()
        self.gradients.forget()
        self._second_runs_of.clear()

    def number(self, name: str) -> int:
        if not in_backward():
            return super().number(name)
        self._second_runs_of[name] = (
            self._second_runs_of.get(name, 0) + 1
        )  # the last call comes first
        return max(0, self._indices[name] - self._second_runs_of[name])

    def call_began(self, call: WatchedCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call.place = ModuleCall(call.name, call.index, type(call.module).__name__, call.parent)
        if not in_backward():
            if call.parent is None:
                self.gradients.begin()
                self.outermost_began(call, args, kwargs)
            self.call_given(call, args, kwargs)
            self._look_at_flag(call)
            parts = [("input", path, value) for path, value in arguments_of(args, kwargs)]
            self.note(
                What.BEGAN,
                call.place,
                [*parts, *(_weights(call.module) if self.scope.frames else ())],
            )
            if self.scope.operators and call.parent is None:
                call.operators = OwnOperators(
                    self._in_own_code, self._before_operator, self._after_operator
                )
                call.operators.enter()
        call.first = torch._C._autograd._get_sequence_nr()

    def call_ended(self, call: WatchedCall, output: Any) -> None:
        if call.parent is None and not in_backward():
            self.gradients.end(call.first)
        outputs = (
            [("output", "", output)]
            if type(output) is torch.Tensor
            else [("output", path, value) for path, value in leaves(output)]
        )
        if not in_backward():
            self.note(What.ENDED, call.place, outputs)
            self._look_at_flag(call, ended=True)
            self.call_gave(call, output)
            if call.parent is None:
                self.outermost_ended(call)
        if (caller := self.caller(call)) is not None:
            caller.children.append(
                (torch._C._autograd._get_sequence_nr(), within(call.place, caller.place))
            )
        if torch.is_grad_enabled() and not self._is_differentiated(call):
            tensors = [
                (path, plain(value))
                for _, path, value in outputs
                if isinstance(value, torch.Tensor)
            ]
            tensors = [(path, value) for path, value in tensors if value.requires_grad]
            line = line_of if self.scope.lines else None
            self.gradients.follow(
                call.place, call.first, call.children, [tensor for _, tensor in tensors], line
            )
            if call.parent is None and not in_backward():
                for path, tensor in tensors:
                    self.gradients.expect(call.place, path, tensor)
                self.gradients.over()

    def _is_differentiated(self, call: WatchedCall) -> bool:
        """Whether a function transform differentiates the call; autograd's hooks do not run
        then."""
        if torch._C._functorch.peek_interpreter_stack() is None:
            return False
        from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters

        transforms = {interpreter.key() for interpreter in retrieve_all_functorch_interpreters()}
        if transforms <= {TransformType.Vmap}:
            return False
        # otherwise the result goes on through the model
        if call.parent is None and not in_backward():
            self.unseen.setdefault(call.name, remark("transform-gradients"))
        return True

    def call_left(self, call: WatchedCall) -> None:
        if call.parent is None and sys.exc_info()[1] is not call.handling:  # it raised
            self.gradients.over()
        if call.operators is not None:
            call.operators.leave()

    def outermost_began(
        self, call: WatchedCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None: ...

    def outermost_ended(self, call: WatchedCall) -> None: ...

    def call_given(
        self, call: WatchedCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None: ...

    def call_gave(self, call: WatchedCall, output: Any) -> None: ...

    def gradient_arrived(self, place: ModuleCall, path: str, grad: torch.Tensor) -> None:
        """The gradient of an output of an outermost call."""

    def _look_at_flag(self, call: WatchedCall, ended: bool = False) -> None:
        if self._overflowed is None or not self._overflowed():
            return
        caller = self.caller(call)
        if ended or caller is None:
            self.note(What.FLAG, call.place, ())
        else:
            self.note(
                What.FLAG,
                caller.place,
                (),
                near=f"before {call.name.removeprefix(caller.name + '.')}",
            )

    def _in_own_code(self) -> bool:
        call = self.running()
        return call is not None and self.is_running(call) and not in_backward()

    def _before_operator(self, inputs: list[OwnPart]) -> list[tuple[str, str, Extrema]]:
        looked = [
            (role, path, self.meter.look(value, self.scope.frames)) for role, path, value in inputs
        ]
        return [(role, path, each) for role, path, each in looked if each]

    def _after_operator(
        self,
        inputs: list[tuple[str, str, Extrema]],
        operator: str,
        line: str,
        outputs: list[OwnPart],
    ) -> None:
        call = self.running()
        for *_, value in outputs:
            # an operator that writes into its input has not raised its version yet
            self.meter.forget_one(value)
        if call is not None:
            note = self.note(What.OPERATOR, call.place, outputs, operator, line)
            note.parts[:0] = inputs

    def point(self, tensor: torch.Tensor, label: str) -> None:
        """A point of the user's own."""
        call = self.running()
        self.run(
            lambda: (
                self.note(
                    What.POINT, call.place if call else OUTSIDE, [("point", "", tensor)], near=label
                )
                and None
            ),
            label,
            (),
        )


def _weights(module: nn.Module) -> list[OwnPart]:
    return [
        *(
            ("weight", name, tensor)
            for name, tensor in module._parameters.items()
            if tensor is not None
        ),
        *(
            ("buffer", name, tensor)
            for name, tensor in module._buffers.items()
            if tensor is not None
        ),
    ]
