"""What a manifest says of a model whose capture differs from what a reader would assume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.bundle.format.records import Role
from accucompare.compare.rows.rows import Status
from accucompare.report.words import verdict_words
from tests.recorded import Glue, Opened, Record


def notes(record: Record, model: nn.Module, *args: Any) -> list[str]:
    bundle = record(model, *args)
    assert bundle.complete
    return bundle.manifest.notes


def test_a_lazy_module_that_has_no_weights_yet_is_noted(record: Record) -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.LazyLinear(3))
    (note,) = notes(record, model, torch.randn(2, 5))
    assert note.startswith(
        "1 lazy module(s) draw their weights in their first call, inside the capture"
    )
    assert ": 1; call the model once before" in note
    assert notes(record, model, torch.randn(2, 5)) == []  # it has them now


def test_modules_that_are_made_in_the_forward_are_noted(record: Record) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "late"):
            self.late = nn.Linear(5, 3)
        out: torch.Tensor = self.late(x)
        return out

    model = Glue(forward, first=nn.Linear(5, 5))
    (note,) = notes(record, model, torch.randn(2, 5))
    assert note.startswith(
        "1 module(s) were added to the model while it ran, so nothing of them is recorded"
    )
    assert ": late; " in note
    assert notes(record, model, torch.randn(2, 5)) == []


def test_a_compiled_helper_that_runs_eagerly_is_noted(record: Record) -> None:
    compiled = torch.compile(lambda x: torch.sin(x) + 1, backend="eager")
    model = Glue(lambda self, x: self.fc(compiled(x)), fc=nn.Linear(2, 2))
    assert notes(record, model, torch.randn(2, 2)) == [
        "compiled code (torch.compile) was called in the forward; it ran eagerly (--compile own"
        " captures compiled modules as they run)"
    ]


def test_a_compiled_model_that_ran_eagerly_is_no_all_clear(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    compiled = torch.compile(model, backend="eager")
    for name, each in (("golden", model), ("candidate", compiled)):
        with ac.capture(each, tmp_path / name), torch.no_grad():
            each(torch.ones(1, 2))
    comparison = ac.diff(tmp_path / "golden", tmp_path / "candidate")
    assert comparison.exit_code == 2
    assert "the candidate's compiled code ran eagerly" in comparison.conclusion


@pytest.mark.parametrize(
    "decorate", [torch.compiler.disable, lambda function: function], ids=["disabled", "plain"]
)
def test_code_that_is_not_compiled_is_not(decorate: Any, record: Record) -> None:
    helper = decorate(lambda x: x + 1)
    torch.compile(helper, backend="eager")  # the compiler is there, and not called
    assert (
        notes(
            record, Glue(lambda self, x: self.fc(helper(x)), fc=nn.Linear(2, 2)), torch.randn(2, 2)
        )
        == []
    )


def test_gradients_that_flat_parameters_hide_are_noted(tmp_path: Path, opened: Opened) -> None:
    class FullyShardedDataParallel(nn.Module):
        """Like the first generation's, whose own needs a GPU."""

        def __init__(self) -> None:
            super().__init__()
            self._fsdp_wrapped_module = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> Any:
            return self._fsdp_wrapped_module(x)

    model = FullyShardedDataParallel()
    with ac.capture(model, tmp_path / "out"):
        model(torch.ones(1, 2)).sum().backward()
    (note,) = opened(tmp_path / "out").manifest.notes
    assert "(call_grad) is not recorded under FullyShardedDataParallel" in note


@pytest.mark.parametrize("late", [False, True], ids=["in the forward", "after it"])
def test_a_hook_on_an_output_that_its_module_uses_is_noted(
    late: bool, tmp_path: Path, opened: Opened
) -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        y = self.linear(x)
        if not late:
            y.register_hook(lambda grad: grad * 10)
        return y, y.square().sum()

    model = Glue(forward, linear=nn.Linear(2, 2))
    with ac.capture(model, tmp_path / "out"):
        y, penalty = model(torch.ones(1, 2))
        if late:
            y.register_hook(lambda grad: grad * 10)
        (y.sum() + penalty).backward()
    (note,) = opened(tmp_path / "out").manifest.notes
    assert note.startswith("an output that its module uses, too, has a hook of your own ((root)): ")


@pytest.mark.parametrize(("cut", "noted"), [(1, True), (2, False)], ids=["one memory", "apart"])
def test_a_call_that_writes_into_one_of_two_arguments_of_one_memory_is_noted(
    cut: int, noted: bool, tmp_path: Path, opened: Opened
) -> None:
    inner = Glue(lambda self, a, b: a.mul_(3.0) * b)
    model = Glue(lambda self, x: self.inner((y := x * 1.0)[: 4 - cut], y[cut:]), inner=inner)
    for out, feed in (("golden", None), ("fed", tmp_path / "golden")):
        with ac.capture(model, tmp_path / out, feed=feed):
            model(torch.ones(4, requires_grad=True)).sum().backward()
    expected = [
        "not fed: 1 value, since it is written into, and another argument shares elements with it:"
        " each got a copy (such as inner input 0)"
    ]
    assert opened(tmp_path / "fed").manifest.notes == (expected if noted else [])
    comparison = ac.diff(tmp_path / "golden", tmp_path / "fed")
    assert comparison.trouble == (
        "unverified: candidate, inner call 0 input 0 in step 0: it is written into, and another"
        " argument shares elements with it: each got a copy"
        if noted
        else ""
    )
    assert comparison.passed is not noted


