"""Reading and restoring autocast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

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


def describe_autocast(device: torch.device) -> dict[str, Any] | None:
    """The autocast in force: device type and dtype; ``None`` if it is off."""
    for kind in dict.fromkeys((device.type, "cpu")):
        if torch.is_autocast_enabled(kind):
            return {"device": kind, "dtype": dtype_name(torch.get_autocast_dtype(kind))}
    return None
