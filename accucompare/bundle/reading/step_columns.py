"""The records of a step as columns; a ``Record`` is made when somebody looks at it.

A line of a step's list says what a record is, and then what it holds (digest and statistics). What
records are is the same in each step of a training, on each rank, and on both sides of a diff: it is
read once, and shared. What they hold is kept in arrays, 48 bytes a record."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple, overload
from weakref import WeakValueDictionary

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from accucompare.bundle.format import Record, Role
from accucompare.errors import BundleError
from accucompare.numbers import CHUNK, DTYPES, Count, Float64, Statistics

#: Between what a record is and what it holds.
_CUT = b',"digest":'
_DIGEST = 32  # hexadecimal digits


class Members(NamedTuple):
    """The members of a step."""

    names: list[str]  # of each
    # the shape and storage type that its first record says it has
    forms: list[tuple[tuple[int, ...], np.dtype[Any]]]
    # the number of each record's member; -1 without one, -2 for one of another form
    of: NDArray[np.intp]


class Outline:
    """What the records of a step are, in order: all but rank, step, digest, statistics."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records  # of rank 0 and step 0, without what they hold
        # name, call, role and path of each
        self.keys = [(each.name, each.call, each.role, each.path) for each in records]

    @cached_property
    def roles(self) -> frozenset[Role]:
        return frozenset(each.role for each in self.records)

    @cached_property
    def types(self) -> frozenset[str]:
        return frozenset(each.type for each in self.records)

    @cached_property
    def reals(self) -> Float64:
        """How many real numbers each record has; 0 without numbers."""
        return np.array(
            [
                math.prod(DTYPES[each.dtype].reals(each.shape)) if each.dtype in DTYPES else 0
                for each in self.records
            ],
            np.float64,
        )

    @cached_property
    def nbytes(self) -> int:
        """Of the records' values."""
        return sum(map(_nbytes, self.records))

    @cached_property
    def nbytes_of_large(self) -> int:
        """Of those with more than a chunk of elements."""
        return sum(_nbytes(each) for each in self.records if math.prod(each.shape) > CHUNK)

    @cached_property
    def members(self) -> Members:
        """The members that hold the records' values."""
        numbers: dict[str, int] = {}
        forms: list[tuple[tuple[int, ...], np.dtype[Any]]] = []
        of = []
        for each in self.records:
            number = -1
            if each.member is not None:
                form = each.shape, DTYPES[each.dtype].storage
                number = numbers.setdefault(each.member, len(forms))
                if number == len(forms):
                    forms.append(form)
                elif forms[number] != form:
                    number = -2
            of.append(number)
        return Members(list(numbers), forms, np.array(of, np.intp))


