"""A global tensor, put together block by block from the ranks' parts while it is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from accucompare.bundle.format import Box, GlobalRecord, Record
from accucompare.bundle.reading.stored_tensor import Index, Reading, StoredTensor, ThreadBuffer
from accucompare.bundle.reading.taken_rows import RowReading, TakenRows
from accucompare.numbers import BLOCK, DTYPES, Array, DType, Kind, round_to, widen

#: The most blocks of the whole that are put together at once: as many as parts have a share in a
#: block, so that pieces of parts are as large as one.
_MOST_AT_ONCE = 16
_LEAST_AT_ONCE = 4


class Stretch(NamedTuple):
    """``number`` runs of ``length`` elements, ``stride`` apart in the whole."""

    number: int
    stride: int
    length: int
    at: int  # where the first one begins in the whole
    # own, apart: where it begins in the part, and how far apart they are there
    own: int
    apart: int

    @property
    def end(self) -> int:
        """The element behind the last one in the part."""
        return self.own + (self.number - 1) * self.apart + self.length


class PartsMemory:
    """Each thread's blocks of the whole tensor that it reads, and of a part."""

    def __init__(self) -> None:
        self.whole = ThreadBuffer()
        self.part = ThreadBuffer()


#: What holds a box's values, or a term of their sum.
_Part = StoredTensor | TakenRows
#: A term, by its id, and how it is taken.
_Known = tuple[int, bytes, bool]


class _Held(NamedTuple):
    """Where the values of some terms lie in the whole, and what their sum is multiplied by."""

    terms: tuple[_Part, ...]
    factor: float
    plain: bool  # the stored bits are those of the whole
    places: list[Placed]


