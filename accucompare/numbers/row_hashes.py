"""Digests of a matrix's rows: which rows of one weight are those of another."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from accucompare.numbers.dtypes import Array

#: Neighbouring rows share a number, in runs of a power of two, where a tensor has more rows.
MOST_NUMBERS = 1024
#: No numbers are kept of a tensor whose rows such runs leave so many of: manifests hold them.
_TOO_MANY = 8 * MOST_NUMBERS
#: Odd, so that none of its powers is zero in 64 bits.
_BASE = 0x9E3779B97F4A7C15

_Words = NDArray[np.uint64]


class RowHashes:
    """Takes a tensor's rows in order, as stored in each type; gives a number of 64 bits for each
    run of ``block`` rows.

    The number of a run is a polynomial of its rows' own, so that those of longer runs follow from
    those of shorter ones. A row is all that has one index but the last."""

    def __init__(self, rows: int, width: int) -> None:
        self.width = width
        self.block = 1
        while rows > MOST_NUMBERS * self.block and rows % (2 * self.block) == 0:
            self.block *= 2
        self.are_few = rows // self.block <= _TOO_MANY
        self._of: dict[str, list[int]] = {}

    def add(self, name: str, bits: Array) -> None:
        """Take the next rows, whole ones, of a type."""
        rows = np.ascontiguousarray(bits).view("u1").reshape(-1, self.width * bits.itemsize)
        self._of.setdefault(name, []).extend(map(xxhash.xxh3_64_intdigest, rows))

    def to_json(self) -> dict[str, Any]:
        """``{"block": 16, "digests": {"float32": base64}}``."""
        found = {}
        for name, numbers in self._of.items():
            words = merged(np.array(numbers, np.uint64), 1, self.block)
            found[name] = base64.b64encode(words.astype("<u8").tobytes()).decode()
        return {"block": self.block, "digests": found}


def merged(words: _Words, block: int, wanted: int) -> _Words:
    """The numbers of runs of ``wanted`` rows, of those of ``block``; their count is divisible."""
    times = wanted // block
    if times == 1:
        return words
    powers = np.array([pow(_BASE, number * block, 1 << 64) for number in range(times)], np.uint64)
    found: _Words = (words.reshape(-1, times) * powers).sum(axis=1, dtype=np.uint64)
    return found


def read_rows(entry: Mapping[str, Any], name: str) -> _Words | None:
    """The numbers of a type; ``None`` if there are none, or what stands there is none."""
    try:
        content = base64.b64decode(entry["digests"][name], validate=True)
        return np.frombuffer(content, "<u8").astype(np.uint64)
    except (KeyError, TypeError, ValueError):
        return None
