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
