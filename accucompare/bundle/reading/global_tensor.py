"""A global tensor, put together block by block from the ranks' parts while it is read."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from accucompare.bundle.format import Box, GlobalRecord, Record
from accucompare.bundle.reading.stored_tensor import Index, StoredTensor
from accucompare.numbers import BLOCK, DTYPES, Array, DType, Kind, round_to, sums, widen

#: Bytes of the parts' segments that a thread keeps, since neighbouring blocks need them again.
_KEPT = 64 << 20


class Stretch(NamedTuple):
    """``number`` runs of ``length`` elements, ``stride`` apart in the whole.

    Attributes:
        at: where the first one begins in the whole.
        own, apart: where it begins in the part, and how far apart they are there.
    """

    number: int
    stride: int
    length: int
    at: int
    own: int
    apart: int

    @property
    def end(self) -> int:
        """The element behind the last one in the part."""
        return self.own + (self.number - 1) * self.apart + self.length


class PartsMemory(threading.local):
    """A thread's last segment of each part of the tensor that it reads, and a block of the whole.

    The next tensor takes over the memory: fresh pages would cost more than reading."""

    def __init__(self) -> None:
        self.block: Array = np.empty(0, "u1")
        self._segments: OrderedDict[int, tuple[int, Array]] = OrderedDict()
        self._free: list[Array] = []
        self._tensor: object = None

    def begin(self, tensor: object) -> None:
        """Forget the segments of another tensor."""
        if self._tensor is not tensor:
            self._tensor = tensor
            self._free += [self._bytes_of(held) for _, held in self._segments.values()]
            self._segments.clear()

    def segment(self, part: int, start: int) -> Array | None:
        """A part's segment, if it is the last that was read of it."""
        at, held = self._segments.get(part, (-1, None))
        return held if at == start else None

    def room(self, part: int, start: int, length: int, dtype: np.dtype[Any]) -> Array:
        """Memory for a part's segment, which takes the place of its last one."""
        nbytes = length * dtype.itemsize
        if part in self._segments:
            self._free.append(self._bytes_of(self._segments.pop(part)[1]))
        elif sum(held.nbytes for _, held in self._segments.values()) + nbytes > _KEPT:
            self._free += [
                self._bytes_of(self._segments.popitem(last=False)[1][1])
                for _ in range(min(1, len(self._segments)))
            ]
        fitting = next((each for each in self._free if len(each) >= nbytes), None)
        if fitting is None:
            self._free.clear()
            fitting = np.empty(nbytes, "u1")
        else:
            self._free = [each for each in self._free if each is not fitting]
        self._segments[part] = start, fitting[:nbytes].view(dtype)
        return self._segments[part][1]

    def block_of(self, length: int, dtype: np.dtype[Any]) -> Array:
        """Memory for so many elements of the whole, which the next caller overwrites."""
        nbytes = length * dtype.itemsize
        if len(self.block) < nbytes:
            self.block = np.empty(nbytes, "u1")
        return self.block[:nbytes].view(dtype)

    @staticmethod
    def _bytes_of(held: Array) -> Array:
        """All the memory of a segment."""
        while held.base is not None:
            held = held.base
        return held


class _Part:
    """One record that holds a box's values, or a term of their sum."""

    def __init__(self, number: int, record: Record, stored: StoredTensor) -> None:
        self.stored = stored
        self._number = number
        self._size = math.prod(record.shape)
        self._dtype = DTYPES[record.dtype].storage

    def elements(self, first: int, last: int, memory: PartsMemory) -> Array:
        """The stored bits of some elements, from segments that are read whole."""
        at = first // sums.SEGMENT * sums.SEGMENT
        if last <= at + sums.SEGMENT:
            return self._segment(at, memory)[first - at : last - at]
        return np.concatenate(
            [
                self._segment(at, memory)[max(first - at, 0) : last - at].copy()
                for at in range(at, last, sums.SEGMENT)
            ]
        )

    def _segment(self, start: int, memory: PartsMemory) -> Array:
        held = memory.segment(self._number, start)
        if held is None:
            length = min(sums.SEGMENT, self._size - start)
            held = memory.room(self._number, start, length, self._dtype)
            self.stored.read_segment(start, held)
        return held


