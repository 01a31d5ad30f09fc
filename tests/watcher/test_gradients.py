"""Gradients: their norms, and where the first that is not finite was made."""

from __future__ import annotations

import contextlib
import gc
import math
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.findings.log import What
from accucompare.findings.log.events import Direction, Site, Step
from accucompare.report.watch_words import answer, hints_for
from tests.asked import looking
from tests.watcher.watched import Glue, events, origins

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def _a_seed() -> None:
    torch.manual_seed(3)


def _norm(model: nn.Module) -> float:
    """The norm of all gradients, in float64."""
    grads = (parameter.grad for parameter in model.parameters())
    dense = [grad.to_dense() if grad.is_sparse else grad for grad in grads if grad is not None]
    parts = [
        part for grad in dense for part in ([grad.real, grad.imag] if grad.is_complex() else [grad])
    ]
    return math.sqrt(sum(float(part.to(torch.float64).square().sum()) for part in parts))


MODELS: dict[str, tuple[Any, Any]] = {
    "two layers": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)),
        lambda: torch.randn(4, 8),
    ),
    "float16": (
        lambda: nn.Linear(300, 300, bias=False).half(),
        lambda: torch.full((1, 300), 100.0).half(),
    ),
    "bfloat16": (lambda: nn.Linear(8, 8).bfloat16(), lambda: torch.randn(4, 8).bfloat16()),
    "float64": (lambda: nn.Linear(8, 8).double(), lambda: torch.randn(4, 8).double()),
    "complex": (
        lambda: Glue(lambda self, x: self.fc(x).abs(), fc=nn.Linear(4, 4, dtype=torch.complex64)),
        lambda: torch.randn(2, 4) * (1 + 2j),
    ),
    "sparse, the same row more than once": (
        lambda: nn.Embedding(5, 3, sparse=True),
        lambda: torch.tensor([1, 1, 1, 2]),
    ),
    "a tied weight": (lambda: _tied(), lambda: torch.tensor([[1, 2]])),
    "gradients so large that their squares overflow": (
        lambda: Glue(lambda self, x: self.fc(x) * 1e30, fc=nn.Linear(4, 4)),
        lambda: torch.randn(2, 4),
    ),
}


def _tied() -> nn.Module:
    model: Any = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    return model


@pytest.mark.parametrize("name", MODELS)
def test_the_norm_is_that_of_all_gradients(name: str, tmp_path: Path) -> None:
    make, given = MODELS[name]
    model: Any = make()
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        model(given()).float().sum().backward()
        assert not watch.overflowed
        watch.step()
    assert watch.grad_norms == [
        pytest.approx(_norm(model), rel=1e-4 if name == "float16" else 1e-5)
    ]
    assert watch.findings == []


def test_the_norm_is_of_gradients_before_they_are_clipped(tmp_path: Path) -> None:
    model: Any = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ac.watch(model, optimizer, out=tmp_path, quiet=True) as watch:
        (model(torch.ones(3, 4)) * 100).sum().backward()
        before = _norm(model)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        watch.step()
    assert _norm(model) < 1.01
    assert watch.grad_norms == [pytest.approx(before, rel=1e-6)]


def test_the_norm_is_of_what_many_backwards_have_accumulated(tmp_path: Path) -> None:
    model: Any = nn.Linear(4, 4)
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        for _ in range(6):
            model(torch.randn(3, 4)).square().sum().backward()
        watch.step()
    assert watch.grad_norms == [pytest.approx(_norm(model), rel=1e-6)]


def test_the_norm_is_without_the_loss_scale(tmp_path: Path) -> None:
    model: Any = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    right = []
    with ac.watch(model, ac.Loop(optimizer, scaler=scaler), out=tmp_path, quiet=True) as watch:
        for _ in range(3):
            scaler.scale(model(torch.ones(3, 4)).square().sum()).backward()
            scaler.unscale_(optimizer)
            right.append(_norm(model))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            watch.step()
    assert watch.grad_norms == pytest.approx(right, rel=1e-5)
    assert watch.scales == [2048.0, 4096.0, 8192.0]


