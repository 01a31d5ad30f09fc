"""What a device can be told as a whole, so that it computes more exactly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from accucompare.compare.fits import Switched
from accucompare.devices import backend
from accucompare.selection import FloatType


@dataclass(frozen=True)
class Switch:
    """One of them: in force while a context lasts."""

    what: Switched
    context: Callable[[], AbstractContextManager[Any]]


def switches_of(device: torch.device, dtype: FloatType) -> Sequence[Switch]:
    """Those that a device has for a type, in the order in which they are tried."""
    reduced = backend(device.type).REDUCED
    found = []
    if dtype is FloatType.FLOAT32:
        if reduced is not None:
            what = Switched.NO_HF32 if reduced == "hf32" else Switched.NO_TF32
            found.append(Switch(what, contextlib.nullcontext))  # an option of the recording
        return found
    if device.type == "cuda":
        found.append(Switch(Switched.WIDE_SUMS, _wide_sums))
    if reduced is not None:
        found.append(Switch(Switched.PLAIN_ATTENTION, lambda: sdpa_kernel(SDPBackend.MATH)))
    return found


@contextlib.contextmanager
def _wide_sums() -> Iterator[None]:
    """Add up products of half types in float32 to the end."""
    owner = torch.backends.cuda.matmul
    names = [f"allow_{kind}_reduced_precision_reduction" for kind in ("bf16", "fp16")]
    before = [getattr(owner, name) for name in names]
    try:
        for name in names:
            setattr(owner, name, False)
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(owner, name, value)