class _TakenRows(_Part):
    """Some rows of a record, which is read whole."""

    def __init__(self, number: int, record: Record, stored: StoredTensor, taken: bytes) -> None:
        super().__init__(number, record, stored)
        self._width = record.shape[-1]
        self._taken = taken
        self._rows: Array | None = None

    def elements(self, first: int, last: int, memory: PartsMemory) -> Array:
        if self._rows is None:
            whole = np.empty(self._size, self._dtype)
            for start in range(0, self._size, sums.SEGMENT):
                self.stored.read_segment(start, whole[start : start + sums.SEGMENT])
            rows = whole.reshape(-1, self._width)[np.frombuffer(self._taken, np.int64)]
            self._rows = rows.reshape(-1)
        return self._rows[first:last]


class GlobalTensor:
    """A ``GlobalRecord``'s data, to be read as those of a ``StoredTensor``.

    Values of one part keep their bits. Sums and products are made in float64 (integers in int64),
    and rounded once to the record's type."""

    def __init__(
        self, record: GlobalRecord, stored: Callable[[Record], StoredTensor], memory: PartsMemory
    ) -> None:
        self._shape = record.shape
        self._dtype = DTYPES[record.dtype]
        self._storage = self._dtype.storage
        self._size = math.prod(record.shape)
        numbers = iter(range(1 << 30))
        self._boxes = [
            (
                box,
                Placed.of(record.shape, box),
                [
                    _TakenRows(next(numbers), term, stored(term), box.taken)
                    if box.taken
                    else _Part(next(numbers), term, stored(term))
                    for term in box.terms
                ],
            )
            for box in record.boxes
        ]
        self._memory = memory

    @property
    def nbytes(self) -> int:
        return self._size * self._dtype.storage.itemsize

    def blocks(self, start: int, stop: int, elements: int = BLOCK) -> Iterator[Array]:
        """As ``StoredTensor.blocks``, but ``start`` may be any element."""
        for first in range(start, stop, elements):
            last = min(first + elements, stop)
            block = self._memory.block_of(last - first, self._storage)
            yield self._elements(first, last, block)

    def part(self, *indices: Index) -> Array:
        """As ``StoredTensor.part``, but everything is read."""
        whole = self._elements(0, self._size, np.empty(self._size, self._storage))
        return np.array(self._view(whole, indices))

    def shape_of(self, *indices: Index) -> tuple[int, ...]:
        """The shape of ``part``, found without reading. Errors as there."""
        nothing = np.broadcast_to(np.empty(1, self._storage), self._size)
        return self._view(nothing, indices).shape

    def read(self) -> None:
        """Read and verify every part. Errors as ``StoredTensor.read``."""
        for part in self._parts():
            part.stored.read()

    def verify(self) -> None:
        """As ``StoredTensor.verify``, of every part."""
        for part in self._parts():
            part.stored.verify()

    def _parts(self) -> Iterator[_Part]:
        return (part for *_, parts in self._boxes for part in parts)

    def _view(self, values: Array, indices: tuple[Index, ...]) -> Array:
        view = values.reshape(self._shape)
        for index in indices:
            view = view[index if ... in index else (*index, ...)]
        return view

    def _elements(self, start: int, stop: int, bits: Array) -> Array:
        """The stored bits of some elements, in the order of the whole: in ``bits``, or in place."""
        self._memory.begin(self)
        for box, placed, parts in self._boxes:
            for span in placed.stretches(start, stop):
                found = self._values(box, parts, span.own, span.end)
                if span.length == stop - start:
                    return found
                _runs(bits[span.at - start :], span, span.stride)[:] = _runs(
                    found, span, span.apart
                )
        return bits

    def _values(self, box: Box, parts: list[_Part], first: int, last: int) -> Array:
        """The stored bits of some elements of a box."""
        if len(parts) == 1 and box.factor == 1.0:
            return parts[0].elements(first, last, self._memory)
        total = None
        for part in parts:
            values = _wide(widen(part.elements(first, last, self._memory), self._dtype))
            total = values if total is None else np.add(total, values, out=total)
        assert total is not None
        return _rounded(total if box.factor == 1.0 else total * box.factor, self._dtype)


