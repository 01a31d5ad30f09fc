"""A vocabulary that is padded for the ranks, and golden's is not, or less, or more."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from accucompare.bundle.format import (
    UPDATE_ROLES,
    Box,
    GlobalRecord,
    Key,
    LayoutEvidence,
    Record,
    Role,
)
from accucompare.compare.layouts.arrange import Arrangement, box_of, whole_shapes
from accucompare.compare.layouts.mesh import Mesh
from accucompare.compare.layouts.sequence_parts import Holder
from accucompare.compare.pairing import Pair

#: Makes a global tensor of a record, a shape and its parts.
_Make = Callable[[Record, tuple[int, ...], Arrangement], GlobalRecord]
#: In the class's name of a layer with a vocabulary.
_EMBEDDING = "Embedding"
#: What must be zero where golden has nothing; of a weight and of logits, padding may be anything.
_ZERO = frozenset((Role.CALL_GRAD, *UPDATE_ROLES)) - {Role.PARAM_BEFORE, Role.PARAM_CHANGED}


def paddings(
    pairs: Iterable[Pair], groups: Mapping[Key, Mapping[Holder, Record]]
) -> set[tuple[int, int]]:
    """Golden's number of words, and the candidate's other one, of embeddings. ``groups``: the
    candidate's records by the key of golden's."""
    found = set()
    for pair in pairs:
        ours, theirs = pair.golden, pair.candidate
        if ours is None or theirs is None or _EMBEDDING not in theirs.type:
            continue
        shards = [each.shard for each in groups.get(theirs.key, {}).values()]
        if ours.role not in UPDATE_ROLES or not ours.shape or not shards or None in shards:
            continue
        shape = shards[0].shape if shards[0] is not None else ()
        if shape[1:] == ours.shape[1:] and shape[0] != ours.shape[0]:
            found.add((ours.shape[0], shape[0]))
    return found


def padded_shape(
    ours: Record, group: Mapping[Holder, Record], mesh: Mesh, known: Iterable[tuple[int, int]]
) -> tuple[int, tuple[int, ...]] | None:
    """The axis that is padded, and the candidate's shape; ``None`` if none is."""
    for shape in whole_shapes(group, mesh):
        if len(shape) == len(ours.shape):
            axes = [each for each in range(len(shape)) if shape[each] != ours.shape[each]]
            if len(axes) == 1 and (ours.shape[axes[0]], shape[axes[0]]) in known:
                return axes[0], shape
    return None


def is_zero_in_padding(record: Record) -> bool:
    return record.role in _ZERO


def with_padding(record: Record, shape: tuple[int, ...], make: _Make) -> GlobalRecord:
    """A tensor as large as the other side's, with zeros in the padding."""
    if not isinstance(record, GlobalRecord):
        record = make(record, shape, Arrangement((box_of(record),), LayoutEvidence.RECORDED))
        own = record.boxes[0].terms[0]
        known, share = own.statistics, math.prod(own.shape) / math.prod(shape)
    else:
        known, share = record.statistics, math.prod(record.shape) / math.prod(shape)
    if known is not None and None not in (known.min, known.max, known.mean):
        known = replace(
            known,
            min=min(known.min or 0.0, 0.0),
            max=max(known.max or 0.0, 0.0),
            mean=(known.mean or 0.0) * share,
        )
    return replace(record, shape=shape, digest=None, statistics=known, sketch=None)


def padded_like(record: Record | None, golden: Record) -> Record | None:
    """A baseline's record as golden's was made larger, or smaller."""
    if record is None or not isinstance(golden, GlobalRecord) or len(golden.boxes) != 1:
        return record
    (box,) = golden.boxes
    if record.shape != box.terms[0].shape or record.shape == golden.shape:
        return record
    fields = {name: getattr(record, name) for name in Record.__struct_fields__}
    fields |= {"shape": golden.shape, "digest": None, "statistics": None, "sketch": None}
    return GlobalRecord(**fields, boxes=(replace(box, terms=(record,)),))


def without_padding(record: Record, shape: tuple[int, ...], axis: int, make: _Make) -> GlobalRecord:
    """A tensor as far as the other side's goes."""
    if not isinstance(record, GlobalRecord):
        own = Arrangement((box_of(record),), LayoutEvidence.RECORDED)
        record = make(record, record.shape, own)
    boxes = [box for each in record.boxes if (box := _cut(each, shape, axis)) is not None]
    return replace(
        record,
        shape=shape,
        boxes=tuple(boxes),
        digest=None,
        statistics=None,
        sketch=None,
        padding=(axis, record.shape[axis] - shape[axis]),
    )


def _cut(box: Box, shape: tuple[int, ...], axis: int) -> Box | None:
    own = 0 if box.flat else axis
    end = math.prod(shape) if box.flat else shape[axis]
    count = min(box.shape[own], end - box.start[own])
    if count <= 0 or (box.flat and axis):
        return None
    where = list(box.where or ((0, length) for length in box.part))
    where[own] = where[own][0], where[own][0] + count
    return replace(box, where=tuple(where))
