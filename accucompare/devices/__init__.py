"""What differs between devices: how each is opened, what it is called, and which of its settings change numbers.

One module per type of device, each with the functions of ``Backend``.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, cast

from accucompare.errors import DeviceError, UsageError

if TYPE_CHECKING:
    import torch

TYPES = ("cpu", "cuda", "npu")


@dataclass(frozen=True)
class DeviceName:
    """What ``--device`` says: ``cpu``, ``cuda``, ``cuda:1``, ``npu:0``."""

    type: str
    index: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> DeviceName:
        """Read a device name.

        Raises:
            UsageError: if it is of no known type.
        """
        match = re.fullmatch(r"(cpu|cuda|npu)(?::(\d+))?", text)
        if match is None or (match[1] == "cpu" and match[2]):
            raise UsageError(f"--device {text}: must be cpu, cuda, cuda:N, npu or npu:N")
        return cls(match[1], int(match[2]) if match[2] else None)


class Backend(Protocol):
    """The functions that each device's module has."""

    def open_device(self, index: int | None) -> torch.device: ...
    def describe(self, index: int | None) -> dict[str, Any]: ...
    def flags(self) -> dict[str, Any]: ...

    def host_memory(self, nbytes: int) -> torch.Tensor:
        """So many bytes of the host's memory, of the kind that the device copies into fastest."""

    def copy_to_host(self, source: torch.Tensor, target: torch.Tensor) -> Callable[[], None] | None:
        """Copy a tensor's values into a contiguous tensor of its dtype and shape, on the host.

        Returns:
            What to call, from any thread, before the target is read; ``None`` if the copy is done.
        """


@cache
def backend(type: str) -> Backend:
    """The module for a type of device; for a type without one, cpu's, which asks nothing of the device."""
    name = type if type in TYPES else "cpu"
    return cast(Backend, importlib.import_module(f"accucompare.devices.{name}"))


def open_device(name: DeviceName) -> torch.device:
    """Import torch with what the device needs, and make sure that the device is there.

    Raises:
        DeviceError: if torch, the device's software, or the device itself is missing.
    """
    if name.type != "npu":  # an installed torch_npu without CANN would keep torch from being imported at all
        os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    try:
        importlib.import_module("torch")
    except ImportError as error:
        if name.type != "npu" and (error.name or "").split(".")[0] == "torch":
            raise DeviceError("capturing needs PyTorch, which is not installed here: pip install torch") from None
        if name.type != "npu":
            raise DeviceError(f"torch cannot be imported ({error})") from None
        raise DeviceError(f"torch cannot be imported ({error}); for an NPU see: pip install accucompare[npu]") from None
    except RuntimeError as error:  # the message of torch's backend autoloading; the reason is its cause
        raise DeviceError(_autoload_message(error)) from None
    return backend(name.type).open_device(name.index)


def _autoload_message(error: RuntimeError) -> str:
    if "torch_npu" in str(error):
        return (
            f"torch_npu is installed but its CANN libraries are not found ({error.__cause__ or error}); "
            "run `source /usr/local/Ascend/ascend-toolkit/set_env.sh` (where CANN is installed) and try again"
        )
    return f"torch cannot be imported ({error})"
