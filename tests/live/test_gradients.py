"""Whose a gradient is: the operator, output or parameter that it belongs to, in the order of the
backward.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from accucompare.live.autograd.gradients import (
    GradientListener,
    Grads,
    OperatorOfGradient,
    Parameter,
)
from accucompare.live.modules.hooks import Call, Listener
from accucompare.live.modules.names import Modules, name_modules
from accucompare.live.values.values import leaves
from tests.recorded import Glue


class Calls(Listener[Call]):
    """Follows every call of a model."""

    def __init__(self, modules: Modules) -> None:
        super().__init__(modules, Call)
        self.gradients = Gradients(self, modules)
        self._firsts: dict[Call, tuple[int, list[tuple[int, str]]]] = {}

    def idle(self) -> bool:
        return not self.listening

    def call_began(self, call: Call, args: Any, kwargs: Any) -> None:
        if call.parent is None:
            self.gradients.begin()
        self._firsts[call] = torch._C._autograd._get_sequence_nr(), []

    def call_ended(self, call: Call, output: Any) -> None:
        first, children = self._firsts.pop(call)
        tensors = [(path, part) for path, part in leaves(output) if part.requires_grad]
        self.gradients.follow(call.name, first, children, [tensor for _, tensor in tensors])
        caller = self.caller(call)
        if caller is not None:
            self._firsts[caller][1].append((torch._C._autograd._get_sequence_nr(), call.name))
        else:
            self.gradients.end(first)
        for path, tensor in tensors:
            self.gradients.expect(call.name, path, tensor)

    def failed(self, error: Exception, name: str) -> None:
        raise error


class Gradients(GradientListener[str]):
    """Writes down all that it is called with."""

    def __init__(self, listener: Calls, modules: Modules) -> None:
        super().__init__(listener, modules, distributed=False)
        self.lines: list[str] = []
        self.grads: dict[str, torch.Tensor] = {}

    def backward_began(self, outside: Any) -> None:
        self.lines.append(f"begins, outside: {[node.name() for node in outside]}")

    def operator_gradient(
        self, call: str, operator: OperatorOfGradient, grad_inputs: Grads, grad_outputs: Grads
    ) -> None:
        self.lines.append(f"{call}: {operator.name} {operator.near}".rstrip())

    def second_gradient(
        self, call: str, operator: OperatorOfGradient, grad_inputs: Grads, grad_outputs: Grads
    ) -> None:
        self.lines.append(f"second, {call}: {operator.name}")

    def output_gradient(self, call: str, path: str, grad: torch.Tensor, from_outside: bool) -> None:
        self.grads[f"{call} {path}".strip()] = grad
        self.lines.append(f"output of {call}{', from outside' if from_outside else ''}")

    def parameter_gradient(self, parameter: Parameter, grad: torch.Tensor, hooked: bool) -> None:
        self.grads[parameter.name] = grad
        self.lines.append(f"{parameter.name}{', hooked' if hooked else ''}")

    def hooked_gradient(self, parameter: Parameter, grad: torch.Tensor) -> None:
        self.grads[f"{parameter.name}, hooked"] = grad

    def backward_ended(self) -> None:
        self.lines.append("ended")


def _watched(model: nn.Module, backward: Any, *args: torch.Tensor) -> Gradients:
    calls = Calls(name_modules(model))
    calls.install()
    calls.gradients.install()
    try:
        backward(model(*args))
    finally:
        calls.remove()
        calls.gradients.remove()
    return calls.gradients


def _model() -> nn.Module:
    return Glue(
        lambda self, x: self.first(x).relu() @ self.second(x).exp().mT,
        first=nn.Linear(3, 3),
        second=nn.Linear(3, 3),
    )


def test_each_operator_belongs_to_the_innermost_call_and_lies_between_its_children() -> None:
    lines = _watched(_model(), lambda output: output.sum().backward(), torch.ones(2, 3)).lines
    assert set(lines) == {
        "begins, outside: ['SumBackward0']",
        *(
            "output of , from outside",
            ": MmBackward0 after second",
            ": ExpBackward0 after second",
            ": ReluBackward0 after first",
        ),
        *("output of second", "second: AddmmBackward0", "second.weight", "second.bias"),
        *("output of first", "first: AddmmBackward0", "first.weight", "first.bias", "ended"),
    }
    assert (lines[0], lines[-1]) == ("begins, outside: ['SumBackward0']", "ended")


def test_the_gradients_are_those_of_autograd() -> None:
    model: Any = _model()
    x = torch.randn(2, 3)
    grads = _watched(model, lambda output: output.square().sum().backward(), x).grads
    first, second = model.first(x), model.second(x)
    output = first.relu() @ second.exp().mT
    right = torch.autograd.grad(output.square().sum(), [output, first, second, *model.parameters()])
    names = ["", "first", "second", *(name for name, _ in model.named_parameters())]
    assert grads.keys() == set(names)
    for name, grad in zip(names, right, strict=True):
        assert torch.equal(grads[name], grad)


def test_the_gradient_of_an_output_is_the_one_after_hooks_on_it() -> None:
    def backward(output: torch.Tensor) -> None:
        output.register_hook(lambda grad: grad * 0.5)
        output.sum().backward()

    assert _watched(nn.Linear(3, 2), backward, torch.ones(1, 3)).grads[""].tolist() == [[0.5, 0.5]]


def test_a_hook_on_a_parameter_is_told_apart_from_its_own_gradient() -> None:
    model = nn.Linear(3, 1, bias=False)
    model.weight.register_hook(lambda grad: grad * 2)
    gradients = _watched(model, lambda output: output.sum().backward(), torch.ones(1, 3))
    assert "weight, hooked" in gradients.lines
    assert (gradients.grads["weight"].tolist(), gradients.grads["weight, hooked"].tolist()) == (
        [[1.0] * 3],
        [[2.0] * 3],
    )


def test_a_second_backward_belongs_to_the_call_whose_gradient_it_goes_through() -> None:
    def backward(output: torch.Tensor) -> None:
        (grad,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        grad.square().sum().backward()

    x = torch.ones(2, 3, requires_grad=True)
    model = Glue(lambda self, x: self.inner(x).square(), inner=nn.Linear(3, 3))
    lines = _watched(model, backward, x).lines
    assert "second, inner: MmBackward0" in lines
    assert lines.count("ended") == 2


def test_nothing_is_left_behind() -> None:
    model = _model()
    entrance = torch.autograd._engine_run_backward
    _watched(model, lambda output: output.sum().backward(), torch.ones(2, 3))
    assert torch.autograd._engine_run_backward is entrance
    assert not any(parameter._backward_hooks for parameter in model.parameters())


def test_a_backward_that_raises_is_no_end_of_the_next() -> None:
    def backward(output: torch.Tensor) -> None:
        handle = output.register_hook(_fail)
        with pytest.raises(RuntimeError, match="on purpose"):
            output.sum().backward(retain_graph=True)
        handle.remove()
        output.sum().backward()

    lines = _watched(_model(), backward, torch.ones(2, 3)).lines
    assert lines.count("ended") == 1
    assert lines[-1] == "ended"


def _fail(grad: torch.Tensor) -> None:
    raise RuntimeError("on purpose")