def test_the_norm_is_without_the_loss_scale_when_it_changed_in_an_idle_step(tmp_path: Path) -> None:
    model: Any = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    with ac.watch(
        model, ac.Loop(optimizer, scaler=scaler), out=tmp_path, quiet=True, look=ac.LookAt(every=2)
    ) as watch:
        for _ in range(3):
            scaler.scale(model(torch.ones(3, 4)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            watch.step()
    assert watch.grad_norms[1] == pytest.approx(watch.grad_norms[0], rel=1e-5)


def test_a_step_without_a_backward_has_no_norm(tmp_path: Path) -> None:
    model: Any = nn.Linear(4, 4)
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        model(torch.ones(1, 4)).sum().backward()
        watch.step()
        model(torch.ones(1, 4))
        watch.step()
    assert [step.grad_norm is None for step in events(watch, Step)] == [False, True]


def test_the_parameters_that_carry_most_are_named_largest_first(tmp_path: Path) -> None:
    model: Any = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(7)))
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        model(torch.randn(3, 4)).square().sum().backward()
        watch.step()
    (step,) = events(watch, Step)
    right = sorted(
        ((f"{index}.weight", float(layer.weight.grad.norm())) for index, layer in enumerate(model)),
        key=lambda pair: -pair[1],
    )
    assert [name for name, _ in step.largest] == [name for name, _ in right[:5]]
    assert [norm for _, norm in step.largest] == pytest.approx(
        [norm for _, norm in right[:5]], rel=1e-5
    )


def test_every_parameter_whose_gradient_is_not_finite_is_named(tmp_path: Path) -> None:
    model: Any = nn.Sequential(
        nn.Linear(4, 4), nn.Linear(4, 4), Glue(lambda self, x: (x - x).sqrt()), nn.Linear(4, 4)
    )
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        model(torch.randn(3, 4)).sum().backward()
        watch.step()
    (found,) = origins(watch)
    bad = {
        name for name, parameter in model.named_parameters() if not parameter.grad.isfinite().all()
    }
    assert (found.place, found.operator) == ("2, backward", "SqrtBackward0")
    assert set(found.parameters) == bad == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert [name.partition(".")[0] for name in found.parameters] == ["1", "1", "0", "0"]


def test_a_gradient_that_comes_from_the_loss_is_said_to(tmp_path: Path) -> None:
    model: Any = nn.Linear(4, 4)
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        output = model(torch.ones(3, 4))
        (output - output.detach()).abs().sqrt().sum().backward()
        watch.step()
    (found, *_) = origins(watch)
    assert (found.site, found.direction) == (Site.LOSS, Direction.BACKWARD)


def test_a_gradient_that_is_masked_before_it_reaches_a_parameter_is_no_finding(
    tmp_path: Path,
) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        masked = _Masked.apply(y)
        return y + (masked - masked).abs().sqrt()

    model: Any = Glue(forward, fc=nn.Linear(4, 4))
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        model(torch.randn(3, 4)).sum().backward()
        watch.step()
    assert watch.findings == []


class _Masked(torch.autograd.Function):
    """What it gives back is finite."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return torch.zeros_like(grad)


def test_a_sum_of_finite_gradients_that_overflows_names_its_parameter(tmp_path: Path) -> None:
    model: Any = nn.Linear(2, 2, bias=False).half()
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        for _ in range(2):
            (model(torch.ones(1, 2).half()) * 40000.0).sum().backward()
        watch.step()
    (found,) = origins(watch)
    assert (found.site, found.parameters, found.kinds) == (Site.SUM, ["weight"], ["+Inf"])


def test_a_normal_overflow_under_a_loss_scaler_is_no_finding(tmp_path: Path) -> None:
    watch, model = _overflowing(tmp_path, torch.optim.SGD, steps=3)
    assert watch.findings == []
    assert bool(model.weight.isfinite().all())


def test_a_normal_overflow_under_a_loss_scaler_with_a_fused_optimizer_is_no_finding(
    tmp_path: Path,
) -> None:
    watch, _ = _overflowing(
        tmp_path, lambda parameters, lr: torch.optim.SGD(parameters, lr, fused=True), steps=3
    )
    assert watch.findings == []


def _overflowing(tmp_path: Path, make: Any, steps: int) -> tuple[Any, nn.Module]:
    """Training with gradients in float16, which overflow at the first two scales."""
    model: Any = nn.Linear(4, 4)
    optimizer = make(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**17)
    with ac.watch(model, ac.Loop(optimizer, scaler=scaler), out=tmp_path, quiet=True) as watch:
        for _ in range(steps):
            loss = model(torch.ones(1, 4)).half().float().mean() * 16
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            watch.step()
    return watch, model


def _loss_of(tmp_path: Path, loss: Any, steps: int = 1, bad: int = 0, **options: Any) -> Any:
    """What is found where a loss of the loop's own is given a 0 in the step that is named."""
    model: Any = nn.Linear(2, 2)
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    with ac.watch(
        model, **looking(out=tmp_path, on_finding="warn", quiet=True, **options)
    ) as watch:
        for step in range(steps):
            loss(model(torch.ones(1, 2)), 0.0 if step == bad else 1.0).backward()
            watch.step()
            model.zero_grad()
    (found,) = origins(watch)
    return found, answer(found, watch._start)


