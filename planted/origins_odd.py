"""Origins, and legal steps, with the habits that trip tools."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from accucompare.findings.log.events import Direction, Site
from planted.origins_backward import with_weight
from planted.origins_catalogue import DOWN, NAN, UP, Right, into_leaf, origin
from planted.origins_legal import legal
from planted.origins_models import Subject, answer
from planted.origins_modules import inflated


@dataclass
class Features:
    hidden: torch.Tensor
    note: str = "a dataclass"


class MakeFeatures(nn.Module):
    def forward(self, x: torch.Tensor) -> Features:
        return Features(x + torch.log(-x.abs() - 1))


class UseFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = MakeFeatures()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x).hidden
        return result


class MakeComplex(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return torch.complex(wide, torch.log(-wide.abs() - 1))


class UseComplex(nn.Module):
    """Its child's values are finite in their real part only."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = MakeComplex()

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x).imag.to(x.dtype)


class OnlyOnce(nn.Module):
    """NaN in its first call; run again, it makes none."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * (torch.nan if self.calls == 1 else 1.0)


class LargeDropout(nn.Module):
    """Dropout doubles what it keeps, and that overflows."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.size = size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.dropout(x.sign() * self.size)
        return result


class Large(nn.Module):
    """Every number is large, but finite: their sum is not, and neither are their squares."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, self.size, -self.size).to(x.dtype) + 0 * x


class UseLarge(nn.Module):
    def __init__(self, size: float) -> None:
        super().__init__()
        self.inner = Large(size)

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.inner(x).sign()


class Wide(nn.Module):
    """Numbers of float64 that float32 cannot hold."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double() * 1e300


class UseWide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Wide()

    def forward(self, x: torch.Tensor) -> Any:
        return (self.inner(x) * 1e-300).to(x.dtype)


class OddOutputs(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x[:0], x > 0, x.argmax(-1), None, "word", 3, x


class UseOddOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = OddOutputs()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x)[-1]
        return result


class WithoutNaN(nn.Module):
    """Takes missing values out, and goes on with another module."""

    def __init__(self, after: nn.Module) -> None:
        super().__init__()
        self.after = after

    def forward(self, x: torch.Tensor) -> Any:
        return self.after(torch.where(x.isnan(), 0.0, x))


class Weighted(nn.Module):
    def __init__(self, gradient: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.gradient = gradient

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * inflated(self.weight, self.gradient)


class Branch(nn.Module):
    """Its gradient has one large element."""

    def __init__(self, gradient: float) -> None:
        super().__init__()
        self.gradient = gradient

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return inflated(x, self.gradient) * 1.0


class Fork(nn.Module):
    """The gradients of two branches are finite, their sum is not."""

    def __init__(self, gradient: float) -> None:
        super().__init__()
        self.left = Branch(gradient)
        self.right = Branch(gradient)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.left(x) + self.right(x)
        return result


origin("NaN in a dataclass")(into_leaf(UseFeatures, *NAN, inner="inner"))
origin("NaN in a complex tensor")(into_leaf(UseComplex, *NAN, inner="inner"))
origin("NaN that does not come again")(into_leaf(OnlyOnce, *NAN))


@origin("dropout overflows")
def _dropout_overflows(subject: Subject) -> Right:
    subject.put(subject.at.leaf, LargeDropout(0.8 * subject.largest))
    subject.module(f"{subject.at.leaf}.dropout").train()
    return Right(f"{subject.at.leaf}.dropout", (*UP, *DOWN))


@origin("weight norm of a row of 0")
def _weight_norm(subject: Subject) -> Right:
    weight_norm(subject.module(subject.at.linear), dim=None)  # type: ignore[arg-type]
    with torch.no_grad():
        subject.model.get_parameter(
            f"{subject.at.linear}.parametrizations.weight.original1"
        ).zero_()
    return Right(f"{subject.at.linear}.parametrizations.weight.0", NAN)


@origin("a hook of one's own divides by 0")
def _hook(subject: Subject) -> Right:
    subject.module(subject.at.leaf).register_forward_hook(
        lambda module, args, output: output / torch.zeros_like(output)
    )
    return Right(subject.at.leaf, (*NAN, *UP, *DOWN))


@origin("gradients of a tied weight overflow in their sum", "gpt2", why="tied in GPT-2")
def _tied(subject: Subject) -> Right:
    head, table = subject.module("lm_head"), subject.module("transformer.wte")
    value = 0.6 * subject.largest
    head.forward = partial(with_weight, head, value)
    weight = table.get_parameter("weight")
    table.forward = lambda ids: functional.embedding(ids, inflated(weight, value))
    name = "transformer.wte"
    return Right(name, UP, Site.SUM, Direction.BACKWARD, parameter=f"{name}.weight")


@origin("gradients of two branches overflow in their sum")
def _fork(subject: Subject) -> Right:
    subject.put(subject.at.leaf, Fork(0.6 * subject.largest))
    return Right(subject.at.leaf, UP, Site.SUM, Direction.BACKWARD)


@legal("numbers just below the largest")
def _large(subject: Subject) -> None:
    subject.put(subject.at.leaf, UseLarge(0.9 * subject.largest))


@legal("a gradient just below the largest number")
def _large_gradient(subject: Subject) -> None:
    subject.put(subject.at.leaf, Weighted(0.9 * subject.largest))


@legal("float64 beyond float32")
def _wide(subject: Subject) -> None:
    subject.put(subject.at.leaf, UseWide())


@legal("outputs that are empty, bool, integer, or no tensor")
def _odd_outputs(subject: Subject) -> None:
    subject.put(subject.at.leaf, UseOddOutputs())


@legal(
    "NaN in the input that the model takes out", "cnn", why="its input is not of floating numbers"
)
def _missing_values(subject: Subject) -> None:
    subject.put("stem.0", WithoutNaN(subject.module("stem.0")))
    subject.args[0][0, 0, 0, 0] = torch.nan


@legal(
    "NaN weights that are not used", "minilm", why="its embeddings are tied to what uses them all"
)
def _unused_row(subject: Subject) -> None:
    with torch.no_grad():
        subject.module("embeddings.word_embeddings").get_parameter("weight")[5] = torch.nan


@legal(
    "sparse gradients",
    "minilm",
    "float32",
    why="MiniLM's embeddings are the only ones that are not tied",
)
def _sparse(subject: Subject) -> None:
    table = subject.module("embeddings.word_embeddings")
    assert isinstance(table, nn.Embedding)
    table.sparse = True


@legal("a gradient penalty", "cnn", why="its input is not of floating numbers")
def _penalty(subject: Subject) -> None:
    given = subject.args[0].requires_grad_()

    def penalty(output: Any) -> torch.Tensor:
        slope: torch.Tensor = torch.autograd.grad(answer(output).sum(), given, create_graph=True)[0]
        return slope.float().square().sum()

    subject.loss = penalty


@legal("two batches in a step")
def _two_batches(subject: Subject) -> None:
    subject.batches = 2


@legal("parameters that take no gradient")
def _frozen(subject: Subject) -> None:
    for name, parameter in subject.model.named_parameters():
        parameter.requires_grad_(subject.at.linear in name)


@legal("a gradient that the scaler skips", "float32", why="a scaler is for parameters in float32")
def _scaler(subject: Subject) -> None:
    subject.autocast = torch.float16
    subject.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    subject.optimizer = torch.optim.SGD(subject.model.parameters(), 1e-3)
