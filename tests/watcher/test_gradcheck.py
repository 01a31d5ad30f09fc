"""Gradients against finite differences: a wrong backward is named, a right one passes, and what cannot be checked says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from accucompare.errors import UsageError
from accucompare.findings.checks import Status
from accucompare.findings.differences import GradientCheck
from accucompare.watcher.gradcheck import check_gradients, check_module

CASE = """
import torch
from torch import nn
from accucompare import Case

class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x ** 3
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return ctx.factor * grad * x ** 2, None

class Cubed(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
    def forward(self, x):
        return Cube.apply(x, self.factor)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.right, self.block = nn.Embedding(7, 4), Cubed(3.0), nn.Sequential(nn.Linear(4, 4), Cubed(3.1))
        self.inplace, self.drop, self.whole = nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Identity()
    def forward(self, ids, scale):
        x = self.right(self.embed(ids)) * scale
        self.whole(ids)
        return self.drop(self.inplace(self.block(x)))

def case():
    return Case(Net(), {"ids": torch.arange(6)[None], "scale": torch.tensor(2.0)})
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> GradientCheck:
    path = tmp_path_factory.mktemp("gradcheck") / "cubes.py"
    path.write_text(CASE)
    return check_gradients(str(path))


def statuses(found: GradientCheck) -> dict[str, Status]:
    return {each.name: each.outcome.status for each in found.modules}


def test_a_custom_function_with_a_wrong_backward_is_named(found: GradientCheck) -> None:
    (origin,) = found.origins
    assert (origin.name, origin.type, origin.functions) == ("block.1", "Cubed", ("Cube",))


def test_a_right_backward_passes_whatever_it_draws_or_writes_into(found: GradientCheck) -> None:
    passing = [name for name, status in statuses(found).items() if status is Status.PASS]
    assert passing == ["embed", "right", "block.0", "inplace", "drop"]


def test_what_holds_the_fault_says_so(found: GradientCheck) -> None:
    assert {each.name: each.inside for each in found.modules if each.inside} == {"block": ("block.1",), "": ("block.1", "block")}


def test_a_module_without_anything_to_differentiate_says_so(found: GradientCheck) -> None:
    assert statuses(found)["whole"] is Status.NOT_LOOKED_AT


def test_a_kink_at_the_recorded_inputs_is_no_wrong_backward() -> None:
    outcome, _ = check_module(nn.ReLU(), (torch.zeros(3, 3),), {})
    assert outcome.status is Status.WARN


def test_a_module_that_computes_in_float32_whatever_it_is_given_is_not_checked() -> None:
    class Narrow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.float().exp()

    outcome, _ = check_module(Narrow(), (torch.rand(3),), {})
    assert (outcome.status, "float32" in outcome.measured) == (Status.NOT_LOOKED_AT, True)


def test_the_model_is_left_as_it_was() -> None:
    module: Any = nn.BatchNorm1d(3).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    outcome, _ = check_module(module, (torch.rand(4, 3),), {})
    assert outcome.status is Status.PASS
    assert all(torch.equal(before[name], tensor) and tensor.dtype == before[name].dtype for name, tensor in module.state_dict().items())


def test_names_that_match_nothing_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cubes.py"
    path.write_text(CASE)
    with pytest.raises(UsageError, match="no module that is called matches"):
        check_gradients(str(path), only=["nothing"])