class _Level(NamedTuple):
    """So many equal things, and how far apart they are in the whole and in the part."""

    number: int
    stride: int
    apart: int

    def is_followed_by(self, outer: _Level) -> bool:
        """Whether an outer level goes on with the same distances."""
        return (self.number * self.stride, self.number * self.apart) == outer[1:]


class Placed(NamedTuple):
    """Where a box's runs of elements lie in the whole and in its part.

    Attributes:
        levels: how runs repeat, the innermost first.
        length: elements of a run.
        first, last: the box's first element in the whole, and the one behind its last.
        own: its first element in the part.
    """

    levels: tuple[_Level, ...]
    length: int
    first: int
    last: int
    own: int

    @classmethod
    def of(cls, shape: tuple[int, ...], box: Box) -> Placed:
        """Args: ``shape``: of the whole."""
        if not math.prod(box.shape):
            return cls((), 0, 0, 0, 0)
        whole = (math.prod(shape),) if box.flat else shape
        strides, own_strides = _strides(whole), _strides(box.part)
        axis, length = len(whole), 1
        while axis and box.shape[axis - 1] == whole[axis - 1] == box.part[axis - 1]:
            axis -= 1
            length *= whole[axis]
        if axis:
            axis -= 1
            length *= box.shape[axis]
        levels: list[_Level] = []
        for outer in reversed(range(axis)):
            level = _Level(box.shape[outer], strides[outer], own_strides[outer])
            if levels and levels[-1].is_followed_by(level):
                inner = levels.pop()
                level = inner._replace(number=inner.number * level.number)
            levels.append(level)
        first = sum(at * stride for at, stride in zip(box.start, strides, strict=True))
        own = sum(at * stride for (at, _), stride in zip(box.where, own_strides, strict=False))
        extent = sum((each.number - 1) * each.stride for each in levels) + length
        return cls(tuple(levels), length, first, first + extent, own)

    def stretches(self, start: int, stop: int) -> Iterator[Stretch]:
        """Those between two elements of the whole, in order."""
        if start < self.last and self.first < stop:
            yield from _spans(self.levels, self.length, self.first, self.own, start, stop)


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _spans(
    levels: tuple[_Level, ...], length: int, at: int, own: int, start: int, stop: int
) -> Iterator[Stretch]:
    """The spans of the runs that begin at ``at``, cut to what lies between start and stop."""
    if not levels:
        first, last = max(start, at), min(stop, at + length)
        if first < last:
            yield Stretch(1, 0, last - first, first, own + first - at, 0)
        return
    *inner, (number, stride, apart) = levels
    within = sum((each.number - 1) * each.stride for each in inner) + length
    low = max(0, (start - at - within) // stride + 1)
    high = min(number, -((at - stop) // stride))
    while low < high:
        whole = not inner and at + low * stride >= start
        if whole and (many := min(high, (stop - length - at) // stride + 1) - low) > 0:
            yield Stretch(many, stride, length, at + low * stride, own + low * apart, apart)
            low += many
        else:
            yield from _spans(
                tuple(inner), length, at + low * stride, own + low * apart, start, stop
            )
            low += 1


def _runs(values: Array, span: Stretch, stride: int) -> Array:
    """A view of a span's runs."""
    step = values.itemsize
    return np.lib.stride_tricks.as_strided(
        values, (span.number, span.length), (stride * step, step)
    )


def _wide(values: Array) -> Array:
    kinds = {"f": np.float64, "c": np.complex128}
    return values.astype(kinds.get(values.dtype.kind, np.int64))


def _rounded(values: Array, dtype: DType) -> Array:
    if dtype.kind is not Kind.FLOAT or not dtype.ml_dtype:
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(dtype.storage)
    return round_to(values, dtype)