#: The readings of one pass, by their tensors.
_Readings = dict[_Part, Reading | RowReading]


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
        self._memory = memory
        filled = 0
        parts: dict[_Known, _Part] = {}
        held: dict[tuple[float, tuple[_Known, ...]], _Held] = {}
        for box in record.boxes:
            terms = tuple((id(term), box.taken, box.turned) for term in box.terms)
            for term, known in zip(box.terms, terms, strict=True):
                if known not in parts:
                    part = stored(term)
                    chosen = box.taken or box.turned
                    parts[known] = TakenRows(term, part, box.taken, box.turned) if chosen else part
            if (box.factor, terms) not in held:
                own = tuple(parts[each] for each in terms)
                plain = len(own) == 1 and box.factor == 1.0 and own[0].dtype is self._dtype
                held[box.factor, terms] = _Held(own, box.factor, plain, [])
            place = Placed.of(record.shape, box)
            held[box.factor, terms].places.append(place)
            filled += place.elements
        self._parts = list(parts.values())
        self._held = list(held.values())
        self._has_holes = filled < self._size

    @property
    def nbytes(self) -> int:
        return self._size * self._storage.itemsize

    def blocks(self, start: int, stop: int, elements: int = BLOCK) -> Iterator[Array]:
        """As ``StoredTensor.blocks``; what a pass does not read in order, ``verify`` reads."""
        readings: _Readings = {part: part.reading() for part in self._parts}
        block = start, start + elements
        share = sum(any(each.meets(*block) for each in held.places) for held in self._held)
        step = elements * min(max(share, _LEAST_AT_ONCE), _MOST_AT_ONCE)
        # whole rows at a time, so that each part has one stretch in them
        rows = (each.row_within(step) for held in self._held for each in held.places)
        row = max(rows, default=1)
        room = self._memory.whole.of((step + row + elements) * self._storage.itemsize)
        whole, kept, first = room.view(self._storage), 0, start
        while first < stop:
            last = min(-(-(first + step) // row) * row, stop)
            held = kept + last - first
            self._fill(first, whole[kept:held], readings)
            full = held if last == stop else held // elements * elements
            for at in range(0, full, elements):
                yield whole[at : min(at + elements, full)]
            kept, first = held - full, last
            whole[:kept] = whole[full:held]

    def part(self, *indices: Index) -> Array:
        """As ``StoredTensor.part``, but everything is read."""
        whole = np.empty(self._size, self._storage)
        self._fill(0, whole, {part: part.reading() for part in self._parts})
        return np.array(self._view(whole, indices))

    def shape_of(self, *indices: Index) -> tuple[int, ...]:
        """The shape of ``part``, found without reading. Errors as there."""
        nothing = np.broadcast_to(np.empty(1, self._storage), self._size)
        return self._view(nothing, indices).shape

    def verify(self) -> None:
        """As ``StoredTensor.read``, of every part."""
        for part in self._parts:
            part.read()

    read = verify

    def _view(self, values: Array, indices: tuple[Index, ...]) -> Array:
        view = values.reshape(self._shape)
        for index in indices:
            view = view[index if ... in index else (*index, ...)]
        return view

    def _fill(self, start: int, whole: Array, readings: _Readings) -> None:
        """Fill in the stored bits of the elements from ``start`` on; zeros where nothing lies."""
        if self._has_holes:
            whole[...] = 0
        stop = start + len(whole)
        for held in self._held:
            spans: list[Stretch] = []
            for each in held.places:
                if start < each.last and each.first < stop:
                    spans += each.stretches(start, stop)
            if not spans:
                continue
            first, last = spans[0].own, spans[0].end
            if len(spans) > 1:
                first, last = min([span.own for span in spans]), max([span.end for span in spans])
                # what lies close together in the part is read at once
                if last - first > 2 * sum([span.number * span.length for span in spans]):
                    for span in spans:
                        bits = self._bits(held, span.own, span.end, readings)
                        _put(whole, start, span, bits, span.own)
                    continue
            elif held.plain and spans[0].number == 1:
                at = spans[0].at - start
                readings[held.terms[0]].read(first, whole[at : at + last - first])
                continue
            bits = self._bits(held, first, last, readings)
            for span in spans:
                _put(whole, start, span, bits, first)

    def _bits(self, held: _Held, first: int, last: int, readings: _Readings) -> Array:
        """The bits for the whole of some of a part's elements, or of their sum."""
        total = None
        for term in held.terms:
            storage = term.dtype.storage
            bits = self._memory.part.of((last - first) * storage.itemsize).view(storage)
            readings[term].read(first, bits)
            if not held.plain:
                values = _wide(widen(bits, term.dtype))
                total = values if total is None else np.add(total, values, out=total)
        if total is None:
            return bits
        return _rounded(total if held.factor == 1.0 else total * held.factor, self._dtype)


def _put(whole: Array, start: int, span: Stretch, bits: Array, first: int) -> None:
    """Put a span's runs into the elements of the whole from ``start`` on, from those of a part from
    ``first`` on."""
    target = _runs(whole, span, span.at - start, span.stride)
    target[:] = _runs(bits, span, span.own - first, span.apart)


class _Level(NamedTuple):
    """So many equal things, and how far apart they are in the whole and in the part."""

    number: int
    stride: int
    apart: int

    def is_followed_by(self, outer: _Level) -> bool:
        """Whether an outer level goes on with the same distances."""
        return (self.number * self.stride, self.number * self.apart) == outer[1:]


class Placed(NamedTuple):
    """Where a box's runs of elements lie in the whole and in its part."""

    levels: tuple[_Level, ...]  # how runs repeat, the innermost first
    length: int  # elements of a run
    # first, last: the box's first element in the whole, and the one behind its last
    first: int
    last: int
    own: int  # its first element in the part
    elements: int  # of all runs

    @classmethod
    def of(cls, shape: tuple[int, ...], box: Box) -> Placed:
        """Args: ``shape``: of the whole."""
        whole = (math.prod(shape),) if box.flat else shape
        return _placed(whole, box.start, box.shape, box.part, box.where)

    def meets(self, start: int, stop: int) -> bool:
        """Whether its extent and the elements from ``start`` to ``stop`` overlap."""
        return start < self.last and self.first < stop

    def row_within(self, elements: int) -> int:
        """How far apart the outermost runs of it are of which so many elements hold two; else 1."""
        return max((each.stride for each in self.levels if each.stride <= elements), default=1)

    def stretches(self, start: int, stop: int) -> list[Stretch]:
        """Those between two elements of the whole, in order."""
        if len(self.levels) == 1:
            number, stride, apart = self.levels[0]
            low = max(0, -((self.first - start) // stride))
            high = min(number, (stop - self.first + stride - 1) // stride)
            at = self.first + low * stride
            uncut = low == 0 or at - stride + self.length <= start
            if low < high and uncut and at + (high - 1 - low) * stride + self.length <= stop:
                own = self.own + low * apart
                return [Stretch(high - low, stride, self.length, at, own, apart)]
        return list(_spans(self.levels, self.length, self.first, self.own, start, stop))


@lru_cache(maxsize=1 << 12)
def _placed(
    whole: tuple[int, ...],
    start: tuple[int, ...],
    shape: tuple[int, ...],
    part: tuple[int, ...],
    where: tuple[tuple[int, int], ...],
) -> Placed:
    if not math.prod(shape):
        return Placed((), 0, 0, 0, 0, 0)
    strides, own_strides = _strides(whole), _strides(part)
    axis, length = len(whole), 1
    while axis and shape[axis - 1] == whole[axis - 1] == part[axis - 1]:
        axis -= 1
        length *= whole[axis]
    if axis:
        axis -= 1
        length *= shape[axis]
    levels: list[_Level] = []
    for outer in reversed(range(axis)):
        level = _Level(shape[outer], strides[outer], own_strides[outer])
        if levels and levels[-1].is_followed_by(level):
            inner = levels.pop()
            level = inner._replace(number=inner.number * level.number)
        levels.append(level)
    first = sum(at * stride for at, stride in zip(start, strides, strict=True))
    own = sum(at * stride for (at, _), stride in zip(where, own_strides, strict=False))
    extent = sum((each.number - 1) * each.stride for each in levels) + length
    return Placed(tuple(levels), length, first, first + extent, own, math.prod(shape))


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


def _runs(values: Array, span: Stretch, first: int, stride: int) -> Array:
    """A view of a span's runs, of which the first begins at an element."""
    step = values.itemsize
    form, strides = (span.number, span.length), (stride * step, step)
    return np.ndarray(form, values.dtype, values, first * step, strides)


def _wide(values: Array) -> Array:
    kinds = {"f": np.float64, "c": np.complex128}
    return values.astype(kinds.get(values.dtype.kind, np.int64))


def _rounded(values: Array, dtype: DType) -> Array:
    if dtype.kind is not Kind.FLOAT or not dtype.ml_dtype:
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(dtype.storage)
    return round_to(values, dtype)
