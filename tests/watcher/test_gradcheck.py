"""Custom backwards against finite differences: a wrong one is named, a right one passes, and what
cannot be checked says why.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import Function
from torch.nn import functional

from accucompare.errors import UsageError
from accucompare.findings.checklist.checks import CheckOutcome, CheckStatus
from accucompare.findings.differences import GradientCheck
from accucompare.report.watch_words import said
from accucompare.watcher.custom.derivatives import AppliedFunction, check_function
from accucompare.watcher.custom.gradcheck import check_gradients
from tests.conftest import Run

CASE = """
import os
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from accucompare import Case

class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up, factor):
        ctx.save_for_backward(gate, up)
        ctx.factor = factor
        return nn.functional.silu(gate) * up

    @staticmethod
    def backward(ctx, grad):
        gate, up = ctx.saved_tensors
        s = gate.sigmoid()
        return grad * up * s * (1 + gate * (1 - s)), ctx.factor * grad * gate * s, None

class Double(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad

class Base(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: x + 1)
    backward = staticmethod(lambda ctx, grad: grad)

class Derived(Base):
    forward = staticmethod(lambda ctx, x: 2 * Base.forward(ctx, x))
    backward = staticmethod(lambda ctx, grad: 2 * grad)

class Mean(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: (ctx.save_for_backward(x), x.square().mean())[1])
    backward = staticmethod(
        lambda ctx, grad: grad * ctx.saved_tensors[0] * 2 / ctx.saved_tensors[0].numel()
    )

@torch.library.custom_op("gradchecked::cube", mutates_args=())
def cube(x: torch.Tensor, k: float) -> torch.Tensor:
    return x**3

cube.register_autograd(
    lambda ctx, grad: (ctx.k * grad * ctx.x**2, None),
    setup_context=lambda ctx, inputs, output: (
        setattr(ctx, "x", inputs[0]),
        setattr(ctx, "k", inputs[1]),
    )[0],
)

class MLP(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.gate, self.up, self.down, self.factor = (
            nn.Linear(96, 498),
            nn.Linear(96, 498),
            nn.Linear(498, 96),
            factor,
        )

    def forward(self, x):
        return self.down(SwiGLU.apply(self.gate(x), self.up(x), self.factor))

class Own(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)

class Checkpointed(nn.Sequential):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=True)

def case(factor=1.0, cubed=3.0):
    torch.manual_seed(0)
    layers = [
        MLP(1.0),
        Own(Double.apply),
        Checkpointed(MLP(factor)),
        Own(lambda x: cube(x, cubed)),
        nn.LayerNorm(96),
    ]
    return Case(nn.Sequential(*layers), torch.randn(2, 5, 96), loss=Mean.apply)

def made_anew(x):
    class Made(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: x + 1)
        backward = staticmethod(lambda ctx, grad: -grad)

    return Made.apply(x)

def kept_and_made():
    kept = Derived.apply
    return Case(
        nn.Sequential(nn.Linear(4, 4), Own(kept), Own(made_anew), Own(made_anew)), torch.randn(2, 4)
    )

def jumps():
    class Round(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: x.round())
        backward = staticmethod(lambda ctx, grad: grad)

    return Case(
        nn.Sequential(nn.Linear(4, 40), Own(Round.apply), Own(Double.apply)), torch.randn(20, 4)
    )

def plain():
    return Case(nn.Linear(4, 4), torch.randn(2, 4))

def wrong():
    return case(float(os.environ["FACTOR"]))

def wrong_operator():
    return case(cubed=3.003)
"""


@pytest.fixture
def cubes(tmp_path: Path) -> Path:
    (tmp_path / "cubes.py").write_text(CASE)
    return tmp_path / "cubes.py"


def told(found: GradientCheck) -> dict[str, tuple[CheckStatus, tuple[str, ...]]]:
    return {
        f"{each.name} {number}": (each.outcome.status, each.modules)
        for number, each in enumerate(found.functions)
    }


def test_every_function_that_the_forward_and_the_loss_apply_is_checked_with_the_modules_that_do(
    cubes: Path,
) -> None:
    found = check_gradients(str(cubes))
    # inside of the checkpoint, it is given what has no gradient yet
    assert told(found) == {
        "SwiGLU 0": (CheckStatus.PASS, ("0",)),
        "Double 1": (CheckStatus.PASS, ("1",)),
        "SwiGLU 2": (CheckStatus.PASS, ("2.0",)),
        "gradchecked_cube 3": (CheckStatus.PASS, ("3",)),
        "Mean 4": (CheckStatus.PASS, ("",)),
    }
    assert found.status is CheckStatus.PASS


def test_functions_kept_under_a_name_derived_or_made_anew_in_each_call_are_found(
    cubes: Path,
) -> None:
    found = check_gradients(f"{cubes}:kept_and_made")
    assert told(found) == {
        "Derived 0": (CheckStatus.PASS, ("1",)),
        "Made 1": (CheckStatus.FAIL, ("2", "3")),
    }
    assert [each.calls for each in found.functions] == [1, 2]


@pytest.mark.parametrize("factor", ["1.001", "1.5", "-1", "0"])
def test_a_factor_in_a_large_module_fails_with_the_argument_and_the_factor(
    cubes: Path, factor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FACTOR", factor)
    found = check_gradients(f"{cubes}:wrong")
    (fails,) = found.of(CheckStatus.FAIL)
    assert (
        said(fails.outcome.measured)
        == f"the gradient of argument 1 (up) is {factor} times the derivative"
    )
    assert fails.modules == ("2.0",)


def test_a_custom_operator_is_checked_as_a_function_is(cubes: Path) -> None:
    (fails,) = check_gradients(f"{cubes}:wrong_operator", only=["3"]).functions
    assert (fails.name, fails.outcome.status) == ("gradchecked_cube", CheckStatus.FAIL)


@pytest.mark.parametrize(
    ("case", "code", "words"),
    [
        ("case", 0, "PASS  4 custom Functions in 5 forms of calls: 5 PASS"),
        ("wrong_operator", 1, "FAIL  4 custom Functions in 5 forms of calls: 4 PASS, 1 FAIL"),
        (
            "plain",
            2,
            "NOT LOOKED AT  the first forward and the loss apply no custom autograd Function",
        ),
        ("jumps", 2, "NOT LOOKED AT  2 custom Functions: 1 PASS, 1 NOT LOOKED AT"),
    ],
)
def test_the_exit_code_is_0_only_where_all_that_was_found_was_checked(
    cli: Run, cubes: Path, case: str, code: int, words: str
) -> None:
    done = cli("gradcheck", f"{cubes}:{case}")
    assert (done.returncode, done.stdout.startswith(words)) == (code, True), done.stdout


def test_names_that_match_nothing_are_refused(cubes: Path) -> None:
    with pytest.raises(UsageError, match="no module that is called matches"):
        check_gradients(str(cubes), only=["nothing"])


def test_functions_are_left_as_they_were(cubes: Path) -> None:
    class Mine(Function):
        forward = staticmethod(lambda ctx, x: x)

    class Inherits(Mine):
        pass

    before = vars(Function)["apply"], vars(Mine)["forward"]
    check_gradients(str(cubes), only=["3"])
    assert (vars(Function)["apply"], vars(Mine)["forward"]) == before
    assert "forward" not in vars(Inherits)


Forward, Backward = Callable[..., Any], Callable[..., Any]


def check(forward: Forward, backward: Backward, *given: Any) -> CheckOutcome:
    function = type(
        "Made", (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )
    return check_function(AppliedFunction(function, given, {}))


def saved(function: Callable[..., torch.Tensor]) -> Forward:
    """A forward that computes this, and saves what it is given."""

    def forward(ctx: Any, *given: Any) -> torch.Tensor:
        ctx.save_for_backward(*given)
        return function(*given)

    return forward


def random_numbers(
    *shape: int, asked: bool = True, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(len(shape)), dtype=dtype
    ).requires_grad_(asked)


def product(
    part: Callable[[torch.Tensor], torch.Tensor] = lambda grad: grad,
) -> tuple[Forward, Backward]:
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        a, b = ctx.saved_tensors
        return part(grad * b), grad * a

    return saved(torch.mul), backward


def elementwise(factor: float = 1.0) -> tuple[Forward, Backward]:
    return saved(
        torch.tanh
    ), lambda ctx, grad: factor * grad * (1 - ctx.saved_tensors[0].tanh() ** 2)


def normalised(factor: float = 1.0) -> tuple[Forward, Backward]:
    """An RMSNorm that computes in float32 inside, whatever it is given."""

    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        r = (x.float().pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
        ctx.save_for_backward(x, w, r)
        return (x.float() * r * w.float()).to(x.dtype)

    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, w, r = ctx.saved_tensors
        n, g = x.float() * r, grad.float() * w.float()
        dx = factor * r * (g - n * (g * n).mean(-1, keepdim=True))
        return dx.to(x.dtype), (grad.float() * n).sum((0, 1)).to(w.dtype)

    return forward, backward


def in_float32_only(factor: float = 1.0) -> tuple[Forward, Backward]:
    forward, backward = elementwise(factor)

    def refuses(ctx: Any, x: torch.Tensor) -> Any:
        if x.dtype != torch.float32:
            raise RuntimeError("expected Float")
        return forward(ctx, x)

    return refuses, backward


def softmax(factor: float = 1.0) -> tuple[Forward, Backward]:
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        y = (ctx.saved_tensors[0] + ctx.saved_tensors[1]).softmax(-1)
        return factor * y * (grad - (grad * y).sum(-1, keepdim=True)), None

    return saved(lambda x, mask: (x + mask).softmax(-1)), backward


def into_what_it_is_given(factor: float = 1.0) -> tuple[Forward, Backward]:
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        ctx.save_for_backward(x.exp_())
        return x

    return forward, lambda ctx, grad: grad.mul_(factor) * ctx.saved_tensors[0]


def largest(factor: float = 1.0) -> tuple[Forward, Backward]:
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        values, places = x.topk(4, -1)
        ctx.save_for_backward(x, places)
        ctx.mark_non_differentiable(places)
        return values, places

    return (
        forward,
        lambda ctx, grad, _: (
            factor * torch.zeros_like(ctx.saved_tensors[0]).scatter(-1, ctx.saved_tensors[1], grad)
        ),
    )


def two_outputs(factor: float = 1.0) -> tuple[Forward, Backward]:
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return 1e6 * x * y, x + 1e-3 * y

    def backward(ctx: Any, first: Any, second: Any) -> Any:
        x, y = ctx.saved_tensors
        zero = torch.zeros_like(x)
        one, other = (zero, zero) if first is None else (1e6 * first * y, 1e6 * first * x)
        return (one, other) if second is None else (one + second, other + factor * 1e-3 * second)

    return forward, backward


def dropped(factor: float = 1.0) -> tuple[Forward, Backward]:
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(torch.rand_like(x) > 0.3)
        return x * ctx.saved_tensors[0] if hasattr(ctx, "x") else x * ctx.to_save[0]

    return forward, lambda ctx, grad: factor * grad * ctx.saved_tensors[0]


def rows(sums: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Forward, Backward]:
    return saved(torch.mul), lambda ctx, grad: (
        grad * ctx.saved_tensors[1],
        sums(grad * ctx.saved_tensors[0]),
    )


def cross_entropy(factor: float = 1.0) -> tuple[Forward, Backward]:
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, t = ctx.saved_tensors
        return factor * grad * (x.softmax(-1) - functional.one_hot(t, x.shape[-1])) / len(t), None

    return saved(functional.cross_entropy), backward


def conjugated(right: bool) -> tuple[Forward, Backward]:
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        a, b = ctx.saved_tensors
        return grad * (b.conj() if right else b), grad * a.conj()

    return saved(torch.mul), backward


MASK = torch.zeros(16, 16).masked_fill(torch.ones(16, 16).triu(1).bool(), -torch.inf)
HALF = torch.bfloat16

SOUND: dict[str, tuple[tuple[Forward, Backward], tuple[Any, ...]]] = {
    "kink": (
        (saved(torch.relu), lambda ctx, grad: grad * (ctx.saved_tensors[0] > 0)),
        (random_numbers(64, 256),),
    ),
    "float32 inside": (normalised(), (random_numbers(4, 8, 64), random_numbers(64))),
    "float32 only": (in_float32_only(), (random_numbers(64, 64),)),
    "bfloat16 given": (elementwise(), (random_numbers(64, 64, dtype=HALF),)),
    "mask of -inf": (softmax(), (random_numbers(2, 4, 16, 16), MASK)),
    "mask of the smallest number": (
        softmax(),
        (random_numbers(2, 4, 16, 16), MASK.clamp(min=torch.finfo(torch.float32).min)),
    ),
    "in place": (into_what_it_is_given(), (random_numbers(8, 9),)),
    "top-k": (largest(), (random_numbers(32, 64),)),
    "two outputs": (two_outputs(), (random_numbers(5, 6), random_numbers(5, 6))),
    "random": (dropped(), (random_numbers(32, 32),)),
    "broadcast": (rows(lambda grad: grad.sum(0)), (random_numbers(8, 16), random_numbers(16))),
    "broadcast that autograd sums": (
        rows(lambda grad: grad),
        (random_numbers(8, 16), random_numbers(16)),
    ),
    "integers": (cross_entropy(), (random_numbers(64, 100), torch.arange(64))),
    "complex": (
        conjugated(True),
        (
            random_numbers(8, 16, dtype=torch.complex64),
            random_numbers(8, 16, dtype=torch.complex64),
        ),
    ),
    "one number": (elementwise(), (torch.tensor(0.5, requires_grad=True),)),
    "positive": (
        (saved(torch.log), lambda ctx, grad: grad / ctx.saved_tensors[0]),
        ((8 * random_numbers(32, 64)).softmax(-1).detach(),),
    ),
    "without effect": (
        (lambda ctx, x, y: 2 * x, lambda ctx, grad: (2 * grad, 0 * grad)),
        (random_numbers(4, 5), random_numbers(4, 5)),
    ),
    "none asked for": (softmax(), (random_numbers(2, 16, 16, asked=False), MASK)),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_right_backward_passes(name: str) -> None:
    (forward, backward), given = SOUND[name]
    outcome = check(forward, backward, *given)
    assert outcome.status is CheckStatus.PASS, said(outcome.measured)


def last_columns(grad: torch.Tensor) -> torch.Tensor:
    return torch.cat([grad[..., :48], 1.03 * grad[..., 48:]], -1)


def without_one(grad: torch.Tensor) -> torch.Tensor:
    return grad.index_put((torch.tensor(3), torch.tensor(5)), torch.zeros((), dtype=grad.dtype))


def asked_alone(which: int) -> Backward:
    """Right where both gradients are asked for, and none where that of only one is."""

    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        a, b = ctx.saved_tensors
        return (grad * b, grad * a) if ctx.needs_input_grad[which] else (None, None)

    return backward


TWO = (random_numbers(64, 64), random_numbers(64, 64).detach().flip(0).requires_grad_())

WRONG: dict[str, tuple[tuple[Forward, Backward], tuple[Any, ...], str]] = {
    "last columns": (product(last_columns), TWO, "argument 0"),
    "one element": (product(without_one), TWO, "argument 0"),
    "float32 inside": (normalised(1.005), (random_numbers(4, 8, 64), random_numbers(64)), "1.00"),
    "float32 only": (in_float32_only(-1.0), (random_numbers(64, 64),), "-1"),
    "mask of -inf": (softmax(1.001), (random_numbers(2, 4, 16, 16), MASK), "1.001 times"),
    "none given though asked for": (softmax(), (random_numbers(2, 16, 16), random_numbers(16, 16)),
    "gives no gradient of argument 1"),
    "in place": (into_what_it_is_given(1.001), (random_numbers(8, 9),), "1.001 times"),
    "top-k": (largest(-1.0), (random_numbers(32, 64),), "-1 times"),
    "one output, small beside the other": (two_outputs(-1.0), (random_numbers(5, 6),
    random_numbers(5, 6)), "argument 1 (y)"),
    "random": (dropped(1.001), (random_numbers(32, 32),), "1.001"),
    "mean for sum": (rows(lambda grad: grad.mean(0)), (random_numbers(8, 16), random_numbers(16)),
    "0.125 times"),
    "first row for sum": (rows(lambda grad: grad[0]), (random_numbers(8, 16), random_numbers(16)),
    "argument 1"),
    "integers": (cross_entropy(1.001), (random_numbers(64, 100), torch.arange(64)), "1.001 times"),
    "conjugate forgotten": (conjugated(False), tuple(random_numbers(8, 16,
    dtype=torch.complex64) for _ in "ab"), "argument 0"),
    "one number": (elementwise(-1.0), (torch.tensor(0.5, requires_grad=True),), "-1 times"),
    "asked for alone": ((saved(torch.mul), asked_alone(0)), TWO, "no gradient of argument 1"),
    "nothing from something": ((lambda ctx, x: 0 * x + 1, lambda ctx, grad: grad),
    (random_numbers(4, 5),), "does not depend on"),
    "at zeros and elsewhere": (
        (saved(torch.relu), lambda ctx, grad: -grad * (ctx.saved_tensors[0] > 0)),
        (random_numbers(64, 64).detach().relu(),), "argument 0",
    ),
    "not asked for": (rows(lambda grad: 0 * grad.sum(0)), (random_numbers(8, 16),
    random_numbers(16, asked=False)), "argument 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_backward_fails_and_the_argument_is_named(name: str) -> None:
    (forward, backward), given, words = WRONG[name]
    outcome = check(forward, backward, *given)
    assert (outcome.status, words in said(outcome.measured)) == (CheckStatus.FAIL, True), said(
        outcome.measured
    )


UNFIT: dict[str, tuple[tuple[Forward, Backward], tuple[Any, ...], str]] = {
    "few digits inside": ((lambda ctx, x: x.bfloat16().to(x.dtype), lambda ctx, grad: grad),
    (random_numbers(64, 64),), "too coarse"),
    "jumps": ((lambda ctx, x: x.round(), lambda ctx, grad: grad), (random_numbers(64, 64),),
    "it has jumps"),
    "other values each time": ((lambda ctx, x: x * random.random(), lambda ctx, grad: grad),
    (random_numbers(4, 4),), "other values"),
    "no gradient": (
        (lambda ctx, x: ctx.mark_non_differentiable(y := x + 0) or y, lambda ctx, grad: grad),
        (random_numbers(4, 4),), "has a gradient",
    ),
    "integers only": ((lambda ctx, x: x + 1, lambda ctx, grad: None), (torch.arange(4),),
    "no floating tensor"),
    "a backward that raises": ((saved(torch.exp), lambda ctx, grad: 1 / 0), (random_numbers(4,
    4),), "ZeroDivisionError"),
    "a forward that raises": ((lambda ctx, x: 1 / 0, lambda ctx, grad: grad), (random_numbers(4,
    4),), "ZeroDivisionError"),
    "sparse": ((lambda ctx, x: x.to_dense(), lambda ctx, grad: grad), (torch.eye(3).to_sparse(),),
    "sparse"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNFIT)
def test_what_finite_differences_cannot_tell_is_not_looked_at_and_says_why(name: str) -> None:
    (forward, backward), given, words = UNFIT[name]
    outcome = check(forward, backward, *given)
    assert (outcome.status, words in said(outcome.measured)) == (CheckStatus.NOT_LOOKED_AT, True), (
        said(outcome.measured)
    )


def test_a_call_that_takes_too_long_is_not_looked_at() -> None:
    function = type(
        "Slow",
        (Function,),
        dict(zip(("forward", "backward"), map(staticmethod, elementwise()), strict=True)),
    )
    outcome = check_function(AppliedFunction(function, (random_numbers(64, 64),), {}), seconds=1e-9)
    assert (outcome.status, "give a case with smaller inputs" in said(outcome.measured)) == (
        CheckStatus.NOT_LOOKED_AT,
        True,
    )


def test_a_kink_at_the_recorded_inputs_is_no_wrong_backward() -> None:
    outcome = check(
        saved(torch.relu),
        lambda ctx, grad: grad * (ctx.saved_tensors[0] > 0),
        torch.zeros(9, 9, requires_grad=True),
    )
    assert outcome.status is CheckStatus.WARN


def test_a_backward_that_raises_where_one_gradient_is_asked_for_is_told() -> None:
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        assert all(ctx.needs_input_grad)
        return grad * ctx.saved_tensors[1], grad * ctx.saved_tensors[0]

    outcome = check(saved(torch.mul), backward, *TWO)
    assert (outcome.status, "the backward raises AssertionError" in said(outcome.measured)) == (
        CheckStatus.PASS,
        True,
    )
