"""Digests of tensors: equal digests, equal bytes."""

from __future__ import annotations

import xxhash

from accucompare.bundle.dtypes import DTYPES, ROUNDS_TO, Array, DType, round_to, widen
from accucompare.bundle.sums import BLOCK


def digest(raw: Array) -> str:
    """The digest of a contiguous array's bytes: xxh3, 128 bits, as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(raw.reshape(-1).view("u1"))


def fingerprint(raw: Array, dtype: DType) -> dict[str, str]:
    """A tensor's digest under its own type and under each narrower type that a candidate may run in.

    Two captures in different precision have the same weights exactly if the digests agree under the narrower type.

    Args:
        raw: contiguous array of ``dtype.storage``, any shape.
        dtype: its true type.

    Returns:
        Digests by dtype name.
    """
    digests = {dtype.name: digest(raw)}
    flat = raw.reshape(-1)
    for name in ROUNDS_TO.get(dtype.name, ()):
        hasher = xxhash.xxh3_128()
        for start in range(0, flat.size, BLOCK):
            hasher.update(round_to(widen(flat[start : start + BLOCK], dtype), DTYPES[name]).view("u1"))
        digests[name] = hasher.hexdigest()
    return digests