@pytest.mark.parametrize(
    ("loss", "operator", "hint"),
    [
        (lambda output, scale: (output * scale).log().sum(), "LogBackward0", "log of 0"),
        (
            lambda output, scale: output.sum() / torch.full((), scale),
            "DivBackward0",
            "the sum of a mask",
        ),
        (
            lambda output, scale: (output * scale).norm(dim=0).sqrt().sum(),
            "SqrtBackward0",
            "a root or a norm at 0",
        ),
    ],
    ids=["log", "division", "root"],
)
@pytest.mark.parametrize("bad", [0, 2])
def test_the_operator_of_a_loss_outside_of_the_model_is_named_with_its_line(
    loss: Any, operator: str, hint: str, bad: int, tmp_path: Path
) -> None:
    found, said = _loss_of(tmp_path, loss, steps=3, bad=bad)
    line = f"test_gradients.py:{loss.__code__.co_firstlineno}"
    assert (found.place, found.operator, found.line) == ("the loss, backward", operator, line)
    assert hint in said
    assert not torch.is_anomaly_enabled()


def test_a_loss_that_is_computed_otherwise_later_has_its_line_from_the_step_after(
    tmp_path: Path,
) -> None:
    steps = []

    def loss(output: Any, scale: float) -> Any:
        steps.append(scale)
        if len(steps) < 3:
            return output.square().mean()
        return (output * scale).log().sum()

    found, said = _loss_of(tmp_path, loss, steps=5, bad=4)
    assert (found.operator, found.line) == (
        "LogBackward0",
        f"test_gradients.py:{loss.__code__.co_firstlineno + 4}",
    )
    assert "not known" not in said


def test_where_the_line_of_a_loss_is_not_known_the_answer_says_why(tmp_path: Path) -> None:
    found, said = _loss_of(
        tmp_path,
        lambda output, scale: output.square().mean() if scale else output.mul(0).log().sum(),
        steps=4,
        bad=3,
    )
    assert (found.operator, found.line) == ("LogBackward0", "")
    assert "LogBackward0 (at a line that is not known: the loss was computed otherwise" in said
    found, said = _loss_of(
        tmp_path / "op",
        lambda output, scale: output.mul(scale).log().sum() if not scale else output.sum(),
        3,
        2,
        level="op",
    )
    assert found.line
    assert "not known" not in said


def test_a_loss_computed_otherwise_in_every_step_is_noted_a_few_times_only(tmp_path: Path) -> None:
    model: Any = nn.Linear(2, 2)
    noted = []
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        for step in range(40):
            output = model(torch.ones(1, 2))
            noted.append(torch.is_anomaly_enabled())
            for _ in range(step):
                output = output.neg()
            output.sum().backward()
            watch.step()
    assert sum(noted) == 9


def test_lines_of_a_loss_are_noted_in_its_first_step_only(tmp_path: Path) -> None:
    model: Any = nn.Linear(2, 2)
    noted = []
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        for _ in range(3):
            output = model(torch.ones(1, 2))
            noted.append(torch.is_anomaly_enabled())
            output.sum().backward()
            noted.append(torch.is_anomaly_enabled())
            watch.step()
    assert noted == [True, False, False, False, False, False]


def test_a_users_own_anomaly_mode_is_left_as_it_is(tmp_path: Path) -> None:
    model: Any = nn.Linear(2, 2)
    with (
        ac.watch(model, out=tmp_path, quiet=True) as watch,
        torch.autograd.set_detect_anomaly(True),
    ):
        model(torch.ones(1, 2)).sum().backward()
        watch.step()
        assert torch.is_anomaly_check_nan_enabled()
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        output = model(torch.ones(1, 2))
        with torch.autograd.set_detect_anomaly(True):
            output.sum().backward()
            assert torch.is_anomaly_check_nan_enabled()
        watch.step()
    assert not torch.is_anomaly_enabled()


def test_a_watch_leaves_autograds_entrance_as_it_was(tmp_path: Path) -> None:
    before = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    one, other = (
        ac.watch(nn.Linear(2, 2), out=tmp_path / "one", quiet=True),
        ac.watch(nn.Linear(2, 2), out=tmp_path / "two", quiet=True),
    )
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    other.__exit__(None, None, None)
    assert torch.autograd._engine_run_backward is before  # type: ignore[attr-defined]


