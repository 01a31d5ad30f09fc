"""Digests of tensors: equal digests, equal bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import xxhash

from accucompare.numbers import sums
from accucompare.numbers.dtypes import DTYPES, ROUNDS_TO, Array, DType, Kind, round_to, widen
from accucompare.numbers.row_hashes import RowHashes
from accucompare.numbers.sharing import shared
from accucompare.numbers.sums import BLOCK


def digest(raw: Array, helped: bool = False) -> str:
    """The digest of a contiguous array's bytes: xxh3, 128 bits, as 32 hexadecimal digits.

    Above SEGMENT elements it is the digest of the segments' digests, so that several threads can
    make or verify it. With ``helped``, a second thread does a part."""
    size = sums.SEGMENT
    if raw.size <= size:
        return xxhash.xxh3_128_hexdigest(raw)
    flat = raw.reshape(-1)

    def of_segment(place: int) -> bytes:
        return xxhash.xxh3_128_digest(flat[place * size : (place + 1) * size].view("u1"))

    segments = -(-flat.size // size)
    return digest_of_segments(
        shared(of_segment, segments) if helped else [*map(of_segment, range(segments))]
    )


def digest_of_segments(digests: Sequence[bytes]) -> str:
    """A tensor's digest, from its segments' digests in order."""
    return (digests[0] if len(digests) == 1 else xxhash.xxh3_128_digest(b"".join(digests))).hex()


def fingerprint(
    raw: Array,
    dtype: DType,
    rounded: Callable[[Array, DType], Array] = round_to,
    rows: RowHashes | None = None,
) -> dict[str, str]:
    """A tensor's digest under its own type and under each type that it may be compared in.

    Two captures in different precisions have the same weights exactly if their digests agree under
    the narrower type, and the same integers if their digests as int64 agree. All NaN count as the
    same value. Returns digests by dtype name.

    Args:
        raw: contiguous array of ``dtype.storage``, any shape.
        dtype: its true type.
        rounded: rounds as ``round_to`` does; a caller may have a faster one.
        rows: takes the rows, too.
    """
    flat = raw.reshape(-1)
    names = [dtype.name, *ROUNDS_TO.get(dtype.name, ())]
    if dtype.kind is Kind.INT and dtype.name not in ("int64", "uint64"):
        names.append("int64")
    hashers = {name: xxhash.xxh3_128() for name in names}
    step = BLOCK if rows is None else max(BLOCK // rows.width, 1) * rows.width
    for start in range(0, flat.size, step):
        block = flat[start : start + step]
        values = widen(block, dtype)
        nan = _where_nan(values)
        for name, hasher in hashers.items():
            bits = (
                block
                if name == dtype.name
                else values.astype(np.int64)
                if name == "int64"
                else rounded(values, DTYPES[name])
            )
            if nan is not None:
                bits = np.where(nan, _nan(name), bits)
            hasher.update(bits.view("u1"))
            if rows is not None:
                rows.add(name, bits)
    return {name: hasher.hexdigest() for name, hasher in hashers.items()}


def same_fingerprint(golden: dict[str, Any], candidate: dict[str, Any]) -> bool | None:
    """Whether two tensors in manifests, ``{"dtype", "shape", "digests"}``, agree under a type that
    both were rounded to by ``fingerprint``; ``None`` without one."""
    if golden["shape"] != candidate["shape"]:
        return False
    if golden["dtype"] == candidate["dtype"]:
        shared = [golden["dtype"]]
    else:
        both = golden["digests"].keys() & candidate["digests"].keys()
        shared = [name for name in (candidate["dtype"], golden["dtype"], "int64") if name in both]
    return (
        golden["digests"].get(shared[0]) == candidate["digests"].get(shared[0]) if shared else None
    )


def _where_nan(values: Array) -> Array | None:
    """Which values are NaN; ``None`` if none is."""
    with np.errstate(all="ignore"):
        # cheaper than np.isnan of every value
        if values.dtype.kind != "f" or not np.isnan(np.add.reduce(values)):
            return None
    return np.isnan(values)


@cache
def _nan(name: str) -> Any:
    """The bits that stand for every NaN of a floating type."""
    if name == "float64":
        return np.array([np.nan])[0]
    return round_to(np.array([np.nan]), DTYPES[name])[0]
