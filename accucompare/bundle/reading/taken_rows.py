"""Some rows of a record, in any order, or a matrix transposed."""

from __future__ import annotations

import math

import numpy as np

from accucompare.bundle.format import Record, row_width
from accucompare.bundle.reading.stored_tensor import StoredTensor
from accucompare.numbers import Array


class TakenRows:
    """Rows of a record, to be read as one. The record is read whole, and kept while it is used.

    With ``turned`` it is a matrix, whose columns are the rows."""

    def __init__(
        self, record: Record, stored: StoredTensor, taken: bytes, turned: bool = False
    ) -> None:
        self.dtype = stored.dtype
        self._shape = record.shape
        self._stored = stored
        self._taken = taken
        self._turned = turned
        self._rows: Array | None = None

    def reading(self) -> RowReading:
        if self._rows is None:
            whole = np.empty(math.prod(self._shape), self.dtype.storage)
            self._stored.reading().read(0, whole)
            rows = whole.reshape(-1, row_width(self._shape))
            if self._taken:
                rows = rows[np.frombuffer(self._taken, np.int64)]
            self._rows = np.ascontiguousarray(rows.T if self._turned else rows).reshape(-1)
        return RowReading(self._rows)

    def read(self) -> None:
        """Read and verify the record. Errors as ``StoredTensor.read``."""
        self._stored.read()


class RowReading:
    """Reads elements of chosen rows."""

    def __init__(self, rows: Array) -> None:
        self._rows = rows

    def read(self, first: int, into: Array) -> None:
        """Fill a contiguous 1-d array with the stored bits from an element on."""
        into[...] = self._rows[first : first + len(into)]