def test_a_loss_scale_that_is_too_large_is_not_called_a_log_of_0(tmp_path: Path) -> None:
    model: Any = nn.Linear(2, 2).half()
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        (model(torch.ones(1, 2).half()).float().sum() * 2.0**20).backward()
        watch.step()
    (found,) = origins(watch)
    assert found.place == "the loss, backward"
    first, *others = hints_for(found, watch._start, 2.0**20)
    assert first.startswith("lower the loss scale")
    assert not any("log" in hint or "labels" in hint for hint in others)


def _penalised(norm: Any, tmp_path: Path, layer: nn.Module | None = None) -> Any:
    model: Any = nn.Sequential(nn.Linear(2, 2), layer or nn.Tanh())
    nn.init.constant_(model[0].bias, 0.5)
    nn.init.constant_(model[0].weight, 0.25)
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        x = torch.ones(1, 2, requires_grad=True)
        (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        norm(grad).backward()
        watch.step()
    (found,) = origins(watch)
    return found, answer(found, watch._start)


def test_a_second_backward_that_makes_nan_in_the_loss_is_said_to(tmp_path: Path) -> None:
    found, said = _penalised(lambda grad: (grad * 0).norm(2, 1).pow(0.5).sum(), tmp_path)
    assert (found.site, found.second) == (Site.LOSS, True)
    assert found.operator == "PowBackward0"
    assert "in a second backward" in said
    assert "sum of gradients" not in said


class _Root(nn.Module):
    """Its second derivative is not finite at 0, its first is 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - 1).abs().pow(1.5)


def test_a_second_backward_that_makes_nan_in_a_module_names_it(tmp_path: Path) -> None:
    found, said = _penalised(lambda grad: grad.sum(), tmp_path, _Root())
    assert (found.name, found.site, found.second) == ("1", Site.MODULE, True)
    assert "sum of gradients" not in said


@pytest.mark.parametrize("when", ["before the watch", "in it"])
def test_a_hook_of_the_users_on_a_parameter_is_named(when: str, tmp_path: Path) -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    if when == "before the watch":
        model[1].weight.register_hook(lambda grad: grad / 0)
    with ac.watch(model, out=tmp_path, on_finding="warn", quiet=True) as watch:
        if when == "in it":
            model[1].weight.register_hook(lambda grad: grad / 0)
        model(torch.ones(1, 2)).sum().backward()
        watch.step()
    (found,) = origins(watch)
    assert (found.place, found.parameters) == ("1 (hook on weight), backward", ["1.weight"])
    assert "a hook of your own" in answer(found, watch._start)


def test_a_gradient_that_a_hook_makes_finite_again_is_no_finding_of_the_hooks(
    tmp_path: Path,
) -> None:
    model: Any = nn.Linear(2, 2)
    model.weight.register_hook(lambda grad: grad * 1.0)
    with ac.watch(model, out=tmp_path, quiet=True) as watch:
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            watch.step()
    assert watch.findings == []
    assert len(model.weight._backward_hooks) == 2 - 1


class _Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, marks: list[weakref.ref[Any]]) -> torch.Tensor:
        ctx.mark = nn.Identity()
        marks.append(weakref.ref(ctx.mark))
        return x * 2


@pytest.mark.parametrize("raises", [False, True])
def test_a_watch_keeps_no_graph_once_a_call_is_over(tmp_path: Path, raises: bool) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(_Marked.apply(x, marks))
        return y[100] if raises else y

    marks: list[weakref.ref[Any]] = []
    model = Glue(forward, fc=nn.Linear(4, 4))
    with ac.watch(model, out=tmp_path):
        with contextlib.suppress(IndexError):
            model(torch.ones(2, 4, requires_grad=True))
        gc.collect()
        assert [mark() for mark in marks] == [None]


def test_each_operator_has_one_gradient_and_belongs_to_the_call_that_made_it(
    tmp_path: Path,
) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        given = x.sin()
        return (self.inner(given.exp()) + given).cos()

    innermost = Glue(lambda self, x: x.sigmoid().tanh())
    inner = Glue(lambda self, x: self.innermost(x.sqrt()).abs(), innermost=innermost)
    model = Glue(forward, inner=inner)
    x = torch.rand(3, requires_grad=True)
    with ac.watch(model, out=tmp_path) as watch:
        model(x).sum().backward()
        noted = [
            (note.place.name, note.operator.removesuffix("Backward0"))
            for note in watch._watcher.notes
            if note.what is What.GRADIENT
        ]
    made = {
        "": ["Add", "Cos", "Exp", "Sin"],
        "inner": ["Abs", "Sqrt"],
        "inner.innermost": ["Sigmoid", "Tanh"],
    }
    assert sorted(noted) == [(name, operator) for name in made for operator in made[name]]
