"""From a live tensor to bits on the host: a copy that nothing can overwrite later."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash
from torch._subclasses.fake_tensor import FakeTensor

from accucompare.bundle.dtypes import DTYPES, Array
from accucompare.bundle.records import Layout
from accucompare.capture.values import describe

_SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


class HostValue(NamedTuple):
    """A value as a record keeps it: its bits, or why there are none."""

    array: Array | None
    shape: tuple[int, ...]
    dtype: str
    layout: Layout
    detail: str = ""
    digest: str | None = None  # of a string, which has no array but can be compared


def dtype_name(dtype: torch.dtype) -> str:
    """PyTorch's name without ``torch.``"""
    return str(dtype).removeprefix("torch.")


def tensor_bytes(tensor: torch.Tensor) -> int:
    """How much memory a host copy of a tensor takes; 0 for one that has no plain data."""
    try:
        return tensor.numel() * tensor.element_size()
    except RuntimeError:  # a nested tensor
        return 0


def to_host(tensor: torch.Tensor) -> HostValue:
    """Copy a tensor to the host, bit for bit; never raises.

    A tensor that has no plain data (sparse, meta, quantized, nested, inside vmap) or cannot be copied comes without an array.
    """
    dtype = dtype_name(tensor.dtype)
    try:
        layout = _layout(tensor)
        if layout in (Layout.NESTED, Layout.BATCHED):
            return HostValue(None, (), dtype, layout)
        shape = tuple(int(length) for length in tensor.shape)
        if layout is not Layout.STRIDED:
            return HostValue(None, shape, dtype, layout)
        if dtype not in DTYPES:
            return HostValue(None, shape, dtype, Layout.UNREADABLE, "accucompare does not know this dtype")
        with torch.no_grad():
            return HostValue(_bits(_plain(tensor.detach())), shape, dtype, layout)
    except Exception as error:  # a tensor subclass may raise anything; the record then says so, and the model runs on
        return HostValue(None, (), dtype, Layout.UNREADABLE, f"{type(error).__name__}: {error}"[:200])


def scalar_to_host(value: Any) -> HostValue:
    """A Python number as a 0-d array; an int too large for 64 bits comes without one."""
    name = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}[
        next(kind for kind in (bool, int, float, complex) if isinstance(value, kind))
    ]
    try:
        return HostValue(np.array(value, DTYPES[name].storage), (), name, Layout.SCALAR)
    except OverflowError:
        return other_to_host(value)


def other_to_host(value: Any) -> HostValue:
    """A value that no array can hold: a string or a large int by its digest, anything else by its name."""
    comparable = isinstance(value, (str, bytes, int))
    digest = xxhash.xxh3_128_hexdigest(repr(value).encode()) if comparable else None
    return HostValue(None, (), "", Layout.OPAQUE, describe(value), digest)


def from_bits(raw: Array, dtype: str) -> torch.Tensor:
    """The inverse of the copy: a CPU tensor of the true type over the bits."""
    tensor = torch.from_numpy(raw)
    true = getattr(torch, dtype)
    return tensor if tensor.dtype == true else torch.from_numpy(raw.view(f"i{raw.dtype.itemsize}")).view(true)


def _layout(tensor: torch.Tensor) -> Layout:
    if torch._C._functorch.is_batchedtensor(tensor):
        return Layout.BATCHED
    if tensor.is_nested:
        return Layout.NESTED
    if isinstance(tensor, FakeTensor) or tensor.is_meta:
        return Layout.META
    if tensor.is_quantized:
        return Layout.QUANTIZED
    if tensor.layout not in (torch.strided, torch._mkldnn):  # type: ignore[attr-defined]
        return Layout.SPARSE
    return Layout.STRIDED


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy on the CPU; conjugate and negative bits are resolved by the copy."""
    if hasattr(tensor, "full_tensor"):  # DTensor; a collective, which every rank's hook enters in the same order
        tensor = tensor.full_tensor()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor)


def _bits(host: torch.Tensor) -> Array:
    storage = DTYPES[dtype_name(host.dtype)].storage
    if host.dtype in (torch.bfloat16, torch.complex32) or dtype_name(host.dtype).startswith("float8"):
        host = host.view(_SAME_WIDTH[host.element_size()])
    array: Array = host.numpy()
    return array.view(storage)