def test_of_interleaved_parts_of_one_tensor_one_may_be_written_into(
    tmp_path: Path, opened: Opened
) -> None:
    inner = Glue(lambda self, a, b: a.mul_(3.0) * b)
    model = Glue(lambda self, x: self.inner((y := x * 1.0)[:, :2], y[:, 2:]), inner=inner)
    for out, feed in (("golden", None), ("fed", tmp_path / "golden")):
        with ac.capture(model, tmp_path / out, feed=feed):
            model(torch.ones(3, 4, requires_grad=True)).sum().backward()
    assert opened(tmp_path / "fed").manifest.notes == []
    assert ac.diff(tmp_path / "golden", tmp_path / "fed").passed


def test_a_part_of_a_tensor_that_is_overwritten_and_not_used_has_the_gradient_zero_or_none(
    tmp_path: Path,
) -> None:
    inner = Glue(lambda self, a, b: (b.zero_(), a * 2)[1])
    model = Glue(lambda self, x: self.inner((y := x * 1.0)[:2], y[2:]), inner=inner)
    for out, feed in (("golden", None), ("fed", tmp_path / "golden")):
        with ac.capture(model, tmp_path / out, feed=feed):
            model(torch.ones(4, requires_grad=True)).sum().backward()
    comparison = ac.diff(tmp_path / "golden", tmp_path / "fed")
    (row,) = [row for row in comparison.rows if row.status is Status.NOT_COMPARED]
    assert (
        verdict_words.detail(row)
        == "golden's is zero everywhere; the candidate adds nothing, which is the same"
    )
    assert comparison.passed


def test_an_argument_that_is_written_into_by_way_of_a_cast_is_so_in_its_own_type_alone(
    tmp_path: Path,
) -> None:
    inner = Glue(lambda self, a: a.float().add_(1.0).exp().to(a.dtype))
    model = Glue(lambda self, x: self.inner(x * 1.0), inner=inner)
    for dtype in (torch.float32, torch.bfloat16):
        with ac.capture(model, tmp_path / str(dtype)), torch.no_grad():
            model(torch.ones(4, dtype=dtype))
    golden, candidate = (tmp_path / str(dtype) for dtype in (torch.float32, torch.bfloat16))
    comparison = ac.diff(golden, candidate)
    row = next(row for row in comparison.rows if row.status is Status.NOT_COMPARED)
    assert "the call writes into a cast copy of it" in verdict_words.detail(row)
    assert comparison.passed


@pytest.mark.parametrize(
    ("reaches", "noted"), [(False, True), (True, False)], ids=["detached", "one of two backwards"]
)
def test_a_loss_that_reaches_no_layer_is_noted(
    reaches: bool, noted: bool, tmp_path: Path, opened: Opened
) -> None:
    model, other = nn.Linear(2, 2), torch.ones(2, requires_grad=True)
    with ac.capture(model, tmp_path / "out"):
        y = model(torch.ones(1, 2))
        (y.detach() * other).sum().backward()
        if reaches:
            y.sum().backward()
    notes = [
        note for note in opened(tmp_path / "out").manifest.notes if "went through a call" in note
    ]
    assert notes == (
        [
            "in 1 step(s) no backward went through a call of the model: the loss is of none of its"
            " outputs, or of detached ones; those steps have no gradients of layers"
        ]
        if noted
        else []
    )


class Opaque(nn.Module):
    """Its parts are called, and not as modules are: the way tells how."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.parts = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
        self.plain = [torch.eye(3) for _ in range(2)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part, weight in zip(self.parts, self.plain, strict=True):
            if self.way == "forward":
                x = part.forward(x)
            elif self.way == "functions of plain tensors":
                x = nn.functional.linear(x, weight)
            elif self.way == "functions of its parts' weights":
                x = nn.functional.linear(x, part.weight)
            else:
                x = part(x)
        return x


@pytest.mark.parametrize(
    "way", ["forward", "functions of plain tensors", "functions of its parts' weights"]
)
def test_a_model_none_of_whose_parts_is_seen_is_told_and_operators_look_inside(
    way: str, tmp_path: Path
) -> None:
    with ac.capture(model := Opaque(way), tmp_path / "modules"):
        model(torch.ones(1, 3))
    (note,) = ac.open_bundle(tmp_path / "modules").manifest.notes
    assert note.startswith("only the whole Opaque was recorded")
    assert note.endswith("--level op --only '(root)'")
    with ac.capture(model, tmp_path / "operators", record=ac.Recorded(level="op", only="(root)")):
        model(torch.ones(1, 3))
    bundle = ac.open_bundle(tmp_path / "operators")
    assert bundle.manifest.notes == []
    assert sum(record.role is Role.OP_OUTPUT for record in bundle.records()) >= 2


class Alone(nn.Module):
    """It has weights and a number, and no parts."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(3)), 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()


@pytest.mark.parametrize(
    "model", [Opaque("modules"), nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3)), Alone()]
)
def test_a_model_whose_parts_are_seen_or_that_has_none_is_not_told_of(
    model: nn.Module, tmp_path: Path
) -> None:
    with ac.capture(model, tmp_path / "b", record=ac.Recorded(only="(root)")):
        model(torch.ones(1, 3))
    bundle = ac.open_bundle(tmp_path / "b")
    assert bundle.manifest.notes == []
    assert {record.name for record in bundle.records()} == {""}
