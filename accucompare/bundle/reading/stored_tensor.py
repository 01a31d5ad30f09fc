"""A record's data on disk, and whether it is what the record says."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash

from accucompare.bundle.format import Record
from accucompare.bundle.reading.archive import Archive
from accucompare.errors import RecordError
from accucompare.numbers import BLOCK, DTYPES, Array, digest_of_segments, sums

#: Part of a tensor, as in NumPy: integers, slices and at most one ``...``.
Index = tuple[Any, ...]


class ThreadBuffer(threading.local):
    """Each thread's buffer for reading a bundle."""

    def __init__(self) -> None:
        self._bytes: Array = np.empty(0, np.uint8)

    def of(self, nbytes: int) -> Array:
        """So many bytes, which the next caller overwrites."""
        if len(self._bytes) < nbytes:
            self._bytes = np.empty(nbytes, np.uint8)
        return self._bytes[:nbytes]


def check_digest(archive: Archive, record: Record, found: str) -> None:
    """Raise RecordError unless the digest found while reading is the record's."""
    if found == record.digest:
        return
    if archive.changed():
        raise _changed(archive)
    raise RecordError(
        f"{archive.path}: {record.key} is corrupt (its digest does not match); capture it again"
    )


def _changed(archive: Archive) -> RecordError:
    return RecordError(
        f"{archive.path}: changed while it was read; compare again when nothing writes to it any"
        " more"
    )


class Reading:
    """Reads a record's elements piece by piece. Segments whose pieces come in order are hashed as
    they come."""

    def __init__(
        self, archive: Archive, offset: int, elements: int, digests: dict[int, bytes]
    ) -> None:
        self._archive = archive
        self._offset = offset
        self._elements = elements
        self._digests = digests
        self._hasher = xxhash.xxh3_128()
        self._next = -1  # the element behind what was hashed

    def read(self, first: int, into: Array) -> None:
        """Fill a contiguous 1-d array with the stored bits from an element on. Raises RecordError
        if a segment has changed since an earlier read, or the file cannot be read."""
        size, memory, end = into.itemsize, memoryview(into.view("u1")), first + len(into)
        self._archive.read_into(memory, self._offset + first * size)
        at = first
        while at < end:
            start = at // sums.SEGMENT * sums.SEGMENT
            stop = min(start + sums.SEGMENT, self._elements)
            last = min(stop, end)
            piece = memory[(at - first) * size : (last - first) * size]
            if at == start and last == stop:
                self._note(start, xxhash.xxh3_128_digest(piece))
            elif at in (start, self._next):
                if at == start:
                    self._hasher.reset()
                self._hasher.update(piece)
                self._next = last
                if last == stop:
                    self._note(start, self._hasher.digest())
            at = last

    def _note(self, start: int, found: bytes) -> None:
        # measuring in two passes reads twice
        if self._digests.setdefault(start, found) != found:
            raise _changed(self._archive)


class StoredTensor:
    """A record's data on disk: read in parts, by any number of threads, and verified as a whole."""

    def __init__(self, record: Record, archive: Archive, offset: int, buffer: ThreadBuffer) -> None:
        self._record = record
        self._archive = archive
        self._offset = offset
        self._buffer = buffer
        self.dtype = DTYPES[record.dtype]
        self._storage = self.dtype.storage
        self._digests: dict[int, bytes] = {}  # of the segments read so far, by their first element

    def blocks(self, start: int, stop: int, elements: int = BLOCK) -> Iterator[Array]:
        """The stored bits of neighbouring elements as 1-d blocks.

        Args:
            start: the first element. Only segments that are read from their start to their end are
                verified.
            stop: the element behind the last one.

        Yields:
            Arrays of ``elements`` (the last one shorter), overwritten by this thread's next read of
            this bundle.

        Raises:
            RecordError: if a segment has changed since an earlier read.
        """
        buffer = self._buffer.of(min(elements, stop - start) * self._storage.itemsize)
        values, reading = buffer.view(self._storage), self.reading()
        for first in range(start, stop, elements):
            block = values[: min(elements, stop - first)]
            reading.read(first, block)
            yield block

    def reading(self) -> Reading:
        """A reading of its elements, by one thread."""
        return Reading(self._archive, self._offset, math.prod(self._record.shape), self._digests)

    @property
    def nbytes(self) -> int:
        return math.prod(self._record.shape) * self._storage.itemsize

    def part(self, *indices: Index) -> Array:
        """Some of the stored bits: ``array[index]``, then the next index of that, and so on. Only
        these are read.

        They are not verified, since the digest is of the whole; ``read`` verifies. Raises
        IndexError if an index makes no sense for the shape; RecordError if the file ends early."""
        whole, view = self._view(indices)
        first = view.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        found = np.empty(view.shape, self._storage)
        outer, run = view.ndim, self._storage.itemsize
        # read contiguous dimensions in one go
        while outer and (view.strides[outer - 1] == run or view.shape[outer - 1] == 1):
            outer -= 1
            run *= view.shape[outer]
        target = memoryview(found.reshape(-1).view("u1"))
        for number, place in enumerate(np.ndindex(view.shape[:outer]) if found.size else ()):
            start = first + sum(
                index * stride for index, stride in zip(place, view.strides, strict=False)
            )
            self._archive.read_into(target[number * run : (number + 1) * run], self._offset + start)
        return found

    def shape_of(self, *indices: Index) -> tuple[int, ...]:
        """The shape of ``part``, found without reading. Errors as there."""
        return self._view(indices)[1].shape

    def _view(self, indices: tuple[Index, ...]) -> tuple[Array, Array]:
        """A memoryless array of the record's shape, and a part of it, for their strides."""
        size, shape = self._storage.itemsize, self._record.shape
        strides = [size * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        whole = view = np.lib.stride_tricks.as_strided(np.empty(1, self._storage), shape, strides)
        for index in indices:
            # the dots make the result a view, never a value
            view = view[index if ... in index else (*index, ...)]
        return whole, view

    def read(self) -> None:
        """Read what was not read yet, a block at a time, and verify everything. Errors as
        ``blocks`` and ``verify``."""
        elements = math.prod(self._record.shape)
        for start in range(0, elements, sums.SEGMENT):
            if start not in self._digests:
                for _ in self.blocks(start, min(start + sums.SEGMENT, elements)):
                    pass
        self.verify()

    def verify(self) -> None:
        """Raise RecordError if the digest does not match. Call it after reading every segment."""
        digests = [self._digests[start] for start in sorted(self._digests)]
        check_digest(self._archive, self._record, digest_of_segments(digests))
