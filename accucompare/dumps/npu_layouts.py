"""An NPU's own arrangements of a tensor in memory, put back into rows: blocks of 16 or 32 that CANN
calls NZ, 5HD and 6HD.

The arrangements are those of CANN's documentation ("Data formats"): padded dimensions are cut to
the tensor's own."""

from __future__ import annotations

import math
from collections.abc import Callable

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
    lead = tuple(range(array.ndim - 4))
    first = len(lead)
    rows = array.transpose(*lead, first + 1, first + 2, first, first + 3).reshape(
        *array.shape[:-4], m1 * m0, n1 * n0
    )
    return rows[..., : original[-2], : original[-1]]


def _from_5hd(array: Array, original: _Shape) -> Array | None:
    """``[N, C1, H, W, C0]`` to ``[N, C, H, W]``, or ``[N, H, W, C]`` if only that fits."""
    if array.ndim != 5 or len(original) != 4:
        return None
    n, c1, h, w, c0 = array.shape
    channels_last = array.transpose(0, 2, 3, 1, 4).reshape(n, h, w, c1 * c0)
    if (original[0], *original[2:]) == (n, h, w):
        return channels_last[..., : original[1]].transpose(0, 3, 1, 2)
    return channels_last[..., : original[3]] if original[:3] == (n, h, w) else None


def _from_6hd(array: Array, original: _Shape) -> Array | None:
    """``[N, D, C1, H, W, C0]`` to ``[N, C, D, H, W]``, or ``[N, D, H, W, C]`` if only that fits."""
    if array.ndim != 6 or len(original) != 5:
        return None
    n, d, c1, h, w, c0 = array.shape
    channels_last = array.transpose(0, 1, 3, 4, 2, 5).reshape(n, d, h, w, c1 * c0)
    if (original[0], *original[2:]) == (n, d, h, w):
        return channels_last[..., : original[1]].transpose(0, 4, 1, 2, 3)
    return channels_last[..., : original[4]] if original[:4] == (n, d, h, w) else None


#: Formats that are put back where the tensor's own shape is known.
BLOCKED: dict[int, tuple[str, Callable[[Array, _Shape], Array | None]]] = {
    3: ("NC1HWC0", _from_5hd),
    29: ("FRACTAL_NZ", _from_nz),
    32: ("NDC1HWC0", _from_6hd),
}


def in_rows(array: Array, format: int, original: _Shape) -> Array | None:
    """The elements in the order of the tensor's own shape; ``None`` if the two shapes do not belong
    together.
    """
    _, undo = BLOCKED[format]
    if math.prod(original) > array.size:
        return None
    found = undo(array, original)
    return found if found is not None and found.shape == original else None
