"""Golden's tensors cut: boxes of them that a rank's own boxes take, and the records of these."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from accucompare.bundle.format import Box, GlobalRecord, Layout, Record
from accucompare.numbers import DTYPES, Kind


def is_shared_out(record: Record) -> bool:
    """Whether ranks may be given shares of a value of this type."""
    return DTYPES[record.dtype].kind in (Kind.FLOAT, Kind.COMPLEX)


def turned_box(box: Box, golden: Record, share: float) -> Box | None:
    """A box of golden's tensor as a box of the rank's own, which so many times golden's values
    fill; ``None`` if it is all padding."""
    recorded = golden.boxes[0].terms[0] if isinstance(golden, GlobalRecord) else golden
    shape = (math.prod(recorded.shape),) if box.flat else recorded.shape
    there = tuple(
        (start, min(start + length, whole))
        for start, length, whole in zip(box.start, box.shape, shape, strict=True)
    )
    if any(start >= stop for start, stop in there):
        return None
    own = tuple(start for start, _ in box.where) or (0,) * len(there)
    return Box(own, (recorded,), share, (), there, box.flat)


def cut_of_golden(golden: Record, own: Record, boxes: Sequence[Box]) -> Record:
    """Golden's record under the name that a rank has for it, and as the rank's own part of it."""
    own_fields = ("name", "call", "role", "path", "type", "parent")
    names = {name: getattr(own, name) for name in own_fields}
    if DTYPES.get(golden.dtype) is None or golden.layout is not Layout.STRIDED:
        return replace(golden, **names)
    whole = len(boxes) == 1 and boxes[0].factor == 1.0 and not boxes[0].taken
    if whole and own.shape == golden.shape == boxes[0].shape:
        return replace(golden, **names)
    if not is_shared_out(golden):
        boxes = [replace(box, factor=1.0) for box in boxes]
    place = [(box.start, box.where, box.factor, box.taken) for box in boxes]
    fields = {name: getattr(golden, name) for name in Record.__struct_fields__} | names
    fields |= {
        "shape": own.shape,
        "digest": f"{[box.terms[0].digest for box in boxes]} {place}",
        "statistics": None,
        "sketch": None,
        "shard": own.shard,
    }
    return GlobalRecord(**fields, boxes=tuple(boxes))
