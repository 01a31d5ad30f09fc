"""The origins of the backward."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from accucompare.findings.log.events import Direction, Site
from planted import origins_modules as planted
from planted.origins_catalogue import (
    DOWN,
    NAN,
    ORIGINS,
    UP,
    Plant,
    Right,
    checkpointed,
    first,
    inside,
    instead,
    into_leaf,
    origin,
)
from planted.origins_models import Subject, answer

BACKWARD = Direction.BACKWARD
_HALF = "only float16 overflows so early"

#: The gradient of a root at 0 is Inf times what comes in, and NaN if that is 0; what goes out of
#: the module is NaN.
_ROOT = (*NAN, *UP, *DOWN)

origin("gradient of a root at 0")(into_leaf(planted.SqrtGradient, *_ROOT, direction=BACKWARD))
origin("gradient of a root behind where")(
    into_leaf(planted.WhereGradient, *_ROOT, direction=BACKWARD)
)
origin("gradient of a norm at 0")(into_leaf(planted.NormGradient, *_ROOT, direction=BACKWARD))
origin("gradient overflows where it is cast", "float16", why=_HALF)(
    into_leaf(planted.CastGradient, *UP, *DOWN, direction=BACKWARD)
)


@origin("gradient of the parent's own code")
def _glue(subject: Subject) -> Right:
    def root(tensor: torch.Tensor) -> torch.Tensor:
        return tensor + torch.sqrt((tensor * 0).abs())

    instead(subject, subject.at.parent, partial(first, change=root))
    return Right(subject.at.parent, _ROOT, Site.GLUE, BACKWARD, near=(f"after {subject.at.last}",))


def with_weight(module: Any, value: float, x: torch.Tensor) -> Any:
    """What a linear module or a convolution does, but with another gradient of its weight."""
    weight = planted.inflated(module.weight, value)
    if isinstance(module, nn.Conv2d):
        return module._conv_forward(x, weight, module.bias)
    if isinstance(module, nn.Linear):
        return functional.linear(x, weight, module.bias)
    return functional.linear(x, weight.t(), module.bias)


def _parameter(share: float, site: Site, batches: int) -> Plant:
    """A parameter's gradient has one element of so many times the largest number, in each
    micro-batch.
    """

    def plant(subject: Subject) -> Right:
        linear: Any = subject.module(subject.at.linear)
        value = torch.inf if share == torch.inf else share * subject.largest
        linear.forward = partial(with_weight, linear, value)
        subject.batches = batches
        return Right(subject.at.linear, UP, site, BACKWARD, parameter=f"{subject.at.linear}.weight")

    return plant


origin("Inf in one parameter's gradient")(_parameter(torch.inf, Site.MODULE, 1))
origin("gradients of micro-batches overflow in their sum")(_parameter(0.6, Site.SUM, 2))


@origin("gradients of two calls overflow in their sum")
def _two_calls(subject: Subject) -> Right:
    subject.put(subject.at.leaf, planted.WeightedTwice(0.6 * subject.largest))
    name = f"{subject.at.leaf}.scale"
    return Right(name, UP, Site.SUM, BACKWARD, parameter=f"{name}.weight")


@origin("log of 0 in the loss")
def _loss(subject: Subject) -> Right:
    subject.loss = lambda output: torch.log(answer(output).float().square() * 0).sum()
    return Right("", (*NAN, *UP, *DOWN), Site.LOSS, BACKWARD)


@origin("loss scale too large", "float16", why=_HALF)
def _scale(subject: Subject) -> Right:
    subject.loss = lambda output: answer(output).float().sum() * 2.0**40
    return Right("", (*UP, *DOWN), Site.LOSS, BACKWARD)


def _checkpointed(reentrant: bool) -> Plant:
    def plant(subject: Subject) -> Right:
        subject.put(inside(subject), planted.SqrtGradient())
        checkpointed(subject, reentrant)
        return Right(inside(subject), _ROOT, direction=BACKWARD)

    return plant


origin("gradient of a root at 0, checkpointed")(_checkpointed(reentrant=False))
origin("gradient of a root at 0, checkpointed, reentrant")(_checkpointed(reentrant=True))


@origin(
    "gradient of a root at 0, under autocast(bfloat16)",
    "float32",
    why="autocast is tried on float32",
)
def _autocast(subject: Subject) -> Right | None:
    subject.autocast = torch.bfloat16
    return ORIGINS["gradient of a root at 0"].plant(subject)
