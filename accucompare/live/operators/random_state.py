"""The states of random generators, read and restored."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch


def get_state(device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return torch.default_generator.get_state()
    state: torch.Tensor = torch.get_device_module(device).get_rng_state(device)
    return state


def set_state(device: torch.device, state: torch.Tensor) -> None:
    if device.type == "cpu":
        torch.default_generator.set_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


@dataclass(frozen=True)
class RandomState:
    """The states of the random generators that a model may draw from."""

    # by device: ``cpu``, ``cuda:0``, ``npu:0``
    devices: dict[str, torch.Tensor] = field(default_factory=dict)
    # python, numpy: of ``random`` and ``numpy.random``; ``None`` if unknown
    python: Any = None
    numpy: Any = None
    # Megatron's, by name; empty without it
    megatron: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def now(cls, device: torch.device) -> RandomState:
        devices = {
            str(each): get_state(each) for each in dict.fromkeys((torch.device("cpu"), device))
        }
        return cls(devices, random.getstate(), np.random.get_state(), _of_megatron())

    def restore(self) -> None:
        for name, state in self.devices.items():
            set_state(torch.device(name), state)
        if self.python is not None:
            random.setstate(self.python)
        if self.numpy is not None:
            np.random.set_state(self.numpy)
        if self.megatron:
            _megatrons_tracker().states_.update(self.megatron)


def _megatrons_tracker() -> Any:
    """Megatron's generators that differ between ranks (``fork`` switches to one), or ``None``."""
    return getattr(
        sys.modules.get("megatron.core.tensor_parallel.random"), "_CUDA_RNG_STATE_TRACKER", None
    )


def _of_megatron() -> dict[str, torch.Tensor]:
    states = getattr(_megatrons_tracker(), "states_", {})
    return {name: state for name, state in states.items() if isinstance(state, torch.Tensor)}


@contextlib.contextmanager
def random_state_kept(device: torch.device) -> Iterator[None]:
    """Restore the random states when the context ends."""
    state = RandomState.now(device)
    try:
        yield
    finally:
        state.restore()
