"""A global tensor, put together block by block from the ranks' parts while it is read."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

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


class _Kept(threading.local):
    """Each thread's last segments of the parts, by part and first element."""

    def __init__(self) -> None:
        self.segments: OrderedDict[tuple[int, int], Array] = OrderedDict()
        self.nbytes = 0


class _Part:
    """One record that holds a box's values, or a term of their sum."""

    def __init__(self, number: int, record: Record, stored: StoredTensor) -> None:
        self.stored = stored
        self._number = number
        self._size = math.prod(record.shape)

    def elements(self, first: int, last: int, kept: _Kept) -> Array:
        """The stored bits of some elements, from segments that are read whole."""
        found = [
            self._segment(at, kept)[max(first - at, 0) : last - at]
            for at in range(first // sums.SEGMENT * sums.SEGMENT, last, sums.SEGMENT)
        ]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _segment(self, start: int, kept: _Kept) -> Array:
        held = kept.segments.get((self._number, start))
        if held is None:
            (block,) = self.stored.blocks(
                start, min(start + sums.SEGMENT, self._size), sums.SEGMENT
            )
            held = kept.segments[self._number, start] = block.copy()
            kept.nbytes += held.nbytes
            while kept.nbytes > _KEPT and len(kept.segments) > 1:
                kept.nbytes -= kept.segments.popitem(last=False)[1].nbytes
        return held


class GlobalTensor:
    """A ``GlobalRecord``'s data, to be read as those of a ``StoredTensor``.

    Values of one part keep their bits. Sums and products are made in float64 (integers in int64),
    and rounded once to the record's type."""

    def __init__(self, record: GlobalRecord, stored: Callable[[Record], StoredTensor]) -> None:
        self._shape = record.shape
        self._dtype = DTYPES[record.dtype]
        self._size = math.prod(record.shape)
        numbers = iter(range(1 << 30))
        self._boxes = [
            (box, [_Part(next(numbers), term, stored(term)) for term in box.terms])
            for box in record.boxes
        ]
        self._kept = _Kept()

    @property
    def nbytes(self) -> int:
        return self._size * self._dtype.storage.itemsize

    def blocks(self, start: int, stop: int, elements: int = BLOCK) -> Iterator[Array]:
        """As ``StoredTensor.blocks``, but ``start`` may be any element."""
        for first in range(start, stop, elements):
            yield self._elements(first, min(first + elements, stop))

    def part(self, *indices: Index) -> Array:
        """As ``StoredTensor.part``, but everything is read."""
        return np.ascontiguousarray(self._view(self._elements(0, self._size), indices))

    def shape_of(self, *indices: Index) -> tuple[int, ...]:
        """The shape of ``part``, found without reading. Errors as there."""
        nothing = np.broadcast_to(np.empty(1, self._dtype.storage), self._size)
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
        return (part for _, parts in self._boxes for part in parts)

    def _view(self, values: Array, indices: tuple[Index, ...]) -> Array:
        view = values.reshape(self._shape)
        for index in indices:
            view = view[index if ... in index else (*index, ...)]
        return view

    def _elements(self, start: int, stop: int) -> Array:
        """The stored bits of some elements, in the order of the whole."""
        bits = np.empty(stop - start, self._dtype.storage)
        for box, parts in self._boxes:
            for span in spans(self._shape, box, start, stop):
                found = self._values(box, parts, span.own, span.end)
                _runs(bits[span.at - start :], span, span.stride)[:] = _runs(
                    found, span, span.apart
                )
        return bits

    def _values(self, box: Box, parts: list[_Part], first: int, last: int) -> Array:
        """The stored bits of some elements of a box."""
        bits = [part.elements(first, last, self._kept) for part in parts]
        if len(bits) == 1 and box.factor == 1.0:
            return bits[0]
        total = np.zeros_like(_wide(widen(bits[0], self._dtype)))
        for each in bits:
            total += _wide(widen(each, self._dtype))
        return _rounded(total if box.factor == 1.0 else total * box.factor, self._dtype)


def spans(shape: tuple[int, ...], box: Box, start: int, stop: int) -> Iterator[Stretch]:
    """Where elements ``start`` to ``stop`` of a tensor lie in one of its boxes, in order."""
    if not math.prod(box.shape):
        return
    whole = (math.prod(shape),) if box.flat else shape
    strides, own_strides = _strides(whole), _strides(box.part)
    axis, length = len(whole), 1
    while axis and box.shape[axis - 1] == whole[axis - 1] == box.part[axis - 1]:
        axis -= 1
        length *= whole[axis]
    if axis:
        axis -= 1
        length *= box.shape[axis]
    levels: list[_Level] = []  # the innermost first
    for outer in reversed(range(axis)):
        level = _Level(box.shape[outer], strides[outer], own_strides[outer])
        if levels and levels[-1].is_followed_by(level):
            inner = levels.pop()
            level = inner._replace(number=inner.number * level.number)
        levels.append(level)
    first = sum(at * stride for at, stride in zip(box.start, strides, strict=True))
    own = sum(at * stride for (at, _), stride in zip(box.where, own_strides, strict=False))
    yield from _spans(levels, length, first, own, start, stop)


class _Level(NamedTuple):
    """So many equal things, and how far apart they are in the whole and in the part."""

    number: int
    stride: int
    apart: int

    def is_followed_by(self, outer: _Level) -> bool:
        """Whether an outer level goes on with the same distances."""
        return (self.number * self.stride, self.number * self.apart) == outer[1:]


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _spans(
    levels: list[_Level], length: int, at: int, own: int, start: int, stop: int
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
            yield from _spans(inner, length, at + low * stride, own + low * apart, start, stop)
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
