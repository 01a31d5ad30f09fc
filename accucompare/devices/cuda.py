"""CUDA (and ROCm) GPUs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from accucompare.devices.streams import Streams
from accucompare.errors import DeviceError


class Cuda(Streams):
    """A GPU, by ``torch.cuda``."""

    REDUCED = "tf32"
    SKETCHES_IN = "float64"

    def open(self, index: int | None) -> torch.device:
        """Check that the GPU is there. Raises DeviceError if torch was built without CUDA, or there
        is no such GPU."""
        if torch.version.cuda is None and torch.version.hip is None:
            raise DeviceError(
                f"--device cuda: this torch ({torch.__version__}) is built without CUDA; install a"
                " CUDA build of torch"
            )
        found = self.count()
        if not torch.cuda.is_available() or found == 0:
            raise DeviceError(
                "--device cuda: no GPU is available; see whether `nvidia-smi` lists one"
            )
        if index is not None and index >= found:
            raise DeviceError(f"--device cuda:{index}: there are {found} GPU(s), numbered from 0")
        try:
            device = torch.device("cuda", torch.cuda.current_device() if index is None else index)
            torch.cuda.set_device(device)
        except RuntimeError as error:  # busy or out of memory: its first line says which
            raise DeviceError(
                f"--device cuda: the GPU cannot be opened ({str(error).partition(chr(10))[0]}); see"
                " `nvidia-smi`"
            ) from None
        return device

    def count(self) -> int:
        return torch.cuda.device_count()

    def describe(self, index: int | None) -> dict[str, Any]:
        return {
            "type": "cuda",
            "name": torch.cuda.get_device_name(index),
            "capability": ".".join(map(str, torch.cuda.get_device_capability(index))),
            "cuda": torch.version.cuda or torch.version.hip,
            "driver": getattr(torch._C, "_cuda_getDriverVersion", lambda: None)(),
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        }

    def flags(self) -> dict[str, Any]:
        return {
            **super().flags(),
            "cuda.matmul.allow_tf32": _allowed(_MATMUL),
            "cudnn.allow_tf32": _allowed(_CUDNN),
            "cuda.matmul.allow_fp16_reduced_precision_reduction": bool(
                torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
            ),
            "cuda.matmul.allow_bf16_reduced_precision_reduction": bool(
                torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
            ),
            "cudnn.deterministic": torch.backends.cudnn.deterministic,
            "cudnn.benchmark": torch.backends.cudnn.benchmark,
            "CUBLAS_WORKSPACE_CONFIG": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
            "NVIDIA_TF32_OVERRIDE": os.environ.get("NVIDIA_TF32_OVERRIDE"),
        }

    @contextlib.contextmanager
    def numerics(self, deterministic: bool, reduced: bool | None) -> Iterator[None]:
        """As ``Cpu.numerics``, also for cuBLAS and cuDNN; TF32 in products, convolutions, RNNs."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(super().numerics(deterministic, None))
            if deterministic:
                cudnn = torch.backends.cudnn
                stack.enter_context(_set(cudnn, "deterministic", True))
                stack.enter_context(_set(cudnn, "benchmark", False))
                stack.enter_context(_workspace())
            for family in (_MATMUL, _CUDNN) if reduced is not None else ():
                for owner, name, allow, forbid in _settings(family):
                    stack.enter_context(_set(owner, name, allow if reduced else forbid))
            yield

    def synchronize(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)


#: The holder of ``allow_tf32``, and those of ``fp32_precision``, which replaces it in torch 2.9.
_Family = tuple[Any, Callable[[], tuple[Any, ...]]]
_MATMUL: _Family = (torch.backends.cuda.matmul, lambda: (torch.backends.cuda.matmul,))
_CUDNN: _Family = (
    torch.backends.cudnn,
    lambda: (torch.backends.cudnn.conv, torch.backends.cudnn.rnn),  # type: ignore[attr-defined]
)


def _allowed(family: _Family) -> bool:
    """Whether TF32 is allowed. torch cannot read ``allow_tf32`` once ``fp32_precision`` is set."""
    try:
        return bool(family[0].allow_tf32)
    except RuntimeError:
        return any(each.fp32_precision == "tf32" for each in family[1]())


def _settings(family: _Family) -> list[tuple[Any, str, object, object]]:
    """What to set, as (owner, name, value that allows, value that forbids).

    ``allow_tf32`` is used only where nothing else is set: it overrules no ``fp32_precision``, and
    cannot restore what ``set_float32_matmul_precision`` did. Setting ``fp32_precision`` alone would
    make torch refuse to read the old flags.
    """
    backends = (torch.backends, torch.backends.cudnn)
    newer = any(getattr(backend, "fp32_precision", "none") != "none" for backend in backends)
    try:
        family[0].allow_tf32  # noqa: B018 - raises where fp32_precision is set
        newer = newer or torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:
        newer = True
    if newer and hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        return [(each, "fp32_precision", "tf32", "ieee") for each in family[1]()]
    return [(family[0], "allow_tf32", True, False)]


@contextlib.contextmanager
def _set(owner: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def _workspace() -> Iterator[None]:
    """Make cuBLAS deterministic (its docs, "Results reproducibility"); read at its first use."""
    given = "CUBLAS_WORKSPACE_CONFIG" in os.environ
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        yield
    finally:
        if not given:
            del os.environ["CUBLAS_WORKSPACE_CONFIG"]
