"""How a device is named, opened and explained."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from accucompare.devices.software import INSTALL, SEE, loading_failed
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
        """Read a device name. UsageError if the type is unknown."""
        match = re.fullmatch(r"(cpu|cuda|npu)(?::(\d+))?", text)
        if match is None or (match[1] == "cpu" and match[2]):
            raise UsageError(f"device {text} (--device): must be cpu, cuda, cuda:N, npu or npu:N")
        return cls(match[1], int(match[2]) if match[2] else None)


class Backend(Protocol):
    """What each device's class has."""

    #: The reduced precision of float32 products that it can allow: ``"hf32"``, ``"tf32"`` or
    #: ``None``.
    REDUCED: str | None
    #: The type in which it adds up sketches of its tensors (``live.values.device_sketch``):
    #: ``"float64"`` or ``"float32"``; ``None`` where the host does that.
    SKETCHES_IN: str | None

    def open(self, index: int | None) -> torch.device:
        """Make sure that the device is there.

        Raises:
            DeviceError: if its software or the device itself is missing: what, why, and the cure.
        """

    def count(self) -> int:
        """How many devices there are."""

    def describe(self, index: int | None) -> dict[str, Any]:
        """Its type and name, and the versions of its software."""

    def flags(self) -> dict[str, Any]:
        """The current settings that change numbers."""

    def numerics(self, deterministic: bool, reduced: bool | None) -> AbstractContextManager[None]:
        """Within the context, be deterministic; allow or forbid reduced precision, if not None."""

    def synchronize(self, device: torch.device) -> None:
        """Wait until everything launched on the device is done, and raise its errors."""

    def refuse_in_graph(self, device: torch.device) -> None:
        """Raise RuntimeError while a graph of the device is captured: there are no values yet."""

    def overflowed(self, device: torch.device) -> bool | None:
        """Whether an operator overflowed since the last call; ``None`` where Inf and NaN tell."""

    def saturates(self) -> bool:
        """Whether overflow gives a type's largest number (float16: 65504) in place of Inf."""

    def kernel_dump(self, directory: Path) -> AbstractContextManager[None]:
        """Within the context, the device's software dumps each kernel's inputs and outputs.

        Raises:
            UsageError: at once where there is no such dump; on entering, if the directory is
                unwritable.
            DeviceError: if the device's software refuses; never in place of the body's error.
        """

    def unsupported(self) -> Collection[str]:
        """The operators, such as ``aten::huber_loss``, that run on the CPU for lack of a kernel."""

    def host_memory(self, nbytes: int) -> torch.Tensor:
        """``nbytes`` of the host's memory, of the kind that the device copies into fastest."""

    def copy_to_host(self, source: torch.Tensor, target: torch.Tensor) -> Callable[[], None] | None:
        """Copy a tensor's values into a contiguous tensor of its dtype and shape, on the host.

        Returns:
            What to call, from any thread, before the target is read; ``None`` if the copy is done.
        """


def backend(type: str) -> Backend:
    """What a type of device does. A type without a class of its own gets the CPU's."""
    return _made(type if type in TYPES else "cpu")


@cache
def _made(name: str) -> Backend:
    module = importlib.import_module(f"accucompare.devices.{name}")
    return cast(Backend, getattr(module, name.capitalize())())


def open_device(name: DeviceName) -> torch.device:
    """Import torch with what the device needs, and make sure that the device is there.

    Libraries' prints go to standard error meanwhile: torch_npu prints warnings, and standard output
    is for results.

    Raises:
        DeviceError: if torch, the device's software, or the device itself is missing.
    """
    # `import torch` would fail where torch_npu is installed without CANN
    if name.type != "npu":
        os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    with _printing_to_stderr():
        try:
            importlib.import_module("torch")
        except ImportError as error:
            if (error.name or "").split(".")[0] == "torch":
                raise DeviceError(
                    f"capturing needs PyTorch, which is not installed here: {INSTALL[name.type]}"
                ) from None
            raise DeviceError(f"torch cannot be imported ({error})") from None
        # a backend that torch loads has failed: the reason is the error's cause
        except RuntimeError as error:
            reason = error.__cause__ or error
            message = (
                loading_failed(reason)
                if "torch_npu" in str(error)
                else f"torch cannot be imported ({reason})"
            )
            raise DeviceError(message) from None
        return backend(name.type).open(name.index)


def explain(type: str, error: BaseException) -> str:
    """A device's error in a line or two, with the cure where one is known."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    summary = f"{error.__class__.__name__}: {lines[0] if lines else ''}"
    if "out of memory" in str(error).lower():
        return (
            f"{summary}\nUse --dtype bfloat16 or smaller inputs, or free the device: {SEE[type]}"
            " for who uses it"
        )
    return summary + (" …" if len(lines) > 1 else "")


@contextlib.contextmanager
def _printing_to_stderr() -> Iterator[None]:
    """Send what libraries print, in Python or in C, to standard error."""
    try:
        sys.stdout.flush()
        kept = os.dup(1)
    except (OSError, ValueError, AttributeError):  # there is no standard output
        yield
        return
    try:
        os.dup2(2, 1)
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
