"""Reading and restoring autocast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from accucompare.live.values import dtype_name


def autocast_now() -> dict[str, Any]:
    """Autocast now, by device type: ``{"cpu": {"enabled": True, "dtype": "bfloat16"}, …}``."""
    kinds = ["cpu", "cuda", *(["npu"] if hasattr(torch, "npu") else [])]
    return {
        kind: {
            "enabled": torch.is_autocast_enabled(kind),
            "dtype": dtype_name(torch.get_autocast_dtype(kind)),
        }
        for kind in kinds
    }


@contextlib.contextmanager
def autocast_then(table: Mapping[str, Any]) -> Iterator[None]:
    """Within the context, set the autocast that ``autocast_now`` returned."""
    with contextlib.ExitStack() as stack:
        for kind, entry in table.items():
            if entry["enabled"] or torch.is_autocast_enabled(kind):
                stack.enter_context(
                    torch.autocast(kind, getattr(torch, entry["dtype"]), enabled=entry["enabled"])
                )
        yield


def describe_autocast(device: torch.device, model: nn.Module) -> dict[str, Any] | None:
    """The autocast in force, or the type in which FSDP or DDP let the model compute: device type,
    dtype, and by what policy; ``None`` without any."""
    for kind in dict.fromkeys((device.type, "cpu")):
        if torch.is_autocast_enabled(kind):
            return {"device": kind, "dtype": dtype_name(torch.get_autocast_dtype(kind))}
    for module in model.modules():
        policy: Any = getattr(module, "mixed_precision", None)
        if (state := getattr(module, "_get_fsdp_state", None)) is not None:
            policy = getattr(state(), "_mp_policy", None)
        dtype = getattr(policy, "param_dtype", None)
        if isinstance(dtype, torch.dtype):
            by = type(policy).__name__
            return {"device": device.type, "dtype": dtype_name(dtype), "by": by}
    return None
