"""A module call, and all that is needed to run it again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import nn

from accucompare.findings.log import Finding
from accucompare.live.operators import RandomState


@dataclass(eq=False)
class Snapshot:
    """What one module call was given."""

    module: nn.Module  # the live module; its parameters are as they were at the call
    # name, call: its qualified name, and which of its calls in the step
    name: str
    call: int
    # args, kwargs: copies made before the call, in the same structure. A tensor given twice should
    # be one copy; a copy should require grad if its original did.
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    # the states of the random generators at the call's start
    random: RandomState = field(default_factory=RandomState)
    autocast: dict[str, Any] = field(default_factory=dict)  # ``autocast_now``'s at the call
    # copies of the module's buffers before the call, by name in the module; others are taken from
    # the module
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    # each output's gradient, if a backward brings it, by the path that ``leaves`` gives
    grads: dict[str, torch.Tensor] = field(default_factory=dict)
    grad_enabled: bool = True  # whether the call was made with gradients on
    # plain attributes (numbers or text) of the module and its parts at that time: it may count its
    # calls
    numbers: dict[nn.Module, dict[str, Any]] = field(default_factory=dict)


def always(grad: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """A tensor's hook that replaces its gradient by this one, which sums up all uses."""

    def give(_: torch.Tensor) -> torch.Tensor:
        return grad.clone()

    return give


class Autocast(msgspec.Struct):
    """Autocast of one type of device."""

    enabled: bool
    dtype: str


class SnapshotDescription(msgspec.Struct, kw_only=True):
    """What a reproducer's manifest holds beside any bundle's."""

    found: Finding
    device: str
    autocast: dict[str, Autocast]  # in force, by type of device
    grad_enabled: bool
    kind: str
    missing: str | None  # why the module has to be made by hand; ``None`` if it has not
    # training, other_mode: the module's mode, and the names of its parts in the other mode
    training: bool
    other_mode: list[str]
    # aliases, tied: further names of modules and of tensors inside it, each with the first
    aliases: dict[str, str]
    tied: dict[str, str] = {}
    lost: dict[str, str] = {}  # what could not be saved: its place, and what it is
    strides: dict[str, list[int]] = {}  # of tensors not in row-major order, by role and name
    # inputs_with_grad, parameters_with_grad: those that required grad
    inputs_with_grad: list[str] = []
    parameters_with_grad: list[str] = []
    # random, grads, attributes: records: generator states by device, output gradients by path,
    # tensors that are plain attributes by name
    random: dict[str, str] = {}
    grads: dict[str, str] = {}
    attributes: dict[str, str] = {}
