"""The CPU: always there."""

from __future__ import annotations

import platform
from typing import Any

import torch


def open_device(index: int | None) -> torch.device:
    return torch.device("cpu")


def describe(index: int | None) -> dict[str, Any]:
    return {"type": "cpu", "name": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"}


def flags() -> dict[str, Any]:
    return {"mkldnn.enabled": bool(torch.backends.mkldnn.enabled)}


def host_memory(nbytes: int) -> torch.Tensor:
    with torch.inference_mode(False):  # or nothing could be written into it later, outside of that mode
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")


def copy_to_host(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source)
