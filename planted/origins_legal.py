"""Legal steps: infinities that harm nothing, and steps without any."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from planted import origins_modules as planted
from planted.origins_catalogue import NO_MASK, Plant, checkpointed, compiled, masked, origin
from planted.origins_models import Subject

_TEXT = ("gpt2", "t5", "minilm")


def legal(name: str, *only: str, why: str = "") -> Callable[[Plant], Plant]:
    return origin(name, *only, why=why, legal=True)


def _leaf(module: Callable[[], nn.Module], **options: Any) -> Plant:
    def plant(subject: Subject) -> None:
        subject.put(subject.at.leaf, module())
        subject.options = options

    return plant


legal("scores of −Inf, allowed by name")(_leaf(planted.Attend, allow=("*.scores",)))
legal("scores of −Inf inside a module")(_leaf(planted.MaskedInside))
legal("a running minimum from +Inf")(_leaf(planted.RunningMinimum))
legal("a gradient of NaN inside a module")(_leaf(planted.QuietGradient))


@legal("nothing planted")
def _nothing(subject: Subject) -> None:
    pass


@legal("−Inf mask by keyword", *_TEXT, why=NO_MASK)
def _keyword(subject: Subject) -> None:
    subject.kwargs["attention_mask"] = masked(subject)


@legal("−Inf mask by position", *_TEXT, why=NO_MASK)
def _position(subject: Subject) -> None:
    _keyword(subject)
    parameters = list(inspect.signature(subject.model.forward).parameters)
    parameters = parameters[: parameters.index("attention_mask") + 1]
    subject.args = tuple(subject.kwargs.pop(name, None) for name in parameters)


@legal("−Inf mask made by the parent", *_TEXT, why=NO_MASK)
def _made_by_parent(subject: Subject) -> None:
    module = subject.module(subject.at.passes_mask)
    forward, mask = module.forward, masked(subject)
    signature = inspect.signature(forward)

    def changed(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments["attention_mask"] = torch.zeros_like(mask).masked_fill(mask < 0, -torch.inf)
        return forward(*bound.args, **bound.kwargs)

    module.forward = changed


@legal("mask of the smallest number, padding on the right", *_TEXT, why=NO_MASK)
def _padded(subject: Subject) -> None:
    _pad(subject, slice(-5, None))


@legal("mask of the smallest number, padding on the left", *_TEXT, why=NO_MASK)
def _padded_left(subject: Subject) -> None:
    _pad(subject, slice(None, 5))


def _pad(subject: Subject, where: slice) -> None:
    """A mask of 1 and 0 for the end of one sentence; the model makes its type's smallest number of
    0.
    """
    mask = torch.ones_like(subject.kwargs["input_ids"])
    mask[1, where] = 0
    subject.kwargs["attention_mask"] = mask


@legal("dropout")
def _dropout(subject: Subject) -> None:
    subject.model.train()
    for module in subject.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3
    if subject.name == "cnn":
        subject.put(subject.at.leaf, nn.Dropout(0.3))


@legal("a scores module that is allowed, checkpointed")
def _checkpointed(subject: Subject) -> None:
    if subject.name != "cnn":
        subject.put(subject.at.leaf, planted.Attend())
    subject.options = {"allow": ("*.scores",)}
    checkpointed(subject, reentrant=False)


@legal("nothing planted, under autocast(bfloat16)", "float32", why="autocast is tried on float32")
def _autocast(subject: Subject) -> None:
    subject.autocast = torch.bfloat16


@legal("nothing planted, compiled")
def _compiled(subject: Subject) -> None:
    compiled(subject)