class StepColumns(Sequence[Record]):
    """The records of a step, in execution order."""

    def __init__(self, outline: Outline, rank: int, step: int) -> None:
        self.outline, self.rank, self.step = outline, rank, step
        # uint8, of shape (records, 16)
        self.digests: NDArray[np.uint8] = np.empty((0, _DIGEST // 2), np.uint8)
        # float64, of shape (records, 4): smallest and largest value, mean, L2 norm
        self.numbers: Float64 = np.empty((0, 4))
        # int64, of shape (records, 2): how many NaN and Inf; ``None`` if there are none
        self.nonfinite: NDArray[np.int64] | None = None
        # int64, the number of each one's sketch, -1 for none; ``None`` if none has one
        self.sketches: NDArray[np.int64] | None = None
        # by place, the records that the columns cannot hold (the columns have zeros there)
        self.odd: dict[int, Record] = {}
        self._requires_grad: NDArray[np.bool_] | None = None

    @classmethod
    def of_lines(cls, content: bytes, rank: int, step: int) -> StepColumns | None:
        """The columns of a file of ``Record.to_line``'s lines; ``None`` if these must be read one
        by one: one is damaged, out of order, there twice, or has a field that few have."""
        pieces = content.replace(b"\n", _CUT).split(_CUT)
        heads, tails = pieces[:-1:2], pieces[1::2]
        if pieces[-1] or len(heads) != len(tails):
            return None
        outline = _outline(heads)
        if outline is None:
            return None
        found = cls(outline, rank, step)
        try:
            held = _TAILS.decode_lines(b'{"digest":' + b'\n{"digest":'.join(tails))
            found._fill(held, heads, tails)
        except (msgspec.MsgspecError, BundleError, ValueError, RecursionError):
            return None
        return found

    def _fill(self, held: list[_Held], heads: list[bytes], tails: list[bytes]) -> None:
        for place in _odd_ones(held):
            line = heads[place] + _CUT + tails[place]
            self.odd[place] = Record.from_line(line, self.rank, self.step)
            held[place] = _NOTHING
        self.digests = np.frombuffer(
            bytes.fromhex("".join([each.digest or "" for each in held])), np.uint8
        ).reshape(len(held), -1)
        known: list[Any] = [each.statistics for each in held]
        self.numbers = np.empty((len(held), 4))
        for column, values in zip(self.numbers.T, _numbers_of(known), strict=True):
            column[:] = values
        if any(each.nan or each.inf for each in known):
            self.nonfinite = np.array([(each.nan, each.inf) for each in known], np.int64)
        sketches = [each.sketch for each in held]
        if set(sketches) != {-1}:
            self.sketches = np.array(sketches, np.int64)
        requires_grad = [each.requires_grad for each in held]
        if True in requires_grad:
            self._requires_grad = np.array(requires_grad)

    def __len__(self) -> int:
        return len(self.outline.records)

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> list[Record]: ...
    def __getitem__(self, place: int | slice) -> Record | list[Record]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        return next(self.between(place, place + 1))

    def __iter__(self) -> Iterator[Record]:
        return self.between(0, len(self))

    def between(self, start: int, stop: int) -> Iterator[Record]:
        """Some records, one after the other."""
        some = slice(start, stop)
        text = self.digests[some].tobytes().hex()
        counts: Any = repeat((0, 0)) if self.nonfinite is None else self.nonfinite[some].tolist()
        sketches: Any = repeat(-1) if self.sketches is None else self.sketches[some].tolist()
        grad = self._requires_grad
        grads: Any = repeat(False) if grad is None else grad[some].tolist()
        for place, (form, numbers, count, sketch, grad) in enumerate(
            zip(
                self.outline.records[some],
                self.numbers[some].tolist(),
                counts,
                sketches,
                grads,
                strict=False,
            )
        ):
            if start + place in self.odd:
                yield self.odd[start + place]
            else:
                digest = text[place * _DIGEST : (place + 1) * _DIGEST]
                known = Statistics(*numbers, *count)
                yield self._record(form, digest, known, sketch, grad)

    def _record(
        self, form: Record, digest: str, known: Statistics, sketch: int, requires_grad: bool
    ) -> Record:
        return Record(
            self.rank,
            self.step,
            form.name,
            form.call,
            form.role,
            form.path,
            form.order,
            form.type,
            form.parent,
            form.shape,
            form.dtype,
            form.layout,
            form.member,
            digest,
            known,
            "",
            None,
            None,
            None if sketch < 0 else sketch,
            None,
            requires_grad,
        )


class _Held(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The end of a record's line: what it holds."""

    digest: str | None
    statistics: Statistics | None
    detail: str
    sketch: Count | int = -1
    requires_grad: bool = False


_TAILS = msgspec.json.Decoder(_Held)
_NOTHING = _Held("0" * _DIGEST, Statistics(0.0, 0.0, 0.0, 0.0, 0, 0), "")
_END = _CUT + b'null,"statistics":null,"detail":""}'

_outlines: WeakValueDictionary[bytes, Outline] = WeakValueDictionary()


def _outline(heads: list[bytes]) -> Outline | None:
    """The outline of these beginnings of lines, shared with steps that have the same."""
    key = xxhash.xxh3_128_digest(b"\n".join(heads))
    known = _outlines.get(key)
    if known is None:
        try:
            known = Outline([Record.from_line(head + _END, 0, 0) for head in heads])
        except BundleError:
            return None
        orders = [each.order for each in known.records]
        if len(set(known.keys)) < len(heads) or orders != sorted(orders):
            return None
        _outlines[key] = known
    return known


def _nbytes(record: Record) -> int:
    if record.member is None:
        return 0
    return math.prod(record.shape) * DTYPES[record.dtype].storage.itemsize


def _odd_ones(held: list[_Held]) -> list[int]:
    """The places of what the columns cannot hold."""
    try:
        known: list[Any] = [each.statistics for each in held]
        if (
            set(map(len, [each.digest for each in held])) == {_DIGEST}  # type: ignore[arg-type]
            and bytes.fromhex(text := "".join([each.digest or "" for each in held])).hex() == text
            and all(set(map(type, column)) == {float} for column in _numbers_of(known))
            and {each.rounding for each in known} == {0.0}
            and {each.detail for each in held} == {""}
        ):
            return []
    except (TypeError, AttributeError, ValueError):
        pass
    return [place for place, each in enumerate(held) if _is_odd(each)]


def _is_odd(held: _Held) -> bool:
    known, digest = held.statistics, held.digest
    return (
        known is None
        or digest is None
        or len(digest) != _DIGEST
        or not set(digest) <= set("0123456789abcdef")
        or {type(each) for each in (known.min, known.max, known.mean, known.l2)} != {float}
        or known.rounding != 0.0
        or held.detail != ""
    )


def _numbers_of(known: list[Any]) -> list[list[Any]]:
    return [
        [each.min for each in known],
        [each.max for each in known],
        [each.mean for each in known],
        [each.l2 for each in known],
    ]
