"""Copies beside the host, from devices with streams: CUDA GPUs and Ascend NPUs alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from accucompare.devices.cpu import Cpu


class Streams(Cpu):
    def host_memory(self, nbytes: int) -> torch.Tensor:
        """Pinned memory, which a device can fill while the host goes on; else ordinary memory."""
        try:
            # memory made in inference mode cannot be written into outside of it
            with torch.inference_mode(False):
                return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        except RuntimeError:
            return super().host_memory(nbytes)

    def refuse_in_graph(self, device: torch.device) -> None:
        """Raise RuntimeError if the stream is being captured into a graph: nothing is computed, and
        a copy would become part of the graph."""
        capturing = getattr(torch.get_device_module(device), "is_current_stream_capturing", None)
        if capturing is not None and capturing():
            raise RuntimeError("a graph is being captured from the stream: there are no values yet")

    def copy_to_host(self, source: torch.Tensor, target: torch.Tensor) -> Callable[[], None] | None:
        """Begin a copy on the stream that computes the source: only later computations wait for it.

        The source is made contiguous on the device. torch_npu copies any other into a temporary
        first, and reads that at once.
        """
        source = source.resolve_conj().resolve_neg().contiguous()
        if not target.is_pinned():
            target.copy_(source)
            return None
        target.copy_(source, non_blocking=True)
        module: Any = torch.get_device_module(source.device)
        event = module.Event()
        event.record(module.current_stream(source.device))
        wait: Callable[[], None] = event.synchronize
        return wait
