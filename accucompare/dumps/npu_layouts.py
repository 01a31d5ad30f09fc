"""An NPU's tensor layouts (blocks of 16 or 32 that CANN calls NZ, 5HD and 6HD), put back into rows.

After CANN's documentation ("Data formats"); padded dimensions are cut to the tensor's own."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from accucompare.numbers import Array

_Shape = tuple[int, ...]

#: Formats whose elements lie in the order of their shape, by their numbers in dump_data.proto.
PLAIN_FORMATS = {
    0: "NCHW",
    1: "NHWC",
    2: "ND",
    14: "CHWN",
    16: "HWCN",
    27: "NDHWC",
    30: "NCDHW",
    31: "DHWCN",
    34: "CN",
    35: "NC",
    36: "DHWNC",
}


def _from_nz(array: Array, original: _Shape) -> Array | None:
    """``[…, N1, M1, M0, N0]`` to ``[…, M, N]``."""
    if array.ndim < 4 or len(original) != array.ndim - 2 or array.shape[:-4] != original[:-2]:
        return None
    *_, n1, m1, m0, n0 = array.shape
    rows = np.moveaxis(array, -4, -2).reshape(*array.shape[:-4], m1 * m0, n1 * n0)
    return rows[..., : original[-2], : original[-1]]


def _from_channel_blocks(array: Array, original: _Shape) -> Array | None:
    """``[N, …, C1, H, W, C0]`` to ``[N, C, …, H, W]``, or ``[N, …, H, W, C]`` if only that fits."""
    if array.ndim < 5 or len(original) != array.ndim - 1:
        return None
    *lead, c1, h, w, c0 = array.shape
    places = (*lead, h, w)
    channels_last = np.moveaxis(array, -4, -2).reshape(*places, c1 * c0)
    if (original[0], *original[2:]) == places:
        return np.moveaxis(channels_last[..., : original[1]], -1, 1)
    return channels_last[..., : original[-1]] if original[:-1] == places else None


#: Formats that can be put into rows if the tensor's own shape is known.
BLOCKED: dict[int, tuple[str, Callable[[Array, _Shape], Array | None]]] = {
    3: ("NC1HWC0", _from_channel_blocks),
    29: ("FRACTAL_NZ", _from_nz),
    32: ("NDC1HWC0", _from_channel_blocks),
}


def in_rows(array: Array, format: int, original: _Shape) -> Array | None:
    """The elements in the order of the tensor's own shape; ``None`` if the shapes do not fit."""
    _, undo = BLOCKED[format]
    if math.prod(original) > array.size:
        return None
    found = undo(array, original)
    return found if found is not None and found.shape == original else None
