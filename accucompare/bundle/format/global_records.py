"""Tensors of the global model, put together from the records of several ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum
from typing import Any

import msgspec

from accucompare.bundle.format.records import Record

#: Records whose values add up; a single one is what it is.
Addends = tuple[Record, ...]


class LayoutEvidence(str, Enum):
    """How it is known where the ranks' tensors lie."""

    RECORDED = "recorded"
    INFERRED = "inferred"  # from shapes, digests and the mesh
    GIVEN = "given"
    TOKENS = "rows paired by token"
    WEIGHTS = "by the rows of its weight"
    VALUES = "by its values"
    LOSS_SCALE = "by the loss scales"
    CALLS = "by the shapes of the calls"
    BACKWARDS = "of several backwards"


def row_width(shape: tuple[int, ...]) -> int:
    """How many elements of a tensor have one index but the last; of a vector, each is a row."""
    return shape[-1] if len(shape) > 1 else 1


class Box(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A part of a global tensor, and the ranks' records that hold it."""

    start: tuple[int, ...]  # the index of its first element in the global tensor
    terms: Addends  # of one shape
    factor: float = 1.0  # what the terms' sum is multiplied by
    # what other ranks hold in place of the terms, and should be equal
    replicas: tuple[Addends, ...] = ()
    # the box's first index and the one behind its last in each dimension of the terms; if empty, it
    # is all of them
    where: tuple[tuple[int, int], ...] = ()
    flat: bool = False  # whether it is a run of the flattened tensor
    # the numbers of the terms' rows that the box consists of, in its order, as the bytes of int64;
    # if empty, rows are not chosen. A row is all that has one index but the last; of a vector, one
    # number.
    taken: bytes = b""
    turned: bool = False  # whether it is a box of the transposed terms, which are matrices
    # the shape in which the terms are read, of as many elements; if empty, their own
    form: tuple[int, ...] = ()

    @property
    def part(self) -> tuple[int, ...]:
        """The shape of the terms, transposed if need be, or of their rows that are taken; flattened
        if the box is of the flattened tensor."""
        shape = self.form or self.terms[0].shape
        if self.taken:
            shape = len(self.taken) // 8, row_width(shape)
        if self.turned:
            shape = shape[::-1]
        return (math.prod(shape),) if self.flat else shape

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(stop - first for first, stop in self.where) if self.where else self.part

    @property
    def same(self) -> bool:
        """Whether the replicas hold the same bits."""
        if not self.replicas:
            return True
        own = [record.digest for record in self.terms]
        return all([record.digest for record in terms] == own for terms in self.replicas)


def whole_box(terms: Addends, shape: tuple[int, ...], form: tuple[int, ...] = ()) -> Box:
    """All of the terms, which are read in a shape."""
    return Box((0,) * len(shape), terms, where=tuple((0, each) for each in shape), form=form)


#: Changes of a record whose content is not that of any record.
UNKNOWN_CONTENT: dict[str, Any] = {"digest": None, "statistics": None, "sketch": None}


class GlobalRecord(Record, frozen=True, gc=False, array_like=True):
    """A tensor of the global model, known by the key of its lowest rank with the rank 0."""

    boxes: tuple[Box, ...] = ()  # its parts, which fill it; where there is none, it is zero
    evidence: LayoutEvidence = LayoutEvidence.RECORDED  # how it is known where they lie
    # the dimensions of the mesh that shard it, by axis: ``((2, ("tp",)),)``
    axes: tuple[tuple[int, tuple[str, ...]], ...] = ()
    reduced: str = ""  # how this comparison reduced what ranks hold: ``sum``, ``avg`` or ``""``
    # the axis that was padded for the ranks, and how much of it is left out
    padding: tuple[int, int] | None = None

    @classmethod
    def of(cls, record: Record, boxes: Iterable[Box], **changes: Any) -> GlobalRecord:
        """A record as one of a tensor that these boxes make up."""
        known = {name: getattr(record, name) for name in Record.__struct_fields__}
        return cls(**{**known, **changes}, boxes=tuple(boxes))

    @property
    def same(self) -> bool:
        """Whether all replicas hold the same bits."""
        return all(box.same for box in self.boxes)

    @property
    def ranks(self) -> list[int]:
        """The ranks that hold a part."""
        return sorted(
            {
                record.rank
                for box in self.boxes
                for terms in (box.terms, *box.replicas)
                for record in terms
            }
        )

    def holders(self, index: tuple[int, ...]) -> list[int]:
        """The ranks whose values make up an element."""
        box = self.box_at(index)
        return [] if box is None else [record.rank for record in box.terms]

    def box_at(self, index: tuple[int, ...]) -> Box | None:
        """The part that has an element."""
        flat = 0
        for at, length in zip(index, self.shape, strict=False):
            flat = flat * length + at
        for box in self.boxes:
            place = (flat,) if box.flat else index
            edges = zip(place, box.start, box.shape, strict=False)
            if all(first <= at < first + length for at, first, length in edges):
                return box
        return None
