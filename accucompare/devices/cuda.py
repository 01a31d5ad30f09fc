"""CUDA (and ROCm) GPUs."""

from __future__ import annotations

import os
from typing import Any

import torch

from accucompare.devices.streams import copy_to_host, host_memory
from accucompare.errors import DeviceError

__all__ = ["copy_to_host", "describe", "flags", "host_memory", "open_device"]


def open_device(index: int | None) -> torch.device:
    """Check that the GPU is there.

    Raises:
        DeviceError: if torch was built without CUDA, or there is no such GPU.
    """
    if torch.version.cuda is None and torch.version.hip is None:
        raise DeviceError(f"--device cuda: this torch ({torch.__version__}) is built without CUDA; install a CUDA build of torch")
    count = torch.cuda.device_count()
    if not torch.cuda.is_available() or count == 0:
        raise DeviceError("--device cuda: no GPU is available; see whether `nvidia-smi` lists one")
    if index is not None and index >= count:
        raise DeviceError(f"--device cuda:{index}: there are {count} GPU(s), numbered from 0")
    device = torch.device("cuda", torch.cuda.current_device() if index is None else index)
    torch.cuda.set_device(device)
    return device


def describe(index: int | None) -> dict[str, Any]:
    return {
        "type": "cuda",
        "name": torch.cuda.get_device_name(index),
        "capability": ".".join(map(str, torch.cuda.get_device_capability(index))),
        "cuda": torch.version.cuda or torch.version.hip,
        "driver": getattr(torch._C, "_cuda_getDriverVersion", lambda: None)(),
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
    }


def flags() -> dict[str, Any]:
    return {
        "cuda.matmul.allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
        "cudnn.deterministic": torch.backends.cudnn.deterministic,
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "CUBLAS_WORKSPACE_CONFIG": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }
