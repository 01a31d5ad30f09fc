"""A module call, and all that is needed to run it again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn


@dataclass(frozen=True)
class RandomState:
    """The states of all random generators that a model may draw from: by device (``cpu``, ``cuda:0``, ``npu:0``); Python's; NumPy's."""

    devices: dict[str, torch.Tensor] = field(default_factory=dict)
    python: Any = None
    numpy: Any = None

    @classmethod
    def now(cls, device: torch.device) -> RandomState:
        devices = {"cpu": torch.get_rng_state()}
        if device.type != "cpu":
            devices[str(device)] = torch.get_device_module(device).get_rng_state(device)
        return cls(devices, random.getstate(), np.random.get_state())

    def restore(self) -> None:
        for name, state in self.devices.items():
            device = torch.device(name)
            if device.type == "cpu":
                torch.set_rng_state(state)
            else:
                torch.get_device_module(device).set_rng_state(state, device)
        random.setstate(self.python)
        np.random.set_state(self.numpy)


@dataclass(eq=False)
class Snapshot:
    """What one module call was given.

    Attributes:
        module: the live module; its parameters are as they were at the call.
        name, call: its qualified name, and which of its calls in the step.
        args, kwargs: copies made before the call, in the same structure. A tensor given twice should be one copy; a copy whose
            original required grad should require it, too.
        random: the states of the random generators at the call's start.
        autocast: that of ``autocast_now`` at the call.
        buffers: copies of the module's buffers before the call, by name in the module; what is not in it is taken from the module.
        grads: the gradient of each output, if a backward brings it, by the path that ``leaves`` gives.
        grad_enabled: whether the call was made with gradients on.
        numbers: plain attributes of the module, and of those in it, that are numbers or text, as they were then: it may count its calls.
    """

    module: nn.Module
    name: str
    call: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    random: RandomState = field(default_factory=RandomState)
    autocast: dict[str, Any] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    grads: dict[str, torch.Tensor] = field(default_factory=dict)
    grad_enabled: bool = True
    numbers: dict[nn.Module, dict[str, Any]] = field(default_factory=dict)
