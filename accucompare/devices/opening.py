"""How a device is named, opened and explained."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from accucompare.devices.software import INSTALL, SEE, loading_failed
from accucompare.errors import DeviceError, UsageError

if TYPE_CHECKING:
    import torch

    from accucompare.devices.cpu import Cpu

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


def backend(type: str) -> Cpu:
    """What a type of device does. A type without a class of its own gets the CPU's."""
    return _made(type if type in TYPES else "cpu")


@cache
def _made(name: str) -> Cpu:
    module = importlib.import_module(f"accucompare.devices.{name}")
    made: Cpu = getattr(module, name.capitalize())()
    return made


def open_device(name: DeviceName) -> torch.device:
    """Import torch with what the device needs, and make sure that the device is there.

    Libraries' prints go to standard error meanwhile: torch_npu prints warnings, and standard output
    is for results. Raises DeviceError if torch, the device's software, or the device itself is
    missing."""
    # `import torch` would fail where torch_npu is installed without CANN
    if name.type != "npu":
        os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    with _printing_to_stderr(), _no_search_for_garbage():
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


@contextlib.contextmanager
def _no_search_for_garbage() -> Iterator[None]:
    """An import makes hardly any, and the search takes a third of torch's. What is there by then
    is not searched again."""
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


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
