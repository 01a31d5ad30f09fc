"""Ascend NPUs through torch_npu."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import torch

from accucompare.devices.streams import copy_to_host, host_memory
from accucompare.errors import DeviceError

__all__ = ["copy_to_host", "describe", "flags", "host_memory", "open_device"]

#: Variables that torch_npu and CANN read once, and that change numbers or their order.
_ENVIRONMENT = ("ASCEND_LAUNCH_BLOCKING", "HCCL_DETERMINISTIC", "INF_NAN_MODE_ENABLE", "INF_NAN_MODE_FORCE_DISABLE", "TASK_QUEUE_ENABLE")


def open_device(index: int | None) -> torch.device:
    """Import torch_npu and check that the NPU is there.

    Raises:
        DeviceError: if torch_npu, CANN or the NPU is missing.
    """
    try:
        importlib.import_module("torch_npu")
    except ModuleNotFoundError as error:
        if error.name != "torch_npu":
            raise DeviceError(f"torch_npu cannot be imported ({error}); pip install accucompare[npu]") from None
        raise DeviceError("--device npu: torch_npu is not installed; pip install accucompare[npu]") from None
    except (ImportError, OSError, RuntimeError) as error:
        raise DeviceError(
            f"torch_npu is installed but cannot be loaded ({error}); is CANN there? "
            "Run `source /usr/local/Ascend/ascend-toolkit/set_env.sh` (where CANN is installed) and try again"
        ) from None
    try:
        count = _npu().device_count() if _npu().is_available() else 0
        if count == 0:
            raise DeviceError("--device npu: no NPU is available; see whether `npu-smi info` lists one")
        if index is not None and index >= count:
            raise DeviceError(f"--device npu:{index}: there are {count} NPU(s), numbered from 0")
        device = torch.device("npu", index or 0)
        _npu().set_device(device)
    except RuntimeError as error:  # of the driver; the first of its many lines says what it is
        raise DeviceError(f"--device npu: the NPU cannot be opened ({str(error).partition(chr(10))[0]}); see `npu-smi info`") from None
    return device


def describe(index: int | None) -> dict[str, Any]:
    return {"type": "npu", "name": _npu().get_device_name(index), "cann": _cann_version(), "driver": _driver_version()}


def flags() -> dict[str, Any]:
    return {
        "npu.matmul.allow_hf32": _npu().matmul.allow_hf32,
        "npu.conv.allow_hf32": _npu().conv.allow_hf32,
        **{name: os.environ.get(name) for name in _ENVIRONMENT},
    }


def _npu() -> Any:
    return torch.npu  # type: ignore[attr-defined]  # torch_npu adds it


def _cann_version() -> str | None:
    home = os.environ.get("ASCEND_TOOLKIT_HOME") or os.environ.get("ASCEND_HOME_PATH") or "/usr/local/Ascend/ascend-toolkit/latest"
    return _last_line(Path(home) / "version.cfg") or _last_line(Path(home) / "version.info")


def _driver_version() -> str | None:
    path = Path("/usr/local/Ascend/driver/version.info")
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return next((line.partition("=")[2] for line in lines if line.startswith("Version=")), None)


def _last_line(path: Path) -> str | None:
    lines = path.read_text(errors="replace").strip().splitlines() if path.is_file() else []
    return lines[-1] if lines else None
