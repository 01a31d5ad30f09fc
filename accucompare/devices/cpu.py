"""The CPU: always there."""

from __future__ import annotations

import contextlib
import mmap
import platform
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from accucompare.errors import UsageError

_HUGE_PAGE = 2 << 20
#: Blocks from this size on use huge pages: glibc would take each from the system and give it back.
_LARGE = 8 << 20


class Cpu:
    """What every device has, and what the CPU does."""

    #: The reduced precision of float32 products that it can allow: ``"hf32"`` or ``"tf32"``.
    REDUCED: str | None = None
    #: The type in which it adds up sketches of its tensors (``live.values.device_sketch``):
    #: ``"float64"`` or ``"float32"``; ``None`` where the host does that.
    SKETCHES_IN: str | None = None

    def open(self, index: int | None) -> torch.device:
        """Make sure that the device is there. Raises DeviceError if its software or the device
        itself is missing: what, why, and the cure."""
        return torch.device("cpu")

    def count(self) -> int:
        """How many devices there are."""
        return 1

    def describe(self, index: int | None) -> dict[str, Any]:
        """Its type and name, and the versions of its software."""
        return {
            "type": "cpu",
            "name": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        }

    def flags(self) -> dict[str, Any]:
        """The current settings that change numbers: of torch as a whole, and of oneDNN."""
        try:
            precision = torch.get_float32_matmul_precision()
        except RuntimeError:  # torch 2.9's fp32_precision was set for one backend alone
            precision = "mixed"
        mkldnn = torch.backends.mkldnn
        products = {  # since torch 2.9
            f"mkldnn.{name}.fp32_precision": getattr(mkldnn, name).fp32_precision
            for name in ("matmul", "conv", "rnn")
            if hasattr(getattr(mkldnn, name, None), "fp32_precision")
        }
        return {
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
            "float32_matmul_precision": precision,
            "mkldnn.enabled": bool(mkldnn.enabled),
            **products,
        }

    @contextlib.contextmanager
    def numerics(self, deterministic: bool, reduced: bool | None) -> Iterator[None]:
        """Within the context, be deterministic (operators that cannot be warn and run); allow or
        forbid reduced precision, if not None.

        Uses the debug mode, and only if it changes: ``use_deterministic_algorithms`` also imports
        inductor, which takes seconds and is not needed in eager mode.
        """
        before = torch.get_deterministic_debug_mode()
        if deterministic and not before:
            torch.set_deterministic_debug_mode("warn")
        try:
            yield
        finally:
            if torch.get_deterministic_debug_mode() != before:  # the model may have set it, too
                torch.set_deterministic_debug_mode(before)

    def synchronize(self, device: torch.device) -> None:
        """Wait until everything launched on the device is done, and raise its errors."""

    def refuse_in_graph(self, device: torch.device) -> None:
        """Raise RuntimeError while a graph of the device is captured: there are no values yet."""

    def overflowed(self, device: torch.device) -> bool | None:
        """Whether an operator overflowed since the last call; ``None`` where Inf and NaN tell."""
        return None

    def saturates(self) -> bool:
        """Whether overflow gives a type's largest number (float16: 65504) in place of Inf."""
        return False

    def kernel_dump(self, directory: Path) -> AbstractContextManager[None]:
        """Within the context, the device's software dumps each kernel's inputs and outputs.

        Raises:
            UsageError: at once where there is no such dump; on entering, if the directory is
                unwritable.
            DeviceError: if the device's software refuses; never in place of the body's error.
        """
        raise UsageError(
            "kernel_dump (--kernel-dump): only an NPU has kernel dumps; level op looks into the"
            " operators of every device"
        )

    def unsupported(self) -> Collection[str]:
        """The operators, such as ``aten::huber_loss``, that run on the CPU for lack of a kernel."""
        return ()

    def host_memory(self, nbytes: int) -> torch.Tensor:
        """``nbytes`` of the host's memory, of the kind that the device copies into fastest."""
        # memory made in inference mode cannot be written into outside of it
        with torch.inference_mode(False):
            if nbytes >= _LARGE and (memory := _huge_pages(nbytes)) is not None:
                return torch.frombuffer(memory, dtype=torch.uint8, count=nbytes)
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu")

    def copy_to_host(self, source: torch.Tensor, target: torch.Tensor) -> Callable[[], None] | None:
        """Copy a tensor's values into a contiguous tensor of its dtype and shape, on the host.
        Returns what to call, from any thread, before the target is read; ``None`` if the copy is
        done."""
        target.copy_(source)
        return None


def _huge_pages(nbytes: int) -> mmap.mmap | None:
    """Fresh memory in 2 MiB pages, if possible: copies into 4 KiB pages take up to 5x as long."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        memory = mmap.mmap(
            -1, -(-nbytes // _HUGE_PAGE) * _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        memory.madvise(mmap.MADV_HUGEPAGE)
    except (OSError, ValueError):  # no huge pages, or not enough memory in one piece
        return None
    return memory
